//! Refusals, with the error numbers of the kernel.

use super::*;
use crate::cm::calls::MOST_UNREAD;

fn refusal(outcome: Result<impl std::fmt::Debug, Error>) -> Errno {
    errno(&outcome.unwrap_err())
}

#[test]
fn headers_that_say_too_much_or_too_little_are_refused() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let mut say = |bytes: &[u8]| refusal(bench.say(&mut alice, bytes));
    assert_eq!(say(&[]), Errno::EINVAL);
    assert_eq!(say(&[0; 7]), Errno::EINVAL);
    // InfiniBand's commands, and unknown ones.
    for number in [23, 25, u32::MAX] {
        assert_eq!(say(&raw(number, &[0; 300], 300)), Errno::EINVAL);
    }
    assert_eq!(say(&raw(number::GET_OPTION, &[0; 24], 24)), Errno::ENOSYS);
    assert_eq!(say(&raw(number::CREATE_ID, &[0; 24], 3)), Errno::ENOSPC);
    assert_eq!(say(&raw(number::CREATE_ID, &[0; 23], 4)), Errno::EINVAL);
    assert_eq!(say(&raw(number::GET_EVENT, &[0; 8], 323)), Errno::ENOSPC);
    let mut longer = raw(number::CREATE_ID, &[0; 24], 4);
    longer[4] += 1;
    assert_eq!(say(&longer), Errno::EINVAL);
}

#[test]
fn events_are_not_asked_for() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let asked = bench.say(&mut alice, &raw(number::GET_EVENT, &[0; 8], 336));
    assert_eq!(refusal(asked), Errno::EOPNOTSUPP);
}

#[test]
fn a_channel_is_its_users_and_an_identifier_its_channels() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let id = bench.id(&mut alice, 0xa);
    // A forked child asks by a connection of its own.
    let mut child = Program {
        asker: Asker { client: ClientId(9), uid: UID },
        token: alice.token,
        socket: alice.socket.try_clone().unwrap(),
        read: 0,
        held: 0,
        void: BTreeSet::new(),
        ahead: None,
    };
    bench.bind(&mut child, id, "10.77.0.1:0").unwrap();
    child.asker.uid += 1;
    assert_eq!(refusal(bench.listen(&mut child, id, 0)), Errno::EACCES);
    child.token[0] ^= 1;
    assert_eq!(refusal(bench.listen(&mut child, id, 0)), Errno::EBADF);
    assert_eq!(refusal(bench.listen(&mut bob, id, 0)), Errno::EINVAL);
    assert_eq!(refusal(bench.listen(&mut bob, id + 1, 0)), Errno::ENOENT);
}

#[test]
fn kinds_that_are_not_offered_are_refused_where_they_are_made() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let mut create = |space: u16, kind: QpType| {
        let wanted = body(24, &[(16, &space.to_ne_bytes()), (18, &[kind.0])]);
        refusal(bench.say(&mut alice, &raw(number::CREATE_ID, &wanted, 4)))
    };
    assert_eq!(create(0x0107, QpType::Rc), Errno::EINVAL);
    assert_eq!(create(space::IPOIB, QpType::Ud), Errno::EPROTONOSUPPORT);
    assert_eq!(create(space::IB, QpType::XrcSend), Errno::EPROTONOSUPPORT);
}

