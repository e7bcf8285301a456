# frozen_string_literal: true

# A process of the app that broadcasts numbered messages, and knows what it has broadcast: to all, to moderators, or
# ephemeral ones to the stream of what people are typing.
class Broadcaster
  Message = Data.define(:number, :kind)

  CODE = <<~'RUBY'
    room, typing = Pgbus.stream("room_lobby"), Pgbus.stream("typing_lobby", durable: false)
    [room, typing].each(&:ensure!)
    frame = ->(n) { %(<turbo-stream action="append" target="messages"><template><li id="message_#{n}">#{n}</li></template></turbo-stream>) }
    $stdout.sync = true
    puts "ready"
    while (line = $stdin.gets)
      number, kind = line.split
      case kind
      when "ephemeral" then typing.broadcast(frame.(number))
      when "moderators" then room.broadcast(frame.(number), visible_to: :moderators)
      else room.broadcast(frame.(number))
      end
      puts "done"
    end
  RUBY

  def initialize(app)
    @pipe = app.pipe(CODE)
    raise RailsApp::Error, "the broadcaster did not start" unless @pipe.gets == "ready\n"

    @messages = []
    @mutex = Mutex.new
  end

  # @return [Array<Integer>] the numbers of what was broadcast, of these kinds
  def numbers(*kinds) = @mutex.synchronize { @messages.select { |message| kinds.include?(message.kind) }.map(&:number) }

  # Broadcasts all kinds in turn, at a steady rate, until told to stop.
  def start(rate)
    @thread = Thread.new do
      %i[all moderators all ephemeral].cycle do |kind|
        broadcast(kind)
        sleep 1.0 / rate
        break if @stop
      end
    end
  end

  # Returns when the broadcast is committed.
  def broadcast(kind)
    message = Message.new(number: @messages.size + 1, kind:)
    @pipe.puts("#{message.number} #{kind}")
    @pipe.gets or raise RailsApp::Error, "the broadcaster ended"
    @mutex.synchronize { @messages << message }
  end

  def stop
    @stop = true
    @thread&.join
    @stop = @thread = nil
  end

  def close
    stop
    @pipe.close
  end
end
