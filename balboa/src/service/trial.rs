//! `balboa service test`: a service of a user's, with the packets of a capture.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use roce::Psn;
use roce::opcode::{Class, code};
use roce::param::ROCE_UDP_PORT;
use roce::wire::ethernet::EtherType;
use roce::wire::{ethernet, frame, ipv4, ipv6, udp};
use services::{Budget, Halt, Operation, PacketService, Part, Placing, Verdict};
use services_wasm::{Module, interface};
use terminal::say;

use super::capture::frames;
use crate::image::{MAX_IMAGE, about, read};

/// One way of a connection: addresses, the queue pair to which its packets go, and whether they are responses, whose
/// numbers are those of their requests.
type Way = (IpAddr, IpAddr, u32, bool);

/// A packet with payload, of a reliable connection.
struct Packet<'a> {
    way: Way,
    psn: Psn,
    operation: Operation,
    begins: bool,
    ends: bool,
    address: Option<u64>,
    payload: &'a [u8],
}

/// Takes a frame apart; `None` where it is no packet with payload of a reliable connection.
fn packet(bytes: &[u8]) -> Option<Packet<'_>> {
    let (header, rest) = ethernet::Repr::parse(bytes).ok()?;
    let (from, to, datagram) = match header.ethertype {
        EtherType::IPV4 => {
            let (ip, datagram) = ipv4::Repr::parse(rest).ok()?;
            (IpAddr::from(ip.source), IpAddr::from(ip.destination), datagram)
        }
        _ => {
            let (ip, datagram) = ipv6::Repr::parse(rest).ok()?;
            (IpAddr::from(ip.source), IpAddr::from(ip.destination), datagram)
        }
    };
    let (udp, transport) = udp::Repr::parse(datagram).ok()?;
    let found = frame::Repr::parse(transport).ok();
    let found = found.filter(|_| udp.destination_port == ROCE_UDP_PORT)?;
    let operation = match found.opcode.class {
        Class::Send => Operation::Send,
        Class::Write => Operation::Write,
        Class::ReadResponse => Operation::Read,
        _ => return None,
    };
    let payload = transport.get(found.payload)?;
    let is_reliable = found.opcode.service() == code::RELIABLE_CONNECTION;
    (is_reliable && !payload.is_empty()).then_some(Packet {
        way: (from, to, found.bth.dest_qpn, operation == Operation::Read),
        psn: found.bth.psn,
        operation,
        begins: found.opcode.position.is_start(),
        ends: found.opcode.position.is_end(),
        address: found.reth.map(|header| header.va),
        payload,
    })
}

/// What the capture has shown of one way of a connection, and the service's memory of it.
struct Progress {
    /// The number of the last packet that was taken.
    psn: Psn,
    /// The offset behind it in its message; none where that has ended.
    offset: Option<u64>,
    /// The address at which a WRITE begins.
    address: Option<u64>,
    check: Vec<u8>,
    act: Vec<u8>,
    has_failed: bool,
}

impl Progress {
    /// The part of its message that a packet is, where it goes on behind the one before it; none for a repetition, a
    /// packet behind a lost one, and one of a message whose beginning is not in the capture.
    fn take(&mut self, packet: &Packet<'_>) -> Option<Part> {
        let ahead = packet.psn.distance(self.psn);
        let offset = match packet.begins {
            true if ahead > 0 => {
                self.address = packet.address;
                0
            }
            false if ahead == 1 => self.offset?,
            _ => return None,
        };
        let length = u32::try_from(packet.payload.len()).ok()?;
        self.psn = packet.psn;
        self.offset = (!packet.ends).then_some(offset.wrapping_add(length.into()));
        let part = Part { operation: packet.operation, offset, length, is_last: packet.ends };
        (!self.has_failed).then_some(part)
    }
}

/// Why a service was stopped.
enum Stopped {
    /// It wanted more work than it declares.
    Exhausted,
    /// It did this, which no service may.
    Fault(String),
}

/// The end of a packet's way through the service.
struct Outcome {
    /// The verdict, with the number of bytes that were changed, or why the service was stopped.
    end: Result<(Verdict, usize), Stopped>,
    /// The most units of work that a stage took.
    work: u32,
}

/// The counts of a trial.
#[derive(Default)]
struct Counts {
    frames: usize,
    passed: usize,
    dropped: usize,
    refused: usize,
    stopped: usize,
    changed: usize,
    work: u32,
    time: Duration,
}

/// Runs a module over the packets of a capture, and says what it did.
///
/// # Errors
/// When a file is not right.
pub fn test(module: &[u8], file: &Path, pcap: &Path) -> anyhow::Result<()> {
    let service = Module::load(module).map_err(|why| about(file, &why.to_string()))?;
    let bytes = read(pcap, MAX_IMAGE)?;
    let frames = frames(&bytes).map_err(|why| about(pcap, &why))?;
    let described = service.about();
    let (mut ways, mut counts) = (HashMap::new(), Counts::default());
    counts.frames = frames.len();
    for (number, frame) in (1usize..).zip(&frames) {
        let Some(packet) = packet(frame.bytes).filter(|_| frame.is_whole) else { continue };
        let progress = ways.entry(packet.way).or_insert_with(|| Progress {
            psn: Psn::new(packet.psn.value().wrapping_sub(1)),
            offset: None,
            address: None,
            check: vec![0; described.check_state],
            act: vec![0; described.act_state],
            has_failed: false,
        });
        let Some(part) = progress.take(&packet) else { continue };
        if !described.operations.has(packet.operation) {
            continue;
        }
        let begun = Instant::now();
        let outcome = run(&service, &packet, &part, progress);
        counts.time = counts.time.saturating_add(begun.elapsed());
        counts.add(&outcome);
        progress.has_failed = !matches!(outcome.end, Ok((Verdict::Accept | Verdict::Drop, _)));
        say(format_args!("{number} {}\n", Line(&packet, &part, &outcome)))?;
    }
    Ok(say(format_args!("{counts}"))?)
}

