//! Clients' objects end in the same way on request, at the client's end and when creation fails.

use super::bench::{Peer, leaked, wanted_ah, wanted_qp};
use super::*;
use crate::cards::Quarantine;
use crate::listeners::ObjectCount;
use crate::objects::{Mr, Qp};
use crate::quota::Resource;
use crate::undo::ClientObject;

/// Everything that a creation takes: quotas, addresses, mappings, objects of engines, listeners, pages, and
/// how many of each kind the client has.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    usage: Vec<u64>,
    owned: [usize; 9],
    addresses: Vec<u64>,
    mapped: Vec<(u64, u64)>,
    live: BTreeSet<(Opcode, u32)>,
    listeners: ObjectCount,
    pages: (usize, usize),
    leaked: (Quarantine, u64),
}

fn usage(client: &Client) -> Vec<u64> {
    Resource::all().map(|resource| client.usage.of(resource)).collect()
}

/// The first client's use of card 0.
fn taken(bench: &Bench) -> Usage {
    let client = bench.server.clients.values().next().unwrap();
    let owned = &client.owned;
    let (fake, card) = (&bench.cards[0], &bench.server.cards[0]);
    Usage {
        usage: usage(client),
        owned: [
            owned.qps.len(),
            owned.srqs.len(),
            owned.ahs.len(),
            owned.cqs.len(),
            owned.mrs.len() + owned.leaving.regions.len(),
            owned.places.len(),
            owned.channels.len(),
            owned.pds.len(),
            owned.contexts.len(),
        ],
        addresses: owned.places.values().map(|place| place.addresses).collect(),
        mapped: fake.mapped(),
        live: fake.window(0, |window| window.live.clone()),
        listeners: card.users[0].listeners.count(),
        pages: (fake.granted(), card.users[0].free()[0]),
        leaked: leaked(card),
    }
}

/// A client with a context, a domain and a completion queue on card 0.
struct Owner {
    peer: Peer,
    context: u32,
    pdn: u32,
    cqn: u32,
    _fds: Vec<OwnedFd>,
}

fn owner(bench: &mut Bench) -> Owner {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let context = context.context;
    let pdn = bench.pd(&peer, context);
    let (cqn, _) = bench.cq(&peer, context, None);
    Owner { peer, context, pdn, cqn, _fds: fds }
}

fn cq(context: u32) -> Request {
    create_cq(context, 6)
}

fn srq(pdn: u32) -> Request {
    Request::CreateSrq { pdn, log2_entries: 6, log2_stride: 1, cookie: 0 }
}

fn mr(pdn: u32, memory: &[u8]) -> Request {
    let (address, length) = (memory.as_ptr() as u64, memory.len() as u64);
    Request::ReserveMr { pdn, address, length, hca_va: address, access: 1 }
}

/// Lets card 0 map and grant one thing more until a request is served; how often it was refused, and that
/// nothing was left of it each time.
fn refused_times(bench: &mut Bench, peer: &Peer, request: &Request) -> u32 {
    let card = Arc::clone(&bench.cards[0]);
    let before = taken(bench);
    for takings in 0.. {
        card.fail_after(Some(takings));
        let (reply, _fds) = bench.try_ask(peer, request);
        card.fail_after(None);
        match reply {
            Ok(_) => return takings,
            Err(refusal) => assert_eq!(refusal.errno, Errno::EIO as i32, "{refusal:?}"),
        }
        assert_eq!(taken(bench), before, "{request:?} after {takings}");
    }
    unreachable!()
}

