use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::{Condvar, Mutex};

use card_driver::backend::CardBackend as _;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window::ADMIN_DOORBELL;
use hostmem::{Access, SharedMapping};
use shim_abi::Grant;

use super::*;

mod address;
mod anew;
mod attention;
mod bench;
mod connections;
mod device_memory;
mod events;
mod flash;
mod limits;
mod multicast;
mod names;
mod null_regions;
mod random;
mod srq;
mod tending;
mod turns;
mod undo;
mod window;
mod xrc;

use bench::{Bench, create_cq, leaked, records, wanted_ah, wanted_qp};

/// Whether that register is where commands to an engine are rung for.
fn is_doorbell(offset: u64) -> bool {
    (0..4).any(|window| offset == user_csr(window) + ADMIN_DOORBELL)
}

#[test]
fn a_client_gets_its_own_page_and_rings_once() {
    let mut bench = Bench::new(2, 1);
    let peer = bench.provider();
    let (first, fds) = bench.open(&peer, 0);
    // Asynchronous events, page, eventfd, the card thread's page, rings.
    assert_eq!(fds.len(), 5);
    assert!(matches!(first.grant, Grant { page: 1, first: true, .. }));
    assert!(first.rings.first);
    assert_eq!(first.limits.qps, 56);
    let (again, fds) = bench.open(&peer, 0);
    assert_eq!(fds.len(), 1);
    assert!(matches!(again.grant, Grant { page: 1, first: false, .. }));
    assert!(!again.rings.first);
    let (other, fds) = bench.open(&peer, 1);
    assert_eq!(fds.len(), 4);
    assert!(matches!(other.grant, Grant { page: 1, first: true, .. }));
    assert_eq!(bench.cards.iter().map(|card| card.granted()).sum::<usize>(), 2);
}

#[test]
fn the_whole_life_of_a_verbs_program_leaves_nothing_behind() {
    let mut bench = Bench::new(1, 1);
    let at_rest = bench.cards[0].mapped();
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let context = context.context;
    let pdn = bench.pd(&peer, context);
    let memory = vec![0u8; 10_000];
    let (mr, _) = bench.mr(&peer, pdn, &memory);
    let (cqn, _) = bench.cq(&peer, context, None);
    let qpn = bench.qp(&peer, pdn, cqn);
    for request in
        [Request::DestroyCq { cqn }, Request::DeallocPd { pdn }, Request::CloseContext { context }]
    {
        let refusal = bench.refused(&peer, request);
        assert_eq!(refusal.errno, Errno::EBUSY as i32, "{refusal:?}");
    }
    bench.ask(&peer, Request::DestroyQp { qpn });
    bench.ask(&peer, Request::DestroyCq { cqn });
    bench.ask(&peer, Request::DeregMr { mr });
    bench.ask(&peer, Request::DeallocPd { pdn });
    bench.ask(&peer, Request::CloseContext { context });
    let gone = bench.refused(&peer, Request::DestroyQp { qpn });
    assert_eq!(gone.errno, Errno::EINVAL as i32);
    bench.cards[0].window(0, |w| assert!(w.live.is_empty(), "{:?}", w.live));
    drop(peer);
    bench.turn();
    assert_eq!(bench.cards[0].mapped(), at_rest);
    assert_eq!(bench.cards[0].granted(), 0);
}

#[test]
fn a_client_that_dies_is_cleaned_up_in_order() {
    let mut bench = Bench::new(1, 1);
    let at_rest = bench.cards[0].mapped();
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let memory = vec![0u8; 4096];
    bench.mr(&peer, pdn, &memory);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    bench.qp(&peer, pdn, cqn);
    let before = bench.cards[0].window(0, |w| w.log.len());
    drop(peer);
    bench.turn();
    let order: Vec<_> = bench.cards[0].window(0, |w| w.log[before..].to_vec());
    use Opcode as O;
    assert_eq!(order, [O::DestroyQp, O::DestroyRq, O::DestroyCq, O::DestroyKey]);
    assert_eq!(bench.cards[0].mapped(), at_rest);
    assert!(bench.server.clients.is_empty());
}

