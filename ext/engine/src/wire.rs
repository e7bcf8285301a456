//! Frames on the Unix socket between hub and workers.
