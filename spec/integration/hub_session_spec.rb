# frozen_string_literal: true

require "socket"
require_relative "../support/hub_context"

# The hub and the one session that it lives on: what workers notice of it, and what not.
RSpec.describe "The hub and its LISTEN session" do
  include_context "with a hub"

  # Between the hub and PostgreSQL. When told to, it goes silent without closing anything, and takes nobody new.
  class Proxy
    def initialize(port)
      @server = TCPServer.new("127.0.0.1", 0)
      @target = port
      @silent = false
      @thread = Thread.new { loop { pass(@server.accept) } }
    end

    def port = @server.addr[1]
    def fall_silent = @silent = true

    # New connections pass again; those of before stay silent.
    def recover = @silent = false

    def stop
      @thread.kill
      @server.close
    end

    private

    def pass(client)
      return client.close if @silent

      server = TCPSocket.new("127.0.0.1", @target)
      [client, server].permutation { |from, to| Thread.new { copy(from, to) } }
    end

    def copy(from, to)
      broken = false
      while (bytes = from.readpartial(65_536))
        broken ||= @silent
        to.write(bytes) unless broken
      end
    rescue IOError, SystemCallError
      to.close unless broken
    end
  end

  def kill_session
    before = sessions
    before.each { |pid| postgres.sql("SELECT pg_terminate_backend(#{pid})") }
    eventually("the end of #{before}") { (sessions & before).empty? }
  end

  # The status, each time it is told.
  def statuses(worker) = Enumerator.produce { worker.hear("status")["healthy"] }

  it "acks a sub of a stream that is listened to without asking the database (invariant 7)" do
    hub.start
    worker("chat")
    # Nobody can answer: the session's backend stands still.
    sessions.each { |pid| Process.kill(:STOP, pid) }
    expect(worker.sub("chat")).to eq(["chat"])
  ensure
    sessions.each { |pid| Process.kill(:CONT, pid) }
  end

  it "acks a new stream when LISTEN is active, not before (invariant 7)" do
    hub.start
    one = worker
    one.sub("chat")
    notify("chat", "1")
    expect(one.wakes(1)).to eq([%w[chat 1]])
  end

  it "acks 500 subs, one after the other, without making the worker wait for a health check each time" do
    hub.start
    worker(*Array.new(250) { |i| "stream#{i * 2}" })
    one = worker
    taken = seconds { 500.times { |i| one.sub("stream#{i}") } }
    expect(taken).to be < 500 * 0.25 / 2
  end

  it "UNLISTENs when the last subscriber left, and LISTENs again for the next" do
    config.streams_listen_health_check_ms = 60_000 # the session's last statement stays to be seen
    hub.start
    one, two = worker("chat"), worker("chat")
    last_statement = -> { postgres.sql("SELECT query FROM pg_stat_activity WHERE application_name = 'pgbus-listen'") }
    one.unsub("chat")
    one.sub("other")
    expect(last_statement.call).to eq('LISTEN "pgmq.q_other.INSERT"')
    two.unsub("chat")
    eventually("the UNLISTEN") { last_statement.call == 'UNLISTEN "pgmq.q_chat.INSERT"' }
    two.sub("chat")
    notify("chat", "1")
    expect(two.wakes(1)).to eq([%w[chat 1]])
  end

  it "LISTENs as long as anybody subscribes, however often others come and go" do
    hub.start
    chat = worker("chat")
    other = worker
    200.times do
      other.say("t" => "sub", "q" => "chat")
      other.unsub("chat")
      other.say("t" => "sub", "q" => "mine")
      other.unsub("mine")
    end
    other.sub("mine")
    notify("chat", "1")
    notify("mine", "2")
    expect(chat.wakes(1)).to eq([%w[chat 1]])
    expect(other.wakes_until("mine", "2")).to eq([%w[mine 2]])
  end

  it "wakes every stream when it is back, also those that changed while it was gone (invariant 9)" do
    hub.start
    one, two = worker("chat", "news"), worker("chat")
    kill_session
    expect(one.wakes(2)).to contain_exactly(["chat", nil], ["news", nil])
    expect(two.wakes(1)).to eq([["chat", nil]])
    notify("chat", "1")
    expect([one, two].map { |worker| worker.wakes(1) }).to all(eq([%w[chat 1]]))
    expect(hub.stats).to include(reconnects: 1)
  end

  it "does so too when its session is pgbus's own Listener and was gone for a moment only (invariant 9)" do
    config.database_url = "#{postgres.url}?client_encoding=SQL_ASCII"
    hub.start
    expect(hub.stats).to include(session: :ruby)
    one = worker("chat", "news")
    kill_session
    expect(one.wakes(2)).to contain_exactly(["chat", nil], ["news", nil])
    expect(hub.stats).to include(reconnects: 1)
  end

  describe "while the database is gone" do
    let(:proxy) { Proxy.new(postgres.port) }
    let(:settings) { { status_interval: 0.05 } }

    before { config.database_url = "postgres://pgbus@127.0.0.1:#{proxy.port}/pgbus" }

    after { proxy.stop }

    it "tells so, acks new subs all the same, and makes good for them when it is back (invariants 7, 9 and 10)" do
      hub.start
      chat = worker("chat")
      proxy.fall_silent
      kill_session
      # The killed session's last words are swallowed too: the hub must notice the silence.
      expect(statuses(chat).find { |healthy| !healthy }).to be(false)
      late = worker
      expect(late.sub("chat", "late")).to eq(%w[chat late])
      expect(seconds { late.sub("later") }).to be < 5
      proxy.recover
      expect(late.wakes(3)).to contain_exactly(["chat", nil], ["late", nil], ["later", nil])
      expect(statuses(chat).find { |healthy| healthy }).to be(true)
      notify("later", "1")
      expect(late.wakes(1)).to eq([%w[later 1]])
    end

    it "stops in under two seconds (invariant 10)" do
      hub.start
      chat = worker("chat")
      proxy.fall_silent
      expect(statuses(chat).find { |healthy| !healthy }).to be(false)
      expect(seconds { hub.stop }).to be < 2
      expect(chat).to be_eof
    end
  end

  it "refuses a replica" do
    primary = PrivatePostgres.new.start
    File.write("#{primary.data}/standby.signal", "")
    control = lambda do |*arguments|
      system(*primary.send(:as_owner, "#{PrivatePostgres.bindir}/pg_ctl", "-s", "-w", "-D", primary.data, *arguments),
             chdir: "/", %i[out err] => "#{folder}/control") or raise File.read("#{folder}/control")
    end
    control.call("-l", "#{primary.data}/log", "restart")
    config.database_url = primary.url
    expect { hub.start }.to raise_error(Pgbus::Process::ReplicaConnectionError, /replica/)
    expect(File.exist?(path)).to be(false)
  ensure
    control&.call("-m", "immediate", "stop")
    primary&.stop
  end
end
