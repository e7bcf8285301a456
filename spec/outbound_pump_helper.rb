# frozen_string_literal: true

require "spec_helper"
require "logger"
require "socket"
require "stringio"
require "timeout"

# Connections of pgbus on real sockets, a pump over them, and what came of it.
module OutboundPumpHelper
  Streamer = Pgbus::Web::Streamer
  Envelope = Data.define(:msg_id, :payload)
  TypedEnvelope = Data.define(:msg_id, :payload, :event)
  Browser = Struct.new(:connection, :socket) do
    def read(bytes) = Timeout.timeout(10) { socket.read(bytes) }
    def read_to_eof = Timeout.timeout(10) { socket.read }
  end

  # More than any socket takes at once.
  LARGE = 8 << 20

  PgbusNative::ConnectionPatch.install(Streamer::Connection)

  def self.included(group)
    group.let(:acks) { Queue.new }
    group.let(:dead) { Queue.new }
    group.let(:log) { StringIO.new }
    group.let(:logger) { Logger.new(log) }
    group.let(:buffer_limit) { 0 }
    group.let(:threads) { 2 }
    group.let(:pump) { build_pump }
    group.after { pump.stop }
  end

  def build_pump(**options)
    PgbusNative::OutboundPump.new(threads:, ack_queue: acks, on_dead: dead.method(:<<), buffer_limit:, logger:, **options)
  end

  # A browser and the connection to it.
  def browser(id = "c#{object_id}", since_id: 0, sockets: UNIXSocket.pair, klass: Streamer::Connection)
    server, client = sockets
    connection = klass.new(id:, stream_name: "s", io: server, since_id:, writer: Streamer::IoWriter, write_deadline_ms: 5000)
    Browser.new(connection, client).tap { |browser| (@browsers ||= []) << browser }
  end

  # Those that were made so far are garbage as soon as the example has none of them. Until then they are kept, as a
  # worker's registry keeps them.
  def forget_browsers = @browsers.clear

  def tcp_pair
    TCPServer.open("127.0.0.1", 0) do |server|
      client = TCPSocket.new("127.0.0.1", server.addr[1])
      [server.accept, client]
    end
  end

  def envelope(msg_id, payload = "p#{msg_id}") = Envelope.new(msg_id, payload)

  # The frame as pgbus makes it.
  def frame(msg_id, payload = "p#{msg_id}", event: "turbo-stream")
    Pgbus::Streams::Envelope.message(id: msg_id, event:, data: payload)
  end

  def post(browser, *envelopes, batch_max: envelopes.map(&:msg_id).max, deadline_ms: 5000)
    pump.post(browser.connection, envelopes, batch_max, deadline_ms:)
  end

  # A browser whose connection the pump took in, as a worker's streamer does when it registers one.
  def native_browser(...)
    browser(...).tap { |b| expect(pump.adopt(b.connection)).to be(true) }
  end

  # Posts a frame that can't be written at once; returns its bytes when it is partly in the socket.
  def stall(browser, msg_id: 1, deadline_ms: 60_000)
    post(browser, envelope(msg_id, "x" * LARGE), deadline_ms:)
    wait_until { pump.stats[:bytes].positive? }
    frame(msg_id, "x" * LARGE)
  end

  def pop(queue) = queue.pop(timeout: 10) || raise("nothing came within 10 s")

  def wait_until(seconds = 10)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    until yield
      raise "not within #{seconds} s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

      Thread.pass
      sleep 0.001
    end
  end
end