#[test]
fn a_refused_modify_says_what_is_missing() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    let made = bench.ask(&peer, Request::CreateQp(wanted_qp(pdn, cqn))).0;
    let Response::Qp { qpn, generation, .. } = made else { panic!("{made:?}") };
    let mask = AttributeMask::STATE | AttributeMask::PORT;
    let wanted = Attributes { mask, state: QpState::Init, ..sound() };
    let request = Request::ModifyQp { qpn, first: None, attributes: wanted.encode() };
    let refusal = bench.refused(&peer, request);
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    assert!(refusal.reason.contains("Reset to Init also needs ACCESS, PKEY_INDEX"), "{refusal:?}");
    let mask = mask | AttributeMask::ACCESS | AttributeMask::PKEY_INDEX;
    let wanted = Attributes { mask, ..wanted };
    let request = Request::ModifyQp { qpn, first: None, attributes: wanted.encode() };
    assert_eq!(bench.ask(&peer, request).0, Response::QpModified { generation });
    let (Response::QpAttributes { attributes }, _) = bench.ask(&peer, Request::QueryQp { qpn })
    else {
        panic!()
    };
    assert_eq!(Attributes::decode(&attributes).state, QpState::Init);
}

/// Attributes that an engine takes, whichever of them are named.
fn sound() -> Attributes {
    Attributes { port: 1, path_mtu: 1, ..Attributes::default() }
}

/// Tries to take a QP to RTR, connected to QP `dest` of a peer; the errno if it is refused.
fn connect_qp(bench: &mut Bench, peer: &bench::Peer, qpn: u32, dest: u32) -> Result<(), i32> {
    use AttributeMask as M;
    let init = M::STATE | M::PORT | M::ACCESS | M::PKEY_INDEX;
    let rtr = M::STATE
        | M::AV
        | M::PATH_MTU
        | M::DEST_QPN
        | M::RQ_PSN
        | M::MAX_DEST_RD_ATOMIC
        | M::MIN_RNR_TIMER;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr)] {
        let dgid = [9; 16];
        let wanted = Attributes { mask, state, dest_qpn: dest, dgid, ..sound() };
        let request = Request::ModifyQp { qpn, first: None, attributes: wanted.encode() };
        bench.try_ask(peer, &request).0.map_err(|refusal| refusal.errno)?;
    }
    Ok(())
}

fn go(bench: &mut Bench, peer: &bench::Peer, qpn: u32, state: QpState) {
    let wanted = Attributes { mask: AttributeMask::STATE, state, ..Attributes::default() };
    bench.ask(peer, Request::ModifyQp { qpn, first: None, attributes: wanted.encode() });
}

#[test]
fn a_process_cannot_claim_the_connection_of_another() {
    let mut bench = Bench::new(1, 2);
    let [victim, attacker] = [0, 1].map(|_| bench.provider());
    let [ours, theirs] = [&victim, &attacker].map(|peer| {
        let (info, _fds) = bench.open(peer, 0);
        let pdn = bench.pd(peer, info.context);
        let (cqn, _) = bench.cq(peer, info.context, None);
        (pdn, cqn)
    });
    let victims = bench.qp(&victim, ours.0, ours.1);
    connect_qp(&mut bench, &victim, victims, 77).unwrap();

    // The same process may, though that is of no use, and so may any process with another peer.
    let again = bench.qp(&attacker, theirs.0, theirs.1);
    connect_qp(&mut bench, &attacker, again, 77).unwrap();
    bench.ask(&attacker, Request::DestroyQp { qpn: again });
    let id = *bench.server.clients.keys().next_back().unwrap();
    bench.server.clients.get_mut(&id).unwrap().process.pid += 1;
    let qpn = bench.qp(&attacker, theirs.0, theirs.1);
    assert_eq!(connect_qp(&mut bench, &attacker, qpn, 77), Err(Errno::EADDRINUSE as i32));
    // Nothing of a refused change is left.
    let state = |bench: &mut Bench, qpn| match bench.ask(&attacker, Request::QueryQp { qpn }).0 {
        Response::QpAttributes { attributes } => Attributes::decode(&attributes).state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(&mut bench, qpn), QpState::Init);
    connect_qp(&mut bench, &attacker, qpn, 78).unwrap();

    // No program owns a failed connection, also if balboad has not learnt of the failure.
    let heir = bench.qp(&attacker, theirs.0, theirs.1);
    let window = bench.server.clients.values().next().unwrap().owned.places[&0].window;
    bench.fail(window, victims);
    connect_qp(&mut bench, &attacker, heir, 77).unwrap();
    // And now it is the other's, until that one is reset.
    go(&mut bench, &victim, victims, QpState::Reset);
    assert_eq!(connect_qp(&mut bench, &victim, victims, 77), Err(Errno::EADDRINUSE as i32));
    go(&mut bench, &attacker, heir, QpState::Reset);
    go(&mut bench, &victim, victims, QpState::Reset);
    connect_qp(&mut bench, &victim, victims, 77).unwrap();
}

