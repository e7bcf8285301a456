# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    # Writes to the connections that writer threads can't serve (TLS sockets, Falcon bodies, a changed `Connection`):
    # Ruby threads that call the connection's own `enqueue`. Each connection belongs to one of them; a thread begins
    # when the first job for it comes.
    class RubyWay
      Job = Data.define(:connection, :envelopes, :batch_max, :deadline_ms)
      private_constant :Job

      # @param count [Integer] threads at most
      # @param limit [Integer] frames that may wait for a connection; 0: any number
      # @param overflow [Symbol] one of {Configuration::OVERFLOW_POLICIES}
      def initialize(count, limit, overflow, outcome)
        @lanes = Array.new(count) { Lane.new(limit, overflow, outcome) }
        @started = false
      end

      def start
        @started = true
        @lanes.each(&:start)
      end

      # Takes a job.
      def post(connection, envelopes, batch_max, deadline_ms)
        job = Job.new(connection:, envelopes: envelopes.to_a.dup.freeze, batch_max:, deadline_ms:)
        lane_of(connection).post(job)
      end

      # Whether a job of this connection waits here or is being written.
      def busy?(connection) = lane_of(connection).busy?(connection)

      # Lets the threads end as soon as nothing waits.
      def stop
        @started = false
        @lanes.each(&:stop)
      end

      # @return [Array<Thread>] those that live
      def threads = @lanes.filter_map(&:thread)

      # Waits for those that live.
      #
      # @param seconds [Numeric] for each
      # @return [Integer] how many did not end in time
      def join(seconds) = @lanes.count { |lane| !lane.join(seconds) }

      # @return [Integer] how often a thread came back that was killed
      def restarts = @lanes.sum(&:restarts)

      # @return [Integer] frames that wait
      def waiting = @lanes.sum(&:waiting)

      # @return [Hash{Symbol => Integer}]
      def counts
        @lanes.map(&:counts).reduce { |all, counts| all.merge(counts) { |_, one, other| one + other } }
      end

      private

      def lane_of(connection) = @lanes[connection.id.hash % @lanes.size]
    end
    private_constant :RubyWay
  end
end
