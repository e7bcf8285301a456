# frozen_string_literal: true

require "cgi"
require "socket"

# A browser as pgbus sees it: reads the page, opens its stream, and when that ends comes back with the id of the last
# durable frame it saw. Keeps all that arrived, to be judged afterwards.
class SseClient
  attr_reader :name, :received, :connects

  def initialize(app, name, element)
    @app = app
    @name = name
    @element = element
    @received = []
    @connects = 0
    @thread = Thread.new { follow }
  end

  def open? = @open

  def close
    @closed = true
    @thread.kill.join
    @socket&.close
  end

  private

  def follow
    source = nil
    until @closed
      source ||= page_source
      stream(source) if source
      @open = false
      sleep 0.1 # as a browser pauses before it comes back
    end
  end

  # The address and the cursor that the page's element carries.
  def page_source
    page = @app.get("/rooms/lobby?as=#{@name}") or return
    tag = page.scan(/<pgbus-stream-source[^>]*>/).find { |text| text.include?("since-id") && stream_of(text) == @element } or return
    @cursor = tag[/since-id="(\d+)"/, 1]
    CGI.unescape_html(tag[/src="([^"]+)"/, 1])
  end

  def stream_of(tag)
    tag[/signed-stream-name="([^"-]+)/, 1].unpack1("m").delete('"')
  end

  def stream(source)
    @socket = TCPSocket.new("127.0.0.1", @app.port)
    @socket.write("GET #{source}?as=#{@name}&since=#{@cursor} HTTP/1.1\r\nHost: localhost\r\n" \
                  "Accept: text/event-stream\r\n#{"Last-Event-ID: #{@cursor}\r\n" if @connects.positive?}\r\n")
    return unless @socket.gets("\r\n\r\n")&.start_with?("HTTP/1.1 200")

    while (frame = @socket.gets("\n\n"))
      read(frame)
    end
  rescue SystemCallError, IOError
    nil
  ensure
    @socket&.close
  end

  def read(frame)
    fields = frame.lines(chomp: true).filter_map { |line| line.split(": ", 2) if line.match?(/\A\w+: /) }.to_h
    if fields["event"] == "pgbus:connected"
      @connects += 1
      @open = true
    elsif fields["event"] == "turbo-stream"
      @received << fields["data"][/id="message_(\d+)"/, 1].to_i
      @cursor = fields["id"] if fields["id"]
    end
  end
end
