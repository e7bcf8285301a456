# frozen_string_literal: true

module PgbusNative
  # Refuses arguments of the wrong kind when an object is built, in words that name them, instead of failing later on
  # some thread.
  module Argument
    class << self
      # @raise [TypeError] unless the value has all these methods
      def must_respond(name, value, *methods)
        missing = methods.reject { |method| value.respond_to?(method) }
        raise TypeError, "#{name} must respond to #{missing.join(", ")}, got #{kind_of(value)}" unless missing.empty?
      end

      # @raise [TypeError] unless it is an Integer
      def must_be_integer(name, value)
        raise TypeError, "#{name} must be an Integer, got #{kind_of(value)}" unless value.is_a?(Integer)
      end

      # @return [String]
      # @raise [TypeError, ArgumentError] unless it can be the path of a file
      def path(name, value)
        unless value.is_a?(String) || value.respond_to?(:to_path)
          raise TypeError, "#{name} must be a String or a Pathname, got #{kind_of(value)}"
        end

        path = File.path(value)
        raise ArgumentError, "#{name} must not be empty" if path.empty?

        path
      rescue ArgumentError => e
        raise ArgumentError, "#{name}: #{e.message}" unless e.message.start_with?(name.to_s)

        raise
      end

      private

      # Not the value itself: it may hold a secret.
      def kind_of(value)
        case value
        when nil, true, false then value.inspect
        when Numeric, Symbol then "#{value.inspect} (#{value.class})"
        else "an instance of #{value.class}"
        end
      end
    end
  end
end
