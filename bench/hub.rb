#!/usr/bin/env ruby
# frozen_string_literal: true

# How fast the native MasterHub is, beside pgbus's own Ruby hub where the real pgbus can be loaded:
#
#   ruby bench/hub.rb                                    # the native hub alone
#   PGBUS_PATH=../pgbus ruby bench/hub.rb                # both, as ratios of runs on this machine
#
# A private PostgreSQL, one process for each measurement, load clients in Rust. On a machine with other work to do the
# ratios hold, the figures don't.

require "json"
require "logger"
require "socket"
require "tmpdir"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), File.expand_path("../support", __dir__))
require "pgbus_or_standin"
require "pgbus_native"
require "misbehaving_workers"
require "processes"
require_relative "report"
require_relative "timed_notifier"
require "private_postgres"

# One kind of hub, and what is measured of it.
class HubBench
  LOAD = File.expand_path("../target/load/release/pgbus_native_load", __dir__)
  SECONDS = 120

  def initialize(hub_class, postgres)
    @hub_class = hub_class
    @postgres = postgres
  end

  # Frames a second, and the hub's CPU time for each in microseconds.
  def burst(workers: 8, wakes: 5_000)
    measure do |path, meter|
      seen = load_clients(path, workers:, wakes:) do
        meter.reset
        @postgres.sql("SELECT pg_notify('pgmq.q_bench.INSERT', n || repeat('x', 500)) FROM generate_series(1, #{wakes}) n")
      end
      { frames_per_second: seen["wakes"] / seen["seconds"], cpu_us: meter.cpu_us / seen["wakes"], **complete(seen) }
    end
  end

  # Milliseconds from NOTIFY to the worker.
  def steady(workers: 32, rate: 200, seconds: 5)
    measure do |path, meter|
      seen = load_clients(path, workers:, wakes: rate * seconds) do
        meter.reset
        notify_at(rate, rate * seconds)
      end
      { p50: seen["p50"], p99: seen["p99"], cpu_us: meter.cpu_us / seen["wakes"], **complete(seen) }
    end
  end

  # Milliseconds from NOTIFY to a worker, while others read a stream of 1,000 ephemeral wakes of 2 KB a second, each as
  # its kind does.
  def beside(kind, count, rate: 100, seconds: 8)
    measure do |path, meter|
      misbehaving(kind, path, count) do
        seen = load_clients(path, workers: 1, wakes: rate * seconds) do
          meter.reset
          MisbehavingWorkers.flooded(@postgres.url) { notify_at(rate, rate * seconds) }
        end
        { p50: seen["p50"], p99: seen["p99"], **complete(seen) }
      end
    end
  end

  # Seconds for subs one after the other, half of them of new streams.
  def storm(subs:)
    measure { |path, _| JSON.parse(IO.popen([LOAD, "storm", path, subs.to_s], &:read)).transform_keys(&:to_sym) }
  end

  # Threads and MB that workers with streams add to an idle hub.
  def crowd(workers: 64, streams: 100)
    measure do |path, meter|
      meter.reset
      load_clients(path, workers:, wakes: 1, streams:) do
        sleep 0.5 # what was needed for a moment only goes back
        @crowd = { threads: meter.threads, memory_mb: meter.memory_mb }
        @postgres.sql("SELECT pg_notify('pgmq.q_bench.INSERT', 'end')")
      end
      @crowd
    end
  end

  # Seconds that one of pgbus's workers needs until as many browsers, which came back all at once, are live again. Until
  # then it delivers nothing to any of them: its dispatcher waits for the hub's ack of one after the other.
  def deploy(browsers: 100)
    measure do |path, _|
      seconds, result = IO.pipe
      pid = fork do
        result.puts(connect_browsers(path, browsers))
        result.flush
        exit!(0)
      end
      result.close
      Process.wait(pid)
      Float(seconds.read)
    end
  end

  # What this process has used since.
  class Meter
    def initialize
      @threads = count_threads
      reset
    end

    def reset
      @cpu = cpu
      @memory = Processes.resident
    end

    def cpu_us = (cpu - @cpu) * 1e6
    def threads = count_threads - @threads
    def memory_mb = (Processes.resident - @memory) / 1024.0**2

    private

    def cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    def count_threads = File.directory?("/proc/self/task") ? Dir.children("/proc/self/task").size : 0
  end

  private

  # The hub lives in a process of its own, whose meter is asked before and after; this one sends and waits.
  def measure
    Dir.mktmpdir do |folder|
      path = File.join(folder, "hub.sock")
      hub = RemoteHub.new(@hub_class, @postgres.url, path)
      begin
        yield path, hub
      ensure
        hub.stop
      end
    end
  end

  # A hub in a child, and its meter by remote control.
  class RemoteHub
    def initialize(hub_class, url, path)
      @answers, answer = IO.pipe
      questions, @questions = IO.pipe
      @pid = fork do
        [@answers, @questions].each(&:close)
        serve(hub_class, url, path, questions, answer)
        exit!(0)
      end
      [questions, answer].each(&:close)
      @answers.gets or raise "the hub did not start"
    end

    %i[reset cpu_us threads memory_mb].each do |name|
      define_method(name) do
        @questions.puts(name)
        @answers.gets.to_f
      end
    end

    def stop
      @questions.close
      Process.wait(@pid)
    end

    private

    def serve(hub_class, url, path, questions, answer)
      answer.sync = true
      meter = Meter.new
      config = Pgbus::Configuration.new.tap { |configuration| configuration.database_url = url }
      hub = hub_class.new(config:, socket_path: path, logger: Logger.new($stderr, level: Logger::ERROR)).start
      answer.puts("ready")
      questions.each_line { |name| answer.puts(meter.public_send(name.chomp).to_s) }
      hub.stop
    end
  end

  def connect_browsers(path, count)
    streamer = worker_of(path)
    near, @far = Array.new(count) { UNIXSocket.pair }.transpose
    connections = near.each_with_index.map do |io, i|
      Pgbus::Web::Streamer::Connection.new(id: "browser#{i}", stream_name: "bench", io:, since_id: 0,
                                           writer: Pgbus::Web::Streamer::IoWriter, write_deadline_ms: 5_000)
    end
    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    connections.each { |connection| streamer.register(connection) }
    sleep 0.001 until streamer.registry.size == count
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
  end

  # pgbus's streamer as in a Puma worker, with a hub in another process.
  def worker_of(path)
    ActiveRecord::Base.establish_connection(@postgres.url)
    Pgbus.configure do |config|
      config.database_url = @postgres.url
      config.pgmq_schema_mode = :embedded
      config.listen_notify = true
      config.streams_listen_scope = :master
      config.logger = Logger.new(IO::NULL)
    end
    ENV["PGBUS_STREAMS_HUB_SOCKET"] = path
    Pgbus.client.ensure_stream_queue("bench")
    Pgbus::Web::Streamer::Instance.new.start
  end

  def load_clients(path, workers:, wakes:, streams: 0)
    IO.popen([LOAD, "hub", path, *[workers, streams, wakes, SECONDS].map(&:to_s)]) do |clients|
      raise "the workers' subs were not acked" unless JSON.parse(clients.gets).key?("acked_ms")

      yield
      JSON.parse(clients.gets)
    end
  end

  def misbehaving(kind, path, count, &)
    count.zero? ? yield : MisbehavingWorkers.run(kind, path, count, &)
  end

  def notify_at(rate, count) = TimedNotifier.new(@postgres.url).send_at(rate, count)

  def complete(seen)
    { complete: seen["wakes"] == seen["expected"], evicted: seen["evicted"] }
  end
