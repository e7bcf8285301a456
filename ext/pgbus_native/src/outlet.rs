//! `PgbusNative::Outlet`: the seam between a pgbus connection and the engine.

use std::cell::Cell;
use std::sync::Arc;

use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::value::Opaque;
use magnus::{function, gc, method, prelude::*, DataTypeFunctions, Error, RModule, Ruby, TypedData, Value};
use pgbus_native_engine::pump;

use crate::born::Born;
use crate::cursor::Cursor;
use crate::lock::Lock;
use crate::owners::Place;

#[derive(TypedData)]
#[magnus(class = "PgbusNative::Outlet", free_immediately, mark, size)]
pub struct Outlet {
    outlet: Born<Arc<pump::Outlet>>,
    /// The connection's socket, and the class that the connection must be of, without a singleton class.
    pub io: Opaque<Value>,
    class: Opaque<Value>,
    /// The engine has its duplicate of the socket's descriptor.
    pub attached: Cell<bool>,
    /// The connection's place in the registry while it has jobs in flight.
    pub place: Cell<Option<Place>>,
}

impl DataTypeFunctions for Outlet {
    fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.io);
        marker.mark(self.class);
    }
}

impl Outlet {
    fn new(
        ruby: &Ruby,
        connection: Value,
        io: Value,
        order: Obj<Lock>,
        lock: Obj<Lock>,
        cursor: &Cursor,
    ) -> Result<Self, Error> {
        let id = connection.funcall::<_, _, Value>("id", ())?.to_string();
        let outlet =
            pump::Outlet::new(id, order.of_this_process(ruby), lock.of_this_process(ruby), Arc::clone(&cursor.0));
        Ok(Self {
            outlet: Born::new(Arc::new(outlet)),
            io: io.into(),
            class: connection.class().as_value().into(),
            attached: Cell::new(false),
            place: Cell::new(None),
        })
    }

    /// None in a forked child of the process that made it.
    pub fn get(&self) -> Option<&Arc<pump::Outlet>> {
        self.outlet.get()
    }

    /// Whether the connection is what it was at its birth: nobody gave it methods of its own since.
    pub fn suits(&self, ruby: &Ruby, connection: Value) -> bool {
        // SAFETY: the connection is an object on the heap, since it has an instance variable; `klass` is its class, or
        // its singleton class if it has one.
        let class = unsafe { (*(connection.as_raw() as *const rb_sys::RBasic)).klass };
        class == ruby.get_inner(self.class).as_raw()
    }

    fn is_dead(&self) -> bool {
        self.get().is_some_and(|outlet| outlet.is_dead())
    }

    /// Seconds since the pump's last write.
    fn idle_for(&self) -> Option<f64> {
        self.get()?.idle_for().map(|idle| idle.as_secs_f64())
    }

    fn end(&self) {
        if let Some(outlet) = self.get() {
            outlet.end();
        }
    }
}

pub fn init(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let class = module.define_class("Outlet", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Outlet::new, 5))?;
    class.define_method("dead?", method!(Outlet::is_dead, 0))?;
    class.define_method("idle_for", method!(Outlet::idle_for, 0))?;
    class.define_method("end", method!(Outlet::end, 0))
}
