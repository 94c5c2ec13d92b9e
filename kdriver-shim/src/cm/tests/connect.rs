//! Connections from their beginning to their end, between programs on two cards.

use nix::sys::epoll::EpollFlags;

use super::*;
use crate::poller::Token;

/// The bits of a change: STATE, AV, PATH_MTU, RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN.
const TO_RTR: u32 = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
/// STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC, SQ_PSN.
const TO_RTS: u32 = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

#[test]
fn a_connection_begins_is_there_and_ends() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.listener(&mut bob, 0x11, 7174);
    let id = bench.id(&mut alice, 0xa);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    let before = bench.qp_attr(&mut alice, id, 1).unwrap();
    // STATE, ACCESS_FLAGS, PKEY_INDEX, PORT; no rights yet.
    assert_eq!((word(&before, 0), word(&before, 4), word(&before, 36)), (1 | 0x38, 1, 0));
    assert_eq!(before[133], 1);
    bench.connect(&mut alice, id, 17, b"ask").unwrap();
    bench.carry();

    let request = bench.event(&mut bob);
    assert_eq!((request.number, request.uid, request.status), (event::CONNECT_REQUEST, 0x11, 0));
    assert_eq!((request.qpn(), &request.words()[..4]), (17, &b"ask\0"[..]));
    assert_eq!(request.words().len(), 56);
    // READs that the peer wants served, and serves; retries.
    assert_eq!(request.bytes[286..291], [4, 3, 0, 5, 6]);
    let ours = request.id;
    assert_ne!(ours, listener);
    bench.accept(&mut bob, ours, 0xb0b, 18, b"yes").unwrap();
    let [rtr, rts] = [2, 3].map(|state| bench.qp_attr(&mut bob, ours, state).unwrap());
    bench.carry();

    let response = bench.event(&mut alice);
    assert_eq!((response.number, response.uid, response.id), (event::CONNECT_RESPONSE, 0xa, id));
    assert_eq!((response.qpn(), &response.words()[..4]), (18, &b"yes\0"[..]));
    let [init, to_rtr, to_rts] =
        [1, 2, 3].map(|state| bench.qp_attr(&mut alice, id, state).unwrap());
    // WRITE, and READ and atomics, for it serves 3.
    assert_eq!((word(&init, 0), word(&init, 36)), (1 | 0x38, 0b1110));
    assert_eq!((word(&to_rtr, 0), word(&rtr, 0)), (TO_RTR, TO_RTR));
    assert_eq!((word(&to_rts, 0), word(&rts, 0)), (TO_RTS, TO_RTS));
    // The peer's queue pair, and the PSN that it begins with.
    assert_eq!((word(&to_rtr, 32), word(&rtr, 32)), (18, 17));
    assert_eq!(word(&to_rtr, 24), word(&rts, 28));
    assert_eq!(word(&rtr, 24), word(&to_rts, 28));
    // MTU of 4096; the address handle: GID, index, hop limit, global, port 1.
    assert_eq!(word(&to_rtr, 12), 5);
    assert_eq!(to_rtr[50..56], [0xff, 0xff, 10, 77, 0, 2]);
    assert_eq!((to_rtr[60], to_rtr[61]), (1, 64));
    assert_eq!(to_rtr[69..71], [1, 1]);
    // READs: those that Bob may have under way, and those that he serves.
    assert_eq!((to_rtr[131], to_rts[130]), (4, 3));
    assert_eq!((to_rts[135], to_rts[136]), (5, 6));
    bench.ready(&mut alice, id).unwrap();
    bench.carry();

    let there = bench.event(&mut bob);
    assert_eq!((there.number, there.uid, there.id), (event::ESTABLISHED, 0xb0b, ours));
    bench.no_event(&mut alice);

    bench.disconnect(&mut alice, id).unwrap();
    bench.carry();
    assert_eq!(bench.event(&mut bob).number, event::DISCONNECTED);
    bench.disconnect(&mut bob, ours).unwrap();
    bench.carry();
    let over = bench.event(&mut alice);
    assert_eq!((over.number, over.status), (event::DISCONNECTED, 0));
    bench.pass(4);
    assert_eq!(bench.event(&mut alice).number, event::TIMEWAIT_EXIT);
    assert_eq!(bench.event(&mut bob).number, event::TIMEWAIT_EXIT);

    // Each counted its own events; the request was the listener's.
    assert_eq!(bench.destroy(&mut alice, id), 5);
    assert_eq!(bench.destroy(&mut bob, ours), 3);
    assert_eq!(bench.destroy(&mut bob, listener), 1);
    bench.pass(20);
    let left = bench.server.census();
    assert_eq!(left, Census { channels: 2, ..Census::default() });
    assert_eq!(bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents), 0);
}

