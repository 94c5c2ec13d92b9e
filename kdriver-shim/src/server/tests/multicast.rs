//! Multicast groups, and the queue pairs in them.

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use shim_abi::CreateQp;

use super::bench::{Peer, wanted_qp};
use super::*;
use crate::quota::Resource;

/// A group of IPv6's of that number.
fn group(number: u16) -> [u8; 16] {
    std::net::Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, number).octets()
}

fn attach(qpn: u32, number: u16) -> Request {
    Request::AttachMulticast { qpn, group: group(number) }
}

fn detach(qpn: u32, number: u16) -> Request {
    Request::DetachMulticast { qpn, group: group(number) }
}

/// A client with a queue pair of datagrams, and one of a connection.
fn owner(bench: &mut Bench) -> (Peer, [u32; 2], Vec<OwnedFd>) {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    let qpns = [QpType::Ud, QpType::Rc].map(|kind| {
        let wanted = CreateQp { kind: kind.0, ..wanted_qp(pdn, cqn) };
        let Response::Qp { qpn, .. } = bench.ask(&peer, Request::CreateQp(wanted)).0 else {
            panic!("no queue pair")
        };
        qpn
    });
    (peer, qpns, fds)
}

#[test]
fn a_queue_pair_is_in_a_group_until_it_leaves_and_is_not_destroyed_before() {
    let mut bench = Bench::new(1, 1);
    let (peer, [qpn, connected], _fds) = owner(&mut bench);
    let other = bench.provider();
    let errno = |bench: &mut Bench, peer: &Peer, request| bench.refused(peer, request).errno;
    let invalid = Errno::EINVAL as i32;
    assert_eq!(errno(&mut bench, &peer, attach(connected, 1)), invalid);
    assert_eq!(errno(&mut bench, &other, attach(qpn, 1)), invalid);
    assert_eq!(errno(&mut bench, &peer, detach(qpn, 1)), invalid);
    let own = Request::AttachMulticast { qpn, group: [0xfe; 16] };
    assert_eq!(errno(&mut bench, &peer, own), invalid, "it is no group");
    for _ in 0..2 {
        assert_eq!(bench.ask(&peer, attach(qpn, 1)).0, Response::Done);
    }
    assert_eq!(errno(&mut bench, &other, detach(qpn, 1)), invalid);
    let refusal = bench.refused(&peer, Request::DestroyQp { qpn });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert!(refusal.reason.contains("1 multicast groups"), "{refusal:?}");
    assert_eq!(bench.ask(&peer, detach(qpn, 1)).0, Response::Done);
    assert_eq!(errno(&mut bench, &peer, detach(qpn, 1)), invalid);
    bench.ask(&peer, Request::DestroyQp { qpn });
}

#[test]
fn a_client_has_so_many_places_in_groups_and_its_end_gives_them_back() {
    let mut bench = Bench::new(1, 1);
    let (peer, [qpn, _], fds) = owner(&mut bench);
    let limits = *bench.server.cards[0].device.windows[0].engine.limits();
    let limit = Resource::Memberships.limit(&limits) as u16;
    assert!(limit >= 2, "{limits:?}");
    for number in 0..limit {
        bench.ask(&peer, attach(qpn, number));
    }
    let refusal = bench.refused(&peer, attach(qpn, limit));
    assert_eq!(refusal.errno, Errno::ENOMEM as i32, "{refusal:?}");
    assert!(refusal.reason.contains("places in multicast groups"), "{refusal:?}");
    // In one that it is in it is still welcome.
    bench.ask(&peer, attach(qpn, 0));
    bench.ask(&peer, detach(qpn, 0));
    bench.ask(&peer, attach(qpn, limit));
    drop((peer, fds));
    (0..100).for_each(|_| bench.turn());
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
    // The card has let go of all of them.
    let (peer, [qpn, _], _fds) = owner(&mut bench);
    for number in 0..limit {
        bench.ask(&peer, attach(qpn, number));
    }
}

#[test]
fn what_a_card_refuses_takes_no_place() {
    let mut bench = Bench::new(1, 1);
    let (peer, [qpn, _], _fds) = owner(&mut bench);
    let refuse = |bench: &Bench, opcode, status: Option<AdminStatus>| {
        bench.cards[0].window(0, |w| match status {
            Some(status) => drop(w.refuse.insert(opcode, status)),
            None => drop(w.refuse.remove(&opcode)),
        });
    };
    refuse(&bench, Opcode::AttachMulticast, Some(AdminStatus::NoResources));
    assert_eq!(bench.refused(&peer, attach(qpn, 1)).errno, Errno::ENOMEM as i32);
    refuse(&bench, Opcode::AttachMulticast, None);
    // It is in none.
    assert_eq!(bench.refused(&peer, detach(qpn, 1)).errno, Errno::EINVAL as i32);
    bench.ask(&peer, attach(qpn, 1));
    refuse(&bench, Opcode::DetachMulticast, Some(AdminStatus::Invalid));
    assert_eq!(bench.refused(&peer, detach(qpn, 1)).errno, Errno::EINVAL as i32);
    assert_eq!(bench.refused(&peer, Request::DestroyQp { qpn }).errno, Errno::EBUSY as i32);
    refuse(&bench, Opcode::DetachMulticast, None);
    bench.ask(&peer, detach(qpn, 1));
    bench.ask(&peer, Request::DestroyQp { qpn });
}

#[test]
fn a_card_without_groups_says_so() {
    let mut bench = Bench::lacking(Capabilities::MULTICAST, 1, 1);
    let (peer, [qpn, _], _fds) = owner(&mut bench);
    assert_eq!(bench.refused(&peer, attach(qpn, 1)).errno, Errno::EOPNOTSUPP as i32);
}
