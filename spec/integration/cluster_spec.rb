# frozen_string_literal: true

require "private_postgres"
require_relative "../../examples/demo/audience"
require_relative "../../examples/demo/broadcaster"
require_relative "../../examples/demo/cluster"
require_relative "../support/polling"

# The whole path, nothing of it made up: PostgreSQL, a Puma cluster whose master runs the hub while it forks its workers,
# their pumps, and HTTP clients in a process of their own.
RSpec.describe "A Puma cluster with a hub in its master and a pump in each worker" do
  include Polling

  clients = 40
  listen_sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbus-listen'"

  before(:context) do
    @postgres = PrivatePostgres.new.start
    @cluster = Demo::Cluster.new(database_url: @postgres.url, workers: 2, port: PrivatePostgres.free_port).start
  end

  after(:context) do
    @cluster&.stop
    @cluster&.remove
    @postgres&.stop
  end

  # Sends `count` messages to `clients` browsers, and yields every report of theirs. Returns the last one, and what was sent.
  def broadcast(clients, rate:, count:)
    Demo::Broadcaster.run(@cluster, rate:, count:) do |broadcaster|
      since = @postgres.sql("SELECT max(msg_id) - 1 FROM pgmq.q_pgbus_demo")
      Demo::Audience.open(port: @cluster.port, path: broadcaster.path, since:, clients:) do |audience|
        audience.connect
        broadcaster.go
        seen = audience.follow(broadcaster) { |report| yield report if block_given? }
        return seen, *broadcaster.sent
      end
    end
  end

  it "brings every durable message to every client exactly once and in order, and every ephemeral one (invariants 2, 7, 11)" do
    seen, durable, ephemeral = broadcast(clients, rate: 200, count: 200)

    expect(seen).to include(durable: durable * clients, ephemeral: ephemeral * clients, missing: 0, duplicates: 0,
                            lost_connections: 0)
    expect(@cluster.figures("worker").map { |worker| worker[:browsers] }).to all(be_positive)
  end

  it "holds one LISTEN session, in the master, for all workers" do
    expect(@postgres.sql(listen_sessions).lines.size).to eq(1)
  end

  it "survives kill -9 of a worker: its clients come back to another and miss nothing, the LISTEN session stays " \
     "(invariants 3, 10, 11)" do
    session = @postgres.sql(listen_sessions)
    workers = @cluster.worker_pids
    victim = workers.first

    seen, durable = broadcast(clients, rate: 50, count: 200) do |report|
      Process.kill(:KILL, victim) if victim && report[:durable] > 10 * clients
      victim = nil if report[:durable] > 10 * clients
    end

    expect(seen).to include(durable: durable * clients, missing: 0, duplicates: 0, open: clients)
    expect(seen[:lost_connections]).to be_positive
    expect(eventually { (@cluster.worker_pids - workers).first }).to be_positive
    expect(@postgres.sql(listen_sessions)).to eq(session)
  end
end
