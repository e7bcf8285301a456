#!/usr/bin/env ruby
# frozen_string_literal: true

# How fast the native OutboundPump is, beside one thread that does nothing but write(2), and beside pgbus's own Ruby
# pump where the real pgbus can be loaded:
#
#   ruby bench/pump.rb                                   # the native pump alone
#   PGBUS_PATH=../pgbus ruby bench/pump.rb               # both, as ratios of runs on this machine
#
# One process for each measurement, load clients in Rust. On a machine with other work to do the ratios hold, the
# figures don't.

require "json"
require "logger"
require "socket"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), File.expand_path("../support", __dir__))
require "pgbus_or_standin"
require "pgbus_native"
require_relative "report"

# One kind of pump, and what is measured of it.
class PumpBench
  LOAD = File.expand_path("../target/load/release/pgbus_native_load", __dir__)
  SECONDS = 90
  CONNECTIONS = 500
  SMALL_BUFFER = 16_384
  STREAMER = Pgbus::Web::Streamer
  Envelope = Data.define(:msg_id, :payload)

  # Frames a second that one thread reaches with one write(2) for each.
  def self.floor(frames: 50, size: 1000)
    total = CONNECTIONS * frames
    IO.popen([LOAD, "drain", CONNECTIONS.to_s, "0", "0", total.to_s, SECONDS.to_s]) do |drain|
      port = JSON.parse(drain.gets)["port"]
      IO.popen([LOAD, "raw", port.to_s, CONNECTIONS.to_s, frames.to_s, size.to_s], "r+") do |raw|
        2.times { drain.gets }.then { raw.puts }
        written = JSON.parse(raw.gets)
        written["frames"] / written["seconds"]
      end
    end
  end

  def initialize(pump_class)
    @pump_class = pump_class
  end

  # Posts `frames` to each of 500 connections, `rate` times a second or flat out, while `busy` Ruby threads compute.
  def run(frames:, size: 1000, rate: nil, threads: 2, busy: 0, stalled: 0, small_buffers: false)
    in_child do
      # pgbus's own pump runs on pgbus's own connections.
      PgbusNative::ConnectionPatch.uninstall unless @pump_class.equal?(PgbusNative::OutboundPump)
      with_clients(frames, stalled, small_buffers) do |connections, drain|
        pump = start(threads)
        work = BusyThreads.new(busy)
        work.reset
        posted = post_all(pump, connections, frames, size, rate)
        seen = JSON.parse(drain.gets, symbolize_names: true)
        kept = work.per_second
        stats = pump.stats if pump.respond_to?(:stats)
        work.stop
        pump.stop
        seen.merge(kept:, per_second: seen[:frames] / seen[:seconds], post_us: posted * 1e6 / (CONNECTIONS * frames),
                   writes_per_frame: stats && (stats[:writes].to_f / stats[:written]))
      end
    end
  end

  # What busy threads get done in a second with nobody beside them.
  def self.undisturbed(busy)
    work = BusyThreads.new(busy)
    work.reset
    sleep 2
    work.per_second.tap { work.stop }
  end

  # Bytes that the seam adds to a connection that has been written to and is idle.
  def idle_bytes(count: 2000)
    measure = lambda do |with_seam|
      in_child do
        with_seam ? PgbusNative::ConnectionPatch.install(STREAMER::Connection) : PgbusNative::ConnectionPatch.uninstall
        sockets = Array.new(count) { UNIXSocket.pair }
        pump = start(1)
        warm = [connection("warm", UNIXSocket.pair.first)]
        post_all(pump, warm, 50, 10, nil)
        before = memory
        connections = sockets.map.with_index { |pair, i| connection("c#{i}", pair.first) }
        post_all(pump, connections, 2, 10, nil)
        pump.stop
        (memory - before) / connections.size
      end
    end
    measure[true] - measure[false]
  end

  # MB that a frame of 1 MB takes while it waits for 1,000 connections.
  def waiting_mb
    in_child do
      connections = Array.new(1000) { |i| connection("c#{i}", (@kept ||= []).push(UNIXSocket.pair).last.first) }
      pump = start(1)
      before = memory
      post_all(pump, connections, 1, 1_000_000, nil)
      sleep 0.001 while pump.stats[:writes] < 1000
      (memory - before) / 1e6
    end
  end

  # Ruby threads that do nothing but compute, and how much of it.
  class BusyThreads
    def initialize(count)
      @work = Array.new(count, 0)
      @threads = Array.new(count) { |i| Thread.new { loop { (@work[i] += 1) && 2000.times { |j| j * j } } } }
    end

    def reset
      @before = @work.sum
      @began = PumpBench.now
    end

    def per_second = (@work.sum - @before) / (PumpBench.now - @began)
    def stop = @threads.each(&:kill)
  end

  def self.now(clock = Process::CLOCK_MONOTONIC) = Process.clock_gettime(clock)

  private

  def in_child
    reader, writer = IO.pipe
    pid = fork do
      writer.write(Marshal.dump(yield))
      writer.close
      exit!(0)
    end
    writer.close
    Marshal.load(reader.read)
  ensure
    Process.wait(pid) if pid
  end

  def start(threads)
    @pump_class.new(threads:, ack_queue: Queue.new, on_dead: ->(_) {}, logger: Logger.new(IO::NULL)).start
  end

  def connection(id, io)
    STREAMER::Connection.new(id:, stream_name: "s", io:, since_id: 0, writer: STREAMER::IoWriter, write_deadline_ms: 5000)
  end

  def with_clients(frames, stalled, small_buffers)
    expected = (CONNECTIONS - stalled) * frames
    buffer = small_buffers ? SMALL_BUFFER / 4 : 0
    IO.popen([LOAD, "drain", CONNECTIONS.to_s, stalled.to_s, buffer.to_s, expected.to_s, SECONDS.to_s]) do |drain|
      port = JSON.parse(drain.gets)["port"]
      connections = Array.new(CONNECTIONS) do |i|
        socket = TCPSocket.new("127.0.0.1", port)
        socket.setsockopt(:SOCKET, :SNDBUF, SMALL_BUFFER) if small_buffers
        connection("c#{i}", socket)
      end
      drain.gets
      yield connections, drain
    end
  end

  # Returns the CPU seconds of the posts alone: the GVL is held for as long. (The time on the clock has in it what the
  # system gave to others meanwhile.)
  def post_all(pump, connections, frames, size, rate)
    body = "x" * size
    spent = 0
    began = PumpBench.now
    frames.times do |i|
      wait = rate ? began + (i / rate.to_f) - PumpBench.now : 0
      sleep wait if wait.positive?
      posted = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
      envelopes = [Envelope.new(i + 1, "t=#{posted} #{body}")]
      cpu = PumpBench.now(Process::CLOCK_THREAD_CPUTIME_ID)
      connections.each { |one| pump.post(one, envelopes, i + 1, deadline_ms: 250) }
      spent += PumpBench.now(Process::CLOCK_THREAD_CPUTIME_ID) - cpu
    end
    spent
  end

  def memory
    GC.start
    `ps -o rss= -p #{Process.pid}`.to_i * 1024
  end
