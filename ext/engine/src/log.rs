//! Log lines on their way to the Ruby logger.

/// How serious a line is; the levels that pgbus's logger is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Details that only somebody who looks for them wants.
    Debug,
    /// Normal events of the life of a hub or a pump.
    Info,
    /// Somebody else's fault that was survived.
    Warn,
    /// Something that an operator should act on.
    Error,
}

impl Level {
    /// The name of the logger's method.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// One line, without the class's prefix and without a line break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How serious it is.
    pub level: Level,
    /// What happened, in words, with the values that matter. Never a secret.
    pub text: String,
}

impl Line {
    /// Makes a line; `text` may be anything that can be turned into a `String`.
    pub fn new(level: Level, text: impl Into<String>) -> Self {
        Self { level, text: text.into() }
    }
}
