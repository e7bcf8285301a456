# frozen_string_literal: true

module PgbusNative
  # The hubs and pumps that were started in this process and still exist. Keeps none of them alive.
  module Live
    @last = 0
    @numbers = {}
    @pid = Process.pid

    class << self
      # @param kind [Symbol] `:hub` or `:pump`
      # @param object [MasterHub, OutboundPump]
      # @return [void]
      def add(kind, object)
        numbers(kind)[object] ||= (@last += 1)
      end

      # @param kind [Symbol]
      # @return [Array<(Object, Integer)>] each with its number, unique in this process, in the order of their start
      def each_of(kind)
        numbers = numbers(kind)
        numbers.keys.map { |object| [object, numbers[object]] }.sort_by(&:last)
      end

      private

      def numbers(kind)
        # What a parent started is inert here.
        @numbers, @pid = {}, Process.pid unless @pid == Process.pid
        @numbers[kind] ||= ObjectSpace::WeakMap.new
      end
    end
  end
end
