//! A peer that writes its frames by hand.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::{ATTACKING, GID, Opened, PATIENCE, PATIENT};
use crate::data::link::ACCESS;
use crate::ffi::{Completion, Operation, Peer, Qp, Recv, Region, Send};
use crate::mortal::say;

/// The peer that we are: its addresses and its QP.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 99);
const OWN_QPN: u32 = 0x77;
/// Another station on the cable.
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];
/// Frames that are forged.
pub const FORGED: u32 = 32;
/// Bytes of a message.
const MESSAGE: usize = 64;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ROCE: u16 = 4791;
const SEND_ONLY: u8 = 4;

/// Binds a path that every user may send to, and prints the number of datagrams that came: `received N`.
///
/// # Errors
/// When it cannot be bound.
pub fn listen(path: &Path) -> Result<()> {
    let socket = UnixDatagram::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
    say(ATTACKING);
    for count in 1.. {
        socket.recv(&mut [0; 16 << 10])?;
        say(&format!("received {count}"));
    }
    Ok(())
}

/// The card at the other end of a cable, whose client we are too.
struct Card {
    socket: UnixDatagram,
    mac: [u8; 6],
    address: Ipv4Addr,
}

/// Connects a QP of `device` with a QP that there is not, and writes to it in that one's name: from
/// another's Ethernet address, in envelopes of IPv6 with addresses of IPv4 in them, and then, as it is
/// to be, one frame.
///
/// # Errors
/// When a forged message is taken, or the good one is not.
pub fn forge(device: &str, local: &Path, remote: &Path) -> Result<()> {
    let place = Opened::open(device, 64)?;
    let [.., a, b, c, d] = place.gid;
    let address = Ipv4Addr::new(a, b, c, d);
    let socket = UnixDatagram::bind(remote)?;
    socket.connect(local).context("no card at the other end")?;
    let region = Region::new(&place.pd, MESSAGE * 2, ACCESS, false)?;
    let qp = place.qp(FORGED + 1)?;
    qp.init(ACCESS)?;
    for wr_id in 0..=u64::from(FORGED) {
        qp.post_recv(&Recv { wr_id, pieces: vec![region.piece(0, MESSAGE)] })?;
    }
    let peer = Peer {
        qpn: OWN_QPN,
        gid: OWN.to_ipv6_mapped().octets(),
        gid_index: GID,
        ..place.peer(OWN_QPN)
    };
    qp.receive_from(&peer)?;
    let mac = answer_question(&socket, address)?;
    qp.send_to(&peer, PATIENT)?;
    let card = Card { socket, mac, address };
    for psn in 0..FORGED {
        card.send(&card.in_ipv6(&packet(&qp, psn, b'x')))?;
    }
    card.send(&card.in_ipv4(&packet(&qp, 0, b'o')))?;
    let done = one(&place)?;
    let mut bytes = [0; MESSAGE];
    region.read(0, &mut bytes);
    ensure!(bytes == [b'o'; MESSAGE], "a forged message is taken: {done:?}");
    ensure!(place.cq.poll()?.is_none(), "more than one message is taken");
    Ok(())
}

/// Connects two QPs of `device` with each other, and SENDs to one in the other's name from outside: from the card's own
/// address, and from addresses that no host has. Then the other SENDs itself.
///
/// # Errors
/// When a forged message is taken, or the good one is not.
pub fn impersonate(device: &str, local: &Path, remote: &Path) -> Result<()> {
    let place = Opened::open(device, 64)?;
    let [.., a, b, c, d] = place.gid;
    let address = Ipv4Addr::new(a, b, c, d);
    let [_, _, _, _, _, _, _, _, m0, m1, m2, _, _, m3, m4, m5] = place.context.gid(0)?;
    let socket = UnixDatagram::bind(remote)?;
    socket.connect(local).context("no card at the other end")?;
    let card = Card { socket, mac: [m0 ^ 2, m1, m2, m3, m4, m5], address };
    let region = Region::new(&place.pd, MESSAGE * 2, ACCESS, false)?;
    let [from, to] = [place.qp(1)?, place.qp(FORGED + 1)?];
    for (qp, peer) in [(&from, &to), (&to, &from)] {
        qp.init(ACCESS)?;
        qp.receive_from(&place.peer(peer.number()))?;
        qp.send_to(&place.peer(peer.number()), PATIENT)?;
    }
    for wr_id in 0..=u64::from(FORGED) {
        to.post_recv(&Recv { wr_id, pieces: vec![region.piece(0, MESSAGE)] })?;
    }
    let nobodys = [[0; 4], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]].map(Ipv4Addr::from);
    let sources = std::iter::once(address).chain(nobodys);
    for (source, psn) in sources.cycle().zip(0..FORGED) {
        // What is taken of one source is that source's next.
        card.send(&card.from(source, &packet(&to, psn / 5, b'x')))?;
    }
    region.write(MESSAGE, &[b'o'; MESSAGE]);
    let good = Send {
        wr_id: 0,
        operation: Operation::Send,
        pieces: vec![region.piece(MESSAGE, MESSAGE)],
        remote: (0, 0),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    from.post_send(&[good]).map_err(|(failed, _)| failed)?;
    // One completion of each side.
    for _ in 0..2 {
        one(&place)?;
    }
    let mut bytes = [0; MESSAGE];
    region.read(0, &mut bytes);
    ensure!(bytes == [b'o'; MESSAGE], "a forged message is taken");
    ensure!(place.cq.poll()?.is_none(), "more than one message is taken");
    Ok(())
}

