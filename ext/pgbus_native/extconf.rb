# frozen_string_literal: true

require_relative "requirements"

refusal = Requirements.refusal and
  abort "pgbus_native can't be installed here: #{refusal}. Without it pgbus uses its own Ruby classes."

missing = Requirements.missing.values
unless missing.empty?
  abort "pgbus_native can't be compiled here. It needs:\n\n#{missing.map { |line| "  - #{line}\n" }.join}\n#{Requirements.advice}"
end

require "mkmf"
require "rb_sys/mkmf"

create_rust_makefile("pgbus_native/pgbus_native") do |build|
  # Exactly the dependencies of Cargo.lock, or none.
  build.extra_cargo_args << "--locked"
  # A missing toolchain is said above; nothing is fetched behind anybody's back.
  build.auto_install_rust_toolchain = false

  if build.rubygems_invoked?
    message = "pgbus_native: compiling its Rust code, which takes some minutes"
    puts message
    begin
      # RubyGems keeps back what we print, until something fails. A person who waits at a terminal reads it there.
      File.write("/dev/tty", "#{message}\n") unless $stdout.tty?
    rescue SystemCallError
      nil # No terminal.
    end
  end
end
