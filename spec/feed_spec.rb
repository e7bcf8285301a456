# frozen_string_literal: true

require "pg"
require "private_postgres"
require "timeout"
require "tmpdir"
require_relative "support/polling"

# A worker's streamer with a feed, on a real PostgreSQL, and browsers at the other end of real sockets: on the real pgbus
# and on the stand-in alike.
RSpec.describe "The feed of a worker" do
  include Polling

  before(:context) do
    @postgres = PrivatePostgres.new.start
    Pgbus.configure do |config|
      config.database_url = @postgres.url
      config.pgmq_schema_mode = :embedded if config.respond_to?(:pgmq_schema_mode=)
      config.listen_notify = true if config.respond_to?(:listen_notify=)
    end
    Pgbus.reset_client! if Pgbus.respond_to?(:reset_client!)
  end

  after(:context) do
    Pgbus.client.close if Pgbus.client.respond_to?(:close)
    @postgres.stop
  end

  # A bug must not hang the suite.
  around { |example| Timeout.timeout(60) { example.run } }

  let(:log) { StringIO.new }
  let(:logger) { Logger.new(log) }
  let(:streamer) { Pgbus::Web::Streamer::Instance.new(logger:).start }
  let(:feed) { streamer.listener }
  let(:stream) { "s#{rand(10**12)}" }
  let(:browsers) { [] }

  before { Pgbus.client.ensure_stream_queue(stream) }

  after do
    streamer.shutdown!
    browsers.each(&:close)
  end

  # What a browser has heard.
  class Browser
    attr_reader :heard, :connection

    def initialize(streamer, stream, id:, since: 0, context: nil)
      ours, @socket = UNIXSocket.pair
      yield ours if block_given?
      @heard = +""
      @connection = Pgbus::Web::Streamer::Connection.new(
        id:, stream_name: stream, io: ours, since_id: since, writer: Pgbus::Web::Streamer::IoWriter,
        write_deadline_ms: 5_000, context:
      )
      streamer.register(@connection)
    end

    def hear(text)
      @heard << @socket.readpartial(65_536) until @heard.include?(text)
      self
    end

    def ids = @heard.scan(/^id: (\d+)$/).flatten.map(&:to_i)
    def close = @socket.close
  end

  def browser(id = "b#{browsers.size}", **, &)
    Browser.new(streamer, stream, id:, **, &).tap { |browser| browsers << browser }
  end

  def broadcast(html, **message) = insert({ html:, **message })

  def insert(message)
    table = PG::Connection.quote_ident("q_#{Pgbus.configuration.queue_name(stream)}")
    columns = Pgbus.const_defined?(:VERSION) ? "(vt, message) VALUES (now(), $1)" : "(message) VALUES ($1)"
    sql.exec_params("INSERT INTO pgmq.#{table} #{columns} RETURNING msg_id", [message.to_json]).getvalue(0, 0).to_i
  end

  def whisper(html, **message)
    channel = "pgmq.q_#{Pgbus.configuration.queue_name(stream)}.INSERT"
    sql.exec_params("SELECT pg_notify($1, $2)", [channel, { html:, **message }.to_json])
  end

  def sql = @sql ||= PG.connect(@postgres.url)

  it "takes the place of pgbus's listeners, and status says so" do
    streamer
    expect(feed).to be_a(PgbusNative::Feed).and be_alive
    expect(PgbusNative.status[:feed]).to include(native: true, reason: nil) if PgbusNative.installed?
  end

  it "gives a browser what it lacks, and then durable and ephemeral messages in their order (invariants 13 and 18)" do
    first = broadcast("one")
    old, new = browser(since: 0), browser(since: first)
    old.hear("data: one\n")
    last = broadcast("two")
    whisper("three")
    [old, new].each { |browser| browser.hear("event: turbo-stream\ndata: three\n\n") }
    expect([old.ids, new.ids]).to eq([[first, last], [last]])
    expect(new.heard.gsub(/^: .*\n\n/, "")).to eq("id: #{last}\nevent: turbo-stream\ndata: two\n\nevent: turbo-stream\ndata: three\n\n")
  end

  it "brings a browser that is many pages behind up to date at once" do
    table = PG::Connection.quote_ident("q_#{Pgbus.configuration.queue_name(stream)}")
    broadcast("first")
    columns = Pgbus.const_defined?(:VERSION) ? "(vt, message) SELECT now()," : "(message) SELECT"
    sql.exec("INSERT INTO pgmq.#{table} #{columns} jsonb_build_object('html', 'row ' || i) FROM generate_series(1, 1200) i")
    reader = browser.hear("data: row 1200\n")
    expect(reader.ids).to eq(reader.ids.sort.uniq)
    expect(reader.ids.size).to eq(1201)
  end

  it "asks the app's filters, hides from whom it can't ask about, and goes on with the stream in order" do
    asked = Queue.new
    Pgbus::Streams.filters.register(:admins) { |context| (asked << context) && context == "admin" }
    Pgbus::Streams.filters.register(:broken) { raise NotImplementedError, "no" }
    admin, guest = browser(context: "admin"), browser(context: "guest")
    broadcast("first")
    [admin, guest].each { |browser| browser.hear("data: first\n") }
    broadcast("secret", visible_to: "admins")
    broadcast("nobody's", visible_to: "broken")
    broadcast("unknown", visible_to: "nobody")
    broadcast("echo", exclude: admin.connection.id)
    broadcast("last")
    [admin, guest].each { |browser| browser.hear("data: last\n") }
    expect(admin.heard.scan(/data: (\S+)/).flatten).to eq(%w[first secret last])
    expect(guest.heard.scan(/data: (\S+)/).flatten).to eq(%w[first echo last])
    expect(Array.new(asked.size) { asked.pop }).to contain_exactly("admin", "guest")
  end

  it "answers for a filter that ends the thread it runs on" do
    Pgbus::Streams.filters.register(:deadly) { Thread.current.kill }
    reader = browser
    broadcast("first")
    reader.hear("data: first\n")
    3.times { broadcast("hidden", visible_to: "deadly") }
    broadcast("last")
    reader.hear("data: last\n")
    expect(reader.heard).not_to include("hidden")
  end

  it "lets pgbus's dispatcher serve connections of the Ruby way on the same stream" do
    native = browser
    ruby = browser { |io| io.define_singleton_method(:write_nonblock) { |*args, **options| super(*args, **options) } }
    expect([native, ruby].map { |browser| !browser.connection.native_outlet.nil? }).to eq([true, false])
    eventually("both are on the stream") { streamer.registry.size == 2 }
    last = broadcast("durable")
    [native, ruby].each { |browser| browser.hear("data: durable\n") }
    whisper("ephemeral")
    [native, ruby].each { |browser| browser.hear("data: ephemeral\n") }
    expect([native.ids, ruby.ids & [last]]).to eq([[last], [last]])
  end

  it "keeps pgbus's books: registry, counters and deaths" do
    readers = Array.new(3) { browser }
    eventually("all are registered") { streamer.registry.size == 3 }
    broadcast("one")
    readers.each { |reader| reader.hear("data: one\n") }
    whisper("counted")
    eventually("the count") { streamer.stream_counter.broadcasts(stream).positive? }
    readers.first.close
    broadcast("two")
    readers.last.hear("data: two\n")
    eventually("its end") { streamer.registry.size == 2 && feed.stats[:browsers] == 2 }
    readers.drop(1).each { |reader| reader.connection.close }
    whisper("anybody?")
    eventually("nobody is left") { readers.each { |reader| reader.connection.mark_dead! } && feed.stats[:streams] <= 1 }
  end

  it "goes on by itself when the database ends its sessions, with nothing lost and nothing twice (invariant 9)" do
    reader = browser
    ids = Array.new(3) do |round|
      id = broadcast("round #{round}")
      reader.hear("data: round #{round}\n")
      sql.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('pgbus-feed', 'pgbus-listen')")
      id
    end
    last = broadcast("last")
    reader.hear("data: last\n")
    expect(reader.ids).to eq([*ids, last])
  end

  # What pgbus's dispatcher and envelope make of a row, said once more.
  def frame_by_pgbus(text)
    message = begin
      JSON.parse(text)
    rescue JSON::ParserError
      nil
    end
    html = message["html"] if message.is_a?(Hash)
    event = message["event"].strip if html.is_a?(String) && message["event"].is_a?(String)
    event = Pgbus::Streams::DEFAULT_SSE_EVENT if event.nil? || event.empty? || event.match?(/[\r\n]/)
    Pgbus::Streams::Envelope.message(id: 7, event:, data: html.is_a?(String) ? html : text)
  end

  it "makes the bytes that pgbus's own envelope makes, of any message" do
    random = Random.new(RSpec.configuration.seed)
    pieces = ["\r", "\n", "\r\n", "", " ", "data: ", "id: 1", "é", "\u2028", "\u{1F600}", "\0", "\\", "\"", "</script>", "x" * 70]
    text = -> { Array.new(random.rand(6)) { pieces.sample(random:) }.join }
    values = -> { [text.call, nil, 5, -0.5, true, [text.call], { "html" => text.call }].sample(random:) }
    messages = Array.new(2_000) do
      { "html" => random.rand(10).zero? ? values.call : text.call, "event" => values.call, "exclude" => values.call }
        .to_a.sample(random.rand(4), random:).to_h
    end
    rows = messages.map(&:to_json) + ["", "null", "[]", "5", "\"text\"", "{", "{\"html\":\"\\ud83d\\ude00\"}", "#{"[" * 101}#{"]" * 101}"]
    rows.each do |row|
      expect(PgbusNative::Feed::Engine.frame_of_row(7, row)).to eq(frame_by_pgbus(row).b), row
    end
  end

  it "is left alone by forked children, that end, collect garbage or touch it (invariant 11)" do
    reader = browser
    broadcast("before")
    reader.hear("data: before\n")
    sessions = -> { sql.exec("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgbus-%' ORDER BY 1").column_values(0) }
    before = sessions.call
    pids = Array.new(5) do
      fork do
        broken = feed.alive? || feed.serves?(reader.connection) != true
        feed.stats
        feed.stop
        feed.disconnect(reader.connection)
        GC.start
        exit!(broken ? 1 : 0)
      end
    end
    expect(pids.map { |pid| Process.wait2(pid).last.exitstatus }).to all(eq(0))
    broadcast("after")
    reader.hear("data: after\n")
    expect(sessions.call).to eq(before)
  end

  it "is found by its name in pg_stat_activity: one session for reads, one for LISTEN" do
    broadcast("one")
    browser.hear("data: one\n")
    names = sql.exec("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'pgbus-%' ORDER BY 1")
    expect(names.column_values(0)).to include("pgbus-feed", "pgbus-listen")
  end

  describe "in a cluster" do
    let(:folder) { Dir.mktmpdir("pgbus_native") }
    let(:hub) { PgbusNative::MasterHub.new(config: Pgbus.configuration, socket_path: "#{folder}/hub.sock", logger:) }

    before do
      hub.start
      ENV["PGBUS_STREAMS_HUB_SOCKET"] = "#{folder}/hub.sock"
    end

    after do
      ENV.delete("PGBUS_STREAMS_HUB_SOCKET")
      hub.stop
      FileUtils.remove_entry(folder)
    end

    it "hears its wakes from the hub, and from a session of its own when the hub has ended" do
      reader = browser
      broadcast("by the hub")
      reader.hear("data: by the hub\n")
      expect(hub.stats).to include(workers: 1, subscriptions: 1)
      hub.stop
      broadcast("after it")
      whisper("fleeting") until reader.hear("data: after it\n") && feed.connected?
      broadcast("by itself")
      reader.hear("data: by itself\n")
      expect(reader.ids).to eq(reader.ids.sort.uniq)
    end
  end

  describe "is not there" do
    def reason = PgbusNative::Feed.obstacle

    after { PgbusNative.configure { |config| config.feed = true } }

    it "when it is switched off: pgbus's own dispatcher serves everybody" do
      PgbusNative.configure { |config| config.feed = false }
      reader = browser
      broadcast("one")
      reader.hear("data: one\n")
      expect(streamer.listener).not_to be_a(PgbusNative::Feed)
      expect(reason).to include("switched off")
    end

    it "when an option is one that only libpq knows" do
      config = Pgbus.configuration.dup
      config.define_singleton_method(:streams_pool_connection_options) do
        "#{Pgbus.configuration.database_url}#{Pgbus.configuration.database_url.include?("?") ? "&" : "?"}requirepeer=nobody"
      end
      other = Pgbus::Web::Streamer::Instance.new(logger:, config:)
      expect(other.listener).not_to be_a(PgbusNative::Feed)
      expect(reason).to include("requirepeer")
      other.listener.start
      other.listener.stop
    end

    it "when somebody gave a connection to LISTEN on" do
      connection = PG.connect(@postgres.url)
      other = Pgbus::Web::Streamer::Instance.new(logger:, pg_connection: connection)
      expect(other.listener).not_to be_a(PgbusNative::Feed)
      expect(reason).to include("given")
      other.listener.start
      other.listener.stop
    end

    it "takes true or false" do
      expect { PgbusNative.configure { |config| config.feed = nil } }.to raise_error(TypeError, /true or false, got nil/)
    end
  end
end
