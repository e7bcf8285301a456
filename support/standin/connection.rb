# frozen_string_literal: true

require "concurrent/atomic/atomic_reference"
require "io/wait"

module Pgbus
  module Web
    module Streamer
      # One browser: its socket, the lock that keeps frames whole, and the cursor, which never passes a frame that was
      # not written. Called from the dispatcher, the pump's threads and the heartbeat.
      class Connection
        attr_reader :id, :stream_name, :io, :mutex, :context
        attr_accessor :presence_member

        def initialize(id:, stream_name:, io:, since_id:, writer:, write_deadline_ms:, context: nil)
          @id = id
          @stream_name = stream_name
          @io = io
          @writer = writer
          @write_deadline_ms = write_deadline_ms
          @context = context
          @last_msg_id_sent = Concurrent::AtomicReference.new(since_id.to_i)
          @mutex = Mutex.new
          @dead = @closed = false
          @last_write_at = now
        end

        def last_msg_id_sent = @last_msg_id_sent.get
        def idle_for = now - @last_write_at
        def dead? = @dead
        def mark_dead! = @dead = true

        # @return [Array] the envelopes that were written; the first failure ends the connection
        def enqueue(envelopes, deadline_ms: @write_deadline_ms)
          envelopes.each_with_object([]) do |envelope, written|
            durable = !envelope.msg_id.negative?
            next if durable && envelope.msg_id <= last_msg_id_sent
            break written unless write(frame(envelope), deadline_ms) == :ok

            @last_msg_id_sent.set(envelope.msg_id) if durable
            written << envelope
          end
        end

        def write_comment(text) = write(Streams::Envelope.comment(text), @write_deadline_ms)
        def write_sentinel(bytes) = @writer.write(self, bytes, deadline_ms: @write_deadline_ms)

        def close
          @mutex.synchronize do
            next if @closed

            @closed = true
            mark_dead!
            @io.close if @io.respond_to?(:close) && !(@io.respond_to?(:closed?) && @io.closed?)
          end
        rescue IOError, SystemCallError => e
          Pgbus.logger&.debug { "[standin] closing connection #{id} failed: #{e.class}: #{e.message}" }
        end

        private

        def write(bytes, deadline_ms)
          result = @writer.write(self, bytes, deadline_ms:)
          result == :ok ? @last_write_at = now : mark_dead!
          result
        end

        def frame(envelope)
          event = envelope.event.to_s if envelope.respond_to?(:event)
          event = Streams::DEFAULT_SSE_EVENT if event.nil? || event.empty?
          Streams::Envelope.message(id: envelope.msg_id, event:, data: envelope.payload)
        end

        def now = ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
      end

      # Writes all bytes within the deadline (:ok), or says that the peer is gone (:closed) or too slow (:blocked).
      module IoWriter
        def self.write(connection, bytes, deadline_ms:)
          connection.mutex.synchronize do
            deadline = now + (deadline_ms / 1000.0)
            rest = bytes.b
            until rest.empty?
              case written = connection.io.write_nonblock(rest, exception: false)
              when Integer then rest = rest.byteslice(written..)
              else
                left = deadline - now
                break :blocked unless left.positive? && connection.io.wait_writable(left)
              end
            end || :ok
          end
        rescue Errno::EPIPE, Errno::ECONNRESET, IOError
          :closed
        end

        def self.now = ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        private_class_method :now
      end
    end
  end
end
