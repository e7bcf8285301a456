# frozen_string_literal: true

require_relative "outbound_pump"
require_relative "patch"

module PgbusNative
  # What is prepended to pgbus's `Instance`, a worker's streamer: it has a native pump by default, which takes each
  # connection in before anybody writes to it, and all browsers take their leave at the same time.
  module InstancePatch
    extend Patch

    def register(connection)
      @pump.adopt(connection) if @pump.is_a?(OutboundPump)
      super
    end

    private

    # pgbus builds a pump where `streams_writer_threads` is positive.
    def build_pump
      super || default_pump
    end

    def default_pump
      writers = PgbusNative.configuration.writers
      return unless InstancePatch.active? && writers.positive?

      queue = @dispatch_queue
      on_dead = ->(connection) { queue << Pgbus::Web::Streamer::StreamEventDispatcher::DisconnectMessage.new(connection:) }
      OutboundPump.new(threads: writers, ack_queue: @ack_queue, on_dead:,
                       buffer_limit: @config.streams_writer_buffer_limit, logger: @logger)
    end

    # By now the pump was stopped, but for the farewell.
    def close_all_connections
      return super unless @pump.is_a?(OutboundPump)

      @pump.farewell { super() }
    end
  end
end
