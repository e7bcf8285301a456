# frozen_string_literal: true

require "securerandom"

module Pgbus
  module Web
    # The SSE endpoint, a Rack app: GET /STREAM, from the browser's Last-Event-ID, or from ?since=. Takes the socket over
    # from the server and hands it to the worker's streamer.
    class StreamApp
      def initialize(streamer: nil, config: Pgbus.configuration)
        @streamer = streamer
        @config = config
      end

      def call(env)
        stream = env["PATH_INFO"][%r{\A/([\w.-]+)\z}, 1]
        since = env["HTTP_LAST_EVENT_ID"] || env["QUERY_STRING"].to_s[/(?:\A|&)since=([^&]*)/, 1] || "0"
        return refuse(404, "no such stream") unless env["REQUEST_METHOD"] == "GET" && stream
        return refuse(400, "invalid cursor: must be a number from 0, got #{since.inspect}") unless since.match?(/\A\d{1,18}\z/)
        return refuse(503, "too many connections") if streamer.registry.size >= @config.streams_max_connections

        open(env["rack.hijack"].call, stream, since.to_i)
        [-1, {}, []]
      end

      private

      def streamer = @streamer || Streamer.current

      def open(io, stream, since)
        id = SecureRandom.hex(8)
        io.write(Streams::Envelope.http_response_headers, Streams::Envelope.retry_directive(2_000),
                 Streams::Envelope.connected(id:))
        streamer.register(Streamer::Connection.new(id:, stream_name: stream, io:, since_id: since, writer: Streamer::IoWriter,
                                                   write_deadline_ms: @config.streams_write_deadline_ms))
      rescue SystemCallError, IOError
        io.close # the browser left while it was being answered
      end

      def refuse(status, reason) = [status, { "content-type" => "text/plain" }, ["#{reason}\n"]]
    end
  end
end
