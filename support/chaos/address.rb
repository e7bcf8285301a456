# frozen_string_literal: true

require "securerandom"

module Chaos
  # Where and as whom the hub connects, in a file that it reads again for each connect, as an app's configuration may ask
  # a secret store.
  class Address
    ROLE = "chaos"
    # A name that no name server knows (RFC 6761).
    NOWHERE = "chaos.invalid"

    def initialize(postgres, port, path)
      @postgres = postgres
      @port = port
      @path = path
      @host = "127.0.0.1"
      @password = "first"
      postgres.sql("CREATE ROLE #{ROLE} LOGIN PASSWORD '#{@password}'")
      write
    end

    # @return [String]
    def to_s = File.read(@path)

    # The database knows another password from now on; the hub's configuration, after the block.
    def rotate
      @password = SecureRandom.hex(8)
      @postgres.sql("ALTER ROLE #{ROLE} PASSWORD '#{@password}'")
      yield
    ensure
      write
    end

    # The database's name can't be looked up while the block runs.
    def unknown
      @host = NOWHERE
      write
      yield
    ensure
      @host = "127.0.0.1"
      write
    end

    private

    # Whole, or not at all: the hub may read it at any moment.
    def write
      File.write("#{@path}.new", "postgres://#{ROLE}:#{@password}@#{@host}:#{@port}/#{PrivatePostgres::DATABASE}")
      File.rename("#{@path}.new", @path)
    end
  end
end
