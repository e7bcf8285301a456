# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    # Tells the dispatcher what became of jobs and connections. Whatever goes wrong there is logged and survived.
    class Outcome
      PREFIX = "[Pgbus::Streamer::OutboundPump]"

      def initialize(pump, ack_queue, on_dead, logger)
        @pump = pump
        @ack_queue = ack_queue
        @on_dead = on_dead
        @logger = logger
      end

      # Everything up to `accepted_max` is in the socket.
      def ack(connection, accepted_max)
        @ack_queue << Pgbus::Web::Streamer::StreamEventDispatcher::WriteAckMessage.new(connection:, accepted_max:)
      rescue StandardError => e
        log(:debug, "ack for #{connection.id} was not taken: #{e.class}: #{e.message}")
      end

      # The pump found the connection dead.
      def dead(connection)
        connection.mark_dead!
        @on_dead.call(connection)
      rescue StandardError => e
        log(:debug, "on_dead failed: #{e.class}: #{e.message}")
      ensure
        Notifications.publish(:dead, logger: @logger, pump: @pump, connection:)
      end

      # More frames waited for the connection than may; so many jobs were dropped.
      def overflow(connection, dropped, policy)
        Notifications.publish(:overflow, logger: @logger, pump: @pump, connection:, dropped:, policy:)
      end

      def log(level, text)
        @logger.public_send(level) { "#{PREFIX} #{text}" }
      rescue StandardError
        # A logger that fails must not take a thread with it.
      end
    end
    private_constant :Outcome
  end
end
