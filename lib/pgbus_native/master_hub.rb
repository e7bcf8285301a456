# frozen_string_literal: true

require_relative "argument"
require_relative "guard"
require_relative "hub_session"
require_relative "live"
require_relative "notifications"
require_relative "ruby_session"
require_relative "signal_handler"

module PgbusNative
  # The database can't be reached, and the pg gem, whose error of this name it would be, is not loaded.
  class ConnectionBad < StandardError; end

  # The hub of the Puma master: one LISTEN session per host, fanned out to the workers over a Unix socket. Takes the
  # place of +Pgbus::Web::Streamer::MasterHub+; its workers, pgbus's own +HubClient+, can't tell the two apart.
  #
  # Everything that moves is a thread of Rust. This face builds it, waits for it, and hands log lines to the logger. All
  # methods may be called from any thread. In a forked child a hub of the parent is inert: +stop+ does nothing there, and
  # +start+ starts a new one.
  class MasterHub
    # Durable wakes that may wait for a worker although an earlier one of the same stream waits already.
    DEFAULT_DURABLE_QUEUE_LIMIT = 256
    # Frames that are never dropped that may wait for a worker; at more it is evicted.
    DEFAULT_HARD_QUEUE_LIMIT = 1024
    # Every so many intervals the status is told again, unchanged, so that a worker that came in between knows it.
    REBROADCAST_TICKS = Engine::REBROADCAST_TICKS

    # Limits and intervals end here, so that they fit into whatever counts with them.
    MOST = 2**32
    private_constant :MOST

    # Seconds that +stop+ waits for the hub's thread, which waits for nobody: a hub that takes longer has a bug.
    STOP_SECONDS = 1.5
    private_constant :STOP_SECONDS

    LOG_PREFIX = "[Pgbus::Streamer::MasterHub]"
    private_constant :LOG_PREFIX

    # @return [String] where workers connect
    attr_reader :socket_path

    # @param config [Pgbus::Configuration] +streams_listen_health_check_ms+ is read at +start+, and
    #   +streams_connection_options+ before each connect, on a thread of the hub's
    # @param socket_path [String] where workers connect
    # @param listener_factory [#call, nil] +call(dispatch_queue:)+ gives a started listener, which then is asked in the
    #   place of the native session
    # @param status_interval [Numeric] seconds between two looks at the session's health
    # @param durable_queue_limit [Integer] see {DEFAULT_DURABLE_QUEUE_LIMIT}
    # @param hard_queue_limit [Integer] see {DEFAULT_HARD_QUEUE_LIMIT}
    # @param logger [Logger]
    # @raise [ArgumentError] for an interval or a limit out of range, for a path that can't be one
    # @raise [TypeError] for a config, a path, a factory or a logger that isn't one
    def initialize(config:, socket_path:, listener_factory: nil, status_interval: 1.0,
                   durable_queue_limit: DEFAULT_DURABLE_QUEUE_LIMIT, hard_queue_limit: DEFAULT_HARD_QUEUE_LIMIT,
                   logger: Pgbus.logger)
      positive!(Numeric, status_interval:)
      positive!(Integer, durable_queue_limit:, hard_queue_limit:)
      Argument.must_respond(:config, config, :streams_connection_options, :streams_listen_health_check_ms)
      Argument.must_respond(:listener_factory, listener_factory, :call) if listener_factory
      Argument.must_respond(:logger, logger, :debug, :info, :warn, :error)
      Argument.path(:socket_path, socket_path)
      @config = config
      @socket_path = socket_path
      @listener_factory = listener_factory
      @status_interval = status_interval
      @durable_queue_limit = durable_queue_limit
      @hard_queue_limit = hard_queue_limit
      @logger = logger
      @guard = Guard.new(logger, LOG_PREFIX)
      @restarts = 0
      @lifecycle = Mutex.new
      @stops = 0
    end

    # Starts the session, then the socket. Does nothing on a hub that runs.
    #
    # @return [self] also if {#stop} was called meanwhile, from another thread; then nothing runs
    # @raise [PG::ConnectionBad, PgbusNative::ConnectionBad] the database can't be reached
    # @raise [Pgbus::Process::ReplicaConnectionError] it is a read-only replica
    # @raise [SystemCallError, ArgumentError] there can be no socket at the path
    # @raise [ArgumentError] the configuration's health check interval or connection options are none
    def start
      stops_before = @stops
      @lifecycle.synchronize do
        @stops_before = stops_before
        running? || stopped_meanwhile? ? self : build
      end
    end

    # Ends all: the workers see EOF, the socket's file goes, the session is closed. Safe at any time, any number of times,
    # also in a signal handler and in what the hub calls (its logger, a subscriber, a listener). Ends every {#start} that
    # runs or waits for another one.
    #
    # @return [self]
    def stop
      @stops += 1
      @engine&.stop unless inherited?
      # Inside of a start or a stop of this very thread: that one sees it through.
      return self if @lifecycle.owned?

      SignalHandler.leave { @lifecycle.synchronize { inherited? ? self : tear_down } }
    end

    # @return [Integer] redundant durable wakes that were left out for workers that read slowly
    def dropped_durable_wakes = @engine&.dropped_durable_wakes || 0

    # @return [Integer] workers that were severed because they did not read
    def evicted_workers = @engine&.evicted_workers || 0

    # What the hub did and does, cheap enough to poll.
    #
    # @return [Hash{Symbol => Object}] +:running+; +:session+ (+:native+ or +:ruby+, now) and +:session_reason+ (why it is a
    #   Ruby session); +:workers+, +:subscriptions+ and +:queued_frames+ (now); +:wakes_in+, +:frames_out+,
    #   +:dropped_durable_wakes+, +:evicted_workers+ and +:reconnects+ (so far); +:connected_since+ (a Time; nil while the
    #   session is down); +:callback_failures+ (how often the logger, a subscriber or a listener raised) and
    #   +:thread_restarts+ (how often one of the hub's Ruby threads was killed and came back)
    def stats
      engine = @engine
      figures = engine ? engine.stats : {}
      since = figures.delete(:connected_since_ms)
      reason = @session&.reason || @session_reason
      { running: running?, session: reason ? :ruby : :native, session_reason: reason, **figures,
        connected_since: (Time.at(since / 1000r) if since && running?), callback_failures: @guard.failures,
        thread_restarts: @restarts + [@reporter, @session].compact.sum(&:restarts) }
    end

    # @return [String] without the configuration, which may hold a password
    def inspect = "#<#{self.class} #{@socket_path}#{" running" if running?}>"

    private

    def positive!(kind, **numbers)
      numbers.each do |name, number|
        next if number.is_a?(kind) && number.real? && number.positive? && number <= MOST

        raise ArgumentError, "#{name} must be a positive #{kind} up to #{MOST}, got #{number.inspect}"
      end
    end

    def inherited? = !!@engine&.inherited?

    def running? = !!@running && !inherited?

    # Whether {#stop} was called since the {#start} that runs has begun.
    def stopped_meanwhile? = @stops != @stops_before

    def build
      @engine = @session_reason = nil
      session = @session = listening_session
      launch(recipes: session.is_a?(HubSession))
      self
    rescue Engine::ConnectionFailed, Engine::Replica => e
      raise session.failure || (e.is_a?(Engine::Replica) ? replica_error : connection_bad).new(e.message)
    end

    def listening_session
      return HubSession.new(@config) unless @listener_factory

      RubySession.new(@listener_factory, status_interval: @status_interval, guard: @guard)
    end

    # Has the engine start.
    def launch(recipes:)
      health_check_ms = @config.streams_listen_health_check_ms
      positive!(Numeric, streams_listen_health_check_ms: health_check_ms)
      @engine = Engine.spawn(File.path(@socket_path).b, @status_interval.to_f, @durable_queue_limit, @hard_queue_limit,
                             health_check_ms / 1000.0, recipes)
      @engine.stop if stopped_meanwhile? # before it could be told
      @session.attach(@engine)
      @reporter = reporter(@engine, @session).start
      @running = @engine.wait_started
      Live.add(:hub, self) if @running
    ensure
      tear_down unless @running
    end

    def connection_bad = defined?(PG::ConnectionBad) ? PG::ConnectionBad : ConnectionBad

    # Without pgbus there is none of that name.
    def replica_error
      defined?(Pgbus::Process::ReplicaConnectionError) ? Pgbus::Process::ReplicaConnectionError : connection_bad
    end

    # Each step is made, whatever becomes of the one before it.
    def tear_down
      @running = false
      end_engine
    ensure
      begin
        @reporter&.join(STOP_SECONDS) # it has taken all that the engine had to say
      ensure
        @session_reason = @session&.reason || @session_reason
        @session&.stop
        @restarts += [@reporter, @session].compact.sum(&:restarts)
        @reporter = @session = nil
      end
    end

    # @return [self]
    def end_engine
      @engine&.stop
      if @engine && !@engine.wait_ended(STOP_SECONDS)
        @guard.log(:error, "the hub's thread did not end within #{STOP_SECONDS} s, please report it")
      end
      self
    end

    # Takes what the engine has to say, until it ends.
    def reporter(engine, session)
      HelperThread.new("pgbus-hub-reporter", @guard) do
        event = engine.next_event
        report(session, *event) if event
        !event.nil?
      end
    end

    def report(session, kind, *details)
      case kind
      when :log then @guard.log(*details)
      when :notice
        event, details = details
        Notifications.publish(event, guard: @guard, hub: self, **details)
      else @guard.call(kind) { session.public_send(kind, *details) } # a listener's may be somebody else's
      end
    end
  end
end
