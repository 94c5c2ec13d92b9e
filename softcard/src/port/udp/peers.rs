//! A port's record of each host that it speaks with, by each of its own addresses: whether a balboad answers there, how
//! much may be under way to it, and how it numbers its datagrams.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use hostmem::udp::MOST_SEGMENTS;

use super::frames::{Headers, Pair};
use super::numbers::Numbers;
use super::word::{Word, WordKind};
use crate::UdpOptions;
use crate::port::Frame;

/// Bytes of a receiver's room that a datagram takes beside its own: the kernel's data about it.
const EACH: u64 = 1152;
/// Hosts that no card here has sent to, remembered at most.
const MOST_STRANGERS: usize = 1024;
/// Hosts remembered at most, of all kinds; beyond, they are forgotten once they are idle.
const MOST_PEERS: usize = 8192;
/// Hosts that are kept at most when others are forgotten, which is not done for each new one.
const MOST_KEPT: usize = MOST_PEERS / 4 * 3;
/// The least that may be under way, even if a peer grants less.
const LEAST_WINDOW: u64 = *UdpOptions::ROOMS.start() as u64;
/// How often a peer is asked that is sent to, in nanoseconds.
const ASK_NS: u64 = 1_000_000_000;
/// The same, while its window is full.
const ASK_FULL_NS: u64 = 2_000_000;
/// How long a peer may leave a question unanswered before it counts as no balboad.
const PATIENCE_NS: u64 = 3_000_000_000;
/// The same, while its window is full: meanwhile others may have to wait.
const FULL_PATIENCE_NS: u64 = 100_000_000;
/// The time for which frames for a host without room may wait while the card sends to others, before those come first:
/// for a host that has not answered yet, and for a balboad.
const SLOW_UNKNOWN_NS: u64 = 10 * ASK_FULL_NS;
const SLOW_NS: u64 = FULL_PATIENCE_NS;
/// The time for which the card counts as sending to a host; and the wait of a host to which no program sends.
const SENDS_NS: u64 = 1_000_000_000;
/// How long datagrams sent before a question that was answered may still be on their way.
const ON_ITS_WAY_NS: u64 = 2 * ASK_FULL_NS;
/// Answers with datagrams in line, and none of ours newly counted, until none of those in line is ours: a receiver
/// takes a hundred datagrams or more between two.
const MOST_BUSY: u32 = 64;
/// How long a host counts as one that speaks, and how often those are counted.
const SPEAKS_NS: u64 = 2_000_000_000;
const COUNTED_NS: u64 = 100_000_000;
/// Answers to strangers: how many at once, and how long it takes until there is one more.
const MOST_ANSWERS: u64 = 1024;
const ANSWER_NS: u64 = 1_000_000;
/// Bytes of a receiver's room that a datagram of so many bytes takes.
pub(super) fn cost(bytes: usize) -> u64 {
    EACH.saturating_add(bytes as u64)
}

/// The share of a room that one of so many hosts may have.
fn share(room: u64, hosts: usize) -> u32 {
    let share = room.checked_div(hosts.max(1) as u64).unwrap_or(0);
    u32::try_from(share.max(LEAST_WINDOW)).unwrap_or(u32::MAX)
}

/// Whether the card sends to another host, judged by the last two.
fn others_send(recent: &[Option<(Pair, u64)>; 2], now: u64, pair: Pair) -> bool {
    let sends = |(it, at): &(Pair, u64)| *it != pair && now.saturating_sub(*at) < SENDS_NS;
    recent.iter().flatten().any(sends)
}

/// A frame that waits to be sent.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) headers: Headers,
    pub(super) frame: Frame,
    since: u64,
}

impl Queued {
    /// Bytes of its datagram.
    pub(super) fn length(&self) -> usize {
        self.headers.payload(self.frame.as_slice().len()).len()
    }

    /// Bytes of its receiver's room that its datagram takes.
    pub(super) fn cost(&self) -> u64 {
        cost(self.length())
    }
}

/// The kind of a host, as far as questions have told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// It may be a balboad that has still to answer: little may be under way to it.
    #[default]
    Unknown,
    /// It has answered as a balboad, and not left questions unanswered for long since.
    Balboad,
    /// It leaves questions unanswered.
    Stranger,
}

