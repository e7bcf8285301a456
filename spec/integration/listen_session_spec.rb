# frozen_string_literal: true

require "etc"
require "open3"
require "socket"
require_relative "../support/hub_context"

# The hub's session from Ruby: where its options come from, what it checks, and what it never shows. The engine's own
# tests have every option.
RSpec.describe "The hub's LISTEN session" do
  include_context "with a hub"

  def secret = "topsecret"

  before(:context) do
    @certificates = Dir.mktmpdir("pgbus_native-tls-")
    File.chmod(0o755, @certificates)
    %w[right wrong].each { |name| authority(name) }
    server_certificate
    @tls = PrivatePostgres.new(settings: { ssl: "on", ssl_cert_file: "#{@certificates}/server.crt",
                                           ssl_key_file: "#{@certificates}/server.key" },
                               hba: ["hostssl all app 127.0.0.1/32 scram-sha-256", "hostnossl all app 127.0.0.1/32 reject"])
    @tls.start.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD '#{secret}'")
  end

  after(:context) do
    @tls&.stop
    FileUtils.remove_entry(@certificates)
  end

  around do |example|
    before = ENV.to_h
    example.run
  ensure
    ENV.replace(before)
  end

  let(:postgres) { @tls }

  def openssl(*arguments)
    out, status = Open3.capture2e("openssl", *arguments, chdir: @certificates)
    raise out unless status.success?
  end

  def authority(name)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=#{name}",
            "-keyout", "#{name}.key", "-out", "#{name}.crt")
  end

  # For "localhost", by the right authority.
  def server_certificate
    openssl("req", "-x509", "-CA", "right.crt", "-CAkey", "right.key", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE",
            "-keyout", "server.key", "-out", "server.crt")
    give_to_server("server.key")
  end

  def give_to_server(key)
    File.chmod(0o600, "#{@certificates}/#{key}")
    return unless Process.uid.zero?

    owner = Etc.getpwnam("postgres")
    File.chown(owner.uid, owner.gid, "#{@certificates}/#{key}")
  end

  def url(password: secret, roots: "right", more: "")
    "postgres://app:#{password}@localhost:#{postgres.port}/pgbus?sslmode=verify-full&" \
      "sslrootcert=#{@certificates}/#{roots}.crt#{more}"
  end

  def expect_a_wake
    wakes = worker("chat")
    notify("chat", "hello")
    expect(wakes.wakes_until("chat", "hello").size).to eq(1)
    expect(hub.stats).to include(session: :native)
  end

  def expect_no_secret(*texts)
    expect([log.string, hub.inspect, *texts].join).not_to include(secret)
  end

  it "takes a URL: TLS with the certificate checked, and SCRAM bound to it" do
    config.database_url = url(more: "&channel_binding=require")
    hub.start
    expect_a_wake
    encrypted = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'pgbus-listen'"
    expect(postgres.sql(encrypted)).to eq("t")
    expect_no_secret
  end

  it "takes a service file, a password file and variables" do
    File.write("#{folder}/services", "[streams]\nhost=127.0.0.1\nport=#{postgres.port}\nuser=app\ndbname=pgbus\n")
    File.write("#{folder}/passwords", "127.0.0.1:*:pgbus:app:#{secret}\n", perm: 0o600)
    ENV.update("PGSERVICEFILE" => "#{folder}/services", "PGPASSFILE" => "#{folder}/passwords")
    config.database_url = nil
    config.connection_params = { service: "streams", variables: { "log_statement" => "all" } }
    hub.start
    expect_a_wake
    eventually("the logged statement") { postgres.log.include?('statement: LISTEN "pgmq.q_chat.INSERT"') }
    expect_no_secret
  end

  it "raises PG::ConnectionBad for a server that it can't trust" do
    config.database_url = url(roots: "wrong")
    expect { hub.start }.to raise_error(PG::ConnectionBad, /certificate verify failed/) { |e| expect_no_secret(e.message) }
  end

  it "raises PG::ConnectionBad for a wrong password, which it does not tell" do
    config.database_url = url(password: "not#{secret}")
    expect { hub.start }
      .to raise_error(PG::ConnectionBad, /password authentication failed/) { |e| expect_no_secret(e.message) }
  end

  it "raises PG::ConnectionBad for a SET that fails, and keeps no session" do
    config.database_url = nil
    config.connection_params = { host: "127.0.0.1", port: postgres.port, user: "pgbus", dbname: "pgbus",
                                 variables: { no_such_setting: 1 } }
    expect { hub.start }.to raise_error(PG::ConnectionBad, /no_such_setting/)
    eventually("the end of the session") { sessions.empty? }
  end

  # Signed by RSA-PSS, which only libpq can bind the channel by; it must not be left unbound (invariant 19).
  describe "to a server whose certificate names no digest" do
    around do |example|
      openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-sigopt",
              "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:-1", "-keyout", "pss.key", "-out", "pss.crt")
      give_to_server("pss.key")
      @pss = PrivatePostgres.new(settings: { ssl: "on", ssl_cert_file: "#{@certificates}/pss.crt",
                                             ssl_key_file: "#{@certificates}/pss.key" },
                                 hba: ["hostssl all app 127.0.0.1/32 scram-sha-256"]).start
      @pss.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD '#{secret}'")
      example.run
    ensure
      @pss&.stop
    end

    let(:postgres) { @pss }

    it "is libpq's" do
      config.database_url = "postgres://app:#{secret}@localhost:#{postgres.port}/pgbus?sslmode=require&channel_binding=require"
      hub.start
      expect(hub.stats).to include(session: :ruby, session_reason: /\Achannel_binding: /)
      wakes = worker("chat")
      notify("chat", "hello")
      expect(wakes.wakes_until("chat", "hello").size).to eq(1)
      expect_no_secret(hub.stats[:session_reason])
    end
  end

  # libpq looks at $HOME's root.crt in every mode, and at the passwd entry's where $HOME is empty (invariant 19).
  it "trusts no server that libpq does not trust, wherever home is" do
    skip "libpq looks at the passwd entry alone before version 15" if PG.library_version < 150_000
    FileUtils.mkdir_p("#{folder}/.postgresql")
    FileUtils.cp("#{@certificates}/wrong.crt", "#{folder}/.postgresql/root.crt")
    ENV["HOME"] = folder
    config.database_url = "postgres://app:#{secret}@localhost:#{postgres.port}/pgbus?sslmode=require"
    expect { hub.start }.to raise_error(PG::ConnectionBad, /certificate verify failed/)
    FileUtils.rm("#{folder}/.postgresql/root.crt")
    hub.start
    expect_a_wake
  end

  it "is in nobody's way: a child forked in the middle of a TLS handshake resolves names and connects (invariant 11)" do
    mute = TCPServer.new("127.0.0.1", 0)
    config.database_url = "postgres://pgbus@127.0.0.1:#{mute.addr[1]}/pgbus?sslmode=require"
    starting = Thread.new { hub.start }
    client = mute.accept
    client.readpartial(8)
    client.write("S")
    client.readpartial(1) # the handshake has begun, and now waits for us
    child = fork do
      Addrinfo.getaddrinfo("localhost", nil)
      PG.connect(postgres.url).exec("SELECT 1")
      GC.start
      exit!(0)
    end
    expect(Process.wait2(child).last).to be_success
    expect(starting).to be_alive
    expect(seconds { hub.stop }).to be < 2
    starting.join
  ensure
    [mute, client].each { |socket| socket&.close }
  end
end
