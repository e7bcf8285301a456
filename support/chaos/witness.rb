# frozen_string_literal: true

module Chaos
  # A healthy worker. Whenever a stream's durable wake comes it reads the stream's version, as pgbus's dispatcher reads
  # the archive; ephemeral wakes of the stream "timed" tell it how long they took.
  class Witness
    TIMED = "timed"

    def initialize(path, database, streams)
      @database = database
      @known = Hash.new(0)
      @latencies = []
      @socket = UNIXSocket.new(path)
      [TIMED, *streams].each { |queue| say("t" => "sub", "q" => queue) }
      acked = 0
      acked += 1 if take(read) == "ack" while acked <= streams.size
      @reader = Thread.new { nil while take(read) }
    end

    # @return [Array<Float>] milliseconds since the last call
    def latencies = @latencies.shift(@latencies.size)

    # The streams of which it missed something.
    def missing(versions) = versions.filter_map { |stream, version| stream if @known[stream] < version }

    def connected? = @reader.alive?

    private

    def say(frame) = @socket.write(Pgbus::Web::Streamer::HubProtocol.encode(frame))

    def read = Pgbus::Web::Streamer::HubProtocol.read_frame(@socket)

    def take(frame)
      return unless frame
      return frame["t"] unless frame["t"] == "wake"

      if frame["q"] == TIMED && frame["p"]
        @latencies << ((Process.clock_gettime(Process::CLOCK_MONOTONIC) - frame["p"].to_f) * 1_000)
      else
        @known[frame["q"]] = @database.version(frame["q"])
      end
      "wake"
    end
  end
end
