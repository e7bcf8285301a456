# frozen_string_literal: true

require_relative "outbound_pump_helper"

RSpec.describe PgbusNative::OutboundPump do
  include OutboundPumpHelper

  describe ".new" do
    it "refuses a number of threads that is not positive" do
      expect { build_pump(threads: 0) }.to raise_error(ArgumentError, "threads must be positive")
    end

    it "logs to pgbus's logger unless it is given one" do
      expect(described_class.new(threads: 1, ack_queue: acks, on_dead: dead.method(:<<))).not_to be_alive
    end

    it "is short to look at, whatever hangs on it" do
      expect(pump.inspect).to eq("#<PgbusNative::OutboundPump threads=2 buffer_limit=0>")
      expect(pump.start.inspect).to eq("#<PgbusNative::OutboundPump threads=2 buffer_limit=0 running>")
    end

    it "knows the sentinel of pgbus's own pump" do
      expect(described_class::DRAIN).to eq(:__drain__)
    end
  end

  describe "a connection on a plain socket" do
    it "is served without Ruby threads, whole frames in order, the cursor and the ack behind them (invariants 2, 3)" do
      pump.start
      b = browser
      post(b, envelope(1), envelope(2))
      post(b, envelope(3))
      expect(b.read((frame(1) + frame(2) + frame(3)).bytesize)).to eq(frame(1) + frame(2) + frame(3))
      first, second = pop(acks), pop(acks)
      expect(first).to be_a(OutboundPumpHelper::Streamer::StreamEventDispatcher::WriteAckMessage)
      expect([first.connection, first.accepted_max, second.accepted_max]).to eq([b.connection, 2, 3])
      expect(b.connection.last_msg_id_sent).to eq(3)
      expect(pump.stats).to include(native_frames: 3, ruby_frames: 0)
    end

    it "may be TCP as well" do
      pump.start
      b = browser(sockets: tcp_pair)
      post(b, envelope(1))
      expect(b.read(frame(1).bytesize)).to eq(frame(1))
      expect(pump.stats[:native_frames]).to eq(1)
    end

    [nil, 17, "", "two\nlines", "a\r\nb\rc\n", "id: 9\nevent: x", "ä€", "\xE4".b.force_encoding("ISO-8859-1")].each do |payload|
      it "gets the very bytes that pgbus makes of #{payload.inspect}" do
        pump.start
        b = browser
        post(b, envelope(1, payload))
        expect(b.read(frame(1, payload).bytesize)).to eq(frame(1, payload).b)
      end
    end

    it "gets the envelope's event if it has one" do
      pump.start
      b = browser
      post(b, *["chat", nil, "", :sym, false].each_with_index.map { |event, i| OutboundPumpHelper::TypedEnvelope.new(i + 1, "x", event) })
      expected = %w[chat turbo-stream turbo-stream sym turbo-stream].each_with_index.map { |event, i| frame(i + 1, "x", event:) }.join
      expect(b.read(expected.bytesize)).to eq(expected)
    end

    it "skips what its cursor is past, and acknowledges the cursor when that was all" do
      pump.start
      b = browser(since_id: 5)
      post(b, envelope(4), envelope(5))
      post(b, envelope(5), envelope(6))
      expect([pop(acks), pop(acks)].map(&:accepted_max)).to eq([5, 6])
      expect(b.read(frame(6).bytesize)).to eq(frame(6))
    end

    it "is acknowledged with batch_max when the list is empty" do
      pump.start
      post(browser, batch_max: 12)
      expect(pop(acks).accepted_max).to eq(12)
    end

    it "is idle since the pump's last write" do
      pump.start
      b = browser
      wait_until { b.connection.idle_for > 0.05 }
      post(b, envelope(1))
      pop(acks)
      expect(b.connection.idle_for).to be < 0.05
    end

    it "sends one envelope to many connections with one copy of its bytes, made once" do
      payload = Class.new { def to_s = (@count = count + 1; "x" * 1_000_000) and def count = @count || 0 }.new
      browsers = Array.new(20) { browser }
      one = envelope(1, payload)
      browsers.each { |b| post(b, one) }
      expect(payload.count).to eq(1)
      pump.start
      browsers.each { |b| expect(b.read(frame(1, "x" * 1_000_000).bytesize)).to eq(frame(1, "x" * 1_000_000)) }
    end
  end

  describe "#post" do
    it "refuses a negative msg_id, and then queues nothing of the call" do
      b = browser
      expect { post(b, envelope(1), envelope(-1)) }.to raise_error(ArgumentError, /ephemeral \(negative msg_id\).*-1.*inline/)
      expect { post(b, envelope(-(2**80))) }.to raise_error(ArgumentError, /ephemeral/)
      expect(pump.stats[:posted]).to eq(0)
    end

    it "refuses a msg_id of more than 64 bits by name, and then queues nothing" do
      b = browser
      expect { post(b, envelope(1), envelope(2**63)) }.to raise_error(RangeError, /64 bits, got #{2**63}/)
      expect(pump.stats[:posted]).to eq(0)
      pump.start
      post(b, envelope((2**63) - 1))
      expect(pop(acks).accepted_max).to eq((2**63) - 1)
    end

    it "refuses a deadline that is no number" do
      b = browser
      ["250", nil, Float::NAN].each do |deadline_ms|
        expect { post(b, envelope(1), deadline_ms:) }.to raise_error(ArgumentError, /deadline_ms must be a number.*#{deadline_ms.inspect}/)
      end
    end

    [0, -5, 0.5, 250r, Float::INFINITY].each do |deadline_ms|
      it "takes #{deadline_ms.inspect} ms, and writes what fits at once" do
        pump.start
        b = browser
        post(b, envelope(1), deadline_ms:)
        expect(pop(acks).accepted_max).to eq(1)
      end
    end

    it "reads the envelopes at once: the array may change afterwards" do
      b = browser
      list = [envelope(1)]
      pump.post(b.connection, list, 1, deadline_ms: 100)
      list.replace([envelope(-7)])
      pump.start
      expect(b.read(frame(1).bytesize)).to eq(frame(1))
    end

    it "says nothing of a connection that is dead or closed already, and never raises (invariant 6)" do
      pump.start
      marked, closed = browser, browser
      marked.connection.mark_dead!
      closed.connection.close
      [marked, closed].each { |b| post(b, envelope(1)) }
      pump.stop
      expect([acks, dead]).to all(be_empty)
    end

    it "returns at once while nothing can be written (invariants 5, 6)" do
      pump.start
      stalled, healthy = browser, browser
      stall(stalled)
      100.times { |i| post(stalled, envelope(i + 2)) }
      post(healthy, envelope(1))
      expect(healthy.read(frame(1).bytesize)).to eq(frame(1))
      expect(stalled.connection.last_msg_id_sent).to eq(0)
    end
  end

  describe "what waits" do
    it "counts once, however often it is posted, and is not lost by what is posted after it (invariants 3, 12)" do
      allow(self).to receive(:buffer_limit).and_return(4)
      pump.start
      b = browser
      large = stall(b)
      envelopes = (2..9).map { |id| envelope(id) }
      (1..8).each { |count| post(b, *envelopes.first(count)) }
      expect(pump.stats).to include(dropped: 0, waiting: 9)
      expected = large + envelopes.map { |one| frame(one.msg_id) }.join
      expect(b.read(expected.bytesize)).to eq(expected)
      pump.stop
      expect(Array.new(acks.size) { acks.pop.accepted_max }).to eq([1, *2..9])
    end

    it "a batch larger than the limit ends no idle browser" do
      PgbusNative.configure { |c| c.pump_overflow = :disconnect }
      small = build_pump(buffer_limit: 100)
      browsers = Array.new(10) { |i| browser("c#{i}") }
      envelopes = (1..101).map { |id| envelope(id) }
      browsers.each { |b| small.post(b.connection, envelopes, 101, deadline_ms: 5000) }
      small.start
      10.times { expect(pop(acks).accepted_max).to eq(101) }
      expect(small.stats).to include(dropped: 0, dead: 0)
    ensure
      PgbusNative.configure { |c| c.pump_overflow = :drop_oldest }
      small&.stop
    end

    it "has its bytes made once for all connections, whatever the batch, and none for what a connection has" do
      made = 0
      payload = Class.new { define_method(:to_s) { (made += 1) && "x" } }
      envelopes = (1..600).map { |id| envelope(id, payload.new) }
      pump.start
      browsers = Array.new(20) { |i| browser("c#{i}", since_id: 100, sockets: tcp_pair) }
      browsers.each { |b| post(b, *envelopes) }
      20.times { expect(pop(acks).accepted_max).to eq(600) }
      browsers.each { |b| post(b, *envelopes.map { |one| envelope(one.msg_id, payload.new) }) }
      expect(made).to eq(500)
    end
  end

  describe "a client that does not read" do
    let(:threads) { 1 }

    it "dies when a frame's time is over: on_dead, no ack, EOF after the torn frame, nothing more (invariants 3, 4, 5)" do
      pump.start
      stalled, healthy = browser, browser
      post(stalled, envelope(1), envelope(2, "x" * OutboundPumpHelper::LARGE), envelope(3), deadline_ms: 30)
      post(healthy, envelope(1))
      expect(pop(acks).connection).to be(healthy.connection)
      expect(pop(dead)).to be(stalled.connection)
      expect(stalled.connection).to be_dead
      expect(stalled.connection.last_msg_id_sent).to eq(1)
      post(stalled, envelope(4))
      seen = stalled.read_to_eof
      expect(seen).to start_with(frame(1))
      expect(frame(1) + frame(2, "x" * OutboundPumpHelper::LARGE)).to start_with(seen)
      pump.stop
      expect([acks, dead]).to all(be_empty)
      expect(pump.stats).to include(dead: 1, waiting: 0)
    end

    it "loses its oldest waiting jobs when they exceed the limit, never the one under way" do
      allow(self).to receive(:buffer_limit).and_return(2)
      pump.start
      b = browser
      large = stall(b)
      (2..9).each { |id| post(b, envelope(id)) }
      expect(pump.stats).to include(dropped: 6, waiting: 3)
      expected = large + frame(8) + frame(9)
      expect(b.read(expected.bytesize)).to eq(expected)
      wait_until { log.string.scan(/dropped \d+ job\(s\) under buffer_limit=2 \(connection #{b.connection.id}\)/).size == 3 }
      expect(log.string.scan(/dropped (\d+)/).flatten).to eq(%w[1 2 4])
      pump.stop
      expect(Array.new(acks.size) { acks.pop.accepted_max }).to eq([1, 8, 9])
    end

    it "is disconnected instead if the app chose so, and can replay from its true cursor (invariant 3)" do
      PgbusNative.configure { |c| c.pump_overflow = :disconnect }
      overflowing = build_pump(buffer_limit: 2)
      b = browser
      3.times { |i| overflowing.post(b.connection, [envelope(i + 1)], i + 1, deadline_ms: 1000) }
      expect(b.read_to_eof).to eq("")
      overflowing.start
      expect(pop(dead)).to be(b.connection)
      expect(b.connection.last_msg_id_sent).to eq(0)
      overflowing.stop
      expect([acks, dead]).to all(be_empty)
      expect(overflowing.stats).to include(waiting: 0, connections: 0)
    ensure
      PgbusNative.configure { |c| c.pump_overflow = :drop_oldest }
    end
  end

  describe "#start and #stop" do
    it "keeps what is posted before the start, and after a stop, for the next start" do
      b = browser
      post(b, envelope(1))
      expect(pump.start).to be(pump)
      expect(pump.start).to be(pump)
      expect(pop(acks).accepted_max).to eq(1)
      expect(pump.stop).to be(pump)
      post(b, envelope(2))
      expect(acks).to be_empty
      pump.start
      expect(pop(acks).accepted_max).to eq(2)
    end

    it "flushes and reports everything before stop returns, and leaves no thread" do
      pump.start
      browsers = Array.new(50) { browser }
      browsers.each { |b| 20.times { |i| post(b, envelope(i + 1)) } }
      expect(pump).to be_alive
      expect(pump.worker_threads).to all(be_alive)
      pump.stop
      expect(acks.size).to eq(1000)
      expect([pump.alive?, pump.worker_threads, pump.threads]).to eq([false, [], []])
      expect(pump.stop).to be(pump)
    end

    it "with a stalled client flushes the others first, returns within 5 s a thread, warns, and ends later" do
      allow(self).to receive(:threads).and_return(1)
      pump.start
      stalled, healthy = browser, browser
      large = stall(stalled)
      20.times { |i| post(healthy, envelope(i + 1)) }
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      pump.stop
      expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - began).to be_between(4.9, 9)
      expect(log.string.scan("writer thread did not drain within 5s").size).to eq(1)
      expect(acks.size).to eq(20)
      expect(pump).to be_alive
      stalled.read(large.bytesize)
      expect(pop(acks).connection).to be(healthy.connection)
      wait_until { !pump.alive? }
      expect(Array.new(acks.size) { acks.pop }.last.connection).to be(stalled.connection)
    end
  end

  describe "PgbusNative::Service" do
    it "says what the pumps of the process do, with figures, and in a forked child that there is none (invariant 20)" do
      pump.start
      b = browser
      post(b, envelope(1), envelope(2))
      pop(acks)
      service = PgbusNative::Service.of(:OutboundPump)
      expect(service.state).to eq(:serving)
      expect(service.text).to match(/\Aserving [1-9]\d* browsers?, \d+ frames written/)
      reader, writer = IO.pipe
      pid = fork do
        writer.write(PgbusNative::Service.of(:OutboundPump).text)
        writer.close
        exit!(0)
      end
      writer.close
      expect(reader.read).to eq("waiting for a first browser")
      Process.wait(pid)
    end
  end

  describe "#threads" do
    it "has an entry for each writer, which can be asked and waited for after a stop, as pgbus's shutdown does" do
      expect(pump.threads).to be_empty
      pump.start
      writers = pump.threads
      expect(writers.map(&:name)).to eq(%w[pgbus-writer-0 pgbus-writer-1])
      expect(writers).to all(be_alive)
      expect(writers.first.join(0.01)).to be_nil
      pump.stop
      expect(writers.map(&:alive?)).to eq([false, false])
      expect(writers.map { |writer| writer.join(1) }).to eq(writers)
      expect(pump.threads).to be_empty
    end

    it "shows which writer did not end, as long as it has something to write" do
      pump.start
      b = browser
      stall(b)
      writers = pump.threads
      stopper = Thread.new { pump.stop }
      wait_until { writers.one?(&:alive?) }
      expect(writers.find(&:alive?).inspect).to match(/WriterThread pgbus-writer-\d run>/)
      b.connection.mark_dead!
      stopper.join
    end
  end

  describe "ActiveSupport::Notifications" do
    it "hears of deaths and overflows" do
      begin
        require "active_support"
        require "active_support/notifications"
      rescue LoadError
        skip "activesupport isn't installed"
      end
      events = Queue.new
      subscriber = ActiveSupport::Notifications.subscribe(/pgbus_native\z/) { |name, *, payload| events << [name, payload] }
      allow(self).to receive(:buffer_limit).and_return(1)
      b = browser
      2.times { |i| post(b, envelope(i + 1)) }
      b.socket.close
      pump.start
      expect(pop(events)).to eq(["overflow.pgbus_native", { pump:, connection: b.connection, dropped: 1, policy: :drop_oldest }])
      expect(pop(events)).to eq(["dead.pgbus_native", { pump:, connection: b.connection }])
    ensure
      ActiveSupport::Notifications.unsubscribe(subscriber) if subscriber
    end
  end

  describe "#stats" do
    it "counts what happened" do
      pump.start
      b = browser
      post(b, envelope(1), envelope(2))
      pop(acks)
      expect(pump.stats).to eq(posted: 2, written: 2, bytes: (frame(1) + frame(2)).bytesize, dropped: 0, dead: 0, acks: 1,
                               waiting: 0, connections: 1, writes: 1, native_frames: 2, ruby_frames: 0,
                               callback_failures: 0, thread_restarts: 0)
      b.connection.close
      expect(pump.stats[:connections]).to eq(0)
    end
  end
end
