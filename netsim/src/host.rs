//! A host: the transport of one port, and how it takes and gives frames.

use std::net::Ipv4Addr;

use roce::{
    AccessFlags, AddressVector, Event, FramePayload, Gid, IcrcPolicy, MacAddr, PathMtu, Placed,
    Placement, Priorities, Psn, QpAttributes, Qpn, ReceivedFrame as _, Service, Stack, StackConfig,
    Transmit,
};

use crate::frame::{Frame, PRIORITIES, Received, mac_of};
use crate::memory::{Lengths, Memory};
use crate::time::Time;

/// The first queue pair number of a host's flows; the others follow.
const FIRST_QPN: u32 = 2;

/// The path MTU of flows, and the most of all.
const MTU: PathMtu = PathMtu::Mtu4096;

/// The acknowledgement timeout of flows, 4.096 µs · 2^12 = 17 ms: longer than full buffers hold a packet up.
const TIMEOUT: u8 = 12;

/// The IPv4 address of the first host; the others follow.
const FIRST_IPV4: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);

/// How many frames a host takes and gives at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Picoseconds from the first frame that has come until those that have come by then are received.
    pub sleep: u64,
    /// Frames of a priority that it gives at a time, at least one, and after which it is asked again when they have left.
    pub burst: usize,
}

impl Pace {
    /// Each frame is received when it has come, and asked for when it can leave.
    pub const EACH: Self = Self { sleep: 0, burst: 1 };
}

/// One host.
#[derive(Debug)]
pub struct Host<M = Lengths> {
    /// Its transport.
    pub stack: Stack,
    /// The memory that the transport works on.
    pub memory: M,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its port.
    pub port: u32,
    /// How it takes and gives frames.
    pub pace: Pace,
    /// It neither sends nor receives.
    pub off: bool,
    /// It does nothing before, and frames that come wait.
    pub stalled_until: Time,
    /// An event wakes it then.
    pub wakes_at: Time,
    /// Frames that have come and are to be received.
    pub inbox: Vec<Received>,
    /// Events of queue pairs that belong to no flow, for the caller that drives them.
    pub events: Vec<Event>,
    /// Frames that it received.
    pub received: u64,
    /// Rounds: it received frames or handled timers.
    pub rounds: u64,
    number: u32,
    /// The flow of each of its queue pairs, from [`FIRST_QPN`] on.
    flows: Vec<u32>,
    /// Frames that were received, to be used again.
    spare: Vec<Received>,
    placements: Vec<Placement>,
    placed: Vec<Placed>,
    /// Where frames are put together.
    buffer: Vec<u8>,
}

impl<M: Memory + Default> Host<M> {
    /// A host without queue pairs.
    #[must_use]
    pub fn new(number: u32, port: u32) -> Self {
        let mac = mac_of(number);
        let ipv4 = Ipv4Addr::from(u32::from(FIRST_IPV4) + number);
        let icrc_policy = IcrcPolicy::TrustVouchedFor;
        Self {
            stack: Stack::new(StackConfig { mac, ipv4, mtu_max: MTU, icrc_policy }),
            memory: M::default(),
            mac,
            ipv4,
            port,
            pace: Pace::EACH,
            off: false,
            stalled_until: Time(0),
            wakes_at: Time::NEVER,
            inbox: Vec::new(),
            events: Vec::new(),
            received: 0,
            rounds: 0,
            number,
            flows: Vec::new(),
            spare: Vec::new(),
            placements: Vec::new(),
            placed: Vec::new(),
            buffer: Vec::new(),
        }
    }
}

impl<M: Memory> Host<M> {
    /// The number of the queue pair that a flow has here while it is under way.
    #[must_use]
    pub fn reserve(&mut self, flow: u32) -> Qpn {
        let qpn = Qpn::new(FIRST_QPN + self.flows.len() as u32).unwrap_or(Qpn::GROUP);
        self.flows.push(flow);
        qpn
    }

    /// Makes the queue pair of a flow, connected with `peer_qpn` at host `peer`, whose address tells its Ethernet address,
    /// without a question.
    pub fn connect(
        &mut self,
        now: Time,
        qpn: Qpn,
        (peer, peer_qpn): (u32, Qpn),
        traffic_class: u8,
    ) -> Result<(), roce::Error> {
        self.stack.create_qp(qpn, Service::Rc, 0)?;
        let dgid = Gid::from_ipv6(mac_of(peer).link_local());
        let path = AddressVector { traffic_class, ..AddressVector::new(0, dgid) };
        let psn = Psn::new(0);
        let init = QpAttributes::to_init(AccessFlags::REMOTE_WRITE);
        let rtr = QpAttributes::to_rtr(path, MTU, peer_qpn, psn);
        let rtr = QpAttributes { min_rnr_timer: Some(1), ..rtr };
        let rts = QpAttributes { timeout: Some(TIMEOUT), ..QpAttributes::to_rts(psn) };
        for change in [init, rtr, rts] {
            self.stack.modify_qp(now.instant(), qpn, &change)?;
        }
        Ok(())
    }

