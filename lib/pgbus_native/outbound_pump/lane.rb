# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    class RubyWay
      # One Ruby thread and the connections that belong to it. They take turns, a job each.
      class Lane
        COUNTS = { posted: 0, written: 0, dropped: 0, dead: 0, acks: 0 }.freeze
        WAKE = Object.new.freeze
        private_constant :COUNTS, :WAKE

        def initialize(limit, overflow, outcome)
          @limit = limit
          @overflow = overflow
          @outcome = outcome
          @mutex = Mutex.new
          @ready = Thread::Queue.new
          # A connection is here from its first job until its last one is done.
          @backlogs = {}.compare_by_identity
          @overflowed = {}.compare_by_identity
          @counts = COUNTS.dup
          @running = false
          @helper = HelperThread.new("pgbus-pump-ruby", outcome.guard) { work }
          # From the start of its thread until that has seen that nothing is left to do.
          @serving = false
        end

        # @return [Thread, nil] the one that lives
        def thread = @helper.thread

        # @return [Integer] how often the thread came back
        def restarts = @helper.restarts

        # @return [Boolean] whether its thread has ended within these seconds
        def join(seconds) = @helper.join(seconds)

        def start
          @mutex.synchronize do
            @running = true
            need_thread unless @backlogs.empty?
          end
        end

        # Takes no lock, so that a signal handler can call it.
        def stop
          @running = false
          @ready << WAKE
        end

        def post(job)
          connection = job.connection
          drops = 0
          refused = false
          @mutex.synchronize do
            # Nothing is written to it any more, and its death is told already or will be.
            return if connection.dead?

            @counts[:posted] += job.envelopes.size unless outlet?(connection)
            backlog = @backlogs[connection]
            unless backlog
              backlog = @backlogs[connection] = Backlog.new(@limit, @overflow)
              @ready << connection
            end
            drops, refused = add(backlog, job)
            need_thread if @running
          end
          connection.mark_dead! if refused
          @outcome.overflow(connection, drops, @overflow) if drops.positive?
        end

        def busy?(connection) = @mutex.synchronize { @backlogs.key?(connection) }

        # Takes no lock, so that a signal handler can call it.
        def waiting = @backlogs.values.sum(&:frames)

        # Takes no lock, so that a signal handler can call it.
        def counts = @counts.dup

        private

        def need_thread
          return if @serving && @helper.alive?

          @helper.start
          @serving = true
        end

        # @return [Array<(Integer, Boolean)>] jobs dropped, and whether the connection is to end
        def add(backlog, job)
          dropped = backlog.push(job)
          drops = dropped || (backlog.size + 1)
          unless dropped
            nil while backlog.shift
            @overflowed[job.connection] = true
          end
          drops.times { count_drop(job) }
          [drops, dropped.nil?]
        end

        def count_drop(job)
          count = @counts[:dropped] += 1
          return unless count.nobits?(count - 1)

          @outcome.log(:warn, "dropped #{count} job(s) under buffer_limit=#{@limit} (connection #{job.connection.id})")
        end

        # One turn.
        def work
          return false if ended?

          connection = @ready.pop
          take_turn(connection) unless connection.equal?(WAKE)
          true
        end

        def ended?
          @mutex.synchronize do
            ended = !@running && @backlogs.empty?
            @serving = false if ended
            ended
          end
        end

        def take_turn(connection)
          job, overflowed = @mutex.synchronize { [@backlogs[connection]&.shift, @overflowed.delete(connection)] }
          if overflowed
            dead(connection)
          elsif job
            process(job)
          end
        ensure
          @mutex.synchronize do
            if @backlogs[connection]&.size&.positive? || @overflowed.key?(connection)
              @ready << connection
            else
              @backlogs.delete(connection)
            end
          end
        end

        def process(job)
          connection = job.connection
          return if connection.dead?

          begin
            frames, accepted_max = write(job)
            alive = frames && !connection.dead?
            written(connection, frames, accepted_max) if alive
          ensure
            dead(connection) unless alive # whatever ended the write may have torn a frame
          end
        end

        # @return [Array<(Integer, Integer)>, nil] frames written and what is acknowledged; nil if the connection raised
        def write(job)
          written = HelperThread.interruptibly { job.connection.enqueue(job.envelopes, deadline_ms: job.deadline_ms) }
          [written.size, accepted_max(job, written)]
        rescue SystemExit
          raise
        rescue Exception => e
          @outcome.log(:error) { "write failed for #{job.connection.id}: #{e.class}: #{e.message}" }
          nil
        end

        def written(connection, frames, accepted_max)
          # What a connection with an outlet took is not in its socket yet, and counts there.
          return connection.native_outlet.acknowledge if outlet?(connection)

          count(:written, frames)
          count(:acks, 1)
          @outcome.ack(connection, accepted_max)
        end

        def outlet?(connection) = connection.respond_to?(:native_outlet) && !connection.native_outlet.nil?

        def accepted_max(job, written)
          job.batch_max || written.map(&:msg_id).max || job.connection.last_msg_id_sent
        end

        def dead(connection)
          count(:dead, 1)
          @outcome.dead(connection)
          # An overflow from before it was marked dead is told with that.
          @mutex.synchronize { @overflowed.delete(connection) }
        end

        def count(name, number)
          @mutex.synchronize { @counts[name] += number }
        end
      end
      private_constant :Lane
    end
  end
end
