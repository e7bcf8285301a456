//! How much may wait for one connection.

/// What happens to a connection whose waiting jobs exceed the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Its oldest waiting jobs are dropped until the new one fits or none is left.
    DropOldest,
    /// Everything that waits is discarded and the connection ends.
    Disconnect,
}

/// How many frames of jobs may wait for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// 0: no limit.
    pub frames: usize,
    /// What happens above it.
    pub overflow: Overflow,
}

/// Frames, and bytes of frames.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// How many frames.
    pub frames: usize,
    /// How many bytes they have together.
    pub bytes: usize,
}

/// What may wait of the frames that exist nowhere else. More than a burst of ephemeral broadcasts, and at 2,000 stalled
/// connections still no more than the frames themselves, which they share.
pub const FLEETING: Amount = Amount { frames: 1024, bytes: 16 << 20 };

/// What may wait of frames that can be read again from the archive: about a page.
pub const BOUND: Amount = Amount { frames: 512, bytes: 4 << 20 };