/// A host, as one of the card's addresses knows it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) queue: VecDeque<Queued>,
    /// Whether a card here has sent to it.
    is_known: bool,
    /// Its session, as it said itself.
    session: u64,
    standing: Standing,
    question: Option<Question>,
    /// When it was asked last, and is to be asked next.
    asked: u64,
    next_question: u64,
    /// When it answered last.
    answered: u64,
    /// Since when questions are not answered, and since when it has had no room at each of them.
    silent_since: Option<u64>,
    full_since: Option<u64>,
    /// Costs of sent datagrams, and of those known to have arrived or to be lost.
    sent: u64,
    settled: u64,
    /// Costs sent before the last question that was answered, and the time of that question.
    before: (u64, u64),
    /// The costs that it last said to have received.
    heard: u64,
    window: u64,
    /// Answers with datagrams in line since any of ours was newly counted.
    busy: u32,
    /// When it last spoke to us.
    spoke: Option<u64>,
    /// The costs received of its session, and those that it was last told.
    received: u64,
    told: u64,
    numbers: Numbers,
    /// Its route cannot segment.
    whole_only: bool,
    /// Whether refused segments to it have been logged.
    is_told: bool,
}

/// How a host that has said that it is a balboad sends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// It may send segments.
    segments: bool,
    /// It has answered, and how its datagrams are numbered beside that is of no account.
    pub(super) answers: bool,
}

impl Manner {
    /// Whether an IPv4 identification can be the number of a segment of its.
    pub(super) fn numbers(self, id: u16) -> bool {
        self.segments && usize::from(id) < MOST_SEGMENTS
    }
}

/// A question that is open; it is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
struct Question {
    mark: u64,
    /// The time of its first question, the costs sent then, and the costs that the host had said to have received.
    at: u64,
    sent: u64,
    heard: u64,
}

impl Peer {
    /// Whether datagrams to it may be segments, which a balboad alone expects: it was one just now.
    pub(super) fn takes_segments(&self, now: u64) -> bool {
        self.answers() && !self.whole_only && now.saturating_sub(self.answered) < PATIENCE_NS
    }

    /// Takes note that segments to it were refused, for good where that is certain; true the first time of a session.
    pub(super) fn refuse_segments(&mut self, is_certain: bool) -> bool {
        self.whole_only |= is_certain;
        !std::mem::replace(&mut self.is_told, true)
    }

    /// Whether it has answered a question of ours, and not left some unanswered for long since.
    fn answers(&self) -> bool {
        self.standing == Standing::Balboad
    }

    /// Whether more may be under way.
    pub(super) fn has_room(&self) -> bool {
        match self.standing {
            Standing::Unknown => self.under_way() < LEAST_WINDOW,
            Standing::Balboad => self.under_way() < self.window,
            Standing::Stranger => true,
        }
    }

    /// Whether others come first: it has no room, and its frames have waited for long; for longer if the card seems not
    /// to send to others, as while this host has all places.
    fn gives_way(&self, now: u64, others_send: bool) -> bool {
        let long = match (others_send, self.answers()) {
            (true, true) => SLOW_NS,
            (true, false) => SLOW_UNKNOWN_NS,
            (false, _) => SENDS_NS,
        };
        let since = self.queue.front().map(|first| first.since);
        !self.has_room() && since.is_some_and(|since| now.saturating_sub(since) >= long)
    }

    fn under_way(&self) -> u64 {
        self.sent.saturating_sub(self.settled)
    }

    pub(super) fn count_sent(&mut self, cost: u64) {
        self.sent = self.sent.saturating_add(cost);
    }

    /// Takes back the count of a datagram that is not sent yet.
    pub(super) fn take_back(&mut self, cost: u64) {
        self.sent = self.sent.saturating_sub(cost);
    }

    /// The properties of it that matter for each of its datagrams.
    pub(super) fn manner(&self) -> Manner {
        Manner { segments: self.session != 0, answers: self.answers() }
    }

    /// Whether a datagram of its can have had that IPv4 identification, which is not 0; of a host that counts them up not
    /// where that is `strict`. A balboad that has answered does not count; any host can ask in another's name.
    pub(super) fn admits_number(&mut self, id: u16, strict: bool) -> bool {
        self.manner().numbers(id) || !strict && !self.answers() && self.numbers.admit(id)
    }

    /// Counts arrivals; true if it is to be told.
    pub(super) fn count_received(&mut self, now: u64, cost: u64, window: u32) -> bool {
        if self.session == 0 {
            return false;
        }
        self.spoke = Some(now);
        self.received = self.received.saturating_add(cost);
        self.received.saturating_sub(self.told) >= u64::from(window) / 4
    }

    fn begin_session(&mut self, session: u64) {
        if self.session != session {
            self.session = session;
            (self.received, self.told, self.heard) = (0, 0, 0);
            self.settled = self.sent;
            if self.answers() {
                self.standing = Standing::Unknown;
            }
            (self.whole_only, self.is_told) = (false, false);
        }
    }

