# frozen_string_literal: true

# What `rake memcheck` runs under valgrind: the life of a hub, of a pump and of a streamer with its feed, several times
# over, with everything that allocates on the way: subs, wakes, acks, frames, drops, deaths, exceptions, compaction, a fork,
# native sessions, with TLS and without.
require "standin"
require "openssl"
require "private_postgres"
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

# A connection of the Ruby way.
class Elsewhere
  attr_reader :id, :written, :last_msg_id_sent

  def initialize(id)
    @id = id
    @written = []
    @last_msg_id_sent = 0
  end

  def enqueue(envelopes, deadline_ms:) = envelopes.each { |envelope| @written << [envelope.msg_id, deadline_ms] }
  def dead? = @dead
  def mark_dead! = @dead = true
end

def ruby_way_lives
  pump = PgbusNative::OutboundPump.new(threads: 1, ack_queue: acks = Queue.new, on_dead: ->(_) {}, buffer_limit: 2)
  connections = Array.new(3) { |n| Elsewhere.new("r#{n}") }
  connections.each { |connection| 5.times { |n| pump.post(connection, [Envelope.new(n + 1, "x" * n)], n + 1, deadline_ms: 60_000) } }
  GC.compact
  pump.start
  6.times { pop(acks) } # the others were dropped
  pump.stop
end

# A worker's streamer on a database: LISTEN and reads, frames to a browser, its farewell.
def streamer_lives(url)
  Pgbus.configuration.database_url = url
  stream = "memory#{rand(1_000_000)}"
  Pgbus.client.ensure_stream_queue(stream)
  streamer = Streamer::Instance.new.start
  ours, browser = UNIXSocket.pair
  streamer.register(Streamer::Connection.new(id: stream, stream_name: stream, io: ours, since_id: 0,
                                             writer: Streamer::IoWriter, write_deadline_ms: 60_000))
  seen = +""
  3.times do |n|
    Pgbus.client.broadcast_durable(stream, { "html" => "message #{n}" })
    seen << browser.readpartial(4096) until seen.include?("message #{n}")
  end
  streamer.shutdown!
end

# As PostgreSQL wants them: owned by it, and read by nobody else.
def certificate_in(folder)
  key = OpenSSL::PKey::RSA.new(2048)
  certificate = OpenSSL::X509::Certificate.new
  certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
  certificate.not_before, certificate.not_after = Time.now - 60, Time.now + 3600
  certificate.public_key = key
  certificate.serial = 1
  certificate.sign(key, "SHA256")
  { "server.crt" => certificate, "server.key" => key }.each { |name, pem| File.write("#{folder}/#{name}", pem.to_pem, perm: 0o600) }
  FileUtils.chown_R(PrivatePostgres.owner&.name, nil, folder)
  File.chmod(0o755, folder)
end

Dir.mktmpdir do |folder|
  certificates = "#{folder}/certificates"
  Dir.mkdir(certificates)
  File.chmod(0o755, folder)
  certificate_in(certificates)
  3.times do
    hub_lives(folder)
    pump_lives
    ruby_way_lives
    GC.start
  end
  # After the forks: a child that ends would end the session of the stand-in's client.
  PrivatePostgres.run(settings: { ssl: "on", ssl_cert_file: "#{certificates}/server.crt", ssl_key_file: "#{certificates}/server.key" }) do |postgres|
    %w[disable require].cycle(2) do |mode|
      streamer_lives("#{postgres.url}?sslmode=#{mode}")
      GC.start
    end
  end
end
