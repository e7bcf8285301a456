# frozen_string_literal: true

require "rbconfig"
require_relative "../support/hub_context"

# Workers as they are: slow, wedged, wrong, dying. The others must not notice.
RSpec.describe "The hub and its workers" do
  include_context "with a hub"

  let(:limits) { { durable_queue_limit: 4, hard_queue_limit: 64 } }
  let(:settings) { limits }

  before { hub.start }

  def stalled(*queues)
    # Ephemeral wakes until the socket takes no more; the queue is this worker's alone. A round's wakes may wait because
    # the hub has not come to writing them yet; those of the round before it can't.
    worker(*queues, "filler").tap do
      filled = 0
      until hub.stats[:queued_frames] > 8
        notify_all(8, "filler") { |i| "#{filled += 1}.#{i} #{"x" * 7000}" }
        eventually("the wakes") { hub.stats[:wakes_in] >= filled }
      end
    end
  end

  # Wakes that are told now arrive: the hub serves.
  def expect_served(worker, queue = "chat")
    notify(queue, "still here #{@told = @told.to_i + 1}")
    expect(worker.wakes_until(queue, "still here #{@told}")).not_to be_empty
  end

  describe "a slow worker" do
    it "learns of all of 40 streams that changed while it stalled, with a limit of 4 (invariant 9)" do
      streams = Array.new(40) { |i| "stream#{i}" }
      slow = stalled(*streams)
      3.times { streams.each { |stream| notify(stream) } }
      eventually("the drops") { hub.dropped_durable_wakes.positive? }
      notify("filler", "end")
      woken = slow.wakes_until("filler", "end").filter_map { |queue, payload| queue unless payload }
      expect(woken.uniq).to match_array(streams)
      expect(woken.size + hub.dropped_durable_wakes).to eq(3 * streams.size)
      expect(hub.evicted_workers).to eq(0)
    end

    it "gets a wake for what changes after its last one left (invariant 9)" do
      slow = stalled("chat")
      10.times { notify("chat") }
      notify("filler", "1")
      slow.wakes_until("filler", "1")
      notify("chat")
      expect(slow.wakes_until("chat")).to eq([["chat", nil]])
    end

    it "may ask faster than it reads" do
      eager = worker
      asker = Thread.new { 5_000.times { |i| eager.say("t" => "sub", "q" => "stream#{i}") } }
      eventually("a full socket") { hub.stats[:queued_frames].positive? }
      acks = Array.new(5_000) { eager.hear("ack")["q"] }
      asker.join
      expect(acks).to match_array(Array.new(5_000) { |i| "stream#{i}" })
      expect(hub.evicted_workers).to eq(0)
    end
  end

  describe "a worker that reads slower than PostgreSQL sends" do
    let(:settings) { {} }

    it "gets every ephemeral wake of a burst, in order, and is not evicted as long as it reads (invariant 8)" do
      slow = worker("chat")
      sender = Thread.new { notify_all(5_000, "chat") { |i| "#{i} #{"x" * 500}" } }
      expect(slow.wakes(5_000).map { |_, payload| payload.to_i }).to eq((0...5_000).to_a)
      sender.join
      expect(hub.evicted_workers).to eq(0)
    end
  end

  describe "a worker that never reads" do
    it "is evicted and sees EOF, while the others get everything (invariants 8 and 10)" do
      chat, wedged = worker("chat"), stalled("chat")
      notify_all(200, "chat") { |i| "#{i} #{"x" * 500}" }
      expect(chat.wakes(200).map { |_, payload| payload.to_i }).to eq((0...200).to_a)
      eventually("the eviction") { hub.evicted_workers == 1 }
      expect(wedged).to be_eof
      expect(hub.stats).to include(workers: 1, subscriptions: 1, queued_frames: 0)
      hub.stop # the log is complete
      expect(log.string.lines.grep(/evicted/).size).to eq(1)
    end

    it "costs the others no wait once it is gone, and memory for no more than its limits (invariant 12)" do
      chat = worker("chat")
      stalled("chat")
      2_000.times { notify("chat") }
      expect(hub.stats[:queued_frames]).to be <= limits[:hard_queue_limit] + limits[:durable_queue_limit] + 1
      expect_served(chat)
    end
  end

  {
    "nothing, ever" => "",
    "half a header and then nothing" => "\0\0",
    "a header and then nothing" => "\0\0\1\0",
    "frames that mean nothing" => RawWorker::PROTOCOL.encode("t" => "ping") + RawWorker::PROTOCOL.encode("q" => "chat"),
    "fields of the wrong type" => [5, nil, [], {}, true].map { |q| RawWorker::PROTOCOL.encode("t" => "sub", "q" => q) }.join,
    "kinds of the wrong type" => [5, nil, [], {}, true].map { |t| RawWorker::PROTOCOL.encode("t" => t, "q" => "q") }.join
  }.each do |what, bytes|
    it "a worker that writes #{what} stays, and harms nobody" do
      odd, chat = worker, worker("chat")
      odd.socket.write(bytes)
      expect_served(chat)
      expect(hub.stats).to include(workers: 2)
    end
  end

  it "a worker that writes what means nothing is told of in the log, ever more rarely, and is served" do
    odd = worker
    odd.socket.write(RawWorker::PROTOCOL.encode("t" => "ping") * 1_000)
    expect(odd.sub("chat")).to eq(["chat"])
    hub.stop # the log is complete
    expect(log.string.lines.grep(/ping/).size).to be_between(1, 10)
  end

  {
    "a length of 4 GiB" => "\xff\xff\xff\xff",
    "a length above the limit" => "\0\x40\0\1",
    "text that is no JSON" => "\0\0\0\4what",
    "an array" => "\0\0\0\2[]",
    "bytes that are no UTF-8" => "\0\0\0\x0d{\"t\":\"\xff\xfe...\"}",
    "a queue name that is too long" => RawWorker::PROTOCOL.encode("t" => "sub", "q" => "x" * 1025)
  }.each do |what, bytes|
    it "a worker that writes #{what} is severed with a log line, and harms nobody" do
      bad, chat = worker, worker("chat")
      bad.socket.write(bytes)
      expect(bad).to be_eof
      eventually("the log line") { log.string.match?(/WARN.*worker 1 is severed/) }
      expect_served(chat)
      expect(hub.stats).to include(workers: 1)
    end
  end

  it "a worker that subscribes a million times is severed, and others are served meanwhile (invariants 10 and 12)" do
    chat, greedy = worker("chat"), worker
    reader = Thread.new { greedy.eof? }
    writer = Thread.new do
      1_000_000.times { |i| greedy.say("t" => "sub", "q" => "stream#{i}") }
    rescue SystemCallError
      :severed
    end
    expect_served(chat) while writer.alive?
    expect(writer.value).to eq(:severed)
    expect(reader.value).to be(true)
    eventually("the log line") { log.string.include?("more than 16384 subscriptions") }
    eventually("the end of its subscriptions") { hub.stats[:subscriptions] == 1 }
    expect_served(chat)
  end

  it "a worker killed in the middle of a frame is forgotten" do
    chat = worker("chat")
    program = <<~RUBY
      require "socket"
      socket = UNIXSocket.new(ARGV[0])
      frame = '{"t":"sub","q":"other"}'
      socket.write([frame.size].pack("N") + frame)
      socket.readpartial(100)
      socket.write([frame.size].pack("N") + frame[0, 5])
      $stdout.puts "written"
      $stdout.flush
      sleep
    RUBY
    dying = IO.popen([RbConfig.ruby, "--disable-gems", "-e", program, path])
    dying.gets
    expect(hub.stats).to include(workers: 2, subscriptions: 2)
    Process.kill(:KILL, dying.pid)
    eventually("its end") { hub.stats.slice(:workers, :subscriptions) == { workers: 1, subscriptions: 1 } }
    expect_served(chat)
  ensure
    dying&.close
  end

  it "the wakes of the others come as soon as ever, whatever all these do at once (invariant 10)" do
    chat = worker("chat")
    # Milliseconds, in the middle, from the moment that it is told.
    median = -> { Array.new(50) { seconds { expect_served(chat) } * 1_000 }.sort[25] }
    alone = median.call
    stalled
    program = <<~RUBY
      require "socket"
      connect = -> { UNIXSocket.new(ARGV[0]) }
      silent = Array.new(8) { connect.call }
      silent.each { |socket| socket.write("\\0\\0") }
      loop do
        greedy = connect.call
        # Until it is not read any more, since it reads nothing.
        1_000.times { |i| greedy.write_nonblock([(frame = %({"t":"sub","q":"stream\#{i}"})).size].pack("N") + frame, exception: false) }
        connect.call.write("\\xff\\xff\\xff\\xff")
        $stdout.puts "trouble"
        $stdout.flush
      end
    RUBY
    crowd = IO.popen([RbConfig.ruby, "--disable-gems", "-e", program, path])
    crowd.gets
    # Far from what it is, and far from what it would be if the hub waited for any of them.
    expect(median.call).to be < (10 * alone) + 100
    expect(crowd.gets).to eq("trouble\n")
  ensure
    Process.kill(:KILL, crowd.pid) if crowd
    crowd&.close
  end

  it "a worker that no descriptor is left for is told of in the log, ever more rarely, and served when there is one" do
    hub.start
    worker("chat")
    before = Process.getrlimit(:NOFILE)
    socket = Socket.new(:UNIX, :STREAM)
    address = Socket.sockaddr_un(path)
    Process.setrlimit(:NOFILE, socket.fileno + 1, before.last)
    taken = fill_descriptors
    socket.connect(address)
    eventually("the eighth attempt") { log.string.include?("attempt 8)") }
    taken.each(&:close)
    Process.setrlimit(:NOFILE, *before)
    socket.write(RawWorker::PROTOCOL.encode("t" => "sub", "q" => "chat"))
    expect(socket.readpartial(1024)).to include("ack")
    attempts = log.string.scan(/could not connect \(attempt (\d+)\): /).flatten.map(&:to_i)
    expect(attempts).to eq(Array.new(attempts.size) { |i| 2**i })
  ensure
    Process.setrlimit(:NOFILE, *before) if before
    [socket, *taken].compact.each(&:close)
  end

  # Takes all descriptors that are left.
  def fill_descriptors
    taken = []
    loop { taken << File.open(File::NULL) }
  rescue Errno::EMFILE
    taken
  end

  it "a process of another user is severed", if: Process.uid.zero? do
    File.chmod(0o755, folder)
    File.chmod(0o666, path)
    program = <<~RUBY
      require "socket"
      Process::UID.change_privilege(65_534)
      exit UNIXSocket.new(ARGV[0]).read.empty? ? 0 : 1
    RUBY
    expect(system(RbConfig.ruby, "--disable-gems", "-e", program, path)).to be(true)
    eventually("the log line") { log.string.include?("uid 65534") }
  end

  describe "many workers" do
    let(:settings) { {} }

    it "64 of them with 5,000 streams get what is theirs" do
      streams = Array.new(5_000) { |i| "stream#{i}" }
      crowd = Array.new(64) { |i| worker(*streams.each_slice(79).to_a[i]) }
      expect(hub.stats).to include(workers: 64, subscriptions: 5_000)
      notifier.transaction { streams.each { |stream| notify(stream, stream) } }
      streams.each_slice(79).zip(crowd) do |own, one|
        expect(one.wakes(own.size)).to eq(own.zip(own))
      end
    end
  end
end
