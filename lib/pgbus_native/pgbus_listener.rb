# frozen_string_literal: true

require_relative "fork_guard"

module PgbusNative
  # pgbus's own +Listener+, for a hub whose connection options the native session can't honour.
  class PgbusListener
    # Names that end pgbus's listener thread, and with it every wake of the host: it puts them between quotes unchanged.
    UNQUOTABLE = /["\0]/
    private_constant :UNQUOTABLE

    # @param config [Pgbus::Configuration]
    # @param logger [Logger]
    # @param log [#call] takes a level and a text
    # @return [#call] as a +listener_factory+ is
    def self.factory(config, logger, log)
      ->(dispatch_queue:) { new(config, logger, log, dispatch_queue) }
    end

    # Connects and starts.
    #
    # @param dispatch_queue [Queue] where wakes go
    # @raise [PG::Error, Pgbus::Process::ReplicaConnectionError]
    def initialize(config, logger, log, dispatch_queue)
      @config = config
      @log = log
      @lost = false
      connection = connect
      Pgbus::Process::PrimaryValidator.validate_primary!(connection)
      @listener = Pgbus::Web::Streamer::Listener.new(
        pg_connection: connection, dispatch_queue:, health_check_ms: config.streams_listen_health_check_ms,
        connection_factory: method(:reconnect), dispatch_queue_limit: config.streams_dispatch_queue_limit, logger:
      ).tap(&:start)
    rescue Exception
      connection&.close
      raise
    end

    # @param queue [String]
    def ensure_listening(queue)
      return @listener.ensure_listening(queue) unless UNQUOTABLE.match?(queue)

      @log.call(:error, "pgbus's Listener can't listen to #{queue.inspect}, its subscribers get no wakes from here")
    end

    # @param queue [String]
    def remove_listening(queue)
      @listener.remove_listening(queue) unless UNQUOTABLE.match?(queue)
    end

    # @return [Boolean]
    def alive? = @listener.alive?

    # Whether it is connected and was so since the last call: a loss must not go unnoticed because it was short, since
    # the hub wakes every stream after one.
    #
    # @return [Boolean]
    def connected?
      lost, @lost = @lost, false
      !lost && @listener.connected?
    end

    def stop = @listener.stop

    private

    # On the listener's thread.
    def reconnect
      @lost = true
      connect
    end

    def connect = ForkGuard.guard(Pgbus::DedicatedConnection.connect(@config.streams_connection_options))
  end
end