#[test]
fn addresses_are_cards_and_ports_are_one_programs() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let id = bench.id(&mut alice, 0xa);
    let mut bind = |address: &str| refusal(bench.bind(&mut alice, id, address));
    assert_eq!(bind("10.77.0.9:0"), Errno::EADDRNOTAVAIL);
    assert_eq!(bind("10.77.0.1:80"), Errno::EACCES);
    // Of InfiniBand's own: the start-up probe of librdmacm.
    let mut infiniband = vec![0; 136];
    infiniband[..4].copy_from_slice(&id.to_ne_bytes());
    infiniband[4..6].copy_from_slice(&48u16.to_ne_bytes());
    infiniband[8..10].copy_from_slice(&27u16.to_ne_bytes());
    let probe = raw(number::BIND, &infiniband, 0);
    assert_eq!(refusal(bench.say(&mut alice, &probe)), Errno::EAFNOSUPPORT);
    infiniband[4..6].copy_from_slice(&47u16.to_ne_bytes());
    let probe = raw(number::BIND, &infiniband, 0);
    assert_eq!(refusal(bench.say(&mut alice, &probe)), Errno::EINVAL);
    let link_local = body(40, &[(8, &abi::store("[fe80::1]:0".parse().unwrap()).0)]);
    let mut link_local = link_local;
    link_local[36..40].copy_from_slice(&id.to_ne_bytes());
    let scopeless = raw(number::BIND_IP, &link_local, 0);
    assert_eq!(refusal(bench.say(&mut alice, &scopeless)), Errno::EINVAL);

    bench.bind(&mut alice, id, "10.77.0.1:7174").unwrap();
    assert_eq!(refusal(bench.bind(&mut alice, id, "10.77.0.1:7175")), Errno::EINVAL);
    let theirs = bench.id(&mut bob, 0xb);
    assert_eq!(refusal(bench.bind(&mut bob, theirs, "10.77.0.1:7174")), Errno::EADDRINUSE);
    // The loopback address stands for all of them.
    for all in ["0.0.0.0:7174", "127.0.0.1:7174"] {
        assert_eq!(refusal(bench.bind(&mut bob, theirs, all)), Errno::EADDRNOTAVAIL);
    }
    bench.bind(&mut bob, theirs, "10.77.0.2:7174").unwrap();
    // Where both allow it, and until one listens.
    let reuse = (option::LEVEL_ID, option::ID_REUSEADDR);
    let [mut first, mut second] = [&mut alice, &mut bob].map(|it| (bench.id(it, 1), it));
    for (id, program) in [&mut first, &mut second] {
        bench.set_option(program, *id, reuse, &1i32.to_ne_bytes()).unwrap();
        bench.bind(program, *id, "10.77.0.1:8000").unwrap();
    }
    bench.listen(first.1, first.0, 1).unwrap_err();
    bench.destroy(second.1, second.0);
    bench.listen(first.1, first.0, 1).unwrap();
    let late = bench.set_option(first.1, first.0, reuse, &1i32.to_ne_bytes()).unwrap_err();
    assert_eq!(errno(&late), Errno::EINVAL);
    // Root's ports are root's.
    let mut root = bench.program(Asker { client: ClientId(5), uid: 0 });
    let id = bench.id(&mut root, 1);
    bench.bind(&mut root, id, "10.77.0.1:80").unwrap();
}

#[test]
fn a_wildcard_of_ipv6_takes_ipv4_unless_it_wants_not_to() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    for (port, only) in [(7174, 0i32), (7175, 1)] {
        let listener = bench.id(&mut bob, 0x11);
        let only_family = (option::LEVEL_ID, option::ID_AFONLY);
        bench.set_option(&mut bob, listener, only_family, &only.to_ne_bytes()).unwrap();
        bench.bind(&mut bob, listener, &format!("[::]:{port}")).unwrap();
        bench.listen(&mut bob, listener, 0).unwrap();
    }
    let asked = ["10.77.0.2:7174", "[2001:db8::2]:7174", "[2001:db8::2]:7175", "10.77.0.2:7175"];
    for (qpn, to) in (30..).zip(asked) {
        bench.ask(&mut alice, 0xa, to, qpn);
    }
    let mut families = Vec::new();
    for _ in 0..3 {
        let id = bench.event(&mut bob).id;
        families.push(bench.query_route(&mut bob, id)[136]);
    }
    assert_eq!(families, [2, 10, 10]);
    bench.no_event(&mut bob);
    assert_eq!(bench.event(&mut alice).number, event::REJECTED);
}

#[test]
fn options_of_a_port_count_for_one_that_is_bound_already() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let (reuse, only_family) =
        ((option::LEVEL_ID, option::ID_REUSEADDR), (option::LEVEL_ID, option::ID_AFONLY));
    let first = bench.id(&mut alice, 0xa);
    bench.bind(&mut alice, first, "10.77.0.1:8000").unwrap();
    let second = bench.id(&mut bob, 0xb);
    bench.set_option(&mut bob, second, reuse, &1i32.to_ne_bytes()).unwrap();
    assert_eq!(refusal(bench.bind(&mut bob, second, "10.77.0.1:8000")), Errno::EADDRINUSE);
    bench.set_option(&mut alice, first, reuse, &1i32.to_ne_bytes()).unwrap();
    bench.bind(&mut bob, second, "10.77.0.1:8000").unwrap();
    // And neither listens while the other has it.
    assert_eq!(refusal(bench.listen(&mut alice, first, 0)), Errno::EADDRINUSE);

    // A wildcard of IPv6 takes IPv4 in, and gives it up.
    let wildcard = bench.id(&mut alice, 0xc);
    bench.bind(&mut alice, wildcard, "[::]:7174").unwrap();
    let ipv4 = bench.id(&mut bob, 0xd);
    assert_eq!(refusal(bench.bind(&mut bob, ipv4, "10.77.0.1:7174")), Errno::EADDRNOTAVAIL);
    bench.set_option(&mut alice, wildcard, only_family, &1i32.to_ne_bytes()).unwrap();
    bench.listen(&mut alice, wildcard, 0).unwrap();
    bench.ask(&mut bob, 0xe, "10.77.0.2:7174", 17);
    assert_eq!(bench.event(&mut bob).number, event::REJECTED);
    bench.bind(&mut bob, ipv4, "10.77.0.1:7174").unwrap();
    let late = bench.set_option(&mut alice, wildcard, only_family, &0i32.to_ne_bytes());
    assert_eq!(refusal(late), Errno::EINVAL);
}

