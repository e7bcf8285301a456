# frozen_string_literal: true

require_relative "support/hub_context"

# A hub whose listener is somebody else's object.
RSpec.describe PgbusNative::MasterHub, "with a listener_factory" do
  include_context "with a hub"

  # What a listener_factory gives: asked by the hub, it notes what it was asked.
  class NotingListener
    attr_reader :calls, :dispatch_queue, :holds
    attr_accessor :up

    def initialize(dispatch_queue)
      @dispatch_queue = dispatch_queue
      @calls = Queue.new
      @holds = {}
      @up = true
    end

    def ensure_listening(queue)
      @calls << [:ensure_listening, queue]
      raise "no such queue" if queue == "bad"

      @holds[queue]&.pop
    end

    def remove_listening(queue) = @calls << [:remove_listening, queue]
    def stop = @calls << [:stop]
    def alive? = true
    def connected? = @up

    def wake(queue, payload = nil)
      @dispatch_queue << Pgbus::Web::Streamer::Listener::WakeMessage.new(queue_name: queue, payload:)
    end
  end

  let(:factory) { ->(dispatch_queue:) { @listener = NotingListener.new(dispatch_queue) } }
  let(:settings) { { listener_factory: factory, status_interval: 0.05 } }
  let(:listener) { @listener }

  def calls = Array.new(listener.calls.size) { listener.calls.pop }

  it "asks it for every sub, and removes when the last subscriber left" do
    hub.start
    one, two = worker("chat"), worker("chat")
    one.unsub("chat")
    one.sub("news")
    expect(calls).to eq([%w[chat], %w[chat], %w[news]].map { |args| [:ensure_listening, *args] })
    two.unsub("chat")
    expect(listener.calls.pop(timeout: 10)).to eq([:remove_listening, "chat"])
    one.close
    workers.delete(one)
    expect(listener.calls.pop(timeout: 10)).to eq([:remove_listening, "news"])
    expect(hub.stats).to include(session: :ruby, session_reason: "a listener_factory is given")
  end

  it "acks after it has answered, and passes on what it says before that (invariant 7)" do
    hub.start
    hold = listener.holds["chat"] = Queue.new
    chat = worker
    chat.say("t" => "sub", "q" => "chat")
    expect(listener.calls.pop(timeout: 10)).to eq([:ensure_listening, "chat"])
    listener.wake("chat")
    expect(chat.wakes(1)).to eq([["chat", nil]])
    hold << :go
    expect(chat.hear("ack")).to include("q" => "chat")
  end

  it "keeps a queue listened to when its only subscriber leaves before the answer, until the answer" do
    hub.start
    hold = listener.holds["chat"] = Queue.new
    chat = worker
    chat.say("t" => "sub", "q" => "chat")
    chat.unsub("chat")
    listener.calls.pop(timeout: 10)
    other = worker("news")
    expect(other.heard_by_now).not_to include("wake")
    expect(calls).not_to include([:remove_listening, "chat"])
    hold << :go
    eventually("the removal") { calls.include?([:remove_listening, "chat"]) }
  end

  it "lets a slow answer to one worker delay no other" do
    hub.start
    hold = listener.holds["slow"] = Queue.new
    slow = worker
    slow.say("t" => "sub", "q" => "slow")
    expect(worker.sub("quick")).to eq(["quick"])
    hold << :go
    slow.hear("ack")
  end

  it "severs the worker whose sub it refuses, and nobody else" do
    hub.start
    chat, bad = worker("chat"), worker
    bad.say("t" => "sub", "q" => "bad")
    expect(bad).to be_eof
    listener.wake("chat", "1")
    expect(chat.wakes(1)).to eq([%w[chat 1]])
    eventually("the log line") { log.string.include?("no such queue") }
  end

  it "tells when it is not connected, and wakes every stream when it is back (invariant 9)" do
    hub.start
    chat = worker("chat", "news")
    listener.up = false
    nil while chat.hear("status")["healthy"]
    listener.up = true
    expect(chat.wakes(2)).to contain_exactly(["chat", nil], ["news", nil])
    nil until chat.hear("status")["healthy"]
    expect(hub.stats).to include(reconnects: 1)
  end

  it "survives wakes and answers that make no sense" do
    hub.start
    chat = worker("chat")
    listener.dispatch_queue << nil << Object.new
    listener.wake("chat", "\xff".b)
    listener.wake(nil, "x")
    allow(listener).to receive(:connected?).and_raise("asked too often")
    listener.wake("chat", "1")
    expect(chat.wakes(1)).to eq([%w[chat 1]])
    eventually("the log lines") { log.string.include?("asked too often") && log.string.include?("delivering a wake raised") }
  end

  it "refuses a wake that fits into no frame, and goes on" do
    hub.start
    chat = worker("chat")
    listener.wake("chat", "x" * (4 * 1024 * 1024))
    listener.wake("chat", "1")
    expect(chat.wakes(1)).to eq([%w[chat 1]])
    eventually("the log line") { log.string.include?("too large") }
  end

  it "stops it, also when the socket can't be had" do
    Dir.mkdir(path)
    expect { hub.start }.to raise_error(SystemCallError)
    expect(calls).to eq([[:stop]])
  end

  it "raises what the factory raises" do
    hub = described_class.new(config:, socket_path: path, logger: Logger.new(log), listener_factory: ->(**) { raise "no" })
    expect { hub.start }.to raise_error("no")
    expect(File.exist?(path)).to be(false)
  end

  it "waits in stop for a start that hangs in the factory, then tears everything down" do
    gate, entered = Queue.new, Queue.new
    slow = lambda do |dispatch_queue:|
      entered << true
      gate.pop
      factory.call(dispatch_queue:)
    end
    hub = described_class.new(config:, socket_path: path, logger: Logger.new(log), listener_factory: slow)
    starter = Thread.new { hub.start }
    entered.pop
    stopper = Thread.new { hub.stop }
    eventually("the wait") { stopper.stop? }
    gate << :go
    [starter, stopper].each { |thread| expect(thread.value).to be(hub) }
    expect(calls).to eq([[:stop]])
    expect(File.exist?(path)).to be(false)
  end

  describe "and a worker that does not read" do
    let(:settings) { { listener_factory: factory, status_interval: 60, durable_queue_limit: 3, hard_queue_limit: 8 } }

    it "drops its redundant durable wakes, and does not evict it for them" do
      hub.start
      chat = worker("chat")
      3.times { |i| listener.wake("chat", "#{i}#{"x" * 300_000}") }
      20.times { listener.wake("chat") }
      eventually("the drops") { hub.dropped_durable_wakes == 17 }
      expect(hub.evicted_workers).to eq(0)
      expect(chat.wakes(6).map(&:last).last(3)).to eq([nil, nil, nil])
    end

    it "evicts it when more wait that are never dropped (invariant 8)" do
      hub.start
      chat = worker("chat")
      20.times { |i| listener.wake("chat", "#{i}#{"x" * 300_000}") }
      eventually("the eviction") { hub.evicted_workers == 1 }
      expect(chat).to be_eof
      eventually("the log line") { log.string.include?("evicted") }
      expect(listener.calls.pop).to eq([:ensure_listening, "chat"])
      expect(listener.calls.pop(timeout: 10)).to eq([:remove_listening, "chat"])
    end
  end
end