    /// When it is to be asked, or given up.
    fn due(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.next_question)
    }
}

/// All hosts.
#[derive(Debug)]
pub(super) struct Peers {
    /// The port's own session.
    session: u64,
    /// Room of each of the port's sockets, for all senders.
    room: u64,
    table: HashMap<Pair, Peer>,
    /// How much of all that may be under way to this port one host may have.
    window: u32,
    /// When it was last found out.
    counted: Option<u64>,
    strangers: usize,
    /// The last two hosts to which the card sent, and the times.
    recent: [Option<(Pair, u64)>; 2],
    /// Those with frames that wait, in their turn.
    pub(super) waiting: VecDeque<Pair>,
    pub(super) queued: usize,
    /// The source of marks: how many there were, by a key. A host that sees some of them can tell no other.
    marks: (RandomState, u64),
    /// Until when answers to strangers are used up, at one in [`ANSWER_NS`], and questions that got none.
    answered_until: u64,
    pub(super) unanswered: u64,
    /// Balboads that did not answer in time, each as often as that was.
    pub(super) given_up: u64,
}

impl Peers {
    /// None yet; the room is that of a socket of the port's, as the kernel counts it.
    pub(super) fn new(room: usize, session: u64) -> Self {
        // The kernel counts its own bytes beside datagrams, too: about as many as theirs.
        let room = room as u64 / 2;
        Self {
            session: session.max(1),
            room,
            table: HashMap::new(),
            window: share(room, 1),
            counted: None,
            strangers: 0,
            recent: [None; 2],
            waiting: VecDeque::new(),
            queued: 0,
            marks: (RandomState::new(), 0),
            answered_until: 0,
            unanswered: 0,
            given_up: 0,
        }
    }

    /// A host to which a card here sends.
    pub(super) fn known(&mut self, pair: Pair) -> &mut Peer {
        if self.table.len() >= MOST_PEERS && !self.table.contains_key(&pair) {
            // The kind of a host costs 100 ms to find out again.
            let keeps: [fn(&Peer) -> bool; 3] =
                [|peer| peer.standing != Standing::Unknown, Peer::answers, |_| false];
            for keep in keeps {
                if self.table.len() > MOST_KEPT {
                    self.table.retain(|_, peer| !peer.queue.is_empty() || keep(peer));
                }
            }
            self.strangers = self.table.values().filter(|peer| !peer.is_known).count();
        }
        if self.table.get(&pair).is_some_and(|peer| !peer.is_known) {
            self.strangers = self.strangers.saturating_sub(1);
        }
        let peer = self.table.entry(pair).or_default();
        peer.is_known = true;
        if pair.peer.is_multicast() {
            // Nobody is asked.
            peer.standing = Standing::Stranger;
        }
        peer
    }

    /// Takes note of a right datagram with the IPv4 identification 0.
    pub(super) fn wrote_zero(&mut self, pair: Pair) {
        if let Some(peer) = self.get(pair) {
            peer.numbers.was_zero();
        }
    }

    /// A host, if anything is known of it.
    pub(super) fn get(&mut self, pair: Pair) -> Option<&mut Peer> {
        self.table.get_mut(&pair)
    }

    /// A host that speaks to us.
    pub(super) fn stranger(&mut self, pair: Pair) -> &mut Peer {
        if !self.table.contains_key(&pair) {
            if self.strangers >= MOST_STRANGERS {
                self.table.retain(|_, peer| peer.is_known);
                self.strangers = 0;
            }
            self.strangers = self.strangers.saturating_add(1);
        }
        self.table.entry(pair).or_default()
    }

