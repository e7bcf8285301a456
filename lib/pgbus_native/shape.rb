# frozen_string_literal: true

module PgbusNative
  # What the native classes need of the pgbus around them. A version number promises; this looks.
  #
  # {difference} asks two things: does the native class answer to all that pgbus's own answers to (a member that it lacks
  # would be hidden), and is there all that it relies on. Whatever else a release adds makes no difference. The first
  # thing that isn't so is named, and pgbus's own class then stays: a class that almost fits would be worse than a slow one.
  module Shape
    # How we call pgbus's methods: `_` is a positional argument.
    CONNECTION = {
      close: "", dead?: "", enqueue: "_ deadline_ms:", id: "", idle_for: "", io: "", last_msg_id_sent: "", mark_dead!: "",
      mutex: "", write_comment: "_", write_sentinel: "_"
    }.freeze

    INSTANCE = { register: "_", build_pump: "", close_all_connections: "" }.freeze

    # What the patch looks at before it takes a connection in.
    CONNECTION_STATE = %i[@closed @dead @io @last_msg_id_sent @last_write_at @mutex @write_deadline_ms @writer].freeze

    CONFIGURATION = %i[streams_connection_options streams_dispatch_queue_limit streams_listen_health_check_ms].freeze

    # What the feed needs of the classes around it, each of `Pgbus` or of its streamer.
    FEED = {
      StreamEventDispatcher: {
        handle: "_", notify_queue_name_for: "_", monotonic_ms: "", presence_join: "_ _", release_ar_connections: "",
        record_stat: "stream_name: event_type: started_at: fanout: ephemeral:"
      },
      Instance: { register: "_", build_listener: "_ _" },
      Registry: { connections_for: "_", empty?: "_", register: "_", unregister: "_" },
      StreamCounter: { increment_broadcasts: "_", increment_connections: "_", increment_total_connections: "_" },
      Client: { config: "", read_after: "_ after_id: limit:", shared_connection?: "" },
      Configuration: %i[
        streams_connection_options streams_fanout_write_deadline_ms streams_listen_health_check_ms streams_listen_scope
        streams_pool_autoscale streams_pool_connection_options streams_write_deadline_ms streams_writer_threads
      ].to_h { |name| [name, ""] }.merge(queue_name: "_")
    }.freeze

    DISPATCHER_STATE = %i[@filters @logger @registry @stream_counter].freeze

    # Messages whose frames must have the same bytes.
    MESSAGES = ["", "plain", "a\nb\r\nc\rd\n", "\n", "é \u2028 \u{1F600} \0 </script>", "id: 7", " leading"].freeze
    EVENTS = [nil, "presence", " padded ", "two\nlines", ""].freeze
    private_constant :MESSAGES, :EVENTS

    # Not as needed; the message says what.
    class Difference < StandardError; end

    # An envelope with everything that makes a frame, and the writer that keeps it.
    Probe = Data.define(:msg_id, :event, :payload)
    class KeepingWriter
      attr_reader :bytes

      def write(_connection, bytes, deadline_ms:)
        @bytes = bytes if deadline_ms
        :ok
      end
    end
    private_constant :Difference, :Probe, :KeepingWriter

    class << self
      # @param name [Symbol] `:OutboundPump` or `:MasterHub`
      # @param streamer [Module] `Pgbus::Web::Streamer`
      # @return [String, nil] the first difference, for a person
      def difference(name, streamer)
        first_difference do
          hides_nothing streamer.const_get(name), PgbusNative.const_get(name, false)
          name == :OutboundPump ? outbound_pump(streamer) : master_hub(streamer)
        end
      end

      # @param streamer [Module] `Pgbus::Web::Streamer`
      # @return [String, nil] the first thing that a feed lacks, for a person
      def difference_of_feed(streamer) = first_difference { feed(streamer) }

      private

      def first_difference
        yield
        nil
      rescue StandardError => e
        e.is_a?(Difference) ? e.message : "#{e.class}: #{e.message.lines.first&.chomp}"
      end

      def feed(streamer)
        FEED.each do |name, calls|
          klass = streamer.const_defined?(name, false) ? streamer.const_get(name) : ::Pgbus.const_get(name)
          calls.each { |method, call| callable "#{name}##{method}", inherited_method(klass, method), call }
        end
        dispatcher streamer::StreamEventDispatcher
        wake = streamer::Listener::WakeMessage.new(queue_name: "probe", payload: "text")
        same "WakeMessage", [wake.queue_name, wake.payload], %w[probe text]
        MESSAGES.product(EVENTS) { |html, event| frame(html, event) }
      end

      # A dispatcher starts nothing before it is asked to.
      def dispatcher(klass)
        probe = klass.new(client: nil, registry: nil, listener: nil, dispatch_queue: nil)
        DISPATCHER_STATE.each do |name|
          probe.instance_variable_defined?(name) or raise Difference, "StreamEventDispatcher's #{name} is missing"
        end
        same "ConnectMessage", klass::ConnectMessage.new(connection: :probe).connection, :probe
      end

      # Byte by byte what pgbus makes of a message.
      def frame(html, event)
        row = JSON.generate({ html:, event: }.compact)
        name = event.to_s.strip
        name = ::Pgbus::Streams::DEFAULT_SSE_EVENT if name.empty? || name.match?(/[\r\n]/)
        known = ::Pgbus::Streams::Envelope.message(id: 7, event: name, data: html)
        same "the frame of #{row}", Feed::Engine.frame_of_row(7, row).b, known.b
      end

      # One of a module's that the class includes will do, too.
      def inherited_method(klass, name)
        defines?(klass, name) || klass.method_defined?(name) or raise Difference, "#{klass.name}##{name} is missing"

        method = klass.instance_method(name)
        method = method.super_method while [Feed::InstancePatch, Feed::DispatcherPatch, InstancePatch].include?(method.owner)
        method
      end

      def outbound_pump(streamer)
        CONNECTION.each { |name, call| callable "Connection##{name}", own_method(streamer::Connection, name), call }
        INSTANCE.each { |name, call| callable "Instance##{name}", own_method(streamer::Instance, name), call }
        callable "IoWriter.write", streamer::IoWriter.method(:write), "_ _ deadline_ms:"
        callable "Envelope.message", ::Pgbus::Streams::Envelope.method(:message), "id: event: data:"
        connection streamer
        acknowledgement streamer::StreamEventDispatcher::WriteAckMessage
        streamer::StreamEventDispatcher::DisconnectMessage.new(connection: :probe)
      end

      def master_hub(streamer)
        frame = streamer::HubProtocol.encode({ "t" => "ack", "q" => "é" })
        same "a frame of HubProtocol", frame.b, "\0\0\0\x14{\"t\":\"ack\",\"q\":\"é\"}".b
        { streamer::Listener::WakeMessage => %i[queue_name payload], ::Pgbus::Configuration => CONFIGURATION }.each do |klass, names|
          names.each { |name| klass.method_defined?(name) or raise Difference, "#{klass.name}##{name} is missing" }
        end
      end

      # Whoever calls pgbus's class finds everything on the native one.
      def hides_nothing(klass, native)
        [:initialize, *klass.public_instance_methods(false)].each do |name|
          member "#{klass.name}##{name}", own_method(klass, name), (native.instance_method(name) if defines?(native, name))
        end
        klass.singleton_methods(false).each do |name|
          member "#{klass.name}.#{name}", klass.method(name), (native.method(name) if native.respond_to?(name))
        end
        constants = klass.constants(false) - native.constants(false)
        raise Difference, "#{klass.name}::#{constants.first} would be hidden" if constants.any?
      end

      def defines?(klass, name) = klass.method_defined?(name) || klass.private_method_defined?(name, false)

      def member(what, method, native)
        raise Difference, "#{what} would be hidden" unless native

        (required, most, needed, known), (positional, largest, must, may) = arguments(native), arguments(method)
        unknown = may - known unless known.include?(:**)
        raise Difference, "#{what} takes #{unknown.first}:, which the native one does not know" if unknown&.any?

        missing = needed - must
        raise Difference, "#{what} can be called without #{missing.first}:, the native one can't" if missing.any?
        return if positional >= required && largest <= most

        raise Difference, "#{what} takes other arguments than the native one (#{describe(method)}, not #{describe(native)})"
      end

      # We can call it so.
      def callable(what, method, call)
        keywords, positional = call.split.partition { |word| word.end_with?(":") }
        required, most, needed, known = arguments(method)
        keywords = keywords.map { |word| word.delete_suffix(":").to_sym }
        fits = positional.size.between?(required, most) && (needed - keywords).empty? &&
               (known.include?(:**) || (keywords - known).empty?)
        fits or raise Difference, "#{what} can't be called with (#{call.split.join(", ")}), it takes (#{describe(method)})"
      end

      # @return [Array] positional arguments at least and at most, keywords needed and known (:** for any)
      def arguments(method)
        kinds = method.parameters.group_by(&:first).transform_values { |list| list.map { |_, name| name } }
        required = kinds.fetch(:req, []).size
        most = kinds.key?(:rest) ? Float::INFINITY : required + kinds.fetch(:opt, []).size
        needed = kinds.fetch(:keyreq, [])
        [required, most, needed, needed + kinds.fetch(:key, []) + (kinds.key?(:keyrest) ? [:**] : [])]
      end

      def describe(method)
        words = { req: "_", opt: "[_]", rest: "*", keyrest: "**", block: "&" }
        method.parameters.map do |kind, name|
          words.fetch(kind) { kind == :keyreq ? "#{name}:" : "[#{name}:]" }
        end.join(", ")
      end

      # The class's own method, below what was prepended to it.
      def own_method(klass, name)
        raise Difference, "#{klass.name}##{name} is missing" unless defines?(klass, name)

        method = klass.instance_method(name)
        method = method.super_method until method.owner == klass || method.super_method.nil?
        method
      end

      # A connection can be made, has what the patch looks at, and frames envelopes as we do.
      def connection(streamer)
        require "concurrent/atomic/atomic_reference" # which pgbus depends on, and leaves to Rails to load
        writer = KeepingWriter.new
        probe = streamer::Connection.new(id: "probe", stream_name: "probe", io: nil, since_id: 1, writer:, write_deadline_ms: 1)
        CONNECTION_STATE.each do |name|
          probe.instance_variable_defined?(name) or raise Difference, "Connection's #{name} is missing"
        end
        same "Connection's lock", probe.instance_variable_get(:@mutex).is_a?(Thread::Mutex), true
        same "Connection's cursor", probe.instance_variable_get(:@last_msg_id_sent).get, 1
        probe.enqueue([Probe.new(msg_id: 2, event: "probe", payload: "a\nb")], deadline_ms: 1)
        same "a frame of Connection", writer.bytes, ::Pgbus::Streams::Envelope.message(id: 2, event: "probe", data: "a\nb")
      end

      def acknowledgement(message)
        made = message.new(connection: :probe, accepted_max: 1)
        same "WriteAckMessage", [made.connection, made.accepted_max], [:probe, 1]
      rescue ArgumentError => e
        raise Difference, "WriteAckMessage can't be made of connection: and accepted_max: (#{e.message})"
      end

      def same(what, found, known)
        raise Difference, "#{what}: found #{found.inspect}, known is #{known.inspect}" unless found == known
      end
    end
  end
end
