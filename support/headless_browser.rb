# frozen_string_literal: true

require "fileutils"
require "io/nonblock"
require "json"
require "tmpdir"

# A real browser without a window: Chromium, spoken to by its DevTools protocol over a pair of pipes.
class HeadlessBrowser
  class Error < StandardError; end

  NAMES = %w[chromium chromium-browser google-chrome].freeze
  FLAGS = %w[--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking
             --disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe
             --window-size=1000,900].freeze

  # @return [String, nil] the path of the browser that this machine has
  def self.program
    folders = ENV.fetch("PATH", "").split(File::PATH_SEPARATOR)
    folders.product(NAMES).map { |parts| File.join(parts) }.find { |path| File.executable?(path) }
  end

  # Opens the page, yields the browser, ends it.
  def self.open(url)
    browser = new
    browser.go(url)
    yield browser
  ensure
    browser&.close
  end

  def initialize
    @profile = Dir.mktmpdir("pgbus_native-browser-")
    commands, @commands = IO.pipe
    @replies, replies = IO.pipe
    # Its two pipes are the descriptors 3 and 4, which must block; messages are JSON that end in a zero byte.
    [commands, replies].each { |pipe| pipe.nonblock = false }
    @pid = spawn(self.class.program, *FLAGS, "--user-data-dir=#{@profile}", 3 => commands, 4 => replies,
                                                                            %i[in out err] => File::NULL, pgroup: true)
    [commands, replies].each(&:close)
    @last_id = 0
    target = call("Target.createTarget", url: "about:blank").fetch("targetId")
    @session = call("Target.attachToTarget", targetId: target, flatten: true).fetch("sessionId")
  rescue StandardError
    close
    raise
  end

  def go(url) = call("Page.navigate", url:)

  # @return the value of a JavaScript expression
  def evaluate(expression)
    answer = call("Runtime.evaluate", expression:, returnByValue: true)
    raise Error, answer["exceptionDetails"].to_s if answer["exceptionDetails"]

    answer.dig("result", "value")
  end

  # @return the first true value of the expression
  def wait_for(expression, seconds: 15)
    deadline = now + seconds
    until (value = evaluate(expression))
      raise Error, "#{expression} did not become true within #{seconds} s" if now > deadline

      sleep 0.02
    end
    value
  end

  def screenshot(path) = File.binwrite(path, call("Page.captureScreenshot", format: "png").fetch("data").unpack1("m"))

  def close
    Process.kill(:KILL, -@pid)
    Process.wait(@pid)
    [@commands, @replies].each(&:close)
    FileUtils.rm_rf(@profile)
  end

  private

  def call(method, **params)
    id = @last_id += 1
    @commands.write("#{{ id:, method:, params:, sessionId: @session }.compact.to_json}\0")
    loop do
      message = JSON.parse(@replies.gets("\0")&.chomp("\0") || raise(Error, "the browser ended"))
      next unless message["id"] == id
      raise Error, "#{method}: #{message["error"]["message"]}" if message["error"]

      return message["result"]
    end
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end