#[test]
fn a_creation_that_fails_at_any_step_leaves_nothing() {
    let memory = vec![0u8; 10_000];
    let mut bench = Bench::new(1, 1);
    let first = bench.provider();
    // Its ring memory, of which nothing is used yet, stays.
    assert_eq!(refused_times(&mut bench, &first, &Request::OpenContext { card: 0 }), 1);
    drop(first);
    bench.turn();
    let Owner { peer, context, pdn, cqn, .. } = owner(&mut bench);
    let qp = Request::CreateQp(wanted_qp(pdn, cqn));
    let refusals = [
        (cq(context), Opcode::CreateCq, AdminStatus::BadAddress, Errno::EFAULT),
        (wanted_ah(pdn), Opcode::CreateAh, AdminStatus::NoResources, Errno::ENOMEM),
        (srq(pdn), Opcode::CreateRq, AdminStatus::NoResources, Errno::ENOMEM),
        (qp.clone(), Opcode::CreateRq, AdminStatus::NoResources, Errno::ENOMEM),
        (qp.clone(), Opcode::CreateQp, AdminStatus::NoResources, Errno::ENOMEM),
    ];
    let card = Arc::clone(&bench.cards[0]);
    let before = taken(&bench);
    for (request, opcode, status, errno) in refusals {
        card.window(0, |window| window.refuse.insert(opcode, status));
        assert_eq!(bench.refused(&peer, request).errno, errno as i32);
        card.window(0, |window| window.refuse.clear());
        assert_eq!(taken(&bench), before, "{opcode:?}");
    }
    let request = create_cq(context, 23);
    assert!(bench.refused(&peer, request).reason.contains("limit of 2^22"));
    for vector in [4, 255] {
        let request =
            Request::CreateCq { context, log2_entries: 0, channel: None, vector, cookie: 0 };
        let refusal = bench.refused(&peer, request);
        assert_eq!(refusal.errno, Errno::EINVAL as i32);
        assert!(refusal.reason.contains("is none of 4 vectors"), "{refusal:?}");
    }
    assert_eq!(taken(&bench), before);
    assert_eq!(refused_times(&mut bench, &peer, &cq(context)), 1);
    assert_eq!(refused_times(&mut bench, &peer, &srq(pdn)), 1);
    assert_eq!(refused_times(&mut bench, &peer, &qp), 2);
    assert_eq!(refused_times(&mut bench, &peer, &mr(pdn, &memory)), 1);
}