#[test]
fn what_is_asked_of_a_route_is_answered_as_the_kernel_does() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id(&mut alice, 0xa);
    assert_eq!(bench.query_route(&mut alice, id)[..200], [0; 200]);
    bench.resolve(&mut alice, id, None, "10.77.0.9:7174").unwrap();
    let resolved = bench.query_route(&mut alice, id);
    // The GUID, as bytes; the GIDs; the addresses; no path yet; port 1; no index of a device.
    assert_eq!(resolved[..8], [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
    assert_eq!(resolved[18..24], [0xff, 0xff, 10, 77, 0, 9]);
    assert_eq!(resolved[34..40], [0xff, 0xff, 10, 77, 0, 1]);
    assert_eq!(resolved[136..138], 2u16.to_ne_bytes());
    assert_eq!(resolved[140..144], [10, 77, 0, 1]);
    assert_eq!(resolved[164..172], sockaddr("10.77.0.9:7174")[..8]);
    assert_eq!((word(&resolved, 192), resolved[196]), (0, 1));
    assert_eq!(resolved[200..204], [0xff; 4]);
    bench.set_option(&mut alice, id, (option::LEVEL_ID, option::ID_TOS), &[0x68]).unwrap();
    bench.set_option(&mut alice, id, (option::LEVEL_ID, option::ID_ACK_TIMEOUT), &[14]).unwrap();
    bench.route(&mut alice, id).unwrap();
    let routed = bench.query_route(&mut alice, id);
    assert_eq!(word(&routed, 192), 1);
    let path = &routed[8..72];
    assert_eq!(path[52..54], [0xff, 0xff]);
    assert_eq!((word(path, 44), word(path, 48)), (1, 5));
    // Hop limit, traffic class, reversible, level, MTU exactly, rate exactly, lifetime exactly.
    assert_eq!(path[54..63], [64, 0x68, 1, 0, 2, 2, 16, 2, 13]);
    // An older program asks for less.
    let asked = body(16, &[(8, &id.to_ne_bytes())]);
    let short = bench.say(&mut alice, &raw(number::QUERY_ROUTE, &asked, 200)).unwrap();
    assert_eq!(short, routed[..200]);

    let ask = |bench: &mut Bench, alice: &mut Program, what: u32, out: u16| {
        let asked = body(16, &[(8, &id.to_ne_bytes()), (12, &what.to_ne_bytes())]);
        bench.say(alice, &raw(number::QUERY, &asked, out))
    };
    let address = ask(&mut bench, &mut alice, query::ADDR, 280).unwrap();
    assert_eq!(address[8..16], [1, 0, 0xff, 0xff, 16, 0, 16, 0]);
    assert_eq!(address[144..152], sockaddr("10.77.0.9:7174")[..8]);
    let gids = ask(&mut bench, &mut alice, query::GID, 280).unwrap();
    assert_eq!(gids[16..18], 27u16.to_ne_bytes());
    assert_eq!(gids[34..40], [0xff, 0xff, 10, 77, 0, 1]);
    assert_eq!(gids[168..176], [0, 0, 0, 0, 1, 6, 0x1c, 6]);
    let paths = ask(&mut bench, &mut alice, query::PATH, 80).unwrap();
    assert_eq!((paths.len(), word(&paths, 0), word(&paths, 8)), (80, 1, 0x2b));
    assert_eq!(ask(&mut bench, &mut alice, query::PATH, 79).unwrap().len(), 8);
    assert_eq!(errno(&ask(&mut bench, &mut alice, 3, 280).unwrap_err()), Errno::ENOSYS);
    assert_eq!(errno(&ask(&mut bench, &mut alice, 0, 271).unwrap_err()), Errno::ENOSPC);
}

#[test]
fn a_program_chooses_the_acknowledgement_timeout_of_its_side() {
    let (mut bench, mut alice, mut bob, [asker, asked]) = Bench::pair();
    let mut told = |chosen: Option<u8>| {
        let option = (option::LEVEL_ID, option::ID_ACK_TIMEOUT);
        if let Some(code) = chosen {
            bench.set_option(&mut bob, asked, option, &[code]).unwrap();
        }
        let [alices, bobs] = [(&mut alice, asker), (&mut bob, asked)]
            .map(|(program, id)| bench.qp_attr(program, id, 3).unwrap()[134]);
        (alices, bobs)
    };
    // Of the path, there and back, and of the peer.
    assert_eq!(told(None), (18, 18));
    assert_eq!(told(Some(21)), (18, 21));
    assert_eq!(told(Some(9)), (18, 9));
}

#[test]
fn a_refusal_is_told_with_its_reason_and_words() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.listener(&mut bob, 0x11, 7174);
    bench.ask(&mut alice, 0xa, "10.77.0.2:7174", 17);
    let request = bench.event(&mut bob);
    let refuse = |reason: u8, words: &[u8]| {
        let length = u8::try_from(words.len()).unwrap();
        let fields: [(usize, &[u8]); 3] =
            [(0, &request.id.to_ne_bytes()), (4, &[length, reason]), (8, words)];
        raw(number::REJECT, &body(264, &fields), 0)
    };
    assert_eq!(errno(&bench.say(&mut bob, &refuse(7, b"no")).unwrap_err()), Errno::EINVAL);
    assert_eq!(errno(&bench.say(&mut bob, &refuse(0, &[1; 149])).unwrap_err()), Errno::EINVAL);
    bench.say(&mut bob, &refuse(0, b"no")).unwrap();
    bench.carry();
    let refused = bench.event(&mut alice);
    assert_eq!((refused.number, refused.status), (event::REJECTED, 28));
    assert_eq!((refused.words().len(), &refused.words()[..3]), (148, &b"no\0"[..]));

    // Nobody listens there.
    bench.ask(&mut alice, 0xc, "10.77.0.2:7175", 17);
    let refused = bench.event(&mut alice);
    assert_eq!((refused.number, refused.uid, refused.status), (event::REJECTED, 0xc, 8));
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.listener(&mut bob, 0x11, 7174);
    bench.wire.cut = true;
    let id = bench.id(&mut alice, 0xa);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    bench.connect(&mut alice, id, 17, &[]).unwrap();
    bench.pass(40);
    let silent = bench.event(&mut alice);
    assert_eq!(silent.number, event::UNREACHABLE);
    assert_eq!(silent.status, (Errno::ETIMEDOUT as i32).wrapping_neg() as u32);
    bench.no_event(&mut bob);
}

