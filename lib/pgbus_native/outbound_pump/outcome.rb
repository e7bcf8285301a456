# frozen_string_literal: true

require_relative "../guard"

module PgbusNative
  class OutboundPump
    # Tells the dispatcher what became of jobs and connections. Whatever goes wrong there is logged and survived.
    class Outcome
      PREFIX = "[Pgbus::Streamer::OutboundPump]"

      # @return [Guard] of all foreign code that the pump calls
      attr_reader :guard

      def initialize(pump, ack_queue, on_dead, logger)
        @pump = pump
        @ack_queue = ack_queue
        @on_dead = on_dead
        @guard = Guard.new(logger, PREFIX)
      end

      # Everything up to `accepted_max` is in the socket.
      def ack(connection, accepted_max)
        ack = Pgbus::Web::Streamer::StreamEventDispatcher::WriteAckMessage.new(connection:, accepted_max:)
        @guard.call("ack_queue") { @ack_queue << ack }
      end

      # The pump found the connection dead. Each step is made even if the thread is killed in the one before it.
      def dead(connection)
        @guard.call("mark_dead!") { connection.mark_dead! }
      ensure
        begin
          @guard.call("on_dead") { @on_dead.call(connection) }
        ensure
          Notifications.publish(:dead, guard: @guard, pump: @pump, connection:)
        end
      end

      # More frames waited for the connection than may; so many jobs were dropped.
      def overflow(connection, dropped, policy)
        Notifications.publish(:overflow, guard: @guard, pump: @pump, connection:, dropped:, policy:)
      end

      def log(...) = @guard.log(...)
    end
    private_constant :Outcome
  end
end
