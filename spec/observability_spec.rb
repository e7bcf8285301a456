# frozen_string_literal: true

require "active_support"
require "active_support/notifications"
require "json"
require "open3"
require "private_postgres"
require "socket"
require "tmpdir"
require_relative "outbound_pump_helper"

RSpec.describe "observability" do
  # What was published, in order, while the example runs.
  def record(pattern = /\.pgbus_native\z/)
    events = Queue.new
    subscriber = ActiveSupport::Notifications.subscribe(pattern) { |name, *, payload| events << [name, payload] }
    @subscribers = [*@subscribers, subscriber]
    events
  end

  after { @subscribers&.each { |subscriber| ActiveSupport::Notifications.unsubscribe(subscriber) } }

  def figure(name, **labels)
    line = PgbusNative.prometheus.lines.find do |candidate|
      candidate.start_with?("pgbus_native_#{name}{") && labels.all? { |label, value| candidate.include?("#{label}=\"#{value}\"") }
    end
    line && Float(line.split.last)
  end

  describe "of a hub" do
    before(:context) { @postgres = PrivatePostgres.new.start }
    after(:context) { @postgres.stop }

    around { |example| Dir.mktmpdir { |folder| @socket_path = "#{folder}/hub.sock"; example.run } }

    let(:hub) do
      config = Pgbus::Configuration.new.tap { |c| c.database_url = @postgres.url }
      PgbusNative::MasterHub.new(config:, socket_path: @socket_path, hard_queue_limit: 8, logger: Logger.new(IO::NULL)).start
    end

    after { hub.stop }

    def pop(events) = events.pop(timeout: 20) || raise("no event came")

    def wait_until(what)
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
      until yield
        raise "#{what}: not within 20 s" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

        Thread.pass
        sleep 0.01
      end
    end

    # A worker that subscribed to a queue, and reads on only if the example does.
    def worker(queue)
      socket = UNIXSocket.new(hub.socket_path)
      frame = JSON.generate(t: "sub", q: queue)
      socket.write([frame.bytesize].pack("N"), frame)
      reply = JSON.parse(socket.read(socket.read(4).unpack1("N"))) until reply&.fetch("t") == "ack"
      socket
    end

    def notify(queue, times, payload)
      @postgres.sql("SELECT count(pg_notify('pgmq.q_#{queue}.INSERT', '#{payload}' || n)) FROM generate_series(1, #{times}) n")
    end

    describe "events" do
      it "tell of the loss of the session and of its return" do
        events = record
        hub
        @postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")

        expect(pop(events)).to match(["session_lost.pgbus_native", { hub:, reason: a_kind_of(String) }])
        expect(pop(events)).to eq(["session_restored.pgbus_native", { hub: }])
      end

      it "tell of the eviction of a worker that does not read (invariant 8)" do
        events = record
        wedged = worker("q")
        notify("q", 4_000, "x" * 1_000)
        name, payload = pop(events)

        expect(name).to eq("evicted.pgbus_native")
        expect(payload).to match(hub:, worker: a_kind_of(Integer), waiting: be > 8)
        expect(hub.evicted_workers).to eq(1)
      ensure
        wedged&.close
      end

      it "survive a subscriber that raises" do
        record.then { hub }
        ActiveSupport::Notifications.subscribed(->(*) { raise "boom" }, "session_lost.pgbus_native") do
          events = record("session_restored.pgbus_native")
          @postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus-listen'")

          expect(pop(events)).to eq(["session_restored.pgbus_native", { hub: }])
        end
      end
    end

    describe "PgbusNative.prometheus" do
      it "gives the figures of the hubs" do
        reader = worker("a")
        notify("a", 3, "wake ")

        wait_until("three wakes") { figure("hub_wakes_in_total", socket: @socket_path) == 3 }
        expect(figure("hub_workers", socket: @socket_path)).to eq(1)
        expect(figure("hub_subscriptions", socket: @socket_path)).to eq(1)
        expect(figure("hub_session_up", socket: @socket_path, session: "native")).to eq(1)
        expect(figure("hub_session_connected_timestamp_seconds", socket: @socket_path)).to be_within(60).of(Time.now.to_f)
      ensure
        reader&.close
      end

      it "is text that Prometheus reads: help and type before a metric's samples, once" do
        hub
        text = PgbusNative.prometheus
        kinds = text.lines.map { |line| line[/\A# (HELP|TYPE) (\w+) /] ? [$1, $2] : ["sample", line[/\A\w+/]] }

        kinds.chunk_while { |(_, name), (_, following)| name == following }.each do |metric|
          expect(metric.map(&:first)).to match(["HELP", "TYPE", *["sample"] * (metric.size - 2)])
        end
        expect(kinds.map(&:last).chunk_while { |one, other| one == other }.map(&:first)).to eq(kinds.map(&:last).uniq)
        expect(text.lines.grep_v(/^#/)).to all(match(/\A[a-z_]+\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\} -?\d+(\.\d+)?(e[+-]?\d+)?\n\z/))
      end

      it "has nothing of the parent in a forked child (invariant 11)" do
        hub
        reader, writer = IO.pipe
        pid = fork do
          writer.write(PgbusNative.prometheus)
          writer.close
          exit!(0)
        end
        writer.close

        expect(reader.read).to eq("")
        Process.wait(pid)
        expect(figure("hub_session_up", socket: @socket_path)).to eq(1)
      end

      it "keeps no hub alive" do
        # In a process of its own: what else is on a stack would keep it too.
        output, = Open3.capture2e(RbConfig.ruby, *$LOAD_PATH.flat_map { |path| ["-I", path] }, "-e", <<~RUBY, @postgres.url, @socket_path)
          require "pgbus_or_standin"
          require "pgbus_native"
          Pgbus.configuration.logger = Logger.new(IO::NULL)
          url, path = ARGV
          20.times do |n|
            config = Pgbus::Configuration.new.tap { |c| c.database_url = url }
            PgbusNative::MasterHub.new(config:, socket_path: "\#{path}\#{n}", logger: Logger.new(IO::NULL)).start.stop
          end
          3.times { GC.start }
          print PgbusNative.prometheus.scan("pgbus_native_hub_session_up{").size
        RUBY

        expect(Integer(output)).to be < 20
      end
    end
  end

  describe "of a pump" do
    include OutboundPumpHelper

    it "tells of jobs that were dropped for a browser, whichever way it is served" do
      native = browser
      by_ruby = browser("ruby", klass: Class.new(OutboundPumpHelper::Streamer::Connection))
      limited = build_pump(buffer_limit: 2)
      events = record("overflow.pgbus_native")
      [native, by_ruby].each { |b| 3.times { |n| limited.post(b.connection, [envelope(n + 1)], n + 1, deadline_ms: 5_000) } }
      limited.start

      expect([pop(events), pop(events)]).to contain_exactly(
        *[native, by_ruby].map do |b|
          ["overflow.pgbus_native", { pump: limited, connection: b.connection, dropped: 1, policy: :drop_oldest }]
        end
      )
    ensure
      limited&.stop
    end

    it "tells of a browser that went away, once" do
      events = record("dead.pgbus_native")
      pump.start
      b = browser
      b.socket.close
      3.times { |n| post(b, envelope(n + 1)) }

      expect(pop(events)).to eq(["dead.pgbus_native", { pump:, connection: b.connection }])
      pump.stop
      expect(events).to be_empty
    end

    it "has figures" do
      pump.start
      b = browser
      post(b, envelope(1), envelope(2))
      pop(acks)

      number = PgbusNative::Live.each_of(:pump).to_h.fetch(pump)
      expect(figure("pump_posted_total", pump: number)).to eq(2)
      expect(figure("pump_written_total", pump: number)).to eq(2)
      expect(figure("pump_bytes_total", pump: number)).to eq((frame(1) + frame(2)).bytesize)
      expect(figure("pump_frames_total", pump: number, path: "native")).to eq(2)
      expect(figure("pump_frames_total", pump: number, path: "ruby")).to eq(0)
    end
  end
end
