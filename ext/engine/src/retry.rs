//! An attempt to connect, again and again until it works.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::sleep;

use crate::listen::Log;
use crate::log::{Level, Line};

/// Between two attempts, when the one before has failed.
pub(crate) const BACKOFF: Duration = Duration::from_millis(500);

/// Tries until it works. Logs the first failure, and then ever more rarely; `failure` is the line's beginning.
pub(crate) async fn until_connected<T, E: Display>(
    failure: &str,
    log: Log<'_>,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let mut attempts = 0_u64;
    loop {
        let error = match attempt().await {
            Ok(connected) => return connected,
            Err(error) => error.to_string().replace('\n', "; "),
        };
        attempts += 1;
        if attempts.is_power_of_two() {
            log(Line::new(Level::Warn, format!("{failure} (attempt {attempts}): {error}")));
        }
        sleep(BACKOFF).await;
    }
}
