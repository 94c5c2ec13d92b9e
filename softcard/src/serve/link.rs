//! The client at the other end: its messages, its memory, and the order of the two when both come at once.
//!
//! The card asks for memory that it cannot reach itself with `DMA_READ` and `DMA_WRITE`, and waits
//! for the answer in the middle of its work. The client may be waiting for softcard meanwhile, and
//! QEMU answers nothing before it has its own answer. So messages that arrive then are handled at once
//! if they do not need the card; register writes are answered and executed later, in order, as posted
//! writes are; register reads are answered with what the registers held before the card began,
//! which is what a read that came a moment earlier would have seen. Where even that is impossible
//! (a read behind a write to the same registers that waits; a reset), the card's request for memory
//! is given up and counts as failed: a client that waits for ever would be worse.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga;
use fpga_regs::engine::window;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;

use super::access::{self, Snapshot};
use super::channel::{Channel, Message, Over};
use super::session::{Effect, REGION_ACCESS_BYTES, Reaction, Reply, Session};
use super::wire::{self, Header, MessageKind, command};
use crate::bus::AskedMemory;
use crate::wait::Waiter;

/// Most bytes of register writes that wait for the card.
const MAX_POSTED: usize = 1 << 20;
/// Bytes that a waiting write costs beside its data.
const POSTED_OVERHEAD: usize = 64;
/// The factor of its patience for which the card waits for the answers of one round: nothing else is looked at
/// meanwhile, nor a signal that ends it.
const ROUND: u32 = 4;

/// One client.
#[derive(Debug)]
struct ClientConnection {
    channel: Channel,
    session: Session,
    /// The file of the doorbell pages, which is handed out.
    doorbells: Rc<OwnedFd>,
}

/// The client, if there is one.
#[derive(Debug, Default)]
pub(crate) struct ClientLink {
    connection: RefCell<Option<ClientConnection>>,
    /// Why the connection is over, once it is.
    over: RefCell<Option<Over>>,
    /// The card needed memory that must be asked for.
    asked: Cell<bool>,
    /// The values of registers before the card began its present step.
    snapshot: RefCell<Snapshot>,
    /// Register writes that were answered and wait for the card.
    posted: RefCell<VecDeque<Effect>>,
    posted_bytes: Cell<usize>,
    /// A message that cannot be answered before the card is done.
    stashed: RefCell<Option<(Header, Reaction)>>,
    next_id: Cell<u16>,
    /// How long the client may take to answer a request for its memory.
    patience: Duration,
    /// How long was waited for answers in this round.
    waited: Cell<Duration>,
}

/// The part of a message's handling that is possible at once.
enum Now {
    Done,
    /// The card is needed.
    Later(Header, Reaction),
}

impl ClientLink {
    /// A link that waits that long for the client's memory.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Begins to talk to a client, which may have the file of the doorbell pages.
    pub(crate) fn open(&self, socket: OwnedFd, session: Session, doorbells: OwnedFd) {
        let channel = Channel::new(socket);
        let doorbells = Rc::new(doorbells);
        *self.connection.borrow_mut() = Some(ClientConnection { channel, session, doorbells });
        *self.over.borrow_mut() = None;
    }

    /// Ends the connection, with all requests under way.
    pub(crate) fn close(&self) {
        if let Some(mut connection) = self.connection.borrow_mut().take() {
            connection.session.close();
        }
        self.asked.set(false);
        self.posted.borrow_mut().clear();
        self.posted_bytes.set(0);
        self.stashed.borrow_mut().take();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// Why the connection is to be closed, if it is.
    pub(crate) fn over(&self) -> Option<Over> {
        self.over.borrow_mut().take()
    }

    /// Ends the connection for a reason; the first one counts.
    fn end(&self, reason: Over) {
        self.over.borrow_mut().get_or_insert(reason);
    }

    /// Whether the client must take its messages before it is listened to again.
    pub(crate) fn is_clogged(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|c| c.channel.is_clogged())
    }

