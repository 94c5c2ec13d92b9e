//! Regions without memory: their owners, and their costs.

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::window::Capabilities;

use super::*;
use crate::quota::Resource;

#[test]
fn a_null_region_counts_as_one_does_not_change_and_goes_with_its_client() {
    let mut bench = Bench::new(1, 1);
    let (own, other) = (bench.provider(), bench.provider());
    let ((context, _fds), (others, _others_fds)) = (bench.open(&own, 0), bench.open(&other, 0));
    let (pdn, others) = (bench.pd(&own, context.context), bench.pd(&other, others.context));
    let usage = |bench: &Bench| -> Vec<_> {
        let usages = bench.server.clients.values().map(|client| client.usage.clone());
        usages.map(|usage| Resource::all().map(|it| usage.of(it)).collect::<Vec<_>>()).collect()
    };
    let (before, mapped) = (usage(&bench), bench.cards[0].mapped());
    let refused = bench.refused(&own, Request::AllocNullMr { pdn: others });
    assert_eq!(refused.errno, Errno::EINVAL as i32, "{refused:?}");
    let make = |bench: &mut Bench| match bench.ask(&own, Request::AllocNullMr { pdn }).0 {
        Response::DmMr { mr, lkey, rkey } => (mr, lkey, rkey),
        other => panic!("{other:?}"),
    };
    let (mr, lkey, rkey) = make(&mut bench);
    assert!(lkey != 0 && rkey == 0, "{lkey:#x}, {rkey:#x}");
    assert_eq!(bench.cards[0].mapped(), mapped, "there is nothing to map");
    for request in [
        Request::CommitMr { mr },
        Request::ModifyMr { mr, pdn, access: 1 },
        Request::MoveMr { mr, to: mr },
        Request::DeallocPd { pdn },
    ] {
        assert!(bench.refused(&own, request.clone()).errno != 0, "{request:?}");
    }
    assert_eq!(bench.refused(&other, Request::DeregMr { mr }).errno, Errno::EINVAL as i32);
    bench.ask(&own, Request::DeregMr { mr });
    assert_eq!(usage(&bench), before);
    let card = Arc::clone(&bench.cards[0]);
    card.window(0, |window| window.refuse.insert(Opcode::CreateKey, AdminStatus::NoResources));
    bench.refused(&own, Request::AllocNullMr { pdn });
    card.window(0, |window| window.refuse.clear());
    assert_eq!(usage(&bench), before);
    make(&mut bench);
    drop((own, other));
    bench.turn();
    bench.cards[0].window(0, |window| assert!(window.live.is_empty(), "{:?}", window.live));
}

#[test]
fn a_card_without_null_regions_says_so() {
    let mut lacking = Bench::lacking(Capabilities::NULL_MR, 1, 1);
    let own = lacking.provider();
    let (context, _fds) = lacking.open(&own, 0);
    let pdn = lacking.pd(&own, context.context);
    let refused = lacking.refused(&own, Request::AllocNullMr { pdn });
    assert_eq!(refused.errno, Errno::EOPNOTSUPP as i32);
    assert!(refused.reason.contains("no null memory regions"), "{refused:?}");
}
