# frozen_string_literal: true

require "json"
require_relative "feed/audience"
require_relative "feed/dispatcher_patch"
require_relative "feed/instance_patch"
require_relative "feed/obstacle"
require_relative "feed/recipes"
require_relative "guard"
require_relative "helper_thread"
require_relative "live"
require_relative "words"

module PgbusNative
  # What brings messages from the database to a worker's browsers: a thread of Rust that hears wakes, reads rows and hands
  # frames to the connections' outlets.
  #
  # To pgbus it is the streamer's listener. Connections that the native way serves are handed to it ({#connect}); those of
  # the Ruby way have pgbus's dispatcher as before, which asks it for wakes ({#ensure_listening}).
  class Feed
    # Broadcasts that were handed out: for the dispatcher, which counts them.
    Broadcasts = Data.define(:sent)

    # How much longer than a health check the dispatcher waits for a LISTEN, as with pgbus's own listeners.
    ACK_GRACE = 2.0
    # Seconds that {#stop} waits for each thread.
    STOP_SECONDS = 1.5
    # Of the keys by which the engine knows connections.
    KEYS = 2**32
    private_constant :ACK_GRACE, :STOP_SECONDS, :KEYS

    class << self
      # @return [String, nil] why the streamer that was built last has no feed
      attr_accessor :obstacle

      # Streamers that are built from now on have a feed, where that can be.
      #
      # @param streamer [Module] `Pgbus::Web::Streamer`
      # @return [void]
      def install(streamer)
        InstancePatch.install(streamer.const_get(:Instance))
        streamer.const_get(:StreamEventDispatcher).prepend(DispatcherPatch)
      end
    end

    # @return [String, nil] the hub's socket
    attr_reader :hub

    # @param config [Pgbus::Configuration] its options of LISTEN and of the streams pool are read for each connect
    # @param dispatch_queue [Queue] of pgbus's dispatcher
    # @param hub [String, nil] the hub's socket
    # @param logger [Logger]
    def initialize(config:, dispatch_queue:, hub:, logger:)
      @config = config
      @dispatch_queue = dispatch_queue
      @hub = hub
      @guard = Guard.new(logger, "[Pgbus::Streamer::Feed]")
      @recipes = Recipes.new(config)
      @mutex = Mutex.new
      @connections = {}
      @keys = {}.compare_by_identity
      @last_key = 0
      @waiting = {} # queue => those who wait until its LISTEN is active
      @reporter = HelperThread.new("pgbus-feed-reporter", @guard) { report }
    end

    # Whom to ask who may see what.
    #
    # @param filters [#visible?] pgbus's
    # @param after [#call] is called after each batch of questions
    # @return [void]
    def audience(filters, after:)
      @audience = Audience.new(filters, @guard, after)
    end

    # Starts the thread. It connects by itself, and goes on trying.
    #
    # @return [self]
    # @raise [ThreadError] the system gives no thread
    def start
      return self if @engine

      deadline_ms = [@config.streams_write_deadline_ms, @config.streams_fanout_write_deadline_ms].max
      @engine = Engine.spawn(@hub, health_check, deadline_ms / 1000.0)
      @recipes.attach(@engine)
      @reporter.start
      Live.add(:feed, self)
      self
    end

    # Ends the thread. Frames that were handed over still leave.
    #
    # @return [self]
    def stop
      return self unless alive?

      @stopped = true
      @engine.stop
      ended = @engine.wait_ended(STOP_SECONDS)
      @guard.log(:error, "the feed's thread did not end within #{STOP_SECONDS} s, please report it") unless ended
      @reporter.join(STOP_SECONDS)
      @recipes.stop
      @mutex.synchronize { @waiting.values.flatten.tap { @waiting.clear } }.each { |waiter| waiter << nil }
      self
    end

    # @return [Boolean] whether it runs, in this process
    def alive? = !@stopped && !!@engine&.usable?

    # @return [Boolean] whether wakes are heard now
    def connected? = alive? && @engine.stats.fetch(:hears, false)

    # Takes a connection in that a native pump has taken in: it gets what it lacks, and then whatever comes. Again at will.
    #
    # @param connection [Pgbus::Web::Streamer::Connection]
    # @param queue [String] its stream's, by its whole name
    # @return [Boolean] whether the feed serves it
    def connect(connection, queue)
      return serves?(connection) unless alive?

      outlet = connection.native_outlet if connection.respond_to?(:native_outlet)
      return false unless outlet

      key = new_key(connection) or return true
      names = [connection.id, connection.stream_name, queue].map { |name| Words.utf8(name.to_s) }
      @engine.connect(outlet, key, names)
      # Its death may have been reported before anybody knew it here.
      disconnect(connection) if connection.dead?
      true
    end

    # @return [Boolean] whether the feed serves this connection
    def serves?(connection) = @mutex.synchronize { @keys.key?(connection) }

    # @return [void]
    def disconnect(connection)
      key = @mutex.synchronize do
        key = @keys.delete(connection)
        @connections.delete(key)
        key
      end
      @engine.disconnect(key) if key
    end

    # Asks for wakes of a queue, as {Pgbus::Web::Streamer::Listener} does, and waits until its LISTEN is active.
    #
    # @return [Symbol, nil] `:done`, or nil when that takes too long
    def ensure_listening(queue)
      return unless alive?

      waiter = Queue.new
      @mutex.synchronize { (@waiting[queue] ||= []) << waiter }
      @engine.listen(queue)
      waiter.pop(timeout: health_check + ACK_GRACE)
    ensure
      @mutex.synchronize do
        waiters = @waiting[queue]
        waiters&.delete(waiter)
        @waiting.delete(queue) if waiters && waiters.empty?
      end
    end

    # @return [void]
    def remove_listening(queue) = @engine.unlisten(queue)

    # What the feed did and does, cheap enough to poll.
    #
    # - `browsers`, `streams`: now; `hears`: whether wakes are heard now
    # - `wakes`, `pages`, `rows`, `questions`: heard, read, read, asked
    # - `given_up`: browsers that read too slowly for their ephemeral messages; `losses`: of the source of wakes
    # - `callback_failures`: how often a filter or the logger raised; `thread_restarts`: how often the feed's Ruby thread
    #   was killed and came back
    #
    # @return [Hash{Symbol => Object}]
    def stats
      { **(@engine ? @engine.stats : {}), callback_failures: @guard.failures, thread_restarts: @reporter.restarts }
    end

    # @return [String] without the configuration, which may hold a password
    def inspect = "#<#{self.class} #{@hub ? "hub=#{@hub}" : "own session"}#{" running" if alive?}>"

    private

    def health_check = @config.streams_listen_health_check_ms / 1000.0

    # @return [Integer, nil] nil: it has one already
    def new_key(connection)
      @mutex.synchronize do
        return if @keys.key?(connection)

        @last_key = (@last_key + 1) % KEYS while @connections.key?(@last_key)
        @connections[@last_key] = connection
        @keys[connection] = @last_key
      end
    end

    # One turn of the reporter: all that waits, in the order of its urgency. Interrupted, it goes on with the rest.
    def report
      @reports ||= @engine.next_reports or return false
      answer_questions(@reports[:questions])
      each_of(:recipes) { |session, number| @recipes.needed(session, number) }
      each_of(:listening) { |queue| acknowledge(queue) }
      each_of(:wakes) { |queue, payload| @dispatch_queue << wake(queue, payload) }
      @dispatch_queue << Broadcasts.new(@reports[:sent]) if @reports[:sent].any?
      each_of(:lines) { |level, text| @guard.log(level, text) }
      @reports = nil
      true
    end

    def each_of(kind)
      while (one = @reports[kind].shift)
        yield(*one)
      end
    end

    def answer_questions(questions)
      return if questions.empty?

      each_of(:questions) { |id, items| answer(id, items) }
      @guard.call("after the filters") { @audience&.rest }
    end

    # Whatever the filters do, the stream goes on.
    def answer(id, items)
      visible = []
      visible = items.map do |label, keys|
        connections = @mutex.synchronize { @connections.values_at(*keys) }
        @audience ? @audience.of(label, connections) : []
      end
    ensure
      @engine.answer(id, visible)
    end

    def acknowledge(queue)
      @mutex.synchronize { @waiting.delete(queue) }&.each { |waiter| waiter << :done }
    end

    def wake(queue_name, payload) = ::Pgbus::Web::Streamer::Listener::WakeMessage.new(queue_name:, payload:)
  end
end
