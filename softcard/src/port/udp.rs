//! A card on the machine's own network: its frames are datagrams of ordinary UDP sockets, and its addresses are the
//! machine's.
//!
//! Neighbours, routes and checks of sources are the kernel's: the card's requests to its link are answered here, and
//! its packets go where their IP headers say. A UDP receiver is not told the IPv4 identification that the invariant
//! CRC covers; the difference of the CRC names it ([`roce::wire::difference`]), and it is believed where it can be
//! right: 0, the number of a segment from another balboad, or the next number of a host that numbers its datagrams.
//!
//! To other balboads, known by a word on a port beside RoCE's, datagrams leave in segments, and no more of them are
//! under way than they have room for. To all others each leaves by itself, with identification 0.

mod frames;
pub mod machine;
mod neighbours;
mod numbers;
mod peers;
mod receiving;
mod sending;
mod sockets;
mod word;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use hostmem::udp::ReceiveRoom;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use roce::param::ROCE_UDP_PORT;
use roce::qos::Qos;
use roce::wire::difference::Differences;
use roce::{MacAddr, PathMtu};

use self::frames::{Headers, Pair};
use self::machine::{MachineDevice, has_route, path_mtu};
use self::neighbours::{Asked, asked};
use self::peers::Peers;
use self::sockets::{MOST_GROUPS, Sockets};
use super::{Counters, Frame, FramePool, MIN_FRAME, Port};
use crate::Error;
use crate::link::UdpOptions;

/// The UDP port of words between balboads.
pub(crate) const WORD_PORT: u16 = 14791;
/// Bytes of receive buffer asked for at each address; the kernel grants up to `net.core.rmem_max`.
const RECEIVE_ROOM: usize = *UdpOptions::ROOMS.end();
/// Frames that wait in the port at most before it takes no more: as many as a burst of several queue pairs.
const QUEUE: usize = 512;
/// How long to wait, in nanoseconds, before a datagram that found no room is tried again.
const RETRY_NS: u64 = 100_000;
/// The same where its socket tells when it has room.
const ROOM_NS: u64 = 10_000_000;
/// How often an address is tried that the machine has not yet.
const ADDRESS_NS: u64 = 500_000_000;

/// A port on the machine's own network.
pub struct UdpPort {
    name: String,
    device: u32,
    /// Bytes that the device takes in one packet.
    mtu: u32,
    mac: MacAddr,
    sockets: Sockets,
    peers: Peers,
    differences: Differences,
    /// No host's count of its datagrams is believed.
    is_strict: bool,
    room: ReceiveRoom,
    /// Frames that came in one call with others, and answers to the card's questions.
    arrived: VecDeque<Frame>,
    /// The socket with arrivals where the last round began; and whether it left some.
    turn: usize,
    again: bool,
    /// When to try again, after a datagram found no room.
    resume: Option<u64>,
    /// When to try addresses again that the machine has not yet.
    next_binding: Option<u64>,
    pool: FramePool,
    counters: Counters,
    more: MoreCounters,
}

/// The counters of this kind of port beside the common ones.
#[derive(Clone, Copy, Debug, Default)]
struct MoreCounters {
    /// Messages to the kernel, of one datagram or of several segments.
    messages: u64,
    /// Datagrams that found no room at a socket.
    lost: u64,
    /// Datagrams that were longer than their route takes.
    too_long: u64,
    /// Datagrams with an IPv4 identification that was believed.
    numbered: u64,
    /// Frames lost because their host had no room, and others waited.
    held_up: u64,
}

impl UdpPort {
    /// Stands on the addresses of a device.
    ///
    /// # Errors
    /// The kernel's: [`io::ErrorKind::AddrInUse`] where another program has the UDP port there, 4791 or the one in the
    /// options; [`io::ErrorKind::PermissionDenied`] where that takes a privilege.
    pub fn open(device: &MachineDevice, options: UdpOptions, pool: FramePool) -> io::Result<Self> {
        let room = options.room.map_or(RECEIVE_ROOM, |room| room.min(RECEIVE_ROOM));
        let addresses: Vec<IpAddr> = device.addresses.iter().map(|it| it.ip).collect();
        let mut sockets = Sockets::open(device.index, options.port.unwrap_or(ROCE_UDP_PORT), room)?;
        let mut bound = Err(Errno::EADDRNOTAVAIL);
        for ip in &addresses {
            match sockets.bind(*ip) {
                Err(errno @ (Errno::EADDRINUSE | Errno::EACCES)) => return Err(errno.into()),
                this => bound = bound.or(this),
            }
        }
        bound?;
        let mut session = [0; 8];
        getrandom::fill(&mut session).map_err(io::Error::other)?;
        let peers = Peers::new(sockets.receive_room(), u64::from_ne_bytes(session));
        Ok(Self {
            name: device.name.clone(),
            device: device.index,
            mtu: device.mtu,
            mac: MacAddr::default(),
            sockets,
            peers,
            differences: Differences::default(),
            is_strict: options.is_strict,
            room: ReceiveRoom::default(),
            arrived: VecDeque::new(),
            turn: 0,
            again: false,
            resume: None,
            next_binding: None,
            pool,
            counters: Counters::default(),
            more: MoreCounters::default(),
        })
    }

