require_relative "boot"

require "rails"
require "active_record/railtie"
require "action_controller/railtie"
require "action_view/railtie"

Bundler.require(*Rails.groups)

module Chat
  class Application < Rails::Application
    config.load_defaults 7.2
    config.eager_load = Rails.env.production?
    config.secret_key_base = "0" * 64
    config.hosts.clear
    config.logger = Logger.new(Rails.root.join("log", "#{Rails.env}.log"), level: :info)
  end
end
