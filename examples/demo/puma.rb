# frozen_string_literal: true

$LOAD_PATH.unshift(__dir__)
require_relative "figures"

environment "production"
workers Integer(ENV.fetch("DEMO_WORKERS"))
threads 1, 5
bind "tcp://127.0.0.1:#{ENV.fetch("DEMO_PORT")}"
preload_app!
silence_single_worker_warning
plugin :demo_hub

# Standard input is a pipe whose other end our parent holds: when it ends, so do we.
Thread.new do
  $stdin.read
  Process.kill(:TERM, Process.pid)
end

note = nil
on_worker_boot do
  streamer = Pgbus::Web::Streamer.current
  note = Demo::Figures.keep("worker") { streamer.pump.stats.merge(browsers: streamer.registry.size) }
end
on_worker_shutdown do
  note.call
  Pgbus::Web::Streamer.reset!
end
