//! Parts of the cards' own memory: their owners, and their costs.

use fpga_regs::engine::window::Capabilities;

use super::bench::Peer;
use super::*;
use crate::quota::Resource;

struct Owner {
    peer: Peer,
    context: u32,
    pdn: u32,
    _fds: Vec<OwnedFd>,
}

fn owner(bench: &mut Bench, card: u32) -> Owner {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, card);
    let pdn = bench.pd(&peer, context.context);
    Owner { peer, context: context.context, pdn, _fds: fds }
}

fn alloc(context: u32, length: u32) -> Request {
    Request::AllocDm { context, length, log2_alignment: 0 }
}

impl Owner {
    fn alloc(&self, bench: &mut Bench, length: u32) -> u32 {
        match bench.ask(&self.peer, alloc(self.context, length)).0 {
            Response::Dm { dm, .. } => dm,
            other => panic!("{other:?}"),
        }
    }

    fn register(&self, dm: u32, offset: u64, length: u64) -> Request {
        Request::RegDmMr { pdn: self.pdn, dm, offset, length, access: 1 | 1 << 5 }
    }
}

#[test]
fn a_part_is_its_clients_and_stays_while_regions_are_in_it() {
    let mut bench = Bench::new(1, 1);
    let (own, other) = (owner(&mut bench, 0), owner(&mut bench, 0));
    let dm = own.alloc(&mut bench, 5000);
    let copy = Request::CopyDm { dm, offset: 0, length: 8, to_card: true };
    for request in [copy.clone(), other.register(dm, 0, 8), Request::FreeDm { dm }] {
        assert_eq!(bench.refused(&other.peer, request).errno, Errno::EINVAL as i32);
    }
    bench.ask(&own.peer, copy);
    for (offset, length) in [(0, 5001), (5000, 1), (u64::MAX, 2)] {
        let refused = bench.refused(&own.peer, own.register(dm, offset, length));
        assert_eq!(refused.errno, Errno::EINVAL as i32, "{refused:?}");
    }
    let request = Request::RegDmMr { pdn: own.pdn, dm, offset: 0, length: 8, access: 1 };
    assert!(bench.refused(&own.peer, request).reason.contains("IBV_ACCESS_ZERO_BASED"));
    let Response::DmMr { mr, .. } = bench.ask(&own.peer, own.register(dm, 1, 4999)).0 else {
        panic!()
    };
    let refused = bench.refused(&own.peer, Request::FreeDm { dm });
    assert_eq!(refused.errno, Errno::EBUSY as i32);
    assert!(refused.reason.contains("1 memory regions"), "{refused:?}");
    // A region of it is neither committed nor changed nor moved.
    let pdn = own.pdn;
    for request in [
        Request::CommitMr { mr },
        Request::ModifyMr { mr, pdn, access: 1 },
        Request::MoveMr { mr, to: mr },
    ] {
        assert_eq!(bench.refused(&own.peer, request).errno, Errno::EINVAL as i32);
    }
    let close = Request::CloseContext { context: own.context };
    bench.ask(&own.peer, Request::DeregMr { mr });
    bench.ask(&own.peer, Request::DeallocPd { pdn });
    let refused = bench.refused(&own.peer, close.clone());
    assert!(refused.reason.contains("1 parts of device memory"), "{refused:?}");
    bench.ask(&own.peer, Request::FreeDm { dm });
    bench.ask(&own.peer, close);
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn a_client_takes_its_share_and_what_it_had_is_there_when_it_ends() {
    let mut bench = Bench::new(1, 1);
    let (own, other) = (owner(&mut bench, 0), owner(&mut bench, 0));
    let limits = *bench.server.cards[0].device.windows[0].engine.limits();
    let share = Resource::DmBytes.limit(&limits);
    assert_eq!(share, u64::from(limits.dm_bytes) / 8 * 7);
    let largest = limits.largest_dm;
    let refused = loop {
        match bench.try_ask(&own.peer, &alloc(own.context, largest)).0 {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.errno, Errno::ENOMEM as i32);
    assert!(refused.reason.contains("bytes of device memory"), "{refused:?}");
    let dm = other.alloc(&mut bench, limits.dm_bytes / 8);
    let refused = bench.refused(&other.peer, alloc(other.context, largest));
    assert_eq!(refused.errno, Errno::ENOMEM as i32, "{refused:?}");
    bench.ask(&other.peer, other.register(dm, 0, 64));
    drop(own);
    bench.turn();
    assert_eq!(bench.refused(&other.peer, alloc(other.context, 0)).errno, Errno::EINVAL as i32);
    let second = other.alloc(&mut bench, largest);
    bench.ask(&other.peer, Request::FreeDm { dm: second });
    drop(other);
    bench.turn();
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
}

#[test]
fn a_part_that_cannot_be_had_costs_nothing() {
    let mut bench = Bench::new(1, 1);
    let own = owner(&mut bench, 0);
    let usage = |bench: &Bench| bench.server.clients.values().next().unwrap().usage.clone();
    let (before, mapped) = (usage(&bench), bench.cards[0].mapped());
    let card = Arc::clone(&bench.cards[0]);
    card.window(0, |window| window.refuse.insert(Opcode::AllocDm, AdminStatus::NoResources));
    let refused = bench.refused(&own.peer, alloc(own.context, 5000));
    assert_eq!(refused.errno, Errno::ENOMEM as i32);
    card.window(0, |window| window.refuse.clear());
    for (length, log2_alignment) in [(0, 0), (5000, 17), (5000, 255)] {
        let request = Request::AllocDm { context: own.context, length, log2_alignment };
        assert_eq!(bench.refused(&own.peer, request).errno, Errno::EINVAL as i32);
    }
    let counts = |usage: crate::quota::Usage| {
        Resource::all().map(|resource| usage.of(resource)).collect::<Vec<_>>()
    };
    assert_eq!(counts(usage(&bench)), counts(before));
    assert_eq!(bench.cards[0].mapped(), mapped);
    let mut lacking = Bench::lacking(Capabilities::DEVICE_MEMORY, 1, 1);
    let own = owner(&mut lacking, 0);
    let refused = lacking.refused(&own.peer, alloc(own.context, 64));
    assert_eq!(refused.errno, Errno::EOPNOTSUPP as i32);
    assert!(refused.reason.contains("no device memory"), "{refused:?}");
}
