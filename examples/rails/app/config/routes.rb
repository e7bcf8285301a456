Rails.application.routes.draw do
  member = lambda do |env, _stream|
    name = Rack::Request.new(env).params["as"] || "guest"
    { id: name, moderator: name.start_with?("moderator") }
  end
  mount Pgbus::Web::StreamApp.new(authorize: member) => "/streams"

  # pgbus ships its element and a copy of Turbo; without an asset pipeline they are served as they are.
  mount Rack::Files.new(Pgbus::Engine.root.join("app").to_s) => "/pgbus"

  get "rooms/:id" => "rooms#show"
  get "worker" => "rooms#worker"
end
