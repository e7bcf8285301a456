# frozen_string_literal: true

module Chaos
  # The line between hub and database: a TCP proxy that can fall silent, as a NAT that forgot its connections does.
  class Line
    BYTES = 65_536

    def initialize(port)
      @port = port
      @server = TCPServer.new("127.0.0.1", 0)
      @silent = false
      @thread = Thread.new { loop { serve(@server.accept) } }
    end

    def port = @server.addr[1]

    # Passes nothing on while the block runs, and never again what came meanwhile.
    def silenced
      @silent = true
      yield
    ensure
      @silent = false
    end

    private

    def serve(near)
      far = TCPSocket.new("127.0.0.1", @port)
      [near, far].each { |socket| socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1) }
      [[near, far], [far, near]].each { |from, to| Thread.new { pass_on(from, to) } }
    rescue SystemCallError
      near.close
    end

    def pass_on(from, to)
      silenced = false
      loop do
        bytes = from.readpartial(BYTES)
        silenced ||= @silent
        to.write(bytes) unless silenced
      end
    rescue SystemCallError, IOError
      [from, to].each(&:close)
    end
  end
end
