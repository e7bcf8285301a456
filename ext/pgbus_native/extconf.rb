# frozen_string_literal: true

require_relative "requirements"

refusal = Requirements.refusal and
  abort "pgbus_native can't be installed here: #{refusal}. Without it pgbus uses its own Ruby classes."

missing = Requirements.missing
unless missing.empty?
  abort "pgbus_native can't be compiled here. It needs:\n\n#{missing.map { |line| "  - #{line}\n" }.join}\n#{Requirements::ADVICE}"
end

require "mkmf"
require "rb_sys/mkmf"

create_rust_makefile("pgbus_native/pgbus_native") do |build|
  # Exactly the dependencies of Cargo.lock, or none.
  build.extra_cargo_args << "--locked"
  # A missing toolchain is said above; nothing is fetched behind anybody's back.
  build.auto_install_rust_toolchain = false
end
