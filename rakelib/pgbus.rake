# frozen_string_literal: true

# Before anything is compiled.
task :pgbus_path do
  path = ENV["PGBUS_PATH"]
  unless File.exist?("#{path}/lib/pgbus.rb")
    abort "PGBUS_PATH must be the folder of a checkout of pgbus, with the gems it depends on at hand; it is #{path.inspect}"
  end

  ENV["PGBUS_PATH"] = File.expand_path(path) # the app's Gemfile reads it from another folder
end

namespace :pgbus do
  desc "Run pgbus's own specs of its streams with the native classes in place (PGBUS_PATH=checkout of pgbus)"
  task spec: %i[pgbus_path compile] do
    require_relative "../support/pgbus_suite"
    PgbusSuite.new(ENV["PGBUS_PATH"]).run or abort
  end

  desc "Run a Rails app on pgbus with the native classes, browsers and faults included (PGBUS_PATH=checkout of pgbus)"
  task app: %i[pgbus_path compile] do
    ruby "examples/rails/run.rb"
  end
end
