# frozen_string_literal: true

module PgbusNative
  # Connections of libpq's that belong to this process alone. A forked child that ends or collects garbage would take
  # leave of the server on its copy of the socket, and so end the parent's session. In the child the copy is replaced by
  # the null device, under the same number: libpq, which knows nothing of it, has its say there.
  module ForkGuard
    @connections = ObjectSpace::WeakMap.new

    class << self
      # @param connection [PG::Connection]
      # @return [PG::Connection] the same
      def guard(connection)
        Process.singleton_class.prepend(Fork)
        @connections[connection] = true
        connection
      end

      # In a child.
      def silence_inherited
        @connections.each_key do |connection|
          IO.for_fd(connection.socket_io.fileno, autoclose: false).reopen(File::NULL)
        rescue PG::Error, SystemCallError
          nil # closed already
        end
      end
    end

    # What every fork of Ruby's goes through.
    module Fork
      def _fork
        super.tap { |pid| ForkGuard.silence_inherited if pid.zero? }
      end
    end
    private_constant :Fork
  end
end
