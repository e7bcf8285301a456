# frozen_string_literal: true

require_relative "libpq_session"
require_relative "recipe_maker"
require_relative "words"

module PgbusNative
  # A hub's LISTEN session as the engine asks Ruby for it: before each connect a recipe, and where that can't be followed
  # natively a session over libpq. Called by the hub's reporter thread.
  class HubSession
    # Seconds that {#stop} waits for each thread.
    STOP_SECONDS = 1.5
    private_constant :STOP_SECONDS

    # @param config [Pgbus::Configuration] its +streams_connection_options+ are read for each connect
    def initialize(config)
      @config = config
    end

    # @param engine [MasterHub::Engine] who asks
    def attach(engine)
      @engine = engine
      @recipes = RecipeMaker.new(engine) { @config.streams_connection_options }
    end

    # @return [String, nil] why the session is not native, where it is not
    def reason = @libpq&.because

    # @return [Integer] how often a thread came back that was killed: each lives for one recipe only
    def restarts = 0

    # @return [Exception, nil] why there is no session, where Ruby knows it
    def failure = @failure || @recipes&.failure

    # @param number [Integer]
    def recipe_needed(number) = @recipes.make(number)

    # @param number [Integer] that of the session
    # @param because [String] why it is not native
    def open_session(number, because)
      close_session
      @libpq = LibpqSession.new(@config, @engine, number, because, on_failure: ->(error) { @failure = error })
    rescue ThreadError, SystemCallError => e # there are too many threads, or open files
      @failure = e
      @engine.session_lost(number, Words.of(e))
    end

    # @param queue [String]
    def listen(queue) = @libpq&.order("LISTEN", queue)

    # @param queue [String]
    def unlisten(queue) = @libpq&.order("UNLISTEN", queue)

    def close_session
      @libpq&.close
      @libpq = nil
    end

    # Ends whatever runs.
    def stop
      libpq = @libpq
      close_session
      libpq&.join(STOP_SECONDS)
      @recipes&.stop(STOP_SECONDS)
    end
  end
end
