//! The thread that serves a card's interrupts, apart from the requests of clients.
//!
//! A card that runs in this process serves the usual ones, of completions, on its own thread: no other is woken for
//! them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hostmem::EventFd;

use crate::error::Error;
use crate::shell::Shell;

/// How long nothing is waited for where the kernel does not let it.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that serves the interrupts of one card until this is dropped.
pub struct Interrupts {
    shell: Arc<Shell>,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    /// Starts to serve the interrupts of a card.
    ///
    /// # Errors
    /// [`Error::Memory`] and [`Error::Os`] when descriptors run out, [`Error::Backend`] when threads
    /// do.
    pub fn serve(shell: &Arc<Shell>) -> Result<Self, Error> {
        let stop = EventFd::new()?;
        shell.serve_apart(stop.as_fd())?;
        let mut interrupts = Self { shell: Arc::clone(shell), stop, thread: None };
        let at_once = Arc::downgrade(shell);
        let serve = move |vector, isr| {
            at_once.upgrade().is_some_and(|shell| shell.serve_at_once(vector, isr))
        };
        shell.backend().serve_by(Some(Box::new(serve)));
        let shell = Arc::clone(shell);
        let thread = thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || {
                while let Err(error) = shell.serve() {
                    log::error!("interrupts are not served for a moment: {error}");
                    thread::sleep(PAUSE);
                }
            })
            .map_err(|error| Error::Backend(format!("a thread for interrupts: {error}")))?;
        interrupts.thread = Some(thread);
        Ok(interrupts)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.shell.backend().serve_by(None);
        let _ = self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        self.shell.serve_apart_no_more();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fpga_regs::coyote::pci::Bar;
    use fpga_regs::coyote::tlb::Geometry;
    use fpga_regs::coyote::vfpga::Bank;
    use fpga_regs::coyote::xdma::{self, VectorMap};
    use fpga_regs::engine::event::{Event, EventType};
    use softcard::Unfounded;

    use super::*;
    use crate::admin::AdminEngine;
    use crate::backend::CardBackend;
    use crate::engine::Engine as _;
    use crate::iova::Arena;
    use crate::shell::SpacesOfWindows;
    use crate::soft::{self, SoftCard};

    #[test]
    fn a_software_card_tells_completions_on_the_thread_that_runs_it() {
        let (_runtime, cards) = soft::start(&[SoftCard::default()], &[], None, vec![], 0).unwrap();
        let [card] = <[_; 1]>::try_from(cards).unwrap();
        let handle = card.handle.clone();
        let vectors = VectorMap { first: 0, second: 1, third: 2, fourth: 3 }.encode();
        card.write32(Bar::Xdma, xdma::INTERRUPT_BLOCK + xdma::USER_VECTOR_MAP.at(0), vectors);
        let enable = xdma::INTERRUPT_BLOCK + xdma::USER_INTERRUPT_ENABLE_SET;
        card.write32(Bar::Xdma, enable, xdma::USER_INTERRUPT_VFPGAS);
        let backend: Arc<dyn CardBackend> = Arc::new(card);
        let large = Geometry { page_bits: 21, order: 9, ways: 2 };
        let translator = Arc::new(SpacesOfWindows::new(large, 2));
        let shell = Arc::new(Shell::new(0, backend, Bank::Plain, 2, translator));
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let mut engine = AdminEngine::start(0, Arc::clone(&shell), 1, &mut arena).unwrap();
        let (tell, told) = mpsc::channel();
        engine.listen(Arc::new(move |event: Event| {
            let is_apart = thread::current().name() == Some("interrupts");
            tell.send((event.number, is_apart)).unwrap();
        }));
        let interrupts = Interrupts::serve(&shell).unwrap();
        let report = |number| {
            let event = Event { kind: EventType::Completion, number, ..Event::default() };
            handle.report(1, Unfounded::Event(0, event));
            let (heard, is_apart) = told.recv().unwrap();
            assert_eq!(heard, number);
            is_apart
        };
        // The other thread may be at the interrupts of the engine's start, and serves what comes meanwhile.
        assert!((0..1000).any(|number| !report(number)));
        drop(interrupts);
        handle.report(
            1,
            Unfounded::Event(0, Event { kind: EventType::Completion, ..Event::default() }),
        );
        assert!(told.try_recv().is_err(), "a handler is left");
    }
}
