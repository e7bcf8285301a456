# frozen_string_literal: true

require "json"
require "open3"
require "rbconfig"
require "tmpdir"

# Every public method with what it can't take: an exception that Ruby people expect, that names the argument, and a
# process that lives on. All calls of one group are made in one process of its own; what crashes it is the call that has
# no outcome.
RSpec.describe "bad input" do
  def self.outcomes_of(calls)
    Dir.mktmpdir do |folder|
      output, status = Open3.capture2e({ "FOLDER" => folder }, RbConfig.ruby, "-w", *$LOAD_PATH.flat_map { |path| ["-I", path] },
                                       "-e", PROGRAM, stdin_data: JSON.generate(calls))
      lines = output.lines.grep(/\A\{/).map { |line| JSON.parse(line) }
      [lines.to_h { |line| [line["call"], line] }, status, output]
    end
  end

  PROGRAM = <<~'RUBY'
    $stdout.sync = true
    require "json"
    require "logger"
    require "socket"
    require "pgbus_or_standin"
    require "pgbus_native"
    Pgbus.configuration.logger = Logger.new(IO::NULL)
    include PgbusNative
    PATH = "#{ENV.fetch("FOLDER")}/hub.sock"
    Streamer = Pgbus::Web::Streamer
    ConnectionPatch.install(Streamer::Connection)
    Envelope = Struct.new(:msg_id, :payload)
    # A listener that hears nothing, so that no database is needed.
    LISTENER = Class.new do
      def ensure_listening(_queue) = nil
      def remove_listening(_queue) = nil
      def stop = nil
      def alive? = true
      def connected? = true
    end
    FACTORY = ->(dispatch_queue:) { LISTENER.new if dispatch_queue }

    Settings = Struct.new(:streams_connection_options, :streams_listen_health_check_ms)

    def settings(health_check_ms: 250) = Settings.new("postgres://localhost", health_check_ms)
    def hub(config: Pgbus.configuration, **options) = MasterHub.new(config:, socket_path: PATH, listener_factory: FACTORY, **options)
    def natively(options) = MasterHub.new(config: Settings.new(options, 250), socket_path: PATH)
    def pump(**options) = OutboundPump.new(threads: 1, ack_queue: Queue.new, on_dead: ->(_) {}, **options)
    def connection = Streamer::Connection.new(id: "c", stream_name: "s", io: UNIXSocket.pair.first, since_id: 0, writer: Streamer::IoWriter, write_deadline_ms: 1_000)
    def post(connection: self.connection, envelopes: [Envelope.new(1, "x")], batch_max: 1, deadline_ms: 1_000)
      pump.post(connection, envelopes, batch_max, deadline_ms:)
    end

    JSON.parse($stdin.read).each do |call|
      outcome = begin
        value = eval(call)
        { returned: value.class.name }
      rescue Exception => e
        { raised: e.class.ancestors.map(&:name), message: e.message }
      end
      puts JSON.generate(outcome.merge(call:))
    end
    # Neither hub nor pump nor garbage collector is worse for it.
    hub.start.stop
    pump.start.stop
    GC.start
  RUBY

  def self.table(title, rows)
    describe title do
      before(:context) { @outcomes, @status, @output = self.class.outcomes_of(rows.keys) }

      rows.each do |call, (error, words)|
        it "#{call}: #{error}" do
          outcome = @outcomes[call] or raise "the process did not survive it: #{@status}\n#{@output}"

          expect(outcome["raised"]).to include(error), outcome.inspect
          expect(outcome["message"]).to match(words)
        end
      end

      it "leaves a process that works" do
        expect(@status).to be_success, @output
      end
    end
  end

  not_positive = %w[0 -1 Float::NAN Float::INFINITY 1i]
  not_numbers = %w[nil "1" :one [] Object.new]

  table "MasterHub.new", {
    "MasterHub.new(config: nil, socket_path: PATH)" => ["TypeError", /config must respond to .*, got nil/],
    "MasterHub.new(config: Object.new, socket_path: PATH)" => ["TypeError", /config must respond to streams_connection_options/],
    "MasterHub.new(config: Pgbus.configuration)" => ["ArgumentError", /socket_path/],
    "MasterHub.new(socket_path: PATH)" => ["ArgumentError", /config/],
    "hub(socket_path: nil)" => ["TypeError", /socket_path must be a String or a Pathname, got nil/],
    "hub(socket_path: 17)" => ["TypeError", /socket_path .*17/],
    "hub(socket_path: '')" => ["ArgumentError", /socket_path must not be empty/],
    'hub(socket_path: "a\0b")' => ["ArgumentError", /socket_path.*null byte/],
    "hub(listener_factory: 17)" => ["TypeError", /listener_factory must respond to call/],
    "hub(logger: Object.new)" => ["TypeError", /logger must respond to/],
    "hub(unknown: 1)" => ["ArgumentError", /unknown/],
    **%w[status_interval durable_queue_limit hard_queue_limit].product(not_positive + not_numbers + %w[2**80]).to_h do |name, value|
      ["hub(#{name}: #{value})", ["ArgumentError", /#{name} must be a positive/]]
    end
  }

  table "MasterHub", {
    'hub(socket_path: "/nowhere/hub.sock").start' => ["Errno::ENOENT", %r{No such file or directory.*hub socket /nowhere/hub\.sock}],
    'hub(socket_path: "x" * 300).start' => ["ArgumentError", /too long/],
    "hub(listener_factory: ->(dispatch_queue:) { raise 'no' }).start" => ["RuntimeError", /no/],
    **(not_positive + not_numbers).to_h do |value|
      ["hub(config: settings(health_check_ms: #{value})).start", ["ArgumentError", /streams_listen_health_check_ms must be a positive/]]
    end,
    "natively(nil).start" => ["StandardError", /connection options must be a String or a Hash, got NilClass/],
    "natively(17).start" => ["StandardError", /connection options must be a String or a Hash, got Integer/],
    "natively({ 1 => 2 }).start" => ["ArgumentError", /connection options must have Symbols or Strings as keywords, got 1/],
    "natively({ variables: 5 }).start" => ["ArgumentError", /variables must be a Hash, got Integer/],
    "natively({ hots: 'localhost' }).start" => ["PG::Error", /hots/],
    "natively('postgres://localhost/?hots=1').start" => ["PG::Error", /hots/],
    "natively('postgres://app@localhost/?hots=1').start" => ["PG::Error", /hots/],
    "natively('postgres://app:secret@localhost/?hots=1').start" => ["PG::Error", /\A(?!.*secret).*\*\*\*/],
    "hub.start(1)" => ["ArgumentError", /given 1/],
    "hub.stop(1)" => ["ArgumentError", /given 1/],
    "hub.stats(1)" => ["ArgumentError", /given 1/]
  }

  table "OutboundPump.new", {
    "OutboundPump.new" => ["ArgumentError", /threads/],
    "pump(unknown: 1)" => ["ArgumentError", /unknown/],
    "pump(ack_queue: nil)" => ["TypeError", /ack_queue must respond to <</],
    "pump(on_dead: nil)" => ["TypeError", /on_dead must respond to call/],
    "pump(logger: nil)" => ["TypeError", /logger must respond to/],
    "pump(threads: 0)" => ["ArgumentError", /threads must be positive/],
    "pump(threads: -1)" => ["ArgumentError", /threads must be positive/],
    "pump(threads: 2**70)" => ["ArgumentError", /threads must be at most/],
    "pump(buffer_limit: -1)" => ["ArgumentError", /buffer_limit must not be negative/],
    **%w[threads buffer_limit].product(not_numbers + %w[1.5]).to_h do |name, value|
      ["pump(#{name}: #{value})", ["TypeError", /#{name} must be an Integer/]]
    end
  }

  table "OutboundPump#post", {
    **%w[nil 1 "x" Object.new].to_h { |value| ["post(connection: #{value})", ["TypeError", /connection must respond to/]] },
    **%w[nil 1 "x" Object.new].to_h { |value| ["post(envelopes: #{value})", ["TypeError", /envelopes must respond to/]] },
    **%w[nil 1 "x"].to_h { |value| ["post(envelopes: [#{value}])", ["TypeError", /envelopes.* must respond to msg_id/]] },
    **%w[nil "1" :one 1.5].to_h { |value| ["post(envelopes: [Envelope.new(#{value}, '')])", ["TypeError", /msg_id must be an Integer/]] },
    "post(envelopes: [Envelope.new(2**70, '')])" => ["RangeError", /msg_id must be .*64 bits/],
    "post(envelopes: [Envelope.new(-1, '')])" => ["ArgumentError", /ephemeral/],
    "post(envelopes: [Envelope.new(-2**70, '')])" => ["ArgumentError", /ephemeral/],
    **%w[nil "1" :one Float::NAN].to_h { |value| ["post(deadline_ms: #{value})", ["ArgumentError", /deadline_ms must be a number/]] },
    "pump.post(connection, [], 1)" => ["ArgumentError", /deadline_ms/],
    "pump.post(connection)" => ["ArgumentError", /given 1/]
  }

  table "PgbusNative", {
    "PgbusNative.configure" => ["ArgumentError", /block/],
    "PgbusNative.native?(:Dispatcher)" => ["ArgumentError", /:OutboundPump.*:Dispatcher/],
    "PgbusNative.native?(nil)" => ["ArgumentError", /:OutboundPump.*nil/],
    **%w[nil 1 "drop_oldest" :drop_newest].to_h do |value|
      ["PgbusNative.configure { |c| c.pump_overflow = #{value} }", ["ArgumentError", /pump_overflow must be one of/]]
    end,
    **%w[-1 1025].to_h { |value| ["PgbusNative.configure { |c| c.writers = #{value} }", ["ArgumentError", /writers must be from 0 to 1024, got #{value}/]] },
    **%w[nil "1" 1.0].to_h { |value| ["PgbusNative.configure { |c| c.writers = #{value} }", ["TypeError", /writers must be an Integer/]] }
  }

  # Not for apps, but within their reach.
  table "internals", {
    "Writers.allocate.stats" => ["TypeError", /./],
    "Writers.new(1, 0, :newest, nil)" => ["ArgumentError", /overflow policy "newest"/],
    "Writers.new(1, 0, :drop_oldest, nil).adopt(nil, nil, [1, nil])" => ["ArgumentError", /deadline_ms must be a number/],
    "Outlet.allocate" => ["TypeError", /allocator undefined/],
    "MasterHub::Engine.spawn(nil, nil, nil, nil, nil, nil)" => ["TypeError", /./],
    "MasterHub::Engine.allocate" => ["TypeError", /allocator undefined/]
  }
end
