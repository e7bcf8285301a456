# frozen_string_literal: true

require_relative "live"
require_relative "puma_process"

module PgbusNative
  # What one of the native classes does in this process.
  #
  # `state` is `:serving`, `:waiting` (it will serve as soon as there is somebody), `:elsewhere` (another process does it for
  # this one) or `:unused`; `text` says it to people, with figures, or with the reason and the setting to change.
  class Service < Data.define(:state, :text)
    class << self
      # @param name [Symbol] one of {Installer::CLASSES}
      # @return [Service]
      def of(name)
        { OutboundPump: Pump, MasterHub: Hub }.fetch(name).new(::Pgbus.configuration).service
      rescue StandardError => e
        new(:unused, "can't say: #{e.class}: #{e.message.lines.first&.chomp}")
      end

      # Figures in words: `words(3, "browser")` is "3 browsers".
      def words(count, noun) = "#{count} #{noun}#{"s" unless count == 1}"
    end

    # The settings that an older pgbus lacks have the default of those that have them.
    class Subject
      def initialize(configuration)
        @configuration = configuration
      end

      private

      def setting(name, default) = @configuration.respond_to?(name) ? @configuration.public_send(name) : default

      def unused(text) = Service.new(:unused, "unused: #{text}")

      def streams_off
        unused("streams_enabled is false, set it to true") unless setting(:streams_enabled, true)
      end

      def words(...) = Service.words(...)
    end
    private_constant :Subject

    # The pump of this process: there is one in every process that serves browsers.
    class Pump < Subject
      # @return [Service]
      def service = serving || streams_off || without_pump || without_browsers || waiting

      private

      def serving
        pumps = Live.each_of(:pump).map(&:first).select(&:alive?)
        stats = pumps.map(&:stats).reduce { |sum, one| sum.merge(one) { |_, a, b| a + b } }
        return unless stats && (stats[:connections].positive? || stats[:posted].positive?)

        by_ruby = ", #{stats[:ruby_frames]} of them by Ruby threads" if stats[:ruby_frames].positive?
        Service.new(:serving, "serving #{words(stats[:connections], "browser")}, " \
                              "#{words(stats[:written], "frame")} written#{by_ruby}")
      end

      def without_pump
        return if setting(:streams_writer_threads, 0).positive? || PgbusNative.configuration.writers.positive?

        unused("streams_writer_threads and PgbusNative.configuration.writers are 0, set one of them to 1")
      end

      def without_browsers
        Service.new(:elsewhere, "in the workers: Puma's master serves no browsers") if PumaProcess.role == :master
      end

      def waiting = Service.new(:waiting, "waiting for a first browser")
    end
    private_constant :Pump

    # The hub of this host: there is one in Puma's master, for its workers.
    class Hub < Subject
      # @return [Service]
      def service = serving || streams_off || without_scope || by_role

      private

      def serving
        stats = Live.each_of(:hub).map { |hub, _| hub.stats }.find { |one| one[:running] } or return

        session = stats[:session] == :native ? "its LISTEN session" : "its LISTEN session (in Ruby: #{stats[:session_reason]})"
        Service.new(:serving, "serving #{words(stats[:workers], "worker")}, #{words(stats[:subscriptions], "subscription")}, " \
                              "#{session} is #{stats[:connected_since] ? "up" : "down"}")
      end

      def without_scope
        scope = setting(:streams_listen_scope, :master)
        unused("streams_listen_scope is #{scope.inspect}, set it to :master") unless scope == :master
      end

      def by_role
        case PumaProcess.role
        when nil then no_hub("Puma does not run in this process")
        when :single then no_hub("Puma runs in single mode, where one process listens for itself; set workers to 2 or more")
        else in_a_cluster
        end
      end

      def in_a_cluster
        path = ENV["PGBUS_STREAMS_HUB_SOCKET"].to_s
        if path.empty? then no_hub("#{missing}")
        elsif PumaProcess.role == :master
          Service.new(:waiting, "no hub yet: it starts when pgbus is configured, which takes preload_app!")
        elsif File.socket?(path) then Service.new(:elsewhere, "in Puma's master, at #{path}")
        else no_hub("nothing is at #{path}; set preload_app!, or look into the log of Puma's master")
        end
      end

      def no_hub(reason) = Service.new(:unused, "no hub: #{reason}")

      def missing
        if PumaProcess.plugin?
          "pgbus was not loaded when Puma read its configuration, begin config/puma.rb with require_relative \"environment\""
        else
          "Puma's configuration does not name pgbus's plugin, add plugin :pgbus_streams"
        end
      end
    end
    private_constant :Hub
  end
end