    /// Takes a frame of the card's that is no datagram: a question for its link.
    fn take(&mut self, now: u64, frame: Frame) {
        match asked(frame.as_slice()) {
            Some(Asked::Whose { from, to, answer }) => self.answer(now, from, to, &answer),
            // The kernel reports them by itself.
            Some(Asked::Groups) => {}
            None => self.counters.no_peer = self.counters.no_peer.saturating_add(1),
        }
        self.pool.put(frame);
    }

    /// Answers for the owner of an address, where the kernel has a route there; and asks whether it is a balboad.
    fn answer(&mut self, now: u64, from: IpAddr, to: IpAddr, answer: &[u8]) {
        if !has_route(from, self.device, to) {
            return;
        }
        let pair = Pair { own: from, peer: to };
        self.peers.known(pair);
        self.ask(now, pair);
        if let Some(frame) = Frame::from_bytes(answer) {
            self.arrived.push_back(frame);
        }
    }

    /// Asks a host whether it is a balboad, if it is time.
    fn ask(&mut self, now: u64, pair: Pair) {
        if pair.peer.is_multicast() {
            return;
        }
        if let Some(word) = self.peers.question(now, pair) {
            self.sockets.say(pair, &word);
        }
    }
}

impl Port for UdpPort {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        while self.peers.queued < QUEUE {
            let Some(first) = burst.front() else { break };
            if let Some(headers) = Headers::of(first.as_slice(), self.sockets.port) {
                let Self { peers, pool, more, .. } = self;
                peers.queue(now, headers, burst, QUEUE, |frame| {
                    more.held_up = more.held_up.saturating_add(1);
                    pool.put(frame);
                });
                continue;
            }
            let Some(frame) = burst.pop_front() else { break };
            match frame.as_slice().len() {
                MIN_FRAME.. => self.take(now, frame),
                _ => {
                    self.counters.bad_length = self.counters.bad_length.saturating_add(1);
                    self.pool.put(frame);
                }
            }
        }
        if !burst.is_empty() {
            self.counters.held = self.counters.held.saturating_add(1);
        }
        self.flush_queues(now);
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        if self.next_binding.is_some_and(|at| at <= now) {
            self.next_binding = self.sockets.bind_missing().then(|| now.saturating_add(ADDRESS_NS));
        }
        if self.arrived.len() < budget {
            self.take_datagrams(now, budget);
        }
        let count = self.arrived.len().min(budget);
        into.extend(self.arrived.drain(..count));
        self.counters.received = self.counters.received.saturating_add(count as u64);
        // A word may have made room, or a time has come.
        self.flush_queues(now);
    }

    fn room(&self) -> usize {
        match self.resume {
            Some(_) => 0,
            None => QUEUE.saturating_sub(self.peers.queued),
        }
    }

    fn qos(&self) -> Result<&Qos, Error> {
        Err(Error::MachinesQueues)
    }

    fn set_qos(&mut self, _now: u64, _qos: &Qos) -> Result<(), Error> {
        Err(Error::MachinesQueues)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.events.0.as_fd())
    }

    fn next_timeout(&self) -> Option<u64> {
        let arrived = (self.again || !self.arrived.is_empty()).then_some(0);
        let asking = self.peers.next_timeout().filter(|_| self.resume.is_none());
        let waits = [arrived, self.resume, self.next_binding, asking];
        waits.into_iter().flatten().min()
    }

    fn set_addresses(&mut self, mac: [u8; 6], addresses: &[IpAddr]) {
        self.mac = MacAddr(mac);
        let index = if_nametoindex(self.name.as_str());
        if let Some(index) = index.ok().filter(|index| *index != self.device) {
            // It went, and is back.
            self.device = index;
            self.sockets.stand_on(index);
        }
        // Addresses that cannot be bound now are tried again by and by.
        self.next_binding = self.sockets.set_addresses(addresses).then_some(0);
    }

    fn path_mtu(&self, longer: usize) -> PathMtu {
        path_mtu(self.mtu, longer).unwrap_or(PathMtu::Mtu256)
    }

    fn most_groups(&self) -> usize {
        MOST_GROUPS
    }

    fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        self.sockets.hear_group(group, is_member)
    }

    fn reset(&mut self) {
        let waiting = self.peers.take_queued().chain(self.arrived.drain(..));
        waiting.for_each(|frame| self.pool.put(frame));
        self.sockets.leave_groups();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters.list();
        counters.extend([
            ("port_messages_sent", self.more.messages),
            ("port_frames_lost", self.more.lost),
            ("port_frames_too_long", self.more.too_long),
            ("port_frames_numbered", self.more.numbered),
            ("port_frames_held_up", self.more.held_up),
            ("port_words_unanswered", self.peers.unanswered),
            ("port_balboads_known", self.peers.balboads() as u64),
            ("port_balboads_given_up", self.peers.given_up),
        ]);
        counters
    }
}

#[cfg(test)]
mod tests;
