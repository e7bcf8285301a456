# frozen_string_literal: true

desc "Run a hub among faults of all kinds, two minutes or so many: rake chaos[60]; SEED=1 repeats a run"
task :chaos, [:minutes] => %i[compile load_clients] do |_, arguments|
  ruby "-w", "support/chaos.rb", arguments.fetch(:minutes, "2")
end