#[test]
fn a_number_that_a_card_gives_out_twice_is_not_believed() {
    let mut bench = Bench::new(1, 1);
    let [first, second] = [0, 1].map(|_| bench.provider());
    let (context, _fds) = bench.open(&first, 0);
    let (cqn, _) = bench.cq(&first, context.context, None);
    let (context, _fds) = bench.open(&second, 0);
    bench.cards[0]
        .window(0, |w| w.alter = Some(Box::new(move |completion| completion.result = cqn)));
    let request = create_cq(context.context, 2);
    let refusal = bench.refused(&second, request);
    assert_eq!(refusal.errno, Errno::EIO as i32);
    assert!(refusal.reason.contains("which another client has"), "{refusal:?}");
    assert_eq!(bench.server.cards[0].users[0].listeners.count().cqs, 1);
}

#[test]
fn registration_checks_rights_and_bounds_and_leaves_the_memory_to_the_client() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let at_rest = bench.cards[0].mapped();
    let reserve = |address, length, access| Request::ReserveMr {
        pdn,
        address,
        length,
        hca_va: address,
        access,
    };
    // There is none; balboad does not look, for to look at another process's map can take for ever.
    let (Response::Reserved { mr, .. }, _) = bench.ask(&peer, reserve(4096, 4096, 1)) else {
        panic!()
    };
    bench.ask(&peer, Request::DeregMr { mr });
    let wrapped = bench.refused(&peer, reserve(u64::MAX - 10, 4096, 1));
    assert_eq!(wrapped.errno, Errno::EINVAL as i32);
    let rights = bench.refused(&peer, reserve(4096, 4096, 2));
    assert!(rights.reason.contains("LOCAL_WRITE"));
    let (Response::Reserved { mr, .. }, _) = bench.ask(&peer, reserve(0, 0, 1)) else { panic!() };
    assert_eq!(bench.cards[0].mapped(), at_rest);
    bench.ask(&peer, Request::CommitMr { mr });
    let twice = bench.refused(&peer, Request::CommitMr { mr });
    assert!(twice.reason.contains("is committed"));
    bench.ask(&peer, Request::DeregMr { mr });
    let (Response::Reserved { mr, .. }, _) = bench.ask(&peer, reserve(0, 0, 1)) else { panic!() };
    bench.ask(&peer, Request::DeregMr { mr });
}

