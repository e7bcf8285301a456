# frozen_string_literal: true

require_relative "fork_guard"
require_relative "words"

module PgbusNative
  # A LISTEN session over libpq, for options that the native session can't honour. It lives until its connection is lost;
  # what takes its place is the next recipe's affair. One thread alone touches the connection.
  class LibpqSession
    # How much longer than a health-check interval the server may take to answer, in seconds. As the native session's.
    GRACE = 4

    CHANNEL = /\Apgmq\.q_(.*)\.INSERT\z/m

    # Classes of errors that are about the name to LISTEN to. Any other one is about the session.
    ABOUT_THE_NAME = /\A(22|42|54|0A)/
    private_constant :GRACE, :CHANNEL, :ABOUT_THE_NAME

    # @return [String] why it is not a native session
    attr_reader :because

    # Connects, on its thread, and reports to the engine what comes of it.
    #
    # @param config [Pgbus::Configuration]
    # @param engine [MasterHub::Engine] who takes reports and wakes
    # @param number [Integer] that of the session, which every report carries
    # @param because [String]
    # @param on_failure [#call] takes the exception that ended it
    def initialize(config, engine, number, because, on_failure:)
      @config = config
      @engine = engine
      @number = number
      @because = because
      @on_failure = on_failure
      @orders = Queue.new
      @ordered, @order = IO.pipe
      @thread = Thread.new { live }
      @thread.name = "pgbus-hub-libpq"
    end

    # @param verb [String] +LISTEN+ or +UNLISTEN+
    # @param queue [String]
    def order(verb, queue)
      @orders << [verb, queue]
      @order.write_nonblock(".", exception: false)
    rescue IOError, SystemCallError
      nil # it has ended
    end

    # Ends it. Returns at once.
    def close = @thread.kill

    # Waits for the end of its thread.
    def join(seconds) = @thread.join(seconds)

    private

    def live
      reason = "its thread was killed"
      @patience = @config.streams_listen_health_check_ms / 1000.0
      @connection = connect
      @engine.session_connected(@number)
      serve
    rescue Exception => e # the app's code, which gives the options, may raise anything
      @on_failure.call(e)
      reason = Words.of(e)
    ensure
      [@connection, @ordered, @order].each { |end_of_it| close_quietly(end_of_it) }
      # Last, since what it is answered with ends this thread.
      @engine.session_lost(@number, reason)
    end

    def connect
      connection = ForkGuard.guard(Pgbus::DedicatedConnection.connect(@config.streams_connection_options))
      Pgbus::Process::PrimaryValidator.validate_primary!(connection)
    rescue StandardError
      connection&.close
      raise
    end

    def serve
      loop do
        carry_out(*@orders.pop) until @orders.empty?
        pass_on_wakes
        readable, = IO.select([@connection.socket_io, @ordered], nil, nil, @patience)
        next query("SELECT 1") unless readable

        @ordered.read_nonblock(4096, exception: false) if readable.include?(@ordered)
        @connection.consume_input if readable.include?(@connection.socket_io)
      end
    end

    def carry_out(verb, queue)
      query(encoded("#{verb} #{PG::Connection.quote_ident("pgmq.q_#{queue}.INSERT")}"))
      @engine.session_did(@number, nil)
    rescue EncodingError, ArgumentError => e
      @engine.session_did(@number, Words.of(e))
    rescue PG::ServerError => e
      raise unless ABOUT_THE_NAME.match?(e.result&.error_field(PG::Result::PG_DIAG_SQLSTATE).to_s)

      @engine.session_did(@number, Words.of(e))
    end

    # Else pg sends what the client's encoding hasn't in bytes that mean something else there.
    def encoded(sql)
      encoding = @connection.internal_encoding
      encoding == Encoding::BINARY ? sql : sql.encode(encoding)
    end

    def query(sql)
      @connection.send_query(sql)
      seconds = @patience + GRACE
      @connection.block(seconds) or raise PG::ConnectionBad, "no answer for #{(seconds * 1000).round} ms"
      @connection.get_last_result
    end

    def pass_on_wakes
      while (notification = @connection.notifies)
        queue = Words.utf8(notification[:relname])[CHANNEL, 1] or next
        payload = Words.utf8(notification[:extra])
        @engine.wake(queue, payload.empty? ? nil : payload)
      end
    end

    def close_quietly(end_of_it)
      end_of_it&.close
    rescue StandardError
      nil
    end
  end
end