end

abort "bench/hub.rb: build first: support/build" unless
  File.executable?(HubBench::LOAD)

ruby_hub = PgbusNative.originals[:MasterHub]
native_hub = PgbusNative::MasterHub

PrivatePostgres.run do |postgres|
  native = HubBench.new(native_hub, postgres)
  ruby = ruby_hub && HubBench.new(ruby_hub, postgres)
  report = Report.new(ruby)

  if ruby
    report.line("100 browsers return to a worker of pgbus's: seconds until they are live", ruby.deploy, native.deploy, "%.2f")
  end

  # The Ruby hub takes 250 ms a sub; 500 of them are reckoned from fewer.
  ours = native.storm(subs: 500)
  theirs = ruby&.storm(subs: 20)
  report.line("500 subs in turn, half new streams (own: of 20): seconds", theirs && (theirs[:seconds] * 25), ours[:seconds],
              "%.3f", "< 1")
  report.line("  one sub to its ack, p50: ms", theirs&.fetch(:p50), ours[:p50], "%.3f", "< 3")

  ours = native.burst
  theirs = ruby&.burst
  report.line("burst of 5,000 NOTIFYs to 8 workers: frames/s", theirs&.fetch(:frames_per_second),
              ours[:frames_per_second], "%.0f", ">= 10 x")
  report.line("  CPU per frame: µs", theirs&.fetch(:cpu_us), ours[:cpu_us], "%.2f", "<= 5")
  report.note("not complete: #{ours} #{theirs}") unless [ours, theirs].compact.all? { |seen| seen[:complete] }

  ours = native.steady
  theirs = ruby&.steady
  report.line("200 wakes/s to 32 workers, NOTIFY to worker, p50: ms", theirs&.fetch(:p50), ours[:p50], "%.2f")
  report.line("  p99: ms", theirs&.fetch(:p99), ours[:p99], "%.2f", "<= 1/3 x")
  report.line("  CPU per frame: µs", theirs&.fetch(:cpu_us), ours[:cpu_us], "%.2f")
  report.note("not complete: #{ours} #{theirs}") unless [ours, theirs].compact.all? { |seen| seen[:complete] }

  [["slow", 0], ["slow", 1], ["slow", 4], ["slow", 16], ["talkative", 1]].each do |kind, count|
    ours = native.beside(kind, count)
    theirs = ruby&.beside(kind, count)
    report.line("a worker beside #{count} #{kind} ones, NOTIFY to worker, p50: ms", theirs&.fetch(:p50), ours[:p50], "%.2f")
    report.line("  p99: ms", theirs&.fetch(:p99), ours[:p99], "%.2f", count.zero? ? "" : "<= 2 x that of 0")
    report.note("not complete: #{ours} #{theirs}") unless [ours, theirs].compact.all? { |seen| seen[:complete] }
  end

  ours = native.crowd
  theirs = ruby&.crowd(streams: 1) # more would take it minutes
  report.line("64 workers: threads", theirs&.fetch(:threads), ours[:threads], "%d", "<= 3")
  report.line("  with 100 streams each (pgbus's own: 1), memory: MB", theirs&.fetch(:memory_mb), ours[:memory_mb],
              "%.1f", "<= 4")
end
