# frozen_string_literal: true

module PgbusNative
  # What a module has that is prepended to a class of pgbus's, for as long as it is installed. It can't be taken off again:
  # it asks whether it is active.
  module Patch
    # Patches the class. Safe to call again.
    #
    # @param klass [Class]
    # @return [void]
    def install(klass)
      klass.prepend(self)
      @active = true
    end

    # Objects that are made from now on are pgbus's own; those that exist stay native.
    #
    # @return [void]
    def uninstall
      @active = false
    end

    # @return [Boolean]
    def active? = !!@active
  end
  private_constant :Patch
end
