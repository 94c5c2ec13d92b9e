//! Resources that run out: a client that has taken its share is told the limit, and others have theirs.

use super::*;

#[test]
fn pages_and_quotas_run_out_with_the_limit_named() {
    let mut bench = Bench::new(1, 1);
    bench.relays_nobody();
    let mut peers = Vec::new();
    for _ in 0..14 {
        let peer = bench.provider();
        let (_, fds) = bench.open(&peer, 0);
        peers.push((peer, fds));
    }
    let late = bench.provider();
    let refusal = bench.refused(&late, Request::OpenContext { card: 0 });
    assert_eq!(refusal.errno, Errno::EAGAIN as i32);
    assert!(refusal.reason.contains("all 14 places"), "{refusal:?}");
    let (first, _) = peers.swap_remove(0);
    drop(first);
    bench.turn();
    let (context, _fds) = bench.open(&late, 0);
    let mut made = 0;
    let refusal = loop {
        let request = create_cq(context.context, 0);
        match bench.try_ask(&late, &request).0 {
            Ok(_) => made += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((made, refusal.errno), (56, Errno::ENOMEM as i32));
    assert!(refusal.reason.contains("56 completion queues"), "{refusal:?}");
}

#[test]
fn a_process_has_so_many_connections_and_is_told_how_many() {
    let mut bench = Bench::new(1, 1);
    let mut peers = Vec::new();
    let refused = loop {
        let peer = bench.connect();
        match bench.greet(&peer, Role::Tool) {
            Ok(_) => peers.push(peer),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((peers.len(), refused.errno), (MAX_OF_PROCESS, Errno::EAGAIN as i32));
    assert!(refused.reason.contains("may have 256 connections"), "{refused:?}");
    drop(peers);
    bench.turn();
    bench.provider();
}

/// Asks until it is refused; answers how often it was not, and why it was.
fn exhaust(bench: &mut Bench, peer: &bench::Peer, request: &Request) -> (u64, Refusal) {
    // A channel ends with its descriptor, so received descriptors are kept.
    let mut kept = Vec::new();
    for made in 0..100_000 {
        match bench.try_ask(peer, request) {
            (Ok(_), fds) => kept.extend(fds),
            (Err(refusal), _) => {
                // Their ends are heard a few at a time.
                drop(kept);
                (0..10).for_each(|_| bench.turn());
                return (made, refusal);
            }
        }
    }
    panic!("{request:?} is never refused");
}

#[test]
fn every_quota_ends_with_its_limit_named_and_leaves_others_alone() {
    use crate::quota::Resource as R;
    let mut bench = Bench::new(1, 1);
    let (greedy, other) = (bench.provider(), bench.provider());
    let (context, _fds) = bench.open(&greedy, 0);
    let context = context.context;
    let pdn = bench.pd(&greedy, context);
    let (cqn, _) = bench.cq(&greedy, context, None);
    let limits = *bench.server.cards[0].device.windows[0].engine.limits();
    let memory = vec![0u8; 4096];
    let address = memory.as_ptr() as u64;
    let cq = |log2_entries| create_cq(context, log2_entries);
    let srq = Request::CreateSrq { pdn, log2_entries: 0, log2_stride: 0, cookie: 0 };
    let mr = |length| Request::ReserveMr { pdn, address, length, hca_va: address, access: 1 };
    // The request, the amount that it takes, and the amount that the client has already.
    // Each later kind of request takes something of the earlier kinds too, so it comes after them.
    let table = [
        (Request::AllocPd { context }, R::Pds, 1, 1),
        (Request::CreateChannel { context }, R::Channels, 1, 0),
        (Request::OpenContext { card: 0 }, R::Contexts, 1, 1),
        (wanted_ah(pdn), R::Ahs, 1, 0),
        (mr(4096), R::Mrs, 1, 0),
        (Request::CreateQp(wanted_qp(pdn, cqn)), R::Qps, 1, 0),
        (srq, R::Rqs, 1, R::Qps.limit(&limits)),
        (cq(22), R::CqEntries, 1 << 22, 64),
        (cq(0), R::Cqs, 1, 1),
    ];
    let mut made_cqs = 0;
    for (request, resource, amount, had) in table {
        let limit = resource.limit(&limits);
        let (made, refusal) = exhaust(&mut bench, &greedy, &request);
        let had = had + if resource == R::Cqs { made_cqs } else { 0 };
        assert_eq!(made, (limit - had) / amount, "{resource:?}");
        made_cqs += if resource == R::CqEntries { made } else { 0 };
        assert_eq!(refusal.errno, Errno::ENOMEM as i32, "{refusal:?}");
        let named = format!("a process may have {limit}");
        let what = resource.name();
        assert!(refusal.reason.contains(what) && refusal.reason.contains(&named), "{refusal:?}");
        // After all requests of one there is something left for another.
        let (theirs, fds) = bench.open(&other, 0);
        let pdn = bench.pd(&other, theirs.context);
        let (cqn, _) = bench.cq(&other, theirs.context, None);
        let qpn = bench.qp(&other, pdn, cqn);
        let (mr, _) = bench.mr(&other, pdn, &memory);
        bench.ask(&other, Request::DeregMr { mr });
        bench.ask(&other, Request::DestroyQp { qpn });
        bench.ask(&other, Request::DestroyCq { cqn });
        bench.ask(&other, Request::DeallocPd { pdn });
        bench.ask(&other, Request::CloseContext { context: theirs.context });
        drop(fds);
    }
    // Bytes are refused before they are looked at, or there is no such memory.
    let limit = R::MrBytes.limit(&limits);
    let refusal = bench.refused(&greedy, Request::DeregMr { mr: u32::MAX });
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    let mut usage = crate::quota::Usage::default();
    usage.take(Some(0), R::MrBytes, limit, &limits).unwrap();
    let refusal = usage.take(Some(0), R::MrBytes, 1, &limits).unwrap_err().to_string();
    assert!(refusal.contains(&format!("a process may have {limit}")), "{refusal}");
}

#[test]
fn who_finds_no_doorbell_page_is_relayed() {
    use shim_abi::DoorbellAccess;
    let mut bench = Bench::new(1, 1);
    let open = |bench: &mut Bench| {
        let peer = bench.provider();
        let (context, fds) = bench.open(&peer, 0);
        (peer, context.grant, fds)
    };
    let mut with_page: Vec<_> = (0..14).map(|_| open(&mut bench)).collect();
    let is_page = |access| matches!(access, DoorbellAccess::Page { .. });
    assert!(with_page.iter().all(|(_, grant, _)| is_page(grant.access)));
    assert_eq!(bench.cards[0].granted(), 14, "nothing is relayed for nobody");
    let relayed = [16, 17].map(|number| {
        let (peer, grant, fds) = open(&mut bench);
        assert!(matches!(grant.access, DoorbellAccess::Relay { .. }), "{grant:?}");
        assert_eq!((grant.page, fds.len()), (number, 6), "events, four of the grant, rings");
        (peer, fds)
    });
    assert_eq!(bench.cards[0].granted(), 15, "one page for all of them");
    assert_eq!(bench.server.cards[0].users[0].free(), [0, 238]);
    // A page that is free again is the next client's, and relayed clients stay relayed.
    with_page.truncate(13);
    bench.turn();
    with_page.push(open(&mut bench));
    assert!(is_page(with_page[13].1.access));
    let [first, last] = relayed;
    drop(first);
    bench.turn();
    assert_eq!(bench.cards[0].granted(), 15);
    drop(last);
    bench.turn();
    assert_eq!(bench.cards[0].granted(), 14, "the last one who was relayed has gone");
    assert_eq!(bench.server.cards[0].users[0].free(), [0, 240]);
}

#[test]
fn rings_have_an_end_that_is_named() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let context = context.context;
    let cq = |log2_entries| create_cq(context, log2_entries);
    // Three of the largest queues take three quarters of the ring memory; their entries are all
    // that a client may have, so that only rings of QPs are left to take.
    for _ in 0..3 {
        bench.ask(&peer, cq(22));
    }
    let refusal = bench.refused(&peer, cq(20));
    assert!(refusal.reason.contains("completion queue entries"), "{refusal:?}");
    let pdn = bench.pd(&peer, context);
    bench.server.clients.values_mut().for_each(|client| {
        client.usage.give(Some(0), crate::quota::Resource::CqEntries, 1 << 22);
    });
    let (cqn, _) = bench.cq(&peer, context, None);
    let wanted = shim_abi::CreateQp {
        log2_sq_blocks: 15,
        log2_rq_entries: 14,
        log2_rq_stride: 3,
        ..wanted_qp(pdn, cqn)
    };
    let (made, refusal) = exhaust(&mut bench, &peer, &Request::CreateQp(wanted));
    assert!(made > 10 && refusal.errno == Errno::ENOMEM as i32, "{made}: {refusal:?}");
    assert!(refusal.reason.contains("bytes of rings"), "{refusal:?}");
    let limit = format!("a process may have {}", crate::rings::RING_BYTES);
    assert!(refusal.reason.contains(&limit), "{refusal:?}");
}

#[test]
fn a_program_takes_its_part_of_a_cards_addresses_and_is_told_how_large_it_is() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let memory = vec![0u8; 10_000];
    let taken =
        |bench: &Bench| bench.server.clients.values().next().unwrap().owned.places[&0].addresses;
    let (mr, _) = bench.mr(&peer, pdn, &memory);
    assert!((12 << 10..=20 << 10).contains(&taken(&bench)), "{}", taken(&bench));
    bench.ask(&peer, Request::DeregMr { mr });
    assert_eq!(taken(&bench), 0);
    // As if it had registered all that it may.
    let limit = bench.server.cards[0].device.arena.limit(0);
    let client = bench.server.clients.values_mut().next().unwrap();
    client.owned.places.get_mut(&0).unwrap().addresses = limit;
    bench.server.cards[0].device.arena.note(0, limit);
    let address = memory.as_ptr() as u64;
    let request = Request::ReserveMr { pdn, address, length: 4096, hca_va: address, access: 1 };
    let refusal = bench.refused(&peer, request);
    assert_eq!(refusal.errno, Errno::ENOMEM as i32);
    let named = format!("a process may have {limit}");
    assert!(refusal.reason.contains(&named), "{refusal:?}");
    assert!(refusal.reason.contains("bytes of the card's addresses"), "{refusal:?}");
    // Another one's share is there all the same, and the first one's is, when it ends.
    let other = bench.provider();
    let (context, _fds) = bench.open(&other, 0);
    let pdn = bench.pd(&other, context.context);
    bench.mr(&other, pdn, &memory);
    drop(peer);
    bench.turn();
    drop(other);
    bench.turn();
    bench.server.cards[0].device.arena.note(limit, 0);
    assert_eq!(bench.server.cards[0].device.arena.limit(0), limit);
}
