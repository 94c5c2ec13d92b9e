//! Shared receive queues: their owners, their users, and the events of their limits.

use std::sync::atomic::{AtomicBool, Ordering};

use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::window::Capabilities;

use super::bench::{Bench, Peer, records};
use super::*;

/// A client with a queue pair on a shared receive queue of 16 entries.
struct Sharing {
    peer: Peer,
    events: OwnedFd,
    pdn: u32,
    cqn: u32,
    srqn: u32,
    qpn: u32,
}

impl Sharing {
    fn new(bench: &mut Bench) -> Self {
        let peer = bench.provider();
        let (context, mut fds) = bench.open(&peer, 0);
        let pdn = bench.pd(&peer, context.context);
        let (cqn, _) = bench.cq(&peer, context.context, None);
        let (qpn, srqn) = bench.sharing_qp(&peer, pdn, cqn);
        Self { peer, events: fds.remove(0), pdn, cqn, srqn, qpn }
    }

    fn limit(&self, bench: &mut Bench, limit: u32) {
        let set = bench.ask(&self.peer, Request::ModifySrq { srqn: self.srqn, limit });
        assert_eq!(set.0, Response::Done);
    }

    fn limit_left(&self, bench: &mut Bench) -> u32 {
        match bench.ask(&self.peer, Request::QuerySrq { srqn: self.srqn }).0 {
            Response::SrqLimit { limit } => limit,
            other => panic!("{other:?}"),
        }
    }

    /// Posts so many receives.
    fn post(&self, bench: &Bench, receives: u32) {
        let client = bench.server.clients.values().next().unwrap();
        let ring = client.owned.srqs[&self.srqn].ring.unwrap();
        let memory = client.owned.rings.as_ref().unwrap().mapping();
        memory.store_release_u32(ring.start as usize + record::PRODUCER, receives).unwrap();
    }

    fn fell_below(&self) -> Event {
        Event { kind: EventType::ReceiveLimit, number: self.srqn, ..Event::default() }
    }

    fn event_types(&self) -> Vec<(u64, u32)> {
        let word = |record: &Vec<u8>, at: usize| {
            u64::from_le_bytes(record[at..at + 8].try_into().unwrap())
        };
        records(&self.events).iter().map(|it| (word(it, 0), word(it, 8) as u32)).collect()
    }
}

#[test]
fn a_shared_receive_queue_stays_while_somebody_uses_it() {
    let mut bench = Bench::new(2, 1);
    let sharing = Sharing::new(&mut bench);
    let &Sharing { ref peer, pdn, cqn, srqn, qpn, .. } = &sharing;
    let destroy = Request::DestroySrq { srqn };
    let refusal = bench.refused(peer, destroy.clone());
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 queue pairs"), "{refusal:?}");
    // It ends without the queue, and another may have that.
    bench.ask(peer, Request::DestroyQp { qpn });
    let wanted = shim_abi::CreateQp { srqn: Some(srqn), ..wanted_qp(pdn, cqn) };
    let Response::Qp { qpn, .. } = bench.ask(peer, Request::CreateQp(wanted.clone())).0 else {
        panic!()
    };
    bench.ask(peer, Request::DestroyQp { qpn });
    bench.ask(peer, Request::DestroyCq { cqn });
    let refusal = bench.refused(peer, Request::DeallocPd { pdn });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 shared receive queues"), "{refusal:?}");
    let answer = bench.ask(peer, destroy.clone()).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 0, async_events: 0 });
    assert_eq!(bench.refused(peer, destroy).errno, Errno::EINVAL as i32);
    assert_eq!(bench.refused(peer, Request::CreateQp(wanted)).errno, Errno::EINVAL as i32);
    bench.ask(peer, Request::DeallocPd { pdn });
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn a_shared_receive_queue_is_its_clients_and_its_cards() {
    let mut bench = Bench::new(2, 1);
    let sharing = Sharing::new(&mut bench);
    let srqn = sharing.srqn;
    let other = bench.provider();
    for request in [
        Request::ModifySrq { srqn, limit: 1 },
        Request::QuerySrq { srqn },
        Request::DestroySrq { srqn },
    ] {
        assert_eq!(bench.refused(&other, request).errno, Errno::EINVAL as i32);
    }
    let (elsewhere, _fds) = bench.open(&sharing.peer, 1);
    let pdn = bench.pd(&sharing.peer, elsewhere.context);
    let (cqn, _) = bench.cq(&sharing.peer, elsewhere.context, None);
    let wanted = shim_abi::CreateQp { srqn: Some(srqn), ..wanted_qp(pdn, cqn) };
    let refusal = bench.refused(&sharing.peer, Request::CreateQp(wanted));
    assert!(refusal.reason.contains("another device's"), "{refusal:?}");
}

