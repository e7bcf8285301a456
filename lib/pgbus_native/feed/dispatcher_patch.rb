# frozen_string_literal: true

require_relative "ruby_connections"

module PgbusNative
  class Feed
    # What is prepended to pgbus's `StreamEventDispatcher`. With a feed for its listener, a dispatcher keeps the books of
    # the connections that the feed serves (registry, presence, counters, statistics); it neither reads for them nor
    # writes to them. Those of the Ruby way are its own, as before.
    module DispatcherPatch
      def initialize(registry:, listener:, **)
        return super unless listener.is_a?(Feed)

        @feed = listener
        super(registry: RubyConnections.new(registry, listener), listener:, **)
        @feed.audience(@filters, after: -> { release_ar_connections })
      end

      private

      def handle(message)
        case message
        when Broadcasts then message.sent.each { |broadcast| record_broadcast(*broadcast) }
        when self.class::ConnectMessage
          @feed && serve(message.connection) ? record_connect(message.connection) : super
        else super
        end
      rescue StandardError => e
        # As pgbus's own: one message must not end the dispatcher.
        @logger.error { "[Pgbus::Streamer::Feed] handling #{message.class} raised #{e.class}: #{e.message}" }
      end

      # Mostly it is served already, since {InstancePatch#register}.
      def serve(connection)
        @feed.connect(connection, notify_queue_name_for(connection.stream_name))
      rescue ArgumentError
        false # a name that can't be a queue's; what pgbus says of it is its own affair
      end

      def record_connect(connection)
        stream, started_at = connection.stream_name, monotonic_ms
        @stream_counter.increment_total_connections(stream)
        unless connection.dead?
          @stream_counter.increment_connections(stream)
          @registry.register(connection)
          presence_join(connection, stream)
        end
        record_stat(stream_name: stream, event_type: "connect", started_at:)
      end

      def record_broadcast(stream, fanout, ephemeral, took_ms, times)
        times.times { @stream_counter.increment_broadcasts(stream) }
        record_stat(stream_name: stream, event_type: "broadcast", started_at: monotonic_ms - took_ms, fanout:, ephemeral:)
      end
    end
  end
end