#[test]
fn steps_out_of_their_order_are_refused() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id(&mut alice, 0xa);
    assert_eq!(refusal(bench.route(&mut alice, id)), Errno::EINVAL);
    assert_eq!(refusal(bench.connect(&mut alice, id, 17, &[])), Errno::EINVAL);
    assert_eq!(refusal(bench.accept(&mut alice, id, 1, 17, &[])), Errno::EINVAL);
    assert_eq!(refusal(bench.disconnect(&mut alice, id)), Errno::EINVAL);
    assert_eq!(refusal(bench.qp_attr(&mut alice, id, 1)), Errno::EINVAL);
    assert_eq!(refusal(bench.resolve(&mut alice, id, None, "192.0.2.1:1")), Errno::ENETUNREACH);
    assert_eq!(refusal(bench.resolve(&mut alice, id, None, "[2001:db8::2]:1")), Errno::EINVAL);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    assert_eq!(refusal(bench.resolve(&mut alice, id, None, "10.77.0.2:1")), Errno::EINVAL);
    assert_eq!(refusal(bench.listen(&mut alice, id, 0)), Errno::EINVAL);
    // More words than there is room for; no queue pair that could be.
    assert_eq!(refusal(bench.connect(&mut alice, id, 17, &[1; 57])), Errno::EINVAL);
    assert_eq!(refusal(bench.connect(&mut alice, id, 0, &[])), Errno::EINVAL);
    bench.connect(&mut alice, id, 17, &[1; 56]).unwrap();
    assert_eq!(refusal(bench.qp_attr(&mut alice, id, 2)), Errno::EINVAL);
    assert_eq!(refusal(bench.qp_attr(&mut alice, id, 7)), Errno::EINVAL);
}

#[test]
fn options_have_sizes_and_times() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id(&mut alice, 0xa);
    let level = option::LEVEL_ID;
    let mut set = |option, value: &[u8]| refusal(bench.set_option(&mut alice, id, option, value));
    assert_eq!(set((level, option::ID_TOS), &[0; 4]), Errno::EINVAL);
    assert_eq!(set((level, option::ID_REUSEADDR), &[0]), Errno::EINVAL);
    assert_eq!(set((level, 9), &[0]), Errno::ENOSYS);
    assert_eq!(set((2, 0), &[0]), Errno::ENOSYS);
    assert_eq!(set((option::LEVEL_IB, option::IB_PATH), &[0; 71]), Errno::EINVAL);
    let datagrams = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
    let timeout = (level, option::ID_ACK_TIMEOUT);
    assert_eq!(refusal(bench.set_option(&mut alice, datagrams, timeout, &[9])), Errno::EINVAL);
    // A path of the program's own is taken if it is between the addresses.
    bench.resolve(&mut alice, id, Some("10.77.0.1:0"), "10.77.0.2:7174").unwrap();
    bench.event(&mut alice);
    let other = bench.id(&mut alice, 0xb);
    bench.reach(&mut alice, other, "10.77.0.2:7174");
    let asked = body(16, &[(8, &other.to_ne_bytes()), (12, &query::PATH.to_ne_bytes())]);
    let paths = bench.say(&mut alice, &raw(number::QUERY, &asked, 80)).unwrap();
    let mut wrong = paths[8..].to_vec();
    wrong[31] = 9;
    let path = (option::LEVEL_IB, option::IB_PATH);
    assert_eq!(refusal(bench.set_option(&mut alice, id, path, &wrong)), Errno::EINVAL);
    bench.set_option(&mut alice, id, path, &paths[8..]).unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ROUTE_RESOLVED);
    bench.connect(&mut alice, id, 17, &[]).unwrap();
}

