# frozen_string_literal: true

module Chaos
  # A process with a hub, as Puma's master is one; it forks on demand.
  class HubHost
    attr_reader :path

    # @param address [#to_s] asked before each connect
    def initialize(address, path)
      @path = path
      @answers, answer = IO.pipe
      command, @command = IO.pipe
      @pid = fork do
        [@answers, @command].each(&:close)
        serve(address, command, answer)
        exit!(0)
      end
      [command, answer].each(&:close)
      @answers.gets or raise "the hub did not start"
    end

    # Forks children that collect garbage and end each in their own way, while the hub runs.
    def fork_children = ask("fork")

    # @return [Hash{String => Object}] the hub's
    def stats = JSON.parse(ask("stats"))

    def stop
      @command.close
      Process.wait(@pid)
    end

    private

    def ask(command)
      @command.puts(command)
      @answers.gets or raise "the hub's process has ended"
    end

    def serve(address, command, answer)
      answer.sync = true
      config = Pgbus::Configuration.new
      config.define_singleton_method(:streams_connection_options) { address.to_s }
      hub = PgbusNative::MasterHub.new(config:, socket_path: @path, logger: Logger.new($stderr, level: Logger::ERROR)).start
      answer.puts("ready")
      command.each_line do |line|
        make_children if line.start_with?("fork")
        answer.puts(hub.stats.to_json)
      end
      hub.stop
    end

    def make_children
      children = [-> { GC.start && exit!(0) }, -> { exec("true") }, -> { Process.kill(:KILL, Process.pid) }].map do |ending|
        fork(&ending)
      end
      children.each { |pid| Process.wait(pid) }
    end
  end
end
