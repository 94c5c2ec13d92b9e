//! The RC transport, and XRC, between a hostile peer and a hostile user: frames near the expected one and far from it,
//! calls in any order, copies that fail, and time.
//!
//! Checked promises: every address it asks for was granted; every message and every receive request
//! completes once and in order (one of a shared receive queue along XRC once, even if the QP ends);
//! each packet that was accepted and asked is acknowledged once and in
//! order, unless its QP failed, and nothing else is; nothing it emits is longer than the path allows;
//! no input makes it emit or report without end.

use std::collections::{HashMap, VecDeque};
use std::task::Poll;

use arbitrary::Unstructured;
use roce::opcode::{Class, Opcode};
use roce::wire::{aeth, arp, bth, ethernet, extension, icrc, ipv4, reth, udp};
use roce::{
    AccessDenied, AccessFlags, AddressVector, AtomicOperation, Event, FramePayload, Gid,
    IcrcPolicy, Instant, MacAddr, Operation, PathMtu, Placed, Placement, Psn, QpAttributes,
    QpState, Qpn, ReceiveError, RemoteAccess, RemoteRange, ResponderMemory, SendRequest, Sink,
    Source, Stack, StackConfig, TakenReceive, Target,
};

use crate::Outcome;

const OWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_IP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 2);
const QPNS: [u32; 4] = [0x11, 0x12, XRC_SEND, XRC_RECEIVE];
/// An initiator and a target of XRC.
const XRC_SEND: u32 = 0x13;
const XRC_RECEIVE: u32 = 0x14;
const XRC: u8 = roce::opcode::code::EXTENDED_RELIABLE_CONNECTION;
/// The target's domain, and the shared receive queues in it.
const DOMAIN: u32 = 3;
const SRQS: [u32; 2] = [0x51, 0x52];
/// The peer's QP of each of ours has a number of this more.
const PEER_QPN: u32 = 0x11;
/// Bytes before the transport headers.
const ENVELOPE: usize = ethernet::LENGTH + ipv4::LENGTH + udp::LENGTH;
const MTU: PathMtu = PathMtu::Mtu256;

/// A region that the peer may reach: key, first address, bytes, whether for writes too.
const REGIONS: [(u32, u64, u64, bool); 3] =
    [(0x77, 0x5000, 4096, true), (0x78, 0x9000, 2000, false), (0x79, u64::MAX - 999, 999, true)];

/// Ethernet to BTH with the longest extension headers, padding and seal.
const MOST_HEADERS: usize = 14 + 40 + 8 + 12 + 4 + 28 + 3 + 4;

/// The user's knowledge of one QP since its last RESET.
#[derive(Default)]
struct Model {
    /// Operation and length of each message, by number.
    messages: Vec<(Operation, u32)>,
    /// Messages that are complete, which are the first ones.
    complete: u64,
    /// A message failed; no other completes.
    failed: bool,
    /// Receive requests taken and not complete: id and capacity, oldest first.
    receives: VecDeque<(u64, u64)>,
    /// PSN and message number of each acknowledgement that is due.
    owed: VecDeque<(Psn, u32)>,
    /// Messages of the peer that were accepted.
    executed: u32,
    /// Repetitions that may be acknowledged.
    repetitions: u64,
}

/// The visible state of a QP before and after it gets a frame.
struct Sight {
    qpn: Qpn,
    packet: bth::Repr,
    opcode: &'static Opcode,
    expected: Psn,
    repetitions: u64,
}

/// The layer above the transport.
#[derive(Default)]
struct User {
    qps: HashMap<u32, Model>,
    /// Capacities of receive requests to be taken, and whether each can be used.
    posted: VecDeque<(u64, bool)>,
    next_receive: u64,
    /// Taken along XRC and not complete: of which queue, and the capacity, by id.
    shared: HashMap<u64, (u32, u64)>,
}

