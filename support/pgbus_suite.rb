# frozen_string_literal: true

require "json"
require "rbconfig"
require "tmpdir"
require_relative "private_postgres"

# Runs pgbus's own specs of its streams with the native classes in place: the unit specs of the streamer, and the
# integration specs of its streams, writers on, against a PostgreSQL of our own. Nothing is written into the checkout.
class PgbusSuite
  LIB = File.expand_path("../lib", __dir__)
  OURS = File.expand_path("pgbus_suite", __dir__)

  # @param path [String] a checkout of pgbus
  def initialize(path)
    @path = File.expand_path(path)
  end

  # Runs both groups, prints one line that sums up.
  #
  # @return [Boolean] whether all passed
  def run
    results = Dir.mktmpdir("pgbus_native-suite-") do |folder|
      unit = rspec(unit_specs, "#{folder}/unit.json", folder)
      [unit, PrivatePostgres.run { |postgres| rspec(integration_specs, "#{folder}/integration.json", folder, postgres.url) }]
    end
    sum_up(results)
  end

  private

  def unit_specs = Dir["#{@path}/spec/pgbus/web/streamer/*_spec.rb"].sort - left_out

  def integration_specs = Dir["#{@path}/spec/integration/streams/*_spec.rb"].sort - left_out

  # What needs Falcon's gems, where they are not installed.
  def left_out
    @left_out ||= if command("ruby", "-e", "require 'falcon'; require 'protocol/http/body/writable'", err: File::NULL) then []
                  else Dir["#{@path}/spec/{pgbus/web/streamer,integration/streams}/falcon*_spec.rb"].sort
                  end
  end

  def rspec(files, report, folder, database = nil)
    command({ "PGBUS_DATABASE_URL" => database },
            "rspec", "-I", OURS, "-I", LIB, "-I", "#{@path}/lib", "-I", "#{@path}/spec", "-r", "native",
            "--format", "progress", "--format", "json", "--out", report, "--order", "defined", *files, chdir: folder)
    JSON.parse(File.read(report))
  rescue Errno::ENOENT
    { "summary" => { "example_count" => 0, "failure_count" => 0, "pending_count" => 0, "errors_outside_of_examples_count" => 1 } }
  end

  # With pgbus's own bundle, where it is installed; else with the gems of this Ruby.
  def command(*words, **)
    environment = words.first.is_a?(Hash) ? words.shift : {}
    environment = environment.merge("BUNDLE_GEMFILE" => "#{@path}/Gemfile") if bundle?
    bundle? ? system(environment, "bundle", "exec", *words, **) : system(environment, *words, **)
  end

  def bundle?
    return @bundle if defined?(@bundle)

    @bundle = File.exist?("#{@path}/Gemfile.lock") &&
              system({ "BUNDLE_GEMFILE" => "#{@path}/Gemfile" }, "bundle", "check", %i[out err] => File::NULL)
  end

  def sum_up(results)
    total, failed, pending, errors = %w[example failure pending errors_outside_of_examples].map do |what|
      results.sum { |result| result["summary"]["#{what}_count"] }
    end
    left = left_out.map { |file| File.basename(file) }
    puts "pgbus #{File.read("#{@path}/lib/pgbus/version.rb")[/"(.+)"/, 1]} with native OutboundPump and MasterHub: " \
         "#{total} examples, #{failed} failed, #{pending} pending#{", #{errors} errors" if errors.positive?}" \
         "#{" (not run, since Falcon isn't installed: #{left.join(", ")})" unless left.empty?}"
    failed.zero? && errors.zero? && total.positive?
  end
end
