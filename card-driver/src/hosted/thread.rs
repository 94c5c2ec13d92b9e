//! The thread that runs the engines of a card.

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError, Weak, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fpga_regs::engine::window::FATAL_RING_UNREACHABLE;
use hostmem::{AsleepWord, Liveness, WakeFor};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;

use super::core::Core;
use super::{ASLEEP, LIVENESS, Shared, WORKED};
use crate::backend::GrantKind;
use crate::error::Error;
use crate::lock::lock;
use crate::shell::Shell;

/// How long the thread sleeps behind work, with posts out.
const FIRST_LOOK: u64 = 20_000;
/// How long it comes to sleep with posts out: by so much the end of one is told late at most, where the card was slow.
const LAST_LOOK: u64 = 1_000_000;
/// The same while parts of messages move without slots, of which each step is waited for.
const LAST_LOOK_AT_WINDOWS: u64 = 100_000;
/// How late, in nanoseconds, the kernel may wake it so as to wake others with it.
const TIMER_SLACK: u64 = 1;

/// Starts the thread; on return its life can be seen in its page.
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let (started, outcome) = mpsc::sync_channel(1);
    let ours = Arc::clone(shared);
    let run = move || {
        let prepared = (|| -> hostmem::Result<_> {
            let life = Liveness::hold(Arc::clone(&ours.page), LIVENESS as usize)?;
            Ok((life, AsleepWord::new(Arc::clone(&ours.page), ASLEEP as usize)?))
        })();
        match prepared {
            Ok((_life, asleep)) => {
                let _ = started.send(Ok(()));
                Runner { shared: &ours, asleep, worked: 0, look: FIRST_LOOK, put_off: false }.run();
            }
            Err(error) => drop(started.send(Err(error))),
        }
    };
    let name = format!("engine{}", shared.card);
    let thread = Builder::new().name(name).spawn(run);
    let no_thread = |error: std::io::Error| {
        Error::Backend(format!("a thread for the engines of balboa{}: {error}", shared.card))
    };
    let thread = thread.map_err(no_thread)?;
    outcome.recv().map_err(|_| Error::Backend("the engines' thread ended".into()))??;
    Ok(thread)
}

struct Runner<'a> {
    shared: &'a Shared,
    asleep: AsleepWord,
    /// Nanoseconds of work.
    worked: u64,
    /// How long it sleeps next with posts out.
    look: u64,
    /// Whether a step was put off that no signal wakes it for.
    put_off: bool,
}

