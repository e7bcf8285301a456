# frozen_string_literal: true

require_relative "lib/pgbus_native/version"

Gem::Specification.new do |spec|
  spec.name = "pgbus_native"
  spec.version = PgbusNative::VERSION
  spec.summary = "The writer and the hub of pgbus streams, in Rust, outside the GVL"
  spec.description = "Replaces pgbus's OutboundPump and MasterHub with native classes of the same interface: " \
                     "Rust threads write SSE frames and fan out NOTIFYs while Ruby threads keep the GVL."
  spec.authors = ["pgbus_native maintainers"]
  spec.license = "MIT"
  spec.required_ruby_version = ">= 3.3"
  spec.platform = Gem::Platform::RUBY

  # What compiling and using it takes, and nothing else.
  spec.files = Dir["Cargo.{toml,lock}", "ext/**/*.{rs,rb,sh,toml}", "lib/**/*.rb", "sig/**/*.rbs",
                   "README.md", "CHANGELOG.md", "LICENSE", base: __dir__]
               .grep_v(%r{/(tests|benches|examples|fuzz|target)/|/tests\.rs\z}).sort
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/pgbus_native/extconf.rb"]

  spec.add_dependency "rb_sys", "~> 0.9"
  spec.metadata = { "rubygems_mfa_required" => "true", "cargo_crate_name" => "pgbus_native" }
end
