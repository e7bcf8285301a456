# frozen_string_literal: true

require "json"

module Pgbus
  module Web
    module Streamer
      # Frames between hub and worker: 4-byte big-endian length, then a JSON object.
      module HubProtocol
        class ProtocolError < StandardError; end

        HEADER_BYTES = 4
        MAX_FRAME_BYTES = 4 * 1024 * 1024

        module_function

        def encode(message)
          json = JSON.generate(message).b
          refuse_oversize(json.bytesize)
          [json.bytesize].pack("N") << json
        end

        # @return [Hash, nil] the next frame; nil once the peer is gone, also in the middle of a frame
        def read_frame(io)
          header = io.read(HEADER_BYTES)
          return unless header&.bytesize == HEADER_BYTES

          length = header.unpack1("N")
          refuse_oversize(length)
          body = io.read(length)
          decode(body) if body&.bytesize == length
        rescue Errno::ECONNRESET
          nil
        end

        def refuse_oversize(length)
          return if length <= MAX_FRAME_BYTES

          raise ProtocolError, "frame too large: #{length} bytes (max #{MAX_FRAME_BYTES})"
        end

        def decode(body)
          body.force_encoding(Encoding::UTF_8)
          raise ProtocolError, "malformed frame: not UTF-8" unless body.valid_encoding?

          frame = JSON.parse(body)
          frame.is_a?(Hash) ? frame : raise(ProtocolError, "malformed frame: #{frame.class} where an object must be")
        rescue JSON::ParserError => e
          raise ProtocolError, "malformed frame: #{e.message}"
        end
      end
    end
  end
end
