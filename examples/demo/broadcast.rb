# frozen_string_literal: true

# Sends one durable message and prints the path where browsers get it; then, once a line comes in, RATE messages a second,
# COUNT in all, or until it is stopped if COUNT is 0. Every fifth is ephemeral. Ends with a line `DURABLE EPHEMERAL`.
#
#   broadcast.rb RATE COUNT
require_relative "environment"

rate, count = ARGV.map { |number| Integer(number) }
WORDS = ["a frame for everybody", "straight from PostgreSQL", "written by Rust", "through one LISTEN session",
         "no GVL was held for this", "a NOTIFY came by"].freeze

Pgbus.client.ensure_stream_queue(Demo::STREAM)
Demo.broadcast(1, "hello")
$stdout.sync = true
puts Demo.path
$stdin.gets

sent = { true => 1, false => 0 }
started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
(1..).each do |number|
  break if number == count

  wait = started + (number.to_f / rate) - Process.clock_gettime(Process::CLOCK_MONOTONIC)
  sleep wait if wait.positive?
  durable = !(number % 5).zero?
  Demo.broadcast(sent[durable] += 1, WORDS[number % WORDS.size], durable:)
end
puts sent.values.join(" ")
