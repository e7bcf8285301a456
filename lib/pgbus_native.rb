# frozen_string_literal: true

require_relative "pgbus_native/version"
require_relative "pgbus_native/configuration"
require_relative "pgbus_native/extension"
if PgbusNative::Extension.loaded?
  require_relative "pgbus_native/master_hub"
  require_relative "pgbus_native/outbound_pump"
  require_relative "pgbus_native/instance_patch"
  require_relative "pgbus_native/feed"
end
require_relative "pgbus_native/prometheus"
require_relative "pgbus_native/installer"

# Native classes for pgbus streams, in the place of pgbus's own `OutboundPump` and `MasterHub`.
#
# Requiring this file requires pgbus, where there is one, and installs. Nothing else is needed; the methods below are
# for a look ({status}), for settings ({configure}) and for the way back ({uninstall!}).
module PgbusNative
  @configuration = Configuration.new
  @installer = Installer.new

  class << self
    # @return [Configuration]
    attr_reader :configuration

    # @yieldparam configuration [Configuration]
    # @return [Configuration]
    def configure
      raise ArgumentError, "configure takes a block" unless block_given?

      yield @configuration
      @configuration
    end

    # Puts the native classes into pgbus: at once where its streamer is loaded, else at the moment it gets loaded.
    # Where that can't be (see {status}), pgbus's own classes stay and one warning says why. Any thread; again at will.
    #
    # @return [Boolean] {installed?}
    def install! = @installer.install

    # Puts pgbus's own classes back. Objects that exist keep their class; new ones are pgbus's own.
    #
    # @return [void]
    def uninstall! = @installer.uninstall

    # Whether at least one of the two classes is native, or will be when pgbus loads its streamer.
    #
    # @return [Boolean]
    def installed? = @installer.installed?

    # @param name [Symbol] `:OutboundPump` or `:MasterHub`
    # @return [Boolean] whether pgbus's constant of that name is the native class now
    # @raise [ArgumentError] for any other name
    def native?(name)
      unless Installer::CLASSES.include?(name)
        raise ArgumentError, "name must be #{Installer::CLASSES.map(&:inspect).join(" or ")}, got #{name.inspect}"
      end

      @installer.native?(name)
    end

    # What each class does in this process, by which version, and why not where not. `puts PgbusNative.status` is for people.
    #
    # @return [Status]
    def status = @installer.status

    # The figures of the hubs and pumps of this process, in Prometheus's text format (0.0.4). Each worker has its own, and
    # the master those of its hub. Any thread.
    #
    # @return [String] empty where nothing runs
    def prometheus = Prometheus.new.text

    # pgbus's own classes, by name. Loads pgbus's streamer.
    #
    # @return [Hash{Symbol => Class}] empty without pgbus
    def originals = @installer.originals
  end
end

PgbusNative::Installer.require_pgbus
PgbusNative.install!
