# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../support", __dir__))

require "pgbus_or_standin"
require "pgbus_native"

Pgbus.configuration.logger = Logger.new(IO::NULL)

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.order = :random
  Kernel.srand config.seed
end
