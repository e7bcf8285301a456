# The plugin looks for pgbus before Puma loads the app; `rails server` would have loaded this already. All of it, since
# pgbus's thread that waits for the configuration must not load files while Rails still changes the load path.
require_relative "environment"

port ENV.fetch("PORT"), "127.0.0.1"
workers 2
threads 5, 5
preload_app!
plugin :pgbus_streams
