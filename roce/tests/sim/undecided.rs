//! Requests about which the layer above decides later.

use std::task::Poll;

use netsim::memory::Memory as _;
use roce::opcode::code;
use roce::{
    AccessDenied, Event, Instant, Operation, PathMtu, Placed, QpAttributes, QpState, Qpn,
    ReceiveError, RemoteAccess, RemoteRange, ResponderMemory, TakenReceive, Target,
};

use crate::connection::Options;
use crate::memory::Memory;
use crate::network::{Held, Node};
use crate::puppet::{PEER_QPN, Puppet, RQ_PSN, Say, Sent, VA, fetch_add, rdma, request, response};

/// Decides about everything when it is asked for the second time.
struct Thinks<'a> {
    memory: &'a mut Memory,
    /// Whether the access was asked about before: then it is decided.
    asked: &'a mut bool,
    receive: &'a mut Option<Result<TakenReceive, ReceiveError>>,
}

impl ResponderMemory for Thinks<'_> {
    fn check_remote(
        &mut self,
        target: Target,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        match std::mem::replace(self.asked, true) {
            false => Poll::Pending,
            true => self.memory.check_remote(target, memory, access),
        }
    }

    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        match self.receive.take() {
            Some(decided) => Poll::Ready(decided),
            None => {
                let Poll::Ready(taken) = self.memory.take_receive(target) else { unreachable!() };
                *self.receive = Some(taken);
                Poll::Pending
            }
        }
    }
}

