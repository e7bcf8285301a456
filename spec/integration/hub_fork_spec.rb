# frozen_string_literal: true

require "rbconfig"
require "socket"
require_relative "../support/hub_context"

# Puma forks workers while its master's hub runs; whatever children do, neither side must notice (invariant 11).
RSpec.describe "The hub and forks" do
  include_context "with a hub"

  # Runs the block in a child that lives until it is told to end; its result comes back.
  class Child
    attr_reader :pid

    def initialize
      result, @tell_result = IO.pipe
      wait, @go = IO.pipe
      @pid = fork do
        @go.close
        result.close
        @tell_result.write(Marshal.dump(yield))
        @tell_result.close
        wait.read
        exit!(0)
      rescue Exception => e # a child tells everything, and never runs our specs
        @tell_result.write(Marshal.dump("#{e.class}: #{e.message}"))
        exit!(1)
      end
      @tell_result.close
      wait.close
      @result = result
    end

    def result = Marshal.load(@result.read)

    def finish
      @go.close
      Process.wait(@pid)
      $?.success?
    end
  end

  def child(&)
    Child.new(&).tap { |child| children << child }
  end

  let(:children) { [] }

  after { children.each { |child| child.finish unless child.instance_variable_get(:@go).closed? } }

  # Sockets that this process has open.
  def sockets
    Dir.children("/proc/self/fd").count { |fd| File.readlink("/proc/self/fd/#{fd}").start_with?("socket:") rescue false }
  end

  # The session is the same one, the socket is there, and wakes arrive.
  def expect_untouched
    expect(File.socket?(path)).to be(true)
    notify("chat", "after #{@told = @told.to_i + 1}")
    expect(@chat.wakes_until("chat", "after #{@told}").size).to eq(1)
    expect(worker("news").sub("more")).to eq(["more"])
    expect(sessions).to eq(@sessions)
    expect(hub.stats).to include(reconnects: 0)
  end

  before do
    hub.start
    @chat = worker("chat")
    @sessions = sessions
  end

  {
    "exits" => -> { exit },
    "exits at once" => -> { exit! },
    "raises" => -> { $stderr.reopen(IO::NULL) && raise("on purpose") },
    "is killed" => -> { Process.kill(:KILL, Process.pid) },
    "collects garbage" => -> { 3.times { GC.start } && GC.compact },
    "execs" => -> { exec(RbConfig.ruby, "--disable-gems", "-e", "exit") },
    "spawns" => -> { system(RbConfig.ruby, "--disable-gems", "-e", "exit") }
  }.each do |what, act|
    it "are unharmed by a child that #{what}" do
      5.times { Process.wait(fork(&act)) }
      expect_untouched
    end
  end

  describe "whose session is pgbus's own Listener" do
    let(:config) { super().tap { |config| config.database_url += "?client_encoding=LATIN1" } }

    it "are unharmed by children that end and collect garbage, also after the session was lost once" do
      expect(hub.stats).to include(session: :ruby)
      acts = [-> { exit }, -> { GC.start }, -> { system(RbConfig.ruby, "--disable-gems", "-e", "exit") }, -> { fork { exit } }]
      acts.each { |act| Process.wait(fork(&act)) }
      expect_untouched
      @sessions.each { |pid| postgres.sql("SELECT pg_terminate_backend(#{pid})") }
      eventually("another session") { (@again = sessions - @sessions).any? }
      eventually("its return") { hub.stats[:reconnects] == 1 }
      @notifier = notifier.close # the children would end that one
      acts.each { |act| Process.wait(fork(&act)) }
      notify("chat", "still there")
      expect(@chat.wakes_until("chat", "still there").last).to eq(["chat", "still there"])
      expect(sessions).to eq(@again)
      expect(hub.stats).to include(reconnects: 1)
    end

    it "leave no copy of its connection to the child" do
      skip "needs /proc" unless File.directory?("/proc/self/fd")
      before = sockets
      expect(child { sockets }.result).to be <= before - 3
    end
  end

  it "are unharmed by a child that forgets the hub and collects it" do
    Process.wait(fork do
      hub.remove_instance_variable(:@engine)
      GC.start
      exit!(ObjectSpace.each_object(PgbusNative::MasterHub::Engine).none? ? 0 : 1)
    end)
    expect_untouched
  end

  it "leave an inert hub to the child: stop does nothing, stats and inspect answer" do
    stopped = child { [hub.stop.equal?(hub), hub.stats[:running], hub.inspect, hub.evicted_workers, File.socket?(path)] }
    expect(stopped.result).to eq([true, false, "#<PgbusNative::MasterHub #{path}>", 0, true])
    expect_untouched
  end

  it "leave no descriptor of the hub's to the child" do
    skip "needs /proc" unless File.directory?("/proc/self/fd")
    before = sockets
    # Listener, session and the hub's end of one worker.
    expect(child { sockets }.result).to be <= before - 3
  end

  it "let a worker see EOF when the hub stops, though a child lives on" do
    child { true }.result
    hub.stop
    expect(@chat).to be_eof
    eventually("the session's end") { sessions.empty? }
  end

  it "let an evicted worker see EOF, though a child lives on (invariant 8)" do
    child { true }.result
    reader = worker("filler")
    read = Thread.new { reader.wakes_until("filler", "end") }
    wedged = worker("filler")
    written = 0
    until hub.evicted_workers.positive?
      notify_all(100, "filler") { "#{written += 1} #{"x" * 7000}" }
      eventually("the wakes") { hub.stats[:wakes_in] >= written }
    end
    notify("filler", "end")
    expect(wedged).to be_eof
    expect(read.value.size).to eq(written + 1)
  end

  it "let a child start a hub of its own, and end it" do
    twin = child do
      other = PgbusNative::MasterHub.new(config:, socket_path: "#{path}.child", logger: Logger.new(IO::NULL)).start
      one = RawWorker.new("#{path}.child")
      acks = one.sub("chat")
      PG.connect(postgres.url).exec("SELECT pg_notify('pgmq.q_chat.INSERT', 'to both')")
      wakes = one.wakes(1)
      other.stop
      [acks, wakes, File.exist?("#{path}.child")]
    end
    expect(twin.result).to eq([["chat"], [["chat", "to both"]], false])
    expect(@chat.wakes(1)).to eq([["chat", "to both"]])
    expect_untouched
  end

  it "let a child start the very object that its parent made" do
    again = child do
      hub.instance_variable_set(:@socket_path, "#{path}.child")
      hub.start
      acks = RawWorker.new("#{path}.child").sub("chat")
      hub.stop
      acks
    end
    expect(again.result).to eq(["chat"])
    expect_untouched
  end

  it "lose no wake while they happen all the time" do
    forks = 0
    forker = Thread.new do
      loop do
        Process.wait(fork { exit!(0) })
        forks += 1
      end
    end
    eventually("the first forks") { forks > 2 }
    notify_all(2_000, "chat") { |i| "#{i} #{"x" * 200}" }
    expect(@chat.wakes(2_000).map { |_, payload| payload.to_i }).to eq((0...2_000).to_a)
    seen = forks
    eventually("more forks") { forks > seen }
    forker.kill.join
    expect_untouched
  end

  it "leave children that resolve names, connect and allocate, at whatever moment they are born" do
    # The session is torn down again and again, so that the hub resolves its host, connects and LISTENs all the time.
    hub.stop
    config.database_url = postgres.url(host: "localhost")
    hub.start
    notifier
    stop = false
    breaker = Thread.new do
      until stop
        notifier.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")
        worker("stream#{rand(1_000)}").close
        workers.pop
      end
    end
    30.times do
      pid = fork do
        Addrinfo.getaddrinfo("localhost", 80)
        PG.connect(postgres.url(host: "localhost")).exec("SELECT 1")
        Array.new(1_000) { "x" * rand(10_000) }
        exit!(0)
      end
      Timeout.timeout(20) { Process.wait(pid) }
      expect($?).to be_success
    end
    stop = true
    breaker.join
    eventually("the session") { sessions.size == 1 }
    expect(worker("chat").sub("news")).to eq(["news"])
  end

  describe "of a master that dies" do
    # A master in a process of its own, with a child that outlives it.
    def master
      reader, writer = IO.pipe
      other = "#{path}.master"
      pid = fork do
        reader.close
        PgbusNative::MasterHub.new(config:, socket_path: other, logger: Logger.new(IO::NULL)).start
        survivor = fork { sleep }
        writer.puts(survivor)
        writer.close
        sleep
      end
      writer.close
      survivor = reader.gets.to_i
      eventually("the second session") { sessions.size == 2 }
      yield pid, RawWorker.new(other).tap { |one| one.sub("chat") }
    ensure
      [survivor, pid].compact.each do |process|
        Process.kill(:KILL, process)
      rescue Errno::ESRCH
        nil
      end
      Process.wait(pid)
    end

    %i[TERM KILL].each do |signal|
      it "by SIG#{signal}: its workers see EOF and its session ends, though a child lives on" do
        master do |pid, one|
          Process.kill(signal, pid)
          expect(one).to be_eof
          eventually("the session's end") { sessions == @sessions }
        end
        expect_untouched
      end
    end
  end
end
