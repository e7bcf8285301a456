# frozen_string_literal: true

module PgbusNative
  # A Ruby thread of ours that ends only when its work is done. One that was killed, or that an exception ended, is
  # followed by another.
  #
  # Its own code can be interrupted only where it waits, so that it never loses what it has just taken; foreign code that
  # it runs can be interrupted anywhere (see {interruptibly}).
  class HelperThread
    # A thread that a helper runs on. `Thread.current` of this class says that the mask below is ours.
    class Carrier < ::Thread; end

    NOWHERE = { Object => :never }.freeze
    WHERE_IT_WAITS = { Object => :on_blocking }.freeze
    ANYWHERE = { Object => :immediate }.freeze
    private_constant :Carrier, :NOWHERE, :WHERE_IT_WAITS, :ANYWHERE

    # Runs foreign code. Interrupts reach it as they would without us. One that was waiting at the entry does not keep
    # the code from being run, except at the process's end.
    #
    # @return [Object] what the block returns
    def self.interruptibly
      return yield unless Thread.current.instance_of?(Carrier)

      entered = false
      begin
        Thread.handle_interrupt(ANYWHERE) do
          entered = true
          yield
        end
      ensure
        yield unless entered || !Thread.main.alive?
      end
    end

    # @return [Integer] how often it came back
    attr_reader :restarts

    # @param name [String] as debuggers and `Thread.list` show it
    # @param guard [Guard] logs an exception that ends the thread
    # @yieldreturn [Boolean] whether there may be more to do: the block is called until it returns false
    def initialize(name, guard, &work)
      @name = name
      @guard = guard
      @work = work
      @restarts = 0
    end

    # Starts the thread. The caller makes sure that none runs, or that the one that runs is about to end.
    #
    # @return [self]
    # @raise [ThreadError] the system gives no thread
    def start
      @thread = carry
      self
    end

    # @return [Thread, nil] the one that runs now
    def thread
      thread = @thread
      thread if thread&.alive?
    end

    # @return [Boolean]
    def alive? = !thread.nil?

    # Waits for the end, also of a thread that followed. Called from the helper's own thread, it doesn't wait.
    #
    # @param seconds [Numeric]
    # @return [Boolean] whether it has ended, or is the caller
    def join(seconds)
      deadline = now + seconds
      until (thread = self.thread).nil? || thread.equal?(Thread.current)
        return false unless thread.join([deadline - now, 0].max)
      end
      true
    end

    private

    def carry
      # Nowhere until it has entered `run`: killed before that, it would not come back.
      thread = Thread.handle_interrupt(NOWHERE) { Carrier.new { run } }
      thread.name = @name
      thread.report_on_exception = false # the guard logs it
      thread.thread_variable_set(:fork_safe, true) # Puma warns of every other thread that an app starts while it boots
      thread
    end

    def run
      Thread.handle_interrupt(WHERE_IT_WAITS) { nil while @work.call }
      done = true
    rescue SystemExit
      raise # Ruby passes it on to the main thread
    rescue Exception => e
      @guard.log(:error, "#{@name} was interrupted: #{e.class}: #{e.message}")
    ensure
      come_back unless done
    end

    def come_back
      @restarts += 1
      start
    rescue ThreadError
      # The process ends, or the system has no thread left: then `alive?` is false.
    end

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
