# frozen_string_literal: true

module PgbusNative
  class Feed
    # Why a streamer has no feed. pgbus's own dispatcher then serves all its browsers.
    module Obstacle
      # Seconds for a trial of the native session. Where that takes longer, the feed tries by itself.
      TRIAL_SECONDS = 5
      # What the feed takes over from its streamer.
      STATE = %i[@client @config @dispatch_queue @logger].freeze
      private_constant :TRIAL_SECONDS, :STATE

      class << self
        # @param instance [Pgbus::Web::Streamer::Instance] while it is being built
        # @param hub [String, nil] the hub's socket
        # @return [String, nil] for a person
        def find(instance, hub)
          client, config, = STATE.map { |name| instance.instance_variable_get(name) }
          setting(config) || collaborator(instance, client, config) || maintenance(config, hub) || sessions(config, hub)
        rescue StandardError => e
          # pgbus, which now builds its own listener, raises what there is to raise.
          Words.of(e)
        end

        private

        def setting(config)
          return "switched off by PgbusNative.configuration.feed = false" unless PgbusNative.configuration.feed
          return if config.streams_writer_threads.positive? || PgbusNative.configuration.writers.positive?

          "no writer threads (PgbusNative.configuration.writers = 0)"
        end

        def collaborator(instance, client, config)
          if !STATE.all? { |name| instance.instance_variable_defined?(name) } then "pgbus's Instance isn't as this version knows it"
          elsif !client.instance_of?(::Pgbus::Client) then "the client is not a Pgbus::Client but a #{client.class}"
          elsif !config.instance_of?(::Pgbus::Configuration) then "the configuration is a #{config.class}"
          elsif client.shared_connection? then "pgbus reads over ActiveRecord's own connection"
          end
        end

        def maintenance(config, hub)
          return if hub || !config.streams_pool_autoscale

          "streams_pool_autoscale, which works on pgbus's own listener"
        end

        def sessions(config, hub)
          recipes = Recipes.new(config)
          trial(:reads, recipes) || (hub ? unsupported(:wakes, recipes) : trial(:wakes, recipes))
        end

        # Whether the server, too, is one for a native session. Nothing is said of one that can't be reached.
        def trial(session, recipes)
          options = recipes.resolve(session)
          because = Engine.try(options.hosts, options.keywords, options.variables, TRIAL_SECONDS)
          "the native session can't honour #{because}" if because
        end

        def unsupported(session, recipes)
          options = recipes.resolve(session)
          because = Engine.unsupported(options.keywords, options.variables)
          "the native session can't honour #{because}" if because
        end
      end
    end
    private_constant :Obstacle
  end
end
