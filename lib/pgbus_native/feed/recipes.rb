# frozen_string_literal: true

require_relative "../recipe_maker"

module PgbusNative
  class Feed
    # The recipes of a feed's two sessions: the one that it reads on (`:reads`), and the one that LISTENs where there is no
    # hub (`:wakes`).
    class Recipes
      # How the sessions are called in `pg_stat_activity`, unless the options or `PGAPPNAME` say otherwise.
      NAMES = { reads: "pgbus-feed", wakes: ConnectionOptions::APPLICATION_NAME }.freeze

      # Seconds that {#stop} waits for each thread.
      STOP_SECONDS = 1.5

      # Who answers for one of the sessions.
      Answers = Data.define(:engine, :session) do
        def recipe(number, *made) = engine.recipe(session, number, made)
        def ruby_recipe(number, because) = no_recipe(number, "it can't honour #{because}")
        def no_recipe(number, reason) = engine.no_recipe(session, number, reason)
      end
      private_constant :STOP_SECONDS, :Answers

      # @param config [Pgbus::Configuration]
      def initialize(config)
        @config = config
        @makers = {}
      end

      # @param engine [Feed::Engine] who asks
      # @return [void]
      def attach(engine)
        @makers = NAMES.to_h do |session, name|
          [session, RecipeMaker.new(Answers.new(engine:, session:), name:) { options(session) }]
        end
      end

      # Has the recipe of that number made.
      #
      # @param session [Symbol]
      # @param number [Integer]
      # @return [void]
      def needed(session, number) = @makers.fetch(session).make(number)

      # @param session [Symbol]
      # @return [ConnectionOptions] as they are at this moment
      def resolve(session) = ConnectionOptions.new(options(session), name: NAMES.fetch(session))

      # @return [void]
      def stop = @makers.each_value { |maker| maker.stop(STOP_SECONDS) }

      private

      def options(session)
        session == :reads ? @config.streams_pool_connection_options : @config.streams_connection_options
      end
    end
    private_constant :Recipes
  end
end
