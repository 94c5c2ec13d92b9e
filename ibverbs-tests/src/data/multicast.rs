//! Multicast groups: the receivers of a datagram to a group, and the QPs that must not get it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, LIMIT};
use crate::ffi::{
    Ah, Completion, Context, Cq, Destination, Failed, GROUP_QPN, Library, Operation, Pd, Qp, Recv,
    Region, Send, Service,
};

/// Groups of both kinds, each with the index of the GIDs that send to it.
const GROUPS: [([u8; 16], u8); 2] = [
    (Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0xe001, 0x203).octets(), 0),
    (Ipv4Addr::new(239, 77, 2, 3).to_ipv6_mapped().octets(), 1),
];
/// Another group of each kind, whose Ethernet address is that of the first.
const TWINS: [[u8; 16]; 2] = [
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xe001, 0x203).octets(),
    Ipv4Addr::new(239, 205, 2, 3).to_ipv6_mapped().octets(),
];
const QKEY: u32 = 0x1234_5678;
const HOPS: u8 = 9;
/// Bytes of the network header before each datagram.
const GRH: usize = 40;
/// Bytes of datagrams, the first of which is their number's, and room for one.
const SIZES: [usize; 6] = [4, 5, 1000, 1024, 4095, 4096];
const ROOM: usize = GRH + 4096;
/// Receives that a queue pair has posted.
const DEPTH: u32 = 16;
/// Datagrams that each member of a group is to get from each sender.
const ROUNDS: u32 = 24;

/// A queue pair of datagrams.
struct End {
    /// The groups that it is in.
    groups: RefCell<BTreeSet<[u8; 16]>>,
    qp: Qp,
    cq: Rc<Cq>,
    send_cq: Rc<Cq>,
    region: Rc<Region>,
    pd: Rc<Pd>,
}

impl End {
    fn new(context: &Rc<Context>, qkey: u32) -> Result<Self> {
        let pd = Pd::new(context)?;
        let (send_cq, cq) = (Cq::new(context, DEPTH, None)?, Cq::new(context, DEPTH, None)?);
        let capabilities = v::ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = Qp::of(Service::Datagram, &pd, [&send_cq, &cq], capabilities)?;
        let region = Region::new(&pd, ROOM * (DEPTH as usize + 1), ACCESS, false)?;
        qp.to_datagrams(qkey, 0)?;
        Ok(Self { groups: RefCell::default(), qp, cq, send_cq, region, pd })
    }

    fn attach(&self, group: [u8; 16]) -> Result<(), Failed> {
        self.qp.attach(group)?;
        self.groups.borrow_mut().insert(group);
        Ok(())
    }

    fn detach(&self, group: [u8; 16]) -> Result<(), Failed> {
        self.qp.detach(group)?;
        self.groups.borrow_mut().remove(&group);
        Ok(())
    }

    /// Posts the receive of that number.
    fn receive(&self, number: u32) -> Result<()> {
        let at = number as usize * ROOM;
        self.region.write(at, &[0xee; ROOM]);
        let pieces = vec![self.region.piece(at, ROOM)];
        Ok(self.qp.post_recv(&Recv { wr_id: number.into(), pieces })?)
    }

    /// Sends the datagram of a number, whose bytes follow from it, and waits until that is done.
    fn send(&self, to: &Ah, number: u32) -> Result<()> {
        let bytes = payload(number);
        let at = ROOM * DEPTH as usize;
        self.region.write(at, &bytes);
        let datagram = Send {
            wr_id: number.into(),
            operation: Operation::SendImmediate,
            pieces: vec![self.region.piece(at, bytes.len())],
            remote: (0, 0),
            immediate: !number,
            flags: v::IBV_SEND_SIGNALED,
        };
        let to = Destination { handle: to, qpn: GROUP_QPN, qkey: QKEY };
        self.qp.post_datagram(&datagram, to)?;
        let sent = wait(&self.send_cq)?;
        ensure!(sent.status == v::IBV_WC_SUCCESS && sent.wr_id == u64::from(number), "{sent:?}");
        Ok(())
    }

