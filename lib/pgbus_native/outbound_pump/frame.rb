# frozen_string_literal: true

module PgbusNative
  class OutboundPump
    # Makes the bytes of a frame, with pgbus's own method.
    module Frame
      # @return [String] the frame's bytes
      # @return [Symbol] why they could not be made
      def self.call(msg_id, envelope)
        # An interrupt must not be taken for a failure of this envelope.
        Thread.handle_interrupt(Object => :never) do
          Pgbus::Streams::Envelope.message(id: msg_id, event: event_of(envelope), data: envelope.payload)
        rescue Exception => e # the dispatcher, who called, must not end by one envelope
          "#{e.class}: #{e.message}".to_sym
        end
      end

      def self.event_of(envelope)
        event = envelope.event if envelope.respond_to?(:event)
        name = event ? event.to_s : ""
        name.empty? ? Pgbus::Streams::DEFAULT_SSE_EVENT : name
      end
      private_class_method :event_of
    end
    private_constant :Frame
  end
end
