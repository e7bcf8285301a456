# frozen_string_literal: true

require "json"

module Pgbus
  module Web
    module Streamer
      # The one thread that owns which browser is on which stream: takes wakes and arrivals from the dispatch queue, reads
      # the table, and hands envelopes to the pump.
      class StreamEventDispatcher
        ConnectMessage = Data.define(:connection)
        DisconnectMessage = Data.define(:connection)
        WriteAckMessage = Data.define(:connection, :accepted_max)
        WakeMessage = Listener::WakeMessage
        StreamEnvelope = Data.define(:msg_id, :enqueued_at, :payload, :source, :visible_to, :exclude, :event) do
          def initialize(msg_id:, enqueued_at:, payload:, source:, visible_to: nil, exclude: nil, event: nil) = super
        end

        READ_LIMIT = 500

        def initialize(client:, registry:, listener:, dispatch_queue:, pump: nil, ack_queue: Queue.new,
                       config: Pgbus.configuration, filters: Pgbus::Streams.filters, stream_counter: StreamCounter.new,
                       logger: Pgbus.logger)
          @client = client
          @registry = registry
          @listener = listener
          @queue = dispatch_queue
          @pump = pump
          @acks = ack_queue
          @config = config
          @filters = filters
          @stream_counter = stream_counter
          @logger = logger
          @streams = {} # queue name → stream name, for the streams that somebody is on
          @accepted = {} # connection → the highest msg_id its pump accepted
          @ephemeral = 0
        end

        def start
          @thread ||= Thread.new { run }
          self
        end

        def stop
          @queue << :stop
          @thread&.join(5)
          self
        end

        private

        def run
          while (message = @queue.pop) != :stop
            begin
              handle(message)
            rescue StandardError => e
              @logger.error { "[standin] #{message.class} failed: #{e.class}: #{e.message}" }
            end
          end
        end

        def handle(message)
          case message
          when WakeMessage then wake(message)
          when ConnectMessage then connect(message.connection)
          when DisconnectMessage then disconnect(message.connection)
          end
        end

        # Subscribe, read, drain, register. Whatever is committed before the subscription is active is in what is read;
        # every later wake waits on the queue until this browser is registered.
        def connect(connection)
          stream = connection.stream_name
          queue = notify_queue_name_for(stream)
          @listener.ensure_listening(queue)
          @streams[queue] = stream
          loop do
            envelopes = read_after(stream, connection.last_msg_id_sent)
            connection.enqueue(envelopes)
            break if envelopes.size < READ_LIMIT || connection.dead?
          end
          @stream_counter.increment_total_connections(stream)
          join(connection) unless connection.dead?
        rescue StandardError
          connection.mark_dead!
          raise
        ensure
          disconnect(connection) if connection.dead?
        end

        def join(connection)
          @stream_counter.increment_connections(connection.stream_name)
          @registry.register(connection)
          presence_join(connection, connection.stream_name)
        end

        def disconnect(connection)
          left = @registry.unregister(connection)
          @stream_counter.decrement_connections(connection.stream_name) if left
          @accepted.delete(connection)
          connection.close
          queue = notify_queue_name_for(connection.stream_name)
          return unless @registry.empty?(connection.stream_name)

          @listener.remove_listening(queue) if @streams.delete(queue)
        end

        def wake(message)
          stream = @streams[message.queue_name] or return
          connections = @registry.connections_for(stream)
          return if connections.empty?

          message.payload ? send_ephemeral(message.payload, connections) : send_durable(stream, connections)
        end

        def send_durable(stream, connections)
          note_acks
          envelopes = read_after(stream, connections.map { |each| accepted(each) }.min)
          return if envelopes.empty?

          @stream_counter.increment_broadcasts(stream)
          max = envelopes.last.msg_id
          deadline_ms = @config.streams_fanout_write_deadline_ms
          connections.each do |each|
            @pump ? @pump.post(each, envelopes, max, deadline_ms:) : each.enqueue(envelopes, deadline_ms:)
          end
        end

        # These have no table to be read from again: written at once, by this thread.
        def send_ephemeral(json, connections)
          envelope = unwrap(msg_id: -(@ephemeral += 1), enqueued_at: nil, json:, source: "ephemeral")
          connections.each do |connection|
            next if connection.dead?

            connection.enqueue([envelope], deadline_ms: @config.streams_fanout_write_deadline_ms)
            @queue << DisconnectMessage.new(connection:) if connection.dead?
          end
        end

        def note_acks
          until @acks.empty?
            ack = @acks.pop
            next unless @registry.include?(ack.connection)

            @accepted[ack.connection] = [ack.accepted_max, accepted(ack.connection)].max
          end
        end

        def accepted(connection) = [@accepted.fetch(connection, 0), connection.last_msg_id_sent].max

        def read_after(stream, id)
          @client.read_after(stream, after_id: id, limit: READ_LIMIT).map do |row|
            unwrap(msg_id: row.msg_id, enqueued_at: row.enqueued_at, json: row.payload, source: row.source)
          end
        end

        def unwrap(json:, **)
          message = JSON.parse(json)
          StreamEnvelope.new(payload: message.fetch("html"), event: message["event"], **)
        end

        def notify_queue_name_for(stream) = @config.queue_name(stream)

        # Of presence, statistics and ActiveRecord's connections an app without Rails has none.
        def presence_join(connection, stream) = nil
        def record_stat(stream_name:, event_type:, started_at:, fanout: nil, ephemeral: false) = nil
        def release_ar_connections = nil
        def monotonic_ms = ::Process.clock_gettime(::Process::CLOCK_MONOTONIC, :float_millisecond)
      end
    end
  end
end
