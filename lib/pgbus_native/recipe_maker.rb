# frozen_string_literal: true

require_relative "connection_options"
require_relative "host_lookup"
require_relative "words"

module PgbusNative
  # Makes recipes, of which a session of the engine's asks one before each connect. They are made on a thread of their own,
  # which ends when nobody asks any more: they run the app's code, and look up names.
  class RecipeMaker
    # @return [Exception, nil] why the last recipe could not be had
    attr_reader :failure

    # @param engine [#recipe, #ruby_recipe, #no_recipe] who takes the answers
    # @param name [String] what the session is called unless the options say otherwise
    # @yieldreturn [String, Hash] the connection options of this moment
    def initialize(engine, name: ConnectionOptions::APPLICATION_NAME, &options)
      @engine = engine
      @name = name
      @options = options
      @mutex = Mutex.new
    end

    # Has the recipe of that number made. An earlier one that was not begun is not, since nobody waits for it any more.
    #
    # @param number [Integer]
    def make(number)
      @mutex.synchronize do
        @wanted = number
        @thread = Thread.new { make_wanted } unless @thread&.alive?
        @thread.name = "pgbus-recipe"
      end
    rescue ThreadError => e # there are too many
      @engine.no_recipe(number, Words.of(e))
    end

    # Ends what is under way.
    #
    # @param seconds [Numeric] how long to wait for that
    def stop(seconds)
      thread = @mutex.synchronize { @thread }
      thread&.kill&.join(seconds)
    end

    private

    def make_wanted
      while (number = next_wanted)
        answer(number)
      end
    end

    def next_wanted
      @mutex.synchronize do
        number, @wanted = @wanted, nil
        @thread = nil unless number
        number
      end
    end

    def answer(number)
      answered = false
      options = ConnectionOptions.new(@options.call, name: @name)
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
