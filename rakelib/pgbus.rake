# frozen_string_literal: true

namespace :pgbus do
  desc "Run pgbus's own specs of its streams with the native classes in place (PGBUS_PATH=checkout of pgbus)"
  task spec: :compile do
    require_relative "../support/pgbus_suite"
    abort PgbusSuite::NO_PATH unless ENV["PGBUS_PATH"]
    PgbusSuite.new(ENV["PGBUS_PATH"]).run or abort
  end

  desc "Run a Rails app on pgbus with the native classes, browsers and faults included (PGBUS_PATH=checkout of pgbus)"
  task app: :compile do
    ruby "examples/rails/run.rb"
  end
end
