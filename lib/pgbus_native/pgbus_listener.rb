# frozen_string_literal: true

module PgbusNative
  # Makes pgbus's own +Listener+ for a hub whose connection options the native session can't honour.
  class PgbusListener
    # @param config [Pgbus::Configuration]
    # @param logger [Logger]
    def initialize(config, logger)
      @config = config
      @logger = logger
    end

    # @param dispatch_queue [Queue] where wakes go
    # @return [Pgbus::Web::Streamer::Listener] started, its names quoted
    # @raise [PG::Error, Pgbus::Process::ReplicaConnectionError]
    def call(dispatch_queue:)
      connection = connect
      Pgbus::Process::PrimaryValidator.validate_primary!(connection)
      Pgbus::Web::Streamer::Listener.new(
        pg_connection: connection, dispatch_queue:, health_check_ms: @config.streams_listen_health_check_ms,
        connection_factory: method(:connect), dispatch_queue_limit: @config.streams_dispatch_queue_limit, logger: @logger
      ).tap(&:start)
    rescue StandardError
      connection&.close
      raise
    end

    private

    def connect = Pgbus::DedicatedConnection.connect(@config.streams_connection_options)
  end
end
