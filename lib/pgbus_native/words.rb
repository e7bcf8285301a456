# frozen_string_literal: true

module PgbusNative
  # Texts of others, as the engine takes them.
  module Words
    class << self
      # @param text [String] in any encoding, and maybe not even that
      # @return [String] in UTF-8, with what isn't a character replaced
      def utf8(text)
        text = text.dup.force_encoding(Encoding::UTF_8) if text.encoding == Encoding::BINARY
        text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).scrub
      end

      # @param error [Exception] libpq's, which says what it is, or any other
      # @return [String] for a log line
      def of(error)
        text = utf8(error.message.to_s).strip
        defined?(::PG::Error) && error.is_a?(::PG::Error) ? text : "#{error.class}: #{text}"
      rescue StandardError
        error.class.to_s # whose message can't be had
      end
    end
  end
end
