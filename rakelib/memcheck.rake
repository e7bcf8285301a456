# frozen_string_literal: true

desc "Run a hub and a pump under valgrind, and fail if the extension misused or leaked memory"
task memcheck: :compile do
  require "rexml/document"
  require "tmpdir"

  # Ruby gives back at its end what it holds, so that what is left was forgotten. A forked child leaves the hub alone.
  # Whether a value is defined is not asked: Ruby's collector reads stacks as they are.
  environment = { "RUBY_FREE_AT_EXIT" => "1" }
  valgrind = %w[valgrind --quiet --child-silent-after-fork=yes --leak-check=full --show-leak-kinds=definite
                --undef-value-errors=no --num-callers=40 --max-stackframe=9000000 --xml=yes]

  Dir.mktmpdir("pgbus_native-memcheck-") do |folder|
    report = "#{folder}/report.xml"
    command = [*valgrind, "--xml-file=#{report}", RbConfig.ruby, "-Ilib", "-Isupport", "support/memcheck.rb"]
    sh(environment, *command, verbose: false)
    # What valgrind finds in Ruby itself is not ours to judge.
    errors = REXML::Document.new(File.read(report)).get_elements("//error").select do |error|
      error.get_elements("stack/frame/obj").any? { |object| object.text.include?("pgbus_native") }
    end
    errors.each do |error|
      puts error.get_elements("what|xwhat/text").map(&:text), error.get_elements("stack/frame/fn").map { |fn| "  #{fn.text}" }
    end
    abort "memcheck: #{errors.size} errors in the extension" unless errors.empty?
    puts "memcheck: no invalid access and no leak in the extension"
  end
end
