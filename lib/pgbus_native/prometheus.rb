# frozen_string_literal: true

require_relative "live"

module PgbusNative
  # The figures of this process's hubs, pumps and feeds in Prometheus's text format, version 0.0.4. See {PgbusNative.prometheus}.
  class Prometheus
    # Key in `stats`, type, what it says.
    HUB = [
      [:workers, :gauge, "Workers connected now."],
      [:subscriptions, :gauge, "Subscriptions of all workers now."],
      [:queued_frames, :gauge, "Frames that wait for workers now."],
      [:wakes_in, :counter, "Wakes that the LISTEN session received."],
      [:frames_out, :counter, "Frames that workers' sockets took whole."],
      [:dropped_durable_wakes, :counter, "Redundant durable wakes left out for workers that read slowly."],
      [:evicted_workers, :counter, "Workers severed because they did not read."],
      [:reconnects, :counter, "Times that the LISTEN session came back after a loss."],
      [:callback_failures, :counter, "Times that the logger, a subscriber or a listener raised."],
      [:thread_restarts, :counter, "Times that a Ruby thread of the hub was killed and came back."]
    ].freeze
    PUMP = [
      [:posted, :counter, "Frames posted."],
      [:written, :counter, "Frames written whole."],
      [:writes, :counter, "System calls that wrote."],
      [:bytes, :counter, "Bytes written."],
      [:dropped, :counter, "Jobs dropped because of buffer_limit."],
      [:dead, :counter, "Connections found dead."],
      [:acks, :counter, "Jobs acknowledged."],
      [:waiting, :gauge, "Frames that wait or are under way."],
      [:connections, :gauge, "Living connections that had a job of this pump."],
      [:callback_failures, :counter, "Times that on_dead, ack_queue, the logger or a subscriber raised."],
      [:thread_restarts, :counter, "Times that a Ruby thread of the pump was killed and came back."]
    ].freeze

    FEED = [
      [:browsers, :gauge, "Browsers that the feed serves."],
      [:streams, :gauge, "Streams that somebody is on."],
      [:wakes, :counter, "Wakes heard."],
      [:pages, :counter, "Pages of rows read."],
      [:rows, :counter, "Rows read."],
      [:questions, :counter, "Questions to the app's filters."],
      [:given_up, :counter, "Browsers given up for reading too slowly."],
      [:losses, :counter, "Times that the source of wakes was lost."],
      [:callback_failures, :counter, "Times that a filter or the logger raised."],
      [:thread_restarts, :counter, "Times that a Ruby thread of the feed was killed and came back."]
    ].freeze

    def initialize
      @lines = []
    end

    # @return [String]
    def text
      hubs = Live.each_of(:hub).map { |hub, _| [{ socket: hub.socket_path }, hub.stats] }
      pumps = Live.each_of(:pump).map { |pump, number| [{ pump: number }, pump.stats] }
      feeds = Live.each_of(:feed).map { |feed, number| [{ feed: number }, feed.stats] }
      session(hubs)
      table("hub", HUB, hubs)
      table("pump", PUMP, pumps)
      frames(pumps)
      table("feed", FEED, feeds)
      metric("feed_hears", :gauge, "1 while the feed hears wakes.",
             feeds.filter_map { |labels, stats| [labels, stats[:hears] ? 1 : 0] if stats.key?(:hears) })
      @lines.join
    end

    private

    def table(subject, rows, objects)
      rows.each do |key, type, help|
        metric("#{subject}_#{key}#{"_total" if type == :counter}", type, help,
               objects.filter_map { |labels, stats| [labels, stats[key]] if stats[key] })
      end
    end

    def session(hubs)
      metric("hub_session_up", :gauge, "1 while the LISTEN session is up.",
             hubs.map { |labels, stats| [labels.merge(session: stats[:session]), stats[:connected_since] ? 1 : 0] })
      metric("hub_session_connected_timestamp_seconds", :gauge, "Since when the LISTEN session is up.",
             hubs.filter_map { |labels, stats| [labels, stats[:connected_since].to_f] if stats[:connected_since] })
    end

    def frames(pumps)
      metric("pump_frames_total", :counter, "Frames written whole, by the way they went.",
             pumps.flat_map do |labels, stats|
               %i[native ruby].map { |path| [labels.merge(path:), stats.fetch(:"#{path}_frames")] }
             end)
    end

    def metric(name, type, help, samples)
      return if samples.empty?

      @lines << "# HELP pgbus_native_#{name} #{help}\n# TYPE pgbus_native_#{name} #{type}\n"
      samples.each { |labels, value| @lines << "pgbus_native_#{name}{#{pairs(labels)}} #{value}\n" }
    end

    # With the process, since each worker has figures of its own and a scrape reaches one of them.
    def pairs(labels)
      labels.merge(pid: Process.pid).map { |name, value| "#{name}=\"#{escape(value)}\"" }.join(",")
    end

    def escape(value)
      value.to_s.scrub.gsub(/[\\"\n]/, "\\" => "\\\\", '"' => '\"', "\n" => '\n')
    end
  end
end
