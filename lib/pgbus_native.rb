# frozen_string_literal: true

require_relative "pgbus_native/version"
require_relative "pgbus_native/configuration"
require_relative "pgbus_native/pgbus_native"

# Native classes for pgbus streams.
module PgbusNative
  @configuration = Configuration.new

  class << self
    # @return [Configuration]
    attr_reader :configuration

    # @yieldparam configuration [Configuration]
    # @return [Configuration]
    def configure
      yield @configuration
      @configuration
    end
  end
end
