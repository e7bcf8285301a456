# frozen_string_literal: true

namespace :lint do
  desc "Check the format and the lints of Rust"
  task :rust do
    sh "cargo", "fmt", "--all", "--check"
    sh "cargo", "clippy", "--locked", "--all-targets", "--", "-D", "warnings"
    sh "cargo", "fmt", "--manifest-path", LOAD_MANIFEST, "--check"
    sh "cargo", "clippy", "--locked", "--manifest-path", LOAD_MANIFEST, "--target-dir", "target/load", "--", "-D", "warnings"
    sh({ "RUSTDOCFLAGS" => "-D warnings" }, "cargo", "doc", "--locked", "--no-deps", "--package", "pgbus_native_engine")
  end

  desc "Check the syntax of every Ruby file, warnings included"
  task :ruby do
    files = FileList["*.gemspec", "Rakefile", "{ext,lib,rakelib,spec,support,bench,examples}/**/*.{rb,rake,ru}"]
    sh RbConfig.ruby, "-e", <<~RUBY, *files, verbose: false
      $VERBOSE = true
      complaints = []
      Warning.singleton_class.define_method(:warn) { |text, **| complaints << text }
      ARGV.each { |file| RubyVM::InstructionSequence.compile_file(file) }
      abort complaints.join unless complaints.empty?
    RUBY
  end

  desc "Check the signatures in sig/"
  task :rbs do
    # Debian has the gem, which comes with Ruby, but no command of it.
    sh RbConfig.ruby, "-e", 'load Gem.bin_path("rbs", "rbs")', "--", "-I", "sig", "--log-level=error", "validate", "--silent"
  end

  desc "Check licences, known vulnerabilities and duplicates of the dependencies, and that each is used"
  task :dependencies do
    sh "cargo", "deny", "--locked", "check"
    sh "cargo", "machete"
  end
end

desc "Check formats, lints, syntax and signatures"
task lint: %w[lint:rust lint:ruby lint:rbs]
