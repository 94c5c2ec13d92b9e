//! What a host knows of its peers, and the packets between them.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cipher::Cipher;
use crate::epoch::{Epoch, Epochs, Source};
use crate::header::Header;
use crate::keys::{Ends, Secret, derived};
use crate::param::{ASSOCIATIONS, LONGER, SECRET};
use crate::version::Version;
use crate::window::Window;

/// A host that shares a key with this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The key, which no other peer has.
    pub secret: Secret,
}

/// Why a packet is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its header is none of ours, or of another version.
    Bad,
    /// No key is shared with the sender.
    NoKey,
    /// It is of an epoch that is over.
    Stale,
    /// It has come before, or is too old to know.
    Replayed,
    /// No holder of the key has sealed it as it is.
    NotAuthentic,
}

/// Counters, by the names of Linux' `psp` where that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Epochs that followed another of the same sender, here.
    pub key_rotations: u64,
    /// Packets of an epoch that is over.
    pub stale_events: u64,
    /// Packets that were opened.
    pub rx_packets: u64,
    /// Bytes that these enclosed.
    pub rx_bytes: u64,
    /// Packets whose integrity check value is wrong.
    pub rx_auth_fail: u64,
    /// Packets from hosts without a key.
    pub rx_error: u64,
    /// Packets with another header.
    pub rx_bad: u64,
    /// Packets that have come before.
    pub rx_replayed: u64,
    /// Packets that were sealed.
    pub tx_packets: u64,
    /// Bytes that these enclose.
    pub tx_bytes: u64,
    /// Packets that were not sealed, for want of a key.
    pub tx_error: u64,
}

/// One direction, as its sender knows it.
#[derive(Debug)]
struct Sending {
    ends: Ends,
    epoch: Epoch,
    cipher: Cipher,
}

/// An epoch of a sender's, as its receiver knows it.
#[derive(Debug)]
struct Heard {
    number: u64,
    spi: u32,
    cipher: Cipher,
    window: Window,
}

/// One direction, as its receiver knows it: the newest epoch, and the one before, of which packets may still come.
#[derive(Debug)]
struct Receiving {
    ends: Ends,
    newest: Heard,
    before: Option<Heard>,
}

/// A peer, and all directions to and from it.
#[derive(Debug)]
struct Known {
    secret: Secret,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
}

impl Known {
    const fn new(secret: Secret) -> Self {
        Self { secret, sending: Vec::new(), receiving: Vec::new() }
    }

    fn cipher(&self, ends: Ends, (number, spi): (u64, u32), version: Version) -> Cipher {
        Cipher::new(version, &derived(&self.secret.master(ends, number), spi, version))
    }
}

/// Puts one to others, of which there are a few at most; the oldest goes where there are too many.
fn put<T>(all: &mut Vec<T>, one: T) -> Option<&mut T> {
    if all.len() >= ASSOCIATIONS {
        all.remove(0);
    }
    all.push(one);
    all.last_mut()
}

/// The peers of a host, and what passes between them.
#[derive(Debug)]
pub struct Associations {
    version: Version,
    peers: Vec<Known>,
    by_address: HashMap<IpAddr, usize>,
    /// For packets to the host itself, under a key that no other host has.
    itself: Known,
    epochs: Epochs,
    counters: Counters,
}

impl Associations {
    /// Those with these peers. An address that several have is the last one's.
    #[must_use]
    pub fn new(version: Version, peers: Vec<Peer>, source: Box<dyn Source>) -> Self {
        let mut epochs = Epochs::new(source);
        let itself = Known::new(Secret::new(epochs.random::<SECRET>()));
        let addresses = peers.iter().enumerate();
        let by_address =
            addresses.flat_map(|(at, peer)| peer.addresses.iter().map(move |ip| (*ip, at)));
        let by_address = by_address.collect();
        let peers = peers.into_iter().map(|peer| Known::new(peer.secret)).collect();
        Self { version, peers, by_address, itself, epochs, counters: Counters::default() }
    }

    /// Has each epoch end after so many packets, if that is sooner than it would; so keys are rotated often, as tests want
    /// it.
    #[must_use]
    pub fn with_epochs_of(mut self, packets: u32) -> Self {
        self.epochs.shorten(packets);
        self
    }