#[test]
fn a_card_is_not_entered_by_a_program_that_may_have_no_context_there() {
    let mut bench = Bench::new(2, 1);
    let peer = bench.provider();
    let (mut kept, limits) = (Vec::new(), *bench.server.cards[0].device.windows[0].engine.limits());
    for _ in 0..Resource::Contexts.limit(&limits) {
        kept.push(bench.open(&peer, 0));
    }
    let refusal = bench.refused(&peer, Request::OpenContext { card: 1 });
    assert!(refusal.reason.contains("contexts"), "{refusal:?}");
    assert_eq!((bench.cards[1].granted(), bench.server.cards[1].is_unused()), (0, true));
    // It has not lost the card by that.
    let context = kept[0].0.context;
    bench.ask(&peer, Request::CloseContext { context });
    bench.open(&peer, 1);
    let rings = &kept[0].1[4];
    let states = SharedMapping::new(rings.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
    let lost = shim_abi::card_state(1).unwrap() as usize;
    assert_eq!(states.load_acquire_u32(lost).unwrap(), 0);
}

#[test]
fn what_an_engine_refuses_to_destroy_stays_as_it_was_and_is_quarantined_with_its_client() {
    let mut bench = Bench::new(1, 1);
    let owner = owner(&mut bench);
    let qpn = bench.qp(&owner.peer, owner.pdn, owner.cqn);
    let before = taken(&bench);
    let card = Arc::clone(&bench.cards[0]);
    card.window(0, |window| window.refuse.insert(Opcode::DestroyQp, AdminStatus::Busy));
    let refusal = bench.refused(&owner.peer, Request::DestroyQp { qpn });
    assert_eq!(refusal.errno, Errno::EBUSY as i32);
    assert_eq!(taken(&bench), before);
    bench.ask(&owner.peer, Request::QueryQp { qpn });
    drop(owner);
    bench.turn();
    let (quarantine, lost) = leaked(&bench.server.cards[0]);
    // A QP that is there has its queues kept, too.
    assert_eq!((quarantine.queues, quarantine.keys, quarantine.pages), (3, 0, 1));
    assert_eq!(card.window(0, |window| window.live.len()), 3);
    assert!(lost >= crate::rings::RING_MEMORY_BYTES, "{lost}");
    assert_eq!(bench.server.cards[0].users[0].free(), [13, 240]);
}

#[test]
fn the_page_of_a_queue_that_an_engine_keeps_is_not_given_to_another_program() {
    let mut bench = Bench::new(1, 1);
    let owner = owner(&mut bench);
    let qpn = bench.qp(&owner.peer, owner.pdn, owner.cqn);
    let before = taken(&bench);
    let card = Arc::clone(&bench.cards[0]);
    card.window(0, |window| window.refuse.insert(Opcode::DestroyRq, AdminStatus::Busy));
    // Its QP has gone, so that there is no way back.
    bench.ask(&owner.peer, Request::DestroyQp { qpn });
    let queues = |bench: &Bench| bench.server.cards[0].quarantine.queues;
    assert_eq!(queues(&bench), 1);
    // So it is with one of a creation that fails.
    card.window(0, |window| window.refuse.insert(Opcode::CreateQp, AdminStatus::NoResources));
    let kept = taken(&bench);
    bench.refused(&owner.peer, Request::CreateQp(wanted_qp(owner.pdn, owner.cqn)));
    assert_eq!(queues(&bench), 2);
    let ring_bytes = |taken: &Usage| {
        let at = Resource::all().position(|it| it == Resource::RingBytes).unwrap();
        taken.usage[at]
    };
    // The receive queues' rings stay taken, and nothing else.
    let ring = ring_bytes(&taken(&bench)) - ring_bytes(&kept);
    assert_eq!(ring, crate::rings::RingMemory::ring_bytes(128).unwrap());
    assert!(ring_bytes(&kept) < ring_bytes(&before));
    assert_eq!(taken(&bench).owned, kept.owned);
    drop(owner);
    bench.turn();
    assert_eq!(bench.server.cards[0].quarantine.pages, 1);
}

#[test]
fn an_engine_that_dies_in_the_middle_of_a_creation_keeps_its_rings_and_no_quota_but_theirs() {
    let mut bench = Bench::new(1, 1);
    let owner = owner(&mut bench);
    let before = taken(&bench);
    let card = Arc::clone(&bench.cards[0]);
    // Behind the receive queue.
    card.script(|card, offset, value| {
        card.pass(offset, value);
        if is_doorbell(offset) {
            card.leave();
        }
    });
    let refusal = bench.refused(&owner.peer, Request::CreateQp(wanted_qp(owner.pdn, owner.cqn)));
    assert_eq!(refusal.errno, Errno::EIO as i32);
    let after = taken(&bench);
    assert_eq!((after.owned, after.leaked.0.queues), (before.owned, 1));
    let differ = Resource::all().zip(before.usage.iter().zip(&after.usage));
    let differ: Vec<_> = differ.filter(|(_, (a, b))| a != b).map(|(r, _)| r).collect();
    assert_eq!(differ, [Resource::RingBytes]);
    assert_eq!(after.mapped.len(), before.mapped.len() + 2);
}

#[test]
fn what_a_dead_engine_kept_is_free_again_when_it_is_started_anew() {
    let memory = vec![0u8; 10_000];
    let mut bench = Bench::new(1, 1);
    let other = bench.provider();
    let (other_context, _other_fds) = bench.open(&other, 0);
    let mut peer = bench.provider();
    let limit = |bench: &Bench| bench.server.cards[0].device.arena.limit(0);
    let lost = |bench: &Bench| bench.server.cards[0].device.arena.lost_bytes();
    let before = (limit(&bench), bench.server.cards[0].users[0].free()[0]);
    for round in 0..4 {
        let (context, _fds) = bench.open(&peer, 0);
        let context = context.context;
        let pdn = bench.pd(&peer, context);
        let (cqn, _) = bench.cq(&peer, context, None);
        let qpn = bench.qp(&peer, pdn, cqn);
        let (region, _) = bench.mr(&peer, pdn, &memory);
        let (uncommitted, _) = bench.ask(&peer, mr(pdn, &memory));
        let Response::Reserved { mr: uncommitted, .. } = uncommitted else { panic!() };
        let fatal = Event { kind: EventType::Fatal, code: 7, ..Event::default() };
        bench.cards[0].raise(0, fatal);
        bench.turn();
        // Whether its program cleans up or not.
        if round % 2 == 0 {
            bench.ask(&peer, Request::DestroyQp { qpn });
            bench.ask(&peer, Request::DestroyCq { cqn });
            bench.ask(&peer, Request::DeregMr { mr: region });
            bench.ask(&peer, Request::DeregMr { mr: uncommitted });
            bench.ask(&peer, Request::DeallocPd { pdn });
            bench.ask(&peer, Request::CloseContext { context });
        } else {
            peer = bench.provider();
            bench.turn();
        }
        if round == 0 {
            // As long as another program has the window, the engine may reach for them.
            assert!(lost(&bench) >= crate::rings::RING_MEMORY_BYTES + 2 * 12_288);
            assert!(limit(&bench) < before.0);
            bench.ask(&other, Request::CloseContext { context: other_context.context });
        }
        assert_eq!((lost(&bench), limit(&bench)), (0, before.0), "round {round}");
        assert_eq!(bench.server.cards[0].users[0].free()[0], before.1 + 1);
        assert_eq!(bench.cards[0].mapped().len(), 2, "the engine's own rings, and queue pair 1's");
        let used = bench.server.clients.values().map(|it| it.usage.of(Resource::RingBytes));
        assert_eq!(used.sum::<u64>(), 0, "round {round}");
    }
}

#[test]
fn a_client_ends_kind_by_kind_and_has_nothing_in_the_end() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    let Owner { peer, context, pdn, cqn, .. } = owner(&mut bench);
    // In any order in which they were made.
    for _ in 0..3 {
        bench.mr(&peer, pdn, &memory);
        bench.qp(&peer, pdn, cqn);
        bench.sharing_qp(&peer, pdn, cqn);
        bench.ah(&peer, pdn);
        let (channel, _fds) = bench.channel(&peer, context);
        bench.cq(&peer, context, Some(channel));
        bench.open(&peer, 0);
        bench.pd(&peer, context);
    }
    let id = *bench.server.clients.keys().next().unwrap();
    let mut client = bench.server.clients.remove(&id).unwrap();
    let before = bench.cards[0].window(0, |window| window.log.len());
    client.begin_end(&bench.server.poller);
    let mut turns = 0;
    while !client.end_some(&mut bench.server.cards) {
        turns += 1;
        let owned = &client.owned;
        assert!(owned.qps.is_empty() || owned.srqs.len() == 3, "in turn {turns}");
        assert!(owned.srqs.is_empty() || owned.ahs.len() == 3, "in turn {turns}");
        assert!(owned.ahs.is_empty() || owned.cqs.len() == 4, "in turn {turns}");
        assert!(owned.cqs.is_empty() || owned.mrs.len() == 3, "in turn {turns}");
        assert!(owned.mrs.is_empty() || owned.places.len() == 1, "in turn {turns}");
        assert!(owned.places.is_empty() || owned.contexts.len() == 4, "in turn {turns}");
        // Each counts as long as it is there.
        assert_eq!(client.usage.of(Resource::Qps), owned.qps.len() as u64);
        let regions = owned.mrs.len() + owned.leaving.regions.len();
        assert_eq!(client.usage.of(Resource::Mrs), regions as u64);
        assert_eq!(client.usage.of(Resource::Contexts), owned.contexts.len() as u64);
    }
    let order = bench.cards[0].window(0, |window| window.log[before..].to_vec());
    // QPs by their numbers, which the engine draws: three with a receive queue, three without.
    let (mut qps, others) = (order[..9].to_vec(), &order[9..]);
    qps.sort_unstable_by_key(|opcode| opcode.0);
    let (qp, rq) = (Opcode::DestroyQp, Opcode::DestroyRq);
    assert_eq!(qps, [[rq; 3].as_slice(), &[qp; 6]].concat());
    let mut wanted = vec![rq; 3];
    wanted.extend([Opcode::DestroyAh; 3]);
    wanted.extend([Opcode::DestroyCq; 4]);
    wanted.extend([Opcode::DestroyKey; 3]);
    assert_eq!(others, wanted);
    assert_eq!(usage(&client), vec![0; Resource::all().count()]);
    assert!(turns > 3, "{turns} turns show little");
    assert_eq!(leaked(&bench.server.cards[0]), Default::default());
}

