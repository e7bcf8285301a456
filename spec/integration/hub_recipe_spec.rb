# frozen_string_literal: true

require "socket"
require_relative "../support/hub_context"

# Every connect is made from what is true at that moment (invariant 19).
RSpec.describe "The hub's recipes" do
  include_context "with a hub"

  # What the configuration says: anything that responds to call, asked each time.
  class AskedConfig
    attr_accessor :options, :streams_listen_health_check_ms
    attr_reader :asked

    def initialize(&options)
      @options = options
      @streams_listen_health_check_ms = 250
      @asked = 0
    end

    def streams_connection_options
      @asked += 1
      @options.call
    end

    def streams_dispatch_queue_limit = 0
  end

  let(:config) { AskedConfig.new { to_postgres } }
  let(:settings) { { status_interval: 0.05 } }

  def to_postgres(**more) = { host: "127.0.0.1", port: postgres.port, user: "pgbus", dbname: "pgbus", **more }

  def kill_session
    before = sessions
    before.each { |pid| postgres.sql("SELECT pg_terminate_backend(#{pid})") }
    eventually("the end of #{before}") { (sessions & before).empty? }
  end

  # Our processes, and one that counts them.
  def children = `ps -o pid= --ppid #{Process.pid}`.lines.size

  def expect_another_session(kind)
    before = hub.stats[:reconnects]
    kill_session
    eventually("the reconnect") { hub.stats[:reconnects] > before }
    expect(hub.stats).to include(session: kind)
    notify("chat", "after #{before}")
    expect(@chat.wakes_until("chat", "after #{before}").last).to eq(["chat", "after #{before}"])
  end

  def start_with_a_worker
    hub.start
    @chat = worker("chat")
  end

  describe "with a password that rotates" do
    around do |example|
      locked = PrivatePostgres.new(hba: ["host all app 127.0.0.1/32 scram-sha-256"])
      @locked = locked.start
      @locked.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'first'")
      example.run
    ensure
      locked.stop
    end

    let(:postgres) { @locked }

    it "are back at once by the new one" do
      password = "first"
      config.options = -> { to_postgres(user: "app", password:) }
      start_with_a_worker
      postgres.sql("ALTER ROLE app PASSWORD 'second'")
      password = "second"
      expect_another_session(:native)
      expect(log.string).not_to match(/first|second/)
    end
  end

  it "go from a native session to one over libpq, and back, each time with a wake for every stream (invariant 9)" do
    more = {}
    config.options = -> { to_postgres(**more) }
    start_with_a_worker
    expect(hub.stats).to include(session: :native, session_reason: nil)
    more = { client_encoding: "LATIN1" }
    expect_another_session(:ruby)
    expect(hub.stats).to include(session_reason: /client_encoding/)
    more = { client_encoding: "LATIN9" }
    expect_another_session(:ruby)
    more = {}
    expect_another_session(:native)
    expect(hub.stats).to include(session_reason: nil)
  end

  it "subscribe a new session to every stream, however many, before it counts as up" do
    more = {}
    config.options = -> { to_postgres(**more) }
    start_with_a_worker
    streams = Array.new(300) { |i| "stream#{i}" }
    @chat.sub(*streams)
    more = { client_encoding: "LATIN1" }
    expect_another_session(:ruby)
    streams.each { |stream| notify(stream, "1") }
    expect(@chat.wakes_until("stream299", "1")).to include(*streams.map { |stream| [stream, "1"] })
  end

  it "survive a configuration that raises, whatever it raises, and go on with one that doesn't" do
    start_with_a_worker
    working = config.options
    [-> { raise "no token" }, -> { raise Exception, "worse" }, -> { Thread.current.kill }, -> { 17 }, -> { { port: "x" } }].each do |broken|
      config.options = broken
      kill_session
      asked = config.asked
      eventually("a few questions") { config.asked > asked + 2 }
      expect(seconds { worker("chat") }).to be < 5 # acks go on (invariant 10)
      config.options = working
      eventually("the session") { sessions.size == 1 }
    end
    eventually("the log line") { log.string.include?("RuntimeError: no token") }
    notify("chat", "1")
    expect(@chat.wakes_until("chat", "1").last).to eq(%w[chat 1])
  end

  it "raise at start what the configuration raises" do
    config.options = -> { raise IOError, "no token" }
    expect { hub.start }.to raise_error(IOError, "no token")
    expect(File.exist?(path)).to be(false)
    config.options = -> { to_postgres }
    expect(hub.start.stats).to include(running: true)
  end

  it "hold up neither the workers nor stop while the configuration does not answer (invariant 10)" do
    start_with_a_worker
    gate = Queue.new
    config.options = -> { gate.pop }
    kill_session
    eventually("the question") { gate.num_waiting == 1 }
    expect(@chat.sub("news")).to eq(["news"])
    expect(seconds { hub.stop }).to be < 2
    expect(@chat).to be_eof
    expect(gate.num_waiting).to eq(0)
  end

  it "hold up no stop of a start (invariant 10)" do
    gate = Queue.new
    config.options = -> { gate.pop }
    starter = Thread.new { hub.start }
    eventually("the question") { gate.num_waiting == 1 }
    expect(seconds { hub.stop }).to be < 2
    expect(starter.value).to be(hub)
  end

  it "have their names looked up again" do
    host = "127.0.0.1"
    config.options = -> { to_postgres(host:) }
    start_with_a_worker
    host = "localhost"
    expect_another_session(:native)
    host = "no-such-host.invalid,localhost"
    expect_another_session(:native)
  end

  it "keep no process and no thread that looked up a name" do
    config.options = -> { to_postgres(host: "localhost") }
    threads, processes = Thread.list, children
    start_with_a_worker
    3.times { expect_another_session(:native) }
    eventually("one thread more, the reporter") { (Thread.list - threads).size == 1 }
    expect(children).to eq(processes)
  end

  it "end a lookup that is under way, and its process" do
    processes = children
    20.times do
      lookup = Thread.new { PgbusNative::HostLookup.addresses(%w[localhost no-such-host.invalid]) }
      Thread.pass
      sleep(rand / 50) # at any moment
      lookup.kill.join
    end
    expect(children).to eq(processes)
  end

  it "let a child that is forked in the middle of a question ask libpq itself (invariant 11)" do
    options = to_postgres(host: "localhost")
    asking = Array.new(2) { Thread.new { loop { PgbusNative::ConnectionOptions.new(options).hosts } } }
    20.times do
      pid = fork do
        PgbusNative::ConnectionOptions.new(options)
        PG.connect(**options).exec("SELECT 1")
        exit!(0)
      end
      expect(Process.wait2(pid).last).to be_success
    end
  ensure
    asking.each { |thread| thread.kill.join }
  end
end
