# frozen_string_literal: true

require_relative "../patch"

module PgbusNative
  class Feed
    # What is prepended to pgbus's `Instance`, a worker's streamer: its listener is a feed, where that can be.
    module InstancePatch
      extend Patch

      # From the request's own thread: between the response's header and the first message nobody waits for Ruby.
      def register(connection)
        super
        hand_over(connection) if @listener.is_a?(Feed) && !connection.dead?
      end

      private

      def hand_over(connection)
        @listener.connect(connection, @client.config.queue_name(connection.stream_name))
      rescue ArgumentError
        nil # a name that can't be a queue's; the dispatcher finds it too and says so
      end

      def build_listener(pg_connection, connection_factory)
        return super unless InstancePatch.active?

        injected = "a connection, or what makes one, was given" if pg_connection || connection_factory
        hub = hub_socket
        obstacle = Feed.obstacle = injected || Obstacle.find(self, hub)
        return Feed.new(config: @config, dispatch_queue: @dispatch_queue, hub:, logger: @logger) unless obstacle

        @logger.info { "[Pgbus::Streamer::Feed] pgbus's own dispatcher reads and writes: #{obstacle}" }
        super
      end

      # As pgbus finds it.
      def hub_socket
        return unless @config.streams_listen_scope == :master

        path = ENV.fetch("PGBUS_STREAMS_HUB_SOCKET", nil)
        path unless path.nil? || path.empty?
      end
    end
  end
end
