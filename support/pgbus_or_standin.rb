# frozen_string_literal: true

# Loads the real pgbus where there is one (PGBUS_PATH names a checkout of it, or it is installed), else what stands in
# for it.
begin
  verbose, $VERBOSE = $VERBOSE, nil # its warnings are not ours
  $LOAD_PATH.unshift(File.join(ENV["PGBUS_PATH"], "lib")) if ENV["PGBUS_PATH"]
  require "active_record"
  require "concurrent"
  require "pgbus"
rescue LoadError
  raise if ENV["PGBUS_PATH"]

  require_relative "standin"
ensure
  $VERBOSE = verbose
end
