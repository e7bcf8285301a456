# frozen_string_literal: true

require "rubygems/package"

# Platforms and Ruby versions that get a precompiled gem. The release workflow has the same list.
PRECOMPILED_PLATFORMS = %w[
  x86_64-linux aarch64-linux x86_64-linux-musl aarch64-linux-musl x86_64-darwin arm64-darwin
].freeze
PRECOMPILED_RUBIES = %w[3.3 3.4 4.0].freeze

desc "Build pkg/#{GEMSPEC.file_name}, which compiles at installation"
task :build do
  mkdir_p "pkg", verbose: false
  Gem::Package.build(GEMSPEC, false, false, "pkg/#{GEMSPEC.file_name}")
end

namespace :precompile do
  PRECOMPILED_PLATFORMS.each do |platform|
    desc "Build the gem for #{platform}, for Ruby #{PRECOMPILED_RUBIES.join(", ")} (needs Docker and rb-sys-dock)"
    task platform do
      sh "rb-sys-dock", "--platform", platform, "--ruby-versions", PRECOMPILED_RUBIES.join(","), "--build"
    end
  end
end

desc "Build the gem for every precompiled platform"
task precompile: PRECOMPILED_PLATFORMS.map { |platform| "precompile:#{platform}" }
