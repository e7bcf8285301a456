//! Engine objects that must not be touched in a forked child.

use std::mem::ManuallyDrop;

use pgbus_native_engine::inherit;

/// Something made in one generation of this process (see [`inherit::generation`]). In a child it can't be had, and it
/// is leaked instead of dropped: a thread of the parent may have been in the middle of changing it at the fork.
#[derive(Debug)]
pub struct Born<T> {
    generation: u32,
    inner: ManuallyDrop<T>,
}

impl<T> Born<T> {
    pub fn new(inner: T) -> Self {
        Self { generation: inherit::generation(), inner: ManuallyDrop::new(inner) }
    }

    /// None in a child of the process that made it.
    pub fn get(&self) -> Option<&T> {
        (self.generation == inherit::generation()).then(|| &*self.inner)
    }
}

impl<T> Drop for Born<T> {
    fn drop(&mut self) {
        if self.generation == inherit::generation() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) }
        }
    }
}
