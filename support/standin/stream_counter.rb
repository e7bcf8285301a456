# frozen_string_literal: true

module Pgbus
  module Web
    module Streamer
      # How many broadcasts and connections a stream had.
      class StreamCounter
        def initialize
          @mutex = Mutex.new
          @counts = Hash.new { |counts, stream| counts[stream] = Hash.new(0) }
        end

        def increment_broadcasts(stream_name) = add(stream_name, :broadcasts, 1)
        def increment_connections(stream_name) = add(stream_name, :connections, 1)
        def decrement_connections(stream_name) = add(stream_name, :connections, -1)
        def increment_total_connections(stream_name) = add(stream_name, :total_connections, 1)
        def broadcasts(stream_name) = @mutex.synchronize { @counts[stream_name][:broadcasts] }

        private

        def add(stream_name, what, amount) = @mutex.synchronize { @counts[stream_name][what] += amount }
      end
    end
  end

  module Streams
    # Who may see a message that names a filter: nobody, if there is none of that name.
    class Filters
      def initialize = @filters = {}
      def register(label, &block) = @filters[label] = block
      def visible?(label, context) = label.nil? || !!@filters[label]&.call(context)
    end

    class << self
      def filters = @filters ||= Filters.new
    end
  end
end
