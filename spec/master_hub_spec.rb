# frozen_string_literal: true

require "timeout"
require_relative "support/hub_context"

RSpec.describe PgbusNative::MasterHub do
  include_context "with a hub"

  describe ".new" do
    it "has pgbus's limits" do
      expect(described_class::DEFAULT_DURABLE_QUEUE_LIMIT).to eq(256)
      expect(described_class::DEFAULT_HARD_QUEUE_LIMIT).to eq(1024)
      expect(described_class::REBROADCAST_TICKS).to eq(5)
    end

    { status_interval: 0, durable_queue_limit: -1, hard_queue_limit: 2.5 }.each do |name, value|
      it "refuses #{name}: #{value.inspect}" do
        expect { described_class.new(config:, socket_path: path, name => value) }
          .to raise_error(ArgumentError, /\A#{name} must be a positive (Numeric|Integer) up to \d+, got #{value.inspect}\z/)
      end
    end

    it "does nothing yet" do
      expect(hub.socket_path).to eq(path)
      expect([hub.dropped_durable_wakes, hub.evicted_workers]).to eq([0, 0])
      expect(hub.stats).to include(running: false, session: :native)
      expect(hub.stop).to be(hub)
    end

    it "shows no password" do
      config.database_url = "postgres://bob:secret@127.0.0.1:1/x"
      expect(hub.inspect).not_to include("secret")
      expect { hub.start }.to raise_error(PG::ConnectionBad) { |error| expect(error.message).not_to include("secret") }
      expect(log.string).not_to include("secret")
    end
  end

  describe "#start" do
    it "listens with one session, in one thread of its own beside the one that logs" do
      threads = Dir.children("/proc/self/task").size if File.directory?("/proc/self/task")
      expect(hub.start).to be(hub)
      expect(sessions.size).to eq(1)
      8.times { worker("chat") }
      expect(Dir.children("/proc/self/task").size - threads).to be <= 3 if threads
      expect(hub.stats).to include(running: true, session: :native, workers: 8, subscriptions: 8)
    end

    it "does nothing on a hub that runs" do
      hub.start
      before = [File.stat(path).ino, sessions]
      hub.start
      expect([File.stat(path).ino, sessions]).to eq(before)
    end

    it "makes a socket that only its owner can open, whatever the umask, which it leaves alone" do
      before = File.umask(0)
      hub.start
      expect(File.umask).to eq(0)
      expect(File.stat(path).mode & 0o777).to eq(0o600)
      expect(Dir.children(folder)).to eq(["hub.sock"])
    ensure
      File.umask(before)
    end

    it "takes the place of a stale file" do
      File.write(path, "stale")
      hub.start
      expect(worker("chat").socket).not_to be_closed
    end

    it "takes the place of a socket that nobody listens to" do
      UNIXServer.new(path).close
      hub.start
      worker("chat")
    end

    it "raises for a folder that is missing, and keeps no session" do
      hub = described_class.new(config:, socket_path: "#{folder}/none/hub.sock", logger: Logger.new(log))
      expect { hub.start }.to raise_error(Errno::ENOENT, %r{hub socket #{folder}/none/hub\.sock})
      eventually("the session's end") { sessions.empty? }
      expect(hub.stats).to include(running: false)
    end

    it "raises for a path that is too long for a socket, as Ruby does" do
      hub = described_class.new(config:, socket_path: "#{folder}/#{"x" * 120}", logger: Logger.new(log))
      expect { hub.start }.to raise_error(ArgumentError, /too long unix socket path/)
    end

    it "raises for a folder in the socket's place" do
      Dir.mkdir(path)
      expect { hub.start }.to raise_error(SystemCallError)
    end

    it "raises when the database can't be reached, and leaves no socket" do
      config.database_url = "postgres://bob@127.0.0.1:#{PrivatePostgres.free_port}/x"
      expect { hub.start }.to raise_error(PG::ConnectionBad, /refused/)
      expect(File.exist?(path)).to be(false)
    end

    it "starts again after a failure" do
      config.database_url = "postgres://bob@127.0.0.1:#{PrivatePostgres.free_port}/x"
      expect { hub.start }.to raise_error(PG::ConnectionBad)
      config.database_url = postgres.url
      hub.start
      worker("chat")
    end

    it "can be interrupted while it connects, and leaves nothing" do
      silent = TCPServer.new("127.0.0.1", 0)
      config.database_url = "postgres://bob@127.0.0.1:#{silent.addr[1]}/x"
      expect { Timeout.timeout(0.2) { hub.start } }.to raise_error(Timeout::Error)
      thread = Thread.new { hub.start }
      silent.accept
      silent.accept
      thread.kill
      expect(thread.join(5)).to be(thread)
      expect(File.exist?(path)).to be(false)
    ensure
      silent&.close
    end
  end

  describe "#stop" do
    it "lets workers see EOF, removes the socket and ends the session" do
      hub.start
      chat = worker("chat")
      expect(hub.stop).to be(hub)
      expect(chat).to be_eof
      expect(File.exist?(path)).to be(false)
      eventually("the session's end") { sessions.empty? }
      expect(hub.stop).to be(hub)
    end

    it "lets the hub start again" do
      2.times do
        hub.start
        worker("chat")
        hub.stop
      end
    end

    it "removes the socket also when its path is relative and the process has gone elsewhere" do
      relative = Dir.chdir(folder) { described_class.new(config:, socket_path: "hub.sock", logger: Logger.new(log)).start }
      worker("chat")
      relative.stop
      expect(Dir.children(folder)).to be_empty
    end

    it "leaves a socket alone that another hub put in the place of its own" do
      hub.start
      other = described_class.new(config:, socket_path: path, logger: Logger.new(log)).start
      hub.stop
      expect(worker("chat").sub("news")).to eq(["news"])
    ensure
      other&.stop
    end

    it "ends a start that hangs, in under two seconds (invariant 10)" do
      silent = TCPServer.new("127.0.0.1", 0)
      config.database_url = "postgres://bob@127.0.0.1:#{silent.addr[1]}/x"
      starter = Thread.new { hub.start }
      silent.accept
      expect(seconds { hub.stop }).to be < 2
      expect(starter.value).to be(hub)
      expect(hub.stats).to include(running: false)
      expect(File.exist?(path)).to be(false)
    ensure
      silent&.close
    end

    it "ends a start that had not come to connect yet (invariant 10)" do
      silent = TCPServer.new("127.0.0.1", 0)
      hub.start # what is left of an earlier start tells nothing to the next one
      hub.stop
      begun, go_on = Queue.new, Queue.new
      config.define_singleton_method(:streams_connection_options) do
        begun << true
        go_on.pop
        "postgres://bob@127.0.0.1:#{silent.addr[1]}/x"
      end
      starter = Thread.new { hub.start }
      begun.pop
      stopper = Thread.new { hub.stop }
      eventually("a stop that waits") { stopper.stop? }
      go_on << true
      expect(stopper.join(2)).to be(stopper)
      expect(starter.value).to be(hub)
      expect(hub.stats).to include(running: false)
    ensure
      silent&.close
    end

    it "does not wait for a wedged worker (invariant 10)" do
      hub.start
      wedged = worker("chat")
      notify_all(300, "chat") { |i| "#{i} #{"x" * 7000}" }
      eventually("a full socket") { hub.stats[:queued_frames].positive? }
      expect(seconds { hub.stop }).to be < 2
      expect(wedged).to be_eof
    end

    it "may be called by many threads at once, while others start" do
      threads = Array.new(12) { |i| Thread.new { i.even? ? hub.start : hub.stop } }
      threads.each { |thread| expect(thread.join(30)).to be(thread) }
      hub.stop
      expect(File.exist?(path)).to be(false)
      eventually("the sessions' end") { sessions.empty? }
    end
  end

  describe "wakes" do
    before { hub.start }

    it "reach subscribers, and nobody else" do
      chat, news = worker("chat"), worker("news")
      notify("chat", "<b>hello \"ä\"</b>\n")
      notify("chat")
      expect(chat.wakes(2)).to eq([["chat", "<b>hello \"ä\"</b>\n"], ["chat", nil]])
      expect(news.heard_by_now).not_to include("wake")
    end

    it "reach nobody after an unsub" do
      chat, other = worker("chat"), worker("chat")
      chat.unsub("chat")
      chat.sub("later")
      notify("chat", "1")
      expect(other.wakes(1)).to eq([%w[chat 1]])
      expect(chat.heard_by_now).not_to include("wake")
    end

    it "come on names of any kind" do
      names = ["a\"b", "a b", "ä", "a'; DROP TABLE x; --", "a\\b", "A", ""]
      chat = worker(*names)
      names.each { |name| notify(name, "to #{name}") }
      expect(chat.wakes(names.size)).to eq(names.map { |name| [name, "to #{name}"] })
    end

    it "go on for the others when a name is impossible" do
      chat = worker("chat")
      expect(chat.sub("nul\0", "x" * 1000)).to eq(["nul\0", "x" * 1000])
      notify("chat", "1")
      expect(chat.wakes(1)).to eq([%w[chat 1]])
      eventually("the log line") { log.string.include?("refused") }
    end
  end

  it "tells the status at the first tick and at every fifth" do
    settings[:status_interval] = 0.02
    hub.start
    chat = worker("chat")
    expect(Array.new(3) { chat.hear("status")["healthy"] }).to eq([true, true, true])
  end

  it "survives a logger that raises" do
    logger = Class.new { %i[debug info warn error].each { |level| define_method(level) { raise "no disk" } } }.new
    loud = described_class.new(config:, socket_path: path, logger:).start
    RawWorker.new(path).tap { |wrong| wrong.socket.write("\0\0\0\2[]") }.then { |wrong| expect(wrong).to be_eof }
    expect(worker("chat").sub("news")).to eq(["news"])
  ensure
    loud&.stop
  end

  describe "with options that only libpq knows" do
    before { config.database_url = "#{postgres.url}?client_encoding=SQL_ASCII" }

    it "has a session over libpq, and says so in one line that names the option" do
      hub.start
      expect(hub.stats).to include(session: :ruby, session_reason: /client_encoding/)
      expect(log.string.lines.grep(/client_encoding/).size).to eq(1)
      chat = worker("chat", "odd\"name")
      notify("chat", "hello")
      notify("chat")
      notify("odd\"name", "hellö")
      expect(chat.wakes(3)).to eq([%w[chat hello], ["chat", nil], ["odd\"name", "hellö"]])
    end

    it "goes on for the others when a name is impossible" do
      config.database_url = "#{postgres.url}?client_encoding=LATIN1"
      hub.start
      chat = worker("nul\0", "漢字", "chat", "café")
      notify("café", "1")
      notify("chat", "2")
      expect(chat.wakes(2)).to eq([%w[café 1], %w[chat 2]])
      eventually("the log line") { log.string.scan("is refused").size == 2 }
    end

    it "acks a new stream at once, and UNLISTENs when its last subscriber left" do
      config.streams_listen_health_check_ms = 60_000
      hub.start
      chat = worker("chat")
      expect(seconds { 50.times { |i| chat.sub("stream#{i}") } }).to be < 50 * 0.25 / 2
      last_statement = -> { postgres.sql("SELECT query FROM pg_stat_activity WHERE application_name = 'pgbus-listen'") }
      chat.unsub("chat")
      eventually("the UNLISTEN") { last_statement.call == 'UNLISTEN "pgmq.q_chat.INSERT"' }
    end
  end
end
