# frozen_string_literal: true

module Demo
  # What the demo says at its end.
  class Table
    # @return [String] the number, with commas
    def self.count(number) = number.to_i.to_s.gsub(/(?<=\d)(?=(\d{3})+\z)/, ",")

    # @param seen [Hash] the load client's last report
    # @param sent [Array(Integer, Integer)] durable and ephemeral messages
    # @param sessions [Array(Array<String>, Array<String>)] backend pids of the LISTEN sessions, at start and end
    # @param hub [Hash] its stats
    # @param workers [Array<Hash>] the stats of every worker's pump, replaced ones included
    # @param threads [Hash{String => Integer}, nil] Rust threads by process, where the system tells
    def initialize(seen:, sent:, clients:, sessions:, hub:, workers:, wanted_workers:, threads:)
      @seen = seen
      @clients = clients
      @durable, @ephemeral = sent || [0, 0] # nil: not all were sent
      @sessions = sessions
      @hub = hub
      @workers = workers
      @wanted_workers = wanted_workers
      @threads = threads
    end

    def all_delivered?
      @durable.positive? && @seen[:durable] == @durable * @clients && @seen.values_at(:missing, :duplicates).sum.zero?
    end

    def to_s
      width = rows.map { |name, _| name.size }.max
      rule = "─" * 78
      "\n#{rule}\n#{rows.map { |name, value| " #{name.ljust(width)}   #{value}\n" }.join}#{rule}\n #{verdict}\n"
    end

    private

    def rows
      @rows ||= [
        ["messages", "#{count(@durable + @ephemeral)} (#{count(@durable)} durable, #{count(@ephemeral)} ephemeral)"],
        ["durable frames delivered", "#{count(@seen[:durable])} of #{count(@durable * @clients)}"],
        ["ephemeral frames delivered", "#{count(@seen[:ephemeral])} of #{count(@ephemeral * @clients)}"],
        ["latency", %i[p50 p95 p99].map { |share| "#{share} #{format("%.1f", @seen[share] || 0)} ms" }.join(", ")],
        ["LISTEN sessions in PostgreSQL", sessions],
        ["Puma workers", workers],
        ["connections lost and resumed", count(@seen[:lost_connections])],
        ["Rust threads", threads],
        ["drops", count(@hub[:dropped_durable_wakes].to_i + @workers.sum { |worker| worker[:dropped].to_i })],
        ["evictions", count(@hub[:evicted_workers].to_i)]
      ]
    end

    def sessions
      first, last = @sessions
      return "none at the end, #{first.size} at the start" if last.empty?

      same = first == last ? "the same from start to end" : "backend #{first.join(", ")} at the start"
      "#{last.size} (backend #{last.join(", ")}, #{same})"
    end

    def workers
      replaced = @workers.size - @wanted_workers
      replaced.positive? ? "#{@wanted_workers} (#{replaced} replaced)" : @wanted_workers.to_s
    end

    def threads = @threads ? @threads.map { |process, number| "#{number} in #{process}" }.join(", ") : "not told by this system"

    def verdict
      return "Every durable message reached every client exactly once and in order." if all_delivered?

      "FAILED: #{count(@seen[:missing])} durable frames missing, #{count(@seen[:duplicates])} twice or out of order" \
        "#{"; a client was answered #{@seen[:refusal]}" if @seen[:refusal]}"
    end

    def count(number) = self.class.count(number)
  end
end