    /// Puts the first frames of a burst behind those that wait for their host, as long as they are between the same
    /// addresses as the first, which has these headers, and fewer than `most` wait in all. A host without room that has its
    /// part of the places already, while others wait, too, or would if it were not so slow, gets no more: frames beyond are
    /// `held_up`.
    pub(super) fn queue(
        &mut self,
        now: u64,
        first: Headers,
        burst: &mut VecDeque<Frame>,
        most: usize,
        mut held_up: impl FnMut(Frame),
    ) {
        let pair = first.sent_between();
        let (others, mut queued) = (self.waiting.len(), self.queued);
        self.note_sent(now, pair);
        let others_send = others_send(&self.recent, now, pair);
        let peer = self.known(pair);
        let was_empty = peer.queue.is_empty();
        let mut next = Some(first);
        while let Some(headers) = next.filter(|_| queued < most) {
            let Some(frame) = burst.pop_front() else { break };
            let is_new = was_empty && !peer.queue.is_empty();
            let gives_way = peer.gives_way(now, others_send);
            let hosts = others.saturating_add(is_new.into()).saturating_add(gives_way.into());
            let part = most.checked_div(hosts).unwrap_or(most);
            if hosts > 1 && !peer.has_room() && peer.queue.len() >= part {
                held_up(frame);
            } else {
                peer.queue.push_back(Queued { headers, frame, since: now });
                queued = queued.saturating_add(1);
            }
            let following = burst.front();
            let following =
                following.and_then(|it| Headers::of(it.as_slice(), first.destination_port));
            next = following.filter(|headers| headers.sent_between() == pair);
        }
        let is_new = was_empty && !peer.queue.is_empty();
        self.queued = queued;
        if is_new {
            self.waiting.push_back(pair);
        }
    }

    /// Takes note that the card sends to a host.
    fn note_sent(&mut self, now: u64, pair: Pair) {
        let [last, before] = self.recent;
        let is_last = last.is_some_and(|(it, _)| it == pair);
        self.recent = [Some((pair, now)), if is_last { before } else { last }];
    }

    /// Where `most` frames wait, which are all that may: leaves hosts that give way no more than their part of the places,
    /// and one part to hosts to come. Frames beyond are `held_up`.
    pub(super) fn make_places(&mut self, now: u64, most: usize, mut held_up: impl FnMut(Frame)) {
        if self.queued < most {
            return;
        }
        let part = most.checked_div(self.waiting.len().saturating_add(1)).unwrap_or(most);
        let Self { waiting, table, queued, recent, .. } = self;
        waiting.retain(|pair| {
            let Some(peer) = table.get_mut(pair) else { return false };
            let others_send = others_send(recent, now, *pair);
            while peer.queue.len() > part && peer.gives_way(now, others_send) {
                let Some(last) = peer.queue.pop_back() else { break };
                *queued = queued.saturating_sub(1);
                held_up(last.frame);
            }
            !peer.queue.is_empty()
        });
    }

    /// How much of all that may be under way to this port one host may have.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The question that a host is to be asked now, if it is.
    pub(super) fn question(&mut self, now: u64, pair: Pair) -> Option<Word> {
        let session = self.session;
        let peer = self.table.get_mut(&pair)?;
        if now < peer.next_question {
            return None;
        }
        let (key, count) = &mut self.marks;
        *count = count.wrapping_add(1);
        let mark = key.hash_one(*count) | 1;
        let is_full = !peer.has_room();
        if now.saturating_sub(peer.asked) > 2 * ASK_NS {
            // Nobody minded meanwhile whether it answers.
            (peer.question, peer.silent_since, peer.full_since) = (None, None, None);
        }
        peer.asked = now;
        let silent_since = *peer.silent_since.get_or_insert(now);
        let full_since = peer.full_since.filter(|_| is_full).unwrap_or(now);
        peer.full_since = is_full.then_some(full_since);
        let (since, patience) = match is_full {
            true => (silent_since.max(full_since), FULL_PATIENCE_NS),
            false => (silent_since, PATIENCE_NS),
        };
        if now.saturating_sub(since) >= patience {
            // It may be another host now: its frames are sent as to any. Its counts go on if it answers again.
            let before = std::mem::replace(&mut peer.standing, Standing::Stranger);
            let is_given_up = before == Standing::Balboad;
            self.given_up = self.given_up.saturating_add(is_given_up.into());
        }
        let (sent, heard) = (peer.sent, peer.heard);
        let new = Question { mark, at: now, sent, heard };
        let mark = peer.question.get_or_insert(new).mark;
        let pause = if is_full { ASK_FULL_NS } else { ASK_NS };
        peer.next_question = now.saturating_add(pause);
        let (of, received) = (peer.session, peer.received);
        Some(Word { kind: WordKind::Ask, session, of, mark, received, window: self.window() })
    }

    /// Lets a host be asked soon again, for it has no room.
    pub(super) fn hurry(&mut self, now: u64, pair: Pair) {
        if let Some(peer) = self.table.get_mut(&pair) {
            let soon = now.saturating_add(ASK_FULL_NS);
            peer.next_question = peer.next_question.min(soon);
        }
    }

    /// The word that tells a host the costs that came from it.
    pub(super) fn tell(&mut self, pair: Pair, kind: WordKind, mark: u64) -> Option<Word> {
        let (session, window) = (self.session, self.window());
        let peer = self.table.get_mut(&pair)?;
        peer.told = peer.received;
        Some(Word { kind, session, of: peer.session, mark, received: peer.received, window })
    }

