# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    # A native writer thread, with what a `Thread` would be asked at a shutdown.
    class WriterThread
      FOREVER = 10 * 365 * 24 * 60 * 60
      private_constant :FOREVER

      # @return [String] as the system shows the thread
      attr_reader :name

      # @param writers [Writers]
      # @param index [Integer] which of them
      def initialize(writers, index)
        @writers = writers
        @index = index
        @name = "pgbus-writer-#{index}"
      end

      # @return [Boolean] whether it runs; false in a forked child
      def alive? = !@writers.join(@index, 0)

      # Waits until it has ended.
      #
      # @param timeout [Numeric, nil] seconds; nil: as long as it takes
      # @return [self, nil] nil: it still runs
      def join(timeout = nil)
        self if @writers.join(@index, timeout || FOREVER)
      end

      def inspect = "#<#{self.class} #{@name} #{alive? ? "run" : "dead"}>"
    end
  end
end
