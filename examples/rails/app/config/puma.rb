# The plugin looks for pgbus before Puma loads the app; `rails server` would have loaded this already.
require_relative "application"

port ENV.fetch("PORT"), "127.0.0.1"
workers 2
threads 5, 5
preload_app!
plugin :pgbus_streams
