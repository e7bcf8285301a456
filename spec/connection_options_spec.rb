# frozen_string_literal: true

require "etc"
require "pg"
require "tmpdir"
require "pgbus_native/connection_options"

RSpec.describe PgbusNative::ConnectionOptions do
  around do |example|
    before = ENV.to_h
    ENV.delete_if { |name, _| name.start_with?("PG") }
    example.run
  ensure
    ENV.replace(before)
  end

  # All that libpq says, with lists of what the servers have.
  def keywords(given)
    options = described_class.new(given)
    names, hostaddrs, ports, passwords = options.places.transpose
    lists = { "host" => names, "hostaddr" => hostaddrs, "port" => ports }.transform_values { |list| list.join(",") }
    { **options.keywords, **lists, "password" => passwords.first }
  end

  it "takes a URL" do
    options = keywords("postgres://bob:s%40cret@one:6000,two:6001/shop?target_session_attrs=read-write&sslmode=require")
    expect(options).to include("user" => "bob", "password" => "s@cret", "host" => "one,two", "port" => "6000,6001",
                               "dbname" => "shop", "target_session_attrs" => "read-write", "sslmode" => "require")
    expect(keywords("postgresql://%2Frun%2Fpg/shop")).to include("host" => "/run/pg", "dbname" => "shop")
  end

  it "takes a keyword string" do
    expect(keywords("host=db user='bob b' password='it\\'s'"))
      .to include("host" => "db", "user" => "bob b", "password" => "it's", "dbname" => "bob b", "port" => "5432")
  end

  it "takes a Hash with symbols or strings as keys, and values that aren't strings" do
    expect(keywords(host: "db", port: 6000, user: :bob, password: "a b'c\\d", hostaddr: nil, connect_timeout: 3))
      .to include("host" => "db", "port" => "6000", "user" => "bob", "password" => "a b'c\\d", "connect_timeout" => "3")
    expect(keywords("host" => "db")).to include("host" => "db")
  end

  it "keeps a Hash's variables apart, in their order" do
    options = described_class.new({ host: "db", variables: { "search_path" => "a", statement_timeout: 5 } })
    expect(options.variables).to eq([%w[search_path a], %w[statement_timeout 5]])
    expect(options.places.first).to start_with("db")
    expect(options.keywords).not_to include("variables")
  end

  it "asks the environment for what isn't given" do
    ENV.update("PGHOST" => "db", "PGUSER" => "eve", "PGPASSWORD" => "secret", "PGSSLMODE" => "require", "PGOPTIONS" => "-c x=1",
               "PGTARGETSESSIONATTRS" => "primary")
    expect(keywords("user=bob")).to include("host" => "db", "user" => "bob", "password" => "secret", "sslmode" => "require",
                                            "options" => "-c x=1", "target_session_attrs" => "primary")
  end

  it "is called pgbus-listen unless the options or PGAPPNAME say otherwise" do
    expect(keywords("host=db")).to include("fallback_application_name" => "pgbus-listen")
    expect(keywords(host: "db", application_name: "mine")).to include("application_name" => "mine")
    expect(keywords("host=db fallback_application_name=mine")).to include("fallback_application_name" => "mine")
    ENV["PGAPPNAME"] = "env"
    expect(keywords(host: "db")).to include("application_name" => "env")
  end

  it "reads the service file, before the environment and after the options" do
    Dir.mktmpdir do |folder|
      File.write("#{folder}/services", "[shop]\nhost=svc\nport=6000\nuser=svc\ntarget_session_attrs=primary\n")
      ENV.update("PGSERVICEFILE" => "#{folder}/services", "PGHOST" => "env", "PGUSER" => "env")
      expect(keywords("service=shop user=bob"))
        .to include("host" => "svc", "port" => "6000", "user" => "bob", "target_session_attrs" => "primary")
      ENV["PGSERVICE"] = "shop"
      expect(keywords(port: 7000)).to include("host" => "svc", "port" => "7000", "user" => "svc")
      expect { keywords("service=other") }.to raise_error(PG::ConnectionBad, /"other"/)
    end
  end

  describe "and a password file" do
    around { |example| Dir.mktmpdir { |folder| (@file = "#{folder}/pgpass") && example.run } }

    def passwords(lines, given)
      File.write(@file, lines, perm: 0o600)
      described_class.new("user=bob passfile=#{@file} #{given}").places.map(&:last)
    end

    it "takes each host's password, as libpq finds it" do
      lines = "one:*:*:*:first\ntwo:6000:*:bob:second\n10.0.0.1:*:*:*:third\nlocalhost:*:*:*:fourth\n"
      expect(passwords(lines, "host=one,two,three,,/tmp hostaddr=,,10.0.0.1,10.0.0.1, port=5432,6000,5432,5432,5432"))
        .to eq(["first", "second", "", "third", ""])
      expect(passwords(lines, "host=two port=6001")).to eq([""])
      expect(passwords(lines, "dbname=shop")).to eq(["fourth"])
      expect(passwords(lines, "host=one,two password=given")).to eq(%w[given given])
    end

    it "takes bytes that are no UTF-8, a lone backslash and an empty password as libpq does" do
      expect(passwords("caf\xE9:*:*:*:x\none:*:*:*:s\xE9cret\n".b, "host=one")).to eq(["s\xE9cret".b])
      expect(passwords("one:*:*:*:secret\\\n", "host=one")).to eq(["secret\\"])
      expect(passwords("one:*:*:*:\n*:*:*:*:secret\n", "host=one")).to eq([""])
    end

    it "reads it again each time" do
      expect(passwords("*:*:*:*:first\n", "host=one")).to eq(["first"])
      expect(passwords("*:*:*:*:second\n", "host=one")).to eq(["second"])
    end
  end

  # Invariant 19: with a root.crt in there, libpq checks certificates.
  it "finds the folder of certificates where libpq does, also without $HOME" do
    given = { host: "db", passfile: "/nowhere/pgpass", password: "secret" }
    ["", nil].each do |home|
      ENV["HOME"] = home
      expect(keywords(given)).to include("certificates_folder" => "#{Etc.getpwuid(Process.euid).dir}/.postgresql")
    end
    skip "libpq took the passwd entry before version 15" if PG.library_version < 150_000
    ENV["HOME"] = "/somewhere"
    expect(keywords(given)).to include("certificates_folder" => "/somewhere/.postgresql")
  end

  describe "and its hosts" do
    def hosts(given) = described_class.new("user=bob #{given}").hosts

    it "looks names up, by the C library, and keeps those that have no address" do
      one, two = hosts("host=localhost,no-such-host.invalid port=6000 password=secret")
      expect(one).to match(["localhost", nil, include("127.0.0.1").or(include("::1")), nil, "6000", "secret"])
      expect(two).to match(["no-such-host.invalid", nil, [], /\Acould not translate host name "no-such-host.invalid" to address: ./,
                            "6000", "secret"])
    end

    it "looks up nothing that is an address, or where one is given" do
      expect(hosts("host=10.0.0.1,::1,db hostaddr=,,10.0.0.2").map { |host| host[0..2] })
        .to eq([["10.0.0.1", nil, ["10.0.0.1"]], ["::1", nil, ["::1"]], ["db", nil, ["10.0.0.2"]]])
    end

    it "knows folders of Unix sockets, libpq's own one too" do
      expect(hosts("host=/run/pg,@abstract").map { |host| host[0..2] })
        .to eq([["/run/pg", "/run/pg", []], ["@abstract", "@abstract", []]])
      expect(hosts("dbname=shop")).to match([[nil, start_with("/"), [], nil, "5432", ""]])
    end

    it "takes a name like Compose's" do
      expect(hosts("host=my_db").first[3]).to include('"my_db"')
    end
  end

  it "leaves sslmode open where the system's roots set its default" do
    expect(keywords("host=db sslrootcert=system")).not_to include("sslmode")
    expect(keywords("host=db sslrootcert=system sslmode=verify-full")).to include("sslmode" => "verify-full")
  end

  it "refuses what libpq refuses, in libpq's words" do
    expect { keywords(host: "db", sslmode: "always") }.to raise_error(PG::ConnectionBad, /invalid sslmode value: "always"/)
    expect { keywords("host=db target_session_attrs=any_old") }.not_to raise_error # the engine says so
    expect { keywords(nonsense: 1) }.to raise_error(PG::Error, /"nonsense"/)
    expect { keywords("host=one,two port=1,2,3") }.to raise_error(PG::ConnectionBad, /3 port numbers to 2 hosts/)
  end

  it "refuses what is neither a String nor a Hash" do
    expect { described_class.new(-> {}) }.to raise_error(StandardError, /must be a String or a Hash, got Proc/)
  end

  it "refuses bytes that are no text, without showing them" do
    expect { described_class.new({ host: "db", password: "s\xFFcret" }) }
      .to raise_error(ArgumentError, /\Aconnection option password must be UTF-8\z/)
  end

  it "never shows a secret" do
    options = described_class.new("postgres://bob:topsecret@db/shop")
    expect(options.inspect).not_to include("topsecret")
  end

  # Each of them has "hush" in the place of a password, or in one that was meant to be one.
  [
    "postgres://bob:hu%zzhush@db/shop", "postgres://bob@db/shop?password=hush%zz", "postgres://bob:hush@[::1/shop",
    "postgres://bob:a/hush@db/shop", "postgres://bob:hush/a@db/shop", "postgres://bob:a@hush@db/shop",
    "postgres://bob:hush@a@db:1/shop", "postgres://bob:hush@db:5x/shop", "postgres://bob:a?b/hush@db/shop",
    "postgres://bob@db/shop?password=a&hush", "postgres://bob@db/shop?password=a&hush=b",
    "mysql://bob:hush@db/shop", "postgres:/bob:hush@db/shop", "bob:hush@db/shop",
    "host=db password=a hush", "host=db password=a hush\"b", "host=db password=a hush=b", "host=db password='hush"
  ].each do |text|
    it "shows no secret of a text that is none of libpq's: #{text}" do
      expect { described_class.new(text) }.to raise_error(PG::Error) { |error|
        expect([error.message, error.cause.inspect]).to all(satisfy { |said| !said.include?("hush") })
      }
    end
  end

  it "says what is wrong with a text all the same" do
    expect { keywords("host=db password") }.to raise_error(PG::Error, /\Amissing "=" after "\*\*\*" in connection info string/)
    expect { keywords("postgres://bob:a@b@db/shop") }.to raise_error(PG::ConnectionBad, /"@".* is written %40/)
    expect { keywords("postgres://bob:a/b@db/shop") }.to raise_error(PG::ConnectionBad, %r{"/".* is written %2F})
  end

  it "takes every host and port that libpq can mean" do
    expect(keywords("postgres://bob:a%40b%2Fc@db,[::1]:6000,%2Frun%2Fpg@1/shop"))
      .to include("host" => "db,::1,/run/pg@1", "password" => "a@b/c", "port" => ",6000,")
    expect(keywords("host=@abstract port=' 5433'")).to include("host" => "@abstract", "port" => " 5433")
  end
end
