# frozen_string_literal: true

require_relative "outbound_pump_helper"
require "objspace"
require "open3"
require "rbconfig"

RSpec.describe PgbusNative::OutboundPump, "faults" do
  include OutboundPumpHelper

  describe "of clients" do
    it "survives a reset in mid-frame (invariants 3, 4)" do
      pump.start
      b = browser(sockets: tcp_pair)
      stall(b)
      b.socket.setsockopt(:SOCKET, :LINGER, [1, 0].pack("ii"))
      b.socket.close
      expect(pop(dead)).to be(b.connection)
      pump.stop
      expect([acks, dead]).to all(be_empty)
      expect(b.connection.last_msg_id_sent).to eq(0)
    end

    it "goes on writing to a client that half-closed" do
      pump.start
      b = browser(sockets: tcp_pair)
      b.socket.close_write
      post(b, envelope(1))
      expect(b.read(frame(1).bytesize)).to eq(frame(1))
    end

    it "writes 5 MB to a client that reads a byte at first" do
      pump.start
      b = browser
      post(b, envelope(1, "y" * 5_000_000))
      expect(b.read(1) + b.read(frame(1, "y" * 5_000_000).bytesize - 1)).to eq(frame(1, "y" * 5_000_000))
      expect(pop(acks).accepted_max).to eq(1)
    end
  end

  describe "of Ruby code around the socket" do
    it "an io that is closed: its number is not given back before the browser is gone, so nobody else's socket gets " \
       "one byte (invariants 1, 4)" do
      pump.start
      b = browser
      large = stall(b)
      number = b.connection.io.fileno
      b.connection.io.close
      others = Array.new(200) { UNIXSocket.pair }
      expect(others.flatten.map(&:fileno)).not_to include(number)
      post(b, envelope(2))
      expect(b.read_to_eof).to eq(large)
      wait_until { !File.exist?("/dev/fd/#{number}") }
      pump.stop
      expect(others.flatten.map { |socket| socket.read_nonblock(1, exception: false) }).to all(eq(:wait_readable))
      expect(dead).to be_empty
    end

    it "close: EOF at once when no frame is under way" do
      pump.start
      b = browser
      post(b, envelope(1))
      pop(acks)
      b.connection.close
      expect(b.read_to_eof).to eq(frame(1))
    end

    it "mark_dead! shuts the socket: a torn frame is followed by nothing (invariants 2, 4)" do
      pump.start
      b = browser
      large = stall(b)
      b.connection.mark_dead!
      expect(b.connection.write_comment("late")).to eq(:closed)
      seen = b.read_to_eof
      expect(large).to start_with(seen)
      expect(seen.bytesize).to be < large.bytesize
      pump.stop
      expect([acks, dead]).to all(be_empty)
    end

    it "an encoding that pgbus can't frame ends the connection with its reason in the log, as enqueue would" do
      pump.start
      b = browser
      post(b, envelope(1), envelope(2, "\xFF\n"))
      expect(pop(dead)).to be(b.connection)
      expect(b.read_to_eof).to eq(frame(1))
      wait_until { log.string.include?("write failed for #{b.connection.id}: ArgumentError:") }
    end

    it "on_dead that raises is logged at error, and the others are told" do
      raising = build_pump(on_dead: ->(c) { c.id == "bad" ? raise("no") : dead << c }).start
      %w[bad good].map { |id| browser(id) }.each do |b|
        b.socket.close
        raising.post(b.connection, [envelope(1)], 1, deadline_ms: 100)
      end
      expect(pop(dead).id).to eq("good")
      raising.stop
      expect(log.string).to match(/ERROR.*on_dead raised RuntimeError: no \(1 so far\)/)
    end

    it "an ack_queue that is closed takes no thread with it" do
      pump.start
      acks.close
      b = browser
      2.times { |i| post(b, envelope(i + 1)) }
      expect(b.read((frame(1) + frame(2)).bytesize)).to eq(frame(1) + frame(2))
      b.socket.close
      post(b, envelope(3))
      expect(pop(dead)).to be(b.connection)
    end

    it "a logger that raises takes no thread with it" do
      broken = Logger.new(IO::NULL)
      %i[debug info warn error].each { |level| broken.define_singleton_method(level) { |*| raise "disk full" } }
      quiet = build_pump(logger: broken, on_dead: ->(c) { dead << c; raise "logged" }).start
      2.times do |i|
        b = browser("c#{i}")
        b.socket.close
        quiet.post(b.connection, [envelope(1)], 1, deadline_ms: 100)
        expect(pop(dead)).to be(b.connection)
      end
      quiet.stop
    end

    it "a stop inside on_dead returns" do
      done = Queue.new
      stopping = build_pump(on_dead: ->(_) { done << stopping.stop })
      stopping.start
      b = browser
      b.socket.close
      stopping.post(b.connection, [envelope(1)], 1, deadline_ms: 100)
      expect(pop(done)).to be(stopping)
    end
  end

  describe "of threads that are interrupted" do
    it "Thread#kill in the midst of posts loses no frame of a post that returned, and tears none (invariant 2)" do
      pump.start
      b = browser
      reading = Thread.new { b.read_to_eof }
      posted = 0
      poster = Thread.new do
        loop do
          post(b, envelope(posted + 1))
          posted += 1
        end
      end
      wait_until { posted > 200 }
      poster.kill.join
      pump.stop
      b.connection.close
      ids = reading.value.scan(/^id: (\d+)$/).flatten.map(&:to_i)
      expect(ids.first(posted)).to eq((1..posted).to_a)
      expect(ids.size - posted).to be_between(0, 1)
    end

    it "Timeout during a stop leaves a pump that ends and starts again" do
      pump.start
      b = browser
      large = stall(b)
      expect { Timeout.timeout(0.05) { pump.stop } }.to raise_error(Timeout::Error)
      pump.start
      b.read(large.bytesize)
      expect(pop(acks).accepted_max).to eq(1)
    end
  end

  describe "of memory" do
    it "GC.stress and GC.compact while frames wait" do
      b = browser
      GC.stress = true
      5.times { |i| post(b, envelope(i + 1, "payload #{i}")) }
      GC.stress = false
      GC.compact if GC.respond_to?(:compact)
      Array.new(10_000) { Object.new }
      pump.start
      expect(Array.new(5) { pop(acks) }.map { |ack| [ack.connection.equal?(b.connection), ack.accepted_max] })
        .to eq((1..5).map { |id| [true, id] })
      expected = (1..5).map { |id| frame(id, "payload #{id - 1}") }.join
      expect(b.read(expected.bytesize)).to eq(expected)
    ensure
      GC.stress = false
    end

    it "keeps no connection, and an envelope only while its frame is of use to others (invariant 12)" do
      envelopes = ObjectSpace::WeakMap.new
      connections = ObjectSpace::WeakMap.new
      clients = []
      pump.start
      lambda do
        20.times do |i|
          b = browser("c#{i}")
          clients << b.socket
          connections[b.connection] = true
          one = envelope(1)
          envelopes[one] = true
          post(b, one)
        end
      end.call
      forget_browsers
      wait_until do
        acks.clear
        GC.start
        connections.size <= 2 && envelopes.size <= 2 # a stack may still show one
      end
      expect(clients.map { |client| client.read(frame(1).bytesize) }).to all(eq(frame(1)))
    end

    it "an idle connection costs at most 1 KB beside pgbus's own (invariant 12)" do
      b = native_browser
      extra = [b.connection.native_outlet, b.connection.io.singleton_class]
      expect(extra.sum { |object| ObjectSpace.memsize_of(object) }).to be_between(200, 1024)
    end

    it "a pump that is forgotten with frames waiting is collected" do
      pumps = ObjectSpace::WeakMap.new
      5.times { build_pump.tap { |one| pumps[one] = true }.post(browser.connection, [envelope(1)], 1, deadline_ms: 1) }
      forget_browsers
      wait_until do
        GC.start
        pumps.size <= 1
      end
    end
  end

  describe "of the system" do
    # With no descriptor to be had. What Ruby still has to load is loaded before.
    def without_descriptors
      pump.start
      post(browser, envelope(1))
      pop(acks)
      limit = Process.getrlimit(:NOFILE)
      Process.setrlimit(:NOFILE, 3, limit.last)
      yield
    ensure
      Process.setrlimit(:NOFILE, *limit) if limit
    end

    it "5,000 connections" do
      limit = Process.getrlimit(:NOFILE)
      Process.setrlimit(:NOFILE, [limit.last, 20_000].min, limit.last)
      skip "#{Process.getrlimit(:NOFILE).first} descriptors are too few" if Process.getrlimit(:NOFILE).first < 15_500
      pump.start
      browsers = Array.new(5000) { |i| browser("c#{i}") }
      one = envelope(1)
      browsers.each { |b| post(b, one) }
      5000.times { pop(acks) }
      expect(browsers.count { |b| b.socket.read_nonblock(1000) == frame(1) }).to eq(5000)
      expect(pump.stats).to include(native_frames: 5000, connections: 5000)
    ensure
      browsers&.each { |b| [b.connection, b.socket].each(&:close) }
      Process.setrlimit(:NOFILE, *limit)
    end

    it "no descriptor left: a connection is taken in all the same, since it needs none" do
      b = browser
      without_descriptors { post(b, envelope(1)) }
      expect(b.read(frame(1).bytesize)).to eq(frame(1))
      expect(pump.stats).to include(native_frames: 2, ruby_frames: 0)
    end

    it "no descriptor left for an event loop: start says so, and works later" do
      second = build_pump
      refusal = without_descriptors do
        second.start
      rescue SystemCallError => e
        e
      end
      expect(refusal).to be_a(Errno::EMFILE)
      b = browser
      second.post(b.connection, [envelope(1)], 1, deadline_ms: 1000)
      second.start
      expect(pop(acks).accepted_max).to eq(1)
    ensure
      second&.stop
    end
  end

  describe "of processes" do
    # A program with a pump and a stalled client, which then does what `ending` says.
    def run_program(ending, signal: nil)
      program = <<~RUBY
        $LOAD_PATH.unshift(#{File.expand_path("../lib", __dir__).inspect}, #{File.expand_path("../support", __dir__).inspect},
                           #{__dir__.inspect})
        require "pgbus_or_standin"
        require "pgbus_native"
        require "logger"
        S = Pgbus::Web::Streamer
        PgbusNative::ConnectionPatch.install(S::Connection)
        E = Data.define(:msg_id, :payload)
        server, client = UNIXSocket.pair
        connection = S::Connection.new(id: "a", stream_name: "s", io: server, since_id: 0, writer: S::IoWriter, write_deadline_ms: 60_000)
        pump = PgbusNative::OutboundPump.new(threads: 2, ack_queue: Queue.new, on_dead: ->(_) {}, logger: Logger.new(IO::NULL)).start
        pump.post(connection, [E.new(1, "x" * #{OutboundPumpHelper::LARGE})], 1, deadline_ms: 60_000)
        Thread.pass until pump.stats[:bytes].positive?
        $stdout.sync = true
        puts "ready"
        #{ending}
      RUBY
      Timeout.timeout(20) do
        Open3.popen2e(RbConfig.ruby, "-e", program) do |_, out, process|
          line = out.gets
          raise line + out.read unless line == "ready\n"

          Process.kill(signal, process.pid) if signal
          [process.value, out.read]
        end
      end
    end

    it "ends at once with frames waiting, by its end, exit!, SIGTERM and SIGINT" do
      expect(run_program("exit 3").first.exitstatus).to eq(3)
      expect(run_program("exit!(4)").first.exitstatus).to eq(4)
      expect(run_program("sleep", signal: :TERM).first.termsig).to eq(Signal.list["TERM"])
      expect(run_program("sleep", signal: :INT).first.termsig).to eq(Signal.list["INT"])
    end

    # Runs a block in a forked child and gives what it returned.
    def in_child
      reader, writer = IO.pipe
      pid = fork do
        writer.write(Marshal.dump(yield))
        writer.close
        exit!(0)
      rescue Exception => e
        writer.write(Marshal.dump(e.full_message))
        exit!(1)
      end
      writer.close
      Timeout.timeout(20) { Marshal.load(reader.read) }
    ensure
      Process.wait(pid) if pid
    end

    it "a child forked while a frame is being written posts nothing, writes nothing, and stops at once (invariant 11)" do
      pump.start
      b = browser
      large = stall(b)
      result = in_child do
        post(b, envelope(2))
        said = [b.connection.enqueue([envelope(2)]), b.connection.write_comment("x"), b.connection.dead?]
        pump.stop
        b.connection.mark_dead!
        GC.start
        [pump.alive?, said, pump.worker_threads.size]
      end
      expect(result).to eq([false, [[], :closed, true], 0])
      post(b, envelope(3))
      expect(b.read((large + frame(3)).bytesize)).to eq(large + frame(3))
      expect([pop(acks), pop(acks)].map(&:accepted_max)).to eq([1, 3])
    end

    it "a child holds no browser's socket: it outlives its parent's connections, and they see EOF (invariants 11, 16)" do
      pump.start
      browsers = Array.new(20) { |i| native_browser("c#{i}", sockets: tcp_pair) }
      go = IO.pipe
      pid = fork do
        go.last.close
        go.first.read
        exit!(0)
      end
      browsers.each { |b| b.connection.close }
      expect(browsers.map(&:read_to_eof)).to all(eq(""))
    ensure
      go&.last&.close
      Process.wait(pid) if pid
    end

    it "a child ends normally, finalizers and all (invariant 11)" do
      pump.start
      b = browser
      stall(b)
      pid = fork { exit(5) }
      Timeout.timeout(20) { Process.wait(pid) }
      expect($?.exitstatus).to eq(5)
      expect(b.connection).not_to be_dead
    end

    it "a child can have its own pump, and start its parent's anew (invariant 11)" do
      pump.start
      result = in_child do
        mine, theirs = browser("mine"), browser("theirs")
        own = build_pump.start
        own.post(mine.connection, [envelope(1)], 1, deadline_ms: 1000)
        pump.start
        post(theirs, envelope(1))
        seen = [mine, theirs].map { |one| one.read(frame(1).bytesize) == frame(1) }
        own.stop
        pump.stop
        seen + [own.stats[:native_frames], pump.stats[:native_frames], acks.size]
      end
      expect(result).to eq([true, true, 1, 1, 2])
    end

    it "forks at random moments of a busy pump harm neither side (invariant 11)" do
      pump.start
      browsers = Array.new(4) { browser }
      readers = browsers.map { |b| Thread.new { b.read((1..2000).sum { |id| frame(id).bytesize }) } }
      poster = Thread.new { 2000.times { |i| browsers.each { |b| post(b, envelope(i + 1)) } } }
      20.times { expect(in_child { browsers.each { |b| b.connection.write_comment("x") } && :fine }).to eq(:fine) }
      poster.join
      readers.each { |reader| expect(reader.value.scan(/^id: (\d+)$/).flatten.map(&:to_i)).to eq((1..2000).to_a) }
    end
  end
end
