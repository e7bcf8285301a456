# frozen_string_literal: true

require_relative "outbound_pump_helper"

RSpec.describe PgbusNative::Lock do
  include OutboundPumpHelper

  subject(:lock) { described_class.new }

  it "is a Mutex, and behaves as one" do
    expect(lock).to be_a(Mutex)
    expect([lock.locked?, lock.owned?]).to eq([false, false])
    expect(lock.lock).to be(lock)
    expect([lock.locked?, lock.owned?, lock.try_lock]).to eq([true, true, false])
    expect(Thread.new { lock.owned? }.value).to be(false)
    expect(lock.unlock).to be(lock)
    expect(lock.synchronize { :value }).to be(:value)
    expect(lock).not_to be_locked
  end

  it "refuses what a Mutex refuses" do
    expect { lock.synchronize }.to raise_error(ThreadError, /block/)
    expect { lock.unlock }.to raise_error(ThreadError, /not locked/)
    expect { lock.synchronize { lock.lock } }.to raise_error(ThreadError, /recursive/)
    expect { lock.synchronize { Fiber.new { lock.lock }.resume } }.to raise_error(ThreadError, /another fiber/)
    lock.lock
    expect { Thread.new { Thread.current.report_on_exception = false; lock.unlock }.value }
      .to raise_error(ThreadError, /locked by another thread/)
    expect(lock).to be_owned
  end

  it "is free again however the block ends" do
    expect { lock.synchronize { raise "no" } }.to raise_error("no")
    catch(:out) { lock.synchronize { throw :out } }
    [1].each { lock.synchronize { break } }
    Thread.new { lock.synchronize { Thread.current.kill } }.join
    expect(lock).not_to be_locked
  end

  it "serves those who wait in the order they came" do
    order = []
    lock.lock
    waiting = Array.new(5) do |i|
      Thread.new { lock.synchronize { order << i } }.tap { |thread| wait_until { thread.status == "sleep" } }
    end
    lock.unlock
    waiting.each(&:join)
    expect(order).to eq([0, 1, 2, 3, 4])
  end

  it "is not lost when interrupts and grants race" do
    100.times do
      lock.lock
      waiting = Array.new(3) { Thread.new { lock.synchronize { Thread.pass } } }
      waiting[1].kill
      lock.unlock
      waiting[0].kill
      waiting.each { |thread| expect(thread.join(5)).to be(thread) }
      expect(lock).not_to be_locked
    end
  end

  it "works with a condition variable" do
    condition = ConditionVariable.new
    ready = false
    waiting = Thread.new { lock.synchronize { condition.wait(lock) until ready; lock.owned? } }
    wait_until { waiting.status == "sleep" }
    lock.synchronize { (ready = true) && condition.signal }
    expect(waiting.value).to be(true)
    lock.synchronize { expect(condition.wait(lock, 0.001)).to be_falsey }
  end

  it "is locked again when a sleep in it is interrupted" do
    owned = nil
    sleeping = Thread.new do
      lock.synchronize do
        lock.sleep
      ensure
        owned = lock.owned?
      end
    end
    wait_until { sleeping.status == "sleep" }
    sleeping.kill.join
    expect([owned, lock.locked?]).to eq([true, false])
  end

  it "in a forked child is held by the thread that forked, or by nobody (invariant 11)" do
    held = lock.synchronize do
      Process.wait2(fork { exit!(lock.owned? ? 1 : 0) }).last.exitstatus
    end
    other = Queue.new
    holder = Thread.new { lock.synchronize { other.pop } }
    wait_until { lock.locked? }
    free = Process.wait2(fork { exit!(lock.try_lock ? 1 : 0) }).last.exitstatus
    other << :go
    holder.join
    expect([held, free]).to eq([1, 1])
  end
end

RSpec.describe PgbusNative::Cursor do
  it "holds an Integer of 64 bits" do
    cursor = described_class.new(3)
    expect([cursor.get, cursor.value, cursor.set(-(2**63)), cursor.get]).to eq([3, 3, -(2**63), -(2**63)])
    expect(cursor.value = 7).to eq(7)
  end

  it "refuses anything else by name" do
    cursor = described_class.new(3)
    expect { cursor.set(2**63) }.to raise_error(RangeError, /#{2**63}/)
    expect { described_class.new("x") }.to raise_error(TypeError, /"x"/)
    expect(cursor.get).to eq(3)
  end
end

RSpec.describe PgbusNative::ConnectionSeam do
  include OutboundPumpHelper

  it "leaves a connection alone whose client claims a Last-Event-ID of more than 64 bits" do
    b = browser(since_id: 2**70)
    expect(native?(b)).to be(false)
    expect(b.connection.last_msg_id_sent).to eq(2**70)
  end

  it "can be taken back, for connections that are born later" do
    before = browser
    described_class.uninstall
    expect([native?(before), native?(browser)]).to eq([true, false])
  ensure
    described_class.install(OutboundPumpHelper::Streamer::Connection)
    expect(native?(browser)).to be(true)
  end

  it "leaves a connection alone whose class got another method in the meantime" do
    connection_class = OutboundPumpHelper::Streamer::Connection
    original = connection_class.instance_method(:mark_dead!).super_method
    silently { connection_class.define_method(:mark_dead!) { original.bind_call(self) } }
    expect(native?(browser)).to be(false)
  ensure
    silently { connection_class.define_method(:mark_dead!, original) }
    expect(native?(browser)).to be(true)
  end

  def silently
    verbose, $VERBOSE = $VERBOSE, nil
    yield
  ensure
    $VERBOSE = verbose
  end
end
