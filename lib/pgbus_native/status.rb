# frozen_string_literal: true

module PgbusNative
  # What {PgbusNative.status} returns: a Hash for programs, text for people. It says of this process what each of the two
  # classes does in it, not only whose the constant is.
  #
  #   { version: "0.1.0",
  #     pgbus: "0.14.1",                        # nil without pgbus
  #     supported: ">= 0.13.1, < 1.0",
  #     extension: { loaded: true, ruby: "Ruby 3.3.8 x86_64-linux", path: "...", error: nil },
  #     installed: true,
  #     reason: nil,                            # why nothing is installed
  #     classes: { OutboundPump: { native: true, waiting: false, reason: nil, state: :serving,
  #                                text: "serving 12 browsers, 4711 frames written" }, MasterHub: { ... } },
  #     feed: { native: true, waiting: false, reason: nil } }
  #
  # `native`: pgbus's constant is the native class. `waiting`: it will be when pgbus loads its streamer, which a process that
  # never streams never does; the feed, when the first browser comes. `reason`: why it is not, nor will be. `state` and
  # `text`: see {Service}; `:original` where it is pgbus's own class that serves.
  class Status < Hash
    # @return [String]
    def to_s
      [headline, extension_line, *self[:classes].map { |name, state| class_line(name, state) }, feed_line].join("\n")
    end

    # @return [String] what the two classes do, in one line, for the log
    def summary
      self[:classes].map { |name, state| "#{name}: #{state[:text]}" }.join("; ")
    end

    private

    def headline
      pgbus = self[:pgbus] ? "pgbus #{self[:pgbus]}" : "no pgbus"
      "pgbus_native #{self[:version]} with #{pgbus} (supported: #{self[:supported]})"
    end

    def extension_line
      extension = self[:extension]
      loaded = extension[:loaded] ? "loaded, #{extension[:path]}" : "not loaded#{": #{extension[:error]}" if extension[:error]}"
      "  extension     #{loaded} (#{extension[:ruby]})"
    end

    def feed_line
      feed = self[:feed]
      text = if feed[:native] then "native"
             elsif feed[:waiting] then "native as soon as a browser comes"
             else "pgbus's own dispatcher: #{feed[:reason] || self[:reason]}"
             end
      "  feed          #{text}"
    end

    def class_line(name, state)
      "  #{name.to_s.ljust(12)}  #{state[:text]}"
    end
  end
end
