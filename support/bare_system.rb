# frozen_string_literal: true

require "fileutils"
require "open3"
require "tmpdir"

# A Debian as bare as debootstrap makes it, in a throw-away folder. Commands run in it with mounts and processes of their
# own, which end with the command, however it ends; so removing the folder is all there is to clean up.
class BareSystem
  class Error < StandardError; end

  ROOT = File.expand_path("..", __dir__)
  FOLDER = "#{ROOT}/target/fresh" # Not /tmp, which may be mounted without set-user-id programs (sudo).
  CACHE = "#{FOLDER}/packages"
  USER = "builder"
  PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  RUST = "/opt/rust"
  NAMESPACES = %w[unshare --mount --pid --fork --kill-child].freeze
  # $1 is the system's folder, $2 the cache of packages, $3 Rust's folder (may be empty), the rest the command.
  ENTER = <<~SH
    set -e
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount --bind "$2" "$1/var/cache/apt/archives"
    [ -z "$3" ] || mount --bind -o ro "$3" "$1#{RUST}"
    system=$1
    shift 3
    exec chroot "$system" "$@"
  SH

  class << self
    # Why there can be none on this machine, or nil.
    #
    # @return [String, nil]
    def obstacle
      if !Process.uid.zero? then "it needs root"
      elsif !system("command -v debootstrap >/dev/null") then "it needs debootstrap (bin/setup --all brings it)"
      elsif !system(*NAMESPACES, "--mount-proc", "true", %i[out err] => IO::NULL) then "this machine allows no mounts"
      elsif !File.read("/etc/os-release").match?(/^ID=debian$/) || archive.empty? then "apt knows no Debian archive here"
      end
    end

    # @return [Array<String>] the address of the archive that apt uses, and its keyring if it names one
    def archive
      @archive ||= Open3.capture2("bash", "-c", ". support/debian.sh && debian_archive", chdir: ROOT).first.split
    end

    # Makes one, yields it, removes it.
    #
    # @param suite [String] the release of Debian
    # @param packages [Array<String>] what is installed beside the minimum
    # @param rust [Boolean] whether this machine's Rust is there
    def open(suite, packages: [], rust: true)
      FileUtils.mkdir_p(CACHE)
      Dir.mktmpdir("#{suite}-", FOLDER) do |folder|
        yield new(folder, suite, rust: rust).tap { |system| system.prepare(packages) }
      end
    end
  end

  def initialize(folder, suite, rust:)
    @folder = folder
    File.chmod(0o755, folder) # The root of every user in it.
    @suite = suite
    @rust = rust ? Open3.capture2("rustc", "--print", "sysroot", chdir: ROOT).first.chomp : ""
    raise Error, "this machine's Rust is a part of its system (#{@rust}); a toolchain of rustup can be lent" if @rust == "/usr"
  end

  # Installs the system, and what of this machine it is lent: how to reach packages, crates, and Rust.
  def prepare(packages)
    debootstrap
    configure_apt
    %w[/etc/resolv.conf /etc/hosts].each { |file| FileUtils.cp(file, "#{@folder}#{file}") }
    FileUtils.mkdir_p("#{@folder}#{RUST}")
    install("sudo", *packages)
    run("useradd", "--create-home", "--shell", "/bin/bash", USER)
    File.write("#{@folder}/etc/sudoers.d/#{USER}", "#{USER} ALL=(ALL) NOPASSWD: ALL\n", perm: 0o440)
    ["root", USER].each { |user| lend_crates(user) }
  end

  # Copies this checkout, without what git ignores, into a user's home.
  def clone_for(user)
    files, status = Open3.capture2("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                                   "--exclude-standard", chdir: ROOT)
    raise Error, "git can't list this checkout's files" unless status.success?

    files.split("\0").select { |file| File.exist?("#{ROOT}/#{file}") }.each do |file|
      copy = "#{@folder}#{checkout(user)}/#{file}"
      FileUtils.mkdir_p(File.dirname(copy))
      FileUtils.cp("#{ROOT}/#{file}", copy, preserve: true)
    end
    give(checkout(user), user)
  end

  # Runs a command in the user's copy, or in / where there is none.
  #
  # @raise [Error] if it fails
  def run(*command, user: "root")
    folder = File.directory?("#{@folder}#{checkout(user)}") ? checkout(user) : "/"
    command = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
    command = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", *command] if user == USER
    inside(["env", "-i", *environment(user).map { |pair| pair.join("=") }, *command])
  end

  private

  def home(user) = user == "root" ? "/root" : "/home/#{user}"
  def checkout(user) = "#{home(user)}/pgbus_native"

  def environment(user)
    proxies = ENV.select { |name, _| name.match?(/\A(https?|no)_proxy\z/i) }
    rust = @rust.empty? ? {} : { "PATH" => "#{RUST}/bin:#{PATH}" }
    { "PATH" => PATH, "HOME" => home(user), "USER" => user, "LANG" => "C.UTF-8",
      # Crates are those that this machine has fetched.
      "CARGO_NET_OFFLINE" => "true" }.merge(rust, proxies)
  end

  # What it prints goes on to ours.
  def inside(command, **)
    finish(spawn(*NAMESPACES, "sh", "-c", ENTER, "sh", @folder, CACHE, @rust, *command, in: IO::NULL, **), command)
  end

  def debootstrap
    site, keyring = self.class.archive
    proxy, = Open3.capture2("apt-config", "shell", "proxy", "Acquire::http::Proxy")
    environment = proxy[/'(.+)'/, 1] ? { "http_proxy" => proxy[/'(.+)'/, 1] } : {}
    command = ["debootstrap", "--variant=minbase", "--cache-dir=#{CACHE}", *("--keyring=#{keyring}" if keyring), @suite, @folder, site]
    logged { |log| finish(spawn(environment, *NAMESPACES, *command, in: IO::NULL, **log), command) }
  end

  # Yields where the output goes; it is shown only if the command fails.
  def logged
    file = "#{@folder}/preparation.log"
    yield({ %i[out err] => [file, "a"] })
  rescue Error => e
    raise Error, "#{e.message}\n#{File.read(file)}"
  end

  # The command's end is waited for; ours (Ctrl-C) ends it.
  def finish(pid, command)
    _, status = Process.wait2(pid)
    raise Error, "#{@suite}: failed: #{command.last(4).join(" ")}" unless status.success?
  ensure
    unless status
      Process.kill(:KILL, pid)
      Process.wait(pid)
    end
  end

  # How this machine's apt reaches its archive; and no package is fetched twice or waits for the disk.
  def configure_apt
    acquire, = Open3.capture2("apt-config", "dump", "Acquire")
    lines = acquire.lines.grep_v(/\AAcquire::(IndexTargets|Changelogs|CompressionTypes)/)
    lines << "Binary::apt-get::APT::Keep-Downloaded-Packages \"true\";\n" << "DPkg::Options:: \"--force-unsafe-io\";\n"
    File.write("#{@folder}/etc/apt/apt.conf.d/90machine", lines.join)
    FileUtils.cp_r(Dir["/etc/apt/auth.conf*"], "#{@folder}/etc/apt")
  end

  def install(*packages)
    apt = %w[env DEBIAN_FRONTEND=noninteractive apt-get -qq]
    logged do |log|
      inside([*apt, "update"], **log)
      inside([*apt, "install", "--no-install-recommends", *packages], **log)
    end
  end

  def lend_crates(user)
    cargo_home = ENV.fetch("CARGO_HOME") { File.join(Dir.home, ".cargo") }
    copy = "#{@folder}#{home(user)}/.cargo"
    FileUtils.mkdir_p("#{copy}/registry")
    FileUtils.cp_r(Dir["#{cargo_home}/registry/{index,cache}"], "#{copy}/registry")
    FileUtils.cp(Dir["#{cargo_home}/config.toml"], copy)
    give("#{home(user)}/.cargo", user)
  end

  def give(path, user) = run("chown", "-R", "#{user}:#{user}", path)
end
