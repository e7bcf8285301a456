//! What happens around a fork; why, says [`pgbus_native_engine::inherit`].

use std::sync::Once;

use pgbus_native_engine::inherit;

extern "C" fn prepare() {
    inherit::before_fork();
}

extern "C" fn parent() {
    inherit::after_fork_in_parent();
}

extern "C" fn child() {
    inherit::after_fork_in_child(|fd| {
        // SAFETY: close(2) may be called between fork and exec of a process with threads, and the descriptor is one
        // that the engine opened and that nothing in a child uses: objects of another generation are inert.
        unsafe { libc::close(fd) };
    });
}

/// Has the C library call us around every fork of this process, whoever forks it.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions live as long as the process (a Ruby extension is never unloaded), use only
        // atomics and close(2), and can't panic.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}
