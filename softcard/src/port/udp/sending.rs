//! Frames that wait, out as datagrams: to balboads many by one message, to others one by one.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use hostmem::udp::{MOST_BYTES, MOST_SEGMENTS, MOST_SENT, Outgoing};
use nix::errno::Errno;
use roce::wire::difference::{IPV4_FLAGS, IPV4_IDENTIFICATION};

use super::frames::Pair;
use super::machine::{device_between, scoped};
use super::peers::Queued;
use super::sockets::Leaving;
use super::{QUEUE, RETRY_NS, ROOM_NS, UdpPort};

/// The flag of IPv4 that forbids to cut a packet, with no fragment's offset.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];

/// Frames of one host that leave before others have their turn.
const TURN: usize = 128;

/// The counts of groups and frames that have left.
#[derive(Default)]
struct Left {
    groups: usize,
    /// All of them together.
    frames: usize,
    /// Why no more.
    failed: Option<Errno>,
}

/// Frames that leave by one message: equally long, but for the last, which may be shorter.
struct Group {
    frames: Range<usize>,
    sender: usize,
    /// Bytes of each datagram, where there are several.
    segment: Option<u16>,
}

/// How a host's turn ended.
enum Ended {
    /// Nothing waits for it any more.
    Done,
    /// More waits, and others have their turn.
    Turn,
    /// It has no room.
    NoRoom,
    /// The kernel has none.
    Later,
}

impl UdpPort {
    /// Sends the frames that wait, as far as there is room; no slow host keeps all places then.
    pub(super) fn flush_queues(&mut self, now: u64) {
        if self.resume.is_some_and(|at| at > now) {
            return;
        }
        self.send_waiting(now);
        let Self { peers, pool, more, .. } = self;
        peers.make_places(now, QUEUE, |frame| {
            more.held_up = more.held_up.saturating_add(1);
            pool.put(frame);
        });
    }

    /// Sends the frames that wait, as far as there is room: hosts take turns.
    fn send_waiting(&mut self, now: u64) {
        self.resume = None;
        let mut without_room = 0;
        while without_room < self.peers.waiting.len() {
            let Some(pair) = self.peers.waiting.pop_front() else { return };
            match self.flush_queue(now, pair) {
                Ended::Done => {}
                Ended::Turn => {
                    self.peers.waiting.push_back(pair);
                    without_room = 0;
                }
                Ended::NoRoom => {
                    self.peers.waiting.push_back(pair);
                    without_room = without_room.saturating_add(1);
                }
                Ended::Later => {
                    self.peers.waiting.push_front(pair);
                    return;
                }
            }
        }
    }

    /// Sends some of the datagrams that wait for a host.
    fn flush_queue(&mut self, now: u64, pair: Pair) -> Ended {
        self.ask(now, pair);
        let Some(peer) = self.peers.get(pair) else { return Ended::Done };
        // Nobody puts any there meanwhile.
        let mut queue = std::mem::take(&mut peer.queue);
        let mut count = 0_usize;
        for queued in queue.iter().take(TURN) {
            if !peer.has_room() {
                break;
            }
            peer.count_sent(queued.cost());
            count = count.saturating_add(1);
        }
        let (has_room, whole) = (peer.has_room(), !peer.takes_segments(now));
        if !has_room {
            self.peers.hurry(now, pair);
        }
        let waited = queue.len();
        let ended = match self.send_batch(now, &mut queue, count, whole, pair) {
            false => Ended::Later,
            true if queue.is_empty() => Ended::Done,
            true if has_room => Ended::Turn,
            true => Ended::NoRoom,
        };
        let gone = waited.saturating_sub(queue.len());
        self.peers.queued = self.peers.queued.saturating_sub(gone);
        if let Some(peer) = self.peers.get(pair) {
            peer.queue = queue;
        }
        ended
    }

