//! The relay of a window, which rings for clients for which the card has no doorbell page left.
//!
//! Such a client stores to a page of memory of its own, as to any doorbell page, and wakes the relay as it
//! would wake a card. A thread of the window's looks at these pages and rings the card's
//! [`RELAY_PAGE`](fpga_regs::engine::window::RELAY_PAGE) in their place.
//!
//! A client's store is only a hint: the relay reads the records of the queues that the client itself has behind a
//! changed slot, and rings for those that have news, with values of its own (`RelayBell`). So no client rings for a
//! queue of another's, a store without news costs the card nothing, and no two clients' stores can hide each
//! other.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fpga_regs::engine::doorbell::{self, ArmWord, QueueKind, record, slot_value};
use hostmem::fdpass::duplicate;
use hostmem::{
    Access, AsleepWord, DoorbellPage, EventFd, HandOver, PAGE_BYTES, Record, SharedMapping,
    WakeFor, Waker, memfd,
};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::backend::{DoorbellGrant, WakeGrant};
use crate::error::Error;

/// Queues of a client's that are looked at before the next client has its turn.
const TURN: usize = 256;
/// Commands that are executed between two rounds of all clients.
const COMMANDS: usize = 256;
/// How long it waits where the kernel does not let it sleep.
const PAUSE: Duration = Duration::from_millis(100);
/// Byte offset of the asleep word in the relay's page.
const ASLEEP: u32 = 0;

/// A client's ring memory, where the records of its queues are.
#[derive(Clone, Debug)]
pub struct ClientRings {
    /// The memory.
    pub memory: Arc<SharedMapping>,
    /// The card's address of its first byte.
    pub iova: u64,
}

/// A queue's kind and number.
type Name = (QueueKind, u32);

/// A relay, and the thread that runs it until this is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    /// `None` when the thread is to end.
    commands: Option<Sender<Command>>,
    /// Wakes the thread.
    waker: Waker,
    /// The set that the thread sleeps on.
    epoll: Arc<Epoll>,
    /// Page with the asleep word, which clients can only read.
    words: OwnedFd,
    /// A client's grant of the card itself.
    card: WakeGrant,
    clients: HashMap<u8, ClientRings>,
    queues: HashMap<Name, Known>,
    thread: Option<JoinHandle<()>>,
}

/// A queue that is relayed.
#[derive(Debug)]
struct Known {
    client: u8,
    /// Whether a receive queue is one QP's, with that one's generation.
    is_private: bool,
    /// The private receive queue of a send queue's QP.
    receives: Option<u32>,
}

/// A command to the thread.
#[derive(Debug)]
enum Command {
    Join(u8, RelayedClient),
    Leave(u8),
    Add(u8, Queue),
    Remove(u8, Name),
    /// It begins anew with that generation.
    Renew(u8, Name, u8),
    /// It is somewhere else, and one resize older.
    Move(u8, Name, Record),
}

/// The state of the thread.
struct Forwarder {
    clients: BTreeMap<u8, RelayedClient>,
    commands: Receiver<Command>,
    epoll: Arc<Epoll>,
    /// Signalled behind a command while the thread sleeps; kept because the epoll set does not own it.
    _kick: EventFd,
    card: RelayBell,
    card_waker: Waker,
    ended: bool,
}

/// The card's page, where queues of several clients have the same slot.
///
/// A client may move its indices to and fro. Were they stored as they are, a value that the card has seen
/// could overwrite that of another client's queue that it has not seen, and hide it. So the stored value counts
/// stores, and never repeats.
struct RelayBell {
    page: DoorbellPage,
    stores: u32,
}

/// A client that is relayed.
#[derive(Debug)]
struct RelayedClient {
    /// The page that it stores to.
    page: DoorbellPage,
    wake: EventFd,
    /// The slots with queues behind them, by their numbers.
    slots: BTreeMap<usize, Slot>,
    /// Where its next turn begins.
    next: usize,
}

#[derive(Debug)]
struct Slot {
    /// The value when it was last looked at.
    seen: u64,
    queues: Vec<Queue>,
}

#[derive(Debug)]
struct Queue {
    name: Name,
    generation: u8,
    record: Record,
    /// The index that the card was told last; `None` before it was told any since the queue began anew.
    told: Option<u32>,
}

/// The work for which the card is to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Rung {
    #[default]
    Nothing,
    Receives,
    Anything,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// Whether there was a doorbell to look at.
    worked: bool,
    rung: Rung,
}

