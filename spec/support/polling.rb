# frozen_string_literal: true

# Waits for conditions, never for time.
module Polling
  # @param what [String] for the message when it does not happen
  # @return [Object] what the block returned when it was true
  def eventually(what = "it", seconds: 20)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    until (result = yield)
      raise "#{what} did not happen within #{seconds} s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

      sleep 0.01
    end
    result
  end
end
