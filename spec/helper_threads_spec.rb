# frozen_string_literal: true

require "active_support"
require "active_support/notifications"
require "open3"
require "rbconfig"
require_relative "outbound_pump_helper"
require_relative "support/hub_context"

# What an app hands us (callbacks, subscribers, queues, loggers) may raise anything, kill the thread it runs on, and call
# back. Our helper threads survive it, and whatever ends one of them, another follows.
RSpec.describe "helper threads" do
  deadly = {
    "NotImplementedError" => -> { raise NotImplementedError, "subclass me" },
    "SystemStackError" => -> { (endless = -> { endless.call }).call },
    "an Exception" => -> { raise Exception, "of no kind" },
    "Thread#kill" => -> { Thread.current.kill },
    "throw" => -> { throw :nowhere }
  }

  def subscribed(event, callback, &)
    ActiveSupport::Notifications.subscribed(callback, "#{event}.pgbus_native", &)
  end

  describe "of a pump" do
    include OutboundPumpHelper

    # A browser dies, and another one gets two frames afterwards.
    def expect_service(pump)
      gone, here = browser("gone"), browser("here")
      gone.socket.close
      pump.post(gone.connection, [envelope(1)], 1, deadline_ms: 1000)
      expect(pop(dead)).to be(gone.connection)
      2.times do |i|
        pump.post(here.connection, [envelope(i + 1)], i + 1, deadline_ms: 1000)
        expect(here.read(frame(i + 1).bytesize)).to eq(frame(i + 1))
        yield here if block_given?
      end
      expect(pump).to be_alive
      expect(pump.stop).to be(pump)
      expect(pump).not_to be_alive
      expect(pump.stats).to include(dead: 1, acks: 2)
    end

    def expect_ack = ->(here) { expect(pop(acks).connection).to be(here.connection) }

    deadly.each do |what, ending|
      it "survive #{what} of on_dead" do
        fatal = build_pump(on_dead: ->(c) { (dead << c) && ending.call }).start
        expect_service(fatal, &expect_ack)
      end

      it "survive #{what} of the ack_queue" do
        queue = Object.new
        seen = acks
        queue.define_singleton_method(:<<) { |ack| (seen << ack) && ending.call }
        expect_service(build_pump(ack_queue: queue).start, &expect_ack)
      end

      it "survive #{what} of a subscriber" do
        subscribed(:dead, ->(*) { ending.call }) do
          expect_service(pump.start, &expect_ack)
        end
      end

      it "survive #{what} of the logger" do
        broken = Logger.new(IO::NULL)
        %i[debug info warn error].each { |level| broken.define_singleton_method(level) { |*| ending.call } }
        fatal = build_pump(logger: broken, on_dead: ->(c) { (dead << c) && raise("to be logged") }).start
        expect_service(fatal, &expect_ack)
      end

      it "survive #{what} of a connection's own enqueue, which is dead then, and told so once (invariant 4)" do
        changed = Class.new(OutboundPumpHelper::Streamer::Connection) do
          define_method(:enqueue) { |*envelopes, **options| id == "bad" ? ending.call : super(*envelopes, **options) }
        end
        bad, good = %w[bad good].map { |id| browser(id, klass: changed) }
        single = build_pump(threads: 1).start
        2.times { |i| single.post(bad.connection, [envelope(i + 1)], i + 1, deadline_ms: 1000) }
        single.post(good.connection, [envelope(1)], 1, deadline_ms: 1000)
        expect(pop(dead)).to be(bad.connection)
        expect(pop(acks).connection).to be(good.connection)
        single.stop
        expect([acks, dead]).to all(be_empty)
      end
    end

    it "count what foreign code raised, and log it at error when the count is a power of two" do
      fatal = build_pump(on_dead: ->(_) { raise NotImplementedError, "subclass me" }).start
      9.times do |i|
        b = browser("c#{i}")
        b.socket.close
        fatal.post(b.connection, [envelope(1)], 1, deadline_ms: 1000)
      end
      wait_until { fatal.stats[:callback_failures] == 9 }
      expect(log.string.scan(/ERROR.*on_dead raised NotImplementedError: subclass me \((\d+) so far\)/).flatten).to eq(%w[1 2 4 8])
    ensure
      fatal&.stop
    end

    it "come back when they are killed, and say so" do
      pump.start
      pump.worker_threads.first.kill.join
      b = browser
      post(b, envelope(1))
      expect(pop(acks).connection).to be(b.connection)
      expect(pump).to be_alive
      expect(pump.stats).to include(thread_restarts: 1)
    end

    it "come back when they are interrupted, with a line in the log" do
      pump.start
      pump.worker_threads.first.tap { |thread| thread.raise(Timeout::Error, "of somebody else") }.join
      post(browser, envelope(1))
      pop(acks)
      expect(log.string).to include("pgbus-pump-reporter was interrupted: Timeout::Error: of somebody else")
    end

    it "lose no report when they are killed all the time (invariants 3, 4)" do
      pump.start
      browsers = Array.new(20) { browser }
      killing = true
      killer = Thread.new { pump.worker_threads.each(&:kill) && Thread.pass while killing }
      100.times { |i| browsers.each { |b| post(b, envelope(i + 1)) } }
      browsers.each { |b| b.read((1..100).sum { |id| frame(id).bytesize }) }
      browsers.each { |b| b.socket.close }
      browsers.each { |b| post(b, envelope(101)) }
      dying = Array.new(20) { pop(dead) }
      killing = false
      killer.join
      expect(dying).to match_array(browsers.map(&:connection))
      pump.stop
      expect(dead).to be_empty
      expect(acks.size).to eq(2000)
      expect(pump.stats[:thread_restarts]).to be_positive
    ensure
      killing = false
    end

    # How a process ends whose only browser is gone, with this code in on_dead.
    def ended_by(on_dead, main)
      program = <<~RUBY
        require "pgbus_or_standin"
        require "pgbus_native"
        require "socket"
        streamer = Pgbus::Web::Streamer
        PgbusNative::ConnectionPatch.install(streamer::Connection)
        server, client = UNIXSocket.pair
        client.close
        connection = streamer::Connection.new(id: "a", stream_name: "s", io: server, since_id: 0, writer: streamer::IoWriter, write_deadline_ms: 1_000)
        begun = Queue.new
        pump = PgbusNative::OutboundPump.new(threads: 1, ack_queue: Queue.new, on_dead: ->(_) { begun << 1; #{on_dead} }, logger: Logger.new(IO::NULL)).start
        at_exit { puts "at_exit" }
        pump.post(connection, [Struct.new(:msg_id, :payload).new(1, "x")], 1, deadline_ms: 1_000)
        begun.pop
        #{main}
      RUBY
      out, status = Timeout.timeout(20) do
        Open3.capture2e(RbConfig.ruby, *$LOAD_PATH.flat_map { |path| ["-I", path] }, "-e", program)
      end
      [out, status.exitstatus]
    end

    it "let exit through, as every thread does" do
      expect(ended_by("exit 7", "sleep")).to eq(["at_exit\n", 7])
    end

    it "let a process end at once while they run foreign code that blocks or computes" do
      expect(ended_by("sleep", "exit 5")).to eq(["at_exit\n", 5])
      expect(ended_by("loop {}", "exit 5")).to eq(["at_exit\n", 5])
    end

    it "can stop the pump" do
      stopping = build_pump(on_dead: ->(c) { stopping.stop && dead << c }).start
      b = browser
      b.socket.close
      stopping.post(b.connection, [envelope(1)], 1, deadline_ms: 1000)
      expect(pop(dead)).to be(b.connection)
      wait_until { !stopping.alive? }
    end

    it "end, all of them, when start fails half-way" do
      half = build_pump
      refusal = Thread.new do
        ThreadGroup.new.add(Thread.current).freeze # no Ruby thread can be had in there
        half.start
      rescue ThreadError => e
        e
      end
      expect(refusal.value).to be_a(ThreadError)
      expect([half.alive?, half.threads, half.worker_threads]).to eq([false, [], []])
      half.start.post(browser.connection, [envelope(1)], 1, deadline_ms: 1000)
      pop(acks)
    ensure
      half&.stop
    end

    it "are no threads that Puma warns of at boot" do
      pump.start
      pump.post(browser(klass: Class.new(OutboundPumpHelper::Streamer::Connection)).connection, [envelope(1)], 1, deadline_ms: 1000)
      pop(acks)
      expect(pump.worker_threads.map(&:name)).to contain_exactly("pgbus-pump-reporter", "pgbus-pump-ruby")
      expect(pump.worker_threads).to all(satisfy { |thread| thread.thread_variable_get(:fork_safe) })
    end

    it "leave stats, alive?, threads and stop to a signal handler" do
      pump.start
      pump.post(browser(klass: Class.new(OutboundPumpHelper::Streamer::Connection)).connection, [envelope(1)], 1, deadline_ms: 1000)
      pop(acks)
      seen = Queue.new
      former = trap("USR1") do
        seen << [pump.stats[:acks], pump.alive?, pump.threads.size, pump.stop.equal?(pump)]
      rescue ThreadError => e
        seen << e
      end
      Process.kill("USR1", Process.pid)
      expect(pop(seen)).to eq([1, true, 2, true])
      expect(pump).not_to be_alive
    ensure
      trap("USR1", former || "DEFAULT")
    end
  end

  describe "of a hub" do
    include_context "with a hub"

    def lose_session
      postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")
    end

    # It routes, and tells of the session's loss and return.
    def expect_service
      restored = Queue.new
      subscribed(:session_restored, ->(*) { restored << true }) do
        lose_session
        expect(restored.pop(timeout: 20)).to be(true)
      end
      chat = worker("chat")
      notify("chat", "1")
      expect(chat.wakes(1)).to eq([%w[chat 1]])
      expect(hub.stop).to be(hub)
      eventually("the session's end") { sessions.empty? }
    end

    deadly.each do |what, ending|
      it "survive #{what} of a subscriber" do
        hub.start
        subscribed(:session_lost, ->(*) { ending.call }) { expect_service }
      end

      it "survive #{what} of the logger" do
        broken = Logger.new(IO::NULL)
        %i[debug info warn error].each { |level| broken.define_singleton_method(level) { |*| ending.call } }
        settings[:logger] = broken
        hub.start
        expect_service
      end

      it "survive #{what} of a listener" do
        deaf = Class.new do
          define_method(:initialize) { |queue| @queue = queue }
          define_method(:ensure_listening) { |queue| queue == "bad" ? ending.call : @queue << wake(queue) }
          define_method(:remove_listening) { |_| ending.call }
          define_method(:connected?) { ending.call }
          define_method(:stop) { ending.call }
          define_method(:alive?) { true }
          define_method(:wake) do |queue|
            Pgbus::Web::Streamer::Listener::WakeMessage.new(queue_name: queue, payload: "1")
          end
        end
        settings.merge!(listener_factory: ->(dispatch_queue:) { deaf.new(dispatch_queue) }, status_interval: 0.05)
        hub.start
        bad, good = worker, worker
        bad.say("t" => "sub", "q" => "bad")
        expect(bad).to be_eof
        2.times do |i|
          good.sub("chat#{i}")
          expect(good.wakes(1)).to eq([["chat#{i}", "1"]])
          good.unsub("chat#{i}")
        end
        expect(seconds { expect(hub.stop).to be(hub) }).to be < 10
      end
    end

    it "come back when they are killed, and say so" do
      hub.start
      Thread.list.find { |thread| thread.name == "pgbus-hub-reporter" && thread.alive? }.kill.join
      expect_service
      expect(hub.stats).to include(thread_restarts: 1)
    end

    it "can stop the hub, from its logger" do
      stopped = Queue.new
      settings[:logger] = Logger.new(log).tap do |logger|
        example = self
        logger.define_singleton_method(:warn) { |*| stopped << (example.hub.stop rescue $!) }
      end
      hub.start
      lose_session
      expect(stopped.pop(timeout: 20)).to be(hub)
      expect(File.exist?(path)).to be(false)
      eventually("the session's end") { sessions.empty? }
      expect(hub.stats).to include(running: false)
    end

    it "can stop the hub, from a subscriber: a Ruby session ends with it, its threads and its listener" do
      calls = Queue.new
      listener = Class.new do
        attr_accessor :up

        define_method(:stop) { calls << :stop }
        def initialize = @up = true
        def ensure_listening(_) = nil
        def remove_listening(_) = nil
        def alive? = true
        def connected? = @up
      end.new
      settings.merge!(listener_factory: ->(**) { listener }, status_interval: 0.02)
      hub.start
      stopped = Queue.new
      subscribed(:session_lost, ->(*) { stopped << (hub.stop rescue $!) }) do
        listener.up = false
        expect(stopped.pop(timeout: 20)).to be(hub)
      end
      expect(calls.pop(timeout: 10)).to eq(:stop)
      eventually("the threads' end") { Thread.list.none? { |thread| thread.name&.start_with?("pgbus-hub") } }
    end

    it "make every step of a stop that is interrupted" do
      calls, entered, gate = Array.new(3) { Queue.new }
      listener = Object.new
      { ensure_listening: nil, remove_listening: nil, alive?: true, connected?: true }.each do |name, value|
        listener.define_singleton_method(name) { |*| value }
      end
      listener.define_singleton_method(:stop) { calls << :stop }
      settings[:listener_factory] = ->(**) { listener }
      settings[:logger] = Logger.new(log).tap do |logger|
        logger.define_singleton_method(:warn) { |*| entered << true && gate.pop }
      end
      hub.start
      worker.socket.write("\xff" * 4)
      expect(entered.pop(timeout: 10)).to be(true)
      stopper = Thread.new { hub.stop }
      eventually("a stop that waits for the logger") { stopper.stop? }
      stopper.kill.join
      expect(calls.pop(timeout: 10)).to eq(:stop)
    ensure
      gate&.close
    end

    it "end a start that waits behind another one (invariant 10)" do
      silent = TCPServer.new("127.0.0.1", 0)
      config.database_url = "postgres://bob@127.0.0.1:#{silent.addr[1]}/x"
      first = Thread.new { hub.start }
      silent.accept
      others = Array.new(3) { Thread.new { hub.start } }
      eventually("starts that wait") { others.all?(&:stop?) }
      stopper = Thread.new { hub.stop }
      expect(stopper.join(10)).to be(stopper)
      [first, *others].each { |thread| expect(thread.join(10)&.value).to be(hub) }
      expect(hub.stats).to include(running: false)
    ensure
      silent&.close
    end

    it "are no threads that Puma warns of at boot" do
      before = Thread.list
      hub.start
      expect(Thread.list - before).to all(satisfy { |thread| thread.thread_variable_get(:fork_safe) })
    end

    it "leave stats and stop to a signal handler, also in the middle of a start" do
      seen = Queue.new
      former = trap("USR1") do
        seen << [hub.stats[:running], hub.stop.equal?(hub)]
      rescue ThreadError => e
        seen << e
      end
      hub.start
      Process.kill("USR1", Process.pid)
      expect(seen.pop(timeout: 10)).to eq([true, true])
      expect(File.exist?(path)).to be(false)

      silent = TCPServer.new("127.0.0.1", 0)
      config.database_url = "postgres://bob@127.0.0.1:#{silent.addr[1]}/x"
      signaller = Thread.new { silent.accept && Process.kill("USR1", Process.pid) }
      expect(hub.start).to be(hub)
      signaller.join
      expect(seen.pop(timeout: 10)).to eq([false, true])
    ensure
      trap("USR1", former || "DEFAULT")
      silent&.close
    end
  end
end
