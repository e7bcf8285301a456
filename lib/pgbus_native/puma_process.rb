# frozen_string_literal: true

module PgbusNative
  # Which part of a Puma server this process is.
  module PumaProcess
    # The plugin of pgbus's that starts the hub.
    PLUGIN = "puma/plugin/pgbus_streams.rb"
    private_constant :PLUGIN

    class << self
      # @return [Symbol, nil] `:single` (no cluster), `:master`, `:worker`; nil: no Puma runs here, or it is still reading
      #   its configuration, which may have loaded the app
      def role
        options = the(::Puma::Launcher)&.options if defined?(::Puma::Launcher)
        return unless options
        return :single unless options[:workers].to_i.positive?

        defined?(::Puma::Cluster::Worker) && the(::Puma::Cluster::Worker) ? :worker : :master
      end

      # @return [Boolean] whether Puma's configuration names pgbus's plugin
      def plugin? = $LOADED_FEATURES.any? { |file| file.end_with?(PLUGIN) }

      private

      # Puma has no other way to its objects that works for `puma`, `rails server` and `rackup` alike.
      def the(klass) = ObjectSpace.each_object(klass).first
    end
  end
end
