# frozen_string_literal: true

require "fileutils"
require "open3"
require "pty"
require "rbconfig"
require "tmpdir"

# What a machine needs is asked in one place, by extconf.rb and by bin/setup, of the tools that will be used. A machine
# here is a PATH: the system's own folders behind one in which an example puts its programs.
RSpec.describe "Setting up" do
  root = File.expand_path("..", __dir__)
  linux = RbConfig::CONFIG["host_os"].include?("linux")
  debian = File.exist?("/etc/os-release") && File.read("/etc/os-release").match?(/^ID=debian$/)
  system_path = [RbConfig::CONFIG["bindir"], "/usr/local/bin", "/usr/bin", "/bin"]
  rust = Open3.capture2("rustc", "--print", "sysroot", chdir: root).first.chomp

  let(:folder) { Dir.mktmpdir("pgbus_native-setup-") }
  let(:bin) { "#{folder}/bin" }
  let(:libclang) { "#{folder}/libclang" }
  let(:env) do
    { "PATH" => [bin, *system_path].join(":"), "LIBCLANG_PATH" => libclang, "RUBYOPT" => nil }
  end

  before do
    FileUtils.mkdir_p([bin, libclang])
    library("libclang.#{linux ? "so" : "dylib"}")
    FileUtils.mkdir_p("#{libclang}/clang/1/include")
    File.write("#{libclang}/clang/1/include/stdarg.h", "")
    %w[cargo rustc].each { |tool| program(tool, "exec #{rust}/bin/#{tool} \"$@\"") }
    program("sudo", 'exec "$@"')
  end

  after { FileUtils.rm_rf(folder) }

  def program(name, script) = File.write("#{bin}/#{name}", "#!/bin/sh\n#{script}\n", perm: 0o755)

  # Any shared object or program of this system passes for a library.
  def library(name) = FileUtils.cp(File.realpath("/bin/sh"), "#{libclang}/#{name}")

  def run(*command, **env_more)
    output, status = Open3.capture2e(env.merge(env_more.transform_keys(&:to_s)), *command, chdir: folder, stdin_data: "")
    [status.exitstatus, output]
  end

  define_method(:setup) { |*options| run("#{root}/bin/setup", *options) }
  define_method(:missing) { |compiler = "cc"| run("sh", "#{root}/ext/pgbus_native/requirements.sh", compiler).last }

  describe "what compiling needs" do
    it "is all there on this machine" do
      expect(missing(RbConfig::CONFIG["CC"])).to eq("")
    end

    if linux
      %w[libclang.so libclang-14.so libclang.so.13 libclang-14.so.14.0.6].each do |name|
        it "takes #{name} for libclang, as bindgen does" do
          FileUtils.rm_rf("#{libclang}/libclang.so")
          library(name)
          expect(missing).to eq("")
          env["LIBCLANG_PATH"] = "#{libclang}/#{name}"
          expect(missing).to eq("")
        end
      end

      {
        "libclang-cpp, another library of the same package family" => ->(to) { FileUtils.cp(File.realpath("/bin/sh"), "#{to}/libclang-cpp.so.14") },
        "a file that the loader can't open" => ->(to) { File.write("#{to}/libclang.so", "INPUT(-lclang-14)\n") },
        "a link into nowhere" => ->(to) { File.symlink("/nowhere", "#{to}/libclang.so") },
        "a folder" => ->(to) { FileUtils.mkdir("#{to}/libclang.so") }
      }.each do |what, make|
        it "does not take #{what} for libclang, as bindgen doesn't" do
          FileUtils.rm_rf("#{libclang}/libclang.so")
          make.call(libclang)
          expect(missing).to eq("libclang\tlibclang: not in LIBCLANG_PATH, which is '#{libclang}'\n")
        end
      end
    end

    bare = Dir["/usr/lib*/{clang,llvm*/lib*/clang}/*/include/stdarg.h"].empty? && system_path.none? { |path| File.exist?("#{path}/clang") }
    it "includes clang's own headers, without which libclang reads none of Ruby's", if: bare do
      FileUtils.rm_rf("#{libclang}/clang")
      expect(missing).to start_with("libclang\tlibclang: #{libclang}/libclang.")
    end

    it "finds libclang in the loader's folders" do
      env["LIBCLANG_PATH"] = nil
      env["LD_LIBRARY_PATH"] = "/nowhere:#{libclang}"
      expect(missing).to eq("")
    end

    it "includes Rust tools that run: those of rustup fail without a toolchain" do
      program("cargo", "echo 'error: rustup could not choose a version of cargo to run' >&2; echo 'help: more' >&2; exit 1")
      expect(missing).to eq("rust\tRust 1.85 or newer: cargo doesn't run: error: rustup could not choose a version of cargo to run\n")
    end

    it "includes rustc beside cargo" do
      env["RUSTC"] = "/nowhere/rustc"
      expect(missing).to include("rust\tRust 1.85 or newer: /nowhere/rustc not found")
    end

    ["rustc 1.84.1 (e71f9a9a9)", "rustc 0.66.0", "rustc"].each do |words|
      it "includes a new enough rustc: not #{words.inspect}" do
        program("rustc", "echo '#{words}'")
        expect(missing).to include("rust\tRust 1.85 or newer: rustc is #{words.split[1]}")
      end
    end

    it "includes the compiler that Ruby was compiled with, not just any" do
      expect(missing("gcc-of-ruby -m64")).to eq("compiler\tA C compiler: gcc-of-ruby not found\n")
    end

    it "includes all that a compiler needs to make a program" do
      program("cc", "echo 'cannot find crt1.o' >&2; exit 1")
      expect(missing).to include("compiler\tA C compiler: cc makes no program")
    end

    it "is found out without a Ruby, and without any other program" do
      env["PATH"] = "/nowhere"
      env["LIBCLANG_PATH"] = "/nowhere"
      _, output = run("/bin/sh", "#{root}/ext/pgbus_native/requirements.sh", "cc")

      expect(output.lines.map { |line| line[/\A\w+\t/].to_s.chomp("\t") }).to eq(%w[rust compiler make libclang])
    end
  end

  {
    "LIBCLANG_PATH names nothing" => ->(env, _) { env["LIBCLANG_PATH"] = "/nowhere" },
    "there is libclang-cpp only" => ->(env, _) { File.rename("#{env["LIBCLANG_PATH"]}/libclang.so", "#{env["LIBCLANG_PATH"]}/libclang-cpp.so.14") },
    "rustup has no toolchain" => ->(_, program) { %w[cargo rustc].each { |tool| program.call(tool, "echo error >&2; exit 1") } },
    "Rust is old" => ->(_, program) { program.call("rustc", "echo rustc 1.63.0") },
    "the compiler can't link" => ->(_, program) { program.call(RbConfig::CONFIG["CC"].split.first, "exit 1") }
  }.each do |what, break_it|
    next if what.include?("libclang-cpp") && !linux

    it "is one answer, from bin/setup and from the gem's installation, when #{what}" do
      break_it.call(env, method(:program))
      status, installation = run(RbConfig.ruby, "#{root}/ext/pgbus_native/extconf.rb")
      checked, check = setup("--check")

      expect([status, checked]).to eq([1, 1])
      expect(installation.lines.grep(/^  - /)).not_to be_empty
      expect(check.lines.grep(/^  - /)).to eq(installation.lines.grep(/^  - /))
      expect(check).to include("apt-get install", "https://rustup.rs")
    end
  end

  describe "bin/setup" do
    # A Ruby as version managers install it: this one, with changes.
    # It notes what gems are installed instead of fetching them.
    def own_ruby(prelude)
      File.write("#{folder}/prelude.rb", prelude)
      program("ruby", <<~SH)
        case "$*" in
          *GemRunner*) echo "gem ${*#*-- }" >>#{folder}/log; touch #{folder}/installed ;;
          *) exec #{RbConfig.ruby} -r#{folder}/prelude.rb "$@" ;;
        esac
      SH
    end

    # The gems that the project needs can't be loaded before "installed" is there.
    def own_ruby_without_gems
      own_ruby(<<~RUBY)
        module Kernel
          alias any_require require
          def require(name)
            raise LoadError, name if name.match?(/\\A(rb_sys|rspec|puma|pg)\\b/) && !File.exist?("#{folder}/installed")
            any_require(name)
          end
        end
      RUBY
    end

    # The commands that changed something.
    def changes = File.exist?("#{folder}/log") ? File.readlines("#{folder}/log", chomp: true).grep_v(/update|-s install/) : []

    def apt(ruby: "1:3.3", rustc: "1.85.0+dfsg3-1", install: "true", plan: "")
      program("apt-get", <<~SH)
        echo "apt-get $*" >>#{folder}/log
        case "$*" in *" -s install "*) printf '%b' '#{plan}' ;; *" install "*) #{install} ;; esac
      SH
      program("apt-cache", "case $2 in ruby) echo '  Candidate: #{ruby}' ;; rustc) echo '  Candidate: #{rustc}' ;; esac")
    end

    it "says nothing where nothing is missing" do
      expect(setup).to eq([0, ""])
    end

    it "says which option it doesn't know, and which it does" do
      expect(setup("--al")).to eq([2, "bin/setup: unknown option '--al'; allowed: --all, --check, --yes, --help\n"])
    end

    describe "with a Ruby of a version manager first in PATH" do
      it "installs nothing for one that is too old, and names it" do
        apt
        own_ruby('$VERBOSE = nil; RUBY_VERSION = "3.1.2"')
        status, output = setup

        expect(status).to eq(1)
        expect(output).to include("Ruby: it needs Ruby 3.3 or newer; this is 3.1.2 (")
        expect(output).not_to include("ready")
        expect(changes).to eq([])
      end

      it "names that Ruby's gems, where it only checks" do
        own_ruby_without_gems
        status, output = setup("--check")

        expect(status).to eq(1)
        expect(output).to eq("bin/setup: missing on this machine:\n  - gems of #{bin}/ruby: gem install rb_sys rspec puma pg\n")
      end

      it "installs that Ruby's gems with its own gem, not Debian's packages", if: debian do
        own_ruby_without_gems
        apt
        status, output = setup

        expect([status, output.lines.last]).to match([0, /\Abin\/setup: ready: Ruby #{RUBY_VERSION}, cargo /])
        expect(changes.last).to eq("gem install --no-document rb_sys rspec puma pg")
        expect(changes.grep(/apt-get.*(ruby|rake|puma)/)).to eq([])
        expect(setup("--check")).to eq([0, ""])
      end
    end

    describe "on Debian", if: debian && system_path.none? { |folder| File.exist?("#{folder}/cargo") } do
      before { %w[cargo rustc].each { |tool| File.rename("#{bin}/#{tool}", "#{folder}/#{tool}") } }

      let(:install) { "mv #{folder}/cargo #{folder}/rustc #{bin}" }

      it "installs Debian's own Rust where it is new enough" do
        apt(install:)
        status, output = setup

        expect(status).to eq(0), output
        expect(changes).to contain_exactly(end_with("install --no-install-recommends cargo rustc"))
      end

      it "installs none that is too old" do
        apt(rustc: "1.63.0+dfsg1-2", install:)
        status, output = setup

        expect(status).to eq(1)
        expect(output).to include("Rust 1.85 or newer: cargo not found", "https://rustup.rs")
        expect(changes).to eq([])
      end

      it "is not ready when something is missing after all that was installed" do
        apt
        status, output = setup

        expect(status).to eq(1)
        expect(output).to include("missing on this machine:\n  - Rust 1.85 or newer: cargo not found")
        expect(output).not_to include("ready")
      end
    end

    describe "before it installs from the next release", if: debian do
      plan = <<~TEXT.gsub("\n", "\\n")
        Inst libc6 [2.36-9] (2.41-12 Debian:13/stable [amd64]) []
        Inst base-files [12.4] (13.8 Debian:13/stable [amd64])
        Inst libnew (1.0 Debian:13/stable [amd64])
        Remv libssl3 [3.0]
      TEXT

      # Its own part of bin/setup, on a machine that is not a container, at a terminal.
      def install(answer, assume_yes: "no")
        script = <<~SH
          has() { command -v "$1" >/dev/null; }; say() { echo "$*"; }; complain() { say "$@" >&2; }
          . support/debian.sh
          in_a_container() { false; }
          assume_yes=#{assume_yes} log=#{folder}/output as_root=()
          install_from_next_suite ruby
        SH
        output, input, pid = PTY.spawn(env, "bash", "-euc", script, chdir: File.expand_path("..", __dir__))
        input.puts(answer) if answer
        text = +""
        begin
          text << output.readpartial(4_096) while true
        rescue SystemCallError, EOFError
          nil # The end of a terminal.
        end
        [Process.wait2(pid).last.exitstatus, text.delete("\r")]
      end

      before { apt(plan:) }

      it "installs only after a yes" do
        expect(install("y").first).to eq(0)
        expect(changes).to contain_exactly(end_with("install --no-install-recommends -t trixie ruby"))
      end

      ["n", ""].each do |answer|
        it "installs nothing after #{answer.inspect}" do
          expect(install(answer).first).to eq(1)
          expect(changes).to eq([])
        end
      end

      it "doesn't ask with --yes, and says what changes" do
        status, output = install(nil, assume_yes: "yes")

        expect([status, changes.size]).to eq([0, 1])
        expect(output).to eq(<<~TEXT)
          installing ruby from Debian trixie
            upgrades 2 packages of this system to that release:
              libc6 2.36-9 -> 2.41-12
              base-files 12.4 -> 13.8
            removes:
              libssl3
            /etc/os-release will name that release afterwards.
        TEXT
      end
    end
  end
end
