# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../support", __dir__))

# The real pgbus where there is one (PGBUS_PATH: a checkout of it), else what stands in for it.
begin
  $LOAD_PATH.unshift(File.join(ENV["PGBUS_PATH"], "lib")) if ENV["PGBUS_PATH"]
  verbose, $VERBOSE = $VERBOSE, nil # its warnings are not ours
  require "active_record"
  require "concurrent"
  require "pgbus"
rescue LoadError
  raise if ENV["PGBUS_PATH"]

  require "standin"
ensure
  $VERBOSE = verbose
end
Pgbus.configuration.logger = Logger.new(IO::NULL)

require "pgbus_native"

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.order = :random
  Kernel.srand config.seed
end
