//! Posts and their ends: entries for the command queue of a vFPGA, their turns, and the counters' meaning.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fpga_regs::coyote::vfpga::{self as v, Command, CommandQueue, CompletionCounters, Stream};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::tunnel::TURNOVER;
use queue_engine::{TransportEvent, Unreachable};
use tunnel::{Key, Names, Pace};

use crate::ends::{Acceptance, Name};
use crate::exchange::Exchange;
use crate::gid::ipv4_of;
use crate::local::Local;
use crate::meeting::Meetings;
use crate::param::{
    BOUNCES, CTIDS, GAP, KEPT, LEFT_TO_OTHERS, ON_THE_WAY, PACKET, QUEUED, READS, REPEATS,
    SELECTED, SHARE, WATCHDOG,
};
use crate::space::{Meeting, Out, Qp, Queued, RequestKind, Space};

/// Why nothing is sent to a QP of another card of this process.
const NOT_READY: &str = "its peer is not in RTR or RTS, is connected to another QP, or was connected anew since they met";

/// The bank of control registers of a vFPGA.
pub trait Registers {
    /// Stores a register of 256 bits, by one store.
    fn store(&mut self, register: u64, words: [u64; 4]);

    /// Reads the 64-bit word at an offset; all ones where the card is gone.
    fn load(&mut self, register: u64) -> u64;
}

/// The places of payload in memory.
pub trait Locate {
    /// Where the bytes from `offset` on of a message of a QP lie, as the card is to address them, and how many of
    /// `length` lie there in one piece. Inline bytes are put where they stay until the `slot` is used again.
    ///
    /// # Errors
    /// [`Unreachable`] where its key is gone.
    fn locate(
        &mut self,
        qpn: u32,
        number: u64,
        offset: u32,
        length: u32,
        slot: u8,
    ) -> Result<(u64, u32), Unreachable>;
}

/// The packets in flight that the vFPGAs of a card share.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Packets on their way.
    out: Arc<AtomicU32>,
    /// Packets that dead peers keep in the card's lists.
    kept: Arc<AtomicU32>,
    /// When a dead peer was last given up.
    given_up: Arc<AtomicU64>,
    /// The peer that has answered, by the last byte of its IPv4 address: the card gives its Ethernet address to all
    /// addresses that end in the same byte, until the reset.
    homes: Arc<Mutex<BTreeMap<u8, u32>>>,
}

impl Budget {
    /// Takes packets for a QP that has `own` on their way, where a card may have `most`.
    fn take(&self, own: u8, packets: u8, most: u32) -> bool {
        if self.kept.load(Ordering::Relaxed) > KEPT {
            return false;
        }
        let left = if Self::is_share(own, packets) { 0 } else { LEFT_TO_OTHERS };
        let limit = most.saturating_sub(left);
        let more = |out: u32| out.checked_add(packets.into()).filter(|out| *out <= limit);
        self.out.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn is_share(own: u8, packets: u8) -> bool {
        u32::from(own).saturating_add(packets.into()) <= SHARE
    }

    fn give(&self, packets: u8) {
        self.out.fetch_sub(packets.into(), Ordering::Relaxed);
    }

    /// Notes that packets are no longer on their way, and that the card keeps them all the same.
    fn keep(&self, now: u64, packets: u8) {
        self.given_up.fetch_max(now, Ordering::Relaxed);
        self.give(packets);
        self.kept.fetch_add(packets.into(), Ordering::Relaxed);
    }

    fn homes(&self) -> MutexGuard<'_, BTreeMap<u8, u32>> {
        // Nobody leaves it in the middle of a change.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that a peer has answered.
    fn settle(&self, peer: u32) {
        self.homes().entry(peer as u8).or_insert(peer);
    }

    /// The other peer whose Ethernet address the card has for this one.
    pub(crate) fn in_place_of(&self, peer: u32) -> Option<u32> {
        self.homes().get(&(peer as u8)).copied().filter(|known| *known != peer)
    }
}

/// A request that a QP may post.
struct NextRequest {
    kind: RequestKind,
    /// Number of its message.
    number: u64,
    /// Bytes at most.
    most: u32,
    /// Whether its peer is in this process, and is asked whether it is ready.
    meets: bool,
}

/// How a request fails whose memory cannot be named to the card, and why: it is scattered, or gone.
fn unusable(is_scattered: bool) -> (Status, &'static str) {
    if is_scattered {
        let why = "in pieces whose lengths are no multiples of 4, which need the tunnel";
        (Status::LocalLength, why)
    } else {
        (Status::LocalProtection, "out of reach by now")
    }
}

/// The faults of a card's shell that are not known to be mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Each look-up of a window reads that of QP 0, so the WRITEs of a QP share one slot for repetitions (STOCK-41).
    pub windows: bool,
    /// A WRITE may leave without the selection of its payload if too many wait (STOCK-42).
    pub selection: bool,
}