    /// The number of a datagram that has come to a group, all of which is compared, but where cables are bad the hop limit
    /// of IPv6, which no checksum covers; its receive is posted anew.
    fn check(&self, received: &Completion, group: [u8; 16], bad: bool) -> Result<u32> {
        ensure!(received.status == v::IBV_WC_SUCCESS, "{received:?}");
        let number = !received.immediate.context("no immediate")?;
        let wanted = payload(number);
        let length = received.byte_len as usize;
        ensure!(length == GRH + wanted.len(), "datagram {number} has {length} bytes");
        let mut found = [0; ROOM];
        let receive = u32::try_from(received.wr_id)?;
        self.region.read(receive as usize * ROOM, &mut found);
        ensure!(found[GRH..length] == wanted, "datagram {number} has other bytes");
        ensure!(found[length..].iter().all(|&byte| byte == 0xee), "bytes behind {number}");
        let address = Ipv6Addr::from(group);
        let (to, hops) = match address.to_ipv4_mapped() {
            Some(group) => (found[36..40] == group.octets(), found[28] == HOPS),
            None => (found[24..40] == group, found[7] == HOPS || bad),
        };
        ensure!(to && hops, "another network header: {:x?}", &found[..GRH]);
        self.receive(receive)?;
        Ok(number)
    }

    /// Waits for a datagram to a group, and checks it.
    fn expect(&self, group: [u8; 16]) -> Result<u32> {
        self.check(&wait(&self.cq)?, group, false)
    }
}

impl Drop for End {
    /// A member is not destroyed.
    fn drop(&mut self) {
        for group in self.groups.take() {
            let _ = self.qp.detach(group);
        }
    }
}

fn payload(number: u32) -> Vec<u8> {
    let size = SIZES[number as usize % SIZES.len()];
    (0..size).map(|index| (index * 7) as u8 ^ number as u8 ^ (index >> 8) as u8).collect()
}

fn wait(cq: &Cq) -> Result<Completion> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(completion) = cq.poll()? {
            return Ok(completion);
        }
        ensure!(Instant::now() < deadline, "no completion within {LIMIT:?}");
        std::thread::yield_now();
    }
}

fn refused(outcome: Result<(), Failed>, errno: i32, what: &str) -> Result<()> {
    let found = outcome.err().with_context(|| format!("{what} is not refused"))?;
    ensure!(found.errno == errno, "{what} is refused otherwise: {found}");
    Ok(())
}

/// Sends datagrams to groups from one device to all; answers how many copies arrived. Where cables are bad,
/// some are lost, and may come twice or late.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(bad: bool) -> Result<usize> {
    let library = Library::open()?;
    let names = Context::names(library)?;
    let contexts: Result<Vec<_>> = names.iter().map(|name| Context::open(library, name)).collect();
    let contexts = contexts?;
    refusals(&contexts[0]).context("refusals")?;
    let mut copies = 0;
    for ((group, gid_index), twin) in GROUPS.into_iter().zip(TWINS) {
        copies += members(&contexts, group, gid_index, twin, bad)
            .with_context(|| format!("group {}", Ipv6Addr::from(group)))?;
    }
    Ok(copies)
}

/// Tries QPs that cannot be members, and addresses that are no groups.
fn refusals(context: &Rc<Context>) -> Result<()> {
    let attributes = context.attributes()?;
    let most = attributes.max_mcast_qp_attach;
    ensure!(attributes.max_mcast_grp > 0 && most > 0, "no groups are offered");
    ensure!(attributes.max_total_mcast_qp_attach >= most, "fewer places than in one group");
    let end = End::new(context, QKEY)?;
    let group = GROUPS[0].0;
    for other in ["::", "fe80::1", "::ffff:10.0.0.1", "::ffff:255.255.255.255"] {
        let other: Ipv6Addr = other.parse()?;
        refused(end.attach(other.octets()), libc::EINVAL, "what is no group")?;
    }
    refused(end.detach(group), libc::EINVAL, "leaving a group that it is not in")?;
    let connected = Qp::new(&end.pd, &end.send_cq, &end.cq, end.qp.capabilities)?;
    refused(connected.attach(group), libc::EINVAL, "a connection")?;
    // Once in it however often it joins, and not destroyed as long as it is.
    end.attach(group)?;
    end.attach(group)?;
    refused(end.qp.destroy(), libc::EBUSY, "the end of a member")?;
    end.detach(group)?;
    refused(end.detach(group), libc::EINVAL, "leaving twice")?;
    // As many as there can be, and no more.
    let most = usize::try_from(most)?;
    let ends: Result<Vec<_>> = (0..=most).map(|_| End::new(context, QKEY)).collect();
    let ends = ends?;
    let (last, others) = ends.split_last().context("none")?;
    for end in others {
        end.attach(group)?;
    }
    refused(last.attach(group), libc::ENOMEM, "one more than there can be")?;
    Ok(())
}

