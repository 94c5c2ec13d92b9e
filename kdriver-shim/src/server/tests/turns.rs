//! Long work goes in turns, and balboad serves others between two.

use card_driver::iova::Arena;
use fpga_regs::coyote::vfpga;

use super::bench::{Peer, wanted_qp};
use super::*;

/// Commands to an engine, and pages taken back, in one turn at most.
const TURN: usize = 32;

/// The number of commands that a card has got so far.
fn commands(bench: &Bench) -> usize {
    bench.cards[0].window(0, |window| window.log.len())
}

/// TLB entries that it was told of since this was asked last.
fn entries(bench: &Bench) -> usize {
    let entry = vfpga::large_tlb(0) + vfpga::TLB_WORD_1;
    bench.cards[0].take_writes().into_iter().filter(|(offset, _)| *offset == entry).count()
}

/// How often an engine was asked about a QP.
fn asked(bench: &Bench, window: u8) -> usize {
    let query = |opcode: &&Opcode| **opcode == Opcode::QueryQp;
    bench.cards[0].window(window.into(), |w| w.log.iter().filter(query).count())
}

fn send(peer: &Peer, request: &Request) {
    fdpass::send(peer.socket.as_fd(), &shim_abi::encode(request), &[], Wait::Never).unwrap();
}

/// The answer, if it is there.
fn answer(peer: &Peer) -> Option<Reply> {
    let mut room = vec![0; MAX_MESSAGE];
    let received = fdpass::receive(peer.socket.as_fd(), &mut room, Wait::Never).ok()?;
    shim_abi::decode(&room[..received.bytes]).ok()
}

/// One turn of the server.
fn step(bench: &mut Bench) {
    assert!(bench.server.step(Some(Duration::ZERO)).unwrap());
}

/// A client with as many QPs and regions as it may have, and a place on card 0.
fn wealthy(bench: &mut Bench, memory: &[u8]) -> (Peer, Vec<OwnedFd>) {
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, None);
    for _ in 0..50 {
        bench.qp(&peer, pdn, cqn);
        bench.mr(&peer, pdn, memory);
    }
    (peer, fds)
}

#[test]
fn others_are_served_while_a_client_with_much_ends() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    let at_rest = bench.cards[0].mapped();
    let other = bench.provider();
    let (context, fds) = bench.open(&other, 0);
    let context = context.context;
    let (peer, their_fds) = wealthy(&mut bench, &memory);
    drop((peer, their_fds));
    let (mut turns, mut before) = (0, commands(&bench));
    while bench.server.clients.len() > 1 {
        send(&other, &Request::AllocPd { context });
        step(&mut bench);
        assert!(matches!(answer(&other), Some(Ok(Response::Pd { .. }))), "in turn {turns}");
        let now = commands(&bench);
        assert!(now - before <= TURN, "{} commands in turn {turns}", now - before);
        (turns, before) = (turns + 1, now);
    }
    assert!(turns > 3, "{turns} turns show little");
    drop((other, fds));
    bench.turn();
    assert_eq!(bench.cards[0].mapped(), at_rest);
    bench.cards[0].window(0, |window| assert!(window.live.is_empty(), "{:?}", window.live));
    assert_eq!(leaked(&bench.server.cards[0]), Default::default());
}

#[test]
fn what_a_client_that_ends_still_has_is_waited_for_and_nobody_elses() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    bench.relays_nobody();
    let mut others: Vec<_> = (0..13)
        .map(|_| {
            let peer = bench.provider();
            let (_, fds) = bench.open(&peer, 0);
            (peer, fds)
        })
        .collect();
    let wealthy = wealthy(&mut bench, &memory);
    let late = bench.provider();
    let refusal = bench.refused(&late, Request::OpenContext { card: 0 });
    assert!(refusal.reason.contains("all 14 places"), "{refusal:?}");
    drop(wealthy);
    send(&late, &Request::OpenContext { card: 0 });
    step(&mut bench);
    assert_eq!(answer(&late), None, "the page is not free yet");
    let first = loop {
        step(&mut bench);
        if let Some(reply) = answer(&late) {
            break reply;
        }
    };
    assert!(matches!(first, Ok(Response::Context(_))), "{first:?}");
    // balboad serves it again, and if no client is ending it reports a shortage at once.
    bench.refused(&late, Request::DestroyQp { qpn: 1 });
    let later = bench.provider();
    let refusal = bench.refused(&later, Request::OpenContext { card: 0 });
    assert_eq!(refusal.errno, Errno::EAGAIN as i32);
    others.clear();
}