    /// Wakes on other events of the client's socket; without that the connection is over.
    pub(crate) fn change_interest(&self, waiter: &Waiter, flags: EpollFlags) {
        if let Some(connection) = &*self.connection.borrow() {
            if let Err(error) = waiter.change(&connection.channel, flags) {
                self.end(Over::Unheard(error));
            }
        }
    }

    /// Calls a function with the client's session.
    pub(crate) fn with_session<T>(&self, act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.connection.borrow_mut().as_mut().map(|connection| act(&mut connection.session))
    }

    /// Sends waiting messages.
    pub(crate) fn flush(&self) {
        self.on_channel(Channel::flush);
    }

    /// The next message that needs the card, with the effect on it, or `None` when all messages are done.
    ///
    /// Messages that do not need the card are answered on the way. Each message takes one off the
    /// budget.
    pub(crate) fn next_step(&self, budget: &mut usize) -> Option<(Header, Reaction)> {
        if let Some(stashed) = self.stashed.borrow_mut().take() {
            return Some(stashed);
        }
        while *budget > 0 && !self.is_clogged() && self.over.borrow().is_none() {
            *budget = budget.saturating_sub(1);
            let message = self.on_channel(Channel::receive)??;
            if let Now::Later(header, step) = self.take_in(message) {
                return Some((header, step));
            }
        }
        None
    }

    /// Says the answer to a command, unless its sender wants none.
    pub(crate) fn answer(&self, header: &Header, outcome: Result<Reply, Errno>) {
        if header.kind == (MessageKind::Command { no_reply: true }) {
            return;
        }
        let fd = match &outcome {
            Ok(answer) if answer.doorbells => {
                let connection = self.connection.borrow();
                connection.as_ref().map(|connection| Rc::clone(&connection.doorbells))
            }
            _ => None,
        };
        let outcome = outcome.as_ref().map(|answer| answer.payload.as_slice());
        let bytes = wire::reply(header, outcome.map_err(|errno| *errno));
        self.on_channel(|channel| channel.send(bytes, fd));
    }

    /// Register writes that wait for the card, the oldest.
    pub(crate) fn next_posted(&self) -> Option<Effect> {
        let effect = self.posted.borrow_mut().pop_front()?;
        let bytes = self.posted_bytes.get().saturating_sub(weight(&effect));
        self.posted_bytes.set(bytes);
        Some(effect)
    }

    /// Whether the card may ask for memory in its next step.
    pub(crate) fn may_ask(&self) -> bool {
        self.asked.get()
    }

    /// Keeps the values of registers, for as long as the card cannot be asked.
    pub(crate) fn remember(&self, snapshot: Snapshot) {
        *self.snapshot.borrow_mut() = snapshot;
    }

