# frozen_string_literal: true

require "rbconfig"

module PgbusNative
  # Names to addresses by the C library, as libpq asks it, with all of its sources and its order.
  #
  # It is asked in a process of its own: a child that is forked while another thread is inside +getaddrinfo+ inherits the C
  # library's locks, locked. A lookup can be ended at any moment, too.
  module HostLookup
    # No process can be had to ask in.
    class Impossible < StandardError; end

    # Prints a line for each name: its addresses, or "!" and why it has none.
    SCRIPT = <<~'RUBY'
      lookups = ARGV.map do |name|
        Thread.new do
          Addrinfo.getaddrinfo(name, nil, nil, :STREAM).map(&:ip_address).uniq.join(" ")
        rescue SocketError => error
          "!#{error.message.sub(/\Agetaddrinfo(\(3\))?: /, "")}"
        end
      end
      puts lookups.map(&:value)
    RUBY
    private_constant :SCRIPT

    class << self
      # @param names [Array<String>]
      # @return [Hash{String => Array<String>, String}] the addresses of each name, or why it has none
      # @raise [Impossible]
      def addresses(names)
        return {} if names.empty?

        lines = ask(names).lines(chomp: true)
        raise Impossible, "looking up names in a process of its own failed" unless lines.size == names.size

        names.zip(lines).to_h { |name, line| [name, line.start_with?("!") ? line.delete_prefix("!") : line.split] }
      end

      private

      def ask(names)
        io = IO.popen([RbConfig.ruby, "--disable-all", "-rsocket", "-e", SCRIPT, "--", *names],
                      in: File::NULL, err: File::NULL, external_encoding: Encoding::UTF_8)
        answer = io.read
        answer.scrub
      rescue SystemCallError => e
        raise Impossible, e.message
      ensure
        end_process(io, answer) if io
      end

      # Whoever waits for all children may have reaped it: then its number may be another's already. But one that has not
      # answered runs.
      def end_process(io, answer)
        Process.kill(:KILL, io.pid) unless answer
        io.close
      rescue SystemCallError
        nil
      end
    end
  end
end