    /// Takes a word; gives the reply, if one is due.
    pub(super) fn hear(&mut self, now: u64, pair: Pair, word: &Word) -> Option<Word> {
        if word.kind == WordKind::Ask {
            return self.hear_question(now, pair, word);
        }
        let peer = self.table.get_mut(&pair)?;
        // A host that does not know the port's session has not been asked.
        let is_answer = matches!(word.kind, WordKind::Answer | WordKind::Busy);
        let question = peer.question.filter(|it| it.mark == word.mark && is_answer);
        let is_known = question.is_some() || word.session == peer.session;
        if word.of != self.session || !is_known {
            return None;
        }
        match question {
            Some(question) => peer.hear_answer(now, word, question),
            None => peer.settle(word),
        }
        None
    }

    /// Takes a question, which any host may have asked.
    fn hear_question(&mut self, now: u64, pair: Pair, word: &Word) -> Option<Word> {
        if self.table.get(&pair).is_none_or(|peer| !peer.is_known) && !self.may_answer(now) {
            self.unanswered = self.unanswered.saturating_add(1);
            return None;
        }
        let peer = self.stranger(pair);
        if peer.answers() && peer.session != word.session {
            // A host that was known by another session is asked first whether that has ended.
            return self.question(now, pair);
        }
        peer.begin_session(word.session);
        peer.spoke = Some(now);
        if self.counted.is_none_or(|at| now.saturating_sub(at) >= COUNTED_NS) {
            self.counted = Some(now);
            // Anybody can ask in the names of many.
            let speaks = |peer: &&Peer| {
                let spoke = peer.spoke.filter(|_| peer.answers());
                spoke.is_some_and(|spoke| now.saturating_sub(spoke) < SPEAKS_NS)
            };
            self.window = share(self.room, self.table.values().filter(speaks).count());
        }
        self.tell(pair, WordKind::Answer, word.mark)
    }

    /// Whether another stranger is answered now, and counts that.
    fn may_answer(&mut self, now: u64) -> bool {
        let until = self.answered_until.max(now);
        let may = until.saturating_sub(now) < MOST_ANSWERS.saturating_mul(ANSWER_NS);
        if may {
            self.answered_until = until.saturating_add(ANSWER_NS);
        }
        may
    }

    /// Takes all frames that wait.
    pub(super) fn take_queued(&mut self) -> impl Iterator<Item = Frame> {
        self.queued = 0;
        self.waiting.clear();
        let queues = self.table.values_mut().map(|peer| std::mem::take(&mut peer.queue));
        queues.flatten().map(|queued| queued.frame)
    }

    /// When the first of those that wait is to be asked.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.waiting.iter().filter_map(|pair| self.table.get(pair)?.due()).min()
    }

    /// How many balboads there are.
    pub(super) fn balboads(&self) -> usize {
        self.table.values().filter(|peer| peer.answers()).count()
    }
}

impl Peer {
    /// Takes note of the answer to a question.
    fn hear_answer(&mut self, now: u64, word: &Word, question: Question) {
        (self.question, self.silent_since, self.full_since) = (None, None, None);
        self.answered = now;
        self.begin_session(word.session);
        let began_anew = word.received < question.heard;
        if !self.answers() || began_anew {
            // Datagrams sent before it was known, or forgotten there, are not waited for.
            self.standing = Standing::Balboad;
            (self.settled, self.heard) = (self.sent, word.received);
            self.before = (self.sent, now);
        }
        self.settle(word);
        if word.kind == WordKind::Busy {
            self.busy = self.busy.saturating_add(1);
        }
        let (sent, asked) = self.before;
        let is_counted = word.kind == WordKind::Answer || self.busy >= MOST_BUSY;
        if is_counted && now.saturating_sub(asked) >= ON_ITS_WAY_NS {
            // By now it has arrived and is counted, or is lost.
            self.settled = self.settled.max(sent).min(self.sent);
            self.before = (question.sent, question.at);
            self.busy = 0;
        }
    }

    /// Notes the arrivals that a word tells, and the bytes that may be under way.
    fn settle(&mut self, word: &Word) {
        let more = word.received.saturating_sub(self.heard);
        if more > 0 {
            self.busy = 0;
        }
        self.heard = self.heard.max(word.received);
        self.settled = self.settled.saturating_add(more).min(self.sent);
        self.window = u64::from(word.window).max(LEAST_WINDOW);
    }
}

#[cfg(test)]
mod tests;
