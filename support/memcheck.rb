# frozen_string_literal: true

# What `rake memcheck` runs under valgrind: the life of a hub and of a pump, several times over, with everything that
# allocates on the way: subs, wakes, acks, frames, drops, deaths, exceptions, compaction, a fork.
require "standin"
require "tmpdir"
require "pgbus_native"

Streamer = Pgbus::Web::Streamer
Pgbus.configuration.logger = Logger.new(IO::NULL)
PgbusNative::ConnectionPatch.install(Streamer::Connection)
Envelope = Data.define(:msg_id, :payload)
Listener = Struct.new(:wakes) do
  def ensure_listening(queue) = wakes << Streamer::Listener::WakeMessage.new(queue_name: queue)
  def remove_listening(_queue) = nil
  def stop = nil
  def alive? = true
  def connected? = true
end

def pop(queue) = queue.pop(timeout: 120) || raise("nothing came")

def hub_lives(folder)
  hub = PgbusNative::MasterHub.new(config: Pgbus.configuration, socket_path: "#{folder}/hub.sock",
                                   listener_factory: ->(dispatch_queue:) { Listener.new(dispatch_queue) }).start
  client = Streamer::HubClient.new(socket_path: hub.socket_path, dispatch_queue: wakes = Queue.new, ack_timeout: 120).connect
  20.times { |n| client.ensure_listening("q#{n}") }
  20.times { pop(wakes) }
  Process.wait(fork { hub.stop })
  client.stop
  hub.stats
  hub.stop
end

def pump_lives
  pump = PgbusNative::OutboundPump.new(threads: 2, ack_queue: acks = Queue.new, on_dead: (dead = Queue.new).method(:<<),
                                       buffer_limit: 4).start
  browsers = Array.new(10) do |n|
    ours, browser = UNIXSocket.pair
    [Streamer::Connection.new(id: "c#{n}", stream_name: "q", io: ours, since_id: 0, writer: Streamer::IoWriter, write_deadline_ms: 60_000), browser]
  end
  browsers.each { |connection, _| pump.post(connection, [Envelope.new(1, "x" * 1_000), Envelope.new(2, "y")], 2, deadline_ms: 60_000) }
  10.times { pop(acks) }
  GC.compact
  browsers.each { |_, browser| browser.close }
  browsers.each { |connection, _| pump.post(connection, [Envelope.new(3, "z")], 3, deadline_ms: 60_000) }
  10.times { pop(dead) }
  begin
    pump.post(browsers.first.first, [Envelope.new(-1, "")], 1, deadline_ms: 1)
  rescue ArgumentError
    nil
  end
  pump.stop
end

Dir.mktmpdir do |folder|
  3.times do
    hub_lives(folder)
    pump_lives
    GC.start
  end
end
