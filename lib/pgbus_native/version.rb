# frozen_string_literal: true

module PgbusNative
  VERSION = "0.1.0"
end
