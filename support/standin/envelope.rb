# frozen_string_literal: true

require "json"

module Pgbus
  module Streams
    DEFAULT_SSE_EVENT = "turbo-stream"

    # The bytes of SSE frames (WHATWG HTML, "Server-sent events"): fields by line, an empty line ends a frame.
    module Envelope
      def self.message(id:, event:, data:)
        raise ArgumentError, "id is required" if id.nil?
        raise ArgumentError, "event is required" if event.to_s.empty?

        lines = data.to_s.split(/\r\n|\r|\n/, -1)
        lines << "" if lines.empty?
        "id: #{id}\nevent: #{one_line(event)}\n#{lines.map { |line| "data: #{line}\n" }.join}\n"
      end

      def self.comment(text) = ": #{one_line(text)}\n\n"

      def self.connected(id:) = "event: pgbus:connected\ndata: #{JSON.generate(connectionId: id.to_s)}\n\n"

      def self.retry_directive(milliseconds) = "retry: #{milliseconds}\n\n"

      def self.http_response_headers
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n" \
          "x-accel-buffering: no\r\nconnection: keep-alive\r\n\r\n"
      end

      # A line break would end the field and let its text forge others.
      def self.one_line(text) = text.to_s.delete("\r\n")
      private_class_method :one_line
    end
  end
end
