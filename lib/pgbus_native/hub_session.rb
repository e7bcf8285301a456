# frozen_string_literal: true

require_relative "connection_options"
require_relative "host_lookup"
require_relative "libpq_session"
require_relative "words"

module PgbusNative
  # A hub's LISTEN session as the engine asks Ruby for it: before each connect a recipe, and where that can't be followed
  # natively a session over libpq.
  #
  # Called by the hub's reporter thread. Recipes are made on a thread of their own, since they run the app's code and look up
  # names.
  class HubSession
    # Seconds that {#stop} waits for each thread.
    STOP_SECONDS = 1.5
    private_constant :STOP_SECONDS

    # @return [Exception, nil] why the last recipe, or the last session over libpq, could not be had
    attr_reader :failure

    # @param config [Pgbus::Configuration] its +streams_connection_options+ are read for each connect
    # @param log [#call] takes a level and a text
    def initialize(config, log:)
      @config = config
      @log = log
      @mutex = Mutex.new
    end

    # @param engine [MasterHub::Engine] who asks
    def attach(engine) = @engine = engine

    # @return [String, nil] why the session is not native, where it is not
    def reason = @libpq&.because

    # @return [Integer] how often a thread came back that was killed: each lives for one recipe only
    def restarts = 0

    # Has the recipe of that number made; an earlier one that nobody waits for any more is not.
    #
    # @param number [Integer]
    def recipe_needed(number)
      @mutex.synchronize do
        @wanted = number
        @maker = Thread.new { make_recipes } unless @maker&.alive?
        @maker.name = "pgbus-hub-recipe"
      end
    end

    # @param number [Integer] that of the session
    # @param because [String] why it is not native
    def open_session(number, because)
      close_session
      @libpq = LibpqSession.new(@config, @engine, number, because, on_failure: ->(error) { @failure = error })
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
      maker = @mutex.synchronize { @maker }
      maker&.kill&.join(STOP_SECONDS)
    end

    private

    def make_recipes
      while (number = next_wanted)
        make_recipe(number)
      end
    end

    def next_wanted
      @mutex.synchronize do
        number, @wanted = @wanted, nil
        @maker = nil unless number
        number
      end
    end

    def make_recipe(number)
      answered = false
      options = ConnectionOptions.new(@config.streams_connection_options)
      @engine.recipe(number, options.hosts, options.keywords, options.variables)
      answered = true
    rescue HostLookup::Impossible => e
      @engine.ruby_recipe(number, "host: #{Words.of(e)}")
      answered = true
    rescue Exception => e # the app's code may raise anything
      @failure = e
      @engine.no_recipe(number, Words.of(e))
      answered = true
    ensure
      @engine.no_recipe(number, "the thread that resolves the connection options was killed") unless answered
    end
  end
end
