# frozen_string_literal: true

# What `rake fresh` tries. trixie has a Rust of its own; Rust's container image has gcc, and libclang-cpp14 without libclang.
FRESH_SYSTEMS = {
  "bookworm" => ["bookworm", {}],
  "trixie" => ["trixie", { rust: false }],
  "bookworm with the packages of Rust's container image" =>
    ["bookworm", { packages: %w[ca-certificates curl gcc g++ git libc6-dev libclang-cpp14 libpq-dev libssl-dev make patch
                                pkg-config procps xz-utils] }]
}.freeze

try_fresh = lambda do |names, users, commands|
  require_relative "../support/bare_system"
  if (obstacle = BareSystem.obstacle)
    puts "fresh: skipped, #{obstacle}"
    next
  end

  host = `rustc -vV`[/^host: (.*)/, 1]
  ["Cargo.toml", LOAD_MANIFEST].each do |manifest|
    sh "cargo", "fetch", "--quiet", "--locked", "--target", host, "--manifest-path", manifest, verbose: false
  end
  names.product(users) do |name, user|
    suite, options = FRESH_SYSTEMS.fetch(name)
    puts "fresh: #{name}, as #{user}"
    BareSystem.open(suite, **options) do |system|
      system.clone_for(user)
      commands.each do |command|
        puts "fresh: #{command.join(" ")}"
        system.run(*command, user: user)
      end
    end
  end
  puts "fresh: all passed"
rescue BareSystem::Error => e
  abort "fresh: #{e.message}"
end

desc "Run bin/test and bin/demo on bare Debian systems, as root and as a user with sudo (needs root; an hour)"
task :fresh do
  try_fresh.call(FRESH_SYSTEMS.keys, %w[root builder], [%w[bin/test], %w[bin/demo]])
end

namespace :fresh do
  desc "Set up, build and run one spec on the bare system that is most like a developer's (needs root; some minutes)"
  task :quick do
    try_fresh.call([FRESH_SYSTEMS.keys.last], %w[builder],
                   [%w[bin/setup], %w[support/build], %w[rspec spec/integration/hub_puma_spec.rb]])
  end
end
