# frozen_string_literal: true

# The demo. bin/demo checks the options, prepares everything, and calls this with NAME=VALUE arguments.
require_relative "../../support/private_postgres"
require_relative "audience"
require_relative "broadcaster"
require_relative "cluster"
require_relative "table"

module Demo
  # Starts everything, watches, and says how it went.
  class Run
    LISTEN_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbus-listen' ORDER BY pid"

    def initialize(clients:, rate:, seconds:, workers:, port:, serve:)
      @clients = clients
      @rate = rate
      @seconds = seconds
      @workers = workers
      @port = port.zero? ? PrivatePostgres.free_port : port
      @serve = serve == 1
    end

    # Yields when all is over but the cleaning up.
    #
    # @return [Boolean] whether every durable message reached every client exactly once and in order
    def call
      allow_descriptors(@clients + 500)
      say "starting PostgreSQL and #{@workers} Puma workers"
      PrivatePostgres.run do |postgres|
        Cluster.run(database_url: postgres.url, workers: @workers, port: @port) do |cluster|
          @serve ? serve(cluster) : measure(postgres, cluster)
        ensure
          yield
        end
      end
    end

    private

    # Every process we start may have that many.
    def allow_descriptors(needed)
      soft, hard = Process.getrlimit(:NOFILE)
      raise Error, "#{@clients} clients need #{needed} open files, the limit is #{hard}; raise it (ulimit -n)" if hard < needed

      Process.setrlimit(:NOFILE, needed, hard) if soft < needed
    end

    def serve(cluster)
      Broadcaster.run(cluster, rate: @rate, count: 0) do |broadcaster|
        broadcaster.go
        say "open http://127.0.0.1:#{@port}/ in a browser; Ctrl-C ends"
        broadcaster.wait
        raise Error, "the broadcaster ended by itself"
      end
    end

    def measure(postgres, cluster)
      sessions = listen_sessions(postgres)
      seen, sent = watch(cluster)
      table = Table.new(seen:, sent:, clients: @clients, sessions: [sessions, listen_sessions(postgres)],
                        hub: cluster.figures("hub").first, workers: cluster.figures("worker"), wanted_workers: @workers,
                        threads: cluster.native_threads)
      puts table
      say "Puma's last words: #{cluster.last_words}" unless table.all_delivered?
      table.all_delivered?
    end

    def watch(cluster)
      Broadcaster.run(cluster, rate: @rate, count: @rate * @seconds) do |broadcaster|
        Audience.open(port: @port, path: broadcaster.path, clients: @clients) do |audience|
          connect(audience, broadcaster)
          [listen(audience, broadcaster), broadcaster.sent]
        end
      end
    end

    def connect(audience, broadcaster)
      audience.connect { |seen| progress "#{seen[:started]} of #{@clients} clients connected" }
      say "#{@clients} clients connected; sending #{@rate} messages a second for #{@seconds} s"
      broadcaster.go
    end

    def listen(audience, broadcaster)
      audience.follow(broadcaster) do |seen|
        frames = Table.count(seen[:durable] + seen[:ephemeral])
        progress format("%s frames, p50 %.1f ms, p99 %.1f ms, %d of %d clients connected", frames,
                        *seen.values_at(:p50, :p99).map(&:to_f), seen[:open], @clients)
      end
    end

    def listen_sessions(postgres) = postgres.sql(LISTEN_SESSIONS).split

    def say(text)
      $stdout.print(@line_is_open ? "\r\e[K" : "", "demo: #{text}\n")
      @line_is_open = false
    end

    # One line that changes, on a terminal; elsewhere a line each.
    def progress(text)
      $stdout.print($stdout.tty? ? "\r\e[Kdemo: #{text}" : "demo: #{text}\n")
      @line_is_open = $stdout.tty?
    end
  end
end

$stdout.sync = true
$PROGRAM_NAME = "demo"
ending = false
%i[INT TERM].each do |signal|
  trap(signal) do
    next if ending # what cleans up is not to be interrupted

    ending = true
    raise Interrupt
  end
end
begin
  delivered = Demo::Run.new(**ARGV.to_h { |argument| argument.split("=") }.transform_keys(&:to_sym).transform_values(&:to_i)).call { ending = true }
  exit(delivered ? 0 : 1)
rescue Demo::Error, PrivatePostgres::Error => e
  abort "demo: #{e.message}"
rescue Interrupt
  abort "demo: stopped; everything it started is gone"
end
