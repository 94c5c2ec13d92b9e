//! The sockets of a port: for each of the card's addresses one where RoCE arrives and one for words, for each group that
//! it is in one, and some to send by.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};

use hostmem::UdpSocket;
use hostmem::udp::Outgoing;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::WORD_PORT;
use super::frames::Pair;
use super::machine::{device_between, is_of_link, scoped};
use super::word::Word;

/// Bytes of room that words have.
const WORD_ROOM: usize = 64 << 10;
/// Groups that a port is in at most: each is a socket of the process's, and room of the machine's.
pub(super) const MOST_GROUPS: usize = 256;
/// Bytes of room that a group has.
const GROUP_ROOM: usize = 1 << 20;
/// Sockets to send by, each of each kind of address: routers spread flows by their source ports.
const SENDERS: usize = 4;
/// Sockets that are looked at in one go.
pub(super) const READY: usize = 32;
/// The token of the sending socket that has room again.
const ROOM: u64 = u64::MAX;
/// Attempts to find a port that is free for both kinds of addresses.
const ATTEMPTS: usize = 16;

/// The kind of datagrams at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arriving {
    /// RoCE, for an address of the card's or a group.
    Roce,
    /// Words between balboads.
    Words,
}

/// A socket that receives.
#[derive(Debug)]
pub(super) struct Listening {
    /// Where it is bound: an address of the card's, or a group.
    pub(super) ip: IpAddr,
    pub(super) arriving: Arriving,
    pub(super) socket: UdpSocket,
    /// The last value of its counter of lost datagrams, modulo 2^32.
    pub(super) lost: Cell<u32>,
}

/// An address of the card's, and which sockets it has.
#[derive(Debug)]
struct Own {
    ip: IpAddr,
    roce: u64,
    /// The socket for words; `None` where another program has their port: then no host is sent segments from here.
    words: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sockets {
    device: u32,
    /// The port where datagrams arrive.
    pub(super) port: u16,
    /// Bytes of receive buffer asked for.
    room: usize,
    listening: BTreeMap<u64, Listening>,
    next: u64,
    own: Vec<Own>,
    /// The addresses that the card is to have.
    wanted: Vec<IpAddr>,
    /// The groups that the card is in, each with its socket; without one while the device cannot hear it.
    groups: HashMap<IpAddr, Option<u64>>,
    senders: Vec<Sender>,
    /// The set that is readable when datagrams have arrived, or there is room that was waited for.
    pub(super) events: Epoll,
}

/// How a flow leaves.
pub(super) struct Leaving<'a> {
    /// The number of its source port.
    pub(super) index: usize,
    pub(super) port: u16,
    pub(super) socket: &'a UdpSocket,
}

/// One source port, for both kinds of addresses that the machine has.
#[derive(Debug)]
struct Sender {
    port: u16,
    ipv4: Option<UdpSocket>,
    ipv6: Option<UdpSocket>,
}

impl Sender {
    fn open() -> io::Result<Self> {
        let mut last = Errno::EADDRINUSE;
        for _ in 0..ATTEMPTS {
            let ipv4 = UdpSocket::bind(SocketAddr::from(([0; 4], 0)), 0, false);
            let port = ipv4.as_ref().map_or(0, |socket| socket.local().port());
            let ipv6 = UdpSocket::bind(SocketAddr::from(([0; 16], port)), 0, false);
            match (ipv4, ipv6) {
                (Ok(ipv4), Ok(ipv6)) => {
                    return Ok(Self { port, ipv4: Some(ipv4), ipv6: Some(ipv6) });
                }
                (Ok(ipv4), Err(error)) if error.errno() != Some(Errno::EADDRINUSE) => {
                    return Ok(Self { port, ipv4: Some(ipv4), ipv6: None });
                }
                (Err(_), Ok(ipv6)) => {
                    let port = ipv6.local().port();
                    return Ok(Self { port, ipv4: None, ipv6: Some(ipv6) });
                }
                (_, Err(error)) => last = error.errno().unwrap_or(last),
            }
        }
        Err(io::Error::from(last))
    }
}

