# frozen_string_literal: true

require "socket"

# A worker's end of a hub's socket, without a thread: what pgbus's HubClient says and hears, frame by frame. Every wait
# ends by an error, never by giving up.
class RawWorker
  PROTOCOL = Pgbus::Web::Streamer::HubProtocol
  SECONDS = 20

  attr_reader :socket

  def initialize(path)
    @socket = UNIXSocket.new(path)
    @seen = []
  end

  def say(frame) = @socket.write(PROTOCOL.encode(frame))

  # Subscribes and waits for the acks.
  def sub(*queues)
    queues.each { |queue| say("t" => "sub", "q" => queue) }
    queues.map { hear("ack")["q"] }
  end

  def unsub(queue) = say("t" => "unsub", "q" => queue)

  # The next frame of a kind; others wait for their turn.
  def hear(kind)
    if (at = @seen.index { |frame| frame["t"] == kind })
      return @seen.delete_at(at)
    end

    while (frame = read)
      return frame if frame["t"] == kind

      @seen << frame
    end
    raise "EOF while waiting for #{kind}"
  end

  # Queue and payload of the next wakes.
  def wakes(count) = Array.new(count) { hear("wake").values_at("q", "p") }

  # Wakes until the given one, which is included.
  def wakes_until(queue, payload = nil)
    wakes = []
    wakes.concat(wakes(1)) until wakes.last == [queue, payload]
    wakes
  end

  # Kinds of frames that are there by now, before an answer to a question asked now.
  def heard_by_now
    sub("by now #{object_id}")
    unsub("by now #{object_id}")
    @seen.slice!(0..).map { |frame| frame["t"] }
  end

  def eof?
    nil while read
    true
  end

  def close = @socket.close

  private

  def read
    @socket.wait_readable(SECONDS) or raise "nothing within #{SECONDS} s"
    PROTOCOL.read_frame(@socket)
  end
end
