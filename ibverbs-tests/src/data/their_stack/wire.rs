//! Its packets as datagrams of a UDP socket, and datagrams as packets for it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use roce::param::ROCE_UDP_PORT;
use roce::wire::{ethernet, icrc, ipv4, udp};

/// How long a datagram is waited for before others have their turn.
const MOMENT: Duration = Duration::from_millis(2);
/// Bytes of headers in front of a datagram's payload: of IPv4 and UDP.
const HEADERS: usize = ipv4::LENGTH + udp::LENGTH;
/// Bytes of the longest packet.
const LONGEST: usize = 9000;

/// The network between the code and its peer.
#[derive(Debug)]
pub struct Wire {
    socket: UdpSocket,
    own: Ipv4Addr,
    peer: Ipv4Addr,
}

impl Wire {
    pub fn open(own: Ipv4Addr, peer: Ipv4Addr) -> Result<Self> {
        let socket = UdpSocket::bind((own, ROCE_UDP_PORT)).with_context(|| own.to_string())?;
        socket.set_read_timeout(Some(MOMENT))?;
        Ok(Self { socket, own, peer })
    }

    /// Sends a packet, with the invariant CRC that a published card gives it.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        let length = packet.get(2..4).map(|it| usize::from(it[0]) << 8 | usize::from(it[1]));
        // Bytes behind its length do not belong to it, and the CRC does.
        let body = length.and_then(|length| packet.get(..length.checked_sub(icrc::LENGTH)?));
        let body = body.context("a packet that is cut")?;
        ensure!(body.get(16..20) == Some(&self.peer.octets()), "it sends to others: {body:x?}");
        ensure!(body.get(4..8) == Some(&[0; 4]), "identification or flags: {body:x?}");
        let mut frame = [&[0; 12][..], &[8, 0], body, &[0; icrc::LENGTH]].concat();
        // The port of the socket, which the CRC covers.
        let source = ethernet::LENGTH + ipv4::LENGTH;
        frame[source..source + 2].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
        icrc::append(&mut frame)?;
        let payload =
            frame.get(ethernet::LENGTH + HEADERS..).context("a packet without payload")?;
        self.socket.send_to(payload, (self.peer, ROCE_UDP_PORT))?;
        Ok(())
    }

    /// The next packet that has come, from its IPv4 header on.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut room = [0; LONGEST];
        let (length, from) = match self.socket.recv_from(&mut room) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if from.ip() != self.peer {
            return Ok(None);
        }
        let payload = room.get(..length).unwrap_or_default();
        let ip = ipv4::Repr {
            type_of_service: 0,
            time_to_live: 64,
            protocol: ipv4::PROTOCOL_UDP,
            source: self.peer,
            destination: self.own,
            payload_length: (udp::LENGTH + length) as u16,
        };
        let udp = udp::Repr {
            source_port: from.port(),
            destination_port: ROCE_UDP_PORT,
            payload_length: length as u16,
        };
        Ok(Some([&ip.to_bytes()[..], &udp.to_bytes(), payload].concat()))
    }
}
