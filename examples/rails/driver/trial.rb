# frozen_string_literal: true

require_relative "broadcaster"
require_relative "sse_client"
require_relative "wait"
require_relative "../../../support/headless_browser"

# What the app is put through, and what each client saw of it.
class Trial
  CLIENTS = 24
  MODERATORS = 6
  RATE = 25

  def initialize(app, postgres)
    @app = app
    @postgres = postgres
    @failures = []
  end

  # @return [Boolean] whether all was as it must be
  def run
    loads
    serve
    browse do
      quiet
      workers_one_by_one
      step("a worker is killed") { replace(@app.workers.first, :KILL) }
      step("the hub's database session is killed") { kill_session }
      step("hot restart (SIGUSR2)") { hot_restart }
      outage
      quiet
      workers
      presence
      browser_verdict if @browser
    end
    report
  ensure
    [*@clients, *@typists].each(&:close)
    @broadcaster&.close
  end

  private

  # Every way the app itself is loaded.
  def loads
    names = 'names = -> { [Pgbus::Web::Streamer::OutboundPump, Pgbus::Web::Streamer::MasterHub].join(" ") }; '
    native = "PgbusNative::OutboundPump PgbusNative::MasterHub"
    own = "Pgbus::Web::Streamer::OutboundPump Pgbus::Web::Streamer::MasterHub"
    puts @app.runner("puts PgbusNative.status")
    check("production (eager load): native", @app.runner("#{names} puts names.call").chomp, native)
    check("development (lazy, reloaded): native",
          @app.runner("#{names} a = names.call; Rails.application.reloader.reload!; puts [a, names.call].uniq",
                      RAILS_ENV: "development").chomp, native)
    check("a console: native", @app.run("bin/rails", "console", input: "#{names} puts names.call\n")[native], native)
    check("pgbus's command: runs", @app.run("bundle", "exec", "pgbus", "version")[/\Apgbus /], "pgbus ")
    check("PGBUS_NATIVE=0: pgbus's own", @app.runner("#{names} puts names.call", PGBUS_NATIVE: "0").chomp, own)
    migrate
  end

  def migrate
    @postgres.sql(<<~SQL)
      CREATE TABLE pgbus_presence_members (
        stream_name varchar NOT NULL, member_id varchar NOT NULL, metadata jsonb NOT NULL DEFAULT '{}',
        joined_at timestamp NOT NULL DEFAULT now(), last_seen_at timestamp NOT NULL DEFAULT now(),
        UNIQUE (stream_name, member_id));
      CREATE TABLE pgbus_stream_queues (
        id bigserial PRIMARY KEY, queue_name varchar NOT NULL UNIQUE, created_at timestamp NOT NULL DEFAULT now());
    SQL
  end

  def serve
    @broadcaster = Broadcaster.new(@app)
    @app.serve
    @clients = (1..CLIENTS).map do |n|
      SseClient.new(@app, n > MODERATORS ? "guest#{n}" : "moderator#{n}", "room_lobby")
    end
    @typists = (1..4).map { |n| SseClient.new(@app, "typist#{n}", "typing_lobby") }
    all_connected
    check("LISTEN sessions of the host", listen_sessions.size, 1)
  end

  def browse
    return yield unless HeadlessBrowser.program

    HeadlessBrowser.open("http://127.0.0.1:#{@app.port}/rooms/lobby?as=browser") do |browser|
      @browser = browser
      browser.wait_for('document.querySelector("pgbus-stream-source")?.hasAttribute("connected")', seconds: 30)
      yield
    end
  end

  # Broadcasts go on while something happens, and some time afterwards; then everybody must have everything.
  def step(title)
    typed = typing
    @broadcaster.start(RATE)
    yield
    all_connected
    count = @broadcaster.numbers(:all, :moderators).size
    Wait.for("broadcasts", 60) { @broadcaster.numbers(:all, :moderators).size > count + RATE }
    @broadcaster.stop
    settle
    tell(title, typed)
  rescue Wait::TooLong => e
    @failures << "#{title}: #{e.message}; #{verdict}"
    puts "#{title}: #{@failures.last}"
  end

  # Nothing happens: the ephemeral broadcasts, which nobody can ask for again, must all arrive too.
  def quiet
    typed = typing
    Wait.for("an ephemeral broadcast to reach everybody", 30) do
      @broadcaster.broadcast(:ephemeral)
      typing.zip(typed).all? { |now, before| now > before }
    end
    typed = settled_typing
    sent = @broadcaster.numbers(:ephemeral).size
    step("nothing happens") { nil }
    got = settled_typing.zip(typed).map { |now, before| now - before }
    check("ephemeral broadcasts while nothing happens", got, [@broadcaster.numbers(:ephemeral).size - sent] * got.size)
  end

  # Broadcast while the hub has no session, and nothing afterwards that would wake the stream.
  def outage
    kill_session { 3.times { @broadcaster.broadcast(:all) } }
    settle
    tell("broadcast without a session, then silence", typing)
  rescue Wait::TooLong => e
    @failures << "broadcast without a session: #{e.message}; #{verdict}"
  end

  def typing = @typists.map { |client| client.received.size }

  # Ephemeral broadcasts of before are through when one that came after them is.
  def settled_typing
    @broadcaster.broadcast(:ephemeral)
    last = @broadcaster.numbers(:ephemeral).last
    Wait.for("the last ephemeral broadcast", 30) { @typists.all? { |client| client.received.last == last } }
    typing
  end

  def tell(title, typed)
    typed = typing.zip(typed).map { |now, before| now - before }
    puts format("%-42s %s; ephemeral %s", title, verdict, typed.minmax.uniq.join(" to "))
  end

  def workers_one_by_one
    step("workers restarted one by one (SIGTERM)") do
      @app.workers.each { |pid| replace(pid, :TERM) }
    end
  end

  def replace(pid, signal)
    Process.kill(signal, pid)
    Wait.for("worker #{pid} to be replaced", 60) { !@app.workers.include?(pid) && @app.workers.size == 2 }
    all_connected
  end

  def kill_session
    before = listen_sessions
    @postgres.sql("SELECT pg_terminate_backend(#{before.first})")
    yield if block_given?
    Wait.for("a new LISTEN session", 30) { listen_sessions.size == 1 && listen_sessions != before }
  end

  def hot_restart
    before = @app.workers
    @app.signal_master(:USR2)
    Wait.for("the workers of the new master", 90) { @app.workers.size == 2 && (@app.workers & before).empty? }
    @app.wait_until_served
    all_connected
    Wait.for("the new master's LISTEN session", 30) { listen_sessions.size == 1 }
  end

  # What the workers run on: the hub, and the native way for all that the pump wrote.
  def workers
    @app.ask_workers.each do |worker|
      stats = worker[:stats]
      check("worker's pump", worker[:pump], "PgbusNative::OutboundPump")
      check("worker's listener", worker[:listener], "PgbusNative::Feed")
      check("frames written the Ruby way, dropped", stats.values_at(:ruby_frames, :dropped), [0, 0])
      check("frames written the native way", stats[:native_frames].positive?, true)
      puts "worker #{worker[:pid]}: #{stats.slice(:native_frames, :ruby_frames, :writes, :connections, :dead, :waiting)}"
    end
    check("LISTEN sessions of the host", listen_sessions.size, 1)
  end

  def presence
    present = -> { @postgres.sql("SELECT member_id FROM pgbus_presence_members WHERE stream_name = 'room_lobby'").lines.size }
    check("members present", present.call, CLIENTS + (@browser ? 1 : 0))
    @clients.pop.close
    Wait.for("the member who left to be gone", 30) { present.call == @clients.size + (@browser ? 1 : 0) }
    puts "presence: #{CLIENTS} were there, one left and is gone"
  rescue Wait::TooLong => e
    @failures << e.message
  end

  # Asks the database, not the hub.
  def listen_sessions
    @postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbus-listen' ORDER BY pid").lines.map(&:to_i)
  end

  def all_connected
    Wait.for("all clients to be connected", 60) { (@clients + @typists).all?(&:open?) }
  end

  def settle
    Wait.for("everybody to have everything", 30) { @clients.all? { |client| (expected(client) - client.received).empty? } }
    return unless @browser

    last = @broadcaster.numbers(:all).last
    @browser.wait_for("document.getElementById('message_#{last}') !== null", seconds: 30)
  end

  def expected(client)
    client.name.start_with?("moderator") ? @broadcaster.numbers(:all, :moderators) : @broadcaster.numbers(:all)
  end

  # What the clients saw, since the beginning.
  def verdict
    seen = @clients.map { |client| [expected(client), client.received.dup, client] }
    missing = seen.sum { |expected, received, _| (expected - received).size }
    twice = seen.sum { |_, received, _| received.size - received.uniq.size }
    strange = seen.sum { |expected, received, _| (received - expected).size }
    disorder = seen.count { |_, received, _| received != received.sort }
    total = seen.sum { |expected, _, _| expected.size }
    @result = { missing:, twice:, strange:, disorder: }
    "#{total - missing} of #{total} durable, #{twice} twice, #{strange} not theirs, #{disorder} clients out of order"
  end

  def browser_verdict
    shown = @browser.evaluate("JSON.stringify([...document.querySelectorAll('#messages li')].map((li) => +li.textContent))")
    shown = JSON.parse(shown)
    expected = @broadcaster.numbers(:all)
    typed = shown & @broadcaster.numbers(:ephemeral)
    shown -= typed
    again = @browser.evaluate("window.arrived.length - new Set(window.arrived).size")
    check("the page's durable messages", shown.sort, expected)
    check("the page's messages shown twice", shown.size - shown.uniq.size, 0)
    puts "browser: #{shown.size} of #{expected.size} durable messages on the page, each once, #{typed.size} ephemeral; " \
         "#{again} frames came again with a replay"
  end

  def report
    @clients.each do |client|
      missing = expected(client) - client.received
      puts format("  %-12s %5d received, %d missing, %d twice, %d connects", client.name, client.received.size, missing.size,
                  client.received.size - client.received.uniq.size, client.connects)
    end
    check("missing, twice, not theirs, out of order", @result.values, [0, 0, 0, 0])
    puts(@failures.empty? ? "pgbus:app passed" : "pgbus:app FAILED:\n  #{@failures.join("\n  ")}")
    @failures.empty?
  end

  def check(what, found, wanted)
    @failures << "#{what}: #{found.inspect} instead of #{wanted.inspect}" unless found == wanted
  end
end
