# frozen_string_literal: true

# The table that a benchmark prints: what was measured, of pgbus's own class and of ours, how they stand to each other,
# and what we aim at.
class Report
  WIDTHS = [66, 14, 14, 12, 24].freeze

  # @param compared [Boolean] whether there is a class of pgbus's to compare with
  def initialize(compared)
    note("without the real pgbus (PGBUS_PATH) there is nothing to compare with") unless compared
    row("", "pgbus's own", "native", "ratio", "goal")
  end

  # @param theirs [Numeric, nil] pgbus's value
  # @param ours [Numeric]
  # @param format [String] of both values
  def line(what, theirs, ours, format, goal = "")
    ratio = times(ours / theirs.to_f) if theirs&.positive? && ours.positive?
    row(what, theirs && format(format, theirs), format(format, ours), ratio, goal)
  end

  # How our value stands to another one than pgbus's, and whether that is what we aim at.
  def ratio(what, ratio, goal, reached)
    row("  #{what}", "", "", times(ratio), "#{goal}  #{reached ? "reached" : "NOT reached"}")
  end

  def note(text) = puts("  #{text}")

  private

  def times(ratio) = ratio < 0.1 ? format("1/%.0f x", 1 / ratio) : format("%.2f x", ratio)

  def row(*cells)
    puts cells.zip(WIDTHS).map.with_index { |(cell, width), i| i.zero? ? cell.ljust(width) : cell.to_s.rjust(width) }.join
  end
end