#[test]
fn each_thing_gives_as_much_of_every_quota_as_it_took() {
    let memory = vec![0u8; 10_000];
    let mut bench = Bench::new(1, 1);
    let Owner { peer, context, pdn, cqn, .. } = owner(&mut bench);
    let before = taken(&bench);
    let (region, _) = bench.mr(&peer, pdn, &memory);
    let qpn = bench.qp(&peer, pdn, cqn);
    let (sharing, srqn) = bench.sharing_qp(&peer, pdn, cqn);
    let (channel, fds) = bench.channel(&peer, context);
    let (second, _) = bench.cq(&peer, context, Some(channel));
    let domain = bench.pd(&peer, context);
    let ah = bench.ah(&peer, pdn);
    bench.ask(&peer, Request::DestroyAh { ah });
    bench.ask(&peer, Request::DestroyQp { qpn });
    bench.ask(&peer, Request::DestroyQp { qpn: sharing });
    bench.ask(&peer, Request::DestroySrq { srqn });
    bench.ask(&peer, Request::DestroyCq { cqn: second });
    bench.ask(&peer, Request::DeregMr { mr: region });
    bench.ask(&peer, Request::DeallocPd { pdn: domain });
    drop(fds);
    bench.turn();
    assert_eq!(taken(&bench), before);
    // An object that is named twice is reported once, by its name.
    for (request, name) in
        [(Request::DestroyQp { qpn }, Qp::NAME), (Request::DeregMr { mr: region }, Mr::NAME)]
    {
        assert!(bench.refused(&peer, request).reason.contains(&format!("no {name}")));
    }
}

