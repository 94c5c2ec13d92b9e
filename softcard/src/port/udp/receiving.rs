//! Datagrams that have arrived, as frames for the card.

use std::collections::VecDeque;
use std::net::IpAddr;

use hostmem::udp::{Incoming, MOST_RECEIVED, ReceiveRoom};
use roce::param::ROCE_UDP_PORT;
use roce::wire::difference::{Differences, IPV4_FLAGS, IPV4_IDENTIFICATION};
use roce::wire::icrc;
use roce::{Gid, MacAddr, ReceivedFrame as _};

use super::frames::{Headers, Macs, Pair, identification, put_back};
use super::neighbours::BEYOND;
use super::peers::{Manner, Peers, cost};
use super::sockets::{Arriving, Listening, READY, Sockets};
use super::word::{Word, WordKind};
use super::{MoreCounters, UdpPort, WORD_PORT};
use crate::port::{Counters, Frame, FramePool};

/// Calls for one socket before others have their turn.
const CALLS: usize = 16;

impl UdpPort {
    /// Takes arrivals of all sockets, until there are as many frames as are asked for.
    pub(super) fn take_datagrams(&mut self, now: u64, budget: usize) {
        let Self { sockets, room, arrived, peers, pool, counters, more, .. } = self;
        let Self { differences, is_strict, mac, turn, again, resume, .. } = self;
        let (sockets, is_strict, mac) = (&*sockets, *is_strict, *mac);
        let (said, is_cut_short) = (Vec::new(), false);
        let mut taker = Taker {
            sockets,
            peers,
            pool,
            counters,
            more,
            differences,
            is_strict,
            mac,
            arrived,
            said,
            is_cut_short,
        };
        let (mut ready, mut has_room) = sockets.ready();
        // Words first, for RoCE may stand in line.
        let is_words = |it: &&Listening| it.arriving == Arriving::Words;
        if ready.iter().any(is_words) {
            for listening in ready.into_iter().filter(is_words) {
                taker.take_from(now, listening, room, usize::MAX);
            }
            // Datagrams that came before a question are in the count of its answer.
            let (ready_now, has_more) = sockets.ready();
            (ready, has_room) = (ready_now, has_room || has_more);
        }
        if has_room {
            *resume = None;
        }
        let is_full = ready.len().saturating_add(usize::from(has_room)) >= READY;
        // Another one first each time.
        *turn = turn.wrapping_add(1);
        let first = turn.checked_rem(ready.len()).unwrap_or(0);
        ready.rotate_left(first);
        let mut in_line = Vec::new();
        for listening in ready.into_iter().filter(|it| it.arriving == Arriving::Roce) {
            if !taker.take_from(now, listening, room, budget) {
                in_line.push(listening.ip);
            }
        }
        *again = is_full || taker.is_cut_short;
        for (pair, mut word) in taker.said {
            if word.kind == WordKind::Answer {
                let is_busy = is_full || in_line.contains(&pair.own);
                let kind = if is_busy { WordKind::Busy } else { WordKind::Answer };
                word = taker.peers.tell(pair, kind, word.mark).unwrap_or(word);
            }
            sockets.say(pair, &word);
        }
    }
}

/// The parts of the port that turn datagrams into frames.
struct Taker<'a> {
    sockets: &'a Sockets,
    peers: &'a mut Peers,
    pool: &'a FramePool,
    counters: &'a mut Counters,
    more: &'a mut MoreCounters,
    differences: &'a Differences,
    is_strict: bool,
    /// The card's.
    mac: MacAddr,
    arrived: &'a mut VecDeque<Frame>,
    /// Words to be sent, once all is taken.
    said: Vec<(Pair, Word)>,
    /// A socket has had its turn before it was empty.
    is_cut_short: bool,
}

