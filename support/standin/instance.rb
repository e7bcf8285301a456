# frozen_string_literal: true

module Pgbus
  module Web
    module Streamer
      # The connections of a worker, by stream.
      class Registry
        def initialize
          @mutex = Mutex.new
          @by_stream = Hash.new { |streams, name| streams[name] = {}.compare_by_identity }
        end

        def register(connection) = synchronize { @by_stream[connection.stream_name][connection] = true }

        def unregister(connection)
          synchronize do
            connections = @by_stream[connection.stream_name]
            connections.delete(connection)
            @by_stream.delete(connection.stream_name) if connections.empty?
          end
        end

        def connections_for(stream) = synchronize { @by_stream.fetch(stream, {}).keys }
        def any?(stream) = synchronize { @by_stream.key?(stream) }
        def include?(connection) = synchronize { @by_stream.fetch(connection.stream_name, {}).key?(connection) }
        def each_connection(&) = synchronize { @by_stream.values.flat_map(&:keys) }.each(&)
        def size = synchronize { @by_stream.each_value.sum(&:size) }

        private

        def synchronize(&) = @mutex.synchronize(&)
      end

      # Everything that streams in one Puma worker. Listens through the hub whose socket PGBUS_STREAMS_HUB_SOCKET names,
      # or by a session of its own.
      class Instance
        attr_reader :registry, :listener, :pump

        def initialize(client: Pgbus.client, config: Pgbus.configuration, logger: Pgbus.logger)
          @config = config
          @logger = logger
          @registry = Registry.new
          @queue = Queue.new
          acks = Queue.new
          PgbusNative::ConnectionSeam.install(Connection) # as it does by itself in pgbus
          on_dead = ->(connection) { @queue << StreamEventDispatcher::DisconnectMessage.new(connection:) }
          @pump = PgbusNative::OutboundPump.new(threads: [config.streams_writer_threads, 1].max, ack_queue: acks, on_dead:,
                                                buffer_limit: config.streams_writer_buffer_limit, logger:)
          @listener = build_listener
          @dispatcher = StreamEventDispatcher.new(client:, registry: @registry, listener: @listener, dispatch_queue: @queue,
                                                  pump: @pump, ack_queue: acks, config:, logger:)
          @end = Queue.new
        end

        def start
          [@pump, @dispatcher].each(&:start)
          @heartbeat = Thread.new { beat until @end.pop(timeout: @config.streams_heartbeat_interval) }
          self
        end

        def register(connection)
          @queue << StreamEventDispatcher::ConnectMessage.new(connection:)
        end

        # Tells every browser to come back, to whichever worker serves then.
        def shutdown!
          @end << true
          [@heartbeat, @listener, @dispatcher, @pump].each { |part| part.is_a?(Thread) ? part.join(5) : part.stop }
          sentinel = Streams::Envelope.message(id: 0, event: "pgbus:shutdown", data: '{"reason":"worker_restart"}')
          @registry.each_connection do |connection|
            connection.write_sentinel(sentinel) unless connection.dead?
            connection.close
          end
        end

        private

        def build_listener
          socket_path = ENV.fetch("PGBUS_STREAMS_HUB_SOCKET", nil)
          return HubClient.new(socket_path:, dispatch_queue: @queue, logger: @logger).connect if socket_path

          factory = -> { DedicatedConnection.connect(@config.streams_connection_options) }
          Listener.new(pg_connection: factory.call, dispatch_queue: @queue, connection_factory: factory,
                       health_check_ms: @config.streams_listen_health_check_ms, logger: @logger).start
        end

        def beat
          @registry.each_connection do |connection|
            connection.write_comment("heartbeat") unless connection.dead?
            @queue << StreamEventDispatcher::DisconnectMessage.new(connection:) if connection.dead?
          end
        end
      end

      @mutex = Mutex.new

      class << self
        # The worker's own; built when its first browser arrives, so after the fork.
        def current = @mutex.synchronize { @current ||= Instance.new.start }
        def reset! = @mutex.synchronize { @current.tap { @current = nil } }&.shutdown!
      end
    end
  end
end