#[test]
fn a_client_that_dies_ends_its_connections_and_listeners() {
    let (mut bench, mut alice, bob, [ours, _]) = Bench::pair();
    // A request that no program took up, too.
    let other = bench.ask(&mut alice, 0xc, "10.77.0.2:7174", 19);
    bench.end(&bob);
    let told: Vec<_> = [(); 2].map(|()| bench.event(&mut alice)).into();
    let of = |id| told.iter().find(|seen| seen.id == id).unwrap();
    assert_eq!(of(ours).number, event::DISCONNECTED);
    assert_eq!((of(other).number, of(other).status), (event::REJECTED, 28));
    // The socket of a forked child says that it is over.
    assert_eq!(bob.look(MsgFlags::empty()).unwrap().ahead, None);
    assert_eq!(receive(bob.socket.as_fd(), &mut [0; 2], Wait::Never).unwrap().bytes, 0);
    let census = bench.server.census();
    assert_eq!((census.channels, census.listeners, census.identifiers), (1, 0, 2));
    assert!(bench.server.usage(BOB.client).is_none());
    // His port is free again.
    let mut carol = bench.program(CAROL);
    bench.listener(&mut carol, 0x12, 7174);
}

#[test]
fn a_channel_ends_when_all_its_descriptors_are_closed() {
    let (mut bench, mut alice, bob, _) = Bench::pair();
    let reader = bob.reader();
    drop(bob);
    let gone = bench.poller.wait(Some(0)).unwrap();
    let found = gone.iter().filter_map(|(number, flags)| {
        assert!(flags.contains(EpollFlags::EPOLLHUP));
        bench.poller.token(*number)
    });
    let found: Vec<_> = found.collect();
    let [Token::CmChannel(key)] = found[..] else { panic!("{found:?}") };
    bench.server.hang_up(key);
    bench.go_on_ending();
    bench.carry();
    assert_eq!(bench.event(&mut alice).number, event::DISCONNECTED);
    let asked = raw(number::GET_EVENT, &[0; 8], 336);
    let Bench { server, wire, has_qp, .. } = &mut bench;
    let ended = server.command(wire, has_qp, BOB, reader, &asked, None);
    assert_eq!(errno(&ended.unwrap_err()), Errno::EBADF);
}