impl Sockets {
    /// Those to send by.
    pub(super) fn open(device: u32, port: u16, room: usize) -> io::Result<Self> {
        let senders = (0..SENDERS).map(|_| Sender::open()).collect::<io::Result<_>>()?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (listening, next, own) = (BTreeMap::new(), 0, Vec::new());
        let (wanted, groups) = (Vec::new(), HashMap::new());
        Ok(Self { device, port, room, listening, next, own, wanted, groups, senders, events })
    }

    /// Listens at a port of an address.
    fn listen(&mut self, ip: IpAddr, arriving: Arriving) -> Result<u64, Errno> {
        let (port, room) = match arriving {
            Arriving::Roce if ip.is_multicast() => (self.port, self.room.min(GROUP_ROOM)),
            Arriving::Roce => (self.port, self.room),
            Arriving::Words => (WORD_PORT, WORD_ROOM),
        };
        let together = arriving == Arriving::Roce;
        let socket = UdpSocket::bind(scoped(ip, self.device, port), room, together);
        let socket = socket.map_err(|error| error.errno().unwrap_or(Errno::EIO))?;
        if ip.is_multicast() {
            socket.join_group(ip, self.device)?;
        }
        let token = self.next;
        self.events.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        self.next = self.next.saturating_add(1);
        let lost = Cell::new(0);
        self.listening.insert(token, Listening { ip, arriving, socket, lost });
        Ok(token)
    }

    /// Binds an address.
    pub(super) fn bind(&mut self, ip: IpAddr) -> Result<(), Errno> {
        let roce = self.listen(ip, Arriving::Roce)?;
        let words = self.listen(ip, Arriving::Words);
        if let Err(errno) = words {
            log::warn!("{ip}: UDP port {WORD_PORT}, by which balboads know each other: {errno}");
        }
        self.own.push(Own { ip, roce, words: words.ok() });
        Ok(())
    }

