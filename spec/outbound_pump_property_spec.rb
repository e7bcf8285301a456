# frozen_string_literal: true

require_relative "outbound_pump_helper"

# Everything that hands something over to one connection, at random and at once, against one client that reads as it
# likes.
RSpec.describe PgbusNative::OutboundPump, "with Ruby code that writes to the same connection" do
  include OutboundPumpHelper

  let(:threads) { 1 }

  # Reads to EOF in the manner of `kind`.
  def read_as(kind, socket, random)
    seen = +""
    loop do
      case kind
      when :slow then sleep(random.rand * 0.002)
      when :bursts then sleep(0.02) if random.rand < 0.05
      end
      seen << socket.readpartial(kind == :byte ? 1 : random.rand(1..20_000))
    end
  rescue EOFError, Errno::ECONNRESET
    seen
  end

  def paced(random) = random.rand < 0.2 ? sleep(random.rand * 0.002) : Thread.pass

  seeds = Array.new(4) { RSpec.configuration.seed + _1 }
  %i[slow bursts byte].product(%i[unix tcp], seeds).each do |kind, family, seed|
    it "a client that reads #{kind} (#{family}, seed #{seed}) sees whole frames, in order, none twice (invariants 2, 3)" do
      random = Random.new(seed)
      b = native_browser(sockets: family == :tcp ? tcp_pair : UNIXSocket.pair)
      connection = b.connection
      payload = ->(id) { "#{id} #{"z" * ((id * 7919) % (kind == :byte ? 60 : 9000))}\nline" }
      pump.start
      reader = Thread.new { read_as(kind, b.socket, Random.new(seed)) }

      heartbeat = Thread.new do
        dice = Random.new(seed + 1)
        until connection.dead?
          connection.write_comment("heartbeat #{dice.rand(1000)}")
          sleep 0.001
        end
      end
      ephemeral = Thread.new do
        dice = Random.new(seed + 2)
        (1..60).each do |i|
          connection.enqueue([envelope(-i, "ephemeral #{i}")], deadline_ms: 20_000)
          paced(dice)
        end
      end

      # The dispatcher: posts what is new, and some of the last again; or replays inline what is past the cursor.
      last = 0
      60.times do
        upto = last + random.rand(0..4)
        replay = random.rand < 0.15
        first = replay ? connection.last_msg_id_sent + 1 : [last - random.rand(0..3), 1].max
        window = (first..upto).map { |id| envelope(id, payload[id]) }
        if replay
          connection.enqueue(window, deadline_ms: 20_000)
        else
          pump.post(connection, window, upto, deadline_ms: 20_000)
        end
        last = upto
        paced(random)
      end
      ephemeral.join
      pump.stop if random.rand < 0.5
      pump.farewell do
        connection.write_sentinel(frame(0, '{"reason":"worker_restart"}', event: "pgbus:shutdown"))
        connection.close
      end
      heartbeat.join

      frames = reader.value.split("\n\n", -1)
      expect(frames.pop.to_s).to eq("")
      allowed = /\A(: heartbeat \d+|(id: \d+\n)?event: (turbo-stream|pgbus:shutdown)\ndata: .*(\ndata: line)?)\z/
      expect(frames).to all(match(allowed))
      durable = frames.filter_map { |text| text[/\Aid: (\d+)$/, 1]&.to_i }
      expect(durable).to eq((1..last).to_a)
      expect(connection.last_msg_id_sent).to eq(last)
      durable.each { |id| expect(frames).to include(frame(id, payload[id]).chomp.chomp) }
      expect(frames.filter_map { |text| text[/^data: ephemeral (\d+)$/, 1]&.to_i }).to eq((1..60).to_a)
      expect(frames.last).to include("worker_restart")
      expect(dead).to be_empty
    end
  end
end