#[test]
fn who_waits_for_a_client_that_ends_may_go_meanwhile() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    bench.relays_nobody();
    let others: Vec<_> = (0..13)
        .map(|_| {
            let peer = bench.provider();
            let (_, fds) = bench.open(&peer, 0);
            (peer, fds)
        })
        .collect();
    let wealthy = wealthy(&mut bench, &memory);
    let late = bench.provider();
    drop(wealthy);
    send(&late, &Request::OpenContext { card: 0 });
    step(&mut bench);
    drop(late);
    drop(others);
    bench.turn();
    assert!(bench.server.clients.is_empty());
    assert_eq!(bench.cards[0].granted(), 0);
}

#[test]
fn a_large_region_ends_in_turns_whether_its_client_waits_or_dies() {
    // Nobody touches it, so it costs nothing.
    let memory = vec![0u8; 256 << 20];
    for dies in [false, true] {
        let mut bench = Bench::new(1, 1);
        let at_rest = bench.cards[0].mapped();
        let other = bench.provider();
        let (context, fds) = bench.open(&other, 0);
        let context = context.context;
        let peer = bench.provider();
        let (theirs, their_fds) = bench.open(&peer, 0);
        let pdn = bench.pd(&peer, theirs.context);
        let (mr, _) = bench.mr(&peer, pdn, &memory);
        entries(&bench);
        send(&peer, &Request::DeregMr { mr });
        send(&other, &Request::AllocPd { context });
        let mut removed = 0;
        let mut peer = Some((peer, their_fds));
        for turn in 0.. {
            step(&mut bench);
            let row = entries(&bench);
            assert!(row <= TURN, "{row} pages in turn {turn}");
            removed += row;
            if turn == 0 {
                assert!(matches!(answer(&other), Some(Ok(Response::Pd { .. }))));
                peer.take_if(|_| dies);
            }
            let answered = peer.as_ref().and_then(|(peer, _)| answer(peer));
            if answered.is_some() || bench.server.clients.len() == 1 {
                assert_eq!(answered, (!dies).then_some(Ok(Response::Done)));
                assert!(turn > 0, "all of it in one turn");
                break;
            }
        }
        assert_eq!(removed, 64, "all that was inserted");
        if let Some((peer, _)) = &peer {
            bench.ask(peer, Request::DeallocPd { pdn });
        }
        drop((peer, other, fds));
        bench.turn();
        assert_eq!(bench.cards[0].mapped(), at_rest, "dies: {dies}");
        assert_eq!(leaked(&bench.server.cards[0]), Default::default());
    }
}

#[test]
fn a_large_ring_is_freed_in_turns_and_waited_for() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let context = context.context;
    let cq = |log2_entries| create_cq(context, log2_entries);
    let largest: Vec<u32> = (0..3)
        .map(|_| match bench.ask(&peer, cq(22)).0 {
            Response::Cq { cqn, .. } => cqn,
            other => panic!("{other:?}"),
        })
        .collect();
    send(&peer, &Request::DestroyCq { cqn: largest[1] });
    step(&mut bench);
    assert!(answer(&peer).is_some(), "that waits for nothing");
    assert!(bench.server.has_work());
    // There is no room for it but where that one was.
    send(&peer, &cq(22));
    step(&mut bench);
    assert_eq!(answer(&peer), None);
    let made = loop {
        step(&mut bench);
        if let Some(reply) = answer(&peer) {
            break reply;
        }
    };
    assert!(matches!(made, Ok(Response::Cq { .. })), "{made:?}");
    let pdn = bench.pd(&peer, context);
    bench.refused(&peer, Request::CreateQp(wanted_qp(pdn, u32::MAX)));
}

