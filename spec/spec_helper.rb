# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../support", __dir__))

require "pgbus_native"

RSpec.configure do |config|
  config.disable_monkey_patching!
  config.order = :random
  Kernel.srand config.seed
end