#[test]
fn a_resize_that_fails_at_any_step_leaves_the_queue_as_it_was() {
    let mut bench = Bench::new(1, 1);
    let Owner { peer, cqn, .. } = owner(&mut bench);
    let resize = |log2_entries| Request::ResizeCq { cqn, log2_entries };
    let card = Arc::clone(&bench.cards[0]);
    let before = taken(&bench);
    card.window(0, |window| window.refuse.insert(Opcode::ResizeCq, AdminStatus::Invalid));
    assert_eq!(bench.refused(&peer, resize(4)).errno, Errno::EINVAL as i32);
    card.window(0, |window| window.refuse.clear());
    assert_eq!(taken(&bench), before);
    assert!(bench.refused(&peer, resize(23)).reason.contains("limit of 2^22"));
    let no_such = Request::ResizeCq { cqn: cqn ^ 1, log2_entries: 4 };
    assert_eq!(bench.refused(&peer, no_such).errno, Errno::EINVAL as i32);
    assert_eq!(taken(&bench), before);
    assert_eq!(refused_times(&mut bench, &peer, &resize(10)), 1);
    // It has both rings until the old one is given back, and the quota of the new.
    let mapped = card.mapped().len();
    assert_eq!(mapped, before.mapped.len() + 1);
    let refused = bench.refused(&peer, resize(4));
    assert!(refused.reason.contains("was not given back"), "{refused:?}");
    let release = Request::ReleaseCqRing { cqn };
    for _ in 0..2 {
        bench.ask(&peer, release.clone());
        assert_eq!(card.mapped().len(), before.mapped.len());
    }
    let entries = bench.server.clients.values().next().unwrap().usage.of(Resource::CqEntries);
    assert_eq!(entries, 1 << 10);
    bench.ask(&peer, resize(6));
    bench.ask(&peer, release);
    assert_eq!(usage(bench.server.clients.values().next().unwrap()), before.usage);
    // Both go with the queue, and with the client.
    bench.ask(&peer, resize(10));
    bench.ask(&peer, Request::DestroyCq { cqn });
    assert_eq!(card.mapped().len(), before.mapped.len() - 1);
}
