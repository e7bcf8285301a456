# frozen_string_literal: true

module Chaos
  # What an app does all the time: changes of streams, each with its NOTIFY, and ephemeral wakes that are timed. Goes on
  # through every loss of its connections.
  class Broadcasts
    PAUSE = 0.02

    # @param url [String] of the database, past the line that falls silent
    # @param streams [Array<String>]
    def initialize(url, streams)
      @url = url
      @streams = streams
      @readers = Mutex.new
      @turns = Mutex.new
      @committed = Hash.new(0)
      with_connection { |connection| connection.exec("CREATE TABLE versions (stream text PRIMARY KEY, version bigint)") }
      @thread = Thread.new { loop { @turns.synchronize { broadcast } && sleep(PAUSE) } }
    end

    # Runs the block between two changes, with the versions that are committed by then.
    def paused = @turns.synchronize { yield @committed.dup }

    # @return [Integer] the version of a stream that the database has
    def version(stream)
      @readers.synchronize do
        @reader ||= connect
        @reader.exec_params("SELECT version FROM versions WHERE stream = $1", [stream]).values.dig(0, 0).to_i
      rescue PG::Error
        @reader = nil
        # A table that can't be read for a moment is read until it can: so does the dispatcher.
        sleep PAUSE
        retry
      end
    end

    private

    # The server's last words at a crash are no news here.
    def connect = PG.connect(@url).tap { |connection| connection.set_notice_processor { nil } }

    def with_connection
      yield(@connection ||= connect)
      true
    rescue PG::Error
      @connection = nil
      true
    end

    def broadcast
      with_connection do |connection|
        stream = @streams.sample
        row = connection.exec_params(<<~SQL, [stream, "pgmq.q_#{stream}.INSERT"])
          WITH changed AS (
            INSERT INTO versions VALUES ($1, 1) ON CONFLICT (stream) DO UPDATE SET version = versions.version + 1
            RETURNING version
          )
          SELECT version, pg_notify($2, '') FROM changed
        SQL
        @committed[stream] = row.getvalue(0, 0).to_i
        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        connection.exec_params("SELECT pg_notify('pgmq.q_#{Witness::TIMED}.INSERT', $1)", [now.to_s])
      end
    end
  end
end
