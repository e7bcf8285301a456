# frozen_string_literal: true

require "logger"

module Pgbus
  class Error < StandardError; end
  class ConfigurationError < Error; end

  # The settings that the two native classes, and the worker around them, read.
  class Configuration
    DEFAULTS = {
      logger: nil, database_url: nil, connection_params: nil, queue_prefix: "pgbus",
      streams_listen_health_check_ms: 250, streams_dispatch_queue_limit: 0,
      streams_write_deadline_ms: 5_000, streams_fanout_write_deadline_ms: 250,
      streams_writer_threads: 0, streams_writer_buffer_limit: 0,
      streams_heartbeat_interval: 15, streams_max_connections: 2_000,
      streams_listen_scope: :master, streams_pool_autoscale: false
    }.freeze

    attr_accessor(*DEFAULTS.keys)

    def initialize
      DEFAULTS.each { |name, value| instance_variable_set(:"@#{name}", value) }
      @logger = Logger.new($stdout)
    end

    # @return [String, Hash] what the LISTEN session connects with
    def streams_connection_options = database_url || connection_params

    # @return [String, Hash] what rows are read with
    def streams_pool_connection_options = streams_connection_options

    def queue_name(stream) = "#{queue_prefix}_#{stream}"
  end

  @configuration = Configuration.new

  class << self
    attr_reader :configuration

    def configure = yield(configuration)
    def logger = configuration.logger
  end
end