#[test]
fn what_a_client_has_mapped_itself_is_unmapped_in_turns() {
    const PIECE: u64 = 16 << 20;
    let memory = vec![0u8; 100 << 20];
    let mut bench = Bench::new(1, 1);
    bench.cards[0].set_piece(PIECE);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (mr, _) = bench.mr(&peer, pdn, &memory);
    bench.cards[0].take_unmapped();
    send(&peer, &Request::DeregMr { mr });
    let mut pieces = Vec::new();
    let done = loop {
        step(&mut bench);
        let unmapped = bench.cards[0].take_unmapped();
        assert!(unmapped.iter().map(|(_, length)| length).sum::<u64>() <= 2 * PIECE);
        pieces.extend(unmapped);
        if let Some(done) = answer(&peer) {
            break done;
        }
    };
    assert_eq!(done, Ok(Response::Done));
    assert!(pieces.iter().skip(1).all(|(start, _)| start % PIECE == 0), "{pieces:x?}");
    assert!(pieces.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "{pieces:x?}");
    let whole = pieces.iter().map(|(_, length)| length).sum::<u64>();
    assert!(whole >= memory.len() as u64 && pieces.len() >= 7, "{pieces:x?}");
}

#[test]
fn dead_connections_of_others_to_a_far_end_are_asked_for_in_turns() {
    const CLAIMS: usize = 40;
    let mut bench = Bench::new(1, 2);
    let peers = [0, 1].map(|_| bench.provider());
    let [theirs, ours] = peers.each_ref().map(|peer| {
        let (info, fds) = bench.open(peer, 0);
        let pdn = bench.pd(peer, info.context);
        let (cqn, _) = bench.cq(peer, info.context, None);
        (pdn, cqn, fds)
    });
    let [squatter, victim] = peers;
    let failing = [(); CLAIMS].map(|()| {
        let qpn = bench.qp(&squatter, theirs.0, theirs.1);
        connect_qp(&mut bench, &squatter, qpn, 77).unwrap();
        qpn
    });
    // The engine has failed them all, and balboad was not told.
    let (first, second) = {
        let mut ids = bench.server.clients.keys();
        (*ids.next().unwrap(), *ids.next().unwrap())
    };
    let window = bench.server.clients[&first].owned.places[&0].window;
    failing.into_iter().for_each(|qpn| bench.fail(window, qpn));
    bench.server.clients.get_mut(&second).unwrap().process.pid += 1;
    let qpn = bench.qp(&victim, ours.0, ours.1);
    let asked = |bench: &Bench| asked(bench, window);
    use AttributeMask as M;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let rtr = rtr | M::STATE | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let init = M::STATE | M::PORT | M::ACCESS | M::PKEY_INDEX;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr)] {
        let (dest_qpn, dgid) = (77, [9; 16]);
        let wanted = Attributes { mask, state, dest_qpn, dgid, ..sound() };
        send(&victim, &Request::ModifyQp { qpn, first: None, attributes: wanted.encode() });
        let reply = loop {
            let before = asked(&bench);
            step(&mut bench);
            assert!(asked(&bench) - before <= 16, "{} in one turn", asked(&bench) - before);
            if let Some(reply) = answer(&victim) {
                break reply;
            }
        };
        assert!(matches!(reply, Ok(Response::QpModified { .. })), "{reply:?}");
    }
    assert_eq!(asked(&bench), CLAIMS, "each once");
}

#[test]
fn queues_of_which_events_were_lost_are_looked_at_in_turns() {
    const QPS: usize = 50;
    let mut bench = Bench::new(1, 1);
    let other = bench.provider();
    let (_, _other_fds) = bench.open(&other, 0);
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let (channel, channel_fds) = bench.channel(&peer, context.context);
    let (cqn, _) = bench.cq(&peer, context.context, Some(channel));
    let qpns: Vec<u32> = (0..QPS).map(|_| bench.qp(&peer, pdn, cqn)).collect();
    bench.fail(0, qpns[7]);
    let asked = |bench: &Bench| asked(bench, 0);
    let events = |fd: &OwnedFd| bench::records(fd).len();
    // More than its ring holds, of a queue without an owner.
    let event = Event { kind: EventType::Completion, number: u32::MAX, ..Event::default() };
    (0..5000).for_each(|_| bench.cards[0].raise(0, event));
    bench.server.cards[0].device.shell.attend().unwrap();
    let (mut turns, mut told) = (0, 0);
    while turns < 3 || bench.server.has_work() {
        let before = asked(&bench);
        step(&mut bench);
        assert!(asked(&bench) - before <= 8, "{} in turn {turns}", asked(&bench) - before);
        (turns, told) = (turns + 1, told + events(&fds[0]));
    }
    assert_eq!((asked(&bench), told, events(&channel_fds[0])), (QPS, 1, 1));
}