    /// Whether a key is shared with the host of an address.
    #[must_use]
    pub fn has(&self, peer: IpAddr) -> bool {
        self.by_address.contains_key(&peer)
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Seals a packet of a queue pair's, which stands behind room for a header and before room for an integrity check
    /// value. `false`, and the packet must not leave, where there is no key for it.
    pub fn seal(&mut self, ends: Ends, to_itself: bool, qpn: u32, packet: &mut [u8]) -> bool {
        let sealed = self.sealed(ends, to_itself, qpn, packet).is_some();
        let Counters { tx_packets, tx_bytes, tx_error, .. } = &mut self.counters;
        if sealed {
            bump(tx_packets, 1);
            bump(tx_bytes, packet.len().saturating_sub(LONGER));
        } else {
            bump(tx_error, 1);
        }
        sealed
    }

    fn sealed(&mut self, ends: Ends, to_itself: bool, qpn: u32, packet: &mut [u8]) -> Option<()> {
        let Self { version, peers, by_address, itself, epochs, counters } = self;
        let known = match to_itself {
            true => itself,
            false => peers.get_mut(*by_address.get(&ends.to)?)?,
        };
        let at = known.sending.iter().position(|it| it.ends == ends);
        let iv = at.and_then(|at| known.sending.get_mut(at)?.epoch.next_iv());
        let (iv, sending) = match (iv, at) {
            (Some(iv), Some(at)) => (iv, known.sending.get_mut(at)?),
            // It is the first, or the epoch has had as many as it may.
            (_, at) => {
                let mut epoch = epochs.next()?;
                let iv = epoch.next_iv()?;
                let cipher = known.cipher(ends, (epoch.number, epoch.spi), *version);
                let begun = Sending { ends, epoch, cipher };
                let sending = match at {
                    Some(at) => {
                        bump(&mut counters.key_rotations, 1);
                        let place = known.sending.get_mut(at)?;
                        *place = begun;
                        place
                    }
                    None => put(&mut known.sending, begun)?,
                };
                (iv, sending)
            }
        };
        let Epoch { number, spi, .. } = sending.epoch;
        let header = Header { version: *version, spi, iv, epoch: number, qpn };
        sending.cipher.seal(&header, packet).then_some(())
    }

    /// Opens a packet: the enclosed datagram then stands behind its header and before its integrity check value.
    /// Returns the number of the queue pair that has sent it.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed but its counter.
    pub fn open(&mut self, ends: Ends, to_itself: bool, packet: &mut [u8]) -> Result<u32, Refusal> {
        let opened = self.opened(ends, to_itself, packet);
        let counters = &mut self.counters;
        match opened {
            Ok(_) => {
                bump(&mut counters.rx_packets, 1);
                bump(&mut counters.rx_bytes, packet.len().saturating_sub(LONGER));
            }
            Err(Refusal::Bad) => bump(&mut counters.rx_bad, 1),
            Err(Refusal::NoKey) => bump(&mut counters.rx_error, 1),
            Err(Refusal::Stale) => bump(&mut counters.stale_events, 1),
            Err(Refusal::Replayed) => bump(&mut counters.rx_replayed, 1),
            Err(Refusal::NotAuthentic) => bump(&mut counters.rx_auth_fail, 1),
        }
        opened
    }

    fn opened(&mut self, ends: Ends, to_itself: bool, packet: &mut [u8]) -> Result<u32, Refusal> {
        let Self { version, peers, by_address, itself, .. } = self;
        let header = Header::parse(packet).filter(|header| header.version == *version);
        let header = header.ok_or(Refusal::Bad)?;
        let Header { iv, epoch, spi, qpn, .. } = header;
        let known = match to_itself {
            true => itself,
            false => by_address
                .get(&ends.from)
                .and_then(|at| peers.get_mut(*at))
                .ok_or(Refusal::NoKey)?,
        };
        let is_it = |heard: &Heard| (heard.number, heard.spi) == (epoch, spi);
        let at = known.receiving.iter().position(|it| it.ends == ends);
        let receiving = at.and_then(|at| known.receiving.get_mut(at));
        if let Some(Receiving { newest, before, .. }) = receiving {
            let before = before.as_mut().filter(|heard| is_it(heard));
            let heard = if is_it(newest) { Some(&mut *newest) } else { before };
            if let Some(Heard { cipher, window, .. }) = heard {
                return match window.is_new(iv) {
                    true if cipher.open(&header, packet) => {
                        window.take(iv);
                        Ok(qpn)
                    }
                    true => Err(Refusal::NotAuthentic),
                    false => Err(Refusal::Replayed),
                };
            }
            if epoch <= newest.number {
                return Err(Refusal::Stale);
            }
        }
        // An epoch begins, if the key says so.
        let cipher = known.cipher(ends, (epoch, spi), *version);
        if !cipher.open(&header, packet) {
            return Err(Refusal::NotAuthentic);
        }
        let window = Window::beginning_with(iv);
        let begun = Heard { number: epoch, spi, cipher, window };
        match at.and_then(|at| known.receiving.get_mut(at)) {
            Some(Receiving { newest, before, .. }) => {
                *before = Some(std::mem::replace(newest, begun));
            }
            None => {
                put(&mut known.receiving, Receiving { ends, newest: begun, before: None });
            }
        }
        Ok(qpn)
    }
}

fn bump(counter: &mut u64, by: usize) {
    *counter = counter.saturating_add(by as u64);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::param::{EPOCH_PACKETS, HEADER, ICV};

    #[derive(Debug)]
    struct At(u64);

    impl Source for At {
        fn time(&mut self) -> Duration {
            Duration::from_secs(self.0)
        }

        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(self.0 as u8);
        }
    }

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const THERE: Ends = Ends { from: ONE, to: OTHER };

