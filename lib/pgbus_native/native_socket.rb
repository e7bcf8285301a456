# frozen_string_literal: true

module PgbusNative
  # What a socket is extended with when an outlet took it over. It answers as before; whatever is written to it is handed
  # to the outlet, which is the only one to write, and closing it closes the connection.
  module NativeSocket
    # @param outlet [Outlet]
    # @return [void]
    def hand_over(outlet) = @pgbus_native_outlet = outlet

    # The browser sees EOF when what was handed over before is out.
    def close
      @pgbus_native_outlet.close
      super
    ensure
      # Ruby's object means the descriptor no more.
      @pgbus_native_outlet.release if closed?
    end

    def write(*objects) = objects.sum { |object| hand(object.to_s) }
    def write_nonblock(string, **) = hand(string.to_s)
    def syswrite(string) = hand(string.to_s)
    def send(string, *) = hand(string.to_s)

    private

    def hand(bytes)
      raise IOError, "closed stream" if closed?
      raise Errno::EPIPE unless @pgbus_native_outlet.write(bytes)

      bytes.bytesize
    end
  end
  private_constant :NativeSocket
end