impl User {
    fn qp(&mut self, qpn: Qpn) -> &mut Model {
        self.qps.get_mut(&qpn.value()).expect("the transport names a QP that exists")
    }
}

/// The regions that are reached through a shared receive queue, or without one.
fn regions(srqn: Option<u32>) -> &'static [(u32, u64, u64, bool)] {
    match srqn {
        None => &REGIONS,
        Some(srqn) if srqn == SRQS[0] => &REGIONS[..2],
        Some(_) => &REGIONS[2..],
    }
}

fn granted(srqn: Option<u32>, rkey: u32, va: u64, length: u64, writes: bool) -> bool {
    regions(srqn).iter().any(|&(key, start, bytes, writable)| {
        let fits = va
            .checked_sub(start)
            .is_some_and(|offset| offset.checked_add(length).is_some_and(|end| end <= bytes));
        key == rkey && fits && (writable || !writes)
    })
}

impl ResponderMemory for User {
    fn check_remote(
        &mut self,
        target: Target,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        let RemoteRange { rkey, va, length } = memory;
        assert!(self.qps.contains_key(&target.qpn.value()));
        let srqn = queue_of(target);
        if srqn.is_some_and(|srqn| !SRQS.contains(&srqn)) {
            return Poll::Ready(Err(AccessDenied::Srq));
        }
        if access == RemoteAccess::Invalidate {
            let revocable =
                regions(srqn).iter().any(|&(key, .., writable)| key == rkey && writable);
            return Poll::Ready(if revocable { Ok(()) } else { Err(AccessDenied::Memory) });
        }
        assert!(length > 0 || srqn.is_some());
        match length == 0 || granted(srqn, rkey, va, length, access != RemoteAccess::Read) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(AccessDenied::Memory)),
        }
    }

    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        let srqn = queue_of(target);
        if srqn.is_some_and(|srqn| !SRQS.contains(&srqn)) {
            return Poll::Ready(Err(ReceiveError::NoSrq));
        }
        let Some((capacity, usable)) = self.posted.pop_front() else {
            return Poll::Ready(Err(ReceiveError::Empty));
        };
        if !usable {
            return Poll::Ready(Err(ReceiveError::Invalid));
        }
        let id = self.next_receive;
        self.next_receive += 1;
        if let Some(srqn) = srqn {
            self.shared.insert(id, (srqn, capacity));
            return Poll::Ready(Ok(TakenReceive { id, capacity, left: None }));
        }
        self.qp(target.qpn).receives.push_back((id, capacity));
        Poll::Ready(Ok(TakenReceive { id, capacity, left: Some(self.posted.len() as u32) }))
    }
}

/// The shared receive queue that a request names: along XRC each does, and no other.
fn queue_of(target: Target) -> Option<u32> {
    assert_eq!(target.srq.is_some(), target.qpn.value() == XRC_RECEIVE);
    let srq = target.srq?;
    assert_eq!(srq.domain, DOMAIN);
    Some(srq.srqn)
}

struct Bench {
    stack: Stack,
    user: User,
    now: u64,
    frames: Vec<Vec<u8>>,
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let icrc_policy = IcrcPolicy::CheckAll;
    let config = StackConfig { mac: OWN_MAC, ipv4: OWN_IP, mtu_max: MTU, icrc_policy };
    let mut bench =
        Bench { stack: Stack::new(config), user: User::default(), now: 1_000, frames: Vec::new() };
    for qpn in QPNS {
        bench.user.qps.insert(qpn, Model::default());
        let qpn = Qpn::new(qpn).expect("a small number");
        bench.create(qpn);
        bench.climb(u, qpn)?;
    }
    bench.frames.push(bench.arp_reply());
    bench.burst(&[], None)?;
    while !u.is_empty() {
        bench.act(u)?;
    }
    for qpn in QPNS {
        bench.stack.destroy_qp(Qpn::new(qpn).expect("a small number"));
    }
    bench.events();
    let left = &bench.user.shared;
    assert!(left.is_empty(), "shared receive queues never hear of {left:?}");
    Ok(())
}