#[test]
fn queues_of_another_vector_than_that_whose_events_were_lost_are_left_alone() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let vectors = context.limits.comp_vectors;
    assert_eq!(vectors, 4);
    let mut queue = |vector| {
        let (channel, fds) = bench.channel(&peer, context.context);
        let (cqn, _) = bench.cq_of_vector(&peer, context.context, Some(channel), vector);
        (cqn, fds)
    };
    let queues: Vec<(u32, Vec<OwnedFd>)> = (0..vectors).map(&mut queue).collect();
    let qpn = bench.qp(&peer, pdn, queues[0].0);
    bench.fail(0, qpn);
    let told = |queues: &[(u32, Vec<OwnedFd>)]| -> Vec<usize> {
        queues.iter().map(|(_, fds)| bench::records(&fds[0]).len()).collect()
    };
    let event = |number| Event { kind: EventType::Completion, number, ..Event::default() };
    let flood = |bench: &mut Bench, vector| {
        (0..5000).for_each(|_| bench.cards[0].raise_in(0, vector, event(u32::MAX)));
        bench.server.cards[0].device.shell.attend().unwrap();
        step(bench);
        while bench.server.has_work() {
            step(bench);
        }
    };
    flood(&mut bench, 2);
    flood(&mut bench, 3);
    assert_eq!((told(&queues), asked(&bench, 0)), (vec![0, 0, 1, 1], 0));
    bench.cards[0].raise_in(0, 1, event(queues[1].0));
    bench.server.cards[0].device.shell.attend().unwrap();
    assert_eq!(told(&queues), [0, 1, 0, 0]);
    // Events of queue pairs are in the first ring.
    flood(&mut bench, 0);
    assert_eq!((told(&queues), asked(&bench, 0)), (vec![1, 0, 0, 0], 1));
    assert_eq!(bench::records(&fds[0]).len(), 1);
}

#[test]
fn of_queues_whose_events_are_lost_again_and_again_each_is_looked_at() {
    // More than are in one turn, of queue pairs by far.
    const CLIENTS: usize = 12;
    const EACH: usize = 50;
    const QPS: usize = 50;
    let mut bench = Bench::new(1, 1);
    bench.relays_nobody();
    let clients = [(); CLIENTS].map(|()| {
        let peer = bench.provider();
        let (context, fds) = bench.open(&peer, 0);
        let (channel, channel_fds) = bench.channel(&peer, context.context);
        let cqns: Vec<u32> =
            (0..EACH).map(|_| bench.cq(&peer, context.context, Some(channel)).0).collect();
        (peer, context.context, cqns, fds, channel_fds)
    });
    let (peer, context, cqns, fds, _) = &clients[0];
    let pdn = bench.pd(peer, *context);
    for _ in 0..QPS {
        let qpn = bench.qp(peer, pdn, cqns[0]);
        bench.fail(0, qpn);
    }
    let event = Event { kind: EventType::Completion, number: u32::MAX, ..Event::default() };
    let (mut fired, mut failed) = (0, 0);
    // Notes of a turn are looked at from the next one on.
    for _ in 0..=QPS.div_ceil(8) {
        (0..5000).for_each(|_| bench.cards[0].raise(0, event));
        bench.server.cards[0].device.shell.attend().unwrap();
        step(&mut bench);
        assert!(bench.server.has_work());
        fired += clients.iter().map(|(.., fds)| bench::records(&fds[0]).len()).sum::<usize>();
        failed += bench::records(&fds[0]).len();
    }
    assert_eq!((fired, failed), (CLIENTS * EACH, QPS));
}

/// Connections of tools, all of this process.
fn tools(bench: &mut Bench, count: usize) -> Vec<Peer> {
    (0..count).map(|_| bench.tool()).collect()
}