#[test]
fn a_region_is_changed_within_what_its_client_has_and_otherwise_stays() {
    use fpga_regs::engine::admin::Opcode as O;
    let mut bench = Bench::new(2, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let (elsewhere, _their_fds) = bench.open(&peer, 1);
    let [pdn, other] = [0; 2].map(|_| bench.pd(&peer, context.context));
    let foreign = bench.pd(&peer, elsewhere.context);
    let at_rest = bench.cards[0].mapped();
    let [memory, more] = [vec![0u8; 4096], vec![0u8; 100_000]];
    let (mr, key) = bench.mr(&peer, pdn, &memory);
    let small = bench.cards[0].mapped();
    let modify = |mr, pdn, access| Request::ModifyMr { mr, pdn, access };
    bench.ask(&peer, modify(mr, other, 0));
    // The region uses the other domain now.
    bench.ask(&peer, Request::DeallocPd { pdn });
    let busy = bench.refused(&peer, Request::DeallocPd { pdn: other });
    assert_eq!(busy.errno, Errno::EBUSY as i32);

    let (address, length) = (more.as_ptr() as u64, more.len() as u64);
    let reserve = |pdn| Request::ReserveMr { pdn, address, length, hca_va: address, access: 1 };
    let reserved = |bench: &mut Bench, pdn| match bench.ask(&peer, reserve(pdn)).0 {
        Response::Reserved { mr, .. } => mr,
        answer => panic!("{answer:?}"),
    };
    let to = reserved(&mut bench, other);
    let away = reserved(&mut bench, foreign);
    let invalid = [
        modify(mr, foreign, 1),
        modify(mr, pdn, 1),
        modify(mr, other, 2),
        modify(mr, other, 1 << 15),
        modify(to, other, 1),
        modify(u32::MAX, other, 1),
        Request::MoveMr { mr, to: away },
        Request::MoveMr { mr, to: mr },
        Request::MoveMr { mr: to, to: mr },
        Request::MoveMr { mr: to, to },
        Request::MoveMr { mr, to: u32::MAX },
    ];
    let log = |bench: &Bench| bench.cards[0].window(0, |w| w.log.clone());
    let before = log(&bench);
    for request in invalid {
        assert_eq!(bench.refused(&peer, request).errno, Errno::EINVAL as i32);
    }
    let refusal = (O::ModifyKey, AdminStatus::Unsupported);
    bench.cards[0].window(0, |w| w.refuse.extend([refusal]));
    for request in [modify(mr, other, 1), Request::MoveMr { mr, to }] {
        assert_eq!(bench.refused(&peer, request).errno, Errno::EOPNOTSUPP as i32);
    }
    assert_eq!(log(&bench), before, "the card did nothing");
    bench.cards[0].window(0, |w| w.refuse.clear());

    bench.ask(&peer, Request::MoveMr { mr, to });
    let again = bench.refused(&peer, Request::CommitMr { mr });
    assert!(again.reason.contains(&format!("with key {key:#x}")), "{again:?}");
    // Its memory goes with the other region, and no key ends with that.
    let both = bench.cards[0].mapped();
    bench.ask(&peer, Request::DeregMr { mr: to });
    assert_ne!(bench.cards[0].mapped(), both);
    assert_ne!(bench.cards[0].mapped(), small, "the larger memory is what is left");
    assert_eq!(log(&bench).last(), Some(&O::ModifyKey));
    bench.ask(&peer, Request::DeregMr { mr });
    assert_eq!(log(&bench).last(), Some(&O::DestroyKey));
    assert_eq!(bench.cards[0].mapped(), at_rest);
    bench.ask(&peer, Request::DeallocPd { pdn: other });
}

#[test]
fn numbers_of_two_cards_never_collide_in_one_client() {
    let mut bench = Bench::new(2, 1);
    let peer = bench.provider();
    let mut seen = std::collections::BTreeSet::new();
    for card in 0..2 {
        let (context, _fds) = bench.open(&peer, card);
        for _ in 0..3 {
            let (cqn, _) = bench.cq(&peer, context.context, None);
            assert!(seen.insert(cqn));
        }
    }
    bench.cards[1].window(0, |w| assert_eq!(w.live.len(), 3));
}

#[test]
fn an_engine_that_dies_takes_its_clients_and_nobody_else() {
    let mut bench = Bench::new(1, 2);
    let (hit, spared) = (bench.provider(), bench.provider());
    let (context, fds) = bench.open(&hit, 0);
    let (_, spared_fds) = bench.open(&spared, 0);
    let (waited_on, channel_fds) = bench.channel(&hit, context.context);
    let (cqn, _) = bench.cq(&hit, context.context, Some(waited_on));
    let fatal = Event { kind: EventType::Fatal, code: 9, ..Event::default() };
    bench.cards[0].raise(0, fatal);
    bench.turn();
    assert_eq!(records(&fds[0]).len(), 1);
    assert!(records(&spared_fds[0]).is_empty());
    // A program that waits for completions is woken, and its polls find that it has lost the card.
    assert_eq!(records(&channel_fds[0]).len(), 1);
    assert_eq!((lost(&fds[4]), lost(&spared_fds[4])), (1, 0));
    let refusal = bench.refused(&hit, Request::AllocPd { context: context.context });
    assert_eq!(refusal.errno, Errno::EIO as i32);
    assert!(refusal.reason.contains("code 9"));
    // The program can still clean up after itself.
    bench.ask(&hit, Request::DestroyCq { cqn });
    bench.cq(&spared, 1, None);
    drop(hit);
    bench.turn();
    // Nobody uses the window any more, so its engine was started anew.
    let again = bench.provider();
    let (context, _fds) = bench.open(&again, 0);
    bench.cq(&again, context.context, None);
}

#[test]
fn a_card_that_the_kernel_wants_back_is_let_go_when_its_last_program_has() {
    let mut bench = Bench::new(2, 2);
    let (hit, spared) = (bench.provider(), bench.provider());
    let (_, fds) = bench.open(&hit, 0);
    let (context, spared_fds) = bench.open(&spared, 1);
    let held = || Arc::strong_count(&bench.cards[0]);
    let before = held();
    bench.cards[0].want_back();
    bench.turn();
    assert_eq!((records(&fds[0]).len(), lost(&fds[4])), (1, 1));
    assert!(records(&spared_fds[0]).is_empty());
    assert_eq!(Arc::strong_count(&bench.cards[0]), before, "its program still has it open");
    // It is asked for again until it is given.
    bench.cards[0].want_back();
    bench.turn();
    assert!(records(&fds[0]).is_empty());
    let late = bench.provider();
    assert_eq!(bench.refused(&late, Request::OpenContext { card: 0 }).errno, Errno::EIO as i32);
    drop(hit);
    bench.turn();
    assert_eq!(Arc::strong_count(&bench.cards[0]), 1, "somebody holds the card");
    assert_eq!(bench.refused(&late, Request::OpenContext { card: 0 }).errno, Errno::EINVAL as i32);
    bench.cq(&spared, context.context, None);
}

#[test]
fn a_program_of_two_cards_leaves_the_dead_one_by_closing_it() {
    let mut bench = Bench::new(2, 1);
    let peer = bench.provider();
    let (lost, _fds) = bench.open(&peer, 0);
    let (kept, _fds) = bench.open(&peer, 1);
    bench.cards[0].want_back();
    bench.turn();
    bench.ask(&peer, Request::CloseContext { context: lost.context });
    assert_eq!(Arc::strong_count(&bench.cards[0]), 1, "somebody holds the card");
    bench.cq(&peer, kept.context, None);
}

#[test]
fn a_card_that_nobody_uses_is_let_go_at_once() {
    let mut bench = Bench::new(1, 1);
    bench.serve_interrupts();
    bench.cards[0].want_back();
    bench.turn();
    assert_eq!(Arc::strong_count(&bench.cards[0]), 1, "somebody holds the card");
}

#[test]
fn a_card_that_was_reset_is_lost_to_all_its_clients_and_brought_up_anew_at_once() {
    let mut bench = Bench::new(2, 2);
    let (one, other) = (bench.provider(), bench.provider());
    let (context, fds) = bench.open(&one, 0);
    let (_, other_fds) = bench.open(&other, 0);
    bench.serve_interrupts();
    let (cqn, _) = bench.cq(&one, context.context, None);
    bench.cards[0].reset();
    // Its own engine is the only one that is asked; the other's clients hear of it all the same.
    let request = create_cq(context.context, 6);
    let refusal = bench.refused(&one, request);
    assert!(refusal.reason.contains("the card was reset"), "{}", refusal.reason);
    assert_eq!([lost(&fds[4]), lost(&other_fds[4])], [1, 1]);
    assert_eq!([records(&fds[0]).len(), records(&other_fds[0]).len()], [1, 1]);
    bench.turn();
    assert!(!bench.server.cards[0].device.is_dead(), "two clients keep what it was");
    bench.ask(&one, Request::DestroyCq { cqn });
    drop(one);
    bench.turn();
    assert_eq!(bench.server.cards.len(), 3, "the other one keeps what it was");
    drop(other);
    bench.turn();
    assert_eq!(bench.server.cards.len(), 2);
    let again = bench.provider();
    let (context, _fds) = bench.open(&again, 0);
    bench.cq(&again, context.context, None);
    let card = &bench.server.cards[0];
    assert_eq!((card.device.was_reset(), leaked(card)), Default::default());
    // Its news are heard, too, and its interrupts are served as the old one's were.
    assert!(card.device.interrupts.is_some());
    bench.cards[0].raise(0, Event { kind: EventType::Fatal, code: 7, ..Event::default() });
    while bench.server.cards[0].device.windows[0].engine.death().is_none() {
        assert!(bench.server.step(None).unwrap());
    }
}

/// The word that tells a client whether it has lost card 0, in its ring memory.
fn lost(rings: &OwnedFd) -> u32 {
    let mapping = SharedMapping::new(rings.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
    mapping.load_acquire_u32(0).unwrap()
}

#[test]
fn a_client_that_is_ended_for_its_conduct_has_lost_its_cards() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (_, fds) = bench.open(&peer, 0);
    assert_eq!(lost(&fds[4]), 0);
    fdpass::send(peer.socket.as_fd(), b"\xff", &[], Wait::Never).unwrap();
    bench.turn();
    assert!(bench.server.clients.is_empty());
    assert_eq!(lost(&fds[4]), 1);
}

#[test]
fn clients_whose_memory_did_not_answer_a_card_are_ended_and_no_others() {
    let mut bench = Bench::new(2, 1);
    let (hit, spared) = (bench.provider(), bench.provider());
    // As a map begins at a page, so does the memory.
    let memory = vec![0; 4 * 4096];
    let pages = memory.as_ptr().align_offset(4096);
    let (theirs, others) = memory[pages..pages + 2 * 4096].split_at(4096);
    let mut rings = Vec::new();
    for (peer, memory) in [(&hit, theirs), (&spared, others)] {
        let (context, fds) = bench.open(peer, 0);
        let pdn = bench.pd(peer, context.context);
        bench.mr(peer, pdn, memory);
        rings.push(fds);
    }
    bench.cards[0].give_up_memory_at(theirs.as_ptr() as u64);
    bench.turn();
    assert_eq!((lost(&rings[0][4]), lost(&rings[1][4])), (1, 0));
    assert_eq!(bench.server.clients.len(), 1, "the other one stays");
    // The message comes once, and balboad does not ask again.
    assert!(bench.server.poller.wait(Some(0)).unwrap().is_empty());
    let (context, _) = bench.open(&spared, 0);
    bench.cq(&spared, context.context, None);
}

#[test]
fn the_numbers_of_a_clients_domains_are_looked_for_among_its_own() {
    let mut bench = Bench::new(1, 1);
    let clients = [bench.provider(), bench.provider()];
    let mut contexts = Vec::new();
    for peer in &clients {
        contexts.push(bench.open(peer, 0).0.context);
    }
    let mut blocks = [BTreeSet::new(), BTreeSet::new()];
    let mut all = BTreeSet::new();
    for _ in 0..100 {
        for (at, peer) in clients.iter().enumerate() {
            let pdn = bench.pd(peer, contexts[at]);
            assert!(pdn > 0 && pdn < 1 << 24 && all.insert(pdn), "{pdn:#x}");
            blocks[at].insert(pdn >> 13);
        }
    }
    assert!(blocks[0].len() == 1 && blocks[1].len() == 1 && blocks[0] != blocks[1], "{blocks:?}");
    // A block is free for another when its client is gone, though not the next.
    let [one, other] = clients;
    drop(one);
    bench.turn();
    let next = bench.provider();
    let context = bench.open(&next, 0).0.context;
    assert!(all.insert(bench.pd(&next, context)) && all.insert(bench.pd(&other, contexts[1])));
}

#[test]
fn what_a_card_does_not_confirm_is_quarantined_with_its_page() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    bench.cq(&peer, context.context, None);
    bench.cards[0].window(0, |w| {
        w.alter = Some(Box::new(|completion| {
            if completion.opcode == Opcode::DestroyCq {
                completion.status = AdminStatus::Busy;
            }
        }));
    });
    drop(peer);
    bench.turn();
    let (quarantine, iova_bytes) = leaked(&bench.server.cards[0]);
    assert_eq!((quarantine.queues, quarantine.pages), (1, 1));
    assert_eq!(iova_bytes, crate::rings::RING_MEMORY_BYTES);
    let next = bench.provider();
    let (context, _fds) = bench.open(&next, 0);
    assert!(matches!(context.grant, Grant { page: 2, .. }));
}

