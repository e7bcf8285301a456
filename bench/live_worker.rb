# frozen_string_literal: true

# A worker of Puma's with a streamer, or a hub, as a process of its own, for bench/live.rb. IMPLEMENTATION is `native`, or
# `own` for pgbus's.
#
#   ruby bench/live_worker.rb IMPLEMENTATION worker URL      # prints its port, then answers questions of standard input
#   ruby bench/live_worker.rb IMPLEMENTATION hub URL SOCKET  # prints a line once it serves; ends with standard input

require "json"
require "logger"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), File.expand_path("../support", __dir__))
require "pgbus_or_standin"
require "pgbus_native" unless ARGV.first == "own"

# The app that both sides of the benchmark know.
module LiveApp
  module_function

  # @return [Boolean] whether this is the real pgbus
  def pgbus? = Pgbus.const_defined?(:VERSION)

  def configure(url)
    ActiveRecord::Base.establish_connection(url) if pgbus?
    Pgbus.configure do |config|
      config.database_url = url
      config.logger = Logger.new($stderr, level: Logger::FATAL)
      config.streams_heartbeat_interval = 300
      next unless pgbus?

      config.pgmq_schema_mode = :embedded
      config.listen_notify = true
      config.streams_signed_name_secret = "a" * 64
    end
  end

  # @return [String] where browsers find a stream
  def path(stream) = "/#{pgbus? ? Pgbus::Streams::SignedName.sign(stream) : stream}"
end

# The worker: Puma with five threads, pgbus's streamer, and at /work requests that compute.
class LiveWorker
  WORK_SECONDS = 0.002

  def initialize
    before = Thread.list
    @streamer = Pgbus::Web::Streamer::Instance.new.start
    @threads = Thread.list - before
  end

  # @return [Integer] the port
  def serve
    %w[puma puma/server puma/log_writer puma/events stringio].each { |name| require name }
    streams = Pgbus::Web::StreamApp.new(streamer: @streamer, config: Pgbus.configuration)
    app = ->(env) { env["PATH_INFO"] == "/work" ? compute : streams.call(env) }
    log = Puma::LogWriter.new(StringIO.new, StringIO.new)
    server = Puma::Server.new(app, Puma::Events.new, min_threads: 5, max_threads: 5, log_writer: log)
    server.add_tcp_listener("127.0.0.1", 0)
    server.run
    server.connected_ports.first
  end

  # Questions and answers, a line of JSON each.
  def answer(questions)
    questions.each_line { |line| puts JSON.generate([public_send(*JSON.parse(line))]) }
  end

  def browsers = @streamer.registry.size
  def cpu = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)

  # How often each Ruby thread of the streamer went off its core: a thread that takes the GVL for a wake has slept before
  # and sleeps afterwards, so this counts no fewer times than it takes the GVL.
  def switches
    @threads.select(&:alive?).to_h do |thread|
      status = File.read("/proc/self/task/#{thread.native_thread_id}/status")
      [thread.name || thread.inspect, status.scan(/ctxt_switches:\s*(\d+)/).flatten.sum(&:to_i)]
    end
  end

  private

  def compute
    ends = thread_cpu + WORK_SECONDS
    200.times { |i| i * i } while thread_cpu < ends
    [200, { "content-type" => "text/plain" }, ["done"]]
  end

  def thread_cpu = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

if $PROGRAM_NAME == __FILE__
  $stdout.sync = true
  _, role, url, socket = ARGV
  LiveApp.configure(url)
  if role == "hub"
    hub_class = LiveApp.pgbus? ? Pgbus::Web::Streamer::MasterHub : PgbusNative::MasterHub
    hub_class.new(config: Pgbus.configuration, socket_path: socket, logger: Pgbus.logger).start
    puts "ready"
    $stdin.read
  else
    worker = LiveWorker.new
    puts worker.serve
    worker.answer($stdin)
  end
  exit!(0)
end