/// The settings of a vFPGA's transport.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The vFPGA.
    pub vfpga: u8,
    /// The port's IPv4 address, as a number.
    pub ipv4: u32,
    /// The port's MAC address.
    pub mac: [u8; 6],
    /// Nanoseconds without progress after which a peer counts as dead.
    pub watchdog: u64,
    /// The key that is shared with the other end of the tunnel, by IPv4 address: peers that are not here have none.
    pub peers: Arc<BTreeMap<u32, Key>>,
    /// Peers that are RNICs, by IPv4 address: they look at keys, and take no WRITE of several packets of a published card's.
    pub rnics: Arc<BTreeSet<u32>>,
    /// The carrier of messages between QPs of the card itself, if there is one.
    pub local: Option<Local>,
    /// The table in which the cards of this process publish the QPs that take messages.
    pub meetings: Meetings,
    /// How often a card of that address was brought up before.
    pub past_lives: u32,
    /// The state of datagrams that the vFPGAs of the card share, if it offers them.
    pub datagrams: Option<Exchange>,
    /// Packets of the tunnel between two turnovers of a QP.
    pub turnover: u32,
    /// Packets get lost, so a QP has one of them out: without one behind it, no peer finds a gap and refuses later
    /// ones.
    pub lossy: bool,
    /// The faults of the card's shell that are not known to be mended.
    pub faults: Faults,
    /// Bytes of the tunnel's messages from which on they go without slots, if any do.
    pub long: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vfpga: 0,
            ipv4: 0,
            mac: [0; 6],
            watchdog: WATCHDOG,
            peers: Arc::default(),
            rnics: Arc::default(),
            local: None,
            meetings: Meetings::default(),
            past_lives: 0,
            datagrams: None,
            turnover: TURNOVER,
            lossy: false,
            faults: Faults::default(),
            long: Some(tunnel::param::LONG),
        }
    }
}

/// Counts, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTally {
    /// Posts.
    pub posts: u64,
    /// Address spaces that no QP gets before the card's reset.
    pub quarantined: u64,
    /// READ requests of the vFPGA, of eight, that never end.
    pub lost_reads: u64,
    /// Requests that were refused, since a published card cannot carry them.
    pub refused: u64,
    /// QPs that failed because the card took no post of them.
    pub stuck: u64,
    /// When a QP was given up last that got no answer.
    pub unanswered: u64,
    /// When anything was answered last.
    pub answered: u64,
}

/// The QPs of a vFPGA, and their messages in flight.
#[derive(Debug)]
pub struct Posts<R> {
    pub(crate) registers: R,
    pub(crate) settings: Settings,
    pub(crate) spaces: Vec<Space>,
    pub(crate) budget: Budget,
    /// The space whose turn it is.
    turn: u8,
    /// READ requests out, those of dead peers, too.
    reads: u8,
    /// Nothing more of programs' memory is posted before the card's reset.
    halted: bool,
    pub(crate) gids: Vec<Option<queue_engine::LocalGid>>,
    pub(crate) frees: u64,
    events: VecDeque<TransportEvent>,
    /// When the counters were last looked at.
    pub(crate) looked: u64,
    pub(crate) tally: EngineTally,
    /// Why the last command was refused.
    pub(crate) reason: Option<String>,
}

/// The QP of an address space of a vFPGA.
fn qpn_of(vfpga: u8, ctid: u8) -> u32 {
    u32::from(vfpga) << 6 | u32::from(ctid)
}

/// The outcome of an attempt to post for a space.
enum PostOutcome {
    Posted,
    Nothing,
    /// The queue is full.
    Full,
}

impl<R: Registers> Posts<R> {
    /// The transport of a vFPGA after the card's reset.
    pub fn new(registers: R, settings: Settings, budget: Budget) -> Self {
        let kept = |ctid: u8| settings.meetings.kept(settings.ipv4, qpn_of(settings.vfpga, ctid));
        let spaces = (0..CTIDS).map(|ctid| Space { kept: kept(ctid), ..Space::default() });
        let spaces = spaces.collect();
        Self {
            registers,
            settings,
            spaces,
            budget,
            turn: 0,
            reads: 0,
            halted: false,
            gids: vec![None; 16],
            frees: 0,
            events: VecDeque::new(),
            looked: 0,
            tally: EngineTally::default(),
            reason: None,
        }
    }

