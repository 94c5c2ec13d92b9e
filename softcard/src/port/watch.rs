//! Recording of a running port, for the reader of a socket's other end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use fpga_regs::port::WatchFilter;
use roce::PathMtu;
use roce::param::ROCE_UDP_PORT;
use roce::qos::Qos;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{bth, ipv4, ipv6, udp};

use super::pcapng::{self, Direction};
use super::{Frame, Port, Rooms};
use crate::Error;

/// Bytes collected before they are written.
const WRITE_AT: usize = 64 << 10;
/// Bytes that are written in one go at most.
const WRITE_AT_MOST: usize = 1 << 20;
/// Nanoseconds after which collected bytes are written though there is room for more.
const WRITE_AFTER_NS: u64 = 50_000_000;
/// Nanoseconds after which a reader that was slow is tried again.
const AGAIN_AFTER_NS: u64 = 5_000_000;
/// Number of UDP, in either version of IP.
const UDP: u8 = 17;

/// Whether a frame is one of those that are recorded.
fn takes(filter: &WatchFilter, frame: &[u8]) -> bool {
    if filter.qpns.is_empty() && filter.address.is_none() {
        return true;
    }
    let Ok((header, packet)) = ethernet::Repr::parse(frame) else { return false };
    let (ends, protocol, payload): ([IpAddr; 2], u8, &[u8]) = match header.ethertype {
        EtherType::IPV4 => match ipv4::Header::new(packet) {
            Ok((ip, payload)) => {
                ([ip.source().into(), ip.destination().into()], ip.protocol(), payload)
            }
            Err(_) => return false,
        },
        EtherType::IPV6 => match ipv6::Header::new(packet) {
            Ok((ip, payload)) => {
                ([ip.source().into(), ip.destination().into()], ip.next_header(), payload)
            }
            Err(_) => return false,
        },
        _ => return false,
    };
    let is_near = |wanted: [u8; 16]| {
        let wanted = Ipv6Addr::from(wanted).to_canonical();
        ends.iter().any(|end| end.to_canonical() == wanted)
    };
    if filter.address.is_some_and(|wanted| !is_near(wanted)) {
        return false;
    }
    filter.qpns.is_empty() || takes_transport(filter, protocol, payload)
}

fn takes_transport(filter: &WatchFilter, protocol: u8, datagram: &[u8]) -> bool {
    if protocol != UDP {
        return false;
    }
    let Ok((udp, payload)) = udp::Header::new(datagram) else { return false };
    let of_roce = udp.destination_port() == ROCE_UDP_PORT;
    let bth = bth::Header::new(payload);
    of_roce && bth.is_ok_and(|(header, _)| filter.qpns.contains(&header.dest_qpn()))
}

/// The recording of a port, on its way to the reader.
#[derive(Debug)]
pub struct Recorder {
    filter: WatchFilter,
    reader: UnixStream,
    /// Whole blocks, of which the first `written` bytes are with the reader.
    bytes: Vec<u8>,
    written: usize,
    /// When it is to be written, on the card's clock.
    due: Option<u64>,
    /// Unix time, in nanoseconds, of zero on the card's clock.
    epoch: u64,
    /// Frames seen and missing, of the card's and for the card.
    counts: [(u64, u64); 2],
    /// Whether it ends: waiting frames are written, and then it is over.
    ends: bool,
}

/// A place in a recording, to go back to.
#[derive(Clone, Copy)]
struct Mark {
    bytes: usize,
    counts: [(u64, u64); 2],
}

impl Recorder {
    /// Begins a recording of the card with that number, at `now` of its clock. The reader is never waited for.
    ///
    /// # Errors
    /// When the socket cannot be had so.
    pub fn begin(
        card: usize,
        filter: WatchFilter,
        reader: UnixStream,
        now: u64,
    ) -> std::io::Result<Self> {
        reader.set_nonblocking(true)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let names = [format!("balboa{card}-sent"), format!("balboa{card}-delivered")];
        let mut bytes = Vec::new();
        pcapng::begin(&mut bytes, names.iter().map(String::as_str), filter.snap);
        let (epoch, counts) = (since.saturating_sub(now), [(0, 0); 2]);
        Ok(Self { filter, reader, bytes, written: 0, due: Some(now), epoch, counts, ends: false })
    }

    /// Whether a reader may still be there.
    fn is_read(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd as _;
        let mut fds = [PollFd::new(self.reader.as_fd(), PollFlags::empty())];
        // The kernel tells of a hang-up without being asked for it.
        let told = poll(&mut fds, PollTimeout::ZERO);
        told != Ok(1)
    }

    /// Records nothing more.
    pub fn end(&mut self, now: u64) {
        if !std::mem::replace(&mut self.ends, true) {
            let time = self.epoch.saturating_add(now);
            for (interface, (seen, lost)) in (0..).zip(self.counts) {
                pcapng::append_statistics(&mut self.bytes, interface, time, seen, lost);
            }
            self.due = Some(now);
        }
    }

    fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), counts: self.counts }
    }

    fn go_back(&mut self, to: Mark) {
        self.bytes.truncate(to.bytes);
        self.counts = to.counts;
    }

    fn record(&mut self, direction: Direction, now: u64, frame: &[u8]) {
        if self.ends || !takes(&self.filter, frame) {
            return;
        }
        let (interface, counts) = match direction {
            Direction::Outbound => (0, self.counts.first_mut()),
            Direction::Inbound => (1, self.counts.last_mut()),
        };
        let Some((seen, lost)) = counts else { return };
        *seen = seen.saturating_add(1);
        if self.bytes.len().saturating_sub(self.written) >= self.filter.ring {
            *lost = lost.saturating_add(1);
            return;
        }
        let keep = match self.filter.snap {
            0 => usize::MAX,
            snap => usize::try_from(snap).unwrap_or(usize::MAX),
        };
        let time = self.epoch.saturating_add(now);
        pcapng::append(&mut self.bytes, interface, direction, time, frame, keep);
        self.due.get_or_insert(now.saturating_add(WRITE_AFTER_NS));
    }

    /// Writes the frames that are due; false once the recording is over.
    fn write_due(&mut self, now: u64) -> bool {
        let waiting = self.bytes.len().saturating_sub(self.written);
        let Some(due) = self.due else { return !self.ends };
        // A reader that was slow is asked again at its time only.
        if due > now && (waiting < WRITE_AT || self.written > 0) {
            return true;
        }
        // However fast the reader is, the card has its turn again.
        let end = self.bytes.len().min(self.written.saturating_add(WRITE_AT_MOST));
        while let Some(left) = self.bytes.get(self.written..end).filter(|left| !left.is_empty()) {
            match self.reader.write(left) {
                Ok(bytes) => self.written = self.written.saturating_add(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.due = Some(now.saturating_add(AGAIN_AFTER_NS));
                    // Taken bytes are removed only once they are many, so that the rest is not moved each time.
                    if self.written >= self.bytes.len() / 2 {
                        self.bytes.drain(..self.written);
                        self.written = 0;
                    }
                    return true;
                }
                Err(_) => return false,
            }
        }
        if end < self.bytes.len() {
            self.due = Some(now);
            return true;
        }
        self.bytes.clear();
        (self.written, self.due) = (0, None);
        !self.ends
    }
}

/// The recording of a port, if there is one.
#[derive(Clone, Default)]
pub struct Watch(Rc<RefCell<Option<Recorder>>>);

impl Watch {
    /// Begins a recording; false while another is being read.
    #[must_use]
    pub fn begin(&self, recorder: Recorder) -> bool {
        let mut current = self.0.borrow_mut();
        if current.as_ref().is_some_and(Recorder::is_read) {
            return false;
        }
        *current = Some(recorder);
        true
    }

    /// Ends the recording, if there is one.
    pub fn end(&self, now: u64) {
        if let Some(recorder) = self.0.borrow_mut().as_mut() {
            recorder.end(now);
        }
    }
}

/// A port that may be recorded while it runs. Put around everything that changes frames on their way.
pub struct Watched {
    port: Box<dyn Port>,
    watch: Watch,
    /// Where each frame of a burst begins; kept for its memory.
    marks: Vec<Mark>,
}

impl Watched {
    /// A port without a recording yet, and the means to begin one.
    #[must_use]
    pub fn new(port: Box<dyn Port>) -> (Self, Watch) {
        let watch = Watch::default();
        (Self { port, watch: watch.clone(), marks: Vec::new() }, watch)
    }
}

impl Port for Watched {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        let mut current = self.watch.0.borrow_mut();
        let Some(recorder) = current.as_mut() else {
            return self.port.send(now, burst);
        };
        self.marks.clear();
        for frame in burst.iter() {
            self.marks.push(recorder.mark());
            recorder.record(Direction::Outbound, now, frame.as_slice());
        }
        let before = burst.len();
        self.port.send(now, burst);
        if let Some(mark) = self.marks.get(before.saturating_sub(burst.len())) {
            recorder.go_back(*mark);
        }
        if !recorder.write_due(now) {
            *current = None;
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let before = into.len();
        self.port.receive(now, into, budget);
        let mut current = self.watch.0.borrow_mut();
        let Some(recorder) = current.as_mut() else { return };
        for frame in into.range(before..) {
            recorder.record(Direction::Inbound, now, frame.as_slice());
        }
        if !recorder.write_due(now) {
            *current = None;
        }
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn rooms(&self) -> Option<Rooms> {
        self.port.rooms()
    }

    fn qos(&self) -> Result<&Qos, Error> {
        self.port.qos()
    }

    fn set_qos(&mut self, now: u64, qos: &Qos) -> Result<(), Error> {
        self.port.set_qos(now, qos)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn next_timeout(&self) -> Option<u64> {
        let due = self.watch.0.borrow().as_ref().and_then(|recorder| recorder.due);
        [due, self.port.next_timeout()].into_iter().flatten().min()
    }

    fn loop_back(&mut self, now: u64, frames: &VecDeque<Frame>) {
        if let Some(recorder) = self.watch.0.borrow_mut().as_mut() {
            for frame in frames {
                recorder.record(Direction::Outbound, now, frame.as_slice());
                recorder.record(Direction::Inbound, now, frame.as_slice());
            }
        }
        self.port.loop_back(now, frames);
    }

    fn set_carrier(&mut self, up: bool) {
        self.port.set_carrier(up);
    }

    fn set_addresses(&mut self, mac: [u8; 6], addresses: &[IpAddr]) {
        self.port.set_addresses(mac, addresses);
    }

    fn path_mtu(&self, longer: usize) -> PathMtu {
        self.port.path_mtu(longer)
    }

    fn most_groups(&self) -> usize {
        self.port.most_groups()
    }

    fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        self.port.hear_group(group, is_member)
    }

    fn reset(&mut self) {
        self.port.reset();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.port.counters()
    }

    fn flush(&mut self) {
        self.port.flush();
    }
}

#[cfg(test)]
mod tests;