    /// The flow of one of its queue pairs.
    #[must_use]
    pub fn flow(&self, qpn: Qpn) -> Option<u32> {
        self.flows.get(qpn.value().checked_sub(FIRST_QPN)? as usize).copied()
    }

    /// A frame has come, to be received by the next [`Host::round`].
    pub fn take(&mut self, frame: &Frame) {
        let mut received = self.spare.pop().unwrap_or_default();
        received.set(frame, self.number);
        self.inbox.push(received);
    }

    /// Receives the frames that have come, and handles timers. `arrived` hears of each payload that is where it
    /// belongs, and of which flow it is.
    pub fn round(&mut self, now: Time, mut arrived: impl FnMut(Option<u32>, &Placement)) {
        let now = now.instant();
        self.rounds += 1;
        self.received += self.inbox.len() as u64;
        let mut placements = std::mem::take(&mut self.placements);
        for (index, frame) in self.inbox.iter_mut().enumerate() {
            self.memory.receive(&mut self.stack, now, frame, index, &mut placements);
        }
        self.placed.clear();
        for placement in &mut placements {
            let frame = &mut self.inbox[placement.frame_index];
            let sink = match self.stack.services() {
                Some(services) => services.act(placement, frame.bytes_mut()),
                None => Some(placement.sink),
            };
            let placed = match sink {
                Some(sink) => {
                    placement.sink = sink;
                    self.memory.place(placement, frame.bytes())
                }
                None => Placed::Failed,
            };
            if placed == Placed::Copied {
                arrived(self.flow(placement.qpn), placement);
            }
            self.placed.push(placed);
        }
        self.stack.commit(now, &self.placed);
        self.stack.handle_timeout(now);
        placements.clear();
        self.placements = placements;
        self.spare.append(&mut self.inbox);
    }

    /// Gives the next frames to send of some priorities, a burst of each at most, each with its flow, the reference of its
    /// payload and its priority. Says whether some of them are for the host itself, as a member of a group: they have come.
    pub fn transmit(
        &mut self,
        now: Time,
        mut open: Priorities,
        mut give: impl FnMut(Option<u32>, Option<&FramePayload>, Frame, u8),
    ) -> bool {
        let (mut failed, mut left, mut hears_itself) = (None, [self.pace.burst; PRIORITIES], false);
        while let Some(transmit) = self.stack.poll_transmit_of(now.instant(), open) {
            let priority = transmit.priority;
            let payload = transmit.payload.as_ref();
            if failed.is_some() && failed == payload.map(|payload| payload.qpn) {
                continue;
            }
            let Some(frame) = self.frame(&transmit) else {
                if let Some(payload) = payload {
                    self.stack.payload_failed(now.instant(), payload.qpn, payload);
                    failed = Some(payload.qpn);
                }
                continue;
            };
            let left = &mut left[usize::from(priority)];
            *left = left.saturating_sub(1);
            open = open.with(priority, *left != 0);
            if M::BYTES && self.stack.hears_itself(&self.buffer) {
                self.take(&frame);
                hears_itself = true;
            }
            give(payload.and_then(|payload| self.flow(payload.qpn)), payload, frame, priority);
        }
        self.stack.frames_made();
        hears_itself
    }

    /// The frame of a packet that the transport emitted, if its payload can be read. It is in the buffer, too, if it is
    /// by bytes.
    fn frame(&mut self, transmit: &Transmit) -> Option<Frame> {
        let mut frame = if M::BYTES {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            buffer.extend_from_slice(transmit.header.as_slice());
            let header = buffer.len();
            let mut fetched =
                transmit.payload.as_ref().is_none_or(|it| self.memory.fetch(it, &mut buffer));
            if let (true, Some(payload), Some(services)) =
                (fetched, &transmit.payload, self.stack.services())
            {
                let range = header..buffer.len();
                fetched = services.transform(payload, &mut buffer, range);
            }
            if fetched {
                buffer.resize(buffer.len() + usize::from(transmit.pad), 0);
                self.memory.seal(&mut buffer, transmit.needs_icrc);
            }
            self.buffer = buffer;
            fetched.then(|| Frame::new(&self.buffer, self.buffer.len()))?
        } else {
            Frame::of(transmit)
        };
        debug_assert_eq!(frame.length as usize, transmit.frame_length());
        frame.from = self.number;
        Some(frame)
    }
}
