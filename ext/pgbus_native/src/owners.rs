//! The registry of Ruby values that the engine holds for us: connections with jobs in flight, and the envelopes whose
//! frames are in use. Both are marked for exactly as long.
//!
//! Only threads that hold the GVL come here, so its mutex is never waited for. Nothing is allocated in Ruby while it is
//! held, since that may start the garbage collector, which comes here as well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::value::Opaque;
use magnus::{gc, prelude::*, DataTypeFunctions, Error, RModule, Ruby, TypedData, Value};
use pgbus_native_engine::{inherit, pump::Frame};

/// Where a connection with jobs in flight of one pump stands in the registry.
#[derive(Clone, Copy)]
pub struct Place {
    pump: u64,
    /// What the engine knows it by.
    pub index: u32,
}

/// A connection with jobs in flight.
struct Owner {
    pump: u64,
    connection: Opaque<Value>,
    raw: rb_sys::VALUE,
    jobs: usize,
    /// Somebody wants to know when the last one is done.
    awaited: bool,
}

/// How many envelopes are remembered; a batch of pgbus has at most 500.
const FRAMES: usize = 1024;

#[derive(Default)]
struct Registry {
    generation: u32,
    owners: Vec<Option<Owner>>,
    free: Vec<u32>,
    /// Envelope (its address) and its frame, at a place that the address gives.
    frames: Vec<Option<(rb_sys::VALUE, Weak<Frame>)>>,
}

impl Registry {
    /// The entry at this place, if it is still this connection's: places are used again.
    fn find(&mut self, place: Option<Place>, pump: u64, connection: Value) -> Option<(Place, &mut Owner)> {
        let place = place.filter(|place| place.pump == pump)?;
        let entry = self.owners.get_mut(place.index as usize)?.as_mut()?;
        (entry.pump == pump && entry.raw == connection.as_raw()).then_some((place, entry))
    }
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { generation: 0, owners: Vec::new(), free: Vec::new(), frames: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let generation = inherit::generation();
    if registry.generation != generation {
        // What was in flight is the parent's business.
        *registry = Registry { generation, ..Registry::default() };
    }
    registry
}

/// Notes that one job more of this pump is in flight for this connection, whose place is `place` if it has one. Returns
/// its place.
pub fn retain(place: Option<Place>, pump: u64, connection: Value) -> Place {
    let mut registry = registry();
    if let Some((place, entry)) = registry.find(place, pump, connection) {
        entry.jobs += 1;
        return place;
    }
    let entry = Some(Owner { pump, connection: connection.into(), raw: connection.as_raw(), jobs: 1, awaited: false });
    let index = match registry.free.pop() {
        Some(index) => {
            registry.owners[index as usize] = entry;
            index
        }
        None => {
            registry.owners.push(entry);
            (registry.owners.len() - 1) as u32
        }
    };
    Place { pump, index }
}

/// Drops everything that a pump had in flight, which nobody will report any more.
pub fn forget(pump: u64) {
    let mut registry = registry();
    for index in 0..registry.owners.len() {
        if registry.owners[index].as_ref().is_some_and(|entry| entry.pump == pump) {
            registry.owners[index] = None;
            registry.free.push(index as u32);
        }
    }
}

/// What is known of a connection when some of its jobs are done.
pub struct Released {
    pub connection: Opaque<Value>,
    /// Its last job is done: its place is free.
    pub idle: bool,
    /// ... and somebody waited for that.
    pub awaited: bool,
}

/// Notes that `jobs` of a connection's jobs are done.
pub fn release(owner: u32, jobs: usize) -> Option<Released> {
    let mut registry = registry();
    let slot = registry.owners.get_mut(owner as usize)?;
    let entry = slot.as_mut()?;
    entry.jobs = entry.jobs.saturating_sub(jobs);
    let released = Released { connection: entry.connection, idle: entry.jobs == 0, awaited: entry.awaited };
    if released.idle {
        *slot = None;
        registry.free.push(owner);
    }
    Some(released)
}

/// Asks to be told when the connection's last job in flight is done. False: none is.
pub fn await_idle(place: Option<Place>, pump: u64, connection: Value) -> bool {
    registry().find(place, pump, connection).map(|(_, entry)| entry.awaited = true).is_some()
}

/// 10 bits of the product: a place among [`FRAMES`].
fn place(envelope: rb_sys::VALUE) -> usize {
    (envelope.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % FRAMES
}

/// The frame of this envelope, if it is in use.
pub fn frame_of(envelope: Value) -> Option<Arc<Frame>> {
    let raw = envelope.as_raw();
    match registry().frames.get(place(raw)) {
        Some(Some((known, frame))) if *known == raw => frame.upgrade(),
        _ => None,
    }
}

/// Remembers the frame of an envelope that can't change, for as long as the frame is in use.
pub fn remember(envelope: Value, frame: &Arc<Frame>) {
    let mut registry = registry();
    if registry.frames.is_empty() {
        registry.frames.resize_with(FRAMES, || None);
    }
    let raw = envelope.as_raw();
    registry.frames[place(raw)] = Some((raw, Arc::downgrade(frame)));
}

/// What the garbage collector sees of the registry.
#[derive(TypedData)]
#[magnus(class = "PgbusNative::Registry", mark)]
struct Marker;

impl DataTypeFunctions for Marker {
    fn mark(&self, marker: &gc::Marker) {
        let registry = registry();
        for owner in registry.owners.iter().flatten() {
            marker.mark(owner.connection);
        }
        for (envelope, frame) in registry.frames.iter().flatten() {
            // Nobody has its frame: it can't be found any more, so its address may become another object's.
            if frame.strong_count() > 0 {
                // SAFETY: it was marked in every collection since it was remembered, for its frame was in use.
                marker.mark(unsafe { Value::from_raw(*envelope) });
            }
        }
    }
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Registry", ruby.class_object())?;
    class.undef_default_alloc_func();
    module.funcall::<_, _, Value>("private_constant", ("Registry",))?;
    ruby.gc_register_mark_object(ruby.obj_wrap(Marker));
    Ok(())
}
