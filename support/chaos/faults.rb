# frozen_string_literal: true

module Chaos
  # What goes wrong. A fault of the neighbours leaves the healthy worker's wakes alone, and their time is held to a
  # limit; a fault of the session may cost it ephemeral wakes, but nothing durable.
  Fault = Data.define(:name, :neighbours, :run)

  # All that is known to go wrong. To add one: a line here and a method.
  class Faults
    # Longer than the hub takes to notice a silent server: two health-check intervals and 5 s.
    SILENCE = 6

    def initialize(postgres:, host:, line:, address:)
      @postgres = postgres
      @address = address
      @host = host
      @line = line
    end

    def all
      misbehaving = %w[slow wedged talkative wrong brief].map do |kind|
        Fault.new("#{kind} workers", true, -> { misbehave(kind, rand(1..4)) { sleep 4 } })
      end
      [*misbehaving,
       Fault.new("workers that are killed", true, method(:kill_workers)),
       Fault.new("forks of the master", true, -> { 5.times { @host.fork_children } }),
       Fault.new("the socket's file is removed", true, method(:remove_socket)),
       Fault.new("the session is killed", false, -> { rand(1..3).times { kill_session && sleep(0.3) } }),
       Fault.new("the server restarts", false, method(:crash_server)),
       Fault.new("the line is silent", false, -> { @line.silenced { sleep SILENCE } }),
       Fault.new("the password rotates", false, -> { @address.rotate { kill_session && sleep(rand(0.0..2.0)) } }),
       Fault.new("the server's name is unknown", false, -> { @address.unknown { kill_session && sleep(rand(0.0..2.0)) } })]
    end

    # See {MisbehavingWorkers.flooded}.
    def flooded(&) = MisbehavingWorkers.flooded(@postgres.url, &)

    private

    # Workers of that kind while the block runs, beside a stream that keeps them busy.
    def misbehave(kind, count)
      MisbehavingWorkers.run(kind, @host.path, count) { |pid| flooded { yield pid } }
    end

    def kill_workers
      3.times { misbehave("slow", 4) { |pid| sleep(0.5) && Process.kill(:KILL, pid) } }
    end

    def remove_socket
      File.delete(@host.path)
      Chaos.eventually("the socket's file") { File.socket?(@host.path) }
    end

    def answers?
      @postgres.sql("SELECT 1") == "1"
    rescue PrivatePostgres::Error
      false
    end

    def kill_session
      @postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")
    end

    # A server process that dies takes all others with it: PostgreSQL recovers as after a crash.
    def crash_server
      pid = @postgres.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' LIMIT 1").to_i
      Process.kill(:KILL, pid)
      Chaos.eventually("the server's return") { answers? }
    end
  end
end
