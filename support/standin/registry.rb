# frozen_string_literal: true

module Pgbus
  module Web
    module Streamer
      # The connections of a worker, by stream.
      class Registry
        def initialize
          @mutex = Mutex.new
          @by_stream = Hash.new { |streams, name| streams[name] = {}.compare_by_identity }
        end

        def register(connection) = synchronize { @by_stream[connection.stream_name][connection] = true }

        def unregister(connection)
          synchronize do
            connections = @by_stream[connection.stream_name]
            left = connections.delete(connection)
            @by_stream.delete(connection.stream_name) if connections.empty?
            left
          end
        end

        def connections_for(stream_name) = synchronize { @by_stream.fetch(stream_name, {}).keys }
        def empty?(stream_name) = synchronize { !@by_stream.key?(stream_name) }
        def include?(connection) = synchronize { @by_stream.fetch(connection.stream_name, {}).key?(connection) }
        def each_connection(&) = synchronize { @by_stream.values.flat_map(&:keys) }.each(&)
        def size = synchronize { @by_stream.each_value.sum(&:size) }

        private

        def synchronize(&) = @mutex.synchronize(&)
      end
    end
  end
end
