#!/usr/bin/env ruby
# frozen_string_literal: true

# What browsers feel in a busy app: from the commit of a message to its arrival, through PostgreSQL, a hub or none, a
# worker of Puma's and its streamer. Beside it what the worker and the database spend on that.
#
#   ruby bench/live.rb                             # native alone
#   PGBUS_PATH=../pgbus ruby bench/live.rb         # pgbus's own too, as ratios of runs on this machine
#   ruby bench/live.rb returning memory            # some measures only: see MEASURES
#
# A private PostgreSQL; the worker and the hub are processes of their own (bench/live_worker.rb), started anew for each
# measure; browsers are load clients in Rust. Where they all share two cores, the figures are upper bounds. Linux, since
# the switches of threads are read from /proc.

require "etc"
require "io/wait"
require "pg"
require "securerandom"
require "socket"
require "tmpdir"
require_relative "live_worker"
require_relative "report"
require "private_postgres"
require "processes"

def now(clock = Process::CLOCK_MONOTONIC, unit = :float_second) = Process.clock_gettime(clock, unit)

# A worker in a process of its own, in a cluster with a hub beside it.
class RemoteWorker
  PROGRAM = File.expand_path("live_worker.rb", __dir__)

  attr_reader :port, :pid

  def self.run(url, native:, cluster:)
    Dir.mktmpdir do |folder|
      env = { "PGBUS_STREAMS_HUB_SOCKET" => cluster ? "#{folder}/hub.sock" : nil }
      implementation = native ? "native" : "own"
      hub = start(env, implementation, "hub", url, "#{folder}/hub.sock") if cluster
      hub&.gets
      worker = new(start(env, implementation, "worker", url))
      yield worker
    ensure
      [worker, hub].each { |process| process&.close }
    end
  end

  def self.start(env, *arguments) = IO.popen([env, RbConfig.ruby, PROGRAM, *arguments], "r+")

  def initialize(process)
    @process = process
    @pid = process.pid
    @port = Integer(process.gets)
  end

  %i[browsers cpu switches].each do |name|
    define_method(name) do
      @process.puts(JSON.generate([name]))
      JSON.parse(@process.gets).first
    end
  end

  # While the block runs, so many clients, in a process of their own, ask for one request that computes after the other.
  def busy(clients)
    load = fork { Array.new(clients) { Thread.new { ask_for_work } }.each(&:join) } if clients.positive?
    sleep 1 if load
    yield
  ensure
    Process.kill(:KILL, load) && Process.wait(load) if load
  end

  def resident = Processes.resident(@pid)
  def close = @process.close

  private

  def ask_for_work
    loop do
      TCPSocket.open("127.0.0.1", @port) do |socket|
        loop do
          socket.write("GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
          answer = +""
          answer << socket.readpartial(4096) until answer.include?("done")
        end
      end
    rescue EOFError, SystemCallError
      nil # Puma ends a connection after some requests
    end
  end
end

# Load clients on a stream, and what they have seen so far.
class Browsers
  LOAD = File.expand_path("../target/load/release/pgbus_native_load", __dir__)

  attr_reader :seen

  def self.open(port, stream, count, since)
    IO.popen([LOAD, "sse", "127.0.0.1:#{port}", count.to_s, LiveApp.path(stream), since.to_s], "r+") do |process|
      yield new(process)
    ensure
      process.close_write
    end
  end

  def initialize(process)
    @process = process
    look
  end

  # Reads reports until one suits, or time is over.
  def until(seconds: 90)
    ends = now + seconds
    look until yield(seen) || now > ends
    seen
  end

  # How many messages were sent; returns the last report.
  def finish(durable:, ephemeral: 0)
    @process.puts("end #{durable} #{ephemeral}")
    self.until(seconds: 120) { |seen| seen[:done] }
  end

  # Waits for the next report, and takes the newest.
  def look
    line = @process.gets or raise "the load clients ended"
    line = @process.gets while @process.wait_readable(0)
    @seen = JSON.parse(line, symbolize_names: true)
  end
end

# Sends messages to a stream by SQL, as broadcasts do, numbered and timed as the load clients read them.
class Broadcaster
  BODY = "x" * 1000

  def initialize(url, stream)
    Pgbus.client.ensure_stream_queue(stream)
    @queue = Pgbus.configuration.queue_name(stream)
    @connection = PG.connect(url, application_name: "bench")
    columns, values = LiveApp.pgbus? ? ["(vt, message)", "now(), "] : ["(message)", ""]
    @insert = "INSERT INTO pgmq.#{PG::Connection.quote_ident("q_#{@queue}")} #{columns} SELECT #{values}" \
              "jsonb_build_object('html', format('{\"n\":%s,\"t\":%s,\"b\":\"%s\"}', n, $3::text, $4::text)) " \
              "FROM generate_series($1::bigint, $2::bigint) n"
  end

  # @param numbers [Range] of this transaction's messages
  def durable(numbers, body = BODY)
    @connection.exec_params(@insert, [numbers.first, numbers.last, now(Process::CLOCK_REALTIME, :nanosecond), body])
  end

  def ephemeral(numbers)
    html = JSON.generate(n: numbers.first, t: now(Process::CLOCK_REALTIME, :nanosecond), b: BODY)
    @connection.exec_params("SELECT pg_notify($1, $2)", ["pgmq.q_#{@queue}.INSERT", JSON.generate(html:)])
  end

  # One message after the other.
  def at(rate, numbers, kind = :durable)
    begun = now
    numbers.each_with_index do |n, i|
      wait = begun + (i / rate.to_f) - now
      sleep wait if wait.positive?
      public_send(kind, n..n)
    end
  end

  def close = @connection.close
end

# One implementation, and what is measured of it.
class LiveBench
  RATE = 20
  BUSY = 8 # clients of the five Puma threads
  BATCH = 10 # messages of a transaction that floods
  LEAD = 500_000 # frames that may be on their way while it does

  def initialize(postgres, native:)
    @postgres = postgres
    @native = native
  end

  # Milliseconds from a message's commit to the browsers. The first one says to the load clients that it has begun.
  def delivery(kind, busy:, cluster: true, count: 100, browsers: 100)
    with_browsers(cluster:, browsers:) do |worker, clients, sender|
      worker.busy(busy) do
        sender.durable(1..1)
        clients.until { |seen| seen[:started] == browsers }
        sender.at(RATE, 2..(count + 1), kind)
        clients.finish(**sent(kind, count))
      end
    end
  end

  # Seconds until each of the browsers that come back all at once has its response's header, and its first message.
  def returning(busy:, cluster:, browsers: 100)
    with_worker(cluster:) do |worker, sender, stream|
      sending = Thread.new { sender.at(RATE, 1..) }
      worker.busy(busy) do
        Browsers.open(worker.port, stream, browsers, Pgbus.client.stream_current_msg_id(stream)) do |clients|
          clients.until { |seen| seen[:all_started_s] }
        end
      end
    ensure
      sending&.kill&.join
    end
  end

  # As {#delivery}, while three browsers come back for 400 messages of 8 KB and don't read.
  def beside_stalled(kind, stalled)
    with_browsers(cluster: false, browsers: 20, backlog: 400) do |worker, clients, sender, stream|
      sender.durable(1..1)
      clients.until { |seen| seen[:started] == 20 }
      sending = Thread.new { sender.at(50, 2..501, kind) }
      sockets = Array.new(stalled) { stopped_browser(worker.port, stream) }
      sending.join
      clients.finish(**sent(kind, 500))
    ensure
      sockets&.each(&:close)
    end
  end

  # How often Ruby threads of the streamer were switched to in ten seconds, by thread: at each of these rates of wakes.
  # What is done once a second costs the same at every rate.
  def switches(kind, rates, seconds: 10)
    with_browsers(cluster: false, browsers: 10) do |worker, clients, sender|
      sender.durable(1..1)
      clients.until { |seen| seen[:started] == 10 }
      sleep 2 # what belongs to connecting is over
      last = 1
      rates.map do |rate|
        before = worker.switches
        rate.zero? ? sleep(seconds) : sender.at(rate, (last + 1)..(last += rate * seconds), kind)
        worker.switches.to_h { |name, after| [name, after - before.fetch(name, 0)] }
      end
    end
  end

  # Statements that name the stream's tables, but for the broadcasts, for each message.
  def reads(browsers:, count: 100)
    @postgres.sql("ALTER DATABASE #{PrivatePostgres::DATABASE} SET log_statement = 'all'")
    with_browsers(cluster: true, browsers:) do |_, clients, sender, stream|
      sender.durable(1..1)
      clients.until { |seen| seen[:started] == browsers }
      before = statements(stream)
      sender.at(RATE, 2..(count + 1))
      clients.finish(durable: count + 1)
      (statements(stream) - before) / count.to_f
    end
  ensure
    @postgres.sql("ALTER DATABASE #{PrivatePostgres::DATABASE} RESET log_statement")
  end

  # As many messages as go through a worker, and what it spends on them: frames a second, cores, MB that it grew by after
  # the first tenth of the time.
  def flood(browsers:, seconds:, stopped: 0)
    with_browsers(cluster: true, browsers:) do |worker, clients, sender, stream|
      sockets = Array.new(stopped) { stopped_browser(worker.port, stream) }
      begun, cpu, sent, grown = now, worker.cpu, 0, []
      until now - begun > seconds
        sender.durable((sent + 1)..(sent += BATCH)) while sent * browsers < clients.seen[:durable] + LEAD
        clients.look
        grown << worker.resident if now - begun > seconds / 10.0
      end
      seen = clients.finish(durable: sent)
      { messages: sent, frames_per_second: seen[:durable] / (now - begun), cores: (worker.cpu - cpu) / (now - begun),
        grown_mb: (grown.max - grown.first) / 1e6, **seen.slice(:duplicates, :missing) }
    ensure
      sockets&.each(&:close)
    end
  end

  private

  # How many were sent, the first one included.
  def sent(kind, count) = kind == :durable ? { durable: count + 1 } : { durable: 1, ephemeral: count }

  def with_worker(cluster:)
    stream = "live#{SecureRandom.hex(4)}"
    sender = Broadcaster.new(@postgres.url, stream)
    RemoteWorker.run(@postgres.url, native: @native, cluster:) { |worker| yield worker, sender, stream }
  ensure
    sender&.close
  end

  def with_browsers(cluster:, browsers:, backlog: 0)
    with_worker(cluster:) do |worker, sender, stream|
      sender.durable(1..backlog, "x" * 8000) if backlog.positive?
      Browsers.open(worker.port, stream, browsers, Pgbus.client.stream_current_msg_id(stream)) do |clients|
        clients.until { |seen| seen[:open] == browsers }
        ends = now + 60
        sleep 0.05 until worker.browsers == browsers || now > ends
        yield worker, clients, sender, stream
      end
    end
  end

  # Asks for all that is kept, and reads nothing of it.
  def stopped_browser(port, stream)
    Socket.new(:INET, :STREAM).tap do |socket|
      socket.setsockopt(:SOCKET, :RCVBUF, 4096)
      socket.connect(Socket.sockaddr_in(port, "127.0.0.1"))
      socket.write("GET #{LiveApp.path(stream)}?since=0 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
    end
  end

  def statements(stream)
    name = Pgbus.configuration.queue_name(stream)
    File.foreach("#{@postgres.folder}/log").count { |line| !line.start_with?("bench:") && line.match?(/[qa]_#{name}\b/) && line.include?("SELECT") }
  end
end

# The measures, each by its name on the command line.
class LiveReport
  MEASURES = %i[delivery returning stalled switches reads flood memory].freeze

  def initialize(native, ruby)
    @native = native
    @ruby = ruby
    @report = Report.new(ruby)
  end

  def run(names)
    names.each { |name| public_send(name) }
  end

  def delivery
    %i[durable ephemeral].each do |kind|
      theirs_idle, idle = both { |bench| bench.delivery(kind, busy: 0) }
      theirs, busy = both { |bench| bench.delivery(kind, busy: LiveBench::BUSY) }
      [[:idle, theirs_idle, idle], [:busy, theirs, busy]].each do |state, their, our|
        line("#{kind}, #{state}: commit to browser, p50: ms", their, our, :p50, "%.1f")
        line("  p99: ms", their, our, :p99, "%.1f")
        complete(our)
      end
      at_most_twice("of its own p50 when idle", busy[:p50], idle[:p50])
    end
  end

  def returning
    { "a cluster" => true, "single mode" => false }.each do |mode, cluster|
      { idle: 0, busy: LiveBench::BUSY }.each do |state, busy|
        theirs, ours = both { |bench| bench.returning(busy:, cluster:) }
        line("100 browsers return, #{mode}, #{state}: all have a header after: s", theirs, ours, :all_open_s, "%.2f")
        line("  and a message after: s", theirs, ours, :all_started_s, "%.2f", "header + 0.3")
      end
    end
  end

  def stalled
    %i[durable ephemeral].each do |kind|
      theirs_none, none = both { |bench| bench.beside_stalled(kind, 0) }
      theirs, ours = both { |bench| bench.beside_stalled(kind, 3) }
      line("#{kind}, 50 a second to 20 browsers, p99: ms", theirs_none, none, :p99, "%.1f")
      line("  while three return for 400 and don't read: ms", theirs, ours, :p99, "%.1f")
      complete(ours)
      at_most_twice("of its own with none", ours[:p99], none[:p99])
    end
  end

  def switches
    rates = [0, 20, 80]
    %i[durable ephemeral].each do |kind|
      theirs, ours = both { |bench| bench.switches(kind, rates) }
      their, our = [theirs, ours].map { |passes| passes&.map { |by_thread| by_thread.values.sum } }
      rates.each_with_index do |rate, i|
        @report.line("#{kind}, #{rate} wakes/s: switches of the streamer's Ruby threads in 10 s", their&.at(i), our[i], "%d")
      end
      more = ->(counts) { (counts[2] - counts[1]) / (10.0 * (rates[2] - rates[1])) }
      @report.line("  for each wake beyond 20/s", their && more[their], more[our], "%.3f", "0")
      @report.note("native, by thread: #{ours.last.reject { |_, times| times.zero? }}")
    end
  end

  def reads
    [1, 100, 1000].each do |browsers|
      theirs, ours = both { |bench| bench.reads(browsers:) }
      @report.line("reads a message, 20 messages a second, #{browsers} browsers", theirs, ours, "%.2f", "<= 1")
    end
  end

  def flood
    [100, 1000].each do |browsers|
      theirs, ours = both { |bench| bench.flood(browsers:, seconds: 10) }
      line("one worker, #{browsers} browsers, flat out: frames/s", theirs, ours, :frames_per_second, "%.0f")
      line("  cores that it takes", theirs, ours, :cores, "%.2f")
      complete(ours)
    end
  end

  def memory
    ours = @native.flood(browsers: 1000, seconds: 60, stopped: 1)
    @report.line("1,000 browsers and a stopped one, #{ours[:messages]} messages: grown by MB", nil, ours[:grown_mb], "%.1f", "< 10")
    complete(ours)
  end

  private

  def both = [@ruby && yield(@ruby), yield(@native)]

  def line(what, theirs, ours, key, format, goal = "")
    @report.line(what, theirs&.fetch(key), ours.fetch(key) || Float::NAN, format, goal)
  end

  def at_most_twice(what, value, base)
    @report.ratio(format("#{what}: %.1f", base), value / base, "<= 2 x", value <= 2 * base)
  end

  def complete(seen)
    lost = seen.slice(:duplicates, :missing).reject { |_, count| count.zero? }
    @report.note("native, not complete: #{lost}") if lost.any?
  end
end

$stdout.sync = true
abort "bench/live.rb: build first: support/build" unless File.executable?(Browsers::LOAD)
names = ARGV.empty? ? LiveReport::MEASURES : ARGV.map(&:to_sym)
unknown = names - LiveReport::MEASURES
abort "bench/live.rb: no measure #{unknown.join(", ")}; there are #{LiveReport::MEASURES.join(", ")}" if unknown.any?
Process.setrlimit(:NOFILE, [20_000, Process.getrlimit(:NOFILE).last].min, Process.getrlimit(:NOFILE).last)

PrivatePostgres.run(settings: { log_line_prefix: "%a:" }) do |postgres|
  LiveApp.configure(postgres.url)
  native = LiveBench.new(postgres, native: true)
  ruby = LiveBench.new(postgres, native: false) if LiveApp.pgbus?
  LiveReport.new(native, ruby).run(names)
  puts format("load of the machine at the end, over 1, 5 and 15 minutes: %s; %d cores", File.read("/proc/loadavg")[/\S+ \S+ \S+/],
              Etc.nprocessors)
end
