Pgbus.configure do |config|
  config.database_url = ENV.fetch("DATABASE_URL")
  config.queue_prefix = "chat"
  config.pgmq_schema_mode = :embedded
  config.logger = Rails.logger
  config.streams_path = "/streams"
  config.streams_signed_name_secret = Rails.application.secret_key_base
  config.streams_default_broadcast_mode = :durable
  config.streams_listen_scope = :master
  config.streams_writer_threads = 2
  config.streams_heartbeat_interval = 1
  config.streams_presence_patterns = [/\Aroom_/]
end

# Who may see a broadcast with `visible_to: :moderators`; the context is what the route's authorize returned.
Pgbus::Streams.filters.register(:moderators) { |member| member && member[:moderator] }