#[test]
fn the_lost_word_that_the_peer_is_ready_is_made_up_for() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.listener(&mut bob, 0x11, 7174);
    let id = bench.ask(&mut alice, 0xa, "10.77.0.2:7174", 17);
    let ours = bench.event(&mut bob).id;
    bench.accept(&mut bob, ours, 0xb0b, 18, &[]).unwrap();
    bench.carry();
    bench.wire.cut = true;
    bench.ready(&mut alice, id).unwrap();
    let notify = |event: u32| {
        raw(number::NOTIFY, &body(8, &[(0, &ours.to_ne_bytes()), (4, &event.to_ne_bytes())]), 0)
    };
    assert_eq!(errno(&bench.say(&mut bob, &notify(3)).unwrap_err()), Errno::EINVAL);
    bench.say(&mut bob, &notify(4)).unwrap();
    assert_eq!(bench.event(&mut bob).number, event::ESTABLISHED);
    assert_eq!(errno(&bench.say(&mut bob, &notify(4)).unwrap_err()), Errno::EISCONN);
}

#[test]
fn a_listener_is_asked_by_as_many_as_wait_for_it() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.id(&mut bob, 0x11);
    bench.bind(&mut bob, listener, "10.77.0.2:7174").unwrap();
    bench.listen(&mut bob, listener, 2).unwrap();
    let ask = |bench: &mut Bench, alice: &mut Program, qpn| {
        bench.ask(alice, 0xa, "10.77.0.2:7174", qpn);
    };
    (20..24).for_each(|qpn| ask(&mut bench, &mut alice, qpn));
    // Two wait; a request that was read does not wait any more, decided or not.
    let first = bench.event(&mut bob);
    assert_eq!((bench.event(&mut bob).qpn(), first.qpn()), (21, 20));
    bench.no_event(&mut bob);
    let counted = |bench: &Bench| {
        let counters = bench.server.counters();
        (counters.received[0], counters.drop_backlog)
    };
    assert_eq!(counted(&bench), (4, 2));
    ask(&mut bench, &mut alice, 24);
    assert_eq!(bench.event(&mut bob).qpn(), 24);
    assert_eq!(counted(&bench), (5, 2), "it found a full backlog first");
    // With the listener go the requests that no program took up; the others stay.
    ask(&mut bench, &mut alice, 25);
    assert_eq!(bench.server.census().identifiers, 6 + 1 + 4);
    bench.destroy(&mut bob, listener);
    assert_eq!(bench.server.census().identifiers, 6 + 3);
    bench.no_event(&mut bob);
    bench.accept(&mut bob, first.id, 0xb0b, 18, &[]).unwrap();
    bench.carry();
}

#[test]
fn an_identifier_moves_to_another_channel_with_what_was_not_read() {
    let mut bench = Bench::new();
    let (mut old, mut new) = (bench.program(ALICE), bench.program(ALICE));
    let mut bob = bench.program(BOB);
    let id = bench.id(&mut old, 0xa);
    bench.resolve(&mut old, id, None, "10.77.0.2:7174").unwrap();
    assert_eq!(bench.event(&mut old).number, event::ADDR_RESOLVED);
    bench.route(&mut old, id).unwrap();
    let migrate = raw(number::MIGRATE_ID, &body(16, &[(8, &id.to_ne_bytes())]), 4);
    let nowhere = bench.say(&mut new, &migrate).unwrap_err();
    assert_eq!(errno(&nowhere), Errno::ENOENT);
    let stranger = bench.say_from(&mut bob, &migrate, &mut old).unwrap_err();
    assert_eq!(errno(&stranger), Errno::EINVAL);
    let moved = bench.say_from(&mut new, &migrate, &mut old).unwrap();
    assert_eq!((word(&moved, 0), old.void.len(), new.void.len()), (1, 1, 0));
    bench.no_event(&mut old);
    let moved = bench.event(&mut new);
    assert_eq!((moved.number, moved.id), (event::ROUTE_RESOLVED, id));
    assert_eq!(errno(&bench.route(&mut old, id).unwrap_err()), Errno::EINVAL);
    assert_eq!(bench.destroy(&mut new, id), 2);
}

