# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"
require "rubygems/package"
require "tmpdir"
require "yaml"

RSpec.describe "the gem" do
  root = File.expand_path("..", __dir__)
  gem_name = "pgbus_native-#{PgbusNative::VERSION}"

  # As in a shell of somebody who has nothing to do with this checkout: none of what rake, RSpec or Bundler set.
  foreign = lambda do |more = {}|
    ENV.keys.grep(/\A(RUBY(OPT|LIB)|GEM_|BUNDLE|RB_SYS_|MAKE|CARGO_(TARGET|BUILD))/).to_h { |name| [name, nil] }.merge(more)
  end

  def run(env, *command, **)
    output, status = Open3.capture2e(env, *command, **)
    [status.success?, output]
  end

  before(:context) do
    @folder = Dir.mktmpdir("pgbus_native-gem-")
    built, output = run(foreign.call, "rake", "build", chdir: root)
    raise output unless built

    @gem = File.join(root, "pkg", "#{gem_name}.gem")
  end

  after(:context) { FileUtils.rm_rf(@folder) }

  it "holds what compiling and using it takes, and nothing else" do
    files = Gem::Package.new(@gem).contents

    expect(files).to include("Cargo.toml", "Cargo.lock", "LICENSE", "ext/pgbus_native/extconf.rb", "lib/pgbus_native.rb")
    expect(files).to all(match(%r{\A(Cargo\.(toml|lock)|README\.md|CHANGELOG\.md|LICENSE|sig/.+\.rbs|lib/.+\.rb|
                                    ext/pgbus_native/\w+\.rb|ext/\w+/Cargo\.toml|ext/\w+/src/.+\.rs)\z}x))
    expect(files.grep(/tests?\b|spec|bench|fuzz/)).to be_empty
  end

  it "names the same version in Ruby and in Rust" do
    expect(File.read("#{root}/Cargo.toml")[/^version = "(.*)"/, 1]).to eq(PgbusNative::VERSION)
  end

  it "names the same oldest Rust in its installer, in its manifest and wherever else it is named" do
    load "#{root}/ext/pgbus_native/requirements.rb"
    oldest = Requirements::MINIMUM_RUST

    expect(File.read("#{root}/Cargo.toml")[/^rust-version = "(.*)"/, 1]).to eq(oldest)
    expect(File.read("#{root}/bin/setup")).to include("Rust >= #{oldest}", "-ge #{oldest[/\d+\z/]} ]")
    expect(File.read("#{root}/README.md")).to include("with Rust #{oldest}")
  end

  it "names every crate it is made of, with its reason, in docs/dependencies.md" do
    documented = File.read("#{root}/docs/dependencies.md")
    named = Dir["#{root}/{ext/*,bench/load}/Cargo.toml"].flat_map do |manifest|
      File.read(manifest)[/^\[dependencies\]\n(.*?)(\n\[|\z)/m, 1].scan(/^([\w-]+) = /).flatten
    end

    expect(named).to include("tokio", "magnus")
    expect(named.uniq - ["pgbus_native_engine"] - documented.scan(/[\w-]+/)).to be_empty
  end

  it "is precompiled by the release workflow for what its tasks name" do
    workflow = YAML.safe_load_file("#{root}/.github/workflows/release.yml", aliases: true)
    platforms, rubies = %w[precompiled platform try ruby].each_slice(2).map do |job, axis|
      workflow.dig("jobs", job, "strategy", "matrix", axis)
    end
    listed, output = run(foreign.call, "rake", "--all", "--tasks", "precompile", chdir: root)

    expect(listed).to be(true), output
    expect(output.scan(/precompile:(\S+)/).flatten).to match_array(platforms)
    expect(output).to include("for Ruby #{rubies.join(", ")}")
  end

  describe "installed into an empty GEM_HOME" do
    before(:context) do
      @home = "#{@folder}/home"
      # The crates of the registry are compiled where this checkout compiles them, to save minutes; the two of the gem
      # itself are compiled from the files it holds. RubyGems would wipe that folder before and after.
      make = "make RB_SYS_CARGO_TARGET_DIR=#{root}/target CLEANOBJS= RUBYGEMS_CLEAN_DIRS="
      @env = foreign.call("GEM_HOME" => @home, "GEM_PATH" => [@home, *Gem.path].join(File::PATH_SEPARATOR))
      installed, output = run(@env.merge("MAKE" => make), "gem", "install", "--local", "--no-document", @gem,
                              chdir: @folder)
      raise output unless installed
    end

    it "loads from there, silently" do
      loaded, output = run(@env, RbConfig.ruby, "-w", "-e", <<~RUBY, chdir: @folder)
        require "pgbus_native"
        print $LOADED_FEATURES.grep(/pgbus_native\\.(so|bundle)\\z/)
      RUBY

      expect(loaded).to be(true), output
      expect(output).to eq([File.realpath("#{@home}/gems/#{gem_name}/lib/pgbus_native/pgbus_native.#{RbConfig::CONFIG["DLEXT"]}")].inspect)
    end

    it "runs a hub and a pump" do
      ran, output = run(@env, RbConfig.ruby, "-w", "-I", "#{root}/support", "-", @folder, chdir: @folder, stdin_data: <<~'RUBY')
        require "standin"
        require "pgbus_native"
        Streamer = Pgbus::Web::Streamer
        PgbusNative::ConnectionPatch.install(Streamer::Connection)
        Envelope = Data.define(:msg_id, :payload)
        # Every queue changes the moment that somebody listens to it.
        Listener = Struct.new(:wakes) do
          def ensure_listening(queue) = wakes << Streamer::Listener::WakeMessage.new(queue_name: queue)
          def remove_listening(_queue) = nil
          def stop = nil
          def alive? = true
          def connected? = true
        end

        hub = PgbusNative::MasterHub.new(config: Pgbus.configuration, socket_path: "#{ARGV.first}/hub.sock",
                                         listener_factory: ->(dispatch_queue:) { Listener.new(dispatch_queue) }).start
        worker = Streamer::HubClient.new(socket_path: hub.socket_path, dispatch_queue: wakes = Queue.new).connect
        worker.ensure_listening("q")
        puts "hub: #{wakes.pop(timeout: 20)&.queue_name}"
        worker.stop
        hub.stop

        pump = PgbusNative::OutboundPump.new(threads: 1, ack_queue: acks = Queue.new, on_dead: ->(_) {}).start
        ours, browser = UNIXSocket.pair
        connection = Streamer::Connection.new(id: "c", stream_name: "q", io: ours, since_id: 0, writer: Streamer::IoWriter,
                                              write_deadline_ms: 5_000)
        pump.post(connection, [Envelope.new(7, "x")], 7, deadline_ms: 5_000)
        puts "pump: #{browser.gets}#{acks.pop(timeout: 20)&.accepted_max}, native: #{pump.stats[:native_frames]}"
        pump.stop
      RUBY

      expect(ran).to be(true), output
      expect(output).to eq("hub: q\npump: id: 7\n7, native: 1\n")
    end

    it "takes the extension that was compiled for the Ruby that runs, where there is one" do
      library = "#{@home}/gems/#{gem_name}/lib/pgbus_native"
      precompiled = "#{library}/#{RUBY_VERSION[/\A\d+\.\d+/]}/pgbus_native.#{RbConfig::CONFIG["DLEXT"]}"
      FileUtils.mkdir_p(File.dirname(precompiled))
      FileUtils.cp("#{library}/pgbus_native.#{RbConfig::CONFIG["DLEXT"]}", precompiled)
      _, output = run(@env, RbConfig.ruby, "-e", <<~RUBY, chdir: @folder)
        require "pgbus_native"
        print $LOADED_FEATURES.grep(/pgbus_native\\.(so|bundle)\\z/)
      RUBY

      expect(output).to eq([File.realpath(precompiled)].inspect)
    ensure
      FileUtils.rm_rf(File.dirname(precompiled))
    end
  end

  describe "where it can't be compiled" do
    extconf = "#{root}/ext/pgbus_native/extconf.rb"
    systems = %w[Debian Fedora Alpine macOS]

    define_method(:configure) do |env = {}, prelude: "nil"|
      run(foreign.call(env), RbConfig.ruby, "-e", "#{prelude}; load ARGV.shift", extconf, chdir: @folder)
    end

    it "says which part of Rust is missing and how to install it" do
      configured, output = configure({ "PATH" => "/nowhere" })

      expect(configured).to be(false)
      expect(output).to include("Rust 1.85 or newer: cargo and rustc not found", "libclang-dev cargo", *systems)
      expect(Dir.children(@folder)).not_to include("Makefile")
    end

    it "says that Rust is too old" do
      File.write("#{@folder}/old-rustc", "#!/bin/sh\necho rustc 1.63.0\n", perm: 0o755)
      configured, output = configure({ "RUSTC" => "#{@folder}/old-rustc" })

      expect(configured).to be(false)
      expect(output).to include("Rust 1.85 or newer: rustc is 1.63.0", "https://rustup.rs")
    end

    it "says that libclang is missing and how to install it" do
      configured, output = configure({ "LIBCLANG_PATH" => "/nowhere" })

      expect(configured).to be(false)
      expect(output).to include('libclang: not found (LIBCLANG_PATH is "/nowhere")', *systems)
    end

    {
      "another engine" => ['RUBY_ENGINE = "jruby"', "it needs CRuby (MRI); this is jruby"],
      "an old Ruby" => ['RUBY_VERSION = "3.2.9"', "it needs Ruby 3.3 or newer; this is 3.2.9"],
      "Windows" => ['RUBY_PLATFORM = "x64-mingw-ucrt"', "it runs on Linux and macOS; this is x64-mingw-ucrt"]
    }.each do |place, (constant, words)|
      it "refuses #{place} and says that pgbus works without it" do
        configured, output = configure(prelude: "$VERBOSE = nil; #{constant}")

        expect(configured).to be(false)
        expect(output).to include(words, "pgbus uses its own Ruby classes")
      end
    end
  end
end