/// The outcome of frames: the stack's frames, events and counts.
type Outcome = (Vec<Sent>, Vec<Event>, Vec<(&'static str, u64)>);

/// Feeds frames to a puppet's node; those that it takes later come again, so many times in all.
fn outcome(says: &[Say], thinks: bool) -> (Outcome, usize) {
    let mut puppet = Puppet::new(&Options { mtu: PathMtu::Mtu256, ..Options::default() });
    for _ in 0..2 {
        puppet.node.memory.post_receive(puppet.qpn, 4096);
    }
    let (mut sent, mut again) = (Vec::new(), 0);
    let counters =
        |puppet: &Puppet| puppet.node.stack.counters().iter().collect::<Vec<(&'static str, u64)>>();
    for say in says {
        let frame = puppet.frame(say);
        let told = puppet.node.events.len();
        if thinks {
            let (mut asked, mut receive) = Default::default();
            loop {
                let before = counters(&puppet);
                let node = &mut puppet.node;
                assert_eq!(node.stack.destinations(&frame), [puppet.qpn]);
                let mut deciding =
                    Thinks { memory: &mut node.memory, asked: &mut asked, receive: &mut receive };
                let (now, mut placements) = (Instant(puppet.now), Vec::new());
                let mut bytes = frame.clone();
                let taken = node.stack.receive(now, &mut bytes, 0, &mut deciding, &mut placements);
                if taken.is_ready() {
                    let done = placements.iter().map(|it| node.memory.place(it, &bytes));
                    let placed: Vec<_> = done.collect();
                    node.stack.commit(now, &placed);
                    break;
                }
                again += 1;
                assert_eq!(placements, []);
                assert_eq!(counters(&puppet), before, "{say:?}");
                assert_eq!(puppet.round(), [], "{say:?}");
                assert_eq!(puppet.node.events.len(), told, "{say:?}");
            }
            sent.extend(puppet.drain());
        } else {
            sent.extend(puppet.feed(&[frame]));
            sent.extend(puppet.drain());
        }
    }
    let counted = counters(&puppet);
    ((sent, puppet.events(), counted), again)
}

/// RC-38, RC-39, RC-41, RC-62, RC-67, RC-94, RC-99.
#[test]
fn a_packet_that_waits_for_a_decision_does_nothing_until_it_comes_again() {
    let write = |psn| rdma(code::WRITE_ONLY, psn, 0, 8, vec![1; 8]);
    let with_imm = |psn| {
        let imm = Some(0x0102_0304);
        Say { imm, ..rdma(code::WRITE_ONLY_IMM, psn, 0, 8, vec![1; 8]) }
    };
    let read = |psn| rdma(code::READ_REQUEST, psn, 0, 8, vec![]);
    let send = |psn| request(code::SEND_ONLY, psn, vec![2; 8]);
    let atomic = |psn| fetch_add(psn, VA, 3);
    let marked = |say: Say| Say { marked: true, ..say };
    let beyond = rdma(code::WRITE_ONLY, RQ_PSN, 65_536, 8, vec![1; 8]);
    let many = vec![with_imm(RQ_PSN), send(RQ_PSN + 1), send(RQ_PSN + 2)];
    for (says, times) in [
        (vec![marked(write(RQ_PSN))], 1),
        (vec![send(RQ_PSN)], 1),
        (vec![with_imm(RQ_PSN)], 2),
        (vec![read(RQ_PSN), marked(read(RQ_PSN))], 2),
        (vec![beyond], 1),
        (vec![atomic(RQ_PSN), marked(atomic(RQ_PSN)), atomic(RQ_PSN + 1)], 2),
        (many, 4),
    ] {
        let (at_once, _) = outcome(&says, false);
        let (later, again) = outcome(&says, true);
        assert_eq!(later, at_once);
        assert_eq!(again, times);
    }
}

/// A packet that needs no decision of the layer above is taken at once, while other decisions are open.
#[test]
fn responses_wait_for_nobody() {
    let mut puppet = Puppet::new(&Options::default());
    puppet.post(Operation::Read, 8);
    puppet.round();
    let say = response(code::READ_RESPONSE_ONLY, crate::puppet::SQ_PSN, vec![7; 8]);
    let mut frame = puppet.frame(&say);
    assert_eq!(puppet.node.stack.destinations(&frame), [puppet.qpn]);
    let elsewhere = Say { dest_qpn: Some(PEER_QPN), ..say };
    assert_eq!(
        puppet.node.stack.destinations(&puppet.frame(&elsewhere)),
        [Qpn::new(PEER_QPN).unwrap()]
    );
    assert_eq!(puppet.node.stack.destinations(&frame[..20]), []);
    let (mut asked, mut receive) = Default::default();
    let memory = &mut puppet.node.memory;
    let mut deciding = Thinks { memory, asked: &mut asked, receive: &mut receive };
    let mut placements = Vec::new();
    let now = Instant(puppet.now);
    let taken = puppet.node.stack.receive(now, &mut frame, 0, &mut deciding, &mut placements);
    assert!(taken.is_ready());
    assert_eq!(placements.len(), 1);
}

/// RC-2: a waiting packet is not accepted again, but in another life of its queue pair it is. Its request is decided
/// anew.
#[test]
fn what_is_kept_of_a_packet_that_waits_is_that_it_was_accepted_in_this_life() {
    for is_reset in [false, true] {
        let mut puppet = Puppet::new(&Options::default());
        let say = rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]);
        let mut frame = Held::from(puppet.frame(&say));
        let (mut asked, mut receive) = Default::default();
        let before = puppet.node.stack.counters().rcvd_pkts;
        let (now, qpn, node) = (Instant(puppet.now), puppet.qpn, &mut puppet.node);
        let mut turn = |node: &mut Node, frame: &mut Held, asked: &mut bool| {
            let mut deciding = Thinks { memory: &mut node.memory, asked, receive: &mut receive };
            let mut placements = Vec::new();
            let taken = node.stack.receive(now, frame, 0, &mut deciding, &mut placements);
            node.stack.commit(now, &vec![Placed::Copied; placements.len()]);
            (taken.is_ready(), placements.len())
        };
        assert_eq!(turn(node, &mut frame, &mut asked), (false, 0));
        // Nobody changes a frame that waits; this shows the reads of it.
        *frame.bytes.last_mut().unwrap() ^= 1;
        if is_reset {
            let state = Some(QpState::Reset);
            let change = QpAttributes { state, ..QpAttributes::default() };
            node.stack.modify_qp(now, qpn, &change).unwrap();
        }
        assert!(asked);
        let expected = if is_reset { (true, 0) } else { (true, 1) };
        assert_eq!(turn(node, &mut frame, &mut asked), expected);
        let counters = node.stack.counters();
        let expected = if is_reset { (before, 1) } else { (before + 1, 0) };
        assert_eq!((counters.rcvd_pkts, counters.rx_icrc_encapsulated), expected);
    }
}
