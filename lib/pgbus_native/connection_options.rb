# frozen_string_literal: true

require "ipaddr"
require_relative "fork_guard"
require_relative "host_lookup"

module PgbusNative
  # Connection options as libpq resolves them at this moment: what was given, then the service file, the PG* variables of
  # the environment, the password file, and libpq's defaults.
  #
  # libpq is asked itself, with an option that it refuses last, before it looks up or connects to anything: then it has
  # resolved all others and tells them.
  class ConnectionOptions
    # How a LISTEN session is called in +pg_stat_activity+ unless the options or +PGAPPNAME+ say otherwise.
    APPLICATION_NAME = "pgbus-listen"

    # A value that no option has.
    REFUSED = "resolve only"
    private_constant :REFUSED

    # Not a keyword of libpq's: where it looks for certificates when none are given.
    CERTIFICATES_FOLDER = "certificates_folder"
    private_constant :CERTIFICATES_FOLDER

    # What {#hosts} has.
    OF_HOSTS = %w[host hostaddr port password passfile].freeze
    private_constant :OF_HOSTS

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

    # @return [Hash{String => String}] libpq's keywords and the values that count, without empty ones and those of {#hosts}
    attr_reader :keywords

    # @return [Array<Array>] the servers to try, in libpq's order: each one's name and numeric address (nil where not given),
    #   its port as libpq takes it, and its password, empty for none, in whatever bytes it has
    attr_reader :places

    # @return [Array<Array(String, String)>] names and values of what is SET after connecting, in this order
    attr_reader :variables

    # @param options [String, Hash] a URL or a keyword string; or libpq's keywords as symbols or strings, beside
    #   +:variables+, a Hash
    # @param name [String] what the session is called unless the options or +PGAPPNAME+ say otherwise
    # @raise [Pgbus::ConfigurationError, ArgumentError] for anything else (the latter without pgbus)
    # @raise [ArgumentError] for a keyword that isn't one, for variables that are no Hash, for a text that is not UTF-8
    # @raise [PG::Error] for options that libpq refuses
    def initialize(options, name: APPLICATION_NAME)
      require "pg" unless defined?(::PG::Connection)
      @name = name
      given = keywords_of(options)
      @variables = variables_of(given).map { |name, value| [utf8(:variables, name), utf8(name, value)] }
      @given = named(given.compact.to_h { |keyword, value| [keyword, utf8(keyword, value)] })
      @keywords = resolve
    end

    # {#places} with names looked up, the first time that they are asked for.
    #
    # @return [Array<Array>] each with its name (nil: none was given), the folder of its Unix socket or nil, its addresses,
    #   why it has none or nil, its port as libpq takes it, and its password, empty for none
    # @raise [HostLookup::Impossible]
    def hosts
      @hosts ||= begin
        names = @places.filter_map { |name, hostaddr,| name if !hostaddr && name?(name) }.uniq
        found = HostLookup.addresses(names)
        @places.map { |name, hostaddr, port, password| host(name, hostaddr, found[name], port, password) }
      end
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

      given.merge(fallback_application_name: @name)
    end

    def resolve
      # libpq checks target_session_attrs last, so that this finds what else is wrong; with sslmode, which it checks
      # before, it tells what target_session_attrs is.
      keywords, password, = ask(target_session_attrs: REFUSED)
      # Where it looks for a server when there is no host, and for a password file when there is neither, of which it tells
      # no other way which home folder it takes.
      nothing = { host: "", hostaddr: "", port: "", password: "", passfile: "" }
      defaults, _, @default_folder = ask(sslmode: REFUSED, **nothing)
      keywords["target_session_attrs"] = defaults["target_session_attrs"]
      home = defaults["passfile"]
      keywords[CERTIFICATES_FOLDER] = File.join(File.dirname(home), ".postgresql") if home
      keywords.delete("sslmode") if keywords["sslrootcert"] == "system" && default_sslmode?
      @places = places_of(keywords, password)
      keywords.except(*OF_HOSTS).to_h { |keyword, value| [keyword, utf8(keyword, value)] }
    end

    def places_of(keywords, first_password)
      names, hostaddrs, ports = keywords.values_at("host", "hostaddr", "port").map { |list| list.to_s.split(",", -1) }
      ports = [ports.first.to_s] * [names.size, hostaddrs.size, 1].max if ports.size < 2
      ports.each_with_index.map do |port, at|
        name, hostaddr = [names[at], hostaddrs[at]].map { |text| text unless text.to_s.empty? }
        [name, hostaddr, port, at.zero? ? first_password : password_of(name, hostaddr, port, keywords)]
      end
    end

    # The password file may have one for each host.
    def password_of(name, hostaddr, port, keywords)
      keywords["password"] || ask(target_session_attrs: REFUSED, host: name.to_s, hostaddr: hostaddr.to_s, port:)[1]
    end

    def host(name, hostaddr, found, port, password)
      return [name, nil, [hostaddr], nil, port, password] if hostaddr
      return [name, name || @default_folder, [], nil, port, password] if name.nil? || name.start_with?("/", "@")
      return [name, nil, found || [name], nil, port, password] unless found.is_a?(String)

      [name, nil, [], "could not translate host name #{name.inspect} to address: #{found}", port, password]
    end

    # Whether this is to be looked up.
    def name?(text)
      return false if text.nil? || text.start_with?("/", "@")

      IPAddr.new(text)
      text.include?("/")
    rescue IPAddr::Error
      true
    end

    # What libpq makes of the options, its password for the first host, and where it would connect to.
    def ask(**refused)
      conninfo = ::PG::Connection.connect_hash_to_string(@given.merge(refused))
      ForkGuard.undisturbed { ::PG::Connection.connect_start(conninfo).finish }
      raise ::PG::ConnectionBad, "libpq took #{refused.keys.first}=#{REFUSED.inspect}"
    rescue ::PG::ConnectionBad => e
      raise unless e.connection && e.message.include?(REFUSED)

      [present(e.connection.conninfo), e.connection.pass.b, e.connection.host]
    end

    def present(conninfo)
      conninfo.to_h { |option| option.values_at(:keyword, :val) }.reject { |_, value| value.nil? || value.empty? }
    end

    # With sslrootcert=system libpq's default is another one, which libpq tells only since version 16.
    def default_sslmode? = !@given.key?(:sslmode) && !ENV.key?("PGSSLMODE")

    def utf8(name, value)
      text = value.to_s.encode(Encoding::UTF_8)
      raise EncodingError unless text.valid_encoding?

      text
    rescue EncodingError
      raise ArgumentError, "connection option #{name} must be UTF-8"
    end
  end
end
