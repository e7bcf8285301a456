# frozen_string_literal: true

module PgbusNative
  # The hubs and pumps that were started in this process and still exist. Keeps none of them alive.
  module Live
    @numbers = ObjectSpace::WeakMap.new
    @last = 0
    @pid = Process.pid

    class << self
      # @param object [MasterHub, OutboundPump]
      # @return [void]
      def add(object)
        forget_parent
        @numbers[object] ||= (@last += 1)
      end

      # @param type [Class]
      # @return [Array<(Object, Integer)>] each with its number, unique in this process, in the order of their start
      def each_of(type)
        forget_parent
        @numbers.keys.grep(type).map { |object| [object, @numbers[object]] }.sort_by(&:last)
      end

      private

      # What a parent started is inert here.
      def forget_parent
        return if @pid == Process.pid

        @numbers = ObjectSpace::WeakMap.new
        @pid = Process.pid
      end
    end
  end
end
