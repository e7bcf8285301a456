# frozen_string_literal: true

require "etc"
require "fileutils"
require "open3"
require "rbconfig"
require "socket"
require "tmpdir"

# A PostgreSQL of our own in a temporary folder: real, on a free port of the loopback address and on a Unix socket, gone
# without a trace when we end, however we end.
#
#   PrivatePostgres.run { |postgres| PG.connect(postgres.url) }
#
# PostgreSQL refuses to run as root, so a root process runs it as the user "postgres".
class PrivatePostgres
  # Says in one line what is missing or what went wrong, and what to do.
  class Error < StandardError; end

  USER = "pgbus"
  DATABASE = "pgbus"

  attr_reader :port, :folder

  # Starts one, yields it, stops it.
  def self.run(**)
    postgres = new(**)
    yield postgres.start
  ensure
    postgres&.stop
  end

  # The folder of initdb and postgres; the newest one where there are several.
  def self.bindir
    folders = Dir["/usr/lib/postgresql/*/bin"].sort_by { |dir| -dir[%r{postgresql/(\d+)}, 1].to_i }
    folders += Dir["/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin"]
    folders += ENV.fetch("PATH", "").split(File::PATH_SEPARATOR)
    folders.find { |dir| File.executable?("#{dir}/initdb") && File.executable?("#{dir}/postgres") } or
      raise Error, "no PostgreSQL server programs (initdb, postgres) found; run bin/setup"
  end

  # The user that PostgreSQL runs as where we are root, as whom it refuses to.
  #
  # @return [Etc::Passwd, nil]
  def self.owner
    return unless Process.uid.zero?

    Etc.getpwnam("postgres")
  rescue ArgumentError
    raise Error, "PostgreSQL can't run as root and there is no user 'postgres'; run bin/setup or use another user"
  end

  # @raise [Error] if none can run here
  def self.check
    bindir
    owner
  end

  # A TCP port that was free a moment ago.
  def self.free_port
    TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
  end

  # @param settings [Hash] settings of postgresql.conf
  # @param hba [Array<String>] lines of pg_hba.conf that come before the one that trusts everybody
  def initialize(settings: {}, hba: [])
    @settings = settings
    @hba = hba
  end

  def start
    @folder = Dir.mktmpdir("pgbus_native-pg-")
    @port = self.class.free_port
    File.chown(owner.uid, owner.gid, @folder) if owner
    File.chmod(0o755, @folder)
    initialize_cluster
    spawn_server
    wait_until_it_answers
    create_database
    self
  rescue StandardError
    stop
    raise
  end

  # Stops the server and removes its folder. Safe to call again.
  def stop
    if @watch
      @watch.close
      begin
        Process.wait(@pid)
      rescue Errno::ECHILD
        nil
      end
      @watch = nil
    end
    FileUtils.rm_rf(@folder) if @folder
    self
  end

  def url(host: "127.0.0.1", user: USER, database: DATABASE)
    "postgres://#{user}@#{host}:#{@port}/#{database}"
  end

  # What `PG.connect(**options)` takes, for the Unix socket.
  def socket_options
    { host: @folder, port: @port, user: USER, dbname: DATABASE }
  end

  def data = "#{@folder}/data"

  # The server's own words, for a message to a person.
  def log = File.exist?("#{@folder}/log") ? File.read("#{@folder}/log") : ""

  # Runs SQL through psql and returns its output, rows by line, columns by "|".
  def sql(text, database: DATABASE)
    out, status = Open3.capture2e("#{bindir}/psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", @folder, "-p", @port.to_s,
                                  "-U", USER, "-d", database, "-c", text)
    raise Error, "psql: #{out.strip}" unless status.success?

    out.chomp
  end

  private

  def bindir = @bindir ||= self.class.bindir

  def owner = @owner ||= self.class.owner

  # The command, as the user that PostgreSQL may run as.
  def as_owner(*command)
    return command unless owner

    become = "Process::GID.change_privilege(#{owner.gid}); Process::UID.change_privilege(#{owner.uid}); exec(*ARGV)"
    [RbConfig.ruby, "--disable-gems", "-e", become, *command]
  end

  def initialize_cluster
    out, status = Open3.capture2e(*as_owner("#{bindir}/initdb", "-D", data, "-U", USER, "--auth=trust", "--encoding=UTF8",
                                            "--locale=C", "--no-sync"), chdir: @folder)
    raise Error, "initdb failed: #{out.lines.last&.strip}" unless status.success?

    hba = @hba + ["local all all trust", "host all all 127.0.0.1/32 trust", "host all all ::1/128 trust",
                  "host replication all 127.0.0.1/32 trust", "local replication all trust"]
    File.write("#{data}/pg_hba.conf", "#{hba.join("\n")}\n")
    settings = { listen_addresses: "127.0.0.1", port: @port, unix_socket_directories: @folder, fsync: "off",
                 max_connections: 100, logging_collector: "off", client_min_messages: "warning" }.merge(@settings)
    File.open("#{data}/postgresql.conf", "a") { |f| settings.each { |name, value| f.puts "#{name} = '#{value}'" } }
  end

  # The server's parent is a shell that waits for the end of our pipe: if we are killed, it stops the server.
  def spawn_server
    reader, @watch = IO.pipe
    guard = 'server=$1; shift; "$@" & pid=$!; cat >/dev/null; kill -QUIT $pid 2>/dev/null; wait $pid; rm -rf "$server"'
    @pid = spawn("/bin/sh", "-c", "trap '' INT TERM; #{guard}", "sh", @folder,
                 *as_owner("#{bindir}/postgres", "-D", data), in: reader, %i[out err] => ["#{@folder}/log", "w"],
                                                              chdir: "/", pgroup: true)
    reader.close
  end

  def wait_until_it_answers
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 30
    until system("#{bindir}/pg_isready", "-q", "-h", @folder, "-p", @port.to_s)
      if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline || Process.wait(@pid, Process::WNOHANG)
        raise Error, "PostgreSQL did not start: #{log.lines.last&.strip}"
      end

      sleep 0.05
    end
  end

  def create_database
    sql("CREATE DATABASE #{DATABASE}", database: "postgres")
  end
end
