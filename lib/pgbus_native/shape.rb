# frozen_string_literal: true

module PgbusNative
  # What the native classes know of the pgbus around them. A version number promises; this looks.
  #
  # {difference} compares the pgbus that is loaded with what is written here, and names the first thing that isn't as
  # expected. pgbus's own class then stays: a class that almost fits would be worse than a slow one.
  module Shape
    # Signatures, keywords in alphabetical order and in brackets where they may be left out; `_` is a positional argument.
    # Of the two classes that get replaced every public method must be known: one more is one the native class lacks.
    OUTBOUND_PUMP = {
      initialize: "ack_queue: on_dead: threads: [buffer_limit:] [logger:]",
      alive?: "", post: "_ _ _ deadline_ms:", start: "", stop: "", worker_threads: ""
    }.freeze

    MASTER_HUB = {
      initialize: "config: socket_path: [durable_queue_limit:] [hard_queue_limit:] [listener_factory:] [logger:] " \
                  "[status_interval:]",
      dropped_durable_wakes: "", evicted_workers: "", socket_path: "", start: "", stop: ""
    }.freeze

    CONNECTION = {
      initialize: "id: io: since_id: stream_name: write_deadline_ms: writer: [context:]",
      close: "", dead?: "", enqueue: "_ [deadline_ms:]", id: "", idle_for: "", io: "", last_msg_id_sent: "",
      mark_dead!: "", mutex: "", write_comment: "_", write_sentinel: "_"
    }.freeze

    CONNECTION_STATE = %i[@closed @dead @io @last_msg_id_sent @last_write_at @mutex @write_deadline_ms @writer].freeze

    CONFIGURATION = %i[streams_connection_options streams_dispatch_queue_limit streams_listen_health_check_ms].freeze

    # What the feed relies on in the dispatcher and the streamer around it.
    DISPATCHER = {
      handle: "_", notify_queue_name_for: "_", monotonic_ms: "", presence_join: "_ _", release_ar_connections: "",
      record_stat: "event_type: started_at: stream_name: [ephemeral:] [fanout:]", start: "", stop: ""
    }.freeze

    DISPATCHER_STATE = %i[@filters @logger @registry @stream_counter].freeze

    INSTANCE = { build_listener: "_ _", register: "_" }.freeze

    REGISTRY = { connections_for: "_", empty?: "_", register: "_", unregister: "_" }.freeze

    COUNTER = { increment_broadcasts: "_", increment_connections: "_", increment_total_connections: "_" }.freeze

    CLIENT = { config: "", read_after: "_ after_id: [limit:]", shared_connection?: "" }.freeze

    FEED_CONFIGURATION = %i[queue_name streams_connection_options streams_fanout_write_deadline_ms
                            streams_listen_health_check_ms streams_listen_scope streams_pool_autoscale
                            streams_pool_connection_options streams_write_deadline_ms streams_writer_threads].freeze

    # Messages whose frames must have the same bytes.
    MESSAGES = ["", "plain", "a\nb\r\nc\rd\n", "\n", "é \u2028 \u{1F600} \0 </script>", "id: 7", " leading"].freeze
    EVENTS = [nil, "presence", " padded ", "two\nlines", ""].freeze
    private_constant :MESSAGES, :EVENTS

    # Not as expected; the message says what.
    class Difference < StandardError; end
    private_constant :Difference

    class << self
      # @param name [Symbol] `:OutboundPump`, `:MasterHub` or `:StreamEventDispatcher`
      # @param streamer [Module] `Pgbus::Web::Streamer`
      # @return [String, nil] the first difference, for a person
      def difference(name, streamer)
        case name
        when :OutboundPump then outbound_pump(streamer)
        when :MasterHub then master_hub(streamer)
        else feed(streamer)
        end
        nil
      rescue StandardError => e
        e.is_a?(Difference) ? e.message : "#{e.class}: #{e.message.lines.first&.chomp}"
      end

      private

      def outbound_pump(streamer)
        replaceable streamer::OutboundPump, OUTBOUND_PUMP
        signatures streamer::Connection, CONNECTION
        connection_state streamer
        signature "IoWriter.write", streamer::IoWriter.method(:write), "_ _ deadline_ms:"
        signature "Envelope.message", ::Pgbus::Streams::Envelope.method(:message), "data: event: id:"
        members streamer::StreamEventDispatcher::WriteAckMessage, %i[connection accepted_max]
      end

      def master_hub(streamer)
        replaceable streamer::MasterHub, MASTER_HUB
        members streamer::Listener::WakeMessage, %i[queue_name payload]
        frame = streamer::HubProtocol.encode({ "t" => "ack", "q" => "é" })
        same "a frame of HubProtocol", frame.b, "\0\0\0\x14{\"t\":\"ack\",\"q\":\"é\"}".b
        CONFIGURATION.each do |setting|
          same "Configuration##{setting}", ::Pgbus::Configuration.public_method_defined?(setting), true
        end
      end

      def feed(streamer)
        dispatcher = streamer::StreamEventDispatcher
        signatures dispatcher, DISPATCHER
        dispatcher_state dispatcher
        signatures streamer::Instance, INSTANCE
        signatures streamer::Registry, REGISTRY
        signatures streamer::StreamCounter, COUNTER
        members dispatcher::ConnectMessage, %i[connection]
        members streamer::Listener::WakeMessage, %i[queue_name payload]
        CLIENT.each { |name, text| signature "Client##{name}", ::Pgbus::Client.instance_method(name), text }
        FEED_CONFIGURATION.each do |setting|
          same "Configuration##{setting}", ::Pgbus::Configuration.public_method_defined?(setting), true
        end
        frames
      end

      # A dispatcher starts nothing before it is asked to.
      def dispatcher_state(dispatcher)
        probe = dispatcher.new(client: nil, registry: nil, listener: nil, dispatch_queue: nil)
        DISPATCHER_STATE.each { |name| same "StreamEventDispatcher's #{name}", probe.instance_variable_defined?(name), true }
      end

      # Byte by byte what pgbus makes of a message.
      def frames
        MESSAGES.product(EVENTS) do |html, event|
          row = JSON.generate({ html:, event: }.compact)
          kept = event.to_s.strip
          kept = ::Pgbus::Streams::DEFAULT_SSE_EVENT if kept.empty? || kept.match?(/[\r\n]/)
          known = ::Pgbus::Streams::Envelope.message(id: 7, event: kept, data: html)
          same "the frame of #{row}", Feed::Engine.frame_of_row(7, row).b, known.b
        end
      end

      def replaceable(klass, known)
        signatures klass, known
        same "#{klass.name}'s public methods", klass.public_instance_methods(false).sort, (known.keys - [:initialize]).sort
      end

      def signatures(klass, known)
        known.each { |name, text| signature "#{klass.name}##{name}", own_method(klass, name), text }
      end

      # The class's own method, below what was prepended to it.
      def own_method(klass, name)
        method = klass.instance_method(name)
        method = method.super_method until method.owner == klass
        method
      end

      def signature(name, method, known)
        positional, keywords = method.parameters.partition { |kind, _| !%i[key keyreq].include?(kind) }
        positional.map! { |kind, argument| kind == :req ? "_" : "#{kind} #{argument}" }
        optional, required = keywords.partition { |kind, _| kind == :key }
        required = required.map { |_, keyword| "#{keyword}:" }.sort
        optional = optional.map { |_, keyword| "[#{keyword}:]" }.sort
        same name, [*positional, *required, *optional].join(" "), known
      end

      # Where the seam puts its lock and its cursor.
      def connection_state(streamer)
        require "concurrent/atomic/atomic_reference" # which pgbus depends on, and leaves to Rails to load
        probe = streamer::Connection.new(id: "probe", stream_name: "probe", io: nil, since_id: 1,
                                         writer: streamer::IoWriter, write_deadline_ms: 1)
        CONNECTION_STATE.each { |name| same "Connection's #{name}", probe.instance_variable_defined?(name), true }
        same "Connection's lock", probe.instance_variable_get(:@mutex).is_a?(Thread::Mutex), true
        same "Connection's cursor", probe.instance_variable_get(:@last_msg_id_sent).get, 1
      end

      def members(data, known)
        same "#{data.name}'s members", data.members, known
      end

      def same(what, found, known)
        raise Difference, "#{what}: found #{found.inspect}, known is #{known.inspect}" unless found == known
      end
    end
  end
end