    /// Sends so many of a host's frames, whose costs are counted; those that the kernel has no room for are left. False
    /// where it has none at all.
    fn send_batch(
        &mut self,
        now: u64,
        queue: &mut VecDeque<Queued>,
        mut count: usize,
        whole: bool,
        pair: Pair,
    ) -> bool {
        let mut is_whole = whole || !self.sockets.can_segment();
        while count > 0 {
            let batch = queue.make_contiguous().get_mut(..count).unwrap_or_default();
            let groups = self.prepare(batch, is_whole);
            let Left { groups: messages, frames, failed } = self.send_groups(batch, &groups);
            self.more.messages = self.more.messages.saturating_add(messages as u64);
            self.counters.sent = self.counters.sent.saturating_add(frames as u64);
            for queued in queue.drain(..frames) {
                self.pool.put(queued.frame);
            }
            count = count.saturating_sub(frames);
            let Some(errno) = failed else { continue };
            let to = pair.peer;
            let next = groups.get(messages);
            match errno {
                Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM => {
                    if let Some(peer) = self.peers.get(pair) {
                        queue.range(..count).for_each(|queued| peer.take_back(queued.cost()));
                    }
                    self.counters.held = self.counters.held.saturating_add(1);
                    self.wait_for_room(now, errno, queue);
                    return false;
                }
                // The route cannot segment, or takes no datagrams as long as these.
                Errno::EIO | Errno::EINVAL if next.is_some_and(|group| group.segment.is_some()) => {
                    is_whole = true;
                    // EINVAL may be of a source that is the machine's no more.
                    let is_certain = errno == Errno::EIO;
                    if self.peers.get(pair).is_some_and(|peer| peer.refuse_segments(is_certain)) {
                        log::info!(
                            "{to}: datagrams leave one by one, for its route cannot segment: {errno}"
                        );
                    }
                }
                errno => {
                    let lost = next.map_or(1, |group| group.frames.len()).min(count);
                    self.drop_frames(queue, lost, errno, pair);
                    count = count.saturating_sub(lost);
                }
            }
        }
        true
    }

    /// Sends nothing until the socket by which the first frame of a queue leaves has room, or for some time where it is not
    /// the socket that has none.
    fn wait_for_room(&mut self, now: u64, errno: Errno, queue: &VecDeque<Queued>) {
        let wait = match (errno, queue.front()) {
            (Errno::EAGAIN, Some(Queued { headers, .. })) => {
                self.sockets.await_room(headers.source_port, headers.source.is_ipv4());
                ROOM_NS
            }
            _ => RETRY_NS,
        };
        self.resume = Some(now.saturating_add(wait));
    }

    /// Loses frames that can never be sent.
    fn drop_frames(
        &mut self,
        queue: &mut VecDeque<Queued>,
        count: usize,
        errno: Errno,
        pair: Pair,
    ) {
        let (to, count) = (pair.peer, count.min(queue.len()));
        let counter = match errno {
            Errno::EMSGSIZE => {
                if self.more.too_long == 0 {
                    log::warn!(
                        "{to}: a datagram is longer than its route takes; use a smaller path MTU"
                    );
                }
                &mut self.more.too_long
            }
            _ => &mut self.counters.no_peer,
        };
        *counter = counter.saturating_add(count as u64);
        log::debug!("{to}: {count} datagrams are lost: {errno}");
        for queued in queue.drain(..count) {
            if let Some(peer) = self.peers.get(pair) {
                peer.take_back(queued.cost());
            }
            self.pool.put(queued.frame);
        }
    }