    /// Counts, for people.
    #[must_use]
    pub fn tally(&self) -> EngineTally {
        self.tally
    }

    /// Takes the reason for which the last command was refused, where there is one to be told.
    pub fn take_reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    /// The QP of an address space.
    #[must_use]
    pub fn qpn(&self, ctid: u8) -> u32 {
        qpn_of(self.settings.vfpga, ctid)
    }

    /// The address space of a QP; `None` where that is another vFPGA's.
    #[must_use]
    pub fn ctid(&self, qpn: u32) -> Option<u8> {
        (qpn >> 6 == u32::from(self.settings.vfpga)).then_some((qpn & 0x3f) as u8)
    }

    /// The name of a QP for other cards of this process.
    pub(crate) fn name(&self, qpn: u32) -> Name {
        (self.settings.ipv4, qpn)
    }

    /// Notes that the card is about to be told to ask anew for all pages that led to memory without an owner, as those
    /// of QPs that were connected; then [`Posts::surfaced`] is due.
    pub fn surface(&mut self, is_clear: impl Fn(u8) -> bool) {
        for ctid in (0..CTIDS).filter(|ctid| is_clear(*ctid)) {
            match self.meeting(ctid) {
                Some(it) if *it == Meeting::Connected => *it = Meeting::Surfacing,
                _ => {}
            }
        }
    }

    /// Opens these QPs to their peers' packets, for the card was told.
    pub fn surfaced(&mut self) {
        for ctid in 0..CTIDS {
            if self.meeting(ctid).is_some_and(|it| *it == Meeting::Surfacing) {
                self.open(ctid);
            }
        }
    }

    /// How far the QP of an address space has come that meets a peer of this process.
    fn meeting(&mut self, ctid: u8) -> Option<&mut Meeting> {
        self.spaces.get_mut(usize::from(ctid))?.qp.as_mut()?.meeting.as_mut()
    }

    /// Lets the QP of an address space take its peer's packets, if the peer waits for that.
    pub(crate) fn open(&mut self, ctid: u8) {
        if let Some(meeting) = self.meeting(ctid) {
            *meeting = Meeting::Open;
            let name = self.name(self.qpn(ctid));
            self.settings.meetings.ends(|ends| ends.open(name));
        }
    }

    /// Whether the peer takes the packets of the QP of an address space, as far as this process knows.
    pub(crate) fn acceptance(&self, ctid: u8) -> Acceptance {
        let space = self.spaces.get(usize::from(ctid));
        match space.and_then(|space| space.qp.as_ref()?.meeting) {
            Some(_) => {
                self.settings.meetings.ends(|ends| ends.acceptance(self.name(self.qpn(ctid))))
            }
            None => Acceptance::Open,
        }
    }

    /// Whether packets of another QP of this process may be on their way to this one, or to a former one with its
    /// number.
    #[must_use]
    pub fn is_sent_to(&self, qpn: u32) -> bool {
        self.settings.meetings.ends(|ends| ends.is_sent_to(self.name(qpn)))
    }

    /// Posts bytes of the tunnel's, which lie at `local` until their end is told: `false` where the QP cannot.
    pub(crate) fn post(
        &mut self,
        now: u64,
        ctid: u8,
        local: u64,
        remote: u64,
        length: u32,
    ) -> bool {
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else { return false };
        if space.lost.is_some() || space.closed {
            return false;
        }
        let Some(qp) = &mut space.qp else { return false };
        if qp.messages.is_empty() {
            space.progress = now;
        }
        let (posted, failed, staged) = (0, None, Some(local));
        qp.messages.push_back(Queued { remote, length, posted, failed, staged });
        qp.next = qp.next.wrapping_add(1);
        true
    }

    /// Whether posts of a QP are out that will end.
    pub(crate) fn is_out(&self, qpn: u32) -> bool {
        let space = self.ctid(qpn).and_then(|ctid| self.spaces.get(usize::from(ctid)));
        space.is_some_and(|space| !space.out.is_empty() && space.lost.is_none())
    }

