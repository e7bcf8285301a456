# frozen_string_literal: true

module PgbusNative
  # What an app can choose, beside pgbus's own configuration. See {PgbusNative.configure}.
  class Configuration
    # What a pump does when a connection's waiting frames exceed its `buffer_limit`.
    #
    # - `:drop_oldest` drops its oldest waiting jobs, as pgbus's own pump does. The client is not told and can't get
    #   them back.
    # - `:disconnect` discards what waits and ends the connection, so that the browser reconnects from its true cursor
    #   and replays from the archive.
    OVERFLOW_POLICIES = %i[drop_oldest disconnect].freeze

    # @return [Symbol] one of {OVERFLOW_POLICIES}; read when a pump is built
    attr_reader :pump_overflow

    def initialize
      @pump_overflow = :drop_oldest
    end

    # @param policy [Symbol]
    # @raise [ArgumentError] for anything but one of {OVERFLOW_POLICIES}
    def pump_overflow=(policy)
      unless OVERFLOW_POLICIES.include?(policy)
        raise ArgumentError,
              "pump_overflow must be one of #{OVERFLOW_POLICIES.map(&:inspect).join(", ")}, got #{policy.inspect}"
      end

      @pump_overflow = policy
    end
  end
end
