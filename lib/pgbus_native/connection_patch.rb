# frozen_string_literal: true

require "socket"
require_relative "encoder"
require_relative "native_socket"
require_relative "patch"

module PgbusNative
  # What is prepended to pgbus's `Connection`. From the moment at which a native pump takes a connection on a plain socket
  # in, what Ruby writes is handed to its {Outlet} and leaves from there. Every other connection stays as it is.
  module ConnectionPatch
    PLAIN_SOCKETS = [::TCPSocket, ::UNIXSocket, ::Socket].freeze

    # What the outlet does in Ruby's place, or relies on. If one of these isn't pgbus's own any more, it keeps off.
    RELIED_ON = %i[id enqueue write_comment write_sentinel last_msg_id_sent idle_for dead? mark_dead! close mutex io
                   sse_event_for].freeze

    private_constant :PLAIN_SOCKETS, :RELIED_ON

    extend Patch

    class << self
      # @param connection_class [Class] pgbus's `Connection`
      # @return [void]
      def install(connection_class)
        @connection_class = connection_class
        @home = Object.const_source_location(connection_class.name)&.first
        super
      end

      # @return [Boolean] whether a pump can take this connection in
      def eligible?(connection)
        active? && connection.instance_of?(@connection_class) && plain?(connection.io) && !connection.dead? &&
          connection.singleton_methods(false).empty? && connection.last_msg_id_sent.bit_length < 64 &&
          own?(connection.instance_variable_get(:@writer)) && RELIED_ON.all? { |name| unmodified?(name) }
      end

      private

      def plain?(io) = PLAIN_SOCKETS.include?(io.class) && !io.closed? && io.singleton_methods(false).empty?

      # Whether the writer is the one that pgbus comes with.
      def own?(writer)
        namespace = @connection_class.name.delete_suffix("Connection")
        name = "#{namespace}IoWriter"
        return false unless Object.const_defined?(name) && writer.equal?(Object.const_get(name))

        writer.method(:write).source_location&.first == Object.const_source_location(name)&.first
      end

      # Whether this method, if there is one, is still the one from the file that defines the class.
      def unmodified?(name)
        return true unless @connection_class.method_defined?(name) || @connection_class.private_method_defined?(name)

        method = @connection_class.instance_method(name)
        method = method.super_method if method.owner.equal?(self)
        method.owner.equal?(@connection_class) && [@home, nil].include?(method.source_location&.first)
      end
    end

    # Hands the socket to the pump's writers. Nothing happens while a Ruby thread writes to it.
    #
    # @param writers [Writers]
    # @param fan_out_ms [Numeric] the deadline that pgbus gives to a fan-out
    # @return [Outlet, nil] nil: the socket stays Ruby's
    def hand_over(writers, fan_out_ms)
      return unless @mutex.try_lock

      begin
        Thread.handle_interrupt(Object => :never) do
          @outlet = writers.adopt(self, @io, [fan_out_ms, @write_deadline_ms])
          @io.extend(NativeSocket).hand_over(@outlet) if @outlet
          @outlet
        end
      ensure
        @mutex.unlock
      end
    end

    # @return [Outlet, nil]
    def native_outlet = @outlet

    # Returns the envelopes that the browser lacked; they leave in their turn.
    def enqueue(envelopes, deadline_ms: @write_deadline_ms)
      @outlet ? @outlet.enqueue(envelopes.to_a, deadline_ms) : super
    end

    def write_comment(text)
      @outlet ? hand(Pgbus::Streams::Envelope.comment(text)) : super
    end

    def write_sentinel(bytes)
      @outlet ? hand(Encoder.without_position(bytes)) : super
    end

    # The last one that reached the socket whole.
    def last_msg_id_sent = @outlet&.cursor || super

    def dead? = @outlet&.dead? || super

    # Discards what waits. The browser sees EOF at once.
    def mark_dead!
      super
    ensure
      @outlet&.end
      @io.close if @outlet && !@io.closed?
    end

    # The browser sees EOF when what was handed over before is out.
    def close
      @outlet&.close
      super
    end

    # Seconds since the last frame was whole in the socket.
    def idle_for = @outlet ? @outlet.idle_for : super

    private

    def hand(bytes) = @outlet.write(bytes) ? :ok : :closed
  end
end
