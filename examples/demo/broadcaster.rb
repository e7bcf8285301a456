# frozen_string_literal: true

require_relative "cluster"

module Demo
  # The process that sends the messages (broadcast.rb), beside a cluster.
  class Broadcaster
    # The path where browsers get the first message, which is sent already, and then the others.
    attr_reader :path

    # Starts one, yields it, ends it. It sends `count` messages, or until it is ended if that is 0.
    def self.run(cluster, rate:, count:)
      broadcaster = new
      yield broadcaster.start(cluster, rate, count)
    ensure
      broadcaster&.stop
    end

    def start(cluster, rate, count)
      @output, writer = IO.pipe
      @pid, @input = cluster.spawn_ruby("#{__dir__}/broadcast.rb", rate.to_s, count.to_s, out: writer)
      writer.close
      @path = @output.gets&.chomp or raise Error, "the broadcaster ended at once; see above"
      self
    end

    # Starts the others, `rate` a second.
    def go = @input.puts

    # @return [Array(Integer, Integer), nil] how many durable and ephemeral messages it sent, once that are all
    def sent
      line = @output.read_nonblock(100, exception: false) unless @sent
      raise Error, "the broadcaster failed; see above" if line.nil? && !@sent

      @sent ||= line.split.map(&:to_i) unless line == :wait_readable
    end

    def stop
      return unless @pid

      Process.kill(:TERM, @pid)
      Process.wait(@pid)
      @pid = nil
    end

    # Waits for its end, which is a failure if it was to send forever.
    def wait = Process.wait(@pid)
  end
end
