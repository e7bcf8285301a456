//! The pump: writer threads over SSE sockets.
