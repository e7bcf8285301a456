//! The native LISTEN session.
