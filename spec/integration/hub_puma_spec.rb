# frozen_string_literal: true

require "processes"
require "rbconfig"
require_relative "../support/hub_context"

# The hub's place: the master of a Puma cluster, through all that Puma does with its processes (invariant 11).
RSpec.describe "The hub in a Puma cluster" do
  include_context "with a hub"

  let(:fork_worker) { nil }

  before { boot }

  after do
    Process.kill(:KILL, -@master) # whoever of the group is still there
  rescue Errno::ESRCH
    nil
  ensure
    Process.wait(@master) unless @waited
  end

  def boot
    environment = { "PUMA_HUB_FOLDER" => folder, "DATABASE_URL" => postgres.url, "PUMA_HUB_FORK_WORKER" => fork_worker,
                    "PGBUS_STREAMS_HUB_SOCKET" => nil }
    config = File.expand_path("../support/puma_hub/puma.rb", __dir__)
    @master = spawn(environment, RbConfig.ruby, "-S", "puma", "-C", config, chdir: folder, pgroup: true,
                                                                            %i[out err] => "#{folder}/out")
    eventually("two workers") { live_workers.size == 2 || master_ended }
  end

  def master_ended
    raise "Puma ended: #{File.read("#{folder}/out")}" if Process.wait(@master, Process::WNOHANG)
  end

  # Workers that run and have their ack.
  def live_workers
    Dir["#{folder}/*.heard"].filter_map do |file|
      pid = File.basename(file, ".heard").to_i
      pid if heard(pid).include?("ready") && Processes.run?(pid)
    end
  end

  def heard(pid) = File.readlines("#{folder}/#{pid}.heard", chomp: true)

  def expect_served
    notify("chat", "wake #{@told = @told.to_i + 1}")
    workers = live_workers
    eventually("the wake in #{workers}") { workers.all? { |pid| heard(pid).include?("wake #{@told}") } }
  end

  it "serves its workers with one session" do
    expect_served
    expect(sessions.size).to eq(1)
  end

  it "serves on while workers are killed and respawned, as worker killers do all day" do
    session = sessions
    { TERM: 2, KILL: 3 }.each do |signal, times|
      times.times do
        before = live_workers
        Process.kill(signal, before.first)
        eventually("the respawn") { (live_workers - before).any? && live_workers.size == 2 }
        expect_served
      end
    end
    expect(sessions).to eq(session)
    expect(live_workers.flat_map { |pid| heard(pid) }).not_to include("EOF")
  end

  it "begins anew after a hot restart (SIGUSR2, an exec), and serves the new workers" do
    before, session = live_workers, sessions
    Process.kill(:USR2, @master)
    eventually("new workers") { (live_workers - before).size == 2 }
    expect_served
    eventually("one session") { sessions.size == 1 }
    expect(sessions).not_to eq(session)
  end

  describe "with fork_worker" do
    let(:fork_worker) { "1" }

    it "serves workers that are forked by a worker, also after a refork (SIGURG)" do
      expect_served
      before, session = live_workers, sessions
      Process.kill(:URG, @master)
      eventually("the refork") { (live_workers - before).any? && live_workers.size == 2 }
      expect_served
      expect(sessions).to eq(session)
    end
  end

  # Puma's workers end with their master, some before they can note the EOF; hub_fork_spec proves it for those that stay.
  it "leaves neither worker nor session when the master is killed (SIGKILL)" do
    before = live_workers
    Process.kill(:KILL, @master)
    eventually("EOF") { before.all? { |pid| heard(pid).include?("EOF") || !Processes.run?(pid) } }
    eventually("the session's end") { sessions.empty? }
  end

  it "ends in peace with the master (SIGTERM)" do
    Process.kill(:TERM, @master)
    Process.wait(@master)
    @waited = true
    expect(File.exist?("#{folder}/hub.sock")).to be(false)
    eventually("the session's end") { sessions.empty? }
  end
end
