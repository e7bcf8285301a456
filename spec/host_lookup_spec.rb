# frozen_string_literal: true

require "spec_helper"
require "ipaddr"
require "json"
require "open3"
require "rbconfig"
require "socket"
require "tmpdir"

# Names are the C library's affair, with all of its sources and whatever stands in its files.
RSpec.describe PgbusNative::HostLookup do
  before do
    skip "needs root and unshare(1)" unless Process.uid.zero? && system("unshare", "--mount", "true", %i[out err] => File::NULL)
  end

  # A name server that answers questions of these types (1: A), with an address each, and no others.
  def name_server(answers)
    socket = UDPSocket.new.tap { |udp| udp.bind("127.0.0.1", 53) }
    server = Thread.new do
      loop do
        query, (_, port, _, address) = socket.recvfrom(512)
        question = query.byteslice(12..)
        labels = question[/\A[^\0]*\0/n]
        found = answers[question.byteslice(labels.bytesize, 2).unpack1("n")] or next
        header = query.byteslice(0, 2) + [0x8180, 1, 1, 0, 0].pack("n5")
        record = [0xc00c, 1, 1, 60, 4].pack("n3Nn") + IPAddr.new(found).hton
        socket.send(header + question.byteslice(0, labels.bytesize + 4) + record, 0, address, port)
      end
    end
    yield
  ensure
    server&.kill&.join
    socket&.close
  end

  # Looks names up where /etc has these files.
  def addresses(*names, resolv: "", hosts: "127.0.0.1 localhost\n")
    Dir.mktmpdir do |folder|
      { "resolv.conf" => resolv, "hosts" => hosts }.each { |name, text| File.write("#{folder}/#{name}", text) }
      mounts = %w[resolv.conf hosts].map { |name| "mount --bind #{folder}/#{name} /etc/#{name}" }.join(" && ")
      code = "puts JSON.generate(PgbusNative::HostLookup.addresses(ARGV))"
      out, status = Open3.capture2e("unshare", "--mount", "sh", "-c", "#{mounts} && exec \"$@\"", "sh", RbConfig.ruby,
                                    "-I", File.expand_path("../lib", __dir__), "-r", "json", "-r", "pgbus_native/host_lookup", "-e", code, "--", *names)
      raise out unless status.success?

      JSON.parse(out)
    end
  end

  it "takes a resolv.conf with options of all kinds" do
    expect(addresses("db.test", resolv: "options retrans:1 no-such-option edns0\nnameserver 127.0.0.1\n", hosts: "10.1.2.3 db.test\n"))
      .to eq("db.test" => ["10.1.2.3"])
  end

  it "takes a name with an underscore, as Compose gives them" do
    expect(addresses("my_db", hosts: "10.1.2.3 my_db\n")).to eq("my_db" => ["10.1.2.3"])
  end

  it "asks the second name server where the first is dead" do
    name_server(1 => "10.1.2.3") do
      found = addresses("db.test", resolv: "options timeout:1 attempts:1\nnameserver 127.0.0.2\nnameserver 127.0.0.1\n")
      expect(found).to eq("db.test" => ["10.1.2.3"])
    end
  end

  it "has the address of a name whose AAAA question nobody answers" do
    name_server(1 => "10.1.2.3") do
      expect(addresses("db.test", resolv: "options timeout:1 attempts:1\nnameserver 127.0.0.1\n")).to eq("db.test" => ["10.1.2.3"])
    end
  end

  it "says why a name has no address, and of the others what they have" do
    expect(addresses("localhost", "no-such-host.invalid", resolv: "nameserver 127.0.0.3\noptions timeout:1 attempts:1\n"))
      .to match("localhost" => ["127.0.0.1"], "no-such-host.invalid" => /\S/)
  end
end