#[test]
fn strangers_versions_and_garbage_end_the_connection_with_a_reason() {
    let mut bench = Bench::new(1, 1);
    let old = bench.connect();
    let mut hello = shim_abi::hello_frame(&Hello { build: String::new(), role: Role::Tool });
    hello[4] = 77;
    let (answer, _) = bench.exchange(&old, &hello);
    let reply: Reply = shim_abi::decode_hello(&answer).unwrap();
    assert!(reply.unwrap_err().reason.contains("version 77"));

    let garbage = bench.provider();
    fdpass::send(garbage.socket.as_fd(), &[0xff; 40], &[], Wait::Never).unwrap();
    bench.turn();
    let ended = fdpass::receive(garbage.socket.as_fd(), &mut [0; 16], Wait::Never).unwrap();
    assert_eq!(ended.bytes, 0);

    let huge = bench.provider();
    fdpass::send(huge.socket.as_fd(), &vec![0; MAX_MESSAGE + 1], &[], Wait::Never).unwrap();
    bench.turn();
    let ended = fdpass::receive(huge.socket.as_fd(), &mut [0; 16], Wait::Never).unwrap();
    assert_eq!(ended.bytes, 0);

    bench.server.uid += 1;
    let stranger = bench.connect();
    let reply = bench.greet(&stranger, Role::Tool);
    assert!(reply.unwrap_err().reason.contains("you are user"));
    assert!(bench.server.clients.is_empty());
}

