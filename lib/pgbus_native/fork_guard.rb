# frozen_string_literal: true

module PgbusNative
  # What a forked child must not inherit of libpq.
  #
  # Its connections belong to one process. A child that ends or collects garbage would take leave of the server on its copy
  # of the socket, and so end the parent's session. In the child the copy is replaced by the null device, under the same
  # number: libpq, which knows nothing of it, has its say there.
  #
  # Its locks are the process's, and it is called without the GVL. A child that is forked meanwhile would inherit them
  # locked; so short calls are made when no fork happens.
  module ForkGuard
    @connections = ObjectSpace::WeakMap.new
    @mutex = Mutex.new

    class << self
      # @param connection [PG::Connection]
      # @return [PG::Connection] the same
      def guard(connection)
        watch
        @connections[connection] = true
        connection
      end

      # Runs the block, which must be short, at a time when Ruby forks no child.
      def undisturbed(&)
        watch
        @mutex.synchronize(&)
      end

      # In a child.
      def silence_inherited
        @connections.each_key do |connection|
          IO.for_fd(connection.socket_io.fileno, autoclose: false).reopen(File::NULL)
        rescue PG::Error, SystemCallError
          nil # closed already
        end
      end

      # @return [Boolean] false in a signal's handler, where no lock can be had, and inside of {undisturbed}
      def lock
        @mutex.lock
        true
      rescue ThreadError
        false
      end

      # In the thread that has locked, which is also the child's only one.
      def unlock = @mutex.unlock

      private

      def watch = Process.singleton_class.prepend(Fork)
    end

    # What every fork of Ruby's goes through.
    module Fork
      def _fork
        locked = ForkGuard.lock
        super.tap { |pid| ForkGuard.silence_inherited if pid.zero? }
      ensure
        ForkGuard.unlock if locked
      end
    end
    private_constant :Fork
  end
end