impl Relay {
    /// Begins to relay, by a doorbell page of the card's that was granted as to a client.
    ///
    /// # Errors
    /// [`Error::Backend`] for a page of another kind than a software card's, and where there is no
    /// thread; [`Error::Memory`] and [`Error::Os`] when memory or descriptors run out.
    pub(crate) fn start(engine: &str, grant: &DoorbellGrant) -> Result<Self, Error> {
        let DoorbellGrant::Page { page, wake } = grant else {
            return Err(Error::Backend(format!("{engine}: its doorbells cannot be relayed")));
        };
        let (eventfd, thread_page) = (copy(&wake.eventfd)?, copy(&wake.thread_page)?);
        let card = WakeGrant { eventfd, thread_page, ..*wake };
        let asleep = SharedMapping::new(card.thread_page.as_fd(), 0, PAGE_BYTES, Access::ReadOnly)?;
        let asleep = AsleepWord::new(Arc::new(asleep), card.asleep as usize)?;
        let event = copy(&card.eventfd)?;
        let (words, mapping) = memfd::create_read_only_for_others("balboad-relay", PAGE_BYTES)?;
        let own = AsleepWord::new(Arc::new(mapping), ASLEEP as usize)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(Error::os("epoll_create1 of a relay"))?;
        let (epoll, kick) = (Arc::new(epoll), EventFd::new()?);
        listen(&epoll, &kick)?;
        let waker = Waker::new(own.clone(), kick.try_clone()?);
        let (sender, commands) = mpsc::channel();
        let forwarder = Forwarder {
            clients: BTreeMap::new(),
            commands,
            epoll: Arc::clone(&epoll),
            _kick: kick,
            card: RelayBell { page: map_page(page)?, stores: 0 },
            card_waker: Waker::new(asleep, EventFd::from_received(event)),
            ended: false,
        };
        let thread = thread::Builder::new()
            .name("relay".into())
            .spawn(move || forwarder.run(&own))
            .map_err(|error| Error::Backend(format!("{engine}: a thread to relay: {error}")))?;
        let (clients, queues) = Default::default();
        let (commands, thread) = (Some(sender), Some(thread));
        Ok(Self { commands, waker, epoll, words, card, clients, queues, thread })
    }

    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A thread that has ended has panicked and said so.
            let _ = commands.send(command);
            let _ = self.waker.wake_if_asleep();
        }
    }

    /// Begins to relay for a client.
    ///
    /// # Errors
    /// [`Error::Memory`] and [`Error::Os`] when memory or descriptors run out.
    pub(crate) fn join(&mut self, number: u8, rings: ClientRings) -> Result<DoorbellGrant, Error> {
        let memory = memfd::create("balboad-relayed", PAGE_BYTES)?;
        let (page, wake) = (map_page(&memory)?, EventFd::new()?);
        let relay = WakeGrant {
            eventfd: wake.try_clone()?.into_fd(),
            thread_page: copy(&self.card.thread_page)?,
            asleep: ASLEEP,
            ..self.card
        };
        let grant = DoorbellGrant::Relay { page: memory, words: copy(&self.words)?, relay };
        listen(&self.epoll, &wake)?;
        self.clients.insert(number, rings);
        let client = RelayedClient { page, wake, slots: BTreeMap::new(), next: 0 };
        self.tell(Command::Join(number, client));
        Ok(grant)
    }

    /// Stops relaying for a client; whether it was the last one.
    pub(crate) fn leave(&mut self, number: u8) -> bool {
        self.clients.remove(&number);
        self.queues.retain(|_, known| known.client != number);
        self.tell(Command::Leave(number));
        self.clients.is_empty()
    }

    /// A queue of a client's was made, whose ring memory the card sees there.
    ///
    /// # Errors
    /// [`Error::Memory`] where its ring is not in its client's ring memory.
    pub(crate) fn add(
        &mut self,
        client: u8,
        name: Name,
        ring: u64,
        is_private: bool,
    ) -> Result<(), Error> {
        let Some(rings) = self.clients.get(&client) else { return Ok(()) };
        let record = rings.record(ring)?;
        self.queues.insert(name, Known { client, is_private, receives: None });
        self.tell(Command::Add(client, Queue { name, generation: 0, record, told: None }));
        Ok(())
    }

    /// A queue is gone.
    pub(crate) fn remove(&mut self, name: Name) -> Result<(), Error> {
        if let Some(known) = self.queues.remove(&name) {
            self.tell(Command::Remove(known.client, name));
        }
        Ok(())
    }

    /// A QP was made with a receive queue.
    pub(crate) fn add_qp(
        &mut self,
        client: u8,
        qpn: u32,
        ring: u64,
        rqn: u32,
    ) -> Result<(), Error> {
        let name = (QueueKind::Send, qpn);
        self.add(client, name, ring, false)?;
        let receives = self.queues.get(&(QueueKind::Receive, rqn)).filter(|known| known.is_private);
        let receives = receives.map(|_| rqn);
        if let Some(known) = self.queues.get_mut(&name) {
            known.receives = receives;
        }
        Ok(())
    }

    /// A QP, and its own receive queue, have that generation now.
    pub(crate) fn renew_qp(&self, qpn: u32, generation: u8) {
        let Some(known) = self.queues.get(&(QueueKind::Send, qpn)) else { return };
        let receives = known.receives.map(|rqn| (QueueKind::Receive, rqn));
        for name in [(QueueKind::Send, qpn)].into_iter().chain(receives) {
            self.tell(Command::Renew(known.client, name, generation));
        }
    }

    /// A completion queue was moved to another ring.
    ///
    /// # Errors
    /// [`Error::Memory`] where that is not in its client's ring memory.
    pub(crate) fn move_cq(&self, cqn: u32, ring: u64) -> Result<(), Error> {
        let name = (QueueKind::Completion, cqn);
        let Some(known) = self.queues.get(&name) else { return Ok(()) };
        let Some(rings) = self.clients.get(&known.client) else { return Ok(()) };
        self.tell(Command::Move(known.client, name, rings.record(ring)?));
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.waker.signal();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Forwarder {
    fn run(mut self, asleep: &AsleepWord) {
        let (hand_over, mut worked) = (HandOver::new(), Instant::now());
        while !self.ended {
            if self.round() {
                worked = Instant::now();
                continue;
            }
            // A client that rings meanwhile is spared the system call, and waits for no wake-up.
            if hand_over.looks_again(worked.elapsed()) {
                continue;
            }
            // The page is ours and can be written, so neither call fails.
            let _ = asleep.prepare_sleep(WakeFor::All);
            if !self.round() && !self.ended {
                self.sleep();
            }
            let _ = asleep.awake();
        }
    }

    fn sleep(&self) {
        let mut events = [EpollEvent::empty(); 16];
        match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                log::error!("a relay cannot sleep: {errno}");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Executes commands, gives each client its turn, and wakes the card if it was rung; whether there
    /// was anything to do.
    fn round(&mut self) -> bool {
        let mut all = Turn::default();
        for _ in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => {
                    all.worked = true;
                    all.rung = all.rung.max(self.execute(command));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    break;
                }
            }
        }
        for client in self.clients.values_mut() {
            let turn = client.turn(&mut self.card);
            all.worked |= turn.worked;
            all.rung = all.rung.max(turn.rung);
        }
        let is_needed = match all.rung {
            Rung::Nothing => false,
            Rung::Receives => self.card_waker.is_needed_for_receives(),
            Rung::Anything => self.card_waker.is_needed(),
        };
        if is_needed {
            // It fails only where the card is gone, which clients see for themselves.
            let _ = self.card_waker.signal();
        }
        all.worked
    }

    fn execute(&mut self, command: Command) -> Rung {
        let Self { clients, card, epoll, .. } = self;
        match command {
            Command::Join(number, client) => {
                clients.insert(number, client);
                Rung::Nothing
            }
            Command::Leave(number) => {
                if let Some(client) = clients.remove(&number) {
                    // Its process may hold it still, and so keep it in the set.
                    let _ = epoll.delete(client.wake.as_fd());
                }
                Rung::Nothing
            }
            Command::Add(number, queue) => {
                clients.get_mut(&number).map_or(Rung::Nothing, |client| client.add(queue, card))
            }
            Command::Remove(number, name) => {
                if let Some(client) = clients.get_mut(&number) {
                    client.remove(name);
                }
                Rung::Nothing
            }
            Command::Renew(number, name, generation) => {
                let queue = clients.get_mut(&number).and_then(|client| client.queue(name));
                let queue = queue.filter(|queue| queue.generation != generation);
                queue.map_or(Rung::Nothing, |queue| {
                    queue.generation = generation;
                    queue.begin_anew(card)
                })
            }
            Command::Move(number, name, record) => {
                let queue = clients.get_mut(&number).and_then(|client| client.queue(name));
                queue.map_or(Rung::Nothing, |queue| {
                    queue.generation = queue.generation.wrapping_add(1);
                    queue.record = record;
                    queue.begin_anew(card)
                })
            }
        }
    }
}

