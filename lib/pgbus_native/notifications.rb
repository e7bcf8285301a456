# frozen_string_literal: true

module PgbusNative
  # What an operator wants to hear of at once, as events of ActiveSupport::Notifications where that is loaded.
  #
  # | event | payload |
  # | --- | --- |
  # | `evicted.pgbus_native` | `:hub`, `:worker` (its number), `:waiting` (frames) |
  # | `session_lost.pgbus_native` | `:hub`, `:reason` |
  # | `session_restored.pgbus_native` | `:hub` |
  # | `overflow.pgbus_native` | `:pump`, `:connection`, `:dropped` (jobs), `:policy` |
  # | `dead.pgbus_native` | `:pump`, `:connection` |
  #
  # Subscribers run on the reporter thread of the hub or pump concerned: a slow one delays its reports (acks, deaths, log
  # lines), never a socket.
  module Notifications
    # @param event [Symbol]
    # @param logger [Logger] told, at debug, of a subscriber that raises; nothing else happens to that one
    # @param payload [Hash{Symbol => Object}]
    # @return [void]
    def self.publish(event, logger:, **payload)
      return unless defined?(::ActiveSupport::Notifications)

      ::ActiveSupport::Notifications.instrument("#{event}.pgbus_native", payload)
    rescue StandardError => e
      begin
        logger.debug { "[PgbusNative] a subscriber of #{event}.pgbus_native raised: #{e.class}: #{e.message}" }
      rescue StandardError
        nil
      end
    end
  end
end
