# frozen_string_literal: true

module Chaos
  # One fault after the other, and what the healthy worker says of each.
  class Run
    STREAMS = Array.new(20) { |i| "stream#{i}" }.freeze
    CALM_SECONDS = 5
    # How often the p99 beside good neighbours the p99 beside misbehaving ones may be; and the milliseconds that a
    # shared machine is forgiven.
    FACTOR = 2
    SLACK_MS = 20

    def initialize(postgres, host, line, address)
      @host = host
      @broadcasts = Broadcasts.new(postgres.url, STREAMS)
      @witness = Witness.new(host.path, @broadcasts, STREAMS)
      @faults = Faults.new(postgres:, host:, line:, address:)
    end

    # Every fault at least once; ends the process at the first one that was not survived.
    def among_faults(seconds)
      give_up_at = Chaos.now + seconds
      @witness.latencies
      @faults.flooded { sleep CALM_SECONDS }
      @limit = (p99(@witness.latencies) * FACTOR) + SLACK_MS
      puts format("chaos: p99 may be %.1f ms", @limit)
      loop do
        @faults.all.shuffle.each { |fault| go_through(fault) }
        break if Chaos.now > give_up_at
      end
      puts "chaos: survived, #{@host.stats}"
    end

    private

    def go_through(fault)
      @witness.latencies
      fault.run.call
      nothing_missed(fault)
      latencies = @witness.latencies
      puts format("chaos: %-30s %5d timed wakes, p99 %8.2f ms", fault.name, latencies.size, p99(latencies))
      late = fault.neighbours && p99(latencies) > @limit
      abort "chaos: #{fault.name}: the healthy worker's wakes were late" if late
    end

    # No change comes after these: what is known by then is known from the wakes that came.
    def nothing_missed(fault)
      @broadcasts.paused do |versions|
        Chaos.eventually("after #{fault.name}: what the worker misses, #{@witness.missing(versions)},") do
          abort "chaos: #{fault.name}: the healthy worker was severed" unless @witness.connected?
          @witness.missing(versions).empty?
        end
      end
    end

    def p99(latencies) = latencies.sort[(latencies.size * 0.99).floor.clamp(0, [latencies.size - 1, 0].max)] || 0.0
  end
end
