# frozen_string_literal: true

require_relative "environment"

page = File.read("#{__dir__}/page.html", encoding: Encoding::UTF_8).sub("STREAM_PATH", Demo.path)

map("/streams") { run Pgbus::Web::StreamApp.new }

# What a person types on the page goes to everybody who looks at it.
map "/say" do
  run(lambda do |env|
    next [405, { "allow" => "POST" }, []] unless env["REQUEST_METHOD"] == "POST"

    Demo.broadcast(nil, env["rack.input"].read(1_000).to_s.force_encoding(Encoding::UTF_8).scrub)
    [204, {}, []]
  end)
end

map "/" do
  run(lambda do |env|
    next [404, { "content-type" => "text/plain" }, ["not found\n"]] unless env["PATH_INFO"] == "/"

    [200, { "content-type" => "text/html; charset=utf-8", "cache-control" => "no-store" }, [page]]
  end)
end