#[test]
fn a_limit_is_told_of_once_and_reads_0_from_then_on() {
    let mut bench = Bench::new(1, 1);
    let sharing = Sharing::new(&mut bench);
    let srqn = sharing.srqn;
    let refusal = bench.refused(&sharing.peer, Request::ModifySrq { srqn, limit: 17 });
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    assert!(refusal.reason.contains("16 entries"), "{refusal:?}");
    sharing.post(&bench, 16);
    sharing.limit(&mut bench, 16);
    assert_eq!(sharing.limit_left(&mut bench), 16);
    bench.cards[0].raise(0, sharing.fell_below());
    bench.turn();
    assert_eq!(sharing.event_types(), [(0xbeef, 15)]);
    assert_eq!(sharing.limit_left(&mut bench), 0);
    // An event of the limit before, while another is set, does not count for that.
    sharing.limit(&mut bench, 4);
    let (event, once) = (sharing.fell_below(), AtomicBool::new(true));
    bench.cards[0].script(move |card, offset, value| {
        card.pass(offset, value);
        if is_doorbell(offset) && once.swap(false, Ordering::Relaxed) {
            card.raise(0, event);
        }
    });
    sharing.limit(&mut bench, 5);
    assert_eq!(sharing.limit_left(&mut bench), 5);
    assert_eq!(sharing.event_types(), [(0xbeef, 15)]);
    sharing.limit(&mut bench, 0);
    bench.ask(&sharing.peer, Request::DestroyQp { qpn: sharing.qpn });
    let answer = bench.ask(&sharing.peer, Request::DestroySrq { srqn }).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 0, async_events: 2 });
    bench.cards[0].raise(0, event);
    bench.turn();
    assert_eq!(sharing.event_types(), []);
}

#[test]
fn a_limit_above_what_is_posted_is_told_of_at_once() {
    let mut bench = Bench::new(1, 1);
    let sharing = Sharing::new(&mut bench);
    sharing.limit(&mut bench, 1);
    bench.turn();
    assert_eq!(sharing.event_types(), [(0xbeef, 15)]);
    assert_eq!(sharing.limit_left(&mut bench), 0);
}

#[test]
fn the_last_receive_of_a_queue_pair_is_told_of() {
    let mut bench = Bench::new(1, 1);
    let sharing = Sharing::new(&mut bench);
    let (number, code) = (sharing.qpn, QpEvent::LastWqeReached.0);
    bench.cards[0].raise(0, Event { kind: EventType::Qp, code, number, ..Event::default() });
    bench.turn();
    assert_eq!(sharing.event_types(), [(0xdead, 16)]);
}

#[test]
fn limits_of_which_events_were_lost_are_set_again() {
    let mut bench = Bench::new(1, 1);
    let sharing = Sharing::new(&mut bench);
    sharing.post(&bench, 16);
    sharing.limit(&mut bench, 7);
    let before = bench.cards[0].window(0, |w| w.log.len());
    for _ in 0..5000 {
        bench.cards[0].raise(0, Event { kind: EventType::Completion, ..Event::default() });
    }
    bench.turn();
    let log = bench.cards[0].window(0, |w| w.log[before..].to_vec());
    let set = log.iter().filter(|opcode| **opcode == Opcode::ModifyRq).count();
    assert!(set > 0, "{log:?}");
    assert_eq!(sharing.limit_left(&mut bench), 7);
}

#[test]
fn what_cannot_be_or_is_not_offered_is_refused_before_the_engine_is_asked() {
    let mut bench = Bench::new(1, 1);
    let sharing = Sharing::new(&mut bench);
    let before = bench.cards[0].window(0, |w| w.log.len());
    let wanted = |log2_entries, log2_stride| Request::CreateSrq {
        pdn: sharing.pdn,
        log2_entries,
        log2_stride,
        cookie: 0,
    };
    for (log2_entries, log2_stride) in [(17, 0), (255, 0), (4, 4)] {
        let refusal = bench.refused(&sharing.peer, wanted(log2_entries, log2_stride));
        assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
    }
    assert_eq!(bench.cards[0].window(0, |w| w.log.len()), before);
}

#[test]
fn a_card_without_shared_receive_queues_makes_none() {
    let mut bench = Bench::lacking(Capabilities::SRQ, 1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let request = Request::CreateSrq { pdn, log2_entries: 4, log2_stride: 0, cookie: 0 };
    let refusal = bench.refused(&peer, request);
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32);
    assert!(refusal.reason.contains("no shared receive queues"), "{refusal:?}");
}