/// Members on every device, of which the sender is one; and QPs that are to hear nothing.
fn members(
    contexts: &[Rc<Context>],
    group: [u8; 16],
    gid_index: u8,
    twin: [u8; 16],
    bad: bool,
) -> Result<usize> {
    let mut heard = Vec::new();
    let mut deaf = Vec::new();
    for context in contexts {
        for _ in 0..2 {
            let end = End::new(context, QKEY)?;
            end.attach(group)?;
            heard.push(end);
        }
        // In no group, in another of the same Ethernet address, with another Q_Key.
        let outside = End::new(context, QKEY)?;
        let other = End::new(context, QKEY)?;
        other.attach(twin)?;
        let locked = End::new(context, QKEY ^ 1)?;
        locked.attach(group)?;
        deaf.extend([(outside, None), (other, Some(twin)), (locked, Some(group))]);
        // Without a receive it loses its own copies only.
        let full = End::new(context, QKEY)?;
        full.attach(group)?;
        deaf.push((full, Some(group)));
    }
    for end in heard.iter().chain(deaf.iter().map(|(end, _)| end)) {
        let is_full = deaf.chunks(4).any(|four| std::ptr::eq(&four[3].0, end));
        for number in 0..if is_full { 0 } else { DEPTH } {
            end.receive(number)?;
        }
    }
    let (first, _) = heard.split_first().context("no device")?;
    let ah = Ah::new(&first.pd, group, gid_index, (0, HOPS))?;
    let copies = if bad {
        on_bad_cables(first, &heard, &ah, group)?
    } else {
        for number in 0..ROUNDS {
            first.send(&ah, number)?;
            for (index, end) in heard.iter().enumerate() {
                let found = end.expect(group).with_context(|| format!("member {index}"))?;
                ensure!(found == number, "{found} in place of {number} at member {index}");
            }
        }
        leaving(first, &heard, &ah, group)?;
        heard.len() * ROUNDS as usize
    };
    for (number, (end, _)) in deaf.iter().enumerate() {
        ensure!(end.cq.poll()?.is_none(), "number {number} of those who should not hears it");
    }
    Ok(copies)
}

/// Sends until every member has got enough; each datagram arrives whole or not at all.
fn on_bad_cables(first: &End, heard: &[End], ah: &Ah, group: [u8; 16]) -> Result<usize> {
    let mut counts = vec![0usize; heard.len()];
    let deadline = Instant::now() + LIMIT;
    for number in 0.. {
        if counts.iter().all(|count| *count >= ROUNDS as usize) {
            break;
        }
        ensure!(Instant::now() < deadline, "only {counts:?} copies within {LIMIT:?}");
        first.send(ah, number)?;
        for (end, count) in heard.iter().zip(&mut counts) {
            while let Some(received) = end.cq.poll()? {
                let found = end.check(&received, group, true)?;
                ensure!(found <= number, "{found} was not sent yet");
                *count += 1;
            }
        }
    }
    Ok(counts.iter().map(|count| (*count).min(ROUNDS as usize)).sum())
}

