# frozen_string_literal: true

require "fileutils"
require "private_postgres"
require "socket"
require "tmpdir"

# What our specs take for granted of pgbus's own classes around the two native ones. Run on the stand-in and on the real
# pgbus alike, it holds the one to the other.
RSpec.describe "pgbus, or what stands in for it" do
  streamer = Pgbus::Web::Streamer
  envelopes = Pgbus::Streams::Envelope

  def envelope(msg_id, payload: "<p>#{msg_id}</p>", event: nil)
    Pgbus::Web::Streamer::StreamEventDispatcher::StreamEnvelope.new(msg_id:, enqueued_at: nil, payload:, source: "live", event:)
  end

  def connection(io, since_id: 0)
    Pgbus::Web::Streamer::Connection.new(id: "c1", stream_name: "chat", io:, since_id:,
                                         writer: Pgbus::Web::Streamer::IoWriter, write_deadline_ms: 1_000)
  end

  describe "the bytes of a frame" do
    it "are id, event and one data line per line of the payload, whatever ends it" do
      expect(envelopes.message(id: 7, event: "turbo-stream", data: "a\nb\r\nc\rd"))
        .to eq("id: 7\nevent: turbo-stream\ndata: a\ndata: b\ndata: c\ndata: d\n\n")
    end

    {
      "an empty payload" => ["", "data: \n"],
      "a payload of nil" => [nil, "data: \n"],
      "a payload that ends in a line break" => ["a\n", "data: a\ndata: \n"],
      "a payload of line breaks alone" => ["\n\r\n", "data: \ndata: \ndata: \n"],
      "a payload that isn't ASCII" => ["é→🚲", "data: é→🚲\n"]
    }.each do |what, (data, lines)|
      it("of #{what} have its lines") { expect(envelopes.message(id: 1, event: "e", data:)).to eq("id: 1\nevent: e\n#{lines}\n") }
    end

    it "keep an event's name and a comment on one line" do
      expect(envelopes.message(id: 1, event: "a\r\nid: 9", data: "x")).to eq("id: 1\nevent: aid: 9\ndata: x\n\n")
      expect(envelopes.comment("a\nb\rc")).to eq(": abc\n\n")
    end

    it "need an id and an event" do
      expect { envelopes.message(id: nil, event: "e", data: "") }.to raise_error(ArgumentError, /id/)
      expect { envelopes.message(id: 1, event: "", data: "") }.to raise_error(ArgumentError, /event/)
    end
  end

  describe "a connection" do
    let(:sockets) { UNIXSocket.pair }
    let(:ours) { sockets[0] }
    let(:browser) { sockets[1] }

    after { sockets.each { |socket| socket.close unless socket.closed? } }

    it "writes what is above its cursor, and moves it" do
      one = connection(ours, since_id: 4)
      expect(one.enqueue([envelope(4), envelope(5, event: "reactive"), envelope(6)]).map(&:msg_id)).to eq([5, 6])
      expect(one.last_msg_id_sent).to eq(6)
      expect(browser.readpartial(4_096)).to eq("id: 5\nevent: reactive\ndata: <p>5</p>\n\n" \
                                               "id: 6\nevent: turbo-stream\ndata: <p>6</p>\n\n")
    end

    it "writes an ephemeral envelope and leaves its cursor where it is" do
      one = connection(ours, since_id: 4)
      expect(one.enqueue([envelope(-1, event: "")]).map(&:msg_id)).to eq([-1])
      expect(one.last_msg_id_sent).to eq(4)
      expect(browser.readpartial(4_096)).to eq("id: -1\nevent: turbo-stream\ndata: <p>-1</p>\n\n")
    end

    it "dies of a browser that left, its cursor before the frame that was lost" do
      one = connection(ours)
      browser.close
      expect(one.enqueue([envelope(1), envelope(2)])).to eq([])
      expect(one).to be_dead
      expect(one.last_msg_id_sent).to eq(0)
    end

    it "dies of a browser that doesn't read within the deadline" do
      one = connection(ours)
      written = one.enqueue([envelope(1), envelope(2, payload: "x" * 4_000_000)], deadline_ms: 20)
      expect(written.map(&:msg_id)).to eq([1])
      expect(one).to be_dead
      expect(one.last_msg_id_sent).to eq(1)
    end

    it "answers :ok, :closed or :blocked for a comment" do
      one = connection(ours)
      expect(one.write_comment("here")).to eq(:ok)
      expect(browser.readpartial(4_096)).to eq(": here\n\n")
      browser.close
      expect(one.write_comment("here")).to eq(:closed)
      expect(one).to be_dead
    end

    it "closes its socket once, and is dead then" do
      one = connection(ours)
      2.times { one.close }
      expect(one).to be_dead
      expect(browser.read).to eq("")
    end
  end

  describe "the hub's frames" do
    protocol = streamer::HubProtocol
    let(:pair) { UNIXSocket.pair }

    after { pair.each { |socket| socket.close unless socket.closed? } }

    def read_back(bytes)
      pair[0].write(bytes)
      pair[0].close
      Pgbus::Web::Streamer::HubProtocol.read_frame(pair[1])
    end

    it "are a big-endian length and JSON" do
      expect(protocol.encode("t" => "ack", "q" => "é")).to eq("\x00\x00\x00\x14{\"t\":\"ack\",\"q\":\"é\"}".b)
    end

    it("come back as they were") { expect(read_back(protocol.encode("t" => "wake", "p" => nil))).to eq("t" => "wake", "p" => nil) }
    it("are nil at the end, also in the middle of one") { expect(read_back("\x00\x00\x00\x09{\"t\"")).to be_nil }

    it "are refused when they are too large, not JSON, not UTF-8 or not an object" do
      ["\xFF\xFF\xFF\xFF", "\x00\x00\x00\x03nah", "\x00\x00\x00\x01\xFF", "\x00\x00\x00\x02[]"].each do |bytes|
        pair = UNIXSocket.pair
        pair[0].write(bytes.b)
        expect { protocol.read_frame(pair[1]) }.to raise_error(protocol::ProtocolError)
        pair.each(&:close)
      end
    end
  end

  describe "a hub client" do
    let(:folder) { Dir.mktmpdir }
    let(:path) { "#{folder}/hub.sock" }
    let(:queue) { Queue.new }
    let(:failures) { Queue.new }
    let(:client) { streamer::HubClient.new(socket_path: path, dispatch_queue: queue, on_failure: -> { failures << true }) }
    let!(:server) { UNIXServer.new(path) }

    after do
      client.stop
      server.close
      FileUtils.rm_rf(folder)
    end

    it "returns from ensure_listening at the ack, and turns wakes into messages" do
      hub = Thread.new do
        server.accept.tap do |worker|
          sub = streamer::HubProtocol.read_frame(worker)
          worker.write(streamer::HubProtocol.encode("t" => "wake", "q" => sub["q"], "p" => "hi"))
          worker.write(streamer::HubProtocol.encode("t" => "ack", "q" => sub["q"]))
        end
      end
      expect(client.connect.ensure_listening("q1")).to eq(:done)
      expect(queue.pop).to eq(streamer::Listener::WakeMessage.new(queue_name: "q1", payload: "hi"))
      hub.value.close
      expect(failures.pop(timeout: 10)).to be(true)
      expect(client).to be_dead
      expect { client.ensure_listening("q1") }.to raise_error(streamer::HubClient::HubUnavailableError)
    end

    it "can't connect where no hub is" do
      nowhere = streamer::HubClient.new(socket_path: "#{folder}/none", dispatch_queue: queue)
      expect { nowhere.connect }.to raise_error(streamer::HubClient::HubUnavailableError, /none/)
    end
  end

  describe "a listener" do
    around do |example|
      PrivatePostgres.run do |postgres|
        @postgres = postgres
        example.run
      end
    end

    let(:queue) { Queue.new }
    let(:connect) { -> { Pgbus::DedicatedConnection.connect(@postgres.url) } }
    let(:listener) do
      streamer::Listener.new(pg_connection: connect.call, dispatch_queue: queue, health_check_ms: 100, connection_factory: connect,
                             logger: Logger.new(IO::NULL))
    end

    before { listener.start }
    after { listener.stop }

    def wake(payload) = Pgbus::Web::Streamer::Listener::WakeMessage.new(queue_name: "pgbus_chat", payload:)
    def notify(payload) = @postgres.sql("SELECT pg_notify('pgmq.q_pgbus_chat.INSERT', '#{payload}')")

    it "hears its channels once ensure_listening has returned, under a name of its own" do
      listener.ensure_listening("pgbus_chat")
      notify("hi")
      expect(queue.pop(timeout: 10)).to eq(wake("hi"))
      expect(@postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")).to eq("1")
      expect(listener).to be_alive.and be_connected
    end

    it "hears them again after its session was terminated" do
      listener.ensure_listening("pgbus_chat")
      @postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")
      heard = nil
      30.times do
        notify("again")
        break if (heard = queue.pop(timeout: 1))
      end
      expect(heard).to eq(wake("again"))
    end
  end
end