#[test]
fn a_tool_lists_cards_and_reads_the_status_and_no_more() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    bench.qp(&peer, pdn, cqn);
    let attributes = Attributes { dest_qpn: 99, ..Attributes::default() };
    bench.cards[0].window(0, |w| {
        w.answers.insert(Opcode::QueryQp, attributes.encode().into());
        w.answers.insert(Opcode::QueryCounters, vec![[1; 8]]);
    });
    let tool = bench.tool();
    let (Response::Cards(cards), _) = bench.ask(&tool, Request::ListCards) else { panic!() };
    assert_eq!(cards[0].name, "balboa0");
    let refusal = bench.refused(&tool, Request::OpenContext { card: 0 });
    assert_eq!(refusal.errno, Errno::EPERM as i32);
    let (Response::Status { length }, fds) = bench.ask(&tool, Request::Status) else { panic!() };
    let text = SharedMapping::new(fds[0].as_fd(), 0, length as usize, Access::ReadOnly).unwrap();
    let mut bytes = vec![0; length as usize];
    text.read_bytes(0, &mut bytes).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status["cards"][0]["name"], "balboa0");
    assert_eq!(status["cards"][0]["counters"]["sent_pkts"], 1);
    assert!(status["cards"][0]["counters"]["tlb_insertions"].as_u64().unwrap() > 0);
    assert_eq!(status["cards"][0]["gids"][1], "::ffff:10.77.0.1");
    let client = &status["clients"][0];
    assert_eq!(client["places"][0]["grant"], "page");
    assert_eq!(client["usage"]["queue_pairs"], 1);
    let kept = client["usage"]["bytes_kept_at_most"].as_u64().unwrap();
    assert!((32 << 10..40 << 10).contains(&kept), "{kept}");
    assert_eq!(status["cards"][0]["client_limits"]["bytes_kept_at_most"], 512 << 20);
    assert!(client["places"][0]["under_way_bytes"].is_null(), "the card keeps them");
    assert_eq!(client["queue_pairs"][0]["state"], "RESET");
    assert_eq!(client["queue_pairs"][0]["dest_qpn"], 99);
    assert_eq!(bench.cards[0].read32(Bar::Static, 0), 0xf_f1ce);
}

