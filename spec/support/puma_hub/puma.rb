# frozen_string_literal: true

# A cluster as an app with pgbus has it: the hub lives in the master, each worker is a client of it. A worker notes what it
# hears in a file named after its pid.
folder = ENV.fetch("PUMA_HUB_FOLDER")
support = File.expand_path("../../../support", __dir__)
$LOAD_PATH.unshift(support, File.expand_path("../lib", support))
require "pgbus_or_standin"
require "pgbus_native"

bind "unix://#{folder}/puma.sock"
workers 2
threads 1, 2
preload_app!
fork_worker if ENV["PUMA_HUB_FORK_WORKER"]
worker_shutdown_timeout 5
app { |_env| [200, {}, ["ok"]] }

config = Pgbus::Configuration.new.tap { |settings| settings.database_url = ENV.fetch("DATABASE_URL") }
logger = Logger.new("#{folder}/log")
hub = PgbusNative::MasterHub.new(config:, socket_path: "#{folder}/hub.sock", logger:)

before_fork { hub.start }
on_restart { hub.stop }
at_exit { hub.stop }

on_worker_boot do
  note = ->(line) { File.write("#{folder}/#{Process.pid}.heard", "#{line}\n", mode: "a") }
  wakes = Queue.new
  client = Pgbus::Web::Streamer::HubClient.new(socket_path: "#{folder}/hub.sock", dispatch_queue: wakes, logger:,
                                               on_failure: -> { note.call("EOF") }).connect
  client.ensure_listening("chat")
  note.call("ready")
  Thread.new { loop { note.call(wakes.pop.payload) } }
end
