# frozen_string_literal: true

require "socket"

module PgbusNative
  # What is prepended to pgbus's `Connection`: a connection on a plain socket gets, at its birth, a native lock, a native
  # cursor and an {Outlet}, so that writer threads and Ruby threads can share its socket. Every other connection stays
  # as it is.
  module ConnectionSeam
    PLAIN_SOCKETS = [::TCPSocket, ::UNIXSocket, ::Socket].freeze

    # What the writer threads do in Ruby's place, or rely on. If one of these isn't pgbus's own any more, they keep off.
    RELIED_ON = %i[id enqueue write_comment write_sentinel last_msg_id_sent idle_for dead? mark_dead! close mutex io
                   sse_event_for].freeze

    private_constant :PLAIN_SOCKETS, :RELIED_ON

    class << self
      # Gives the seam to every connection that is born from now on. Safe to call again.
      #
      # @param connection_class [Class] pgbus's `Connection`
      # @return [void]
      def install(connection_class)
        @connection_class = connection_class
        @home = Object.const_source_location(connection_class.name)&.first
        connection_class.prepend(self)
        @active = true
      end

      # Connections born from now on get none; those that have it keep it.
      #
      # @return [void]
      def uninstall
        @active = false
      end

      # @return [Boolean] whether this connection, at its birth, is one that writer threads can serve
      def suits?(connection, io, writer, since_id)
        @active && connection.instance_of?(@connection_class) && PLAIN_SOCKETS.include?(io.class) &&
          since_id.bit_length < 64 && own?(writer) && RELIED_ON.all? { |name| unchanged?(name) }
      end

      private

      # Whether the writer is the one that pgbus comes with.
      def own?(writer)
        namespace = @connection_class.name.delete_suffix("Connection")
        name = "#{namespace}IoWriter"
        return false unless Object.const_defined?(name) && writer.equal?(Object.const_get(name))

        writer.method(:write).source_location&.first == Object.const_source_location(name)&.first
      end

      # Whether this method, if there is one, is still the one from the file that defines the class.
      def unchanged?(name)
        return true unless @connection_class.method_defined?(name) || @connection_class.private_method_defined?(name)

        method = @connection_class.instance_method(name)
        method = method.super_method if method.owner.equal?(self)
        method.owner.equal?(@connection_class) && [@home, nil].include?(method.source_location&.first)
      end
    end

    def initialize(...)
      super
      cursor = @last_msg_id_sent.get
      return unless ConnectionSeam.suits?(self, @io, @writer, cursor)

      @mutex = Lock.new
      @order = Lock.new
      @last_msg_id_sent = Cursor.new(cursor)
      @outlet = Outlet.new(self, @io, @order, @mutex, @last_msg_id_sent)
    end

    # From looking at the cursor to advancing it, nobody else writes durable frames.
    def enqueue(...)
      @order ? @order.synchronize { super } : super
    end

    def dead?
      (@outlet && @outlet.dead?) || super
    end

    # Shuts the socket down if the pump has written to it: the client sees EOF now, and what others still write can't
    # follow a torn frame.
    def mark_dead!
      super
    ensure
      @outlet&.end
    end

    def close
      super
    ensure
      @outlet&.end
    end

    # Seconds since the last write, of whomever.
    def idle_for
      [super, @outlet&.idle_for].compact.min
    end
  end
end