#[test]
fn a_cards_own_address_is_reached_through_the_card() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.listener(&mut bob, 0x11, 7174);
    let id = bench.id(&mut alice, 0xa);
    bench.resolve(&mut alice, id, None, "10.77.0.2:7174").unwrap();
    assert_eq!(bench.query_route(&mut alice, id)[140..144], [10, 77, 0, 2]);
    assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
    bench.route(&mut alice, id).unwrap();
    bench.event(&mut alice);
    bench.connect(&mut alice, id, 17, &[]).unwrap();
    bench.carry();
    assert_eq!(bench.event(&mut bob).qpn(), 17);
}

#[test]
fn a_card_that_goes_is_told_of() {
    let (mut bench, mut alice, mut bob, [ours, _]) = Bench::pair();
    bench.lose(0);
    bench.lose(0);
    let told = bench.event(&mut alice);
    assert_eq!((told.number, told.id), (event::DEVICE_REMOVAL, ours));
    assert_eq!(errno(&bench.disconnect(&mut alice, ours).unwrap_err()), Errno::EIO);
    assert_eq!(bench.destroy(&mut alice, ours), 4);
    bench.carry();
    assert_eq!(bench.event(&mut bob).number, event::DISCONNECTED);
}

#[test]
fn a_card_that_many_had_is_told_of_some_at_a_time() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    // Those of the other card, between them, are left alone.
    for uid in 1..=1000 {
        let id = bench.id(&mut alice, uid);
        bench
            .bind(&mut alice, id, if uid % 2 == 0 { "10.77.0.1:0" } else { "10.77.0.2:0" })
            .unwrap();
    }
    bench.server.lose_card(0);
    // Meanwhile others are served, and their objects of that card go, too.
    bench.server.go_on_ending(&mut bench.wire);
    let [late, other] = [10, 11].map(|uid| bench.id(&mut bob, uid));
    bench.bind(&mut bob, late, "10.77.0.1:0").unwrap();
    bench.bind(&mut bob, other, "10.77.0.2:0").unwrap();
    let told = |bench: &mut Bench, program: &mut Program| {
        let mut count = 0;
        loop {
            let before = count;
            for told in std::iter::from_fn(|| bench.try_event(program).ok()) {
                assert_eq!((told.number, told.uid % 2), (event::DEVICE_REMOVAL, 0));
                count += 1;
            }
            if count == before {
                return count;
            }
            bench.turn();
        }
    };
    assert_eq!(told(&mut bench, &mut alice), ENDED_PER_TURN);
    assert!(bench.server.is_losing(0));
    let turns = bench.go_on_ending();
    assert!((2..=1000 / 2 / ENDED_PER_TURN + 1).contains(&turns), "{turns} turns");
    assert_eq!(told(&mut bench, &mut alice), 500 - ENDED_PER_TURN);
    assert_eq!(told(&mut bench, &mut bob), 1);
    // Once more there is no program to tell.
    bench.lose(0);
    bench.no_event(&mut alice);
}

#[test]
fn requests_that_nobody_read_leave_their_listener_s_count_alone() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.listener(&mut bob, 0x11, 7174);
    let ours = bench.connected(&mut alice, &mut bob, 7174)[1];
    bench.ask(&mut alice, 0xa2, "10.77.0.2:7174", 19);
    // The first request was read, the second was not.
    assert_eq!(bench.destroy(&mut bob, listener), 1);
    assert_eq!(bench.destroy(&mut bob, ours), 1);
    bench.no_event(&mut bob);
    assert_eq!(bench.server.usage(BOB.client).unwrap().of(Resource::CmIds), 0);
}

#[test]
fn who_ends_an_identifier_is_told_once_of_events_that_were_not_read() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.listener(&mut bob, 0x11, 7174);
    bench.ask(&mut alice, 0xa, "10.77.0.2:7174", 17);
    let again = bench.ask_to_end(&mut bob, listener).unwrap_err();
    assert_eq!(errno(&again), Errno::EAGAIN);
    // The thread that was about to read it does.
    let request = bench.event(&mut bob).id;
    assert_eq!(word(&bench.ask_to_end(&mut bob, listener).unwrap(), 0), 1);
    bench.destroy(&mut bob, request);
    bench.no_event(&mut bob);

    let listener = bench.listener(&mut bob, 0x12, 7175);
    bench.ask(&mut alice, 0xb, "10.77.0.2:7175", 18);
    assert_eq!(errno(&bench.ask_to_end(&mut bob, listener).unwrap_err()), Errno::EAGAIN);
    assert_eq!(word(&bench.ask_to_end(&mut bob, listener).unwrap(), 0), 0);
    bench.no_event(&mut bob);
}