impl Taker<'_> {
    /// Takes arrivals of a socket, while there are fewer frames than are asked for; true if that was all.
    fn take_from(
        &mut self,
        now: u64,
        listening: &Listening,
        room: &mut ReceiveRoom,
        budget: usize,
    ) -> bool {
        let Listening { ip, arriving, socket, lost } = listening;
        for _ in 0..CALLS {
            if self.arrived.len() >= budget {
                return false;
            }
            let Ok(count) = socket.receive(room) else { return true };
            for message in room.messages() {
                let from = message.from.ip();
                let pair = Pair { own: *ip, peer: from };
                if let Some(now_lost) = message.lost {
                    let newly = now_lost.wrapping_sub(lost.replace(now_lost));
                    self.more.lost = self.more.lost.saturating_add(newly.into());
                }
                let word = match arriving {
                    // A group's datagrams come back to their host.
                    Arriving::Roce if ip.is_multicast() && self.sockets.has(from) => None,
                    Arriving::Roce => self.take(now, &message, pair),
                    // No other program of a peer's speaks for its balboad.
                    Arriving::Words if message.from.port() != WORD_PORT => None,
                    Arriving::Words => {
                        let heard = Word::parse(message.bytes);
                        heard.and_then(|word| self.peers.hear(now, pair, &word))
                    }
                };
                self.said.extend(word.map(|word| (pair, word)));
            }
            if count < MOST_RECEIVED {
                return true;
            }
        }
        self.is_cut_short = true;
        false
    }

    /// Makes frames of a message's datagrams; gives the word for their sender, if one is due.
    fn take(&mut self, now: u64, message: &Incoming<'_>, pair: Pair) -> Option<Word> {
        let Pair { own: destination, peer: source } = pair;
        let (tos, ttl, source_port) = (message.tos, message.ttl, message.from.port());
        let destination_port = self.sockets.port;
        let headers = Headers { source, destination, source_port, destination_port, tos, ttl };
        let to = match destination {
            IpAddr::V4(ip) if ip.is_multicast() => MacAddr::of_group(Gid::from_ipv4(ip)),
            IpAddr::V6(ip) if ip.is_multicast() => MacAddr::of_group(Gid::from_ipv6(ip)),
            _ => self.mac,
        };
        let manner = self.peers.get(pair).map(|peer| peer.manner()).unwrap_or_default();
        let mut costs = 0_u64;
        let before = self.arrived.len();
        for payload in message.bytes.chunks(message.segment.max(1)) {
            costs = costs.saturating_add(cost(payload.len()));
            let mut frame = self.pool.take();
            let macs = Macs { source: BEYOND, destination: to };
            if headers.frame(macs, payload, &mut frame) {
                self.arrived.push_back(frame);
            } else {
                self.counters.bad_length = self.counters.bad_length.saturating_add(1);
                self.pool.put(frame);
            }
        }
        // Not each at once: a processor waits for bytes that it has just written, if it reads them by other pieces.
        // A sealed frame has its invariant CRC within.
        if source.is_ipv4() && destination_port == ROCE_UDP_PORT {
            self.number_all(before, pair, manner);
        }
        if destination.is_multicast() {
            return None;
        }
        let window = self.peers.window();
        let is_due = self.peers.get(pair)?.count_received(now, costs, window);
        is_due.then(|| self.peers.tell(pair, WordKind::Tell, 0)).flatten()
    }

    /// Finds the identifications of the datagrams of one message, from a place on.
    fn number_all(&mut self, first: usize, pair: Pair, manner: Manner) {
        let mut arrived = std::mem::take(self.arrived);
        let mut expected = 0;
        for frame in arrived.range_mut(first..) {
            if expected == 0 || !self.is_numbered(frame, manner, expected) {
                self.number(frame, pair, manner);
            }
            // Datagrams that arrive together were sent one behind the other. Where nothing explained this one, as of frames that are
            // sealed, nothing is tried in vain on those behind it.
            expected = match frame.is_vouched_for() {
                true => identification(frame).wrapping_add(1),
                false => 0,
            };
        }
        *self.arrived = arrived;
    }

    /// Whether a datagram had the identification that the one before it leads to, as segments of a balboad's have; it has
    /// it then, and is vouched for.
    fn is_numbered(&mut self, frame: &mut Frame, manner: Manner, expected: u16) -> bool {
        if !manner.numbers(expected) {
            return false;
        }
        put_back(frame, IPV4_IDENTIFICATION, expected.to_be_bytes());
        let is_right = icrc::check(frame.as_mut_slice());
        if is_right {
            self.more.numbered = self.more.numbered.saturating_add(1);
            frame.vouch();
        } else {
            put_back(frame, IPV4_IDENTIFICATION, [0, 0]);
        }
        is_right
    }

    /// Finds the identification that a datagram had, where it was not 0, and vouches for a frame whose invariant CRC is
    /// right with it. The card checks all others, and counts them.
    fn number(&mut self, frame: &mut Frame, pair: Pair, manner: Manner) {
        let Some(wrong) = icrc::difference(frame.as_mut_slice()) else { return };
        if wrong != 0 {
            if self.has_number(frame, pair, manner, wrong) {
                frame.vouch();
                return;
            }
            // Linux and RNICs forbid that their packets are cut. FPGA cards as published have no flag set at all, and write
            // 0; with other identifications a single damaged bit would be explained so.
            let without = self.differences.if_it_were(frame.as_slice(), IPV4_FLAGS, [0, 0], wrong);
            if without != Some(0) {
                return;
            }
            put_back(frame, IPV4_FLAGS, [0, 0]);
        }
        if !manner.answers {
            self.peers.wrote_zero(pair);
        }
        frame.vouch();
    }

    /// Whether an identification that its host can have given it explains the difference of a frame's CRC from the
    /// right one, beside 0; the frame gets it then.
    fn has_number(&mut self, frame: &mut Frame, pair: Pair, manner: Manner, wrong: u32) -> bool {
        let found = self.differences.find(frame.as_slice(), IPV4_IDENTIFICATION, wrong);
        let Some(id) = found.map(u16::from_be_bytes) else { return false };
        if !manner.numbers(id) {
            let peer = match self.is_strict {
                true => self.peers.get(pair),
                false => Some(self.peers.stranger(pair)),
            };
            if !peer.is_some_and(|peer| peer.admits_number(id, self.is_strict)) {
                return false;
            }
        }
        put_back(frame, IPV4_IDENTIFICATION, id.to_be_bytes());
        self.more.numbered = self.more.numbered.saturating_add(1);
        true
    }
}
