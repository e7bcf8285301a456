# frozen_string_literal: true

require "rbconfig"

# Workers of a hub that misbehave, and the stream that keeps them busy.
module MisbehavingWorkers
  LOAD = File.expand_path("../target/load/release/pgbus_native_load", __dir__)

  module_function

  # @param kind [String] as the load client knows it
  # @param path [String] the hub's socket
  # @yieldparam pid [Integer] of the process that they all are in
  def run(kind, path, count)
    IO.popen([LOAD, "misbehave", kind, path, count.to_s], "r+") do |workers|
      workers.gets
      yield workers.pid
    ensure
      workers.close_write
    end
  end

  # 1,000 ephemeral wakes of 2 KB a second, of the stream "hot", while the block runs.
  #
  # @param url [String] the database's
  def flooded(url)
    flood = spawn(RbConfig.ruby, "-rpg", "-e", <<~RUBY, url)
      connection = PG.connect(ARGV[0])
      loop do
        connection.exec("SELECT pg_notify('pgmq.q_hot.INSERT', n || repeat('x', 2000)) FROM generate_series(1, 10) n")
        sleep 0.01
      end
    RUBY
    yield
  ensure
    Process.kill(:KILL, flood)
    Process.wait(flood)
  end
end
