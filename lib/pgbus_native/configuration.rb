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

    # Writer threads of one pump; a machine has fewer cores.
    MOST_WRITERS = 1024

    # @return [Symbol] one of {OVERFLOW_POLICIES}; read when a pump is built
    attr_reader :pump_overflow

    # Writer threads of the pump that a worker has where pgbus's `streams_writer_threads` is 0. With 0 there is none:
    # pgbus's dispatcher then writes to each browser in turn.
    #
    # @return [Integer] read when a worker's streamer is built
    attr_reader :writers

    # Whether messages go from the database to the browsers natively. Without, pgbus's own dispatcher reads and asks, and
    # the pump writes.
    #
    # @return [Boolean] read when a worker's streamer is built
    attr_reader :feed

    def initialize
      @pump_overflow = :drop_oldest
      @feed = true
      @writers = 1
    end

    # @param wanted [Boolean]
    # @raise [TypeError] for anything else
    def feed=(wanted)
      raise TypeError, "feed must be true or false, got #{wanted.inspect}" unless [true, false].include?(wanted)

      @feed = wanted
    end

    # @param count [Integer]
    # @raise [TypeError] unless it is an Integer
    # @raise [ArgumentError] unless it is from 0 to {MOST_WRITERS}
    def writers=(count)
      raise TypeError, "writers must be an Integer, got #{count.inspect}" unless count.is_a?(Integer)
      raise ArgumentError, "writers must be from 0 to #{MOST_WRITERS}, got #{count}" unless (0..MOST_WRITERS).cover?(count)

      @writers = count
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
