//! A thread that waits for asynchronous events, beside the one that uses the device.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};

use super::{AsyncEvent, Context};

/// The thread's part of a context: the calls that wait for its events, and no more.
struct Watched(&'static Context);

// SAFETY: the thread only calls `take_event`, which touches no count of references, and
// ibv_get_async_event and ibv_ack_async_event may be called by any thread. The context is never
// closed.
unsafe impl Send for Watched {}

impl Watched {
    fn events(&self) -> impl Iterator<Item = AsyncEvent> {
        std::iter::from_fn(|| self.0.take_event().ok())
    }
}

impl Context {
    /// Starts a thread that is in `ibv_get_async_event` for as long as the process lives, and sends the events. The
    /// device stays open until then.
    pub fn watch(self: &Rc<Self>) -> Receiver<AsyncEvent> {
        // SAFETY: one reference is leaked, so the context is there for as long as the process.
        let watched = Watched(unsafe { &*Rc::into_raw(Rc::clone(self)) });
        let (told, heard) = channel();
        std::thread::spawn(move || {
            let watched = watched;
            for event in watched.events() {
                // Nobody need listen: the events are taken all the same.
                let _ = told.send(event);
            }
        });
        heard
    }
}
