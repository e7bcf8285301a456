# frozen_string_literal: true

require "rbconfig"

# What a machine must have before the extension can be compiled, so that an installation that can't succeed ends with
# advice instead of a compiler's error.
module Requirements
  MINIMUM_RUBY = "3.3"
  # `rust-version` of the workspace.
  MINIMUM_RUST = "1.85"

  # Where bindgen (through clang-sys) looks for libclang, in this order: LIBCLANG_PATH alone if it is set, else what
  # llvm-config says, the loader's own path, and these.
  LIBCLANG_FOLDERS = %w[
    /usr/local/llvm*/lib* /usr/local/lib* /usr/local/lib*/* /usr/local/lib*/*/* /usr/lib* /usr/lib*/* /usr/lib*/*/*
    /Library/Developer/CommandLineTools/usr/lib
    /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib
    /usr/local/opt/llvm*/lib /opt/homebrew/opt/llvm*/lib
  ].freeze
  LIBCLANG_FILES = "{libclang.so,libclang-*.so,libclang.so.*,libclang-*.so.*,libclang.dylib}"

  ADVICE = <<~TEXT
    Install what is missing, then try again:

      Debian, Ubuntu  apt-get install build-essential ruby-dev libclang-dev cargo
      Fedora          dnf install gcc make ruby-devel clang-devel cargo
      Alpine          apk add build-base ruby-dev clang-dev cargo
      macOS           xcode-select --install, and brew install rust

    Where the system's Rust is too old (Debian before 13, for one), take it from https://rustup.rs.
    Where libclang is in an unusual place, set LIBCLANG_PATH to its folder.
  TEXT

  class << self
    # Why this Ruby can never load the extension, or nil.
    #
    # @return [String, nil]
    def refusal(engine: RUBY_ENGINE, version: RUBY_VERSION, platform: RUBY_PLATFORM)
      if engine != "ruby"
        "it needs CRuby (MRI); this is #{engine}"
      elsif Gem::Version.new(version) < Gem::Version.new(MINIMUM_RUBY)
        "it needs Ruby #{MINIMUM_RUBY} or newer; this is #{version}"
      elsif !platform.match?(/linux|darwin/)
        "it runs on Linux and macOS; this is #{platform}"
      end
    end

    # What has to be installed first, a line each; empty when the extension can be compiled.
    #
    # @return [Array<String>]
    def missing
      [missing_rust, missing_compiler, missing_libclang].compact
    end

    private

    def missing_rust
      # rb_sys was told to bring a toolchain of its own.
      return unless ENV.fetch("RB_SYS_FORCE_INSTALL_RUST_TOOLCHAIN", "false") == "false"

      cargo = version_of(ENV.fetch("CARGO", "cargo"))
      rustc = version_of(ENV.fetch("RUSTC", "rustc"))
      if cargo.nil? || rustc.nil?
        absent = { "cargo" => cargo, "rustc" => rustc }.select { |_, version| version.nil? }.keys.join(" and ")
        "Rust #{MINIMUM_RUST} or newer: #{absent} not found (PATH is #{ENV["PATH"].inspect})"
      elsif rustc < Gem::Version.new(MINIMUM_RUST)
        "Rust #{MINIMUM_RUST} or newer: rustc is #{rustc}"
      end
    end

    def version_of(program)
      text = IO.popen([program, "--version"], err: File::NULL, &:read)
      number = text[/\d+\.\d+(\.\d+)?/] or return
      Gem::Version.new(number)
    rescue SystemCallError
      nil
    end

    def missing_compiler
      compiler = RbConfig::CONFIG["CC"].split.first
      "A C compiler: #{compiler}, which compiled this Ruby, not found" unless version_of(compiler)
    end

    def missing_libclang
      return if libclang_folders.any? { |folder| File.file?(folder) || Dir["#{folder}/#{LIBCLANG_FILES}"].any? }

      where = ENV.key?("LIBCLANG_PATH") ? "LIBCLANG_PATH is #{ENV["LIBCLANG_PATH"].inspect}" : "LIBCLANG_PATH is not set"
      "libclang: not found (#{where})"
    end

    def libclang_folders
      return [ENV["LIBCLANG_PATH"]] if ENV.key?("LIBCLANG_PATH")

      LIBCLANG_FOLDERS.flat_map { |pattern| Dir[pattern] } + loader_folders + [llvm_folder].compact
    end

    def loader_folders
      %w[LD_LIBRARY_PATH DYLD_LIBRARY_PATH].flat_map { |name| ENV.fetch(name, "").split(File::PATH_SEPARATOR) }
    end

    def llvm_folder
      IO.popen([ENV.fetch("LLVM_CONFIG_PATH", "llvm-config"), "--libdir"], err: File::NULL, &:read).strip
    rescue SystemCallError
      nil
    end
  end
end
