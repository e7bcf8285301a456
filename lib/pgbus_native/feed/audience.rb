# frozen_string_literal: true

module PgbusNative
  class Feed
    # Asks the app's filters who may see a message. Who can't be asked about may not: a filter that raises, or that
    # nobody registered, hides.
    class Audience
      # @param filters [#visible?] pgbus's
      # @param guard [Guard] for what they raise
      # @param after [#call] gives back what they took, such as connections of ActiveRecord's
      def initialize(filters, guard, after)
        @filters = filters
        @guard = guard
        @after = after
      end

      # @param label [String] a message's `visible_to`, as JSON
      # @param connections [Array<Pgbus::Web::Streamer::Connection, nil>]
      # @return [Array<Boolean>] whether each may see it; nil, which has left, may not
      def of(label, connections)
        name = JSON.parse(label)
        name = name.to_sym if name.is_a?(String)
        connections.map { |connection| !connection.nil? && visible?(name, connection) }
      end

      # After a batch of questions.
      #
      # @return [void]
      def rest = @after.call

      private

      def visible?(name, connection)
        !!@guard.call("filter #{name.inspect}") { @filters.visible?(name, connection.context) }
      end
    end
    private_constant :Audience
  end
end
