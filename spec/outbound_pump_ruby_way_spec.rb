# frozen_string_literal: true

require_relative "outbound_pump_helper"
require "openssl"

RSpec.describe PgbusNative::OutboundPump, "the Ruby way" do
  include OutboundPumpHelper

  # A connection that is none of pgbus's; its writes wait at the gate.
  let(:double_class) do
    Class.new do
      attr_reader :id, :written, :threads
      attr_accessor :last_msg_id_sent, :gate, :failure

      def initialize(id)
        @id = id
        @written = []
        @threads = []
        @last_msg_id_sent = 0
      end

      def enqueue(envelopes, deadline_ms:)
        @threads << Thread.current
        @gate&.pop
        raise failure if failure

        @deadline_ms = deadline_ms
        @written.concat(envelopes.map(&:msg_id))
        envelopes
      end

      def dead? = @dead
      def mark_dead! = @dead = true
    end
  end

  def post_to(connection, *ids) = pump.post(connection, ids.map { |id| envelope(id) }, ids.max, deadline_ms: 100)

  it "calls the connection's own enqueue, one connection's jobs in order on one thread" do
    pump.start
    connections = Array.new(4) { |i| double_class.new("d#{i}") }
    10.times { |i| connections.each { |c| post_to(c, i + 1) } }
    40.times { expect(pop(acks).connection).to be_a(double_class) }
    expect(connections.map(&:written)).to all(eq((1..10).to_a))
    expect(connections.map { |c| c.threads.uniq.size }).to all(eq(1))
    expect(connections.flat_map(&:threads)).not_to include(Thread.current)
    pump.stop
    expect(pump).not_to be_alive
  end

  it "acknowledges as the native way does" do
    pump.start
    connection = double_class.new("a")
    pump.post(connection, [], 12, deadline_ms: 100)
    connection.last_msg_id_sent = 3
    post_to(connection, 7)
    expect([pop(acks), pop(acks)].map(&:accepted_max)).to eq([12, 7])
  end

  it "refuses a negative msg_id" do
    expect { post_to(double_class.new("a"), 1, -1) }.to raise_error(ArgumentError, /ephemeral/)
  end

  it "reads the array at once" do
    connection = double_class.new("a")
    list = [envelope(1)]
    pump.post(connection, list, 1, deadline_ms: 100)
    list.clear
    pump.start
    expect(pop(acks).accepted_max).to eq(1)
  end

  it "survives an enqueue that raises: logged, dead, on_dead once; no other connection suffers (invariants 4, 5)" do
    pump.start
    bad, good = double_class.new("bad"), browser
    bad.failure = IOError.new("broken")
    post_to(bad, 1)
    post_to(bad, 2)
    post(good, envelope(1))
    expect(pop(dead)).to be(bad)
    expect(pop(acks).connection).to be(good.connection)
    pump.stop
    expect(dead).to be_empty
    expect(log.string).to include("write failed for bad: IOError: broken")
  end

  it "a slow enqueue delays no native connection (invariant 5)" do
    allow(self).to receive(:threads).and_return(1)
    pump.start
    slow, fast = double_class.new("slow"), browser
    slow.gate = Queue.new
    post_to(slow, 1)
    post(fast, envelope(1))
    expect(pop(acks).connection).to be(fast.connection)
    slow.gate.close
    expect(pop(acks).connection).to be(slow)
  end

  it "drops the oldest waiting jobs above the limit, and says so" do
    allow(self).to receive(:buffer_limit).and_return(2)
    pump.start
    slow = double_class.new("slow")
    slow.gate = Queue.new
    post_to(slow, 1)
    wait_until { slow.threads.any? }
    (2..6).each { |id| post_to(slow, id) }
    slow.gate.close
    pump.stop
    expect(slow.written).to eq([1, 5, 6])
    expect(log.string.scan(/dropped (\d+)/).flatten).to eq(%w[1 2])
  end

  it "ends the connection above the limit if the app chose so, and reports it once" do
    PgbusNative.configure { |c| c.pump_overflow = :disconnect }
    allow(self).to receive(:buffer_limit).and_return(1)
    pump.start
    slow = double_class.new("slow")
    slow.gate = Queue.new
    post_to(slow, 1)
    wait_until { slow.threads.any? }
    (2..4).each { |id| post_to(slow, id) }
    slow.gate.close
    expect(pop(dead)).to be(slow)
    pump.stop
    expect(dead).to be_empty
    expect(slow.written).to eq([1])
  ensure
    PgbusNative.configure { |c| c.pump_overflow = :drop_oldest }
  end

  {
    "above the limit" => [1, ->(connection) { post_to(connection, 2) }],
    "of a write that failed" => [1, ->(connection) { connection.failure = IOError.new("broken") }],
    "by somebody else's hand" => [0, ->(connection) { connection.mark_dead! }]
  }.each do |how, (reports, die)|
    it "takes nothing more for a connection that died #{how}, and does not report it again (invariant 4)" do
      PgbusNative.configure { |c| c.pump_overflow = :disconnect }
      allow(self).to receive_messages(threads: 1, buffer_limit: 1)
      pump.start
      slow, connection = double_class.new("slow"), double_class.new("a")
      slow.gate = Queue.new
      post_to(slow, 1)
      wait_until { slow.gate.num_waiting == 1 }
      post_to(connection, 1)
      instance_exec(connection, &die)
      slow.gate << :go
      wait_until { pump.stats[:waiting].zero? && connection.dead? && dead.size == reports }
      post_to(slow, 2)
      wait_until { slow.gate.num_waiting == 1 }
      (3..6).each { |id| post_to(connection, id) }
      slow.gate.close
      pump.stop
      expect(dead.size).to eq(reports)
      expect(pump.stats).to include(dead: reports, waiting: 0)
      expect(connection.written).to be_empty
    ensure
      PgbusNative.configure { |c| c.pump_overflow = :drop_oldest }
    end
  end

  it "a forked child posts nothing, and writes nothing of what its parent has to write (invariant 11)" do
    allow(self).to receive(:threads).and_return(1)
    pump.start
    reader, writer = IO.pipe
    slow, waiting = Array.new(2) { |i| double_class.new("d#{i}") }
    [slow, waiting].each do |connection|
      connection.gate = Queue.new
      connection.define_singleton_method(:enqueue) do |envelopes, deadline_ms:|
        super(envelopes, deadline_ms:).each { |envelope| writer.write("#{envelope.msg_id};") }
      end
    end
    post_to(slow, 1)
    wait_until { slow.gate.num_waiting == 1 }
    post_to(waiting, 2)
    pid = fork do
      [slow, waiting].each { |connection| connection.gate.close }
      [slow, waiting].each { |connection| post_to(connection, 3) }
      exit!(pump.worker_threads.each { |thread| thread.join(5) }.size)
    end
    Process.wait(pid)
    expect($?.exitstatus).to eq(0)
    [slow, waiting].each { |connection| connection.gate.close }
    2.times { pop(acks) }
    writer.close
    expect(reader.read).to eq("1;2;")
  end

  it "is taken by a Connection of a class that overrides enqueue, and by one that got methods of its own" do
    pump.start
    calls = Queue.new
    overriding = Class.new(OutboundPumpHelper::Streamer::Connection) do
      define_method(:enqueue) { |envelopes, deadline_ms:| calls << :class; super(envelopes, deadline_ms:) }
    end
    one, two = browser(klass: overriding), browser
    two.connection.define_singleton_method(:enqueue) { |list, deadline_ms:| calls << :singleton; super(list, deadline_ms:) }
    [one, two].each { |b| post(b, envelope(1)) }
    [one, two].each { |b| expect(b.read(frame(1).bytesize)).to eq(frame(1)) }
    expect([pop(calls), pop(calls)]).to match_array(%i[class singleton])
    expect([one, two].map { |b| b.connection.native_outlet }).to eq([nil, nil])
  end

  it "keeps a connection's order when it changes ways, both times (invariant 2)" do
    pump.start
    b = browser
    large = stall(b)
    b.connection.define_singleton_method(:enqueue) { |list, deadline_ms:| super(list, deadline_ms:) }
    post(b, envelope(2))
    post(b, envelope(3))
    expected = large + frame(2) + frame(3)
    expect(b.read(expected.bytesize)).to eq(expected)
    expect(Array.new(3) { pop(acks).accepted_max }).to eq([1, 2, 3])
    expect(pump.stats).to include(native_frames: 3, ruby_frames: 0, posted: 3, acks: 3)
  end

  it "counts once what pgbus posts again while it waits, and drops none of it (invariant 12)" do
    allow(self).to receive(:buffer_limit).and_return(2)
    pump.start
    slow = double_class.new("slow")
    slow.gate = Queue.new
    post_to(slow, 1)
    wait_until { slow.threads.any? }
    (2..5).each { |last| post_to(slow, *2..last) }
    expect(pump.stats).to include(dropped: 0, waiting: 4)
    slow.gate.close
    pump.stop
    expect(slow.written).to eq((1..5).to_a)
  end

  it "under GC.stress and compaction loses and mixes up nothing, drops included" do
    allow(self).to receive(:buffer_limit).and_return(3)
    connections = Array.new(3) { |i| double_class.new("d#{i}") }
    GC.stress = true
    connections.each { |connection| (1..6).each { |id| post_to(connection, id) } }
    GC.stress = false
    GC.compact if GC.respond_to?(:compact)
    pump.start
    9.times { pop(acks) }
    expect(connections.map(&:written)).to all(eq([4, 5, 6]))
  ensure
    GC.stress = false
  end

  it "goes on for a connection that somebody ends while it changes ways" do
    pump.start
    b = browser
    stall(b)
    b.connection.define_singleton_method(:enqueue) { |list, deadline_ms:| super(list, deadline_ms:) }
    post(b, envelope(2))
    b.connection.mark_dead!
    pump.stop
    expect(pump).not_to be_alive
    expect([acks, dead]).to all(be_empty)
  end

  it "serves a TLS socket" do
    key = OpenSSL::PKey::EC.generate("prime256v1")
    certificate = OpenSSL::X509::Certificate.new.tap do |c|
      c.subject = c.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
      c.not_before, c.not_after = Time.now - 60, Time.now + 3600
      c.public_key = key
      c.serial = 1
      c.sign(key, "SHA256")
    end
    context = OpenSSL::SSL::SSLContext.new.tap { |c| c.add_certificate(certificate, key) }
    server, client = tcp_pair
    accepting = Thread.new { OpenSSL::SSL::SSLSocket.new(server, context).accept }
    tls_client = OpenSSL::SSL::SSLSocket.new(client).connect
    b = browser(sockets: [accepting.value, tls_client])
    pump.start
    post(b, envelope(1))
    expect(b.read(frame(1).bytesize)).to eq(frame(1))
    expect(pump.stats).to include(native_frames: 0, ruby_frames: 1)
  end
end
