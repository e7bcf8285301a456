# frozen_string_literal: true

require "json"
require_relative "cluster"

module Demo
  # Many browsers, in the load client's process. Its reports are Hashes: counts of frames, and latencies in ms.
  class Audience
    CONNECT_PATIENCE = 30 # seconds in which at least one more browser must get through
    PROGRAM = File.expand_path("../../target/load/release/pgbus_native_load", __dir__)

    def self.open(**)
      audience = new(**)
      yield audience
    ensure
      audience&.close
    end

    # @param since [Integer] the msg_id after which they begin
    def initialize(port:, path:, clients:, since: 0)
      raise Error, "#{PROGRAM} is missing; bin/demo and bin/test build it" unless File.executable?(PROGRAM)

      @clients = clients
      @io = IO.popen([PROGRAM, "sse", "127.0.0.1:#{port}", clients.to_s, path, since.to_s], "r+", pgroup: true)
    end

    # Yields reports until every browser has the first message: then it is subscribed, and misses no ephemeral one.
    def connect
      started = 0
      since = now
      watch do |report|
        yield report if block_given?
        raise Error, "a client was answered #{report[:refusal]}" if report[:refusal]

        started, since = report[:started], now if report[:started] > started
        raise Error, "only #{started} of #{@clients} clients got through" if now - since > CONNECT_PATIENCE

        started == @clients
      end
    end

    # Yields reports until all that the broadcaster sends is here, or nothing has come for a while.
    # @return [Hash] the last report
    def follow(broadcaster)
      told = nil
      watch do |report|
        @io.puts("end #{broadcaster.sent.join(" ")}") if !told && (told = broadcaster.sent)
        yield report if block_given?
        report[:done]
      end
    end

    def close
      @io.close # the end of its standard input ends it
    end

    private

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def watch
      while (line = @io.gets)
        report = JSON.parse(line, symbolize_names: true)
        return report if yield report
      end
      raise Error, "the load client ended early"
    end
  end
end