end

abort "bench/pump.rb: build first: support/build" unless
  File.executable?(PumpBench::LOAD)
Process.setrlimit(:NOFILE, [20_000, Process.getrlimit(:NOFILE).last].min, Process.getrlimit(:NOFILE).last)

ruby_pump = PgbusNative.originals[:OutboundPump]
PgbusNative::ConnectionPatch.install(PumpBench::STREAMER::Connection)
native = PumpBench.new(PgbusNative::OutboundPump)
ruby = ruby_pump && PumpBench.new(ruby_pump)
report = Report.new(ruby)
both = ->(**options) { [ruby&.run(**options), native.run(**options)] }

floor = PumpBench.floor
theirs, ours = both[frames: 50]
report.line("flat out, 500 connections, 50 frames of 1 KB, 2 writers: frames/s", theirs&.dig(:per_second), ours[:per_second], "%.0f", ">= 4 x")
report.ratio(format("of one thread with one write(2) a frame: %.0f", floor), ours[:per_second] / floor, ">= 0.8 x",
             ours[:per_second] >= 0.8 * floor)
report.line("  post, CPU for each connection and frame: µs", theirs&.dig(:post_us), ours[:post_us], "%.2f", "<= 1.5")
report.line("  system calls for each frame", nil, ours[:writes_per_frame], "%.2f", "< 1")

_, idle = both[frames: 10, rate: 5]
theirs, ours = both[frames: 10, rate: 5, busy: 5]
report.line("5 wakes/s, five CPU-bound Ruby threads, delivery p50: ms", theirs&.dig(:p50), ours[:p50], "%.1f", "<= 1/50 x")
report.ratio(format("of its own p50 when idle: %.1f", idle[:p50]), ours[:p50] / idle[:p50], "<= 3 x", ours[:p50] <= 3 * idle[:p50])

[2, 1].each do |threads|
  options = { frames: 20, size: 4000, rate: 5, small_buffers: true, threads: }
  none = native.run(**options)
  theirs, ours = both[**options, stalled: 20]
  report.line("20 stalled of 500, #{threads} writer(s), p99 of the others: ms", theirs&.dig(:p99), ours[:p99], "%.1f")
  report.ratio(format("of its own with none stalled: %.1f", none[:p99]), ours[:p99] / none[:p99], "<= 2 x", ours[:p99] <= 2 * none[:p99])
end

alone = PumpBench.undisturbed(2)
theirs, ours = both[frames: 60, rate: 20, busy: 2]
report.line("10,000 frames/s, Ruby time that two busy threads keep: %", theirs && (100 * theirs[:kept] / alone),
            100 * ours[:kept] / alone, "%.0f", ">= 85")

report.line("memory of an idle connection, beside pgbus's own: bytes", nil, native.idle_bytes, "%d", "<= 1024")
report.line("a frame of 1 MB that waits for 1,000 connections: MB", nil, native.waiting_mb, "%.1f", "held once")
