# frozen_string_literal: true

require "puma/plugin"
require_relative "../../environment"
require_relative "../../figures"

# One hub in Puma's master, before the first fork and until the last worker is gone.
Puma::Plugin.create do
  def start(launcher)
    hub = PgbusNative::MasterHub.new(config: Pgbus.configuration, socket_path: ENV.fetch("PGBUS_STREAMS_HUB_SOCKET")).start
    note = Demo::Figures.keep("hub") { hub.stats }
    launcher.events.register(:after_stopped) do
      note.call
      hub.stop
    end
  rescue PG::Error, SystemCallError, Pgbus::Process::ReplicaConnectionError => e
    abort "the hub can't start: #{e.message.lines.first.strip}"
  end
end