impl Bench {
    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match u.int_in_range(0..=15)? {
            0..=7 => {
                for _ in 0..u.int_in_range(1..=4)? {
                    let frame = self.frame(u)?;
                    self.frames.push(frame);
                }
                let failures = u.bytes(1)?;
                // The changes of a QP while its frames are copied.
                let amid = u.ratio(1, 16)?;
                self.burst(failures, amid.then_some(u))?;
            }
            8 | 9 => self.post(u)?,
            10 => {
                let capacity = u.choose_index(1024)? as u64;
                let usable = u.ratio(15, 16)?;
                if self.user.posted.len() < 64 {
                    self.user.posted.push_back((capacity, usable));
                }
            }
            11 | 12 => self.transmit(u)?,
            13 => self.let_time_pass(u)?,
            14 => self.modify(u)?,
            _ => {
                let length = u.int_in_range(0..=64)?;
                self.frames.push(u.bytes(length)?.to_vec());
                self.burst(&[], None)?;
            }
        }
        Ok(())
    }

    fn create(&mut self, qpn: Qpn) {
        let created = match qpn.value() {
            XRC_SEND => self.stack.create_qp(qpn, roce::Service::XrcSend, 0),
            XRC_RECEIVE => {
                self.stack.create_qp(qpn, roce::Service::XrcReceive { domain: DOMAIN }, 0)
            }
            _ => self.stack.create_qp(qpn, roce::Service::Rc, 0),
        };
        created.expect("room for a QP");
    }

    /// Takes a QP in RESET to RTS, and gives it receive requests.
    fn climb(&mut self, u: &mut Unstructured<'_>, qpn: Qpn) -> Outcome {
        let small = |u: &mut Unstructured<'_>, most: u8| u.int_in_range(0..=most);
        // Verbs have no code 1.
        let static_rate = small(u, 23)?.saturating_add(1);
        let static_rate = if static_rate == 1 { 0 } else { static_rate };
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            access: Some(AccessFlags::from_bits_truncate(u.arbitrary::<u8>()? | 3)),
            ..QpAttributes::default()
        };
        let mut rtr = QpAttributes {
            state: Some(QpState::Rtr),
            path: Some(AddressVector {
                static_rate,
                ..AddressVector::new(1, Gid::from_ipv4(PEER_IP))
            }),
            path_mtu: Some(MTU),
            dest_qpn: Qpn::new(qpn.value() + PEER_QPN),
            rq_psn: Some(Psn::new(u.arbitrary()?)),
            max_dest_rd_atomic: Some(small(u, 4)?),
            min_rnr_timer: Some(small(u, 31)?),
            ..QpAttributes::default()
        };
        let mut rts = QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(u.arbitrary()?)),
            timeout: Some(small(u, 20)?),
            retry_cnt: Some(small(u, 7)?),
            rnr_retry: Some(small(u, 7)?),
            max_rd_atomic: Some(small(u, 4)?),
            ..QpAttributes::default()
        };
        if qpn.value() == XRC_SEND {
            (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (None, None);
        }
        if qpn.value() == XRC_RECEIVE {
            (rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic) = (None, None, None);
        }
        for change in [init, rtr, rts] {
            self.stack.modify_qp(Instant(self.now), qpn, &change).expect("a sound change");
        }
        Ok(())
    }

    fn modify(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let qpn = Qpn::new(*u.choose(&QPNS)?).expect("a small number");
        if u.ratio(1, 8)? {
            self.stack.destroy_qp(qpn);
            self.create(qpn);
            *self.user.qp(qpn) = Model::default();
            self.climb(u, qpn)?;
            self.events();
            return Ok(());
        }
        let state = *u.choose(&[QpState::Reset, QpState::Err, QpState::Sqd, QpState::Rts])?;
        let change = QpAttributes { state: Some(state), ..QpAttributes::default() };
        let changed = self.stack.modify_qp(Instant(self.now), qpn, &change).is_ok();
        if changed && state == QpState::Reset {
            *self.user.qp(qpn) = Model::default();
            self.climb(u, qpn)?;
        }
        if changed && state == QpState::Err {
            let qp = self.user.qp(qpn);
            qp.owed.clear();
            qp.repetitions = 0;
        }
        self.events();
        Ok(())
    }

    fn post(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let qpn = Qpn::new(*u.choose(&QPNS)?).expect("a small number");
        let value = u.arbitrary()?;
        let operation = *u.choose(&[
            Operation::Send,
            Operation::SendImm,
            Operation::Write,
            Operation::WriteImm,
            Operation::Read,
            Operation::Atomic(AtomicOperation::FetchAdd { add: value }),
            Operation::Atomic(AtomicOperation::CompareSwap { compare: 0, swap: value }),
        ])?;
        let length = match u.int_in_range(0..=7)? {
            0 => u.arbitrary()?,
            _ if matches!(operation, Operation::Atomic(_)) => AtomicOperation::LENGTH,
            _ => u.int_in_range(0..=1500)?,
        };
        let request = SendRequest {
            operation,
            length,
            remote_va: u.arbitrary()?,
            rkey: u.arbitrary()?,
            imm: u.arbitrary()?,
            solicited: u.arbitrary()?,
            fence: u.arbitrary()?,
        };
        let names_srq = (qpn.value() == XRC_SEND) != u.ratio(1, 16)?;
        let now = Instant(self.now);
        let posted = match names_srq {
            true => self.stack.post_xrc_send(now, qpn, u.arbitrary()?, request),
            false => self.stack.post_send(now, qpn, request),
        };
        if let Ok(number) = posted {
            assert!(names_srq == (qpn.value() == XRC_SEND) && qpn.value() != XRC_RECEIVE);
            let qp = self.user.qp(qpn);
            assert_eq!(number, qp.messages.len() as u64, "messages are numbered in order");
            qp.messages.push((operation, length));
        }
        Ok(())
    }

    fn let_time_pass(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match (u.ratio(1, 2)?, self.stack.next_timeout()) {
            (true, Some(at)) => self.now = self.now.max(at.0),
            _ => self.now = self.now.saturating_add(u.int_in_range(0..=1 << 36)?),
        }
        self.stack.handle_timeout(Instant(self.now));
        self.events();
        Ok(())
    }

    /// Gives the stack the frames at hand; bit n of `failures` fails placement n. With `amid` a QP is changed
    /// before their placements are done.
    fn burst(&mut self, failures: &[u8], amid: Option<&mut Unstructured<'_>>) -> Outcome {
        let mut placements = Vec::new();
        let mut frames = std::mem::take(&mut self.frames);
        for (index, frame) in frames.iter_mut().enumerate() {
            let before = placements.len();
            let now = Instant(self.now);
            let seen = self.sight(frame);
            assert!(
                self.stack.receive(now, frame, index, &mut self.user, &mut placements).is_ready()
            );
            if let Some(seen) = seen {
                self.count(&seen);
            }
            assert!(placements.len() <= before + 1, "one frame, {placements:?}");
        }
        for placement in &placements {
            self.check_placement(placement, &frames);
        }
        let failed = |n: usize| failures.first().is_some_and(|bits| bits >> (n % 8) & 1 == 1);
        // Mostly all succeed.
        let all = failures.first().is_none_or(|bits| bits % 4 != 0);
        let placed = |(n, placement): (usize, &Placement)| match placement.sink {
            _ if !all && failed(n) => Placed::Failed,
            Sink::Atomic { .. } => Placed::Executed { before: n as u64 },
            _ => Placed::Copied,
        };
        let placed: Vec<Placed> = placements.iter().enumerate().map(placed).collect();
        if let Some(u) = amid {
            self.modify(u)?;
        }
        self.stack.commit(Instant(self.now), &placed);
        self.events();
        Ok(())
    }

    /// The request in a frame, and its QP.
    fn sight(&self, frame: &[u8]) -> Option<Sight> {
        let (packet, _) = bth::Repr::parse(frame.get(ENVELOPE..)?).ok()?;
        let opcode = Opcode::find(packet.opcode)?;
        let qpn = Qpn::new(packet.dest_qpn)?;
        let expected = self.stack.query_qp(qpn)?.rq_psn;
        let repetitions = self.stack.qp_counters(qpn)?.duplicate_request;
        Some(Sight { qpn, packet, opcode, expected, repetitions })
    }

    /// Notes the outcome of a request.
    fn count(&mut self, before: &Sight) {
        let Sight { qpn, packet, opcode, expected, repetitions } = before;
        let after = self.stack.query_qp(*qpn).expect("it exists").rq_psn;
        let counters = self.stack.qp_counters(*qpn).expect("it exists");
        let qp = self.user.qp(*qpn);
        if after != *expected {
            assert_eq!(packet.psn, *expected, "what is not expected is executed");
            qp.executed += u32::from(opcode.position.is_end());
            if packet.ack_request && !opcode.class.is_answered() {
                qp.owed.push_back((packet.psn, qp.executed & Psn::MASK));
            }
        }
        qp.repetitions += counters.duplicate_request - repetitions;
    }

    /// Compares an answer with the owed ones.
    fn check_answer(&mut self, header: &[u8]) {
        let (packet, rest) = bth::Repr::parse(&header[ENVELOPE..]).expect("a transport header");
        let class = Opcode::find(packet.opcode).expect("a known opcode").class;
        let own = packet.dest_qpn.wrapping_sub(PEER_QPN);
        let qp = self.user.qp(Qpn::new(own).expect("a QP of ours"));
        let first = qp.owed.front().copied();
        if matches!(class, Class::ReadResponse | Class::AtomicAcknowledge) {
            let in_order = first.is_none_or(|(first, _)| packet.psn.distance(first) < 0);
            assert!(in_order, "response {} before the ACK of {first:?}", packet.psn);
        }
        if class != Class::Acknowledge {
            return;
        }
        let (header, _) = aeth::Repr::parse(rest).expect("an acknowledgement header");
        match (header.syndrome, first) {
            (aeth::Syndrome::Ack { .. }, Some((psn, executed))) if psn == packet.psn => {
                assert_eq!(header.msn, executed, "messages executed as of {psn}");
                qp.owed.pop_front();
            }
            (aeth::Syndrome::Ack { .. }, _) => {
                let psn = packet.psn;
                qp.repetitions = qp.repetitions.checked_sub(1).unwrap_or_else(|| {
                    panic!("nobody asked for the ACK of {psn}, owed is {first:?}")
                });
            }
            // A request that is refused for good takes back later accepted ones.
            (_, Some((psn, _))) => {
                assert!(packet.psn.distance(psn) <= 0, "a NAK before the ACK of {psn}");
                qp.owed.clear();
            }
            (_, None) => {}
        }
    }

    fn check_placement(&mut self, placement: &Placement, frames: &[Vec<u8>]) {
        let Placement { qpn, srqn, sink, offset, frame_index, range } = placement.clone();
        let length = range.len() as u64;
        let is_atomic = matches!(sink, Sink::Atomic { .. });
        assert!((length == 0) == is_atomic);
        assert!(range.end + icrc::LENGTH <= frames[frame_index].len());
        assert_eq!(srqn.is_some(), qpn.value() == XRC_RECEIVE);
        let User { qps, shared, .. } = &self.user;
        let qp = &qps[&qpn.value()];
        match sink {
            Sink::Remote { rkey, va } => {
                assert!(granted(srqn, rkey, va, length, true), "{placement:?} was never granted");
            }
            Sink::Receive { id } if srqn.is_some() => {
                let (of, capacity) = shared[&id];
                assert!(Some(of) == srqn && offset + length <= capacity, "{placement:?}");
            }
            Sink::Receive { id } => {
                let receive = qp.receives.iter().find(|(taken, _)| *taken == id);
                let &(_, capacity) = receive.expect("a receive request that was taken");
                assert!(offset + length <= capacity, "{placement:?} leaves its {capacity} bytes");
            }
            Sink::Message { message } => {
                let (operation, bytes) = qp.messages[message as usize];
                assert!(operation.is_answered());
                assert!(offset + length <= u64::from(bytes), "{placement:?} leaves its message");
                assert!(message >= qp.complete, "{placement:?} is for a message that is complete");
            }
            Sink::Atomic { rkey, va, .. } => {
                assert!(granted(srqn, rkey, va, 8, true) && va % 8 == 0, "{placement:?}");
            }
        }
    }

    /// Takes frames to send.
    fn transmit(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        for _ in 0..u.int_in_range(1..=32)? {
            let Some(transmit) = self.stack.poll_transmit(Instant(self.now)) else { break };
            let most = MOST_HEADERS + MTU.bytes() as usize;
            assert!(transmit.pad < 4 && (!transmit.needs_icrc || transmit.frame_length() <= most));
            if transmit.needs_icrc {
                self.check_answer(transmit.header.as_slice());
            }
            let Some(payload) = transmit.payload else { continue };
            self.check_payload(&payload);
            if u.ratio(1, 32)? {
                self.stack.payload_failed(Instant(self.now), payload.qpn, &payload);
                self.events();
            }
        }
        Ok(())
    }

    fn check_payload(&mut self, payload: &FramePayload) {
        let FramePayload { qpn, srqn, source, offset, length, .. } = *payload;
        assert!((1..=MTU.bytes()).contains(&length));
        let qp = self.user.qp(qpn);
        match source {
            Source::Remote { rkey, va } => {
                let length = u64::from(length);
                assert!(granted(srqn, rkey, va, length, false), "{payload:?} was never granted");
            }
            Source::Message { message } => {
                let (operation, bytes) = qp.messages[message as usize];
                assert!(!operation.is_answered());
                assert!(offset + u64::from(length) <= u64::from(bytes), "{payload:?}");
                assert!(message >= qp.complete, "{payload:?} is of a message that is complete");
            }
        }
    }

    /// Takes the stack's reports, and compares them with the requests.
    fn events(&mut self) {
        let mut count = 0;
        while let Some(event) = self.stack.poll_event() {
            count += 1;
            assert!(count < 5_000, "events without end: {event:?}");
            let User { qps, shared, .. } = &mut self.user;
            let qp = qps.get_mut(&event.qpn().value()).expect("the transport names a QP of ours");
            match event {
                Event::ReceiveCompleted { srqn: Some(srqn), id, length, kind, .. } => {
                    let (of, capacity) = shared.remove(&id).expect("one was taken");
                    let sent = kind != roce::ReceiveKind::Write;
                    assert!(of == srqn && (!sent || u64::from(length) <= capacity), "{event:?}");
                }
                Event::ReceiveFailed { srqn: Some(srqn), id, .. } => {
                    let (of, _) = shared.remove(&id).expect("one was taken");
                    assert_eq!(of, srqn, "{event:?}");
                }
                Event::SendsCompleted { through, .. } => {
                    assert!(!qp.failed, "{event:?} after a failure");
                    assert!((qp.complete..qp.messages.len() as u64).contains(&through));
                    qp.complete = through + 1;
                }
                Event::SendFailed { message, .. } => {
                    assert!(!qp.failed, "{event:?} after a failure");
                    assert_eq!(message, qp.complete, "those before it are complete");
                    assert!((message as usize) < qp.messages.len());
                    qp.failed = true;
                }
                Event::ReceiveCompleted { id, length, kind, .. } => {
                    let (oldest, capacity) = qp.receives.pop_front().expect("one was taken");
                    assert_eq!(id, oldest, "receive requests complete in order");
                    let sent = kind == roce::ReceiveKind::Send;
                    assert!(!sent || u64::from(length) <= capacity);
                }
                Event::ReceiveFailed { id, .. } => {
                    let (oldest, _) = qp.receives.pop_front().expect("one was taken");
                    assert_eq!(id, oldest, "receive requests fail in order");
                }
                Event::Async { .. } | Event::EnteredError { .. } => {}
            }
        }
    }

    fn arp_reply(&self) -> Vec<u8> {
        let reply = arp::Repr {
            operation: arp::Operation::Reply,
            sender_mac: PEER_MAC,
            sender_ip: PEER_IP,
            target_mac: OWN_MAC,
            target_ip: OWN_IP,
        };
        let header = ethernet_header(ethernet::EtherType::ARP);
        [&header.to_bytes()[..], &reply.to_bytes()].concat()
    }

    /// A frame near the expected one, with some of it wrong.
    fn frame(&self, u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
        let qpn = *u.choose(&QPNS)?;
        let is_xrc = [XRC_SEND, XRC_RECEIVE].contains(&qpn) != u.ratio(1, 16)?;
        let service = if is_xrc { XRC } else { 0 };
        let opcode = match u.int_in_range(0..=15)? {
            0 => u.arbitrary()?,
            1 => 0x81,
            2..=5 => service | u.int_in_range(0x0d..=0x12)?,
            _ => service | u.int_in_range(0..=0x17)?,
        };
        let answers = (0x0d..=0x12).contains(&(opcode & 0x1f));
        let expected = self.stack.query_qp(Qpn::new(qpn).expect("small")).expect("it exists");
        let base = if answers { expected.sq_psn } else { expected.rq_psn };
        let psn = match u.int_in_range(0..=7)? {
            0 => Psn::new(u.arbitrary()?),
            1 | 2 => base.add(u.int_in_range(0..=8)?),
            3 | 4 => Psn::new(base.value().wrapping_sub(u.int_in_range(0..=8)?)),
            _ => base,
        };
        let length = match opcode & 0x1f {
            // Headers are all that atomics have.
            0x12..=0x14 if !u.ratio(1, 16)? => 0,
            _ => *u.choose(&[0_usize, 1, 4, 13, 100, 255, 256, 256, 256, 257])?,
        };
        let body = bth::Repr {
            opcode,
            solicited: u.arbitrary()?,
            pad_count: ((4 - length % 4) % 4) as u8,
            pkey: if u.ratio(1, 32)? { u.arbitrary()? } else { 0xffff },
            dest_qpn: if u.ratio(1, 32)? { u.arbitrary()? } else { qpn },
            ack_request: u.arbitrary()?,
            psn,
            ..bth::Repr::default()
        };
        let mut bytes = body.to_bytes().to_vec();
        let extensions = roce::opcode::Opcode::find(opcode).map(|row| row.extensions);
        extend(u, &mut bytes, extensions.unwrap_or(roce::opcode::Extensions::empty()))?;
        bytes.resize(bytes.len() + length.next_multiple_of(4) + icrc::LENGTH, 0x5a);
        let mut frame = envelope(u, &bytes)?;
        if u.ratio(1, 16)? {
            let at = u.choose_index(frame.len())?;
            frame[at] = u.arbitrary()?;
            frame.truncate(frame.len() - u.int_in_range(0..=8)?.min(frame.len()));
        }
        if !u.ratio(1, 32)? {
            let _ = icrc::append(&mut frame);
        }
        Ok(frame)
    }
}