#[test]
fn connections_that_say_nothing_lock_nobody_out() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(bench.connect());
        bench.turn();
    }
    assert_eq!(bench.server.clients.len(), 1 + MAX_GREETING);
    // The newest ones are still listened to, and so is a verbs program that comes now.
    assert!(bench.greet(silent.last().unwrap(), Role::Tool).is_ok());
    let (context, _fds) = bench.open(&peer, 0);
    bench.pd(&peer, context.context);
    let late = bench.provider();
    bench.open(&late, 0);
}

#[test]
fn who_asks_again_before_it_has_read_its_answer_is_at_an_end() {
    let mut bench = Bench::new(1, 1);
    let eager = bench.tool();
    // Each answer would bring a memory file that the test ignores.
    for _ in 0..2 {
        let request = shim_abi::encode(&Request::Status);
        fdpass::send(eager.socket.as_fd(), &request, &[], Wait::Never).unwrap();
    }
    bench.turn();
    assert!(bench.server.clients.is_empty());
    let mut room = [0; 64];
    let answer = fdpass::receive(eager.socket.as_fd(), &mut room, Wait::Never).unwrap();
    assert_eq!(answer.fds.len(), 1, "the first question was answered");
    let end = fdpass::receive(eager.socket.as_fd(), &mut room, Wait::Never);
    assert!(end.is_err() || end.is_ok_and(|end| end.bytes == 0));
}

