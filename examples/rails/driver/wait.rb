# frozen_string_literal: true

# Waits for conditions.
module Wait
  class TooLong < StandardError; end

  # @return what the block returned when it was true
  def self.for(what, seconds)
    deadline = now + seconds
    until (value = yield)
      raise TooLong, "waited #{seconds} s in vain for #{what}" if now > deadline

      sleep 0.05
    end
    value
  end

  def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end