#[test]
fn an_identifier_that_its_program_was_not_told_of_is_not_there() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.listener(&mut bob, 0x11, 7174);
    let id = bench.ask(&mut alice, 0xa, "10.77.0.2:7174", 17);
    // Numbers ascend: the program guesses that of the request.
    let guessed = id + 1;
    let early = bench.ask_to_end(&mut bob, guessed).unwrap_err();
    assert_eq!(errno(&early), Errno::ENOENT);
    let early = bench.accept(&mut bob, guessed, 0xb0b, 18, &[]).unwrap_err();
    assert_eq!(errno(&early), Errno::ENOENT);
    assert_eq!(bench.event(&mut bob).id, guessed);
    bench.accept(&mut bob, guessed, 0xb0b, 18, &[]).unwrap();
}

impl Bench {
    /// Makes a program resolve an address of its own card, of which it is told at once.
    fn tell(&mut self, program: &mut Program) -> u32 {
        let id = self.id(program, 0xa);
        self.resolve(program, id, None, "10.77.0.1:0").unwrap();
        id
    }

    /// Handles the channels that the epoll set reports.
    fn turn(&mut self) {
        for (number, flags) in self.poller.wait(Some(0)).unwrap() {
            let Some(Token::CmChannel(key)) = self.poller.token(number) else { continue };
            assert!(!flags.contains(EpollFlags::EPOLLHUP));
            self.server.go_on_telling(&self.wire, key);
        }
        self.server.go_on_sending(&self.wire);
    }
}

#[test]
fn who_reads_late_has_all_events_in_their_order_and_keeps_nobody() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let ids: Vec<_> = (0..1000).map(|_| bench.tell(&mut alice)).collect();
    bench.turn();
    let mut read = Vec::new();
    let mut turns = 0;
    while read.len() < ids.len() {
        let before = read.len();
        read.extend(std::iter::from_fn(|| bench.try_event(&mut alice).ok()).map(|it| it.id));
        assert!(read.len() > before, "{before} were read, and no more come");
        bench.turn();
        turns += 1;
    }
    assert_eq!(read, ids);
    // It is not one long queue in the kernel.
    assert!((3..100).contains(&turns), "{turns} turns");
    let usage = |bench: &Bench| bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents);
    assert_eq!(usage(&bench), 1000, "no command has said what was read");
    let id = bench.tell(&mut alice);
    assert_eq!(usage(&bench), 1);
    // And from then on all is as before.
    assert_eq!(bench.event(&mut alice).id, id);
    bench.no_event(&mut alice);
    bench.turn();
}

#[test]
fn who_reads_as_fast_as_it_is_told_is_told_in_turns() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let ids: Vec<_> = (0..3000).map(|_| bench.tell(&mut alice)).collect();
    let read = |bench: &mut Bench, alice: &mut Program| {
        std::iter::from_fn(|| bench.try_event(alice).ok()).count()
    };
    // The socket has room for more than go in a turn.
    let mut count = read(&mut bench, &mut alice);
    assert!(count > SENT_PER_TURN, "{count} were in the socket");
    let key = bench.server.tokens[&alice.token];
    bench.server.go_on_telling(&bench.wire, key);
    while bench.server.is_behind() {
        // Work of others sends nothing of it.
        bench.tell(&mut bob);
        let sent = read(&mut bench, &mut alice);
        assert_eq!(sent, SENT_PER_TURN);
        count += sent;
        bench.server.go_on_sending(&bench.wire);
    }
    count += read(&mut bench, &mut alice);
    assert_eq!(count, ids.len());
    // No command has said so, and the work of the next one is bounded, too.
    let unsettled = bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents);
    assert!((64..1024 + 64).contains(&unsettled), "{unsettled} are left for a command");
}

