# frozen_string_literal: true

# What the system knows of processes: from /proc where there is one, since a bare Debian has no ps; from ps elsewhere.
module Processes
  Entry = Data.define(:pid, :parent, :command)

  class << self
    # Does it still run? A zombie has ended.
    def run?(pid)
      state = File.directory?("/proc/self") ? status(pid)["State"] : `ps -o state= -p #{pid}`.strip
      !state.to_s.match?(/\A(Z|X|\z)/)
    end

    # @return [Integer] bytes of a process in memory
    def resident(pid = Process.pid)
      kilobytes = File.directory?("/proc/self") ? status(pid)["VmRSS"] : `ps -o rss= -p #{pid}`
      kilobytes.to_i * 1024
    end

    # @return [Array<Entry>]
    def children(parent)
      all.select { |entry| entry.parent == parent }
    end

    private

    def all
      return `ps -A -o pid=,ppid=,args=`.lines.map { |line| entry(*line.split(" ", 3)) } unless File.directory?("/proc/self")

      Dir.children("/proc").grep(/\A\d+\z/).filter_map do |pid|
        entry(pid, status(pid)["PPid"], File.binread("/proc/#{pid}/cmdline").tr("\0", " "))
      rescue SystemCallError
        nil # It ended meanwhile.
      end
    end

    def entry(pid, parent, command) = Entry.new(pid: pid.to_i, parent: parent.to_i, command: command.to_s.strip)

    def status(pid)
      File.readlines("/proc/#{pid}/status", chomp: true).to_h { |line| line.split(":\t", 2) }.transform_values { |text| text.to_s.strip }
    rescue SystemCallError
      {}
    end
  end
end
