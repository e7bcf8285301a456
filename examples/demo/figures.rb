# frozen_string_literal: true

require "json"

module Demo
  # Figures that the processes of a cluster leave in its folder, a file each, also when they are killed.
  module Figures
    # Writes what the block returns twice a second, from a thread of this process.
    # @return [Proc] writes it once more
    def self.keep(name, folder: ENV.fetch("DEMO_FOLDER"), &figures)
      path = "#{folder}/#{name}-#{Process.pid}.json"
      note = lambda do
        File.write("#{path}.new", figures.call.merge(pid: Process.pid).to_json)
        File.rename("#{path}.new", path)
      end
      Thread.new do
        loop do
          note.call
          sleep 0.5
        end
      end
      note
    end

    # @return [Array<Hash>] one per process that ever wrote under the name
    def self.of(name, folder)
      Dir["#{folder}/#{name}-*.json"].map { |path| JSON.parse(File.read(path), symbolize_names: true) }
    end
  end
end
