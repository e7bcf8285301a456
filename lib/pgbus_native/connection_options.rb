# frozen_string_literal: true

module PgbusNative
  # Connection options as libpq resolves them: what was given, then the service file, the PG* variables of the
  # environment, and libpq's defaults. The password file is left to the engine, which reads it for every new connection.
  #
  # libpq is asked itself, with an option that it refuses last, before it looks up or connects to anything: then it has
  # resolved all others and tells them.
  class ConnectionOptions
    # How the session is called in +pg_stat_activity+ unless the options or +PGAPPNAME+ say otherwise.
    APPLICATION_NAME = "pgbus-listen"

    # A value that no option has.
    REFUSED = "resolve only"
    private_constant :REFUSED

    # Not a keyword of libpq's: where it looks for a server when no host is given.
    DEFAULT_FOLDER = "default_socket_folder"
    private_constant :DEFAULT_FOLDER

    # What libpq quotes of a text that it can't read, in any of its languages; the text may hold a password. The signs of
    # its grammar ("=", "]") are no part of that text.
    QUOTED = /(["«„“「]\s?[=\]&]\s?["»“”」])|["«„“「].*["»“”」]/m
    private_constant :QUOTED

    # A text with a password in it, or with something like one. The first colon of a URL is none.
    PASSWORD = /:.*@|password/im
    SCHEME = %r{\Apostgres(ql)?://}
    private_constant :PASSWORD, :SCHEME

    # Where a part of a password ends up that has a "@" or a "/" in it, in a URL without percent-encoding.
    HOST_OF_NO_SERVER = %r{\A(?![/@]).*@}
    PORT_OF_NO_SERVER = /[^\d\s,+-]/
    private_constant :HOST_OF_NO_SERVER, :PORT_OF_NO_SERVER

    # @return [Hash{String => String}] libpq's keywords and the values that count, without empty ones
    attr_reader :keywords

    # @return [Array<Array(String, String)>] names and values of what is SET after connecting, in this order
    attr_reader :variables

    # @param options [String, Hash] a URL or a keyword string; or libpq's keywords as symbols or strings, beside
    #   +:variables+, a Hash
    # @raise [Pgbus::ConfigurationError, ArgumentError] for anything else (the latter without pgbus)
    # @raise [ArgumentError] for a keyword that isn't one, for variables that are no Hash, for a text that is not UTF-8
    # @raise [PG::Error] for options that libpq refuses
    def initialize(options)
      require "pg" unless defined?(::PG::Connection)
      given = keywords_of(options)
      @variables = variables_of(given).map { |name, value| [utf8(:variables, name), utf8(name, value)] }
      @keywords = resolve(named(given.compact.to_h { |keyword, value| [keyword, utf8(keyword, value)] }))
    end

    # @return [String] without values, since one of them may be a password
    def inspect = "#<#{self.class} #{keywords.keys.join(" ")}>"

    private

    def keywords_of(options)
      case options
      when Hash then options.transform_keys { |keyword| keyword_of(keyword) }
      when String then parse(options)
      else
        error = defined?(::Pgbus::ConfigurationError) ? ::Pgbus::ConfigurationError : ArgumentError
        raise error, "connection options must be a String or a Hash, got #{options.class}; set database_url or " \
                     "connection_params, or streams_database_url"
      end
    end

    def keyword_of(keyword)
      return keyword.to_sym if keyword.respond_to?(:to_sym)

      raise ArgumentError, "connection options must have Symbols or Strings as keywords, got #{keyword.inspect}"
    end

    def variables_of(given)
      variables = given.delete(:variables) || {}
      return variables if variables.is_a?(Hash)

      raise ArgumentError, "connection option variables must be a Hash, got #{variables.class}"
    end

    def parse(text)
      given = present(conninfo_parse(text)).transform_keys(&:to_sym)
      hosts = given.values_at(:host, :hostaddr).compact.flat_map { |list| list.split(",") }
      misplaced!(:host, "@", "%40") if hosts.any?(HOST_OF_NO_SERVER)
      misplaced!(:port, "/", "%2F") if given[:port]&.match?(PORT_OF_NO_SERVER)
      given
    end

    # Without libpq's own exception as the cause, which shows what this one hides.
    def conninfo_parse(text)
      ::PG::Connection.conninfo_parse(text)
    rescue ::PG::Error => e
      raise unless PASSWORD.match?(text.sub(SCHEME, ""))

      raise e.class, e.message.gsub(QUOTED) { Regexp.last_match(1) || '"***"' }, cause: nil
    end

    def misplaced!(option, sign, encoded)
      raise ::PG::ConnectionBad,
            "invalid #{option}: in a URL, a #{sign.inspect} in a user's name or password is written #{encoded}"
    end

    def named(given)
      return given if given.key?(:application_name) || given.key?(:fallback_application_name)

      given.merge(fallback_application_name: APPLICATION_NAME)
    end

    def resolve(given)
      # libpq checks target_session_attrs last, so that this finds what else is wrong; with sslmode, which it checks
      # before, it tells what target_session_attrs is.
      keywords, = ask(given, target_session_attrs: REFUSED)
      target, folder = ask(given, sslmode: REFUSED, host: "", hostaddr: "", port: "")
      keywords["target_session_attrs"] = target["target_session_attrs"]
      keywords[DEFAULT_FOLDER] = folder
      keywords.delete("sslmode") if keywords["sslrootcert"] == "system" && default_sslmode?(given)
      keywords.to_h { |keyword, value| [keyword, utf8(keyword, value)] }
    end

    # What libpq makes of the options, and where it would connect to.
    def ask(given, **refused)
      conninfo = ::PG::Connection.connect_hash_to_string(given.merge(refused))
      ::PG::Connection.connect_start(conninfo).finish
      raise ::PG::ConnectionBad, "libpq took #{refused.keys.first}=#{REFUSED.inspect}"
    rescue ::PG::ConnectionBad => e
      raise unless e.connection && e.message.include?(REFUSED)

      [present(e.connection.conninfo), e.connection.host]
    end

    def present(conninfo)
      conninfo.to_h { |option| option.values_at(:keyword, :val) }.reject { |_, value| value.nil? || value.empty? }
    end

    # With sslrootcert=system libpq's default is another one, which libpq tells only since version 16.
    def default_sslmode?(given) = !given.key?(:sslmode) && !ENV.key?("PGSSLMODE")

    def utf8(name, value)
      text = value.to_s.encode(Encoding::UTF_8)
      raise EncodingError unless text.valid_encoding?

      text
    rescue EncodingError
      raise ArgumentError, "connection option #{name} must be UTF-8"
    end
  end
end
