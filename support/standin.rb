# frozen_string_literal: true

# Stands in for pgbus where it is not installed: what a Puma worker does around the two native classes, under the names
# and with the interfaces of pgbus 0.14, in as little Ruby as that takes. Specs, demo and benchmarks use it, and run
# unchanged on the real pgbus.
#
# Data flows one way: PostgreSQL → (hub →) Listener or HubClient → StreamEventDispatcher → OutboundPump → Connection.
raise LoadError, "pgbus itself is loaded; nothing has to stand in for it" if defined?(Pgbus::VERSION)

require_relative "standin/configuration"
require_relative "standin/database"
require_relative "standin/envelope"
require_relative "standin/connection"
require_relative "standin/listener"
require_relative "standin/hub_protocol"
require_relative "standin/hub_client"
require_relative "standin/registry"
require_relative "standin/stream_counter"
require_relative "standin/stream_event_dispatcher"
require_relative "standin/instance"
require_relative "standin/stream_app"
