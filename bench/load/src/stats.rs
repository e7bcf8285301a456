//! Latencies and what to say of them.

/// Latencies in nanoseconds.
#[derive(Default)]
pub struct Latencies(Vec<u64>);

impl Latencies {
    /// Notes one.
    pub fn push(&mut self, nanoseconds: u64) {
        self.0.push(nanoseconds);
    }

    /// The value that `share` (0.0 to 1.0) of all are not above, in milliseconds; None of nothing.
    pub fn percentile_ms(&mut self, share: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let index = ((self.0.len() as f64 * share) as usize).min(last);
        let (_, value, _) = self.0.select_nth_unstable(index);
        Some(*value as f64 / 1e6)
    }
}