#[test]
fn one_client_has_its_share_and_no_more() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let most = Resource::CmIds.limit(&EngineLimits::default());
    for uid in 0..most {
        bench.id(&mut alice, uid + 1);
    }
    let wanted = body(24, &[(16, &space::TCP.to_ne_bytes())]);
    let create = raw(number::CREATE_ID, &wanted, 4);
    assert_eq!(refusal(bench.say(&mut alice, &create)), Errno::ENOMEM);
    // No other program is short of any; and requests to her are refused.
    let mut bob = bench.program(BOB);
    let listener = *bench.server.ids.keys().next().unwrap();
    bench.bind(&mut alice, listener, "10.77.0.1:7174").unwrap();
    bench.listen(&mut alice, listener, 0).unwrap();
    bench.ask(&mut bob, 0xb, "10.77.0.1:7174", 17);
    let refused = bench.event(&mut bob);
    assert_eq!((refused.number, refused.status), (event::REJECTED, 3));
    bench.no_event(&mut alice);
    bench.end(&alice);
    assert_eq!(bench.server.census().identifiers, 1);

    // Descriptors are few, and so are channels.
    let most = Resource::CmChannels.limit(&EngineLimits::default());
    let open: Vec<_> = (1..most).map(|_| bench.program(BOB)).collect();
    let refused = bench.server.open(&bench.poller, BOB).unwrap_err();
    assert_eq!(errno(&refused), Errno::ENOMEM);
    drop(open);
}

/// Makes a program write an event of its own.
fn write_event(
    bench: &mut Bench,
    program: &mut Program,
    id: u32,
    event: u32,
) -> Result<Vec<u8>, Error> {
    let fields: [(usize, &[u8]); 4] = [
        (0, &id.to_ne_bytes()),
        (8, &event.to_ne_bytes()),
        (12, &7u32.to_ne_bytes()),
        (16, &0x1234_5678_9abc_def0u64.to_ne_bytes()),
    ];
    bench.say(program, &raw(number::WRITE_CM_EVENT, &body(24, &fields), 0))
}

#[test]
fn a_program_is_told_what_it_wrote_itself_and_nothing_that_only_others_tell() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id(&mut alice, 0xa);
    let mut write =
        |bench: &mut Bench, id: u32, event: u32| write_event(bench, &mut alice, id, event);
    for other in [event::ESTABLISHED, event::DEVICE_REMOVAL, 16, 17, 20] {
        assert_eq!(refusal(write(&mut bench, id, other)), Errno::EINVAL);
    }
    assert_eq!(refusal(write(&mut bench, id + 1, event::USER)), Errno::ENOENT);
    write(&mut bench, id, event::USER).unwrap();
    write(&mut bench, id, event::INTERNAL).unwrap();
    let usage = |bench: &Bench| bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents);
    assert_eq!(usage(&bench), 2);
    for number in [event::USER, event::INTERNAL] {
        let bytes = bench.event(&mut alice).bytes;
        assert_eq!([8, 12, 16].map(|at| word(&bytes, at)), [id, number, 7]);
        assert_eq!(bytes[20..28], 0x1234_5678_9abc_def0u64.to_ne_bytes());
    }
    bench.no_event(&mut alice);
    bench.tell_read(&mut alice);
    assert_eq!(usage(&bench), 0);
}

#[test]
fn an_identifier_moves_and_ends_with_a_bounded_number_of_events() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let [first, second] = [0xa, 0xb].map(|uid| bench.id(&mut alice, uid));
    let mut write = |bench: &mut Bench, id| write_event(bench, &mut alice, id, event::USER);
    (0..MOST_UNREAD).for_each(|_| drop(write(&mut bench, first).unwrap()));
    assert_eq!(refusal(write(&mut bench, first)), Errno::ENOMEM);
    write(&mut bench, second).unwrap();
    bench.event(&mut alice);
    bench.tell_read(&mut alice);
    write_event(&mut bench, &mut alice, first, event::USER).unwrap();
}

