# frozen_string_literal: true

module PgbusNative
  # Makes the bytes of a frame, with pgbus's own method.
  module Encoder
    # What pgbus writes first into every frame.
    POSITION = /\Aid: (-\d+|0)\n/
    private_constant :POSITION

    class << self
      # @param msg_id [Integer]
      # @param envelope [#payload] maybe with `event`
      # @return [String] the frame's bytes
      # @return [Symbol] why they could not be made
      def call(msg_id, envelope)
        # An interrupt must not be taken for a failure of this envelope.
        Thread.handle_interrupt(Object => :never) do
          without_position(Pgbus::Streams::Envelope.message(id: msg_id, event: event_of(envelope), data: envelope.payload))
        rescue Exception => e # the dispatcher, who called, must not end by one envelope
          "#{e.class}: #{e.message}".to_sym
        end
      end

      # Takes the `id` line off a frame whose id is no durable position. A browser sends the last id that it saw when it
      # comes back: a negative one, of an ephemeral message, is refused with 400, and 0, of the farewell, asks for
      # everything that is still kept.
      #
      # @param bytes [String]
      # @return [String]
      def without_position(bytes) = bytes.match?(POSITION) ? bytes.sub(POSITION, "") : bytes

      private

      def event_of(envelope)
        event = envelope.event if envelope.respond_to?(:event)
        name = event ? event.to_s : ""
        name.empty? ? Pgbus::Streams::DEFAULT_SSE_EVENT : name
      end
    end
  end
  private_constant :Encoder
end