impl Runner<'_> {
    fn run(&mut self) {
        if let Err(errno) = prctl::set_timerslack(TIMER_SLACK) {
            log::debug!("the engines' thread has coarse timers: {errno}");
        }
        while !self.shared.end.load(Ordering::Acquire) {
            let begun = self.shared.now();
            if self.round() {
                self.look = FIRST_LOOK;
                self.count(begun);
                continue;
            }
            // The page is ours and can be written, so neither call fails.
            let _ = self.asleep.prepare_sleep(WakeFor::All);
            if !self.round() && !self.shared.end.load(Ordering::Acquire) {
                self.sleep();
            }
            let _ = self.asleep.awake();
        }
    }

    /// Counts the time that the thread has worked, for clients, which read it modulo 2^32.
    fn count(&mut self, begun: u64) {
        self.worked = self.worked.wrapping_add(self.shared.now().saturating_sub(begun));
        let microseconds = self.worked.wrapping_div(1000) & u64::from(u32::MAX);
        let word = u32::try_from(microseconds).unwrap_or_default();
        let _ = self.shared.page.store_relaxed_u32(WORKED as usize, word);
    }

    /// A turn of every engine; `true` if there was anything to do.
    fn round(&mut self) -> bool {
        let mut did = false;
        self.put_off = false;
        for (vfpga, core) in (0u8..).zip(&self.shared.cores) {
            // The thread that ends this one waits for it, which may wait for the card once for each vFPGA.
            if self.shared.end.load(Ordering::Acquire) {
                break;
            }
            let (interrupt, lost, links, resets, (opened, ended)) = {
                let mut core = lock(core);
                did |= core.turn(self.shared.now());
                let Core { engine, carrier, windows, resets, .. } = &mut *core;
                let links = (carrier.connected_link(), carrier.ended_link());
                (engine.take_interrupt(), carrier.posts.lost(), links, *resets, windows.due())
            };
            if interrupt {
                self.shared.interrupt(vfpga);
            }
            if opened {
                self.put_off |= !self.fill(vfpga, resets);
            }
            if ended {
                let is_shut = self.shut(vfpga, resets);
                did |= is_shut;
                self.put_off |= !is_shut;
            }
            if let Some(ctid) = lost {
                let is_buried = self.bury(vfpga, ctid, resets);
                did |= is_buried;
                self.put_off |= !is_buried;
            }
            let (connected, ended) = links;
            if let (Some(number), Some(shell)) = (connected, self.shell()) {
                shell.translator().surface(&shell, vfpga);
                lock(core).carrier.open_link(number);
                did = true;
            }
            if let Some(qpn) = ended {
                let ended = self.end_space(vfpga, qpn, resets);
                let is_released = ended.map(|mut core| core.carrier.release_link(qpn)).is_some();
                did |= is_released;
                self.put_off |= !is_released;
            }
        }
        did
    }

    /// Fails a QP whose peer is silent, once the card reaches no memory for it any more: transfers under way may land
    /// long after its program has been told. `true` once it is done.
    fn bury(&self, vfpga: u8, ctid: u8, resets: u64) -> bool {
        let Some(core) = self.shared.core(vfpga) else { return false };
        let qpn = lock(core).carrier.posts.qpn(ctid);
        let ended = self.end_space(vfpga, qpn, resets);
        ended.map(|mut core| core.carrier.posts.bury(ctid)).is_some()
    }

    /// Gives the card the pages that were opened for parts of messages; `false` where that is to be tried again.
    fn fill(&self, vfpga: u8, resets: u64) -> bool {
        let Some(_forgetting) = self.forgetting() else { return false };
        let is_it = self.shared.core(vfpga).is_some_and(|core| lock(core).resets == resets);
        if let Some(shell) = self.shell().filter(|_| is_it) {
            shell.translator().fill(&shell, vfpga);
        }
        true
    }

    /// Makes the card forget the pages that were opened for parts of messages that have moved; those wait for that.
    /// `true` once it has.
    fn shut(&self, vfpga: u8, resets: u64) -> bool {
        let has_shell = self.shell().is_some();
        has_shell
            && self
                .forget(vfpga, resets, "of messages", |it| it.translator().shut(it, vfpga))
                .is_some()
    }

    fn shell(&self) -> Option<Arc<Shell>> {
        self.shared.shell.get().and_then(Weak::upgrade)
    }

    /// Ends the address space of a QP without posts, as [`Self::forget`].
    fn end_space(&self, vfpga: u8, qpn: u32, resets: u64) -> Option<MutexGuard<'_, Core>> {
        let whose = format!("of QP {qpn}");
        self.forget(vfpga, resets, &whose, |it| it.translator().end_space(it, vfpga, qpn, false))
    }

    /// A guard that keeps the card from being reset while it is held: a reset waits for this thread's step. `None`
    /// while a reset is under way.
    fn forgetting(&self) -> Option<MutexGuard<'_, ()>> {
        match self.shared.forgetting.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes the card forget memory; an engine whose card does not confirm that in the end stops. `None` where that is
    /// to be tried again, for the card may confirm late or is being reset; or where it was reset meanwhile: numbers
    /// have other owners then.
    fn forget(
        &self,
        vfpga: u8,
        resets: u64,
        whose: &str,
        forget: impl FnOnce(&Shell) -> Result<(), Error>,
    ) -> Option<MutexGuard<'_, Core>> {
        let core = || self.shared.core(vfpga).map(lock).filter(|core| core.resets == resets);
        let _forgetting = self.forgetting()?;
        drop(core()?);
        let shell = self.shell();
        // Not while the core is held: a thread that unmaps pages takes the shell first, and then the core.
        let is_put_off = || shell.as_ref().is_some_and(|shell| shell.is_put_off(vfpga));
        if is_put_off() {
            return None;
        }
        let forgotten = shell.as_deref().map_or(Ok(()), forget);
        if let (Err(error), true) = (&forgotten, is_put_off()) {
            log::warn!("{error}: memory {whose} is not taken back from the card yet");
            return None;
        }
        drop(shell);
        let mut core = core()?;
        if let Err(error) = forgotten {
            let Core { engine, carrier, windows, .. } = &mut *core;
            log::error!("{error}: memory {whose} cannot be taken back from the card");
            engine.fail(self.shared.now(), FATAL_RING_UNREACHABLE, carrier);
            windows.reset();
        }
        Some(core)
    }

    /// Sleeps until a client rings, or until it is time to look at the card.
    fn sleep(&mut self) {
        let now = self.shared.now();
        let mut due = None;
        let (mut looks, mut last) = (self.put_off, LAST_LOOK);
        let rings_silently = self.shared.below.grant_kind() == GrantKind::Device;
        for core in &self.shared.cores {
            let core = lock(core);
            looks |= core.carrier.is_waiting() || (rings_silently && core.engine.has_qps());
            due = due.into_iter().chain(core.engine.next_wake()).min();
            if !core.windows.is_empty() {
                last = LAST_LOOK_AT_WINDOWS;
            }
        }
        let look = looks.then(|| now.saturating_add(self.look));
        if looks {
            self.look = self.look.saturating_mul(2).min(last);
        } else {
            self.look = FIRST_LOOK;
        }
        let until: Option<u64> = due.into_iter().chain(look).min();
        let wait = until.map(|until| Duration::from_nanos(until.saturating_sub(now)));
        let mut polled = [PollFd::new(self.shared.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, wait.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => log::error!("the engines' thread cannot wait: {errno}"),
        }
        // Edge-triggered: each event is seen once.
        let mut events = [EpollEvent::empty(); 16];
        let _ = self.shared.epoll.wait(&mut events, EpollTimeout::ZERO);
    }
}
