# frozen_string_literal: true

# What every process of the demo app loads first: pgbus or what stands in for it, the native classes, the configuration.
%w[lib support].each { |folder| $LOAD_PATH.unshift(File.expand_path("../../#{folder}", __dir__)) }

require "json"
require "pgbus_or_standin"
require "pgbus_native"

Pgbus.configure do |config|
  config.database_url = ENV.fetch("DATABASE_URL")
  config.logger = Logger.new($stderr, level: Logger::WARN, progname: "demo")
  config.streams_writer_threads = 2
  config.streams_max_connections = 20_000
  next unless defined?(Pgbus::VERSION)

  ActiveRecord::Base.establish_connection(config.database_url)
  config.pgmq_schema_mode = :embedded
  config.streams_signed_name_secret = "a secret of the demo, which has none to keep"
end

module Demo
  STREAM = "demo"

  # Where a browser subscribes.
  def self.path
    name = defined?(Pgbus::Streams::SignedName) ? Pgbus::Streams::SignedName.sign(STREAM) : STREAM
    "/streams/#{name}"
  end

  # Sends a message as the load client and the page read it: its number among its kind, when it was sent, and words.
  def self.broadcast(number, text, durable: true)
    message = { n: number, t: Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond), text: }
    Pgbus.stream(STREAM, durable:).broadcast(message.to_json)
  end
end
