# frozen_string_literal: true

require_relative "outbound_pump_helper"

# What Ruby code that knows pgbus's `Connection` sees of one that a native pump has taken in.
RSpec.describe PgbusNative::ConnectionPatch do
  include OutboundPumpHelper

  describe "a connection that a pump has taken in" do
    before { pump.start }

    it "hands over whatever is written to it, in the order of the calls, and waits for nothing (invariants 2, 5, 16)" do
      b = native_browser
      large = stall(b)
      connection = b.connection
      expect(connection.enqueue([envelope(2), envelope(-1, "e"), envelope(3)])).to eq([envelope(2), envelope(-1, "e"), envelope(3)])
      expect([connection.write_comment("beat"), connection.write_sentinel("event: x\n\n")]).to eq(%i[ok ok])
      post(b, envelope(4))
      connection.close
      expect(connection.last_msg_id_sent).to eq(0)
      expect(b.read_to_eof).to eq("#{large}#{frame(2)}event: turbo-stream\ndata: e\n\n#{frame(3)}: beat\n\nevent: x\n\n#{frame(4)}")
      expect(connection.last_msg_id_sent).to eq(4)
      expect(dead).to be_empty
    end

    it "carries an id only where it is a durable position, so that a browser comes back from where it was (invariant 18)" do
      b = native_browser
      b.connection.enqueue([envelope(7), envelope(-3, "id: 5")])
      b.connection.write_sentinel(frame(0, "bye", event: "pgbus:shutdown"))
      b.connection.close
      expect(b.read_to_eof.scan(/^id: .*$/)).to eq(["id: 7"])
    end

    it "takes what the browser lacks, and nothing twice (invariant 2)" do
      b = native_browser(since_id: 2)
      expect(b.connection.enqueue([envelope(1), envelope(2), envelope(3)])).to eq([envelope(3)])
      post(b, envelope(3), envelope(4))
      expect(b.connection.enqueue([envelope(4)])).to be_empty
      b.connection.close
      expect(b.read_to_eof).to eq(frame(3) + frame(4))
    end

    it "reports a death that an inline write met, and says so to who writes next (invariant 4)" do
      b = native_browser
      b.socket.close
      b.connection.enqueue([envelope(-1)])
      expect(pop(dead)).to be(b.connection)
      expect(b.connection).to be_dead
      expect([b.connection.write_comment("late"), b.connection.enqueue([envelope(-2)])]).to eq([:closed, []])
      pump.stop
      expect(dead).to be_empty
    end

    it "gives up a browser for which too much waits that can't be read again (invariants 12, 17)" do
      b = native_browser
      stall(b)
      1100.times { |i| b.connection.enqueue([envelope(-i - 1)]) }
      expect(pop(dead)).to be(b.connection)
      wait_until { log.string.include?("it is disconnected: its client does not read") }
    end

    it "a fan-out's short deadline does not end a browser that its own deadline spares; one of somebody else's does" do
      short = Pgbus.configuration.streams_fanout_write_deadline_ms
      patient, impatient = native_browser("patient"), native_browser("impatient")
      [patient, impatient].each { |b| post(b, envelope(1, "x" * OutboundPumpHelper::LARGE), deadline_ms: b == patient ? short : short + 1) }
      expect(pop(dead)).to be(impatient.connection)
      expect(patient.connection).not_to be_dead
    end

    it "closes a browser that doesn't read after its deadline, without a report: it was closed on purpose" do
      server, client = UNIXSocket.pair
      connection = OutboundPumpHelper::Streamer::Connection.new(
        id: "short", stream_name: "s", io: server, since_id: 0, writer: OutboundPumpHelper::Streamer::IoWriter, write_deadline_ms: 50
      )
      pump.adopt(connection)
      connection.enqueue([envelope(1, "x" * OutboundPumpHelper::LARGE)])
      connection.close
      wait_until { pump.stats[:connections].zero? }
      expect(client.read.bytesize).to be < OutboundPumpHelper::LARGE
      pump.stop
      expect(dead).to be_empty
    end
  end

  describe "a farewell" do
    it "is written to all at the same time: those who read see EOF while others stall (invariant 5)" do
      pump.start
      stalled, healthy = Array.new(2) { |n| Array.new(10) { |i| native_browser("#{n}-#{i}") } }
      stalled.each { |b| b.connection.enqueue([envelope(1, "x" * OutboundPumpHelper::LARGE)], deadline_ms: 60_000) }
      leaving = Thread.new do
        pump.farewell do
          [*stalled, *healthy].each do |b|
            b.connection.write_sentinel(frame(0, "bye", event: "pgbus:shutdown"))
            b.connection.close
          end
        end
      end
      expect(healthy.map(&:read_to_eof)).to all(eq("event: pgbus:shutdown\ndata: bye\n\n"))
      expect(pump.stats[:connections]).to eq(10)
      stalled.each { |b| b.socket.close }
      expect(leaving.join(10)).to be(leaving)
      expect(pump).not_to be_alive
    end
  end

  describe "its socket" do
    before { pump.start }

    it "answers what it answered" do
      b = native_browser(sockets: tcp_pair)
      io = b.connection.io
      expect(io).to be_a(TCPSocket)
      expect([io.closed?, io.remote_address.ip_port, io.fileno]).to match([false, b.socket.local_address.ip_port, be_positive])
      expect(b.connection.mutex).to be_an_instance_of(Thread::Mutex)
    end

    it "hands over what is written to it, whole and in order (invariants 2, 16)" do
      b = native_browser
      large = stall(b)
      io = b.connection.io
      expect([io.write("a", :b), io.write_nonblock("c"), io.syswrite("d"), io.send("e", 0)]).to eq([2, 1, 1, 1])
      (io << "f").print("g")
      io.close
      expect(b.read_to_eof).to eq("#{large}abcdefg")
      expect { io.write("late") }.to raise_error(IOError)
    end

    it "is the only descriptor (invariant 16), and gives its number back when the browser is gone" do
      count = -> { Dir.children("/dev/fd").size }
      b = browser
      before = count.call
      pump.adopt(b.connection)
      expect(count.call).to eq(before)
      number = b.connection.io.fileno
      b.socket.close
      b.connection.write_comment("beat")
      expect(pop(dead)).to be(b.connection)
      wait_until { b.connection.io.closed? && !File.exist?("/dev/fd/#{number}") }
    end

    it "is closed when nobody has the connection any more, after what was handed over is out" do
      clients = []
      lambda do
        20.times do |i|
          b = native_browser("c#{i}")
          b.connection.enqueue([envelope(1)])
          clients << b.socket
        end
      end.call
      forget_browsers
      expect(clients.map { |client| client.read(frame(1).bytesize) }).to all(eq(frame(1)))
      wait_until do
        GC.start
        clients.count { |client| client.read_nonblock(1, exception: false).nil? } >= 18 # a stack may still show one
      end
    end
  end

  describe "which connections" do
    def taken?(browser) = pump.adopt(browser.connection)

    it "takes an unmodified one on a plain socket, once" do
      b = browser
      expect([taken?(b), taken?(b), pump.stats[:connections]]).to eq([true, true, 1])
    end

    it "leaves one alone whose client claims a Last-Event-ID of more than 64 bits" do
      b = browser(since_id: 2**70)
      expect([taken?(b), b.connection.last_msg_id_sent]).to eq([false, 2**70])
    end

    it "leaves one alone that a Ruby thread writes to at this moment" do
      b = browser
      b.connection.mutex.synchronize { expect(taken?(b)).to be(false) }
      expect(taken?(b)).to be(true)
    end

    it "leaves one alone that is dead, closed, or has methods of its own" do
      dead_one, closed, own = browser, browser, browser
      dead_one.connection.mark_dead!
      closed.connection.io.close
      own.connection.define_singleton_method(:enqueue) { |*, **| [] }
      expect([dead_one, closed, own].map { |b| taken?(b) }).to eq([false, false, false])
    end

    it "takes none after it was taken back; those that were taken stay" do
      before = native_browser
      described_class.uninstall
      expect([before.connection.native_outlet.nil?, taken?(browser)]).to eq([false, false])
    ensure
      described_class.install(OutboundPumpHelper::Streamer::Connection)
      expect(taken?(browser)).to be(true)
    end

    it "takes none whose class got another method in the meantime" do
      connection_class = OutboundPumpHelper::Streamer::Connection
      original = connection_class.instance_method(:mark_dead!).super_method
      silently { connection_class.define_method(:mark_dead!) { original.bind_call(self) } }
      expect(taken?(browser)).to be(false)
    ensure
      silently { connection_class.define_method(:mark_dead!, original) }
      expect(taken?(browser)).to be(true)
    end

    def silently
      verbose, $VERBOSE = $VERBOSE, nil
      yield
    ensure
      $VERBOSE = verbose
    end
  end
end
