# frozen_string_literal: true

require "json"
require "pg"

module Pgbus
  # Opens a session of one's own, with `variables:` SET after connecting.
  module DedicatedConnection
    APP_NAME = "pgbus-listen"

    def self.connect(options)
      return PG.connect(options, fallback_application_name: APP_NAME) if options.is_a?(String)

      connection = PG.connect(fallback_application_name: APP_NAME, **options.except(:variables))
      options[:variables]&.each { |name, value| connection.exec("SET #{name} = #{connection.escape_literal(value.to_s)}") }
      connection
    rescue PG::Error
      connection&.close
      raise
    end
  end

  module Process
    class ReplicaConnectionError < StandardError; end

    # NOTIFY fires on the primary alone.
    module PrimaryValidator
      def self.validate_primary!(connection)
        return connection if connection.exec("SELECT pg_is_in_recovery()").getvalue(0, 0) == "f"

        raise ReplicaConnectionError, "the LISTEN session is on a read-only replica"
      end
    end
  end

  # One table per stream, as PGMQ lays it out, whose trigger says NOTIFY without a payload. One session per process.
  class Client
    Envelope = Data.define(:msg_id, :enqueued_at, :payload, :source)

    TRIGGER = <<~SQL
      CREATE SCHEMA IF NOT EXISTS pgmq;
      CREATE OR REPLACE FUNCTION pgmq.wake_listeners() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_notify('pgmq.' || TG_TABLE_NAME || '.' || TG_OP, NULL); RETURN NULL; END
      $$;
    SQL
    QUEUE = <<~SQL
      CREATE TABLE IF NOT EXISTS %<table>s (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(), message jsonb NOT NULL);
      CREATE TABLE IF NOT EXISTS %<archive>s (LIKE %<table>s, archived_at timestamptz NOT NULL DEFAULT now());
      CREATE OR REPLACE TRIGGER wake_listeners AFTER INSERT ON %<table>s FOR EACH STATEMENT
        EXECUTE FUNCTION pgmq.wake_listeners();
    SQL

    attr_reader :config

    def initialize(config)
      @config = config
      @mutex = Mutex.new
    end

    # Each process has a session of its own.
    def shared_connection? = false

    def ensure_stream_queue(stream) = exec("#{TRIGGER}#{format(QUEUE, table: table(stream), archive: table(stream, "a"))}")

    def read_after(stream, after_id:, limit: 500)
      exec("SELECT msg_id, enqueued_at, message FROM #{table(stream)} WHERE msg_id > $1 ORDER BY msg_id LIMIT $2",
           [after_id, limit]).map do |row|
        Envelope.new(msg_id: row["msg_id"].to_i, enqueued_at: row["enqueued_at"], payload: row["message"], source: "live")
      end
    end

    def stream_current_msg_id(stream) = exec("SELECT coalesce(max(msg_id), 0) FROM #{table(stream)}").getvalue(0, 0).to_i

    # @return [Integer] its msg_id
    def broadcast_durable(stream, message)
      exec("INSERT INTO #{table(stream)} (message) VALUES ($1) RETURNING msg_id", [message.to_json]).getvalue(0, 0).to_i
    end

    def notify_stream(stream, message)
      exec("SELECT pg_notify($1, $2)", ["pgmq.q_#{config.queue_name(stream)}.INSERT", message.to_json])
    end

    private

    def table(stream, kind = "q") = "pgmq.#{PG::Connection.quote_ident("#{kind}_#{config.queue_name(stream)}")}"

    def exec(sql, params = nil)
      @mutex.synchronize do
        unless @pid == ::Process.pid # a session must not cross a fork
          @connection = PG.connect(config.streams_connection_options)
          @connection.exec("SET client_min_messages = warning")
          @pid = ::Process.pid
        end
        params ? @connection.exec_params(sql, params) : @connection.exec(sql)
      end
    end
  end

  # A stream as a broadcaster sees it.
  Stream = Data.define(:name, :durable) do
    def broadcast(html, event: nil)
      message = { html:, event: }.compact
      durable ? Pgbus.client.broadcast_durable(name, message) : Pgbus.client.notify_stream(name, message)
    end

    def current_msg_id = Pgbus.client.stream_current_msg_id(name)
  end

  class << self
    def client = @client ||= Client.new(configuration)
    def stream(name, durable: false) = Stream.new(name:, durable:)
  end
end
