# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"

# A pgbus as an app meets it, for fresh Ruby processes: the real one, or a small one of ours that loads its classes as
# the real one does (Zeitwerk, `Pgbus.loader`), with the stand-in's collaborators around the two classes.
class PgbusTree
  ROOT = File.expand_path("../..", __dir__)

  # What a process said and how it ended.
  Run = Data.define(:out, :err, :status)

  FILES = {
    "pgbus.rb" => <<~RUBY,
      require "zeitwerk"
      require "standin/configuration"
      module Pgbus
        def self.loader
          @loader ||= Zeitwerk::Loader.for_gem.tap { |loader| loader.enable_reloading if ENV["RELOADING"] }
        end
        loader.setup
      end
    RUBY
    "pgbus/version.rb" => %(module Pgbus\n  VERSION = "0.14.1"\nend\n),
    "pgbus/web/streamer.rb" => <<~RUBY,
      %w[envelope database].each { |part| require "standin/\#{part}" }
      %w[registry connection listener hub_protocol stream_counter stream_event_dispatcher].each { |part| load "standin/\#{part}.rb" }
      module Pgbus::Web
        module Streamer
        end
      end
    RUBY
    "pgbus/web/streamer/outbound_pump.rb" => <<~RUBY,
      module Pgbus::Web::Streamer
        class OutboundPump
          def initialize(threads:, ack_queue:, on_dead:, buffer_limit: 0, logger: Pgbus.logger) = nil
          def post(connection, envelopes, batch_max, deadline_ms:) = nil
          def start = self
          def stop = self
          def alive? = false
          def worker_threads = []
        end
      end
    RUBY
    "pgbus/web/streamer/master_hub.rb" => <<~RUBY,
      module Pgbus::Web::Streamer
        class MasterHub
          attr_reader :socket_path, :dropped_durable_wakes, :evicted_workers

          def initialize(config:, socket_path:, listener_factory: nil, status_interval: 1.0, durable_queue_limit: 256,
                         hard_queue_limit: 1024, logger: Pgbus.logger) = nil
          def start = self
          def stop = self
        end
      end
    RUBY
    "pgbus/web/streamer/instance.rb" => <<~RUBY,
      module Pgbus
        module Web
          module Streamer
            class Instance
              def pump_class = OutboundPump
              def hub_class = MasterHub
              def register(connection) = nil

              private

              def build_listener(pg_connection, connection_factory) = nil
              def build_pump = nil
              def close_all_connections = nil
            end
          end
        end
      end
    RUBY
  }.freeze

  # @return [String] what goes on the load path
  attr_reader :lib

  # The real one, from a checkout.
  def self.real(checkout) = new("#{checkout}/lib")

  # One of ours. `edits` change its files: path => [[found, put instead], ...].
  def self.ours(folder, version: "0.14.1", edits: {})
    lib = "#{folder}/lib"
    FILES.each do |path, text|
      text = text.sub("0.14.1", version) if path == "pgbus/version.rb"
      edits.fetch(path, []).each { |found, put| text.include?(found) ? text = text.sub(found, put) : raise(ArgumentError, found) }
      FileUtils.mkdir_p(File.dirname("#{lib}/#{path}"))
      File.write("#{lib}/#{path}", text)
    end
    new(lib)
  end

  def initialize(lib)
    @lib = lib
  end

  # Runs code in a fresh Ruby, ours and this pgbus on the load path.
  #
  # @param native [String] the folder of our own library
  # @return [Run]
  def run(code, native: "#{ROOT}/lib", **environment)
    folders = [native, "#{ROOT}/support", @lib].compact.flat_map { |folder| ["-I", folder] }
    environment = environment.to_h { |name, value| [name.to_s, value] }
    out, err, status = Open3.capture3(environment, RbConfig.ruby, *folders, stdin_data: code)
    Run.new(out:, err:, status:)
  end
end
