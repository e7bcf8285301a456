#!/usr/bin/env ruby
# frozen_string_literal: true

# How a database carries many hubs, each with many channels: NOTIFY to worker, and the server's CPU time for a NOTIFY.
#
#   ruby bench/growth.rb                       # 1, 10, 50, 200 hubs; 100 and 10,000 channels each: ten minutes
#   ruby bench/growth.rb 10 100                # 10 hubs with 100 channels each
#
# A private PostgreSQL, all hubs in one process, their one session each, every one subscribed to the stream that is
# timed. Server, hubs and load share the machine, so latencies are upper bounds. Linux, since the server's CPU time is
# read from /proc.

require "etc"
require "json"
require "logger"
require "socket"
require "tmpdir"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), File.expand_path("../support", __dir__))
require "pgbus_or_standin"
require "pgbus_native"
require "private_postgres"
require_relative "timed_notifier"

# So many hubs in a process of their own, each with a worker that subscribes to the same stream and to its own ones.
class Fleet
  def initialize(url, folder, hubs:, channels:)
    @url = url
    @paths = Array.new(hubs) { |i| File.join(folder, "#{i}.sock") }
    @channels = channels
    answers, answer = IO.pipe
    question, @question = IO.pipe
    @pid = fork do
      @question.close
      serve(answer, question)
      exit!(0)
    end
    [answer, question].each(&:close)
    answers.gets or raise "the hubs did not start"
  end

  def first_path = @paths.first

  def stop
    @question.close
    Process.wait(@pid)
  end

  private

  def serve(answer, question)
    config = Pgbus::Configuration.new.tap { |configuration| configuration.database_url = @url }
    logger = Logger.new($stderr, level: Logger::ERROR)
    hubs = @paths.map { |path| PgbusNative::MasterHub.new(config:, socket_path: path, logger:).start }
    workers = @paths.each_with_index.each_slice(8).flat_map do |some|
      some.map { |path, i| Thread.new { subscribe(path, i) } }.map(&:value)
    end
    workers.each { |socket| Thread.new { IO.copy_stream(socket, IO::NULL) } }
    answer.puts("ready")
    answer.flush
    question.read
    hubs.each(&:stop)
  end

  def subscribe(path, index)
    socket = UNIXSocket.new(path)
    names = ["bench", *Array.new(@channels - 1) { |i| "hub#{index}-#{i}" }]
    writer = Thread.new { names.each { |name| socket.write(frame("t" => "sub", "q" => name)) } }
    acks = 0
    acks += socket.readpartial(65_536).scan('"ack"').size while acks < names.size
    writer.join
    socket
  end

  def frame(content) = content.to_json.then { |text| [text.bytesize].pack("N") + text }
end

# One size of fleet, measured.
class GrowthBench
  LOAD = File.expand_path("../target/load/release/pgbus_native_load", __dir__)
  RATE = 50
  COUNT = 300
  SECONDS = 120
  TICKS = Etc.sysconf(Etc::SC_CLK_TCK)

  def initialize(postgres)
    @postgres = postgres
  end

  # @return [Hash] milliseconds
  def measure(hubs:, channels:)
    Dir.mktmpdir do |folder|
      fleet = Fleet.new(@postgres.url, folder, hubs:, channels:)
      timed(fleet.first_path)
    ensure
      fleet&.stop
    end
  end

  private

  def timed(path)
    IO.popen([LOAD, "hub", path, "1", "0", COUNT.to_s, SECONDS.to_s]) do |worker|
      worker.gets
      before = server_cpu
      TimedNotifier.new(@postgres.url).send_at(RATE, COUNT)
      seen = JSON.parse(worker.gets)
      sleep 0.5 # the last ones arrive at the other hubs
      { p50: seen["p50"], p99: seen["p99"], cpu: (server_cpu - before) * 1_000 / COUNT, complete: seen["wakes"] == COUNT }
    end
  end

  # Seconds of the server's processes, those that have ended included.
  def server_cpu
    postmaster = File.foreach("#{@postgres.data}/postmaster.pid").first.to_i
    own = stat(postmaster)
    children = Dir["/proc/[0-9]*"].filter_map { |folder| stat(File.basename(folder)) }.select { |one| one[1] == postmaster }
    (own.values_at(11, 12, 13, 14) + children.flat_map { |one| one.values_at(11, 12) }).sum.fdiv(TICKS)
  end

  # The numbers of /proc/PID/stat behind the process's name; nil if it has ended.
  def stat(pid)
    File.read("/proc/#{pid}/stat").rpartition(")").last.split.map(&:to_i)
  rescue SystemCallError
    nil
  end
end

abort "bench/growth.rb: build first: support/build" unless File.executable?(GrowthBench::LOAD)

sizes = ARGV.empty? ? [1, 10, 50, 200].product([100, 10_000]) : [ARGV.map { |text| Integer(text) }]
PrivatePostgres.run(settings: { max_connections: 300 }) do |postgres|
  bench = GrowthBench.new(postgres)
  puts format("%-6s %10s %12s %12s %24s", "hubs", "channels", "p50: ms", "p99: ms", "server CPU/NOTIFY: ms")
  sizes.each do |hubs, channels|
    seen = bench.measure(hubs:, channels:)
    puts format("%-6d %10d %12.2f %12.2f %24.2f%s", hubs, channels, seen[:p50], seen[:p99], seen[:cpu],
                seen[:complete] ? "" : "  not complete")
    $stdout.flush
  end
end
