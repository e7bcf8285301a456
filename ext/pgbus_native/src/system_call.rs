//! Errors of system calls, as Ruby's own calls raise them.

use magnus::{prelude::*, Error, Exception, Ruby};

/// `Errno::...` for this number; `what` failed.
pub fn error(ruby: &Ruby, what: &str, errno: i32) -> Error {
    match ruby.exception_system_call_error().funcall::<_, _, Exception>("new", (what, errno)) {
        Ok(exception) => exception.into(),
        Err(error) => error,
    }
}
