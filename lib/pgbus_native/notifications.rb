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
    # @param guard [Guard] survives a subscriber that raises
    # @param payload [Hash{Symbol => Object}]
    # @return [void]
    def self.publish(event, guard:, **payload)
      return unless defined?(::ActiveSupport::Notifications)

      name = "#{event}.pgbus_native"
      guard.call("a subscriber of #{name}") { ::ActiveSupport::Notifications.instrument(name, payload) }
    end
  end
end
