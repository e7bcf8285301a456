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

    INSTANCE = { register: "_", build_pump: "", close_all_connections: "" }.freeze

    CONNECTION_STATE = %i[@closed @dead @io @last_msg_id_sent @last_write_at @mutex @write_deadline_ms @writer].freeze

    CONFIGURATION = %i[streams_connection_options streams_dispatch_queue_limit streams_listen_health_check_ms].freeze

    # Not as expected; the message says what.
    class Difference < StandardError; end
    private_constant :Difference

    class << self
      # @param name [Symbol] `:OutboundPump` or `:MasterHub`
      # @param streamer [Module] `Pgbus::Web::Streamer`
      # @return [String, nil] the first difference, for a person
      def difference(name, streamer)
        name == :OutboundPump ? outbound_pump(streamer) : master_hub(streamer)
        nil
      rescue StandardError => e
        e.is_a?(Difference) ? e.message : "#{e.class}: #{e.message.lines.first&.chomp}"
      end

      private

      def outbound_pump(streamer)
        replaceable streamer::OutboundPump, OUTBOUND_PUMP
        signatures streamer::Connection, CONNECTION
        connection_state streamer
        signatures streamer::Instance, INSTANCE
        members streamer::StreamEventDispatcher::DisconnectMessage, %i[connection]
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

      # What the patch looks at before it takes a connection in.
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
