# frozen_string_literal: true

require "pg"

module Pgbus
  module Web
    module Streamer
      # A LISTEN session of the pg gem. Its thread alone touches the session; others send it commands, which it looks at
      # once per health check.
      class Listener
        WakeMessage = Data.define(:queue_name, :payload) do
          def initialize(queue_name:, payload: nil) = super
        end

        CHANNEL = /\Apgmq\.q_(.*)\.INSERT\z/m
        RECONNECT_BACKOFF_SECONDS = 0.5

        attr_reader :listening_to, :dropped_wakes

        def initialize(pg_connection:, dispatch_queue:, health_check_ms:, connection_factory:, dispatch_queue_limit: 0,
                       maintenance: nil, logger: Pgbus.logger, clock: nil)
          @connection = pg_connection
          @dispatch_queue = dispatch_queue
          @interval = health_check_ms / 1000.0
          @connection_factory = connection_factory
          @dispatch_queue_limit = dispatch_queue_limit
          @logger = logger
          @listening_to = Set.new
          @commands = Queue.new
          @dropped_wakes = 0
        end

        def start
          @running = true
          @thread ||= Thread.new { run }
          self
        end

        def stop
          @running = false
          @thread&.join(@interval + 5)
          @thread = nil
          self
        end

        def alive? = !!@thread&.alive?
        def connected? = !@connection.nil?

        # Returns when LISTEN is active, or after the longest time in which the thread looks at its commands.
        def ensure_listening(queue)
          ack = Queue.new
          @commands << [:listen, queue, ack]
          ack.pop(timeout: @interval + 1)
        end

        def remove_listening(queue)
          @commands << [:unlisten, queue, nil]
        end

        private

        def run
          while @running
            begin
              run_commands
              @connection.wait_for_notify(@interval) { |channel, _pid, payload| wake(channel, payload) } or
                @connection.exec("SELECT 1")
            rescue IOError, PG::Error => e
              reconnect(e) if @running
            end
          end
        ensure
          @connection&.close
          @connection = nil
        end

        def run_commands
          until @commands.empty?
            verb, queue, ack = @commands.pop
            channel = "pgmq.q_#{queue}.INSERT"
            begin
              changed = verb == :listen ? @listening_to.add?(channel) : @listening_to.delete?(channel)
              @connection.exec("#{verb} #{PG::Connection.quote_ident(channel)}") if changed
            ensure
              ack&.push(:done)
            end
          end
        end

        def wake(channel, payload)
          queue_name = channel[CHANNEL, 1] or return
          payload = nil if payload == ""
          if payload.nil? && @dispatch_queue_limit.positive? && @dispatch_queue.size >= @dispatch_queue_limit
            @dropped_wakes += 1
          else
            @dispatch_queue << WakeMessage.new(queue_name:, payload:)
          end
        end

        def reconnect(error)
          @logger.warn { "[standin] LISTEN session lost (#{error.class}: #{error.message.strip}), connecting again" }
          begin
            @connection&.close
            @connection = nil
            fresh = Process::PrimaryValidator.validate_primary!(@connection_factory.call)
            @listening_to.each { |channel| fresh.exec("LISTEN #{PG::Connection.quote_ident(channel)}") }
            @connection = fresh
          rescue PG::Error, Process::ReplicaConnectionError
            fresh&.close
            sleep RECONNECT_BACKOFF_SECONDS
            retry if @running
          end
        end
      end
    end
  end
end
