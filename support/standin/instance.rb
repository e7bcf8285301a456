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
          patch # as it is by itself in pgbus
          @config = config
          @logger = logger
          @registry = Registry.new
          @dispatch_queue = Queue.new
          @ack_queue = Queue.new
          @pump = build_pump
          @listener = build_listener
          @dispatcher = StreamEventDispatcher.new(client:, registry: @registry, listener: @listener, config:, logger:,
                                                  dispatch_queue: @dispatch_queue, pump: @pump, ack_queue: @ack_queue)
          @end = Queue.new
        end

        def start
          [@pump, @dispatcher].each { |part| part&.start }
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

        def build_listener
          socket_path = ENV.fetch("PGBUS_STREAMS_HUB_SOCKET", nil)
          return HubClient.new(socket_path:, dispatch_queue: @dispatch_queue, logger: @logger).connect if socket_path

          factory = -> { DedicatedConnection.connect(@config.streams_connection_options) }
          Listener.new(pg_connection: factory.call, dispatch_queue: @dispatch_queue, connection_factory: factory,
                       health_check_ms: @config.streams_listen_health_check_ms, logger: @logger).start
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
