# frozen_string_literal: true

require "json"
require_relative "support/pgbus_tree"

# Each example is a fresh Ruby process: what is under test is how the classes get in.
RSpec.describe "Installing into pgbus" do
  let(:folder) { Dir.mktmpdir }
  let(:tree) { PgbusTree.ours(folder) }

  after { FileUtils.rm_rf(folder) }

  # What the code printed; anything on stderr or a bad end fails.
  def ruby(code, **)
    run = tree.run(code, **)
    expect([run.err, run.status.exitstatus]).to eq(["", 0])
    run.out
  end

  def refused(code = 'require "pgbus_native"; puts Pgbus::Web::Streamer::OutboundPump, Pgbus::Web::Streamer::MasterHub', **)
    run = tree.run(code, **)
    expect(run.status).to be_success
    expect(run.out).to eq("Pgbus::Web::Streamer::OutboundPump\nPgbus::Web::Streamer::MasterHub\n")
    expect(run.err.lines.size).to eq(1)
    run.err
  end

  native = "PgbusNative::OutboundPump\nPgbus::Web::Streamer::OutboundPump\nPgbusNative::MasterHub\n" \
           "Pgbus::Web::Streamer::MasterHub\n"
  print_both = <<~RUBY
    originals = PgbusNative.originals
    puts Pgbus::Web::Streamer::OutboundPump, originals[:OutboundPump], Pgbus::Web::Streamer::MasterHub, originals[:MasterHub]
  RUBY

  shared_examples "any pgbus" do
    {
      "ours first" => 'require "pgbus_native"; require "pgbus"',
      "ours alone" => 'require "pgbus_native"',
      "pgbus first" => 'require "pgbus"; require "pgbus_native"',
      "pgbus first, its namespace held" => 'require "pgbus"; $namespace = Pgbus::Web::Streamer; require "pgbus_native"',
      "pgbus first, its classes loaded" =>
        'require "pgbus"; Pgbus::Web::Streamer::MasterHub; Pgbus::Web::Streamer::OutboundPump; require "pgbus_native"',
      "the streamer loaded eagerly" =>
        'require "pgbus"; require "pgbus_native"; Pgbus.loader.eager_load_namespace(Pgbus::Web::Streamer)',
      "the files required by their paths" =>
        'require "pgbus_native"; require "pgbus/web/streamer"; require "pgbus/web/streamer/master_hub"'
    }.each do |order, code|
      it("replaces both classes with #{order}") { expect(ruby("#{code}\n#{print_both}")).to eq(native) }
    end

    it "makes both native by string, through a namespace held before and in pgbus's own scope" do
      expect(ruby(<<~RUBY)).to eq("PgbusNative::OutboundPump\nPgbusNative::MasterHub\nPgbusNative::OutboundPump\n")
        require "pgbus_native"
        web = Pgbus::Web
        puts Object.const_get("Pgbus::Web::Streamer::OutboundPump"), web::Streamer::MasterHub
        puts Pgbus::Web::Streamer.module_eval("OutboundPump")
      RUBY
    end

    it "loads nothing of the streamer in a process that doesn't stream, and says that it waits" do
      expect(ruby(<<~RUBY)).to eq("[true, true, true]\n[]\ntrue\n")
        require "pgbus_native"
        states = PgbusNative.status[:classes].values
        p [PgbusNative.installed?, *states.map { |state| state[:waiting] && !state[:native] }]
        puts PgbusNative.status.to_s.include?("OutboundPump  waiting for a first browser") ? $LOADED_FEATURES.grep(/web.streamer/).inspect : PgbusNative.status
        p !Pgbus::Web.autoload?(:Streamer).nil?
      RUBY
    end

    it "gives all threads that name a class at once the native one" do
      expect(ruby(<<~RUBY)).to eq("[PgbusNative::OutboundPump, PgbusNative::MasterHub]\n")
        require "pgbus_native"
        gate = Queue.new
        threads = Array.new(16) do |i|
          Thread.new { gate.pop; i.even? ? Pgbus::Web::Streamer::OutboundPump : Pgbus::Web::Streamer::MasterHub }
        end
        gate.close
        p threads.map(&:value).uniq.sort_by(&:name).reverse
      RUBY
    end

    it "holds in a process forked before the streamer is loaded, and in its parent" do
      expect(ruby(<<~RUBY)).to eq("PgbusNative::MasterHub\n" * 2)
        require "pgbus_native"
        Process.wait(fork { puts Pgbus::Web::Streamer::MasterHub; $stdout.flush; exit!(0) })
        puts Pgbus::Web::Streamer::MasterHub
      RUBY
    end

    it "holds where files are required through the hooks of a cache of compiled code" do
      expect(ruby("#{<<~RUBY}#{print_both}")).to eq(native)
        class RubyVM::InstructionSequence
          def self.load_iseq(path) = compile_file(path)
        end
        module Kernel
          alias_method :require_without_cache, :require
          def require(path)
            found = $LOAD_PATH.resolve_feature_path(path) rescue nil
            require_without_cache(found && found[0] == :rb ? found[1] : path)
          end
        end
        require "pgbus_native"
        require "pgbus"
      RUBY
    end

    it "puts pgbus's own classes back, for new objects, and the native ones in again" do
      out = ruby(<<~RUBY)
        require "pgbus_native"
        Pgbus.logger.level = Logger::FATAL
        build = -> { Pgbus::Web::Streamer::OutboundPump.new(threads: 1, ack_queue: Queue.new, on_dead: ->(_) {}) }
        before = build.call
        PgbusNative.uninstall!
        puts [before.class, build.call.class, PgbusNative.installed?, PgbusNative.status[:reason]].join(" ")
        PgbusNative.install!
        puts [build.call.class, PgbusNative.installed?].join(" ")
      RUBY
      expect(out).to eq("PgbusNative::OutboundPump Pgbus::Web::Streamer::OutboundPump false uninstalled\n" \
                        "PgbusNative::OutboundPump true\n")
    end

    it "leaves pgbus's own classes when it is uninstalled before the streamer is loaded" do
      expect(ruby(<<~RUBY)).to eq("Pgbus::Web::Streamer::MasterHub\nPgbusNative::MasterHub\n")
        require "pgbus_native"
        PgbusNative.uninstall!
        puts Pgbus::Web::Streamer::MasterHub
        PgbusNative.install!
        puts Pgbus::Web::Streamer::MasterHub
      RUBY
    end

    it "gives a worker's streamer a native pump by default, which takes connections in, as long as it is installed" do
      expect(ruby(<<~RUBY)).to eq("[PgbusNative::OutboundPump, true]\n[NilClass, false]\n[PgbusNative::OutboundPump, true]\n[NilClass, false]\n")
        require "pgbus_native"
        require "socket"
        streamer = Pgbus::Web::Streamer
        show = lambda do
          listener = Object.new.tap { |own| %i[start stop].each { |name| own.define_singleton_method(name) { self } } }
          instance = streamer::Instance.allocate
          { config: Pgbus.configuration, dispatch_queue: Queue.new, ack_queue: Queue.new, logger: Pgbus.logger,
            shutdown_mutex: Mutex.new, started: true, listener: }.each { |name, value| instance.instance_variable_set("@\#{name}", value) }
          pump = instance.instance_variable_set(:@pump, instance.send(:build_pump))
          connection = streamer::Connection.new(id: "c", stream_name: "s", io: UNIXSocket.pair[0], since_id: 0,
                                                writer: streamer::IoWriter, write_deadline_ms: 1_000)
          instance.register(connection)
          p [pump.class, connection.native_outlet ? true : false]
        end
        show.call
        PgbusNative.uninstall!
        show.call
        PgbusNative.install!
        show.call
        PgbusNative.configure { |c| c.writers = 0 }
        show.call
      RUBY
    end

    it "is switched off by PGBUS_NATIVE=0, and says so in one line" do
      expect(refused(PGBUS_NATIVE: "0")).to match(/\Apgbus_native: switched off by PGBUS_NATIVE=0; .* Unset it/)
    end

    [" 0", "OFF", "No "].each do |value|
      it "is switched off by PGBUS_NATIVE=#{value.inspect}" do
        expect(refused(PGBUS_NATIVE: value)).to include("switched off by PGBUS_NATIVE")
      end
    end

    %w[n disabled 2].each do |value|
      it "says what it understood of PGBUS_NATIVE=#{value}, in one line" do
        run = tree.run("require 'pgbus_native'; PgbusNative.install!; puts PgbusNative.installed?", PGBUS_NATIVE: value)
        expect([run.out, run.err.lines.size]).to eq(["true\n", 1])
        expect(run.err).to match(/PGBUS_NATIVE is "#{value}", which says neither off \(0, .*\) nor on \(1, .*\): it stays on/)
      end
    end

    ["", "1", "true", "Yes", " on "].each do |value|
      it "is on, and says nothing, with PGBUS_NATIVE=#{value.inspect}" do
        expect(ruby("require 'pgbus_native'; puts PgbusNative.installed?", PGBUS_NATIVE: value)).to eq("true\n")
      end
    end

    it "doesn't even load the extension when it is switched off, and everything about it can still be asked" do
      run = tree.run(<<~RUBY, PGBUS_NATIVE: "off")
        require "pgbus_native"
        p $LOADED_FEATURES.grep(/pgbus_native.(so|bundle)/), PgbusNative.installed?, PgbusNative.install!
        puts PgbusNative.status
        PgbusNative.uninstall!
      RUBY
      expect(run.out).to match(/\A\[\]\nfalse\nfalse\npgbus_native .*\n  extension     not loaded: switched off by PGBUS_NATIVE=off/)
      expect(run.status).to be_success
    end

    it "says what is replaced, to programs and to people" do
      hash, text = ruby(<<~RUBY).split("\n", 2)
        require "pgbus_native"
        require "json"
        Pgbus::Web::Streamer::MasterHub
        puts JSON.generate(PgbusNative.status), PgbusNative.status
      RUBY
      expect(JSON.parse(hash, symbolize_names: true))
        .to include(version: PgbusNative::VERSION, supported: ">= 0.13.1, < 1.0", installed: true, reason: nil,
                    extension: include(loaded: true, error: nil, ruby: include(RUBY_VERSION)),
                    classes: { OutboundPump: { native: true, waiting: false, reason: nil, state: "waiting", text: /first browser/ },
                               MasterHub: { native: true, waiting: false, reason: nil, state: "unused", text: /Puma does not run/ } },
                    feed: { native: false, waiting: true, reason: nil })
      expect(text).to match(/\Apgbus_native #{PgbusNative::VERSION} with pgbus [\d.]+ .*\n  extension     loaded, .*#{RUBY_VERSION}/)
        .and include("\n  OutboundPump  waiting for a first browser\n  MasterHub     no hub: Puma does not run in this process\n" \
                       "  feed          native as soon as a browser comes\n")
    end
  end

  describe "a small pgbus that loads its classes as the real one does" do
    include_examples "any pgbus"

    it "reaches the code of pgbus that names the classes in its own scope" do
      expect(ruby(<<~RUBY)).to eq("PgbusNative::OutboundPump\nPgbusNative::MasterHub\n")
        require "pgbus_native"
        instance = Pgbus::Web::Streamer::Instance.new
        puts instance.pump_class, instance.hub_class
      RUBY
    end

    it "replaces them with all of pgbus loaded eagerly" do
      expect(ruby("require 'pgbus_native'; Zeitwerk::Loader.eager_load_all\n#{print_both}")).to eq(native)
    end

    it "replaces them when another thread is loading the streamer just then" do
      other = PgbusTree.ours(folder, edits: { "pgbus/web/streamer.rb" => [["module Pgbus::Web\n", "$gate.pop\nmodule Pgbus::Web\n"]] })
      run = other.run(<<~RUBY)
        require "pgbus"
        $gate = Queue.new
        loading = Thread.new { Pgbus::Web::Streamer }
        Thread.pass until $gate.num_waiting == 1
        ours = Thread.new { require "pgbus_native" }
        Thread.pass until ours.stop?
        $gate << :open
        [loading, ours].each(&:join)
        puts Pgbus::Web::Streamer::OutboundPump, Pgbus::Web::Streamer::MasterHub
      RUBY
      expect([run.out, run.err]).to eq(["PgbusNative::OutboundPump\nPgbusNative::MasterHub\n", ""])
    end

    it "replaces them again after a reload" do
      expect(ruby(<<~RUBY, RELOADING: "1")).to eq("true PgbusNative::OutboundPump false PgbusNative::OutboundPump true\n")
        require "pgbus_native"
        before = Pgbus::Web::Streamer
        original = PgbusNative.originals[:OutboundPump]
        print PgbusNative.native?(:MasterHub), " ", before::OutboundPump, " "
        Pgbus.loader.reload
        print Pgbus::Web::Streamer.equal?(before), " ", Pgbus::Web::Streamer::OutboundPump, " "
        puts !PgbusNative.originals[:OutboundPump].equal?(original)
      RUBY
    end
  end

  if ENV["PGBUS_PATH"]
    describe "the real pgbus" do
      let(:tree) { PgbusTree.real(ENV["PGBUS_PATH"]) }

      include_examples "any pgbus"
    end
  end

  describe "a pgbus of another version" do
    %w[0.12.4 0.13.0 1.0.0.rc1 1.0.0 2.1].each do |version|
      it "(#{version}) keeps its own classes, with one line that says why and what to do" do
        other = PgbusTree.ours(folder, version:)
        allow(self).to receive(:tree).and_return(other)
        expect(refused).to match(/\Apgbus_native: pgbus #{version} is outside of .*>= 0.13.1, < 1.0.*take pgbus_native out of the Gemfile/)
      end
    end

    %w[0.13.1 0.17.0 0.99.3].each do |version|
      it "(#{version}) gets the native ones" do
        other = PgbusTree.ours(folder, version:)
        allow(self).to receive(:tree).and_return(other)
        expect(ruby("require 'pgbus_native'\n#{print_both}")).to eq(native)
      end
    end
  end

  describe "a pgbus of another shape" do
    pump = "pgbus/web/streamer/outbound_pump.rb"
    hub = "pgbus/web/streamer/master_hub.rb"
    streamer = "pgbus/web/streamer.rb"
    change = ->(code) { [["module Pgbus::Web\n", "#{code}\nmodule Pgbus::Web\n"]] }
    inside = ->(code) { change.call("module Pgbus::Web::Streamer\n#{code}\nend") }

    {
      "a keyword more for the pump" => [:OutboundPump, pump, [["buffer_limit: 0,", "buffer_limit: 0, compress: false,"]], /initialize.*compress/],
      "another way to post" => [:OutboundPump, pump, [["batch_max, deadline_ms:", "batch_max:, deadline_ms:"]], /#post takes batch_max:/],
      "one argument fewer to post" => [:OutboundPump, pump, [["envelopes, batch_max, ", "envelopes, "]], /#post takes other arguments/],
      "a method on the pump that ours lacks" => [:OutboundPump, pump, [["def start", "def flush = nil\n def start"]], /OutboundPump#flush would be hidden/],
      "a class method on the pump that ours lacks" => [:OutboundPump, pump, [["def start", "def self.build = nil\n def start"]], /OutboundPump.build would be hidden/],
      "a constant in the pump that ours lacks" => [:OutboundPump, pump, [["def start", "Full = Class.new(StandardError)\n def start"]], /OutboundPump::Full would be hidden/],
      "another acknowledgement" =>
        [:OutboundPump, streamer, inside.call("class StreamEventDispatcher\n remove_const :WriteAckMessage\n" \
                                              "WriteAckMessage = Data.define(:connection, :upto)\nend"), /WriteAckMessage.*accepted_max/],
      "a keyword more that a connection must have" =>
        [:OutboundPump, streamer, inside.call("class Connection\n def initialize(id:, stream_name:, io:, since_id:, writer:," \
                                              "write_deadline_ms:, codec:, context: nil) = nil\nend"), /missing keyword: :codec/],
      "a connection that can't be closed" => [:OutboundPump, streamer, inside.call("Connection.undef_method(:close)"), /Connection#close is missing/],
      "a connection that frames otherwise" =>
        [:OutboundPump, streamer, inside.call("class Connection\n def enqueue(envelopes, deadline_ms: 1)\n" \
                                              "@writer.write(self, envelopes.first.payload, deadline_ms:)\nend\nend"), /a frame of Connection/],
      "a connection without its lock" =>
        [:OutboundPump, streamer, inside.call("class Connection\n alias was initialize\n def initialize(id:, stream_name:, io:, " \
                                              "since_id:, writer:, write_deadline_ms:, context: nil)\n" \
                                              "was(id:, stream_name:, io:, since_id:, writer:, write_deadline_ms:, context:)\n" \
                                              "remove_instance_variable(:@mutex)\nend\nend"), /@mutex/],
      "a connection without its cursor" =>
        [:OutboundPump, streamer, inside.call("class Connection\n alias was initialize\n def initialize(id:, stream_name:, io:, " \
                                              "since_id:, writer:, write_deadline_ms:, context: nil)\n" \
                                              "was(id:, stream_name:, io:, since_id:, writer:, write_deadline_ms:, context:)\n" \
                                              "@last_msg_id_sent = 1\nend\nend"), /NoMethodError.*get/],
      "another streamer" => [:OutboundPump, "pgbus/web/streamer/instance.rb", [["def build_pump = nil", "def build_pump(threads) = nil"]],
                              /Instance#build_pump/],
      "another writer" => [:OutboundPump, streamer, inside.call("def IoWriter.write(connection, bytes) = nil"), /IoWriter.write/],
      "other frames for browsers" =>
        [:OutboundPump, streamer, change.call("def (Pgbus::Streams::Envelope).message(id:, event:, data:, retry_ms:) = ''"), /Envelope.message.*retry_ms/],
      "a keyword more for the hub" => [:MasterHub, hub, [["status_interval: 1.0,", "status_interval: 1.0, token: nil,"]], /initialize.*token/],
      "a method more on the hub" => [:MasterHub, hub, [["def start", "def reload = nil\n def start"]], /MasterHub#reload would be hidden/],
      "no hub" => [:MasterHub, hub, [["class MasterHub", "MasterHub = :none\n class Elsewhere"]], /NoMethodError/],
      "other wakes" =>
        [:MasterHub, streamer, inside.call("class Listener\n remove_const :WakeMessage\n WakeMessage = Data.define(:queue)\nend"), /WakeMessage#queue_name is missing/],
      "other frames for workers" => [:MasterHub, streamer, inside.call("def HubProtocol.encode(message) = Marshal.dump(message)"), /frame of HubProtocol/],
      "a setting fewer" =>
        [:MasterHub, streamer, change.call("Pgbus::Configuration.undef_method(:streams_listen_health_check_ms)"), /streams_listen_health_check_ms/]
    }.each do |difference, (name, file, edits, reason)|
      it "(#{difference}) keeps its own #{name}, the other is native, one warning says why" do
        other = PgbusTree.ours(folder, edits: { file => edits })
        out = other.run(<<~RUBY)
          require "pgbus_native"
          own = %i[OutboundPump MasterHub].reject { |name| Pgbus::Web::Streamer.const_get(name).to_s.start_with?("PgbusNative") }
          puts own, PgbusNative.status[:classes][own.first][:reason], PgbusNative.installed?
        RUBY
        warning, kept, why, installed = out.out.lines(chomp: true) # a pgbus without a logger of its own logs to stdout
        expect([kept, installed, out.err]).to eq([name.to_s, "true", ""])
        expect(why).to match(reason)
        expect(warning).to include("keeps pgbus's own #{name}", why, "Look for a newer pgbus_native")
      end
    end

    {
      "a dispatcher that handles otherwise" =>
        [inside.call("StreamEventDispatcher.send(:undef_method, :handle)"), /StreamEventDispatcher#handle is missing/],
      "statistics of another kind" =>
        [inside.call("class StreamEventDispatcher\n def record_stat(stat) = nil\nend"), /StreamEventDispatcher#record_stat can't be called/],
      "a dispatcher that keeps its filters elsewhere" =>
        [inside.call("class StreamEventDispatcher\n alias was initialize\n def initialize(**)\n was(**)\n " \
                     "remove_instance_variable(:@filters)\n end\nend"), /StreamEventDispatcher's @filters is missing/],
      "other bytes of a message" =>
        [change.call("class << Pgbus::Streams::Envelope\n alias was message\n def message(**) = was(**).sub(/data: /, 'data:')\nend"),
         /the frame of/]
    }.each do |difference, (edits, reason)|
      it "(#{difference}) keeps its own dispatcher, both classes are native, one warning says why" do
        run = PgbusTree.ours(folder, edits: { streamer => edits }).run(<<~RUBY)
          require "pgbus_native"
          puts Pgbus::Web::Streamer::OutboundPump, Pgbus::Web::Streamer::MasterHub, PgbusNative.status[:feed][:reason]
        RUBY
        warning, *classes, why = run.out.lines(chomp: true) # a pgbus without a logger of its own logs to stdout
        expect([classes, run.err]).to eq([%w[PgbusNative::OutboundPump PgbusNative::MasterHub], ""])
        expect(why).to match(reason)
        expect(warning).to include("keeps pgbus's own StreamEventDispatcher", why)
      end
    end

    {
      "a pump that shows its threads" => [pump, [["def start", "def threads = []\n def start"]]],
      "a keyword fewer for the pump" => [pump, [["buffer_limit: 0, ", ""]]],
      "a keyword of the pump that must be given" => [pump, [["buffer_limit: 0", "buffer_limit:"]]],
      "a keyword more for a connection, and a method" =>
        [streamer, inside.call("class Connection\n alias was initialize\n def initialize(codec: nil, **) = was(**)\n" \
                               "def codec = nil\nend")],
      "a keyword more to enqueue and to close" =>
        [streamer, inside.call("class Connection\n alias was enqueue\n def enqueue(envelopes, deadline_ms: 1, urgent: false) = " \
                               "was(envelopes, deadline_ms:)\n alias end_it close\n def close(reason: nil) = end_it\nend")],
      "a keyword more for the writer and for frames" =>
        [streamer, change.call("class << Pgbus::Streams::Envelope\n alias was message\n def message(retry_ms: nil, **) = was(**)\nend")],
      "a wake that says more" =>
        [streamer, inside.call("class Listener\n remove_const :WakeMessage\n WakeMessage = Data.define(:queue_name, :payload, :pid) do\n" \
                               "def initialize(queue_name:, payload:, pid: nil) = super\nend\ndef threads = []\nend")],
      "an acknowledgement that says more" =>
        [streamer, inside.call("class StreamEventDispatcher\n remove_const :WriteAckMessage\n" \
                               "WriteAckMessage = Data.define(:connection, :accepted_max, :at) do\n" \
                               "def initialize(connection:, accepted_max:, at: nil) = super\nend\nend")]
    }.each do |addition, (file, edits)|
      it "(#{addition}) makes no difference" do
        run = PgbusTree.ours(folder, edits: { file => edits }).run("require 'pgbus_native'\n#{print_both}")
        expect([run.out, run.err]).to eq([native, ""])
      end
    end
  end

  describe "an extension that can't be loaded" do
    let(:library) do
      FileUtils.cp_r("#{PgbusTree::ROOT}/lib", "#{folder}/library")
      FileUtils.rm(Dir["#{folder}/library/**/*.{so,bundle}"])
      "#{folder}/library"
    end

    it "keeps pgbus's own classes, with one line that says why and what to do" do
      expect(refused(native: library)).to match(/can't be loaded \(cannot load such file.*this is Ruby #{RUBY_VERSION}.*gem pristine pgbus_native/)
    end

    it "keeps them also when the file is one for something else" do
      File.write("#{library}/pgbus_native/pgbus_native.#{RbConfig::CONFIG["DLEXT"]}", "not a library")
      expect(refused(native: library)).to match(/can't be loaded \(.*pgbus_native\.\w+: .*gem pristine pgbus_native/)
    end

    it "is said in the status" do
      run = tree.run('require "pgbus_native"; puts PgbusNative.status, PgbusNative.installed?', native: library)
      expect(run.out).to match(/extension     not loaded: cannot load.*\n  OutboundPump  pgbus's own: the extension can't be loaded.*\n.*\n.*\nfalse\n\z/)
    end
  end

  describe "without pgbus" do
    let(:tree) { PgbusTree.new(nil) }
    let(:bare) { { RUBYLIB: nil, RUBYOPT: "--disable-gems" } }

    it("says nothing") { expect(ruby('require "pgbus_native"', **bare)).to eq("") }

    it "has its classes, and says that pgbus isn't loaded" do
      expect(ruby(<<~RUBY, **bare)).to eq("PgbusNative::OutboundPump PgbusNative::MasterHub {} false pgbus isn't loaded\n")
        require "pgbus_native"
        puts [PgbusNative::OutboundPump, PgbusNative::MasterHub, PgbusNative.originals, PgbusNative.install!,
              PgbusNative.status[:reason]].join(" ")
      RUBY
    end
  end

  it "leaves it to pgbus to say what it lacks" do
    broken = PgbusTree.ours(folder, edits: { "pgbus.rb" => [['require "zeitwerk"', 'require "zeitwerk_is_missing"']] })
    run = broken.run('require "pgbus_native"; begin; require "pgbus"; rescue LoadError => e; puts e.message; end')
    expect(run.err).to eq("pgbus_native: pgbus can't be loaded (cannot load such file -- zeitwerk_is_missing)\n")
    expect([run.out, run.status.exitstatus]).to eq(["cannot load such file -- zeitwerk_is_missing\n", 0])
  end
end
