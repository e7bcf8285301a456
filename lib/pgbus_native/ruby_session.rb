# frozen_string_literal: true

module PgbusNative
  # A hub's LISTEN session by a listener as pgbus's own, which somebody's factory gives; asked and heard by Ruby threads. Routing, outboxes and
  # sockets stay in the engine.
  class RubySession
    # Seconds that {#stop} waits for the listener's own +stop+, and for each thread.
    STOP_SECONDS = 1.5
    private_constant :STOP_SECONDS

    # @param factory [#call] +call(dispatch_queue:)+ gives a started listener
    # @param status_interval [Numeric] seconds between two looks at the listener's health
    # @param log [#call] takes a level and a text
    def initialize(factory, status_interval:, log:)
      @status_interval = status_interval
      @log = log
      @dispatch_queue = Queue.new
      @stopped = Queue.new
      @mutex = Mutex.new
      @subs = {}
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
      @threads = [Thread.new { pass_on_wakes }, Thread.new { watch_health }]
      @threads.zip(%w[pgbus-hub-wakes pgbus-hub-health]) { |thread, name| thread.name = name }
    end

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
          Thread.new { ask_for(worker) }
        end
      end
    end

    # @param queue [String]
    def remove_listening(queue)
      @listener.remove_listening(queue)
    rescue StandardError => e
      @log.call(:warn, "UNLISTEN for #{queue.inspect} failed: #{e.class}: #{e.message}")
    end

    # Stops the listener and the threads.
    def stop
      @stopped << true
      @dispatch_queue << @stopped
      @threads&.each { |thread| thread.join(STOP_SECONDS) }
      stopper = Thread.new { stop_listener }
      stopper.join(STOP_SECONDS) or @log.call(:warn, "the listener did not stop within #{STOP_SECONDS} s")
    end

    private

    def pass_on_wakes
      until (message = @dispatch_queue.pop).equal?(@stopped)
        begin
          @engine.wake(message.queue_name, message.payload)
        rescue StandardError => e
          @log.call(:error, "wake delivery failed: #{e.class}: #{e.message}")
        end
      end
    end

    def watch_health
      until @stopped.pop(timeout: @status_interval)
        begin
          @engine.tell_session(!!(@listener.alive? && @listener.connected?))
        rescue StandardError => e
          @log.call(:warn, "asking for the listener's health failed: #{e.class}: #{e.message}")
        end
      end
    end

    def ask_for(worker)
      while (queue = next_sub_of(worker))
        begin
          @listener.ensure_listening(queue)
          @engine.answer(worker, queue, nil)
        rescue StandardError => e
          @engine.answer(worker, queue, "#{e.class}: #{e.message}")
        end
      end
    end

    def next_sub_of(worker)
      @mutex.synchronize { @subs[worker].shift || (@subs.delete(worker) && nil) }
    end

    def stop_listener
      @listener.stop
    rescue StandardError => e
      @log.call(:warn, "stopping the listener failed: #{e.class}: #{e.message}")
    end
  end
end