/// The extension headers that a packet should have.
fn extend(
    u: &mut Unstructured<'_>,
    bytes: &mut Vec<u8>,
    extensions: roce::opcode::Extensions,
) -> Outcome {
    use roce::opcode::Extensions as E;
    if extensions.contains(E::XRCETH) {
        let srqn = match u.int_in_range(0..=15)? {
            0 => u.arbitrary()?,
            1 | 2 => SRQS[1],
            _ => SRQS[0],
        };
        bytes.extend(extension::xrceth::to_bytes(srqn));
    }
    if extensions.contains(E::RETH) {
        let (key, start, length, _) = *u.choose(&REGIONS)?;
        let header = reth::Repr {
            rkey: if u.ratio(1, 16)? { u.arbitrary()? } else { key },
            va: match u.int_in_range(0..=7)? {
                0 => u.arbitrary()?,
                1 => start.wrapping_add(length).wrapping_sub(u.int_in_range(0..=300)?),
                _ => start.wrapping_add(u.int_in_range(0..=512)?),
            },
            dma_length: match u.int_in_range(0..=7)? {
                0 => u.arbitrary()?,
                1 => 0,
                2 | 3 => u.int_in_range(1..=2000)?,
                _ => *u.choose(&[1, 4, 13, 100, 255, 256, 512])?,
            },
        };
        bytes.extend(header.to_bytes());
    }
    if extensions.contains(E::ATOMICETH) {
        let (key, start, ..) = *u.choose(&REGIONS)?;
        let header = extension::atomiceth::Repr {
            rkey: if u.ratio(1, 16)? { u.arbitrary()? } else { key },
            va: match u.int_in_range(0..=7)? {
                0 => u.arbitrary()?,
                1 => start.wrapping_add(u.int_in_range(0..=512)?),
                _ => start.next_multiple_of(8).wrapping_add(8 * u.int_in_range(0..=64)?),
            },
            swap_or_add: u.arbitrary()?,
            compare: u.arbitrary()?,
        };
        bytes.extend(header.to_bytes());
    }
    if extensions.contains(E::AETH) {
        let syndrome = match u.int_in_range(0..=3)? {
            0 => aeth::Syndrome::from_byte(u.arbitrary()?),
            _ => aeth::Syndrome::Ack { credits: u.int_in_range(0..=aeth::CREDITS_INVALID)? },
        };
        bytes.extend(aeth::Repr { syndrome, msn: u.arbitrary::<u32>()? & 0xff_ffff }.to_bytes());
    }
    if extensions.contains(E::ATOMICACKETH) {
        bytes.extend(extension::atomicacketh::to_bytes(u.arbitrary()?));
    }
    if extensions.contains(E::IMMDT) {
        bytes.extend(extension::immdt::to_bytes(u.arbitrary()?));
    }
    if extensions.contains(E::IETH) {
        let key = if u.ratio(1, 8)? { u.arbitrary()? } else { u.choose(&REGIONS)?.0 };
        bytes.extend(extension::immdt::to_bytes(key));
    }
    Ok(())
}

/// Ethernet, IPv4 and UDP around a packet.
fn envelope(u: &mut Unstructured<'_>, body: &[u8]) -> arbitrary::Result<Vec<u8>> {
    let datagram = udp::Repr {
        source_port: u.arbitrary()?,
        destination_port: 4791,
        payload_length: body.len() as u16,
    };
    let packet = ipv4::Repr {
        type_of_service: u.arbitrary()?,
        time_to_live: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source: if u.ratio(1, 32)? { u.arbitrary()? } else { PEER_IP },
        destination: OWN_IP,
        payload_length: (body.len() + udp::LENGTH) as u16,
    };
    let mut frame = ethernet_header(ethernet::EtherType::IPV4).to_bytes().to_vec();
    frame.extend(packet.to_bytes());
    frame.extend(datagram.to_bytes());
    frame.extend(body);
    Ok(frame)
}

fn ethernet_header(ethertype: ethernet::EtherType) -> ethernet::Repr {
    ethernet::Repr { destination: OWN_MAC, source: PEER_MAC, tag: None, ethertype }
}