impl RelayBell {
    fn ring(&mut self, (kind, number): Name, generation: u8) {
        self.stores = self.stores.wrapping_add(1);
        let value = slot_value(number, generation, self.stores);
        self.page.ring(doorbell::slot(kind, number), value);
    }
}

impl RelayedClient {
    /// Takes a queue in, for which its program may have rung already.
    fn add(&mut self, mut queue: Queue, card: &mut RelayBell) -> Rung {
        let index = queue.slot();
        let seen = self.page.read(index);
        let slot = self.slots.entry(index).or_insert(Slot { seen, queues: Vec::new() });
        let rung = queue.begin_anew(card);
        slot.queues.push(queue);
        rung
    }

    fn remove(&mut self, name: Name) {
        let index = doorbell::slot(name.0, name.1);
        let Some(slot) = self.slots.get_mut(&index) else { return };
        slot.queues.retain(|queue| queue.name != name);
        if slot.queues.is_empty() {
            self.slots.remove(&index);
        }
    }

    fn queue(&mut self, name: Name) -> Option<&mut Queue> {
        let slot = self.slots.get_mut(&doorbell::slot(name.0, name.1))?;
        slot.queues.iter_mut().find(|queue| queue.name == name)
    }

    /// Rings for its queues that have news, behind slots that changed, as many as have room in a turn.
    fn turn(&mut self, card: &mut RelayBell) -> Turn {
        let (mut turn, mut heard) = (Turn::default(), 0usize);
        let begin = std::mem::take(&mut self.next);
        // From where the last turn ended, once around.
        for part in [begin..usize::MAX, 0..begin] {
            for (index, slot) in self.slots.range_mut(part) {
                let value = self.page.read(*index);
                if value == slot.seen {
                    continue;
                }
                if heard >= TURN {
                    self.next = *index;
                    return turn;
                }
                slot.seen = value;
                turn.worked = true;
                heard = heard.saturating_add(slot.queues.len());
                for queue in &mut slot.queues {
                    turn.rung = turn.rung.max(queue.ring(card));
                }
            }
        }
        turn
    }
}

