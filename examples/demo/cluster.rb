# frozen_string_literal: true

require "fileutils"
require "net/http"
require "rbconfig"
require "socket"
require "tmpdir"
require_relative "figures"

module Demo
  # Says in one line what went wrong, and what to do.
  class Error < StandardError; end

  # The demo app in a Puma cluster, a process group of its own, with a folder for hub socket, figures and log. Ends when we
  # end, however we end.
  class Cluster
    START_SECONDS = 60
    STOP_SECONDS = 15
    NATIVE_THREAD = /\Apgbus-(hub|writer-\d+)\z/

    attr_reader :master_pid, :port, :folder

    # Starts one, yields it, stops it, and removes its folder.
    def self.run(**)
      cluster = new(**)
      yield cluster.start
    ensure
      cluster&.stop
      cluster&.remove
    end

    def initialize(database_url:, workers:, port:)
      @database_url = database_url
      @workers = workers
      @port = port
      @folder = Dir.mktmpdir("pgbus_native-demo-")
    end

    def start
      refuse_taken_port
      @master_pid, @leash = spawn_ruby("-S", "puma", "-C", "#{__dir__}/puma.rb", "#{__dir__}/config.ru",
                                       %i[out err] => log_path)
      deadline = now + START_SECONDS
      until worker_pids.size >= @workers && answers?
        raise Error, "Puma did not start: #{last_words}" if ended? || now > deadline

        sleep 0.05
      end
      self
    end

    # Stops the cluster; its folder stays until `remove`.
    def stop
      return unless @master_pid

      @leash.close
      Process.kill(:TERM, @master_pid) unless ended?
      deadline = now + STOP_SECONDS
      sleep 0.05 until ended? || now > deadline
      Process.kill(:KILL, -@master_pid) # whoever of the group is still there
    rescue Errno::ESRCH
      nil
    ensure
      @master_pid = nil
    end

    def remove = FileUtils.rm_rf(@folder)

    # Runs a Ruby program with the cluster's environment.
    # @return [Array(Integer, IO)] its pid, and the pipe to its standard input
    def spawn_ruby(*arguments, **redirections)
      reader, writer = IO.pipe
      environment = { "DATABASE_URL" => @database_url, "DEMO_FOLDER" => @folder, "DEMO_WORKERS" => @workers.to_s,
                      "DEMO_PORT" => @port.to_s, "PGBUS_STREAMS_HUB_SOCKET" => "#{@folder}/hub.sock" }
      [spawn(environment, RbConfig.ruby, *arguments, in: reader, pgroup: true, **redirections), writer]
    ensure
      reader&.close
    end

    # @return [Array<Hash>] what "hub" or "worker" processes last noted, the dead ones included; see {Figures}
    def figures(name) = Figures.of(name, @folder)

    def worker_pids = figures("worker").map { |worker| worker[:pid] }.select { |pid| runs?(pid) }

    # @return [Hash{String => Integer}, nil] Rust threads by process; nil where the system does not tell their names
    def native_threads
      return unless File.directory?("/proc/#{@master_pid}/task")

      { "the master" => [@master_pid], "the workers" => worker_pids }.transform_values do |pids|
        pids.sum { |pid| thread_names(pid).grep(NATIVE_THREAD).size }
      end
    end

    # Puma's own lines begin with a pid in brackets; what went wrong is said without.
    def last_words
      lines = File.readlines(log_path, chomp: true, encoding: Encoding::UTF_8).map(&:scrub)
      (lines.grep_v(/\A\[\d+\]|\A\s/).last || lines.last || "it said nothing").strip
    end

    private

    def log_path = "#{@folder}/log"
    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def thread_names(pid)
      Dir["/proc/#{pid}/task/*/comm"].map { |path| File.read(path).chomp }
    rescue SystemCallError
      retry # one ended meanwhile
    end

    def refuse_taken_port
      TCPServer.open("127.0.0.1", @port, &:close)
    rescue SystemCallError => e
      raise Error, "can't listen on port #{@port} (#{e.class.name.split("::").last}); choose another with --port"
    end

    def ended? = @ended ||= !Process.wait(@master_pid, Process::WNOHANG).nil?

    def answers?
      Net::HTTP.start("127.0.0.1", @port, open_timeout: 5, read_timeout: 5) { |http| http.get("/").is_a?(Net::HTTPOK) }
    rescue SystemCallError, IOError, Timeout::Error
      false
    end

    def runs?(pid)
      Process.kill(0, pid)
      true
    rescue Errno::ESRCH
      false
    end
  end
end
