//! The hub: workers on a Unix socket, the routing table, one outbox per worker.
