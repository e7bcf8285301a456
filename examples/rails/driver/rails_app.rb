# frozen_string_literal: true

require "fileutils"
require "json"
require "net/http"
require "open3"
require "tmpdir"
require_relative "../../../support/processes"
require_relative "wait"

# The app in a temporary folder, and the Puma cluster that serves it.
class RailsApp
  class Error < StandardError; end

  ROOT = File.expand_path("../../..", __dir__)

  attr_reader :port, :folder

  def self.run(postgres)
    app = new(postgres)
    yield app
  ensure
    app&.close
  end

  def initialize(postgres)
    @folder = Dir.mktmpdir("pgbus_native-app-")
    FileUtils.cp_r("#{__dir__}/../app/.", @folder)
    FileUtils.mkdir_p(%W[#{@folder}/log #{@folder}/tmp])
    @port = PrivatePostgres.free_port
    @environment = { "DATABASE_URL" => postgres.url, "RAILS_ENV" => "production", "PORT" => @port.to_s,
                     "PGBUS_NATIVE_PATH" => ROOT, "BUNDLE_GEMFILE" => nil }
    out, status = Open3.capture2e(@environment, "bundle", "install", "--local", chdir: @folder)
    raise Error, "bundle install --local: #{out.lines.last(3).join.strip}" unless status.success?
  end

  # Runs a command in the app's folder.
  #
  # @return [String] what it printed
  def run(*command, input: "", **environment)
    environment = @environment.merge(environment.transform_keys(&:to_s))
    out, err, status = Open3.capture3(environment, *command, stdin_data: input, chdir: @folder)
    raise Error, "#{command.first(2).join(" ")} failed: #{err.lines.first(3).join}" unless status.success?

    out
  end

  def runner(code, **) = run("bin/rails", "runner", code, **)

  # A process in the app that answers to lines; the block of `code` reads $stdin.
  def pipe(code) = IO.popen([@environment, "bin/rails", "runner", code, { chdir: @folder, err: File::NULL }], "r+")

  def serve
    @master = spawn(@environment, "bundle", "exec", "puma", "-C", "config/puma.rb", chdir: @folder, pgroup: true,
                                                                                     %i[out err] => "#{@folder}/log/puma.log")
    wait_until_served
  end

  def wait_until_served
    Wait.for("the app to answer on port #{@port}", 90) { get("/worker") }
    Wait.for("both workers", 60) { workers.size == 2 }
  end

  # @return [Array<Integer>] the processes of the workers
  def workers
    Processes.children(@master).filter_map { |process| process.pid if process.command.include?("cluster worker") }
  end

  def signal_master(name) = Process.kill(name, @master)

  # @return [String, nil] the body; nil when nobody answers
  def get(path)
    response = Net::HTTP.start("127.0.0.1", @port, open_timeout: 2, read_timeout: 10) { |http| http.get(path) }
    response.body if response.is_a?(Net::HTTPOK)
  rescue SystemCallError, EOFError, Net::OpenTimeout, Net::ReadTimeout
    nil
  end

  # Asks until each worker has answered once.
  #
  # @return [Array<Hash>] what the workers run on
  def ask_workers
    answers = {}
    Wait.for("an answer of each worker", 60) do
      answer = get("/worker")&.then { |body| JSON.parse(body, symbolize_names: true) }
      answers[answer[:pid]] = answer if answer
      (workers - answers.keys).empty?
    end
    answers.values_at(*workers)
  end

  def log = Dir["#{@folder}/log/*.log"].to_h { |file| [File.basename(file), File.read(file)] }

  def close
    if @master
      Process.kill(:TERM, @master)
      Wait.for("Puma to end", 30) { Process.wait(@master, Process::WNOHANG) }
    end
  rescue Wait::TooLong
    Process.kill(:KILL, -@master)
    Process.wait(@master)
  ensure
    FileUtils.rm_rf(@folder)
  end
end