    fn on_channel<T>(&self, act: impl FnOnce(&mut Channel) -> Result<T, Over>) -> Option<T> {
        let mut connection = self.connection.borrow_mut();
        match act(&mut connection.as_mut()?.channel) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.end(reason);
                None
            }
        }
    }

    /// Handles a message as far as that goes without the card.
    fn take_in(&self, Message { header, payload, fds }: Message) -> Now {
        let MessageKind::Command { .. } = header.kind else {
            log::debug!("a reply that nobody waits for: command {}", header.command);
            return Now::Done;
        };
        let step = self.with_session(|session| session.command(&header, &payload, fds));
        match step {
            Some(Reaction::Reply(answer)) => self.answer(&header, Ok(answer)),
            Some(Reaction::Refuse(errno)) => {
                log::debug!("command {} is refused: {errno}", header.command);
                self.answer(&header, Err(errno));
            }
            Some(Reaction::End(errno)) => {
                self.answer(&header, Err(errno));
                self.end(Over::Version);
            }
            Some(step) => return Now::Later(header, step),
            None => {}
        }
        Now::Done
    }

    /// Handles a message that arrives while the card waits for another; whether it can go on
    /// waiting.
    fn take_in_meanwhile(&self, message: Message) -> bool {
        let Now::Later(header, step) = self.take_in(message) else { return true };
        let step = match step {
            Reaction::Post(answer, effects) if self.has_room_for(&effects) => {
                self.answer(&header, Ok(answer));
                let added = effects.iter().map(weight).fold(0, usize::saturating_add);
                self.posted_bytes.set(self.posted_bytes.get().saturating_add(added));
                self.posted.borrow_mut().extend(effects);
                return true;
            }
            Reaction::Read { bar, offset, mut answer } => {
                let snapshot = self.snapshot.borrow();
                let data = answer.payload.get_mut(REGION_ACCESS_BYTES..).unwrap_or_default();
                let range = offset..offset.saturating_add(data.len() as u64);
                let known = !self.posted.borrow().iter().any(|e| may_change(e, bar, &range));
                if known && access::read_snapshot(&snapshot, bar, offset, data) {
                    self.answer(&header, Ok(answer));
                    return true;
                }
                Reaction::Read { bar, offset, answer }
            }
            step => step,
        };
        *self.stashed.borrow_mut() = Some((header, step));
        false
    }

    fn has_room_for(&self, effects: &[Effect]) -> bool {
        let added = effects.iter().map(weight).fold(0, usize::saturating_add);
        self.posted_bytes.get().saturating_add(added) <= MAX_POSTED
    }

    /// Asks the client, and waits; the reply's payload, or `None` when there is none to be had.
    fn ask(&self, command: u16, address: u64, count: u64, data: &[u8]) -> Option<Vec<u8>> {
        self.asked.set(true);
        if self.stashed.borrow().is_some() || self.over.borrow().is_some() {
            return None;
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let request = wire::dma_request(id, command, address, count, data);
        self.on_channel(|channel| channel.send(request, None))?;
        let begun = Instant::now();
        let all = self.patience.saturating_mul(ROUND);
        let left = all.saturating_sub(self.waited.get());
        let reason =
            if left < self.patience { Over::Slow(all) } else { Over::Silent(self.patience) };
        let deadline = begun.checked_add(left.min(self.patience))?;
        let payload = self.await_reply(id, command, deadline, reason);
        self.waited.set(self.waited.get().saturating_add(begun.elapsed()));
        payload
    }

    /// The payload of a reply; without one by the deadline the connection ends for that reason.
    fn await_reply(
        &self,
        id: u16,
        command: u16,
        deadline: Instant,
        reason: Over,
    ) -> Option<Vec<u8>> {
        loop {
            let Some(message) = self.on_channel(Channel::receive)? else {
                if !self.wait(deadline) {
                    break;
                }
                continue;
            };
            match message.header {
                Header { kind: MessageKind::Reply { error }, id: of, command: to, .. }
                    if (of, to) == (id, command) =>
                {
                    return (!error).then_some(message.payload);
                }
                _ if self.take_in_meanwhile(message) => {}
                _ => return None,
            }
            // A client that sends other messages only does not answer either.
            if Instant::now() >= deadline {
                break;
            }
        }
        self.end(reason);
        None
    }

    /// Waits until the client sends a message or takes one; false when it does neither.
    fn wait(&self, deadline: Instant) -> bool {
        let connection = self.connection.borrow();
        let Some(channel) = connection.as_ref().map(|it| &it.channel) else { return false };
        let mut flags = PollFlags::POLLIN;
        if channel.is_clogged() {
            flags |= PollFlags::POLLOUT;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let ready = poll(&mut [PollFd::new(channel.as_fd(), flags)], timeout);
        drop(connection);
        let late = matches!(ready, Ok(0)) && Instant::now() >= deadline;
        !late && self.on_channel(Channel::flush).is_some()
    }

    /// Begins another round of work, in which the client has all its time again.
    pub(crate) fn begin_round(&self) {
        self.waited.set(Duration::ZERO);
    }

    /// Whether the client was waited for in this round.
    pub(crate) fn has_waited(&self) -> bool {
        !self.waited.get().is_zero()
    }

    fn max_data(&self) -> usize {
        self.with_session(|session| session.max_data()).unwrap_or(0) as usize
    }
}

fn weight(effect: &Effect) -> usize {
    match effect {
        Effect::Write { data, .. } => data.len().saturating_add(POSTED_OVERHEAD),
        Effect::Reset => POSTED_OVERHEAD,
    }
}

/// Whether values of registers of a BAR may depend on a write that waits.
fn may_change(effect: &Effect, bar: Bar, range: &Range<u64>) -> bool {
    let Effect::Write { bar: written, offset, data } = effect else { return true };
    // A write to the XDMA core, or to a window of a vFPGA, shows in its own page only.
    let confined = match written {
        Bar::Static => false,
        Bar::Xdma => true,
        Bar::Shell => *offset >= vfpga::CONTROL_WINDOW_BASE,
    };
    let page = |at: u64| at / window::PAGE_BYTES;
    let end = offset.saturating_add(data.len() as u64);
    let apart = page(end) < page(range.start) || page(range.end) < page(*offset);
    !confined || (*written == bar && !apart)
}

impl AskedMemory for ClientLink {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let most = self.max_data();
        if most == 0 {
            return false;
        }
        let mut at = address;
        for part in into.chunks_mut(most) {
            let count = part.len() as u64;
            let payload = self.ask(command::DMA_READ, at, count, &[]);
            let Some(data) = payload.as_deref().and_then(|p| wire::dma_data(p, at, count)) else {
                return false;
            };
            part.copy_from_slice(data);
            at = at.saturating_add(count);
        }
        true
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        let most = self.max_data();
        if most == 0 {
            return false;
        }
        let mut at = address;
        for part in from.chunks(most) {
            let count = part.len() as u64;
            if self.ask(command::DMA_WRITE, at, count, part).is_none() {
                return false;
            }
            at = at.saturating_add(count);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use hostmem::memfd;

    use super::*;
    use crate::bus::Bus;
    use crate::serve::irqs::Raised;

    const PATIENCE: Duration = Duration::from_millis(20);
    const HEADER: usize = wire::HEADER_BYTES;

    /// Answers requests of eight bytes, each after half of the time there is for it.
    fn answer_late(mut client: UnixStream) {
        let mut request = [0; HEADER + 16];
        while client.read_exact(&mut request).is_ok() {
            std::thread::sleep(PATIENCE / 2);
            let mut reply = request.to_vec();
            reply.extend([7; 8]);
            let bytes = reply.len() as u32;
            reply[4..8].copy_from_slice(&bytes.to_le_bytes());
            reply[8] = 1;
            if client.write_all(&reply).is_err() {
                return;
            }
        }
    }

    #[test]
    fn a_client_that_answers_every_request_late_cannot_hold_a_round_for_ever() {
        let link = Rc::new(ClientLink::new(PATIENCE));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let asked: Rc<dyn AskedMemory> = Rc::<ClientLink>::clone(&link);
        let session = Session::new(Rc::new(Bus::default()), Raised::default(), asked, true);
        link.open(ours.into(), session, memfd::create("pages", 4096).unwrap());
        let kind = MessageKind::Command { no_reply: false };
        let header = Header { id: 1, command: command::VERSION, kind, payload: 0 };
        let proposal = b"\0\0\0\0{\"capabilities\":{\"max_data_xfer_size\":8}}\0";
        link.with_session(|session| session.command(&header, proposal, Vec::new()));
        let client = std::thread::spawn(move || answer_late(theirs));
        assert!(!link.read(0x1000, &mut [0; 8 * 64]));
        assert!(matches!(link.over(), Some(Over::Slow(_) | Over::Silent(_))));
        // In another round it has its time again.
        assert!(link.has_waited());
        link.begin_round();
        assert!(!link.has_waited());
        link.close();
        client.join().unwrap();
    }
}
