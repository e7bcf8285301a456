# frozen_string_literal: true

module PgbusNative
  # Ruby allows no lock in a signal handler, and an app may well stop a hub in one.
  module SignalHandler
    # Runs the block where it may take locks: here, or on a thread of its own while this one handles a signal. The block
    # must not wait for a lock that the interrupted code holds.
    #
    # @return [Object] what the block returns
    def self.leave(&)
      current? ? Thread.new(&).value : yield
    end

    # @return [Boolean] whether the current thread handles a signal
    def self.current?
      Mutex.new.synchronize { false }
    rescue ThreadError
      true
    end
  end
end
