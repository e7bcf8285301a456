# frozen_string_literal: true

require "socket"

module Pgbus
  module Web
    module Streamer
      # A worker's end of the hub's socket. Its thread turns wakes into messages on the dispatch queue. Once the hub is
      # gone it stays dead, and says so once to `on_failure`.
      class HubClient
        class HubUnavailableError < StandardError; end

        def initialize(socket_path:, dispatch_queue:, ack_timeout: 2.0, on_failure: nil, logger: Pgbus.logger)
          @socket_path = socket_path
          @dispatch_queue = dispatch_queue
          @ack_timeout = ack_timeout
          @on_failure = on_failure
          @logger = logger
          @mutex = Mutex.new
          @waiting = Hash.new { |acks, queue| acks[queue] = [] }
          @healthy = true
          @dead = @stopping = false
        end

        def connect
          @socket = UNIXSocket.new(@socket_path)
          @reader = Thread.new { read_frames }
          self
        rescue SystemCallError, IOError, ArgumentError => e
          raise HubUnavailableError, "cannot reach the hub at #{@socket_path}: #{e.class}: #{e.message}"
        end

        # As a listener's: it listens since it is connected.
        def start = self

        def hub_healthy? = @healthy
        def dead? = @dead

        # @return [Symbol] :done once LISTEN is active for the queue
        # @raise [HubUnavailableError] the hub is gone, or did not answer in time
        def ensure_listening(queue)
          ack = Queue.new
          @mutex.synchronize { @waiting[queue] << ack }
          send_frame("t" => "sub", "q" => queue)
          answer = ack.pop(timeout: @ack_timeout)
          fail_with("no ack for #{queue} within #{@ack_timeout}s") unless answer
          answer == :ack ? :done : raise(HubUnavailableError, "the hub is gone; no ack for #{queue}")
        end

        def remove_listening(queue)
          send_frame("t" => "unsub", "q" => queue)
        rescue HubUnavailableError
          nil
        end

        def stop
          @stopping = true
          @socket&.close
          @reader&.join(2)
          self
        end

        private

        def read_frames
          while (frame = HubProtocol.read_frame(@socket))
            receive(frame)
          end
          fail_with("the hub closed the socket")
        rescue StandardError => e
          fail_with("#{e.class}: #{e.message}")
        end

        def receive(frame)
          case frame["t"]
          when "wake" then @dispatch_queue << Listener::WakeMessage.new(queue_name: frame["q"], payload: frame["p"])
          when "ack" then @mutex.synchronize { @waiting[frame["q"]].shift }&.push(:ack)
          when "status" then @healthy = frame["healthy"]
          else @logger.warn { "[standin] unknown frame from the hub: #{frame["t"].inspect}" }
          end
        end

        def send_frame(frame)
          raise HubUnavailableError, "the hub is gone" if @dead

          @mutex.synchronize { @socket.write(HubProtocol.encode(frame)) }
        rescue IOError, SystemCallError => e
          fail_with("#{e.class}: #{e.message}")
          raise HubUnavailableError, "the hub is gone"
        end

        def fail_with(reason)
          acks = @mutex.synchronize do
            return if @dead || @stopping

            @dead = true
            @healthy = false
            @waiting.values.flatten.tap { @waiting.clear }
          end
          acks.each { |ack| ack << :dead }
          @socket.close
          @logger.warn { "[standin] hub client: #{reason}" }
          @on_failure&.call
        end
      end
    end
  end
end
