# frozen_string_literal: true

module Pgbus
  module Web
    module Streamer
      # Everything that streams in one Puma worker. Listens through the hub whose socket PGBUS_STREAMS_HUB_SOCKET names,
      # or by a session of its own.
      class Instance
        attr_reader :registry, :listener, :pump, :stream_counter

        def initialize(client: Pgbus.client, config: Pgbus.configuration, logger: Pgbus.logger, pg_connection: nil,
                       connection_factory: nil)
          patch # as it is by itself in pgbus
          @client = client
          @config = config
          @logger = logger
          @registry = Registry.new
          @dispatch_queue = Queue.new
          @ack_queue = Queue.new
          @stream_counter = StreamCounter.new
          @listener = build_listener(pg_connection, connection_factory)
          @pump = build_pump
          @dispatcher = StreamEventDispatcher.new(client:, registry: @registry, listener: @listener, config:, logger:,
                                                  dispatch_queue: @dispatch_queue, pump: @pump, ack_queue: @ack_queue,
                                                  stream_counter: @stream_counter)
          @end = Queue.new
        end

        def start
          [@pump, @listener, @dispatcher].each { |part| part&.start }
          @heartbeat = Thread.new { beat until @end.pop(timeout: @config.streams_heartbeat_interval) }
          self
        end

        def register(connection)
          @dispatch_queue << StreamEventDispatcher::ConnectMessage.new(connection:)
        end

        # Tells every browser to come back, to whichever worker serves then.
        def shutdown!
          @end << true
          @heartbeat.join(5)
          [@listener, @dispatcher, @pump].each { |part| part&.stop }
          close_all_connections
        end

        private

        def patch
          PgbusNative::ConnectionPatch.install(Connection)
          PgbusNative::InstancePatch.install(Instance)
          PgbusNative::Feed.install(Streamer)
        end

        def build_pump
          threads = @config.streams_writer_threads
          return unless threads.positive?

          on_dead = ->(connection) { @dispatch_queue << StreamEventDispatcher::DisconnectMessage.new(connection:) }
          PgbusNative::OutboundPump.new(threads:, ack_queue: @ack_queue, on_dead:, logger: @logger,
                                        buffer_limit: @config.streams_writer_buffer_limit)
        end

        def close_all_connections
          sentinel = Streams::Envelope.message(id: 0, event: "pgbus:shutdown", data: '{"reason":"worker_restart"}')
          @registry.each_connection do |connection|
            connection.write_sentinel(sentinel) unless connection.dead?
            connection.close
          end
        end

        def build_listener(pg_connection, connection_factory)
          socket_path = ENV.fetch("PGBUS_STREAMS_HUB_SOCKET", nil)
          return HubClient.new(socket_path:, dispatch_queue: @dispatch_queue, logger: @logger).connect if socket_path

          connection_factory ||= -> { DedicatedConnection.connect(@config.streams_connection_options) }
          Listener.new(pg_connection: pg_connection || connection_factory.call, dispatch_queue: @dispatch_queue,
                       connection_factory:, health_check_ms: @config.streams_listen_health_check_ms, logger: @logger)
        end

        def beat
          @registry.each_connection do |connection|
            connection.write_comment("heartbeat") unless connection.dead?
            @dispatch_queue << StreamEventDispatcher::DisconnectMessage.new(connection:) if connection.dead?
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