    /// Gives frames their source ports and identifications, and says which leave together.
    fn prepare(&self, batch: &mut [Queued], is_whole: bool) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        // Of the last group, while it can go on: the headers of its frames, the length of each, and that of all.
        let mut open = None;
        for (at, queued) in batch.iter_mut().enumerate() {
            let length = queued.length();
            let Queued { headers, frame, .. } = queued;
            let Some(Leaving { index: sender, port, .. }) =
                self.sockets.sender(headers.source_port, headers.source.is_ipv4())
            else {
                groups.push(Group {
                    frames: at..at.saturating_add(1),
                    sender: usize::MAX,
                    segment: None,
                });
                open = None;
                continue;
            };
            let alike = (headers.source, headers.tos, headers.ttl, sender);
            let goes_on = match (&mut open, groups.last_mut()) {
                (Some((of, segment, total)), Some(group)) if !is_whole => {
                    let fits = *of == alike
                        && length <= *segment
                        && group.frames.len() < MOST_SEGMENTS
                        && length.saturating_add(*total) <= MOST_BYTES;
                    if fits {
                        group.frames.end = at.saturating_add(1);
                        group.segment = u16::try_from(*segment).ok();
                        *total = total.saturating_add(length);
                    }
                    fits
                }
                _ => false,
            };
            if !goes_on {
                groups.push(Group { frames: at..at.saturating_add(1), sender, segment: None });
                open = Some((alike, length, length));
            }
            let number = groups.last().map_or(0, |group| at.saturating_sub(group.frames.start));
            // A shorter one is the last.
            if open.is_some_and(|(_, segment, _)| length < segment) {
                open = None;
            }
            // The bytes that its invariant CRC covers come back where it is opened.
            if frame.is_enclosed() {
                continue;
            }
            let bytes = frame.as_mut_slice();
            if headers.source.is_ipv4() {
                self.differences.put(bytes, IPV4_IDENTIFICATION, (number as u16).to_be_bytes());
                // The kernel forbids that it is cut; a card as published says nothing of that.
                self.differences.put(bytes, IPV4_FLAGS, DONT_FRAGMENT);
            }
            self.differences.put(bytes, headers.source_port_at(), port.to_be_bytes());
        }
        groups
    }

    /// Sends groups as far as it goes.
    fn send_groups(&self, batch: &[Queued], groups: &[Group]) -> Left {
        let parts: Vec<IoSlice<'_>> = batch
            .iter()
            .map(|Queued { headers, frame, .. }| {
                let bytes = frame.as_slice();
                IoSlice::new(bytes.get(headers.payload(bytes.len())).unwrap_or_default())
            })
            .collect();
        let mut left = Left::default();
        while let Some(first) = groups.get(left.groups) {
            let rest = groups.get(left.groups..).unwrap_or_default();
            let same = rest.iter().take(MOST_SENT).take_while(|group| group.sender == first.sender);
            let messages: Vec<Outgoing<'_>> =
                same.filter_map(|group| self.message(batch, &parts, group)).collect();
            let headers = batch.get(first.frames.start).map(|it| it.headers);
            let socket =
                headers.and_then(|it| self.sockets.sender(it.source_port, it.source.is_ipv4()));
            let Some(sender) = socket else {
                return Left { failed: Some(Errno::EAFNOSUPPORT), ..left };
            };
            match sender.socket.send(&messages) {
                Ok(count) => {
                    let taken = rest.iter().take(count).map(|group| group.frames.len());
                    left.frames = left.frames.saturating_add(taken.sum());
                    left.groups = left.groups.saturating_add(count);
                }
                Err(errno) => return Left { failed: Some(errno), ..left },
            }
        }
        left
    }

    fn message<'a>(
        &self,
        batch: &[Queued],
        parts: &'a [IoSlice<'a>],
        group: &Group,
    ) -> Option<Outgoing<'a>> {
        let headers = batch.get(group.frames.start)?.headers;
        let device = device_between(self.device, headers.sent_between());
        Some(Outgoing {
            to: scoped(headers.destination, self.device, headers.destination_port),
            from: headers.source,
            device,
            tos: headers.tos,
            ttl: headers.ttl,
            segment: group.segment,
            parts: parts.get(group.frames.clone())?,
        })
    }
}
