# frozen_string_literal: true

require_relative "argument"
require_relative "connection_patch"
require_relative "encoder"
require_relative "helper_thread"
require_relative "live"
require_relative "notifications"
require_relative "outbound_pump/outcome"
require_relative "outbound_pump/ruby_way"
require_relative "outbound_pump/backlog"
require_relative "outbound_pump/lane"
require_relative "outbound_pump/writer_thread"

module PgbusNative
  # Writes frames to SSE sockets, off the dispatcher's thread: pgbus's `OutboundPump`, with writer threads that need no
  # GVL.
  #
  # A connection on a plain socket is taken in ({#adopt}): from then on its {Outlet} alone writes to it, whatever the bytes
  # are. Every other one is served by Ruby threads that call its `enqueue` ("the Ruby way"). What became of jobs and
  # connections is reported by one Ruby thread, the reporter.
  class OutboundPump
    # Kept for compatibility.
    DRAIN = :__drain__

    # How long {#stop} waits for each thread.
    JOIN_SECONDS = 5
    private_constant :JOIN_SECONDS

    # @param threads [Integer] native writer threads, and at most as many Ruby threads for the Ruby way
    # @param ack_queue [#<<] takes a `WriteAckMessage` for every job that was written
    # @param on_dead [#call] is called with each connection that the pump found dead, once
    # @param buffer_limit [Integer] frames that may wait for one connection; 0: any number
    # @param logger [Logger]
    # @raise [ArgumentError] for a number out of range
    # @raise [TypeError] for a number that is no Integer, and for a queue, a callback or a logger that isn't one
    def initialize(threads:, ack_queue:, on_dead:, buffer_limit: 0, logger: Pgbus.logger)
      Argument.must_be_integer(:threads, threads)
      raise ArgumentError, "threads must be positive" unless threads.positive?
      raise ArgumentError, "threads must be at most #{Configuration::MOST_WRITERS}, got #{threads}" if threads > Configuration::MOST_WRITERS

      Argument.must_be_integer(:buffer_limit, buffer_limit)
      raise ArgumentError, "buffer_limit must not be negative, got #{buffer_limit}" if buffer_limit.negative?

      Argument.must_respond(:ack_queue, ack_queue, :<<)
      Argument.must_respond(:on_dead, on_dead, :call)
      Argument.must_respond(:logger, logger, :debug, :warn, :error)
      @count = threads
      @limit = buffer_limit
      @overflow = PgbusNative.configuration.pump_overflow
      @fan_out_ms = Pgbus.configuration.streams_fanout_write_deadline_ms
      @outcome = Outcome.new(self, ack_queue, on_dead, logger)
      @reporter = HelperThread.new("pgbus-pump-reporter", @outcome.guard) { report }
      build
    end

    # Starts the threads; jobs that were posted before are written now. A second call does nothing.
    #
    # In a forked child, a pump of the parent starts anew, with nothing of what the parent's had to do.
    #
    # @return [self]
    # @raise [SystemCallError, ThreadError] when the system gives no thread or no event loop; nothing runs then
    def start
      build unless @writers.usable?
      return self if @started

      @started = true
      begin
        @reporter.start if @writers.start || !@reporter.alive?
        @ruby_way.start
        complete = true
      ensure
        stop unless complete
      end
      Live.add(:pump, self)
      self
    end

    # Flushes what was posted, then ends the threads; waits 5 s for each at most, and warns of those that did not end.
    # They end by themselves later. A second call does nothing; {#start} works afterwards.
    #
    # @return [self]
    def stop
      return self unless @started && @writers.usable?

      @started = false
      end_threads.times { @outcome.log(:warn, "writer thread did not drain within #{JOIN_SECONDS}s") }
      self
    end

    # Takes a connection in: its socket is the pump's from here on, and Ruby's writes to it leave in their order among
    # those of the pump. Where that can't be (TLS, a `Connection` that an app changed), it stays as it is.
    #
    # @param connection [Object]
    # @return [Boolean] whether the connection is native
    def adopt(connection)
      return false unless @writers.usable? && ConnectionPatch.eligible?(connection)
      return true if connection.native_outlet

      outlet = connection.hand_over(@writers, @fan_out_ms)
      @connections[outlet.key] = connection if outlet
      !outlet.nil?
    end

    # Hands over one job and returns at once. Safe to call from any thread, also before {#start} and after {#stop}:
    # then the job waits for the next {#start}.
    #
    # @param connection [Object] pgbus's `Connection`, or anything with its interface
    # @param envelopes [Array] with `msg_id` (not negative, at most 64 bits) and `payload`, maybe `event`
    # @param batch_max [Integer] what is acknowledged if `envelopes` is empty
    # @param deadline_ms [Numeric] how long the browser may take no byte. That of pgbus's fan-out
    #   (`streams_fanout_write_deadline_ms`) is there to protect the others, which need no protection here: with it, the
    #   connection's own deadline counts if it is longer.
    # @return [void]
    # @raise [ArgumentError] for a negative msg_id or a deadline that is no number; nothing was queued then
    # @raise [TypeError] for a connection or envelopes that aren't any; nothing was queued then
    # @raise [RangeError] for a msg_id of more than 64 bits; nothing was queued then
    def post(connection, envelopes, batch_max, deadline_ms:)
      # What waits on the Ruby way goes first; in a forked child nothing does.
      busy = @ruby_way_used && @writers.usable? && @ruby_way.busy?(connection)
      return if !busy && post_natively(connection, envelopes, batch_max, deadline_ms)

      check(connection, envelopes)
      @ruby_way_used = true
      @ruby_way.post(connection, envelopes, batch_max, deadline_ms)
      nil
    end

    # Lets connections take their leave: what the block hands over is written to all of them at the same time.
    #
    # @yield closes connections
    # @return [void]
    def farewell
      start
      yield
    ensure
      stop
    end

    # @return [Boolean] started: whether it serves, that is whether writers and reporter run; stopped: whether any of its
    #   threads still runs
    def alive?
      return false unless @writers.usable?

      @started ? @writers.alive? && @reporter.alive? : @writers.alive? || worker_threads.any?
    end

    # @return [Array<WriterThread>] the native writer threads that run
    def threads = Array.new(@count) { |index| WriterThread.new(@writers, index) }.select(&:alive?)

    # @return [Array<Thread>] the pump's live Ruby threads
    def worker_threads = [@reporter.thread, *@ruby_way.threads].compact

    # What the pump did since it was built, and what it holds.
    #
    # - `posted`, `written`: frames; `native_frames`, `ruby_frames`: those written, by the way they went
    # - `bytes`, `writes`: what the native way wrote, and in how many system calls
    # - `acks`, `dropped`: jobs; `dead`: connections
    # - `waiting`: frames that wait or are under way; `connections`: living ones of the native way
    # - `callback_failures`: how often `on_dead`, `ack_queue`, a subscriber or the logger raised; `thread_restarts`: how
    #   often one of the pump's Ruby threads was killed and came back
    #
    # @return [Hash{Symbol => Integer}]
    def stats
      native = @writers.stats
      by_ruby = @ruby_way.counts
      stats = native.merge(by_ruby) { |_, one, other| one + other }
      stats[:waiting] = native.fetch(:waiting, 0) + @ruby_way.waiting
      stats.merge(native_frames: native.fetch(:written, 0), ruby_frames: by_ruby.fetch(:written),
                  callback_failures: @outcome.guard.failures, thread_restarts: @reporter.restarts + @ruby_way.restarts)
    end

    # @return [String]
    def inspect = "#<#{self.class} threads=#{@count} buffer_limit=#{@limit}#{" running" if @started}>"

    private

    def build
      @writers = Writers.new(@count, @limit, @overflow, Encoder)
      # By their outlets' keys. An outlet lives as long as its connection.
      @connections = ObjectSpace::WeakMap.new
      @ruby_way = RubyWay.new(@count, @limit, @overflow, @outcome)
      @ruby_way_used = false
      @started = false
    end

    # Returns how many threads did not end in time. Interrupted, it leaves them to end by themselves.
    def end_threads
      @writers.stop
      unfinished = threads.count { |writer| !writer.join(JOIN_SECONDS) }
      @writers.close
      # With a writer that goes on, the reporter does as well.
      unfinished += 1 if unfinished.zero? && !@reporter.join(JOIN_SECONDS)
      @ruby_way.stop
      unfinished + @ruby_way.join(JOIN_SECONDS)
    ensure
      @writers.close
      @ruby_way.stop
    end

    def post_natively(connection, envelopes, batch_max, deadline_ms)
      @writers.post(connection, envelopes, batch_max, deadline_ms) ||
        (adopt(connection) && @writers.post(connection, envelopes, batch_max, deadline_ms))
    end

    # What the writers check in what they take.
    def check(connection, envelopes)
      Argument.must_respond(:connection, connection, :id, :enqueue)
      Argument.must_respond(:envelopes, envelopes, :to_a, :find)
      envelopes.each { |envelope| Argument.must_respond("each of envelopes", envelope, :msg_id) }
      refuse_ephemeral(envelopes)
    end

    def refuse_ephemeral(envelopes)
      envelope = envelopes.find { |candidate| candidate.msg_id.negative? }
      return unless envelope

      raise ArgumentError, "OutboundPump received an ephemeral (negative msg_id) envelope (#{envelope.msg_id}); " \
                           "ephemeral fanout must stay inline on the dispatcher thread"
    end

    # One turn of the reporter. Returns false when nothing will come any more.
    def report
      @writers.report { |kind, key, value| tell(kind, key, value) }
    end

    # A connection that nobody has any more needs no report.
    def tell(kind, key, value)
      return @outcome.log(kind, value) unless key

      connection = @connections[key] or return
      case kind
      when :ack then @outcome.ack(connection, value)
      when :overflow then @outcome.overflow(connection, value, @overflow)
      when :dead then @outcome.dead(connection)
      end
    end
  end
end
