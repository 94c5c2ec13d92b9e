//! PSP outside of the invariant CRC: each RoCE frame of a card leaves sealed for its peer, and none is taken that was not.
//!
//! PSP stands between the IP header and that of UDP (transport mode): behind the IP header, which grows by what is put in,
//! there is a UDP header to PSP's port, then PSP's, then the datagram as it was, invariant CRC included, then the integrity
//! check value.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use psp::param::{HEADER, LONGER};
use psp::{Associations, Counters, Ends, Peer, Source, Version};
use roce::param::ROCE_UDP_PORT;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{ipv4, ipv6, udp};

use crate::port::udp::WORD_PORT;
use crate::sealing::{Opened, Opening, Sealed, Sealing};

/// Bytes that a frame is longer on its way: a UDP header, PSP's header, the integrity check value.
const ADDED: usize = udp::LENGTH + LONGER;

/// Where the fields lie that are changed, in an IPv4 header and in an IPv6 header.
const V4_LENGTH: usize = 2;
const V4_IDENTIFICATION: usize = 4;
const V4_CHECKSUM: usize = 10;
const V6_LENGTH: usize = 4;

/// Identification and flags of an IPv4 packet as the stack makes it: 0, and "don't fragment".
const UNFRAGMENTED: [u8; 4] = [0, 0, 0x40, 0];

/// How a card seals its frames, and opens its peers'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The algorithm.
    pub version: Version,
    /// The UDP port of sealed datagrams.
    pub port: u16,
    /// The hosts with which keys are shared; the card neither sends RoCE to others, nor takes it from them.
    pub peers: Vec<Peer>,
}

impl Protection {
    /// UDP ports that are for something else: RoCE's, and that of words between balboads.
    pub const OTHER_PORTS: [u16; 2] = [ROCE_UDP_PORT, WORD_PORT];

    /// The steps of a card, which know of each other.
    #[must_use]
    pub fn steps(&self) -> (Box<dyn Sealing>, Box<dyn Opening>) {
        self.steps_of(self.associations())
    }

    pub(crate) fn associations(&self) -> Associations {
        Associations::new(self.version, self.peers.clone(), Box::new(SystemSource))
    }

    /// The steps that share these associations.
    pub(crate) fn steps_of(
        &self,
        associations: Associations,
    ) -> (Box<dyn Sealing>, Box<dyn Opening>) {
        let associations = Rc::new(RefCell::new(associations));
        let opening =
            OpeningStep { port: self.port, associations: Rc::clone(&associations), in_clear: 0 };
        (Box::new(SealingStep { port: self.port, associations }), Box::new(opening))
    }
}

/// The machine's clock, and the kernel's random numbers.
#[derive(Debug)]
struct SystemSource;

impl Source for SystemSource {
    fn time(&mut self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        // Linux answers once booted, and retries are its own.
        while getrandom::fill(bytes).is_err() {}
    }
}

/// Where the parts of a frame with a UDP datagram are.
struct Place {
    ends: Ends,
    /// A card sends frames to itself from its Ethernet address to the same one.
    to_itself: bool,
    /// Where its IP header begins, and where its UDP header does.
    ip: usize,
    udp: usize,
    /// Where the datagram ends.
    end: usize,
    ports: [u16; 2],
}

impl Place {
    /// Of a frame whose datagram the stack would look into; `None` for all others.
    fn of(frame: &[u8]) -> Option<Self> {
        let (ethernet, packet) = ethernet::Repr::parse(frame).ok()?;
        let (from, to, datagram): (IpAddr, IpAddr, _) = match ethernet.ethertype {
            EtherType::IPV4 => {
                let (ip, rest) = ipv4::Repr::parse(packet).ok()?;
                (ip.protocol == ipv4::PROTOCOL_UDP).then_some(())?;
                (ip.source.into(), ip.destination.into(), rest)
            }
            EtherType::IPV6 => {
                let (ip, rest) = ipv6::Repr::parse(packet).ok()?;
                (ip.next_header == ipv6::NEXT_HEADER_UDP).then_some(())?;
                (ip.source.into(), ip.destination.into(), rest)
            }
            _ => return None,
        };
        let (header, _) = udp::Repr::parse(datagram).ok()?;
        let ip = frame.len().checked_sub(packet.len())?;
        let udp = ip.checked_add(if from.is_ipv4() { ipv4::LENGTH } else { ipv6::LENGTH })?;
        Some(Self {
            ends: Ends { from, to },
            to_itself: ethernet.destination == ethernet.source,
            ip,
            udp,
            end: udp.checked_add(datagram.len())?,
            ports: [header.source_port, header.destination_port],
        })
    }

