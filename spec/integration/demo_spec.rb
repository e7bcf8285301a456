# frozen_string_literal: true

require "fileutils"
require "open3"
require "private_postgres"
require "socket"
require "tmpdir"

RSpec.describe "bin/demo" do
  # What it makes, it makes in here.
  around do |example|
    Dir.mktmpdir("pgbus_native-spec-") do |folder|
      File.chmod(0o755, folder)
      @folder = folder
      example.run
    end
  end

  program = File.expand_path("../../bin/demo", __dir__)

  define_method(:demo) do |*options, environment: {}|
    out, error, status = Open3.capture3({ "TMPDIR" => @folder, **environment }, program, *options, stdin_data: "")
    [out, error, status.exitstatus]
  end

  def left_behind
    processes = Dir["/proc/[0-9]*/cmdline"].select do |path|
      File.read(path).include?(@folder)
    rescue SystemCallError
      false
    end
    Dir.children(@folder) + processes
  end

  it "delivers everything, says so in a table, and leaves nothing" do
    out, error, status = demo("--clients", "20", "--rate", "50", "--seconds", "2")

    expect([error, status]).to eq(["", 0])
    expect(out).to include("100 (81 durable, 19 ephemeral)", "1,620 of 1,620", "380 of 380",
                           "LISTEN sessions in PostgreSQL   1 ", "exactly once and in order")
    expect(left_behind).to eq([])
  end

  {
    ["--bogus"] => "demo: unknown option '--bogus'; allowed: --clients, --rate, --seconds, --workers, --port, --serve, --help\n",
    ["--clients", "0"] => "demo: --clients takes a whole number from 1 to 20000, got '0'\n",
    ["--rate", "many"] => "demo: --rate takes a whole number from 1 to 10000, got 'many'\n",
    ["--seconds"] => "demo: --seconds takes a whole number from 1 to 86400, got ''\n",
    ["--port", "70000"] => "demo: --port takes a whole number from 1 to 65535, got '70000'\n"
  }.each do |options, line|
    it "refuses #{options.join(" ")} in one line" do
      expect(demo(*options)).to eq(["", line, 2])
    end
  end

  it "refuses a port in use in one line, and leaves nothing" do
    TCPServer.open("127.0.0.1", 0) do |server|
      port = server.addr[1]
      _out, error, status = demo("--port", port.to_s)

      expect(error).to eq("demo: can't listen on port #{port} (EADDRINUSE); choose another with --port\n")
      expect(status).to eq(1)
      expect(left_behind).to eq([])
    end
  end

  it "ends at once when it is told to, and leaves nothing" do
    reader, writer = IO.pipe
    pid = spawn({ "TMPDIR" => @folder }, program, "--serve", in: File::NULL, %i[out err] => writer)
    writer.close
    until (line = reader.gets).nil? || line.include?("http://"); end
    expect(line).to include("open http://127.0.0.1:")

    Process.kill(:TERM, pid)
    expect(reader.read).to eq("demo: stopped; everything it started is gone\n")
    expect(Process.wait2(pid).last.exitstatus).to eq(1)
    expect(left_behind).to eq([])
  end
end