    /// Whether there is a tunnel, if only between the card's own QPs.
    #[must_use]
    pub fn has_tunnel(&self) -> bool {
        self.settings.datagrams.is_some()
    }

    /// The names of the two ends of a QP's tunnel, if it has one.
    pub(crate) fn names(&self, ctid: u8) -> Option<Names> {
        self.spaces.get(usize::from(ctid))?.qp.as_ref()?.tunnel
    }

    /// The carrier of a QP's messages within its card, if its peer is there.
    pub(crate) fn local_of(&self, ctid: u8) -> Option<Local> {
        let names = self.names(ctid)?;
        let is_own = names.direction.to.0 == self.settings.ipv4;
        self.settings.local.clone().filter(|_| is_own)
    }

    /// The times of ends of the tunnel; an end whose peer is on the same card repeats nothing.
    pub(crate) fn pace(&self, local: bool) -> Pace {
        let Settings { watchdog, turnover, lossy, long, .. } = self.settings;
        let rest = if lossy && !local { REPEATS } else { 0 };
        // Where cards repeat, nothing but a slot's MAC would tell that the payload is another one's.
        let long = long.filter(|_| !lossy && !local);
        Pace { watchdog, between: turnover, rest, long }
    }

    /// The address space of a QP.
    pub(crate) fn space(&mut self, qpn: u32) -> Option<&mut Space> {
        let ctid = self.ctid(qpn)?;
        self.spaces.get_mut(usize::from(ctid))
    }

    /// Leaves the contents of the windows to the driver of the card behind its reset.
    pub(crate) fn leave_windows(&self) {
        for (ctid, space) in (0..CTIDS).zip(&self.spaces) {
            let (card, qpn) = self.name(self.qpn(ctid));
            self.settings.meetings.keep(card, qpn, space.kept_after());
        }
    }

