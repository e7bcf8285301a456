//! A frame: the bytes of one SSE event, made once and shared by all connections that it goes to.

/// See the module's documentation.
#[derive(Debug)]
pub struct Frame {
    /// The message's durable position, which the bytes carry as their `id` line. None for everything that a browser
    /// can't come back to: ephemeral messages, comments, the farewell.
    pub msg_id: Option<i64>,
    /// What goes to the socket.
    pub bytes: Box<[u8]>,
}