    /// Gives the IP header the length of another datagram, and of IPv4 also identification and flags as the stack has them,
    /// whatever they were on the cable.
    fn set_datagram_length(&self, frame: &mut [u8], length: usize) -> Option<()> {
        let header = frame.get_mut(self.ip..self.udp)?;
        if self.ends.from.is_ipv6() {
            let length = u16::try_from(length).ok()?;
            *header.get_mut(V6_LENGTH..)?.first_chunk_mut()? = length.to_be_bytes();
            return Some(());
        }
        let length = u16::try_from(length.checked_add(ipv4::LENGTH)?).ok()?;
        *header.get_mut(V4_LENGTH..)?.first_chunk_mut()? = length.to_be_bytes();
        *header.get_mut(V4_IDENTIFICATION..)?.first_chunk_mut()? = UNFRAGMENTED;
        let checksum = header.get_mut(V4_CHECKSUM..)?.first_chunk_mut::<2>()?;
        *checksum = [0, 0];
        let words = header.chunks_exact(2).filter_map(<[u8]>::first_chunk::<2>);
        // Ten words of 16 bits.
        let sum =
            words.fold(0_u32, |sum, word| sum.saturating_add(u16::from_be_bytes(*word).into()));
        let folded = (sum & 0xffff).saturating_add(sum >> 16);
        let folded = (folded & 0xffff).saturating_add(folded >> 16);
        *header.get_mut(V4_CHECKSUM..)?.first_chunk_mut()? = (!(folded as u16)).to_be_bytes();
        Some(())
    }
}

/// Seals frames that leave.
#[derive(Debug)]
struct SealingStep {
    port: u16,
    associations: Rc<RefCell<Associations>>,
}

impl SealingStep {
    fn enclose(&mut self, frame: &mut [u8], about: &Sealed<'_>) -> Option<()> {
        let whole = frame.len().checked_sub(ADDED)?;
        let place = Place::of(frame.get(..whole)?)?;
        let length = place.end.checked_sub(place.udp)?.checked_add(ADDED)?;
        let behind = place.udp.checked_add(udp::LENGTH)?;
        let inner = behind.checked_add(HEADER)?;
        place.set_datagram_length(frame, length)?;
        frame.copy_within(place.udp..place.end, inner);
        let outer = udp::Repr {
            // Routers spread flows by it.
            source_port: place.ports[0],
            destination_port: self.port,
            payload_length: u16::try_from(length.checked_sub(udp::LENGTH)?).ok()?,
        };
        *frame.get_mut(place.udp..)?.first_chunk_mut()? = outer.to_bytes();
        let packet = frame.get_mut(behind..place.end.checked_add(ADDED)?)?;
        let qpn = about.qpn?.value();
        let mut associations = self.associations.borrow_mut();
        associations.seal(place.ends, place.to_itself, qpn, packet).then_some(())
    }
}

impl Sealing for SealingStep {
    fn length(&self) -> usize {
        ADDED
    }

    fn seal(&mut self, frame: &mut [u8], about: &Sealed<'_>) -> bool {
        self.enclose(frame, about).is_some()
    }

    fn seals_for(&self, peer: IpAddr) -> bool {
        !peer.is_multicast() && self.associations.borrow().has(peer)
    }
}

/// Opens frames that come, and refuses RoCE in the clear.
#[derive(Debug)]
struct OpeningStep {
    port: u16,
    associations: Rc<RefCell<Associations>>,
    /// RoCE frames that were not sealed.
    in_clear: u64,
}

impl OpeningStep {
    fn disclose(&mut self, frame: &mut [u8], place: &Place) -> Option<Opened> {
        let behind = place.udp.checked_add(udp::LENGTH)?;
        let packet = frame.get_mut(behind..place.end)?;
        let mut associations = self.associations.borrow_mut();
        let sender = associations.open(place.ends, place.to_itself, packet).ok()?;
        let inner = behind.checked_add(HEADER)?..place.end.checked_sub(psp::param::ICV)?;
        let length = inner.len();
        // What a peer encloses is a datagram of RoCE's, and nothing else.
        let (header, _) = udp::Repr::parse(frame.get(inner.clone())?).ok()?;
        (header.destination_port == ROCE_UDP_PORT).then_some(())?;
        frame.copy_within(inner, place.udp);
        place.set_datagram_length(frame, length)?;
        let length = place.udp.checked_add(length)?;
        Some(Opened::Open { length, sender: Some(sender) })
    }
}

impl Opening for OpeningStep {
    fn open(&mut self, frame: &mut [u8]) -> Opened {
        let Some(place) = Place::of(frame) else { return Opened::Untouched };
        let [_, port] = place.ports;
        if port == self.port {
            return self.disclose(frame, &place).unwrap_or(Opened::Refused);
        }
        if port == ROCE_UDP_PORT {
            self.in_clear = self.in_clear.saturating_add(1);
            return Opened::Refused;
        }
        Opened::Untouched
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let associations = self.associations.borrow();
        let Counters {
            key_rotations,
            stale_events,
            rx_packets,
            rx_bytes,
            rx_auth_fail,
            rx_error,
            rx_bad,
            rx_replayed,
            tx_packets,
            tx_bytes,
            tx_error,
        } = *associations.counters();
        vec![
            ("psp_key_rotations", key_rotations),
            ("psp_stale_events", stale_events),
            ("psp_rx_packets", rx_packets),
            ("psp_rx_bytes", rx_bytes),
            ("psp_rx_auth_fail", rx_auth_fail),
            ("psp_rx_error", rx_error),
            ("psp_rx_bad", rx_bad),
            ("psp_rx_replayed", rx_replayed),
            ("psp_rx_in_clear", self.in_clear),
            ("psp_tx_packets", tx_packets),
            ("psp_tx_bytes", tx_bytes),
            ("psp_tx_error", tx_error),
        ]
    }
}