#[test]
fn what_ends_in_a_full_socket_is_void_and_what_waits_behind_it_never_comes() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let ids: Vec<_> = (0..300).map(|_| bench.tell(&mut alice)).collect();
    for id in &ids[1..] {
        assert_eq!(bench.destroy(&mut alice, *id), 0);
    }
    assert!((10..290).contains(&alice.void.len()), "{} were sent", alice.void.len());
    assert_eq!(bench.event(&mut alice).id, ids[0]);
    bench.no_event(&mut alice);
    bench.turn();
    bench.no_event(&mut alice);
    assert_eq!(bench.destroy(&mut alice, ids[0]), 1);
}

#[test]
fn what_a_forked_child_has_read_is_not_void() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let ids: Vec<_> = (0..1000).map(|_| bench.tell(&mut alice)).collect();
    // The child reads, and says nothing to balboad.
    let parents = alice.read;
    let count = std::iter::from_fn(|| bench.try_event(&mut alice).ok()).count();
    alice.read = parents;
    assert_eq!(bench.destroy(&mut alice, ids[0]), 1);
    assert_eq!(bench.destroy(&mut alice, ids[count - 1]), 1);
    assert_eq!(alice.void.len(), 0);
}

#[test]
fn an_address_that_goes_is_told_to_nobody_and_ends_its_connections_by_time() {
    let (mut bench, mut alice, mut bob, [ours, theirs]) = Bench::pair();
    let bound = bench.id(&mut alice, 0xb);
    bench.bind(&mut alice, bound, "10.77.0.1:9000").unwrap();
    let gone = "10.77.0.1".parse::<std::net::IpAddr>().unwrap();
    bench.wire.addresses.retain(|local| local.address.ip() != gone);
    bench.no_event(&mut alice);
    assert_eq!(errno(&bench.qp_attr(&mut alice, ours, 2).unwrap_err()), Errno::EINVAL);
    bench.listen(&mut alice, bound, 0).unwrap();
    bench.disconnect(&mut alice, ours).unwrap();
    bench.disconnect(&mut bob, theirs).unwrap();
    bench.pass(40);
    for program in [&mut alice, &mut bob] {
        let over = bench.event(program);
        let timed_out = (Errno::ETIMEDOUT as i32).wrapping_neg() as u32;
        assert_eq!((over.number, over.status), (event::DISCONNECTED, timed_out));
    }
}

#[test]
fn all_connections_to_a_peer_need_one_address_handle() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    for uid in [1, 2] {
        let id = bench.id(&mut alice, uid);
        bench.reach(&mut alice, id, "[2001:db8::2]:7174");
        bench.connect(&mut alice, id, 17, &[]).unwrap();
    }
    let ways = bench.wire.under_way.iter().map(|(_, it)| (it.flow_label, it.traffic_class));
    assert_eq!(ways.collect::<Vec<_>>(), [(0, 0); 2]);
}

/// A thread takes an event in place of another one, which a process that shares the channel took before.
#[test]
fn an_event_that_a_process_holds_is_not_read_and_ends_with_its_identifier() {
    for holds in [false, true] {
        let mut bench = Bench::new();
        let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
        let id = bench.id(&mut alice, 1);
        bench.resolve(&mut alice, id, Some("10.77.0.1:0"), "10.77.0.2:7").unwrap();
        let taken = alice.look(MsgFlags::empty()).unwrap();
        alice.held = if holds { taken.number } else { 0 };
        // The other one has read nothing, and says so.
        bob.token = alice.token;
        bench.tell_read(&mut alice);
        bench.tell_read(&mut bob);
        assert_eq!(bench.destroy(&mut alice, id), u32::from(!holds));
        assert_eq!(alice.void.contains(&taken.number), holds);
        // Once it is read nothing is held.
        let id = bench.id(&mut alice, 2);
        bench.resolve(&mut alice, id, Some("10.77.0.1:0"), "10.77.0.2:7").unwrap();
        alice.held = alice.look(MsgFlags::empty()).unwrap().number;
        bench.tell_read(&mut alice);
        (alice.read, alice.held) = (alice.held, 0);
        assert_eq!(bench.destroy(&mut alice, id), 1);
    }
}

