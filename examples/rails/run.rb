# frozen_string_literal: true

# A Rails app on the real pgbus with pgbus_native in its Gemfile, put through what production does to it.
#
#   PGBUS_PATH=<checkout of pgbus> rake pgbus:app
#
# Copies app/ to a temporary folder, runs it there on a PostgreSQL of its own, and ends without leaving anything.

$stdout.sync = true
require_relative "driver/rails_app"
require_relative "driver/trial"
require_relative "../../support/private_postgres"

trap(:TERM) { exit 1 }
trap(:INT) { exit 1 }

passed = PrivatePostgres.run do |postgres|
  RailsApp.run(postgres) { |app| Trial.new(app, postgres).run }
rescue RailsApp::Error => e
  abort "pgbus:app: #{e.message}"
end
exit passed