    /// Posts nothing more of programs' memory before the card's reset.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
    }

    /// Whether posts are out of which the end is waited for.
    pub(crate) fn has_out(&self) -> bool {
        self.spaces.iter().any(|space| !space.out.is_empty() && space.lost.is_none())
    }

    /// How long a peer may be silent.
    #[must_use]
    pub fn watchdog(&self) -> Duration {
        Duration::from_nanos(self.settings.watchdog)
    }

    /// Forgets everything, as the card has with its reset.
    pub fn reset(&mut self) {
        self.halted = false;
        for space in &mut self.spaces {
            if !space.buried {
                self.budget.give(space.packets);
            }
            // The shell's reset leaves windows as they are.
            *space = Space { kept: space.kept_after(), ..Space::default() };
        }
        self.reads = 0;
        self.budget.kept.store(0, Ordering::Relaxed);
        self.budget.homes().clear();
        self.events.clear();
        self.tally = EngineTally {
            posts: self.tally.posts,
            refused: self.tally.refused,
            ..EngineTally::default()
        };
    }

    /// Whether [`Posts::advance`] has work: the ends of posts, or posts to make.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let waits = |space: &Space| {
            let has_messages = |qp: &Qp| !qp.messages.is_empty();
            match space.lost {
                Some(_) => !space.rested,
                None => !space.out.is_empty() || space.qp.as_ref().is_some_and(has_messages),
            }
        };
        !self.events.is_empty() || self.spaces.iter().any(waits)
    }

    /// Takes an event of a message.
    pub fn take_event(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    /// An address space whose peer is silent: its pages are to lead into the sink, and then [`Posts::bury`] is due.
    #[must_use]
    pub fn lost(&self) -> Option<u8> {
        (0..CTIDS)
            .zip(&self.spaces)
            .find(|(_, space)| space.lost.is_some() && !space.buried)
            .map(|(ctid, _)| ctid)
    }

    /// Posts nothing more of an address space, whose pages are to lead into its sink from now on.
    pub fn close(&mut self, ctid: u8) {
        if let Some(space) = self.spaces.get_mut(usize::from(ctid)) {
            space.closed = true;
        }
        self.part(self.qpn(ctid));
    }

    /// Closes a QP to its peer, where that is of this process.
    pub fn part(&self, qpn: u32) {
        self.settings.meetings.ends(|ends| ends.close(self.name(qpn)));
    }

    /// Tells the other cards of this process that nothing of a QP's is on its way any more.
    fn rest(&self, ctid: u8) {
        self.settings.meetings.ends(|ends| ends.rest(self.name(self.qpn(ctid))));
    }

    /// Whether an address space is that of a QP that may reach memory.
    #[must_use]
    pub fn is_open(&self, ctid: u8) -> bool {
        let space = self.spaces.get(usize::from(ctid));
        space.is_some_and(|space| space.qp.is_some() && !space.closed && space.lost.is_none())
    }

    /// Whether an address space is that of a QP that reaches no memory before it is connected anew.
    #[must_use]
    pub fn is_closed(&self, ctid: u8) -> bool {
        let space = self.spaces.get(usize::from(ctid));
        space.is_some_and(|space| space.qp.is_some() && space.closed)
    }

    /// Fails the QP of a lost address space, whose memory the card no longer reaches.
    pub fn bury(&mut self, ctid: u8) {
        let qpn = self.qpn(ctid);
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else { return };
        let Some(status) = space.lost.filter(|_| !space.buried) else { return };
        (space.buried, space.progress) = (true, self.looked);
        self.budget.keep(self.looked, space.packets);
        self.tally.quarantined = self.tally.quarantined.saturating_add(1);
        if space.kind == Some(RequestKind::Read) {
            let lost = u64::from(space.requests);
            self.tally.lost_reads = self.tally.lost_reads.saturating_add(lost);
        }
        let is_connected = |qp: &&mut Qp| qp.attributes.state.serves_requests();
        let Some(qp) = space.qp.as_mut().filter(is_connected) else { return };
        let event = match qp.messages.is_empty() {
            true => TransportEvent::Error { qpn },
            false => TransportEvent::Failed { qpn, status },
        };
        qp.fail();
        self.events.push_back(event);
    }

    /// Looks at the counters and posts messages that may go; `true` if there was any work.
    pub fn advance(&mut self, now: u64, locate: &mut impl Locate) -> bool {
        let mut did = false;
        self.heed();
        self.pardon(now);
        for ctid in 0..CTIDS {
            did |= self.count(now, ctid);
            did |= self.fail_waiting(now, ctid);
            did |= self.fail_head(ctid);
            did |= self.tell_drained(ctid);
            did |= self.drop_for_gone(ctid);
            self.rest_lost(now, ctid);
        }
        did | self.post_all(now, locate)
    }

    /// Restarts the time of QPs that wait with no posts out when a dead peer was given up, in any vFPGA: dead peers may
    /// follow each other in the shared queues, and only if there was none for long has the card stopped.
    fn heed(&mut self) {
        let given_up = self.budget.given_up.load(Ordering::Relaxed);
        for space in self.spaces.iter_mut().filter(|space| space.out.is_empty()) {
            space.progress = space.progress.max(given_up);
        }
    }

    /// Does not count time in which the engine did not look as silence: this process may have been stopped, and its
    /// peers with it.
    fn pardon(&mut self, now: u64) {
        let missed = now.saturating_sub(self.looked).saturating_sub(GAP);
        self.looked = now;
        if missed > 0 {
            for space in &mut self.spaces {
                space.progress = space.progress.saturating_add(missed).min(now);
            }
        }
    }

    /// The counter of a space's ends, for its kind.
    fn counter(&mut self, ctid: u8, kind: RequestKind) -> Option<u32> {
        let array = match kind {
            RequestKind::Write => v::AVX_REMOTE,
            RequestKind::Read => v::AVX_LOCAL,
        };
        let word = self.registers.load(array.at(ctid.into()));
        // All ones are a card that is gone.
        (word != u64::MAX).then(|| CompletionCounters::decode(word).writes)
    }

    /// The counters of local reads and writes of a space.
    pub(crate) fn local(&mut self, ctid: u8) -> u64 {
        self.registers.load(v::AVX_LOCAL.at(ctid.into()))
    }

    /// Takes the counter of a kind as it is for where counting begins.
    pub(crate) fn begin_count(&mut self, ctid: u8, kind: RequestKind) {
        let counter = self.counter(ctid, kind).unwrap_or(0);
        if let Some(space) = self.spaces.get_mut(usize::from(ctid)) {
            (space.kind, space.seen) = (Some(kind), counter);
        }
    }

    /// Takes note of the ends of posts; gives up a space in which there was none for too long.
    fn count(&mut self, now: u64, ctid: u8) -> bool {
        let out =
            self.spaces.get(usize::from(ctid)).filter(|it| !it.out.is_empty() && it.lost.is_none());
        let Some(space) = out else { return false };
        let silent = now.saturating_sub(space.progress);
        let Some(kind) = space.kind else { return false };
        let (qpn, watchdog) = (self.qpn(ctid), self.settings.watchdog);
        let Some(counter) = self.counter(ctid, kind) else {
            // The driver finds out that the card is gone; none of its packets arrives any more.
            if silent >= watchdog {
                self.rest(ctid);
            }
            return false;
        };
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else { return false };
        let ended = counter.wrapping_sub(space.seen);
        if ended == 0 {
            if silent < watchdog {
                return false;
            }
            log::warn!(
                "QP {qpn}: nothing has come from its peer for {} ms, and the card repeats no more: the QP fails, and its number rests until the card is reset",
                watchdog / 1_000_000
            );
            space.lost = Some(Status::RetryExceeded);
            self.tally.unanswered = now;
            return true;
        }
        if ended as usize > space.out.len() {
            space.give_up_count(qpn);
            return true;
        }
        (space.seen, space.progress) = (counter, now);
        self.tally.answered = now;
        let mut complete = 0u64;
        for _ in 0..ended {
            let Some(out) = space.out.pop_front() else { break };
            space.requests = space.requests.saturating_sub(out.requests);
            space.packets = space.packets.saturating_sub(out.packets);
            self.budget.give(out.packets);
            if kind == RequestKind::Read {
                self.reads = self.reads.saturating_sub(out.requests);
            }
            let Some(qp) = &mut space.qp else { continue };
            if let (false, Some(peer)) = (qp.proven, ipv4_of(qp.attributes.dgid)) {
                self.budget.settle(peer);
            }
            qp.proven = true;
            if out.ends && qp.messages.pop_front().is_some() {
                qp.whole = qp.whole.saturating_sub(1);
                complete = complete.saturating_add(1);
            }
        }
        if space.is_free() {
            self.frees = self.frees.wrapping_add(1);
            space.freed = self.frees;
        }
        if space.out.is_empty() {
            self.rest(ctid);
        }
        if complete > 0 {
            self.events.push_back(TransportEvent::Completed { qpn, count: complete });
        }
        true
    }

    /// Gives up a QP that has nothing out, and could post nothing for twice as long as a peer may be silent, though no
    /// other QP was given up in that time: then no other QP is in its way, and the card stands. A QP whose peer is not
    /// ready is given up as if the peer were silent.
    fn fail_waiting(&mut self, now: u64, ctid: u8) -> bool {
        let watchdog = self.settings.watchdog;
        let late = |space: &Space, limit| now.saturating_sub(space.progress) >= limit;
        let waits = |space: &&Space| {
            space.out.is_empty() && space.lost.is_none() && !space.closed && late(space, watchdog)
        };
        let Some(space) = self.spaces.get(usize::from(ctid)).filter(waits) else { return false };
        let reaches = self.acceptance(ctid) == Acceptance::Open;
        let limit = watchdog.saturating_mul(if reaches { 2 } else { 1 });
        if !late(space, limit) {
            return false;
        }
        let space = self.spaces.get_mut(usize::from(ctid));
        let Some(qp) = space.and_then(|space| space.qp.as_mut()) else { return false };
        if qp.holds_back() {
            return false;
        }
        let Some((_, message)) = qp.current() else { return false };
        let fails = message.failed.is_none();
        if !fails {
            return false;
        }
        message.failed = Some(Status::RetryExceeded);
        let (qpn, waited) = (self.qpn(ctid), limit / 1_000_000);
        if reaches {
            self.tally.stuck = self.tally.stuck.saturating_add(1);
            log::warn!("QP {qpn}: the card has taken no post of it for {waited} ms");
        } else {
            log::warn!("QP {qpn}: {NOT_READY}: nothing was sent to it for {waited} ms");
        }
        true
    }

    /// Counts slots for a peer of this process that takes nothing any more as sent: another one's card would have
    /// acknowledged them. QPs that wait for an answer to them fail by that.
    fn drop_for_gone(&mut self, ctid: u8) -> bool {
        let waits = |space: &&Space| {
            let slots = |qp: &Qp| qp.tunnel.is_some() && !qp.messages.is_empty();
            space.out.is_empty() && space.lost.is_none() && space.qp.as_ref().is_some_and(slots)
        };
        let waits = self.spaces.get(usize::from(ctid)).filter(waits).is_some();
        if !waits || self.acceptance(ctid) != Acceptance::Gone {
            return false;
        }
        let qpn = self.qpn(ctid);
        let qp = self.spaces.get_mut(usize::from(ctid)).and_then(|space| space.qp.as_mut());
        let Some(qp) = qp else { return false };
        let count = qp.messages.len() as u64;
        qp.messages.clear();
        qp.whole = 0;
        self.events.push_back(TransportEvent::Completed { qpn, count });
        true
    }

    /// Tells the other cards of this process that nothing of a lost QP is on its way any more, once the card does not repeat
    /// it.
    fn rest_lost(&mut self, now: u64, ctid: u8) {
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else { return };
        let is_over = now.saturating_sub(space.progress) >= REPEATS;
        if space.buried && !space.rested && is_over {
            space.rested = true;
            self.rest(ctid);
        }
    }

    /// Fails a QP whose oldest message goes no further, once nothing of it is out.
    fn fail_head(&mut self, ctid: u8) -> bool {
        let qpn = self.qpn(ctid);
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else { return false };
        let Some(qp) = space.qp.as_mut().filter(|_| space.out.is_empty()) else { return false };
        let failed = qp.messages.front().and_then(|message| message.failed);
        let Some(status) = failed else { return false };
        qp.fail();
        self.part(qpn);
        self.events.push_back(TransportEvent::Failed { qpn, status });
        true
    }

    /// Says that all messages are complete that were begun, in SQD.
    fn tell_drained(&mut self, ctid: u8) -> bool {
        let qpn = self.qpn(ctid);
        let qp = self.spaces.get_mut(usize::from(ctid)).and_then(|space| space.qp.as_mut());
        // An end of the tunnel reports that itself.
        let Some(qp) = qp.filter(|qp| qp.tells_drained && qp.tunnel.is_none()) else {
            return false;
        };
        if qp.is_draining() {
            return false;
        }
        qp.tells_drained = false;
        let event = QpEvent::SqDrained;
        self.events.push_back(TransportEvent::Async { qpn, event });
        true
    }

    /// Whether a space that is about to READ, with nothing out, has had ends since it was looked at: they are of WRITEs of
    /// its peer's, and would be taken for those of the READs.
    fn has_foreign_ends(&mut self, ctid: u8) -> bool {
        let reads = |space: &&Space| {
            let qp = space.qp.as_ref();
            let wants =
                qp.is_some_and(|qp| qp.kind == Some(RequestKind::Read) && !qp.messages.is_empty());
            wants && space.out.is_empty() && space.lost.is_none() && !space.closed
        };
        let space = self.spaces.get(usize::from(ctid)).filter(reads);
        let Some(seen) = space.map(|space| space.seen) else { return false };
        self.counter(ctid, RequestKind::Read).is_some_and(|counter| counter != seen)
    }

    /// Posts by turns, one post of each QP, as long as any may.
    fn post_all(&mut self, now: u64, locate: &mut impl Locate) -> bool {
        let mut room = None;
        let mut idle = 0;
        let mut did = false;
        while idle < CTIDS {
            let ctid = self.turn;
            match self.post_one(now, ctid, &mut room, locate) {
                PostOutcome::Posted => {
                    did = true;
                    idle = 0;
                }
                PostOutcome::Nothing => idle = idle.saturating_add(1),
                PostOutcome::Full => break,
            }
            self.turn = ctid.wrapping_add(1) % CTIDS;
        }
        did
    }

    /// Posts the next part of a QP's messages, if that blocks no other QP.
    fn post_one(
        &mut self,
        now: u64,
        ctid: u8,
        room: &mut Option<u64>,
        locate: &mut impl Locate,
    ) -> PostOutcome {
        let qpn = self.qpn(ctid);
        let foreign = self.has_foreign_ends(ctid);
        if let Some(space) = self.spaces.get_mut(usize::from(ctid)).filter(|_| foreign) {
            space.give_up_count(qpn);
            return PostOutcome::Nothing;
        }
        let Some(next) = self.next_request(now, ctid) else { return PostOutcome::Nothing };
        let NextRequest { kind, number, most, meets } = next;
        let room = room.get_or_insert_with(|| queue_room(&mut self.registers));
        if *room == 0 {
            return PostOutcome::Full;
        }
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else {
            return PostOutcome::Nothing;
        };
        let (slot, on_the_way) = (space.posts % BOUNCES, space.packets);
        let Some((_, message)) = space.qp.as_mut().and_then(Qp::current) else {
            return PostOutcome::Nothing;
        };
        let offset = message.posted;
        let wanted = message.length.saturating_sub(offset).min(most);
        let found = match message.staged {
            Some(local) => Ok((local.wrapping_add(offset.into()), wanted)),
            None => locate.locate(qpn, number, offset, wanted, slot),
        };
        let (local, length) = match found {
            Ok((local, length)) if length > 0 && length % 4 == 0 => (local, length),
            outcome => {
                let (status, why) = unusable(outcome.is_ok());
                message.failed = Some(status);
                log::warn!("QP {qpn}: a request's memory is {why}");
                return PostOutcome::Nothing;
            }
        };
        let more = u8::try_from(length.div_ceil(PACKET)).unwrap_or(u8::MAX);
        let cost = if kind == RequestKind::Read { 1 } else { more };
        let most = if self.settings.faults.selection { SELECTED } else { ON_THE_WAY };
        if !self.budget.take(on_the_way, more, most) {
            // A QP that waits for its share keeps its turn; one that wants more leaves it to the others.
            return if Budget::is_share(on_the_way, more) {
                PostOutcome::Full
            } else {
                PostOutcome::Nothing
            };
        }
        let remote = message.remote.wrapping_add(offset.into());
        let behind = offset.saturating_add(length);
        let ends = behind >= message.length;
        // It may have gone since.
        let name = self.name(qpn);
        if meets && !self.settings.meetings.ends(|ends| ends.send(name)) {
            self.budget.give(more);
            return PostOutcome::Nothing;
        }
        if let Some(space) = self.spaces.get_mut(usize::from(ctid)) {
            space.note_post(now, behind, Out { requests: cost, packets: more, ends });
        }
        if kind == RequestKind::Read {
            self.reads = self.reads.saturating_add(1);
        }
        *room = room.saturating_sub(1);
        self.tally.posts = self.tally.posts.wrapping_add(1);
        self.registers.store(v::CTRL, command(kind, ctid, local, remote, length));
        PostOutcome::Posted
    }

    /// The request that a QP may post now, as far as itself and its peer are concerned.
    fn next_request(&mut self, now: u64, ctid: u8) -> Option<NextRequest> {
        let (reads, halted, name) = (self.reads, self.halted, self.name(self.qpn(ctid)));
        let Settings { lossy, faults, .. } = self.settings;
        let space = self.spaces.get_mut(usize::from(ctid))?;
        let Space { qp: Some(qp), out, requests, kept, lost: None, closed: false, .. } = space
        else {
            return None;
        };
        // A second WRITE would overwrite the bytes from which the first one is repeated.
        let shares_slot = faults.windows && qp.kind == Some(RequestKind::Write);
        let alone = lossy || !qp.proven || shares_slot;
        let (kind, settled, meets) = (qp.kind, qp.settled, qp.meeting.is_some());
        let most = qp.post_bytes(alone, *requests, *kept);
        if qp.holds_back() || halted && qp.tunnel.is_none() {
            return None;
        }
        let (number, message) = qp.current()?;
        let kind = kind.filter(|_| message.failed.is_none() && settled <= now)?;
        // The peer's card refuses packets to a QP that is not ready, and that stops this card, for all.
        if meets && self.settings.meetings.ends(|ends| ends.acceptance(name)) != Acceptance::Open {
            return None;
        }
        // The first request goes alone, in one packet: if an Ethernet address is not known yet, on either side,
        // the lost packet can be repeated, and the peer finds no gap, which it would report.
        if alone && !out.is_empty() {
            return None;
        }
        let is_too_much = most == 0 || (kind == RequestKind::Read && reads >= READS);
        (!is_too_much).then_some(NextRequest { kind, number, most, meets })
    }
}

/// Posts that the command queue takes: fewer than it has, for it silently loses posts beyond.
fn queue_room(registers: &mut impl Registers) -> u64 {
    match registers.load(v::CTRL) {
        u64::MAX => 0,
        word => QUEUED.saturating_sub(CommandQueue::decode(word).queued.into()),
    }
}

/// A post, as the published library makes it.
fn command(kind: RequestKind, ctid: u8, local: u64, remote: u64, length: u32) -> [u64; 4] {
    let own = Command { stream: Stream::Host, ctid, length, last: true, ..Command::default() };
    let opcode = match kind {
        RequestKind::Read => 0,
        RequestKind::Write => 1,
    };
    let other = Command { opcode, stream: Stream::Rdma, start: true, ..own };
    match kind {
        RequestKind::Read => [other.encode(), remote, own.encode(), local],
        RequestKind::Write => [own.encode(), local, other.encode(), remote],
    }
}
