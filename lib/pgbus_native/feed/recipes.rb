# frozen_string_literal: true

require_relative "../connection_options"
require_relative "../host_lookup"
require_relative "../words"

module PgbusNative
  class Feed
    # Makes the recipes of a feed's two sessions, before each connect, on a thread of its own: it runs the app's code and
    # looks up names.
    class Recipes
      # How the sessions are called in `pg_stat_activity`, unless the options or `PGAPPNAME` say otherwise.
      APPLICATION_NAMES = { reads: "pgbus-feed", wakes: ConnectionOptions::APPLICATION_NAME }.freeze

      # Seconds that {#stop} waits.
      STOP_SECONDS = 1.5
      private_constant :STOP_SECONDS

      # @param config [Pgbus::Configuration]
      def initialize(config)
        @config = config
        @mutex = Mutex.new
        @wanted = {}
      end

      # @param engine [Feed::Engine] who asks
      # @return [void]
      def attach(engine) = @engine = engine

      # @param session [Symbol] `:reads` or `:wakes`
      # @return [ConnectionOptions] as they are at this moment
      def resolve(session)
        options = session == :reads ? @config.streams_pool_connection_options : @config.streams_connection_options
        ConnectionOptions.new(options, name: APPLICATION_NAMES.fetch(session))
      end

      # Has the recipe of that number made; an earlier one of this session that nobody waits for any more is not.
      #
      # @param session [Symbol]
      # @param number [Integer]
      # @return [void]
      def needed(session, number)
        @mutex.synchronize do
          @wanted[session] = number
          @maker = Thread.new { make_recipes } unless @maker&.alive?
          @maker.name = "pgbus-feed-recipe"
        end
      end

      # @return [void]
      def stop
        maker = @mutex.synchronize { @maker }
        maker&.kill&.join(STOP_SECONDS)
      end

      private

      def make_recipes
        while (session, number = next_wanted)
          make_recipe(session, number)
        end
      end

      def next_wanted
        @mutex.synchronize { @wanted.shift || (@maker = nil) }
      end

      def make_recipe(session, number)
        reason = "the thread that resolves the connection options was killed"
        options = resolve(session)
        @engine.recipe(session, number, [options.hosts, options.keywords, options.variables])
        reason = nil
      rescue Exception => e # the app's code may raise anything
        reason = Words.of(e)
      ensure
        @engine.no_recipe(session, number, reason) if reason
      end
    end
    private_constant :Recipes
  end
end
