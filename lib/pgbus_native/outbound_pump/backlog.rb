# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    class RubyWay
      # The jobs that wait for one connection, with what each of them adds: pgbus posts everything that is not yet
      # acknowledged again with each wake.
      class Backlog
        # @return [Integer] frames that wait
        attr_reader :frames

        # @param limit [Integer] frames that may wait; 0: any number
        # @param overflow [Symbol] one of {Configuration::OVERFLOW_POLICIES}
        def initialize(limit, overflow)
          @limit = limit
          @overflow = overflow
          @jobs = []
          @frames = 0
          @taken_to = @queued_to = -1
        end

        def size = @jobs.size

        # Adds a job, as far as the limit allows. A job for an empty backlog always waits.
        #
        # @return [Integer, nil] how many older jobs were dropped for it; nil: it was refused
        def push(job)
          known, fresh = job.envelopes.partition { |envelope| envelope.msg_id <= @queued_to }
          dropped = 0
          if @limit.positive? && @frames.positive? && !fresh.empty? && @frames + fresh.size > @limit
            return if @overflow == :disconnect

            dropped = drop_oldest(@frames + fresh.size - @limit, known.map(&:msg_id).min)
          end
          add(job.with(envelopes: fresh, batch_max: (job.batch_max if job.envelopes.empty?)))
          dropped
        end

        # @return [Job, nil] the next one
        def shift
          job = @jobs.shift or return
          @frames -= job.envelopes.size
          @taken_to = [@taken_to, last_of(job)].max
          job
        end

        private

        def add(job)
          @jobs << job
          @frames += job.envelopes.size
          @queued_to = [@queued_to, last_of(job)].max
        end

        # A job with messages from `known_from` on stays: whoever posts them again would not post them a third time.
        def drop_oldest(excess, known_from)
          dropped = 0
          while excess.positive? && (job = @jobs.first) && (known_from.nil? || last_of(job) < known_from)
            excess -= @jobs.shift.envelopes.size
            @frames -= job.envelopes.size
            dropped += 1
          end
          @queued_to = [@taken_to, *@jobs.map { |waiting| last_of(waiting) }].max
          dropped
        end

        def last_of(job) = job.envelopes.map(&:msg_id).max || -1
      end
      private_constant :Backlog
    end
  end
end
