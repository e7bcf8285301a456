# frozen_string_literal: true

require "rbconfig"

# What a machine must have before the extension can be compiled, so that an installation that can't succeed ends with
# advice instead of a compiler's error. What concerns Ruby is here, the rest in requirements.sh, which needs no Ruby.
#
# Run as a program it prints a line for each thing that is missing: its name, a tab, a sentence. Any Ruby from 2.5 on can.
module Requirements
  MINIMUM_RUBY = "3.3"
  SCRIPT = File.join(__dir__, "requirements.sh")

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

    # What has to be installed first; empty when the extension can be compiled.
    #
    # @return [Hash{String => String}] a sentence for each name
    def missing
      lines = IO.popen(libclang_of_a_gem, ["/bin/sh", SCRIPT, RbConfig::CONFIG["CC"]], &:readlines)
      lines.map { |line| line.chomp.split("\t", 2) }.to_h.merge(missing_headers)
    end

    # @return [String] how to install what is missing, by system
    def advice
      IO.popen(["/bin/sh", SCRIPT, "--advice"], &:read)
    end

    private

    def missing_headers
      folder = RbConfig::CONFIG["rubyhdrdir"]
      return {} if File.file?("#{folder}/ruby/ruby.h")

      { "headers" => "Ruby's headers: no ruby/ruby.h in #{folder}" }
    end

    # rb_sys takes libclang from the gem of that name, where it is installed.
    def libclang_of_a_gem
      require "libclang"
      { "LIBCLANG_PATH" => Libclang.libdir }
    rescue LoadError
      {}
    end
  end
end

if $PROGRAM_NAME == __FILE__
  refusal = Requirements.refusal
  puts "ruby\tRuby: #{refusal} (#{RbConfig.ruby})" if refusal
  Requirements.missing.each { |name, sentence| puts "#{name}\t#{sentence}" }
end
