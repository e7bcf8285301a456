# frozen_string_literal: true

require_relative "guard"

module PgbusNative
  # A hub's LISTEN session by a listener as pgbus's own, which somebody's factory gives; asked and heard by Ruby threads. Routing, outboxes and
  # sockets stay in the engine.
  class RubySession
    # Seconds that {#stop} waits for the listener's own +stop+, and for each thread.
    STOP_SECONDS = 1.5
    private_constant :STOP_SECONDS

    # @param factory [#call] +call(dispatch_queue:)+ gives a started listener
    # @param status_interval [Numeric] seconds between two looks at the listener's health
    # @param guard [Guard] survives what the listener raises
    def initialize(factory, status_interval:, guard:)
      @status_interval = status_interval
      @guard = guard
      @dispatch_queue = Queue.new
      @stopped = Queue.new
      @mutex = Mutex.new
      @subs = {}
      @threads = []
      @listener = factory.call(dispatch_queue: @dispatch_queue)
    end

    # @return [String] why the session is not native
    def reason = "a listener_factory is given"

    # A listener looks after its own connection.
    #
    # @return [nil]
    def failure = nil

    # Begins to hand the listener's wakes and its health to the engine.
    #
    # @param engine [MasterHub::Engine]
    def attach(engine)
      @engine = engine
      @threads = [HelperThread.new("pgbus-hub-wakes", @guard) { pass_on_wake },
                  HelperThread.new("pgbus-hub-health", @guard) { watch_health }].each(&:start)
    end

    # @return [Integer] how often a thread came back that was killed
    def restarts = @threads.sum(&:restarts)

    # Has a thread of that worker's own ask the listener, so that a slow answer delays nobody else.
    #
    # @param worker [Integer]
    # @param queue [String]
    def ensure_listening(worker, queue)
      @mutex.synchronize do
        if (waiting = @subs[worker])
          waiting << queue
        else
          @subs[worker] = [queue]
          HelperThread.new("pgbus-hub-sub", @guard) { ask_for(worker) }.start
        end
      end
    end

    # @param queue [String]
    def remove_listening(queue)
      @guard.call("UNLISTEN for #{queue.inspect}") { @listener.remove_listening(queue) }
    end

    # Stops the listener and the threads.
    def stop
      @stopped << true
      @dispatch_queue << @stopped
      @threads.each { |thread| thread.join(STOP_SECONDS) }
    ensure
      # Its stop may take as long as it likes; the hub's may not.
      stopper = Thread.new { @guard.call("the listener's stop") { @listener.stop } }
      stopper.join(STOP_SECONDS) or @guard.log(:warn, "the listener did not stop within #{STOP_SECONDS} s")
    end

    private

    # Returns false at the end.
    def pass_on_wake
      message = @dispatch_queue.pop
      return false if message.equal?(@stopped)

      @guard.call("delivering a wake") { @engine.wake(message.queue_name, message.payload) }
      true
    end

    # Returns false at the end.
    def watch_health
      return false if @stopped.pop(timeout: @status_interval)

      up = @guard.call("the listener's health") { !!(@listener.alive? && @listener.connected?) }
      @engine.tell_session(up) unless up.nil?
      true
    end

    # Asks for the first of the worker's subs. Returns false when there is none.
    def ask_for(worker)
      queue = @mutex.synchronize { @subs[worker].first || (@subs.delete(worker) && nil) }
      return false unless queue

      begin
        failure = "interrupted"
        HelperThread.interruptibly { @listener.ensure_listening(queue) }
        failure = nil
      rescue SystemExit
        raise
      rescue Exception => e
        failure = "#{e.class}: #{e.message}"
      ensure
        @mutex.synchronize { @subs[worker].shift }
        @engine.answer(worker, queue, failure)
      end
      true
    end
  end
end