/// Waits for a completion.
fn one(place: &Opened) -> Result<Completion> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = place.cq.poll()? {
            return Ok(done);
        }
        ensure!(Instant::now() < deadline, "the good message does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the card asks for the owner of our address, and answers; gives the card's Ethernet address.
fn answer_question(socket: &UnixDatagram, address: Ipv4Addr) -> Result<[u8; 6]> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut frame = [0; 16 << 10];
    loop {
        let length = match socket.recv(&mut frame) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("the card asks for nobody")
            }
            Err(error) => return Err(error.into()),
        };
        let question = frame.get(..42).filter(|_| length >= 42);
        let Some(question) = question.filter(|it| it[12..14] == ARP.to_be_bytes()) else {
            continue;
        };
        if question[20..22] != [0, 1] || question[38..42] != OWN.octets() {
            continue;
        }
        let asker: [u8; 6] = question[6..12].try_into()?;
        let mut answer = [&asker[..], &OWN_MAC, &ARP.to_be_bytes()].concat();
        answer.extend([0, 1, 8, 0, 6, 4, 0, 2]);
        answer.extend([&OWN_MAC[..], &OWN.octets(), &asker, &address.octets()].concat());
        answer.resize(60, 0);
        socket.send(&answer)?;
        return Ok(asker);
    }
}

/// A UDP datagram with a SEND of one letter, without its ICRC.
fn packet(qp: &Qp, psn: u32, letter: u8) -> Vec<u8> {
    let length = u16::try_from(8 + 12 + MESSAGE + 4).expect("it is short");
    let [_, q0, q1, q2] = qp.number().to_be_bytes();
    let [_, p0, p1, p2] = psn.to_be_bytes();
    let mut packet = [0xc0u8, 0].to_vec();
    packet.extend(ROCE.to_be_bytes());
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend([SEND_ONLY, 0, 0xff, 0xff, 0, q0, q1, q2, 0, p0, p1, p2]);
    packet.extend([letter; MESSAGE]);
    packet
}

impl Card {
    fn send(&self, frame: &[u8]) -> Result<()> {
        // One that finds no room is sent again by its sender, as a frame that is held.
        while let Err(error) = self.socket.send(frame) {
            ensure!(error.raw_os_error() == Some(libc::ENOBUFS), "{error}");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A packet as it is to come.
    fn in_ipv4(&self, packet: &[u8]) -> Vec<u8> {
        self.from(OWN, packet)
    }

    /// A packet in IPv4 from any address.
    fn from(&self, source: Ipv4Addr, packet: &[u8]) -> Vec<u8> {
        let length = u16::try_from(20 + packet.len() + 4).expect("it is short");
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
        header.extend([source.octets(), self.address.octets()].concat());
        let masked: &[usize] = &[1, 8, 10, 11];
        let icrc = icrc(&header, masked, packet);
        let checksum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        frame(self.mac, OWN_MAC, IPV4, &[&header, packet, &icrc])
    }

    /// A packet with the same addresses in another's envelope.
    fn in_ipv6(&self, packet: &[u8]) -> Vec<u8> {
        let length = u16::try_from(packet.len() + 4).expect("it is short");
        let mapped =
            |address: Ipv4Addr| -> [u8; 16] { Ipv6Addr::octets(&address.to_ipv6_mapped()) };
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([UDP, 64]);
        header.extend([mapped(OWN), mapped(self.address)].concat());
        // Of the first byte the traffic class alone, which is the low half.
        let mut masked = header.clone();
        masked[0] |= 0x0f;
        let icrc = icrc(&masked, &[1, 2, 3, 7], packet);
        frame(self.mac, OTHER_MAC, IPV6, &[&header, packet, &icrc])
    }
}

fn frame(to: [u8; 6], from: [u8; 6], kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &kind.to_be_bytes()].concat();
    parts.iter().for_each(|part| frame.extend(*part));
    frame
}

/// The checksum of an IPv4 header in which it is 0.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The invariant CRC of a packet: with ones for these bytes of its network header, for the UDP
/// checksum, and for the byte of the transport header that a router may change.
fn icrc(header: &[u8], masked: &[usize], packet: &[u8]) -> [u8; 4] {
    let mut bytes = vec![0xff; 8];
    bytes.extend(header);
    let behind = bytes.len();
    bytes.extend(packet);
    masked.iter().for_each(|at| bytes[8 + at] = 0xff);
    [6, 7, 8 + 4].into_iter().for_each(|at| bytes[behind + at] = 0xff);
    crc32(&bytes).to_le_bytes()
}

/// The CRC-32 of Ethernet, a bit at a time.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_ethernet() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_checksum_of_a_header_with_it_is_none() {
        let mut header = [0x45, 0, 0, 96, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 9, 10, 77, 0, 1];
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        assert_eq!(checksum(&header), 0);
    }
}
