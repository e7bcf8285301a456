# frozen_string_literal: true

# A hub, a healthy worker and an app that broadcasts, among faults of all kinds in random order. Checks after each that
# nothing durable was missed, and that the healthy worker's wakes were on time while only its neighbours misbehaved.
#
#   ruby support/chaos.rb MINUTES      # SEED=1: the same order again

require "json"
require "logger"
require "rbconfig"
require "socket"
require "tmpdir"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), __dir__)
require "pgbus_or_standin"
require "pgbus_native"
require "pg"
require "private_postgres"
require "misbehaving_workers"
%w[address hub_host line witness broadcasts faults run].each { |part| require_relative "chaos/#{part}" }

# See above.
module Chaos
  # How long anything may take that has to happen.
  SECONDS = 30

  module_function

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def eventually(what)
    deadline = now + SECONDS
    until yield
      abort "chaos: #{what} did not come within #{SECONDS} s" if now > deadline
      sleep 0.05
    end
  end

  def run(minutes, seed)
    srand(seed)
    puts "chaos: #{minutes} minutes, SEED=#{seed}"
    PrivatePostgres.run(hba: ["host all #{Address::ROLE} 127.0.0.1/32 scram-sha-256"]) do |postgres|
      Dir.mktmpdir { |folder| with_hub(postgres, folder) { |*parts| Run.new(postgres, *parts).among_faults(minutes * 60) } }
    end
  end

  def with_hub(postgres, folder)
    line = Line.new(postgres.port)
    address = Address.new(postgres, line.port, File.join(folder, "address"))
    host = HubHost.new(address, File.join(folder, "hub.sock"))
    yield host, line, address
  ensure
    host&.stop
  end
end

$stdout.sync = true
Thread.report_on_exception = true
Chaos.run(Float(ARGV.fetch(0, "2")), Integer(ENV.fetch("SEED") { rand(1_000_000) }))
