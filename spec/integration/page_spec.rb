# frozen_string_literal: true

require "headless_browser"
require "net/http"
require "private_postgres"
require_relative "../../examples/demo/broadcaster"
require_relative "../../examples/demo/cluster"

RSpec.describe "The demo's page in a browser",
               skip: HeadlessBrowser.program ? false : "no Chromium here; bin/setup --all brings it" do
  around do |example|
    PrivatePostgres.run do |postgres|
      Demo::Cluster.run(database_url: postgres.url, workers: 2, port: PrivatePostgres.free_port) do |cluster|
        @cluster = cluster
        example.run
      end
    end
  end

  def shown(text) = "[...document.querySelectorAll('#messages li')].some((line) => line.innerText.includes(#{text.to_json}))"

  it "shows what is sent while it is open: durable, ephemeral, and what a person says" do
    Demo::Broadcaster.run(@cluster, rate: 20, count: 0) do |broadcaster|
      HeadlessBrowser.open("http://127.0.0.1:#{@cluster.port}/") do |browser|
        browser.wait_for(shown("hello"))
        expect(browser.evaluate("document.querySelectorAll('#messages li').length")).to eq(1)

        broadcaster.go
        browser.wait_for("Number(document.querySelector('#durable').innerText) > 4")
        browser.wait_for("Number(document.querySelector('#ephemeral').innerText) > 0")

        Net::HTTP.post(URI("http://127.0.0.1:#{@cluster.port}/say"), "<b>good day</b>")
        browser.wait_for(shown("<b>good day</b>"))
      end
    end
  end
end