    /// Binds these addresses, as far as the machine has them; true where it lacks one.
    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr]) -> bool {
        self.wanted = addresses.to_vec();
        let (kept, gone): (Vec<_>, _) =
            self.own.drain(..).partition(|own| addresses.contains(&own.ip));
        self.own = kept;
        for token in gone.iter().flat_map(|own| own.words.into_iter().chain([own.roce])) {
            self.listening.remove(&token);
        }
        self.bind_missing()
    }

    /// Binds the addresses that the machine lacked, and joins the groups that its device could not; true where one is
    /// still missing.
    pub(super) fn bind_missing(&mut self) -> bool {
        let mut is_missing = false;
        for ip in self.wanted.clone() {
            if self.has(ip) {
                continue;
            }
            if let Err(errno) = self.bind(ip) {
                // An address that was just given to the machine may not be in use for a second.
                log::debug!("{ip}: UDP port {}: {errno}", self.port);
                is_missing = true;
            }
        }
        let unheard = self.groups.iter().filter(|(_, token)| token.is_none());
        for group in unheard.map(|(group, _)| *group).collect::<Vec<_>>() {
            match self.listen(group, Arriving::Roce) {
                Ok(token) => {
                    self.groups.insert(group, Some(token));
                }
                Err(errno) => {
                    log::debug!("group {group}: {errno}");
                    is_missing = true;
                }
            }
        }
        is_missing
    }

    /// Takes the device's new number: sockets bound by the old one are to be bound anew, by [`Sockets::bind_missing`].
    pub(super) fn stand_on(&mut self, device: u32) {
        self.device = device;
        let is_of_link = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if is_of_link(ip));
        let (of_link, kept): (Vec<_>, _) = self.own.drain(..).partition(|own| is_of_link(own.ip));
        self.own = kept;
        for token in of_link.iter().flat_map(|own| own.words.into_iter().chain([own.roce])) {
            self.listening.remove(&token);
        }
        for token in self.groups.values_mut().filter_map(Option::take) {
            self.listening.remove(&token);
        }
    }

    /// Whether an address is the card's.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }

    /// Hears a group, or no more; false where it cannot.
    pub(super) fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        if !is_member {
            if let Some(token) = self.groups.remove(&group).flatten() {
                self.listening.remove(&token);
            }
            return true;
        }
        if self.groups.contains_key(&group) {
            return true;
        }
        if !group.is_multicast() || self.groups.len() >= MOST_GROUPS {
            return false;
        }
        match self.listen(group, Arriving::Roce) {
            Ok(token) => {
                self.groups.insert(group, Some(token));
                true
            }
            Err(errno) => {
                log::warn!("group {group}: {errno}");
                false
            }
        }
    }

    /// How many groups are heard.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.values().flatten().count()
    }

    /// Hears no group any more.
    pub(super) fn leave_groups(&mut self) {
        for token in self.groups.drain().filter_map(|(_, token)| token) {
            self.listening.remove(&token);
        }
    }

    /// The sockets with arrivals, [`READY`] at most; and whether one has room that was waited for.
    pub(super) fn ready(&self) -> (Vec<&Listening>, bool) {
        let mut events = [EpollEvent::empty(); READY];
        let count = self.events.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let tokens = events.iter().take(count).map(EpollEvent::data);
        let has_room = tokens.clone().any(|token| token == ROOM);
        (tokens.filter_map(|token| self.listening.get(&token)).collect(), has_room)
    }

    /// Has `events` tell once when the socket by which a flow leaves has room.
    pub(super) fn await_room(&self, flow: u16, is_ipv4: bool) {
        let Some(Leaving { socket, .. }) = self.sender(flow, is_ipv4) else { return };
        let mut event = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT, ROOM);
        // It was waited for before, or never.
        let waits = self.events.modify(socket, &mut event);
        if let Err(errno) = waits.or_else(|_| self.events.add(socket, event)) {
            log::debug!("room of a socket is not waited for: {errno}");
        }
    }

    /// The socket by which a flow leaves: for each flow always the same.
    pub(super) fn sender(&self, flow: u16, is_ipv4: bool) -> Option<Leaving<'_>> {
        let folded = usize::from(flow ^ flow >> 5 ^ flow >> 10);
        let index = folded.checked_rem(self.senders.len())?;
        let sender = self.senders.get(index)?;
        let socket = if is_ipv4 { sender.ipv4.as_ref() } else { sender.ipv6.as_ref() };
        Some(Leaving { index, port: sender.port, socket: socket? })
    }

    /// Whether the kernel cuts messages into segments.
    pub(super) fn can_segment(&self) -> bool {
        self.senders
            .iter()
            .flat_map(|it| [&it.ipv4, &it.ipv6])
            .flatten()
            .all(UdpSocket::can_segment)
    }

    /// Bytes of receive buffer that each address has, as the kernel counts them.
    pub(super) fn receive_room(&self) -> usize {
        let roce = self.own.iter().filter_map(|own| self.listening.get(&own.roce));
        roce.map(|it| it.socket.receive_room()).min().unwrap_or(0)
    }

    /// Says a word, which may be lost.
    pub(super) fn say(&self, pair: Pair, word: &Word) {
        let own = self.own.iter().find(|own| own.ip == pair.own).and_then(|own| own.words);
        let Some(Listening { socket, .. }) = own.and_then(|token| self.listening.get(&token))
        else {
            return;
        };
        let bytes = word.to_bytes();
        let parts = [IoSlice::new(&bytes)];
        let to = scoped(pair.peer, self.device, WORD_PORT);
        let (from, device) = (pair.own, device_between(self.device, pair));
        let message = Outgoing { to, from, device, tos: 0, ttl: 64, segment: None, parts: &parts };
        if let Err(errno) = socket.send(&[message]) {
            log::debug!("a word to {to}: {errno}");
        }
    }
}
