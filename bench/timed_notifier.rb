# frozen_string_literal: true

require "pg"

# Sends NOTIFYs that say when they were sent, as the load clients read it.
class TimedNotifier
  # @param url [String] of the database
  # @param channel [String]
  def initialize(url, channel: "pgmq.q_bench.INSERT")
    @url = url
    @channel = channel
  end

  # @param rate [Numeric] a second
  # @param count [Integer]
  # @param bytes [Integer] of each one's payload, beside the time
  def send_at(rate, count, bytes: 500)
    connection = PG.connect(@url)
    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    body = "x" * bytes
    count.times do |i|
      wait = begun + (i / rate.to_f) - Process.clock_gettime(Process::CLOCK_MONOTONIC)
      sleep wait if wait.positive?
      sent = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
      connection.exec_params("SELECT pg_notify($1, $2)", [@channel, "#{sent} #{i} #{body}"])
    end
  ensure
    connection&.close
  end
end
