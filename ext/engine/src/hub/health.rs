//! Whether the session is up, and when the workers are to hear of it.

use std::time::Instant;

use super::REBROADCAST_TICKS;

#[derive(Debug, Default)]
pub struct Health {
    down_since: Option<Instant>,
    /// What the workers heard last.
    last_status: Option<bool>,
    ticks_since: u32,
}

impl Health {
    pub fn is_up(&self) -> bool {
        self.down_since.is_none()
    }

    pub fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    /// Returns false if it was down already.
    pub fn go_down(&mut self) -> bool {
        let was_up = self.is_up();
        self.down_since.get_or_insert_with(Instant::now);
        was_up
    }

    /// Returns false if it was up already.
    pub fn come_up(&mut self) -> bool {
        self.down_since.take().is_some()
    }

    /// A status interval has passed. Returns the status, if it has changed or the workers did not hear it for
    /// [`REBROADCAST_TICKS`].
    pub fn tick(&mut self) -> Option<bool> {
        self.ticks_since += 1;
        let is_up = self.is_up();
        if self.last_status == Some(is_up) && self.ticks_since < REBROADCAST_TICKS {
            return None;
        }
        self.last_status = Some(is_up);
        self.ticks_since = 0;
        Some(is_up)
    }
}
