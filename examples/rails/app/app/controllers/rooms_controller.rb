class RoomsController < ActionController::Base
  helper Pgbus::StreamsHelper

  def show
    @room = params[:id]
  end

  # What the worker that answers runs on.
  def worker
    pump = Pgbus::Web::Streamer.current.pump
    render json: { pid: Process.pid, pump: pump.class.name, stats: pump.respond_to?(:stats) ? pump.stats : {},
                   listener: Pgbus::Web::Streamer.current.listener.class.name }
  end
end