/// Two processes hold an event each, and a third reads on behind them.
#[test]
fn what_processes_hold_stays_theirs_whatever_others_read_until_they_end() {
    let mut bench = Bench::new();
    let [mut alice, mut bob, mut carol] = [ALICE, BOB, CAROL].map(|asker| bench.program(asker));
    let ids: Vec<_> = (0..4).map(|_| bench.tell(&mut alice)).collect();
    (bob.token, carol.token) = (alice.token, alice.token);
    for program in [&mut bob, &mut carol] {
        program.held = alice.look(MsgFlags::empty()).unwrap().number;
        bench.tell_read(program);
    }
    alice.read = alice.look(MsgFlags::empty()).unwrap().number;
    bench.tell_read(&mut alice);
    assert_eq!(bench.destroy(&mut alice, ids[0]), 0);
    assert_eq!(alice.void, BTreeSet::from([bob.held]));
    // An end is reported: held events may have been read.
    bench.end(&carol);
    assert_eq!(bench.destroy(&mut alice, ids[1]), 1);
    assert_eq!(bench.destroy(&mut alice, ids[2]), 1);
    // When a channel goes, no process holds an event of it.
    bob.held = alice.look(MsgFlags::empty()).unwrap().number;
    bench.tell_read(&mut bob);
    assert_eq!(bench.server.holders.len(), 1);
    bench.end(&alice);
    assert!(bench.server.holders.is_empty());
}

/// A peer may ask as often as it likes.
#[test]
fn a_request_to_a_full_listener_finds_room_and_leaves_to_processes_what_they_hold() {
    let mut bench = Bench::new();
    let [mut alice, mut bob] = [ALICE, BOB].map(|asker| bench.program(asker));
    let listener = bench.id(&mut bob, 0x11);
    bench.bind(&mut bob, listener, "10.77.0.2:7174").unwrap();
    bench.listen(&mut bob, listener, 1).unwrap();
    let other = bench.tell(&mut bob);
    let told = bob.look(MsgFlags::empty()).unwrap();
    let mut carol = Program { token: bob.token, ..bench.program(CAROL) };
    carol.held = told.number;
    bench.tell_read(&mut carol);
    bench.ask(&mut alice, 0xa, "10.77.0.2:7174", 20);
    let request = bob.look(MsgFlags::empty()).unwrap();
    bob.held = request.number;
    bench.tell_read(&mut bob);
    // Bob's held requests fill the backlog until another one asks; then that one fills it.
    for qpn in 21..24 {
        bench.ask(&mut alice, 0xa, "10.77.0.2:7174", qpn);
    }
    assert_eq!(bench.server.counters().drop_backlog, 2);
    let second = bob.look(MsgFlags::empty()).unwrap();
    assert_eq!((word(&second.output, 12), word(&second.output, 20)), (event::CONNECT_REQUEST, 21));
    assert_eq!(bob.look(MsgFlags::empty()).unwrap_err(), Errno::EAGAIN);
    assert_eq!(bench.destroy(&mut bob, other), 0);
    assert_eq!(bob.void, BTreeSet::from([told.number]), "nobody is given what Carol holds");
    // The first is Bob's still, and ends with its listener. The second was taken, and no process claims to hold it.
    let before = bench.server.census().identifiers;
    bench.destroy(&mut bob, listener);
    assert!(bob.void.contains(&request.number));
    assert_eq!(bench.server.census().identifiers, before - 2);
}

#[test]
fn what_ended_is_held_by_nobody_and_in_nobodys_place() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let holder = |client| Asker { client: ClientId(client), ..ALICE };
    for round in 0..3 {
        let mut held = BTreeSet::new();
        // Others each time.
        for client in (100..116).map(|client| client + 16 * round) {
            let id = bench.tell(&mut alice);
            let mut process = Program { token: alice.token, ..bench.program(holder(client)) };
            process.held = alice.look(MsgFlags::empty()).unwrap().number;
            // Nobody has read anything.
            bench.tell_read(&mut process);
            held.insert((id, process.held));
        }
        assert_eq!(bench.server.holders.len(), 16);
        for (id, number) in held {
            assert_eq!(bench.destroy(&mut alice, id), 0, "round {round}");
            assert!(alice.void.contains(&number));
        }
        assert!(bench.server.holders.is_empty());
    }
}

#[test]
fn who_says_to_hold_an_event_leaves_no_more_to_a_command() {
    for held in [1, 1 << 40] {
        let mut bench = Bench::new();
        let mut alice = bench.program(ALICE);
        for _ in 0..3000 {
            alice.held = held;
            bench.tell(&mut alice);
            alice.look(MsgFlags::empty()).unwrap();
        }
        let unsettled = bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents);
        assert!((64..1024 + 64).contains(&unsettled), "{unsettled} are left for a command");
    }
}