/// Has a service do its work on a packet, at one stage behind the other.
fn run(service: &Module, packet: &Packet<'_>, part: &Part, progress: &mut Progress) -> Outcome {
    let mut work = 0;
    let end = stages(service, packet, part, progress, &mut work);
    Outcome { end, work }
}

fn stages(
    service: &Module,
    packet: &Packet<'_>,
    part: &Part,
    progress: &mut Progress,
    most: &mut u32,
) -> Result<(Verdict, usize), Stopped> {
    let about = service.about();
    let mut bytes = packet.payload.to_vec();
    let address = progress.address.map(|address| address.wrapping_add(part.offset));
    let mut spent = |budget: &Budget| *most = about.work.saturating_sub(budget.left()).max(*most);
    // What it did to the bytes of a packet on which it was stopped is never there.
    let stopped = |stage, halt, bytes: &mut [u8], address, state: &[u8]| match halt {
        Halt::Exhausted => Stopped::Exhausted,
        Halt::Fault => {
            let why = service.why(stage, part, &Placing { bytes, address }, state);
            Stopped::Fault(why.unwrap_or_else(|| "it did what no service may".to_owned()))
        }
    };
    // The sender's stage stands first, although these bytes may have passed it already: a capture does not tell.
    if about.stages.transform {
        let mut budget = Budget::new(about.work);
        let outcome = service.transform(part, &mut bytes, &mut budget);
        spent(&budget);
        outcome.map_err(|halt| stopped(interface::TRANSFORM, halt, &mut bytes, None, &[]))?;
    }
    if about.stages.check {
        let (mut budget, mut next) = (Budget::new(about.work), progress.check.clone());
        let verdict = service.check(part, &bytes, &mut next, &mut budget);
        spent(&budget);
        let verdict = verdict
            .map_err(|halt| stopped(interface::CHECK, halt, &mut bytes, None, &progress.check))?;
        if verdict != Verdict::Accept {
            return Ok((verdict, 0));
        }
        progress.check = next;
    }
    if about.stages.act {
        let mut budget = Budget::new(about.work);
        let mut placing = Placing { bytes: &mut bytes, address };
        let outcome = service.act(part, &mut placing, &mut progress.act, &mut budget);
        spent(&budget);
        outcome
            .map_err(|halt| stopped(interface::ACT, halt, &mut bytes, address, &progress.act))?;
    }
    let changed = bytes.iter().zip(packet.payload).filter(|(one, other)| one != other);
    Ok((Verdict::Accept, changed.count()))
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        let counter = match outcome.end {
            Ok((Verdict::Accept, changed)) => {
                self.changed = self.changed.saturating_add(changed);
                &mut self.passed
            }
            Ok((Verdict::Drop, _)) => &mut self.dropped,
            Ok((Verdict::Refuse, _)) => &mut self.refused,
            Err(_) => &mut self.stopped,
        };
        *counter = counter.saturating_add(1);
        self.work = self.work.max(outcome.work);
    }
}

/// A packet and its outcome, in a line.
struct Line<'a>(&'a Packet<'a>, &'a Part, &'a Outcome);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(packet, part, outcome) = self;
        let (from, to, qpn, _) = packet.way;
        let operation = match packet.operation {
            Operation::Send => "SEND",
            Operation::Write => "WRITE",
            Operation::Read => "READ",
        };
        let (offset, length) = (part.offset, part.length);
        write!(f, "{from} to {to} QP {qpn:#08x} {operation} {length} bytes at {offset}: ")?;
        match &outcome.end {
            Ok((Verdict::Accept, changed)) => write!(f, "passes, {changed} bytes changed")?,
            Ok((Verdict::Drop, _)) => write!(f, "dropped; a connection brings it again")?,
            Ok((Verdict::Refuse, _)) => write!(f, "refused, which ends the connection")?,
            Err(Stopped::Exhausted) => {
                write!(f, "wants more work than it declares, and is stopped")?;
            }
            Err(Stopped::Fault(why)) => write!(f, "is stopped: {why}")?,
        }
        write!(f, "; {} units of work", outcome.work)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, passed, dropped, refused, stopped, changed, work, time } = self;
        let seen = [passed, dropped, refused, stopped].into_iter().copied();
        let seen = seen.fold(0, usize::saturating_add);
        writeln!(
            f,
            "{seen} packets in {frames} frames: {passed} passed, {dropped} dropped, {refused} refused, {stopped} stopped; {changed} bytes changed"
        )?;
        let each = time.as_nanos().checked_div(seen as u128).unwrap_or(0);
        writeln!(f, "{work} units of work at most at a stage; {each} ns for a packet, here and now")
    }
}