impl ClientRings {
    /// The record of a queue whose ring memory the card sees there.
    fn record(&self, ring: u64) -> Result<Record, Error> {
        let offset = usize::try_from(ring.wrapping_sub(self.iova)).unwrap_or(usize::MAX);
        Ok(Record::new(Arc::clone(&self.memory), offset)?)
    }
}

impl Queue {
    fn slot(&self) -> usize {
        doorbell::slot(self.name.0, self.name.1)
    }

    /// The index in its record: of the producer, or of the arming.
    fn index(&self) -> u32 {
        match self.name.0 {
            QueueKind::Send | QueueKind::Receive => {
                self.record.load_acquire_u32(record::PRODUCER / 4)
            }
            QueueKind::Completion => {
                let word = self.record.load_acquire_u64(record::ARM / 8);
                ArmWord::decode(word).arm_sequence
            }
        }
    }

    /// It is new, or begins again: its program may have rung for it before that was known here, or its
    /// record may still have the index of before.
    fn begin_anew(&mut self, card: &mut RelayBell) -> Rung {
        self.told = Some(0);
        let rung = self.ring(card);
        self.told = None;
        rung
    }

    /// Rings for it if its record has news.
    fn ring(&mut self, card: &mut RelayBell) -> Rung {
        let index = self.index();
        if self.told.replace(index) == Some(index) {
            return Rung::Nothing;
        }
        card.ring(self.name, self.generation);
        match self.name.0 {
            QueueKind::Receive => Rung::Receives,
            QueueKind::Send | QueueKind::Completion => Rung::Anything,
        }
    }
}

/// Waits for a counter from now on. It is never read: only a new signal counts, so a client whose counter is
/// full is not heard any more, and delays no other.
fn listen(epoll: &Epoll, event: &EventFd) -> Result<(), Error> {
    let interest = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
    epoll.add(event.as_fd(), interest).map_err(Error::os("epoll_ctl of a relay"))
}

fn copy(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    duplicate(fd.as_fd()).map_err(Error::os("dup of a descriptor"))
}

fn map_page(page: &OwnedFd) -> Result<DoorbellPage, Error> {
    let mapping = SharedMapping::new(page.as_fd(), 0, PAGE_BYTES, Access::ReadWrite)?;
    Ok(DoorbellPage::new(Arc::new(mapping), 0)?)
}

#[cfg(test)]
mod tests;
