# frozen_string_literal: true

require "monitor"
require "rubygems/requirement"
require_relative "service"
require_relative "shape"
require_relative "status"

module PgbusNative
  # Puts the native classes in the place of pgbus's own, and back.
  #
  # pgbus loads its classes when they are first named (Zeitwerk). We wait for the namespace that holds them,
  # `Pgbus::Web::Streamer`, and exchange the classes before anybody else can see it: whichever way a class is reached
  # after that, by a constant of pgbus's own code, by a string, through a namespace held since, it is the native one.
  # A process that never streams never loads the namespace, and we don't make it.
  class Installer
    SUPPORTED = Gem::Requirement.new(">= 0.13.1", "< 1.0")
    CLASSES = %i[OutboundPump MasterHub].freeze
    NAMESPACE = %i[Web Streamer].freeze

    # Requires pgbus, where there is one.
    #
    # @return [void]
    def self.require_pgbus
      require "pgbus"
    rescue LoadError => e
      # Its own `require "pgbus"` tells the app; ours must not keep it from getting there.
      Kernel.warn "pgbus_native: pgbus can't be loaded (#{e.message.lines.first.chomp})" unless e.path == "pgbus"
    end

    def initialize
      # Held while classes are exchanged, never while something may wait for another thread that loads the namespace.
      @lock = Monitor.new
      @wanted = false
      @reason = "not installed"
      @reasons = {}
      @originals = {}
    end

    # @return [Boolean] {#installed?}
    def install
      @reason, advice = refusal
      @wanted = @reason.nil?
      if @wanted
        say_what_was_understood
        announce_after_boot
        wait_for_streamer
      elsif advice
        # So early no logger is configured yet: this goes to stderr.
        Kernel.warn "pgbus_native: #{@reason}; pgbus's own classes stay. #{advice}"
      end
      installed?
    end

    # @return [void]
    def uninstall
      @wanted = false
      @reason = "uninstalled"
      streamer = loaded_streamer or return
      @lock.synchronize do
        [ConnectionPatch, InstancePatch, Feed::InstancePatch].each(&:uninstall) if native?(:OutboundPump)
        CLASSES.each { |name| exchange(streamer, name, @originals.fetch(name)) if native?(name) }
        @reasons.clear
      end
    end

    # @return [Boolean]
    def installed?
      @wanted && (loaded_streamer.nil? || CLASSES.any? { |name| native?(name) })
    end

    # @return [Boolean]
    def native?(name)
      streamer = loaded_streamer
      return false if !Extension.loaded? || streamer.nil? || streamer.autoload?(name, false)

      streamer.const_defined?(name, false) && streamer.const_get(name, false).equal?(PgbusNative.const_get(name, false))
    end

    # Logs what the two classes do in this process, once; in a process that Puma does not run in, nothing. Whatever goes
    # wrong with that, the app boots.
    #
    # @return [void]
    def announce
      return if @announced || !@wanted || PumaProcess.role.nil?

      @announced = true
      ::Pgbus.logger&.info { "[PgbusNative] #{VERSION} with pgbus #{pgbus_version}. #{status.summary}" }
    rescue StandardError => e
      Kernel.warn "pgbus_native: its status can't be told: #{e.class}: #{e.message.lines.first&.chomp}"
    end

    # @return [Hash{Symbol => Class}]
    def originals
      return {} unless pgbus_version && Object.const_get("Pgbus::Web::Streamer")

      CLASSES.to_h { |name| [name, @originals[name] || loaded_streamer.const_get(name, false)] }
    rescue NameError
      {}
    end

    # @return [Status]
    def status
      waiting = @wanted && loaded_streamer.nil?
      classes = CLASSES.to_h { |name| [name, state_of(name, waiting)] }
      extension = { loaded: Extension.loaded?, ruby: Extension::RUBY, path: Extension.path, error: Extension.error }
      Status.new.merge!({ version: VERSION, pgbus: pgbus_version, supported: SUPPORTED.to_s, extension:,
                          installed: installed?, reason: @reason, classes:, feed: feed_status })
    end

    private

    def state_of(name, waiting)
      native, reason = native?(name), @reasons[name]
      service = if native || waiting then Service.of(name)
                else Service.new(:original, "pgbus's own: #{reason || @reason}")
                end
      { native:, waiting:, reason:, **service.to_h }
    end

    # Whether messages reach browsers natively.
    def feed_status
      return { native: false, waiting: false, reason: nil } unless Extension.loaded?

      reason = @reasons[:StreamEventDispatcher] || Feed.obstacle
      built = Live.each_of(:feed).any? || !reason.nil?
      { native: Live.each_of(:feed).any? { |feed, _| feed.alive? }, waiting: @wanted && !built, reason: }
    end

    # Why nothing can be installed, and what to do about it. Without pgbus there is nothing to do, and no advice.
    def refusal
      version = pgbus_version
      if version.nil? then "pgbus isn't loaded"
      elsif Extension.switched_off?
        [Extension.error, "Unset it to switch on again."]
      elsif !SUPPORTED.satisfied_by?(Gem::Version.new(version).release)
        ["pgbus #{version} is outside of what this version supports (#{SUPPORTED})",
         "Look for a matching pair of versions, or take pgbus_native out of the Gemfile."]
      elsif !Extension.loaded?
        ["the extension can't be loaded (#{Extension.error}; this is #{Extension::RUBY})",
         "Build it for this Ruby: gem pristine pgbus_native, or bundle pristine pgbus_native."]
      elsif loaded_streamer.nil? && !::Pgbus.respond_to?(:loader)
        ["pgbus #{version} has neither Pgbus::Web::Streamer nor a loader to wait for it",
         "Look for a newer pgbus_native."]
      end
    end

    def pgbus_version
      ::Pgbus::VERSION if defined?(::Pgbus::VERSION)
    end

    def wait_for_streamer
      if (streamer = loaded_streamer)
        take_over(streamer)
      elsif !@waiting
        @waiting = true
        # Runs on the thread that loads it; for others the namespace isn't there before the callback is through.
        ::Pgbus.loader.on_load("Pgbus::Web::Streamer") do |loaded, _path|
          take_over(loaded) if @wanted
          announce unless booting?
        end
      end
    end

    # `Pgbus::Web::Streamer`, without loading it.
    def loaded_streamer
      return unless defined?(::Pgbus)

      NAMESPACE.inject(::Pgbus) do |namespace, name|
        return if namespace.autoload?(name, false) || !namespace.const_defined?(name, false)

        namespace.const_get(name, false)
      end
    end

    def take_over(streamer)
      @lock.synchronize do
        CLASSES.each { |name| @reasons[name] = replace(streamer, name) }
        @reasons[:StreamEventDispatcher] = install_feed(streamer) if native?(:OutboundPump)
        complain
      end
    end

    # @return [String, nil] why not
    def replace(streamer, name)
      native = PgbusNative.const_get(name, false)
      return if streamer.const_get(name, false).equal?(native)

      difference = Shape.difference(name, streamer)
      return difference if difference

      @originals[name] = streamer.const_get(name, false)
      patch(streamer) if name == :OutboundPump
      exchange(streamer, name, native)
      nil
    rescue StandardError, LoadError => e
      "#{e.class}: #{e.message}"
    end

    def patch(streamer)
      ConnectionPatch.install(streamer.const_get(:Connection))
      InstancePatch.install(streamer.const_get(:Instance))
    end

    # @return [String, nil] why not
    def install_feed(streamer)
      difference = Shape.difference_of_feed(streamer)
      Feed.install(streamer) unless difference
      difference
    rescue StandardError, LoadError => e
      "#{e.class}: #{e.message}"
    end

    # In one step, so that no other thread finds the constant missing; Ruby would warn of it.
    def exchange(streamer, name, klass)
      verbose, $VERBOSE = $VERBOSE, nil
      streamer.const_set(name, klass)
    ensure
      $VERBOSE = verbose
    end

    # Of the environment, once.
    def say_what_was_understood
      return if @misunderstood

      @misunderstood = Extension.misunderstanding
      Kernel.warn "pgbus_native: #{@misunderstood}" if @misunderstood
    end

    # Once the app's initializers have run, in a process of Puma's: other ones (consoles, tasks) need no line.
    def announce_after_boot
      return if @announces || !defined?(::ActiveSupport) || !::ActiveSupport.respond_to?(:on_load)

      @announces = true
      installer = self # the block is run by the app
      ::ActiveSupport.on_load(:after_initialize) { installer.announce }
    end

    # Whether Rails has initializers to run yet, which configure pgbus.
    def booting? = defined?(::Rails.application) && !::Rails.application&.initialized?

    def complain
      kept = @reasons.compact
      return if kept.empty?

      ::Pgbus.logger&.warn do
        "[PgbusNative] keeps pgbus's own #{kept.keys.join(" and ")}: pgbus #{pgbus_version} isn't as this version knows " \
          "it (#{kept.map { |name, reason| "#{name}: #{reason}" }.join("; ")}). Look for a newer pgbus_native."
      end
    end
  end
end