    fn host(seconds: u64, peer: IpAddr) -> Associations {
        let peer = Peer { addresses: vec![peer], secret: Secret::new([7; SECRET]) };
        Associations::new(Version::AesGcm128, vec![peer], Box::new(At(seconds)))
    }

    fn sealed(host: &mut Associations) -> Vec<u8> {
        let mut packet = vec![0; HEADER + 4 + ICV];
        assert!(host.seal(THERE, false, 1, &mut packet));
        packet
    }

    /// An epoch ends before a connection's PSNs are used up, nothing is lost at its end, and what was recorded of it is no
    /// good soon after.
    #[test]
    fn keys_are_rotated_before_a_psn_can_come_again_and_nothing_is_lost() {
        let (mut one, mut other) = (host(1_000, OTHER), host(1_000, ONE));
        let epoch = |packet: &[u8]| Header::parse(packet).unwrap().epoch;
        let first = sealed(&mut one);
        assert_eq!(other.open(THERE, false, &mut first.clone()), Ok(1));
        one.peers[0].sending[0].epoch.skip(EPOCH_PACKETS - 2);
        let last = sealed(&mut one);
        let next = sealed(&mut one);
        assert_eq!((epoch(&first), epoch(&first) + 1), (epoch(&last), epoch(&next)));
        assert_eq!(one.counters().key_rotations, 1);
        // One overtakes the other.
        for packet in [&next, &last] {
            assert_eq!(other.open(THERE, false, &mut packet.clone()), Ok(1));
            assert_eq!(other.open(THERE, false, &mut packet.clone()), Err(Refusal::Replayed));
        }
        // The sender starts again.
        let mut again = host(1_001, OTHER);
        assert_eq!(other.open(THERE, false, &mut sealed(&mut again)), Ok(1));
        assert_eq!(other.open(THERE, false, &mut last.clone()), Err(Refusal::Stale));
        assert_eq!(other.open(THERE, false, &mut next.clone()), Err(Refusal::Replayed));
        assert_eq!((other.counters().stale_events, other.counters().rx_replayed), (1, 3));
    }

    /// So a peer with many addresses makes this host remember no more.
    #[test]
    fn associations_are_few() {
        let mut one = host(1_000, OTHER);
        let mut other = host(1_000, ONE);
        for last in 0..100 {
            let ends = Ends { from: ONE, to: IpAddr::from([10, 0, 1, last]) };
            one.by_address.insert(ends.to, 0);
            let mut packet = vec![0; HEADER + ICV];
            assert!(one.seal(ends, false, 1, &mut packet));
            assert_eq!(other.open(ends, false, &mut packet), Ok(1));
        }
        assert_eq!(one.peers[0].sending.len(), ASSOCIATIONS);
        assert_eq!(other.peers[0].receiving.len(), ASSOCIATIONS);
    }
}