/// A member that has left hears nothing more, and joins again.
fn leaving(first: &End, heard: &[End], ah: &Ah, group: [u8; 16]) -> Result<()> {
    let (last, others) = heard.split_last().context("nobody")?;
    last.detach(group)?;
    first.send(ah, ROUNDS)?;
    for end in others {
        ensure!(end.expect(group)? == ROUNDS);
    }
    last.attach(group)?;
    first.send(ah, ROUNDS + 1)?;
    for end in heard {
        ensure!(end.expect(group)? == ROUNDS + 1, "it hears what it had left");
    }
    Ok(())
}

/// Datagrams to groups both ways between this process and another, which runs the same on another device:
/// one waits, the other is told where. Where the kernel is to take the groups' packets for the device, it is
/// told to by sockets on that network device. Answers how many arrived.
///
/// # Errors
/// At the first thing that goes wrong.
pub fn apart(device: &str, host: Option<&str>, port: u16, join: Option<&str>) -> Result<usize> {
    let library = Library::open()?;
    let context = Context::open(library, device)?;
    let (role, stream) = match host {
        None => (0, TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?.accept()?.0),
        Some(host) => (1, TcpStream::connect((host, port))?),
    };
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_nodelay(true)?;
    let mut line = BufReader::new(stream);
    let mut count = 0;
    for (group, gid_index) in GROUPS {
        let sockets = join.map(|device| joined(&context, group, device)).transpose();
        let sockets = sockets.context("the kernel does not join the group")?;
        let ends = [End::new(&context, QKEY)?, End::new(&context, QKEY)?];
        for end in &ends {
            end.attach(group)?;
            (0..DEPTH).try_for_each(|number| end.receive(number))?;
        }
        let sender = End::new(&context, QKEY)?;
        let ah = Ah::new(&sender.pd, group, gid_index, (0, HOPS))?;
        for number in 0..2 * ROUNDS {
            meet(&mut line)?;
            if number % 2 == role {
                sender.send(&ah, number)?;
            }
            // Members get their own device's datagrams, too.
            for end in &ends {
                let found = end
                    .expect(group)
                    .with_context(|| format!("datagram {number} to {}", Ipv6Addr::from(group)))?;
                ensure!(found == number, "{found} in place of {number}");
                count += 1;
            }
            meet(&mut line)?;
        }
        drop((ends, sockets));
    }
    Ok(count)
}

/// Joins as many groups as a program can be in, of those that the device says that there can be, and no more; how many
/// those are.
///
/// # Errors
/// At the first thing that goes wrong.
pub fn all_groups(device: &str) -> Result<usize> {
    let context = Context::open(Library::open()?, device)?;
    let most = usize::try_from(context.attributes()?.max_mcast_grp)?;
    // Some are for others.
    let most = most - most / 8;
    let end = End::new(&context, QKEY)?;
    let group =
        |number: usize| Ipv4Addr::from_bits(0xef4e_0000 | number as u32).to_ipv6_mapped().octets();
    for number in 0..most {
        end.attach(group(number)).with_context(|| format!("group {number}"))?;
    }
    refused(end.attach(group(most)), libc::ENOMEM, "one more than there can be")?;
    // Once in it one may be in it again, and a place that is left is another's.
    end.attach(group(0))?;
    end.detach(group(0))?;
    end.attach(group(most))?;
    Ok(most)
}

/// Waits until the other side has come as far.
fn meet(line: &mut BufReader<TcpStream>) -> Result<()> {
    line.get_mut().write_all(b"here\n")?;
    let mut text = String::new();
    line.read_line(&mut text).context("the other side keeps us waiting")?;
    ensure!(text == "here\n", "the other side has gone");
    Ok(())
}

/// A socket of the kernel's that is in a group on a network device.
fn joined(context: &Context, group: [u8; 16], device: &str) -> Result<UdpSocket> {
    let group = Ipv6Addr::from(group);
    let Some(ipv4) = group.to_ipv4_mapped() else {
        let index = fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))?;
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v6(&group, index.trim().parse()?)?;
        return Ok(socket);
    };
    let Some(own) = Ipv6Addr::from(context.gid(1)?).to_ipv4_mapped() else {
        bail!("GID 1 is none of IPv4");
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.join_multicast_v4(&ipv4, &own)?;
    Ok(socket)
}
