# frozen_string_literal: true

require "delegate"

module PgbusNative
  class Feed
    # What pgbus's dispatcher sees of the registry: to write to, only the connections that the feed doesn't serve.
    # Everything else, such as joining and leaving, concerns all.
    class RubyConnections < SimpleDelegator
      # @param registry [Pgbus::Web::Streamer::Registry]
      # @param feed [Feed]
      def initialize(registry, feed)
        super(registry)
        @feed = feed
      end

      # @return [Array<Pgbus::Web::Streamer::Connection>]
      def connections_for(stream_name) = super.reject { |connection| @feed.serves?(connection) }

      # @return [Boolean]
      def empty?(stream_name) = connections_for(stream_name).empty?

      # @return [Boolean] whether it was registered
      def unregister(connection)
        @feed.disconnect(connection)
        super
      end
    end
    private_constant :RubyConnections
  end
end