/// Steps until all of them have been answered; how many QPs the engine was asked for.
fn await_status(bench: &mut Bench, tools: &[Peer]) -> usize {
    let begin = asked(bench, 0);
    let mut lengths = Vec::new();
    while lengths.len() < tools.len() {
        let before = asked(bench, 0);
        step(bench);
        let now = asked(bench, 0) - before;
        assert!(now <= 8, "{now} in one turn");
        for tool in tools {
            if let Some(Ok(Response::Status { length })) = answer(tool) {
                lengths.push(length);
            }
        }
    }
    assert!(lengths.iter().all(|length| *length > 50 * 100), "50 QPs in {lengths:?} bytes");
    asked(bench, 0) - begin
}

#[test]
fn one_survey_in_turns_answers_all_who_asked_before_it_began() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    let _wealthy = wealthy(&mut bench, &memory);
    let mut alone = tools(&mut bench, 1);
    send(&alone[0], &Request::Status);
    let once = await_status(&mut bench, &alone);
    assert!(once >= 50, "{once}");
    let mut first = tools(&mut bench, 6);
    first.iter().for_each(|tool| send(tool, &Request::Status));
    step(&mut bench);
    // The next survey answers a question of now, and the client that began this one may go.
    drop(first.remove(0));
    alone.extend(tools(&mut bench, 5));
    alone.iter().for_each(|tool| send(tool, &Request::Status));
    let begin = asked(&bench, 0);
    await_status(&mut bench, &first);
    assert!(alone.iter().all(|tool| answer(tool).is_none()));
    await_status(&mut bench, &alone);
    assert!(asked(&bench, 0) - begin <= 2 * once, "two surveys for eleven questions");
    // Of one whose askers have all gone nothing is left.
    alone.iter().for_each(|tool| send(tool, &Request::Status));
    step(&mut bench);
    drop((first, alone));
    bench.turn();
    assert!(!bench.server.surveys.is_asked());
    let last = tools(&mut bench, 1);
    send(&last[0], &Request::Status);
    await_status(&mut bench, &last);
}

#[test]
fn a_process_that_asks_for_the_status_without_end_is_refused_and_others_are_answered() {
    let memory = vec![0u8; 4096];
    let mut bench = Bench::new(1, 1);
    let _wealthy = wealthy(&mut bench, &memory);
    let eager = tools(&mut bench, 200);
    let patient = tools(&mut bench, 1);
    // All are of this process: let the patient one be of another.
    let (_, other) = bench.server.clients.iter_mut().next_back().unwrap();
    other.process.pid = 1;
    eager.iter().for_each(|tool| send(tool, &Request::Status));
    // Until all were heard, of which 64 are at a time.
    (0..8).for_each(|_| step(&mut bench));
    send(&patient[0], &Request::Status);
    let (mut refused, mut served, mut rounds) = (0, false, 0);
    while !served {
        rounds += 1;
        assert!(rounds < 100, "not answered in {rounds} rounds");
        step(&mut bench);
        for tool in &eager {
            match answer(tool) {
                Some(Err(refusal)) => {
                    assert_eq!(refusal.errno, Errno::EAGAIN as i32);
                    assert!(refusal.reason.contains("16 connections"), "{}", refusal.reason);
                    refused += 1;
                }
                None => continue,
                Some(Ok(_)) => {}
            }
            send(tool, &Request::Status);
        }
        served = matches!(answer(&patient[0]), Some(Ok(Response::Status { .. })));
    }
    assert!(refused >= 184, "{refused}");
}

#[test]
fn addresses_that_rest_are_woken_in_turns() {
    const RANGES: u64 = 3000;
    // Behind the addresses in use already.
    const START: u64 = 1 << 40;
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let pdn = bench.pd(&peer, context.context);
    let mut arena = Arena::new(&[(START, START + RANGES * 8192 - 1)]);
    let now = Instant::now();
    let ranges: Vec<_> = (0..RANGES).map(|_| arena.allocate(4096, 0, now).unwrap()).collect();
    ranges.into_iter().for_each(|range| arena.release(range, now));
    bench.server.cards[0].device.arena = arena;
    let (address, length) = (1 << 30, 20 << 20);
    send(&peer, &Request::ReserveMr { pdn, address, length, hca_va: address, access: 1 });
    step(&mut bench);
    assert_eq!(answer(&peer), None, "others are served before all are woken");
    bench.turn();
    assert!(matches!(answer(&peer), Some(Ok(Response::Reserved { .. }))));
}
