//! Rules that hold of all packets, tried with random ones by a seed.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests may fail")]

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use psp::param::{HEADER, ICV, WINDOW};
use psp::{Associations, Ends, Header, Peer, Refusal, Secret, Source, Version};
use trial::rng::{Rng, pattern};

/// A clock that stands, and random numbers of a seed.
#[derive(Debug)]
struct Seeded {
    seconds: u64,
    rng: Rng,
}

impl Source for Seeded {
    fn time(&mut self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
    }
}

const ONE: &str = "10.0.0.1";
const OTHER: &str = "2001:db8::2";

fn ends(from: &str, to: &str) -> Ends {
    Ends { from: from.parse().unwrap(), to: to.parse().unwrap() }
}

/// A host that began at that time.
fn began(seconds: u64, seed: u64, version: Version, peer: &str, secret: u8) -> Associations {
    let addresses: Vec<IpAddr> = vec![peer.parse().unwrap()];
    let peer = Peer { addresses, secret: Secret::new([secret; 32]) };
    let rng = Rng::new(seed);
    Associations::new(version, vec![peer], Box::new(Seeded { seconds, rng }))
}

fn host(seed: u64, peer: &str) -> Associations {
    began(1_000, seed, Version::AesGcm128, peer, 7)
}

fn packet(bytes: &[u8]) -> Vec<u8> {
    [&[0; HEADER][..], bytes, &[0; ICV]].concat()
}

fn sealed(host: &mut Associations, ends: Ends, qpn: u32, bytes: &[u8]) -> Vec<u8> {
    let mut packet = packet(bytes);
    assert!(host.seal(ends, false, qpn, &mut packet));
    packet
}

#[test]
fn what_is_sealed_is_opened_at_its_peer_alone() {
    for (seed, version) in (0..).zip(Version::ALL) {
        let mut rng = Rng::new(seed);
        let mut one = began(1_000, seed, version, OTHER, 7);
        let mut other = began(1_000, seed + 10, version, ONE, 7);
        let mut stranger = began(1_000, seed + 20, version, ONE, 8);
        for _ in 0..200 {
            let mut bytes = vec![0; rng.between(0, 4200) as usize];
            pattern(rng.next(), 0, &mut bytes);
            let qpn = rng.below(1 << 24) as u32;
            let there = ends(ONE, OTHER);
            let mut packet = sealed(&mut one, there, qpn, &bytes);
            let before = packet.clone();
            // Not with another key, not the other way, not at another address, not for the host itself.
            assert_eq!(stranger.open(there, false, &mut packet), Err(Refusal::NotAuthentic));
            let back = ends(ONE, ONE);
            assert_eq!(other.open(back, false, &mut packet), Err(Refusal::NotAuthentic));
            assert_eq!(other.open(there, true, &mut packet), Err(Refusal::NotAuthentic));
            let nobody = ends("10.0.0.9", OTHER);
            assert_eq!(other.open(nobody, false, &mut packet), Err(Refusal::NoKey));
            assert_eq!(packet, before, "what is refused stays as it is");
            assert_eq!(other.open(there, false, &mut packet), Ok(qpn));
            assert_eq!(packet[HEADER..packet.len() - ICV], bytes);
        }
        assert_eq!(other.counters().rx_packets, 200);
        assert_eq!(one.counters().tx_packets, 200);
        assert_eq!(other.counters().rx_bytes, one.counters().tx_bytes);
        assert_eq!((other.counters().rx_auth_fail, other.counters().rx_error), (400, 200));
    }
}

/// A host's own packets do not come back to it as its peer's.
#[test]
fn a_reflected_packet_is_not_opened() {
    let mut one = host(1, OTHER);
    let mut packet = sealed(&mut one, ends(ONE, OTHER), 5, b"some");
    assert_eq!(one.open(ends(OTHER, ONE), false, &mut packet), Err(Refusal::NotAuthentic));
}

#[test]
fn a_packet_of_which_any_bit_is_changed_is_not_opened() {
    for version in Version::ALL {
        let mut one = began(1_000, 1, version, OTHER, 7);
        let mut other = began(1_000, 2, version, ONE, 7);
        let there = ends(ONE, OTHER);
        let whole = sealed(&mut one, there, 5, b"forty bytes or so of what nobody changes");
        for bit in 0..8 * whole.len() {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            let refused = other.open(there, false, &mut changed).unwrap_err();
            assert!([Refusal::NotAuthentic, Refusal::Bad].contains(&refused), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(other.open(there, false, &mut whole[..length].to_vec()).is_err());
        }
        assert_eq!(other.open(there, false, &mut whole.clone()), Ok(5));
    }
}

#[test]
fn a_packet_is_opened_once_in_any_order() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut one, mut other) = (host(seed, OTHER), host(seed + 100, ONE));
        let there = ends(ONE, OTHER);
        let packets: Vec<Vec<u8>> =
            (0_u32..300).map(|at| sealed(&mut one, there, at, &at.to_be_bytes())).collect();
        let mut seen = HashSet::new();
        for _ in 0..2_000 {
            let at = rng.below(300) as u32;
            let opened = other.open(there, false, &mut packets[at as usize].clone());
            let expected = if seen.insert(at) { Ok(at) } else { Err(Refusal::Replayed) };
            assert_eq!(opened, expected);
        }
    }
}

#[test]
fn a_packet_far_behind_is_taken_for_one_that_has_come() {
    let (mut one, mut other) = (host(1, OTHER), host(2, ONE));
    let there = ends(ONE, OTHER);
    let mut first = sealed(&mut one, there, 1, b"first");
    for _ in 0..WINDOW {
        let mut packet = sealed(&mut one, there, 2, b"");
        assert_eq!(other.open(there, false, &mut packet), Ok(2));
    }
    assert_eq!(other.open(there, false, &mut first), Err(Refusal::Replayed));
}

/// Also if a host is killed and starts again in the same moment, and if its clock stands: then random numbers decide.
#[test]
fn no_initialization_vector_comes_twice_under_one_key() {
    let mut seen = HashSet::new();
    for start in 0..50 {
        let (mut one, mut other) = (host(start, OTHER), host(1_000 + start, ONE));
        for _ in 0..200 {
            for (host, there) in [(&mut one, ends(ONE, OTHER)), (&mut other, ends(OTHER, ONE))] {
                let header = Header::parse(&sealed(host, there, 3, b"same")).unwrap();
                assert!(seen.insert((there, header.epoch, header.spi, header.iv)));
            }
        }
    }
}

#[test]
fn a_packet_without_a_key_is_not_sealed() {
    let mut one = host(1, OTHER);
    let mut packet = packet(b"plain");
    let before = packet.clone();
    assert!(!one.seal(ends(ONE, "10.0.0.9"), false, 1, &mut packet));
    assert_eq!((packet == before, one.counters().tx_error), (true, 1));
    assert!(one.has(OTHER.parse().unwrap()) && !one.has(ONE.parse().unwrap()));
    // A host can always speak to itself.
    assert!(one.seal(ends(ONE, ONE), true, 1, &mut packet));
    assert_eq!(one.open(ends(ONE, ONE), true, &mut packet), Ok(1));
    // Another does not speak for it, though it has the key of its own.
    let mut later = began(1_001, 2, Version::AesGcm128, ONE, 7);
    let mut theirs = sealed(&mut later, ends(OTHER, ONE), 1, b"");
    assert_eq!(one.open(ends(ONE, ONE), true, &mut theirs), Err(Refusal::NotAuthentic));
}