#[test]
fn events_that_a_program_brings_about_and_does_not_read_have_an_end() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let most = usize::try_from(Resource::CmEvents.limit(&EngineLimits::default())).unwrap();
    let id = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
    bench.bind(&mut alice, id, "10.77.0.1:0").unwrap();
    // Joins have an end of their own, which is nearer.
    let fields: [(usize, &[u8]); 2] = [(16, &sockaddr("239.0.0.1:0")), (44, &id.to_ne_bytes())];
    let join = raw(number::JOIN_IP_MCAST, &body(48, &fields), 4);
    let joins = usize::try_from(Resource::CmJoins.limit(&EngineLimits::default())).unwrap();
    assert!(joins < most);
    (0..joins).for_each(|_| drop(bench.say(&mut alice, &join).unwrap()));
    assert_eq!(refusal(bench.say(&mut alice, &join)), Errno::ENOMEM);
    let usage = |bench: &Bench| bench.server.usage(ALICE.client).unwrap().of(Resource::CmEvents);
    assert_eq!(usage(&bench), u64::try_from(joins).unwrap());
    bench.event(&mut alice);
    bench.tell_read(&mut alice);
    assert_eq!(usage(&bench), u64::try_from(joins).unwrap() - 1);
    bench.destroy(&mut alice, id);
    assert_eq!(usage(&bench), 0);
    bench.no_event(&mut alice);
}

#[test]
fn a_queue_pair_that_is_named_to_a_peer_is_the_asking_clients() {
    let (mut bench, mut alice, mut bob, _) = Bench::pair();
    let mut carol = bench.program(CAROL);
    // Alice has 17 and 19 on the first card, and Carol 21; on the second Bob has 18 and 20, and Carol 17 and 23.
    bench.has_qp = |client, card, qpn| match (card, qpn) {
        (0, 17 | 19) => client == ALICE.client,
        (1, 18 | 20) => client == BOB.client,
        (0, 21) | (1, 17 | 23) => client == CAROL.client,
        _ => false,
    };
    // A program that names Alice's queue pair, or one of another card, ends nothing of hers.
    let id = bench.id(&mut carol, 0xc);
    bench.reach(&mut carol, id, "10.77.0.2:7174");
    for qpn in [17, 18, 23, 22, 0] {
        let refused = bench.connect(&mut carol, id, qpn, &[]).unwrap_err();
        assert_eq!((qpn, errno(&refused)), (qpn, Errno::EINVAL));
        assert!(refused.to_string().contains(&format!("QP {qpn:#x} is none")), "{refused}");
    }
    bench.carry();
    bench.no_event(&mut bob);
    bench.no_event(&mut alice);
    // Nothing was asked yet: with one of her own it goes on.
    bench.connect(&mut carol, id, 21, &[]).unwrap();
    bench.carry();
    let request = bench.event(&mut bob);
    assert_eq!((request.number, request.qpn()), (event::CONNECT_REQUEST, 21));
    // The same for an acceptance: the asking side hears that it was refused.
    let refused = bench.accept(&mut bob, request.id, 0xb1, 17, &[]).unwrap_err();
    assert_eq!(errno(&refused), Errno::EINVAL);
    bench.carry();
    assert_eq!(bench.event(&mut carol).number, event::REJECTED);
    bench.no_event(&mut alice);

    // A child that was given a channel of Alice's names queue pairs of its own, and hers.
    let (own, inherited) = (alice.asker, Asker { client: ClientId(4), uid: UID });
    bench.has_qp = |client, card, qpn| match (card, qpn) {
        (0, 17 | 19) => client == ALICE.client,
        (0, 24) => client == ClientId(4),
        (1, 18 | 20) => client == BOB.client,
        _ => false,
    };
    for (asker, qpn) in [(own, 24), (inherited, 19), (inherited, 24)] {
        alice.asker = own;
        let id = bench.id(&mut alice, 0xa);
        bench.reach(&mut alice, id, "10.77.0.2:7174");
        alice.asker = asker;
        let may = asker == inherited;
        assert_eq!(bench.connect(&mut alice, id, qpn, &[]).is_ok(), may, "{asker:?} {qpn}");
    }
}

#[test]
fn a_service_of_datagrams_names_a_queue_pair_of_its_own() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    bench.has_qp = |client, card, qpn| (client, card, qpn) == (BOB.client, 1, 18);
    let listener = bench.id_of(&mut bob, 0x11, space::UDP, QpType::Ud);
    bench.bind(&mut bob, listener, "10.77.0.2:7174").unwrap();
    bench.listen(&mut bob, listener, 5).unwrap();
    for (qpn, number) in [(17, event::UNREACHABLE), (18, event::ESTABLISHED)] {
        let id = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
        bench.reach(&mut alice, id, "10.77.0.2:7174");
        // A request for a service names none.
        bench.connect(&mut alice, id, 0, &[]).unwrap();
        bench.carry();
        let request = bench.event(&mut bob).id;
        assert_eq!(bench.accept(&mut bob, request, 0xb0b, qpn, &[]).is_ok(), qpn == 18);
        bench.carry();
        assert_eq!(bench.event(&mut alice).number, number);
    }
}