#[test]
fn what_the_kernel_could_not_accept_is_accepted_later_though_no_client_ends() {
    let mut bench = Bench::new(1, 1);
    for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM] {
        bench.server.reception.failed(&std::io::Error::from_raw_os_error(errno as i32));
        let peer = bench.connect();
        assert!(bench.server.step(Some(Duration::ZERO)).unwrap());
        assert!(bench.server.clients.is_empty(), "{errno}: it is not looked for at once");
        while bench.server.clients.is_empty() {
            assert!(bench.server.step(None).unwrap());
        }
        drop(peer);
        bench.turn();
        assert!(bench.server.clients.is_empty());
    }
}

/// Whether the kernel answers questions about programs.
static ANSWERS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

#[test]
fn a_program_about_which_the_kernel_does_not_answer_holds_up_nobody() {
    let mut bench = Bench::new(1, 1);
    let before = bench.provider();
    bench.server.aside.ask_instead(|_| {
        let answers = ANSWERS.0.lock().unwrap();
        drop(ANSWERS.1.wait_while(answers, |answers| !*answers).unwrap());
        Ok(())
    });
    let hello = shim_abi::hello_frame(&Hello { build: "test".into(), role: Role::Provider });
    let hang = |bench: &mut Bench| {
        let peer = bench.connect();
        fdpass::send(peer.socket.as_fd(), &hello, &[], Wait::Never).unwrap();
        bench.turn();
        peer
    };
    let read = |peer: &bench::Peer, room: &mut [u8]| {
        fdpass::receive(peer.socket.as_fd(), room, Wait::Never)
    };
    let mut room = vec![0; MAX_MESSAGE];
    let (patient, eager, gone) = (hang(&mut bench), hang(&mut bench), hang(&mut bench));
    assert!(read(&patient, &mut room).unwrap_err().would_block());
    // Those that are served go on, tools are not asked about, and a client that cannot wait is at an end.
    bench.open(&before, 0);
    let tool = bench.tool();
    bench.ask(&tool, Request::Status);
    let list = shim_abi::encode(&Request::ListCards);
    fdpass::send(eager.socket.as_fd(), &list, &[], Wait::Never).unwrap();
    drop(gone);
    bench.turn();
    assert_eq!(read(&eager, &mut room).unwrap().bytes, 0);
    assert_eq!(bench.server.clients.len(), 3);
    // There is an end to those that hang, whether their clients are still there or not.
    let hanging: Vec<_> = (3..64).map(|_| hang(&mut bench)).collect();
    let late = bench.connect();
    let refused = bench.greet(&late, Role::Provider).unwrap_err();
    assert_eq!(refused.errno, Errno::EAGAIN as i32);
    assert!(refused.reason.contains("64 programs that came before hang in exec"), "{refused:?}");
    drop(hanging);

    *ANSWERS.0.lock().unwrap() = true;
    ANSWERS.1.notify_all();
    let bytes = loop {
        assert!(bench.server.step(Some(Duration::from_millis(1))).unwrap());
        match read(&patient, &mut room) {
            Ok(received) => break received.bytes,
            Err(error) => assert!(error.would_block(), "{error}"),
        }
    };
    assert_eq!(shim_abi::decode_hello::<Reply>(&room[..bytes]), Ok(Ok(Response::Done)));
    bench.open(&patient, 0);
    bench.provider();
}

#[test]
fn a_program_out_of_reach_is_told_why() {
    let mut bench = Bench::new(1, 1);
    bench.server.aside.ask_instead(|_| Err(Error::Forbidden("it is not dumpable".into())));
    let peer = bench.connect();
    let refused = bench.greet(&peer, Role::Provider).unwrap_err();
    assert_eq!(
        (refused.errno, refused.reason.as_str()),
        (Errno::EPERM as i32, "it is not dumpable")
    );
    bench.turn();
    assert!(bench.server.clients.is_empty());
}
