# frozen_string_literal: true

require_relative "helper_thread"

module PgbusNative
  # Runs foreign code: callbacks, subscribers, queues and loggers that an app gave us. Whatever they raise is logged,
  # counted and survived. Only the process's own end (SystemExit) passes through.
  class Guard
    # @param logger [Logger]
    # @param prefix [String] of every line
    def initialize(logger, prefix)
      @logger = logger
      @prefix = prefix
      @failures = Hash.new(0)
    end

    # @return [Integer] how often foreign code raised
    def failures = @failures.values.sum

    # Runs the block. What it raises is logged at error when its count reaches a power of two, so that a callback that
    # always raises can't flood the log.
    #
    # @param name [String] of what is called
    # @return [Object, nil] what the block returns; nil if it raised
    def call(name, &code)
      HelperThread.interruptibly(&code)
    rescue SystemExit
      raise
    rescue Exception => e
      count = @failures[name] += 1
      log(:error) { "#{name} raised #{e.class}: #{e.message} (#{count} so far)" } if count.nobits?(count - 1)
      nil
    end

    # Logs a line. A logger that raises is counted and otherwise ignored.
    #
    # @param level [Symbol]
    # @param text [String, nil]
    # @yieldreturn [String] the text, if none is given
    # @return [void]
    def log(level, text = nil)
      HelperThread.interruptibly { @logger.public_send(level) { "#{@prefix} #{text || yield}" } }
      nil
    rescue SystemExit
      raise
    rescue Exception
      @failures["the logger"] += 1
      nil
    end
  end
end
