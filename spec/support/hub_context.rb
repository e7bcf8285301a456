# frozen_string_literal: true

require "pg"
require "private_postgres"
require "timeout"
require "tmpdir"
require_relative "polling"
require_relative "raw_worker"

# A hub on a real PostgreSQL, workers, and waiting for conditions.
RSpec.shared_context "with a hub" do
  include Polling

  before(:context) { @postgres = PrivatePostgres.new.start }
  after(:context) { @postgres&.stop }

  let(:postgres) { @postgres }
  let(:folder) { Dir.mktmpdir("pgbus_native") }
  let(:path) { File.join(folder, "hub.sock") }
  let(:log) { StringIO.new }
  let(:config) { Pgbus::Configuration.new.tap { |config| config.database_url = postgres.url } }
  let(:settings) { {} }
  let(:hub) { PgbusNative::MasterHub.new(config:, socket_path: path, logger: Logger.new(log), **settings) }
  let(:workers) { [] }

  # A bug must not hang the suite.
  around { |example| Timeout.timeout(60) { example.run } }

  after do
    hub.stop
    workers.each(&:close)
    @notifier&.close
    FileUtils.remove_entry(folder)
  end

  def worker(*queues)
    RawWorker.new(path).tap do |worker|
      workers << worker
      worker.sub(*queues)
    end
  end

  def notifier = @notifier ||= PG.connect(postgres.url)

  # As PGMQ's trigger does (durable), or as pgbus's ephemeral broadcast.
  def notify(queue, payload = nil)
    notifier.exec_params("SELECT pg_notify($1, $2)", ["pgmq.q_#{queue}.INSERT", payload.to_s])
  end

  def notify_all(count, queue)
    notifier.transaction { count.times { |i| notify(queue, yield(i)) } }
  end

  # The server's processes that serve a hub.
  def sessions
    postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbus-listen'").split.map(&:to_i)
  end

  # Seconds that the block takes.
  def seconds
    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
  end
end
