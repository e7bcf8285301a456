# frozen_string_literal: true

require "rbconfig"

module PgbusNative
  # The compiled part: loaded once, or the reason why it could not be.
  module Extension
    # Where the extension may be: in a precompiled gem (one for each Ruby), in a gem compiled at its installation, in a
    # checkout that nobody put on the load path.
    FEATURES = [
      "pgbus_native/#{RUBY_VERSION[/\A\d+\.\d+/]}/pgbus_native", "pgbus_native/pgbus_native", "#{__dir__}/pgbus_native"
    ].freeze

    # Values of PGBUS_NATIVE that switch it off, and those that leave it on.
    OFF = %w[0 false no off].freeze
    ON = ["", "1", "true", "yes", "on"].freeze

    # The Ruby that runs, as a gem's platform folder names it.
    RUBY = "Ruby #{RUBY_VERSION} #{RbConfig::CONFIG["arch"]}".freeze

    class << self
      # @return [String, nil] why it could not be loaded
      attr_reader :error

      # @return [String, nil] the file it was loaded from
      attr_reader :path

      # @return [Boolean]
      def loaded? = !@path.nil?

      # @return [Boolean] whether the environment switched it off; then it wasn't even tried
      def switched_off? = @switched_off

      # What to say of a value of PGBUS_NATIVE that is neither of the two.
      #
      # @return [String, nil]
      def misunderstanding
        return if OFF.include?(wish) || ON.include?(wish)

        "PGBUS_NATIVE is #{ENV["PGBUS_NATIVE"].inspect}, which says neither off (#{OFF.join(", ")}) nor on " \
          "(#{ON.drop(1).join(", ")}): it stays on"
      end

      # @return [void]
      def load
        @switched_off = OFF.include?(wish)
        return @error = "switched off by PGBUS_NATIVE=#{ENV["PGBUS_NATIVE"]}" if @switched_off

        FEATURES.each do |feature|
          require feature
          @path = $LOADED_FEATURES.reverse_each.find { |file| file.end_with?("/pgbus_native.#{RbConfig::CONFIG["DLEXT"]}") }
          @error = nil
          return
        rescue LoadError => e
          @error = e.message.lines.first.chomp
          return unless e.path == feature
        end
      end

      private

      def wish = ENV["PGBUS_NATIVE"].to_s.strip.downcase
    end

    load
  end
end
