# frozen_string_literal: true

require "net/http"
require_relative "../support/hub_context"
require_relative "../support/pgbus_tree"

# What status says, and the line at boot, in the processes of a real Puma (invariant 20).
RSpec::Matchers.define_negated_matcher :not_include, :include

RSpec.describe "PgbusNative.status in Puma" do
  include_context "with a hub"

  # What pgbus's own plugin does, as far as status sees it.
  plugin = <<~RUBY
    require "puma/plugin"
    Puma::Plugin.create do
      def start(launcher)
        return unless defined?(Pgbus::Web::Streamer::MasterHub) && launcher.options[:workers].to_i.positive?

        path = ENV["PGBUS_STREAMS_HUB_SOCKET"] = File.join(Dir.pwd, "hub.sock")
        Thread.new do
          sleep 0.01 until Pgbus.configuration.streams_connection_options
          Pgbus::Web::Streamer::MasterHub.new(config: Pgbus.configuration, socket_path: path, logger: Logger.new(IO::NULL)).start
        end
      end
    end
  RUBY
  app = <<~RUBY
    require "pgbus_native"
    Pgbus.configure do |config|
      config.database_url = ENV.fetch("DATABASE_URL")
      config.logger = Logger.new("pgbus.log")
    end
  RUBY

  let(:tree) { ENV["PGBUS_PATH"] ? PgbusTree.real(ENV["PGBUS_PATH"]) : PgbusTree.ours("#{folder}/tree") }

  after do
    next unless @puma

    Process.kill(:KILL, -@puma)
    Process.wait(@puma)
  rescue Errno::ESRCH
    nil # it has ended, which an example has noticed
  end

  # Starts Puma with this configuration; `loaded` is what its app loads.
  def boot(config, loaded)
    unless ENV["PGBUS_PATH"]
      FileUtils.mkdir_p("#{folder}/plugins/puma/plugin")
      File.write("#{folder}/plugins/puma/plugin/pgbus_streams.rb", @plugin)
    end
    File.write("#{folder}/puma.rb", "bind 'tcp://127.0.0.1:#{@port = PrivatePostgres.free_port}'\n#{config}")
    File.write("#{folder}/config.ru", "#{loaded}\nrun ->(_) { [200, {}, [PgbusNative.status.to_s]] }\n")
    folders = ["#{PgbusTree::ROOT}/lib", "#{PgbusTree::ROOT}/support", tree.lib, "#{folder}/plugins"].flat_map { |path| ["-I", path] }
    @puma = spawn({ "DATABASE_URL" => postgres.url, "PGBUS_STREAMS_HUB_SOCKET" => nil }, RbConfig.ruby, *folders, "-S", "puma",
                  "-C", "puma.rb", chdir: folder, pgroup: true, %i[out err] => "#{folder}/out")
  end

  def status
    Net::HTTP.get(URI("http://127.0.0.1:#{@port}/"))
  rescue SystemCallError, EOFError
    raise "Puma ended: #{File.read("#{folder}/out")}" if Process.wait(@puma, Process::WNOHANG)

    nil
  end

  def expect_status(*lines)
    eventually("#{lines} (#{status})") { (text = status) && lines.all? { |line| line === text } }
  end

  before { @plugin = plugin }

  it "says that there is no hub in single mode, and no pump where neither pgbus's setting nor ours has one" do
    boot("plugin :pgbus_streams", "#{app}\nPgbusNative.configure { |c| c.writers = 0 }")
    expect_status(/OutboundPump  unused: streams_writer_threads and PgbusNative.configuration.writers are 0, set one of them to 1$/, /MasterHub     no hub: Puma runs in single mode/)
  end

  it "says that a pump waits for its first browser, with nothing configured" do
    boot("", app)
    expect_status(/OutboundPump  waiting for a first browser$/)
  end

  it "says that there is no hub, since pgbus was not loaded when Puma read its configuration" do
    boot("workers 1\npreload_app!\nplugin :pgbus_streams", app)
    expect_status(/MasterHub     no hub: pgbus was not loaded when Puma read its configuration/)
  end

  it "says that there is no hub without the plugin" do
    boot("workers 1\npreload_app!", app)
    expect_status(/MasterHub     no hub: Puma's configuration does not name pgbus's plugin, add plugin :pgbus_streams$/)
  end

  it "says where the hub is, and that the hub serves" do
    boot("require 'pgbus_native'\nworkers 1\npreload_app!\nplugin :pgbus_streams\n" \
         "on_worker_boot { Thread.main[:of] = :worker }\n" \
         "before_fork { Thread.new { loop { File.write('master', PgbusNative.status.to_s); sleep 0.05 } } }", app)
    expect_status(%r{MasterHub     in Puma's master, at /.*sock$})
    eventually("the master's status") do
      File.read("#{folder}/master").match?(/OutboundPump  (waiting|in the workers).*\n  MasterHub     serving \d workers?, \d subscriptions?, its LISTEN session is up$/)
    rescue Errno::ENOENT
      nil
    end
  end

  it "is in a master that Puma has nothing to warn of, although the app started a hub and a pump while it booted" do
    boot("workers 1\npreload_app!", <<~RUBY)
      #{app}
      PgbusNative::MasterHub.new(config: Pgbus.configuration, socket_path: "hub.sock").start
      PgbusNative::OutboundPump.new(threads: 1, ack_queue: Queue.new, on_dead: ->(_) {}).start
    RUBY
    expect_status(/OutboundPump/)
    expect(File.read("#{folder}/out")).to include("Preloading application").and not_include("started in app boot")
  end

  let(:rails_app) do
    <<~RUBY
      require "rails"
      Class.new(Rails::Application) do
        def self.name = "Tried"
        config.eager_load = false
        config.logger = Logger.new(IO::NULL)
        config.secret_key_base = "x"
        initializer("pgbus") { eval(#{app.dump}) }
      end.initialize!
    RUBY
  end

  it "is no obstacle to an app on Rails that Puma's own configuration loads, before Puma knows what it is" do
    boot(rails_app, "")
    expect_status(/OutboundPump  waiting for a first browser$/)
    expect(File.read("#{folder}/out")).not_to include("status can't be told")
  end

  it "has one line of it in the log, at boot, in an app on Rails" do
    boot("", rails_app)
    expect_status(/OutboundPump/)
    expect(File.read("#{folder}/pgbus.log").lines.grep(/PgbusNative/))
      .to contain_exactly(/INFO.*\[PgbusNative\] .* with pgbus .*\. OutboundPump: waiting for a first browser; MasterHub: no hub: Puma runs in single mode/)
  end
end
