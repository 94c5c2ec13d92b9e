//! Datagrams: where they go, and groups.

use super::*;

#[test]
fn a_service_of_datagrams_is_found() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.id_of(&mut bob, 0x11, space::UDP, QpType::Ud);
    bench.bind(&mut bob, listener, "10.77.0.2:9").unwrap_err();
    bench.bind(&mut bob, listener, "10.77.0.2:7174").unwrap();
    bench.listen(&mut bob, listener, 5).unwrap();
    let id = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    // STATE, PKEY_INDEX, PORT, QKEY: a queue pair of datagrams goes on by itself.
    let init = bench.qp_attr(&mut alice, id, 1).unwrap();
    assert_eq!((word(&init, 0), word(&init, 20)), (1 | 0x70, 0x0123_4567));
    bench.connect(&mut alice, id, 17, b"where").unwrap();
    bench.carry();
    let request = bench.event(&mut bob);
    assert_eq!(request.number, event::CONNECT_REQUEST);
    assert_eq!((request.bytes[316], &request.bytes[60..65]), (180, &b"where"[..]));
    bench.accept(&mut bob, request.id, 0xb0b, 18, b"here").unwrap();
    bench.carry();
    let found = bench.event(&mut alice);
    assert_eq!((found.number, found.status, found.qpn()), (event::ESTABLISHED, 0, 18));
    assert_eq!(word(&found.bytes, 24), 0x0123_4567);
    // The address handle: GID, index, hop limit, global, port.
    assert_eq!(found.bytes[38..44], [0xff, 0xff, 10, 77, 0, 2]);
    assert_eq!((found.bytes[48], found.bytes[49]), (1, 64));
    assert_eq!(found.bytes[57..59], [1, 1]);
    assert_eq!((found.bytes[316], &found.bytes[60..64]), (136, &b"here"[..]));
    bench.no_event(&mut bob);

    // One that refuses, and one that is not there.
    let again = bench.id_of(&mut alice, 0xc, space::UDP, QpType::Ud);
    bench.reach(&mut alice, again, "10.77.0.2:7174");
    bench.connect(&mut alice, again, 17, &[]).unwrap();
    bench.carry();
    let request = bench.event(&mut bob).id;
    let refuse = raw(number::REJECT, &body(264, &[(0, &request.to_ne_bytes())]), 0);
    bench.say(&mut bob, &refuse).unwrap();
    bench.carry();
    let refused = bench.event(&mut alice);
    assert_eq!((refused.number, refused.status), (event::UNREACHABLE, 2));
    let id = bench.id_of(&mut alice, 0xd, space::UDP, QpType::Ud);
    bench.reach(&mut alice, id, "10.77.0.2:7175");
    bench.connect(&mut alice, id, 17, &[]).unwrap();
    bench.carry();
    let unknown = bench.event(&mut alice);
    assert_eq!((unknown.number, unknown.status), (event::UNREACHABLE, 1));
}

fn join(bench: &mut Bench, program: &mut Program, id: u32, group: &str) -> Result<u32, Error> {
    let fields: [(usize, &[u8]); 3] =
        [(8, &0x77u64.to_ne_bytes()), (16, &sockaddr(group)), (44, &id.to_ne_bytes())];
    let said = bench.say(program, &raw(number::JOIN_IP_MCAST, &body(48, &fields), 4))?;
    Ok(word(&said, 0))
}

#[test]
fn a_group_is_joined_and_left() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
    assert_eq!(errno(&join(&mut bench, &mut alice, id, "239.1.2.3:0").unwrap_err()), Errno::EINVAL);
    // As mckey does: the group is the destination.
    bench.resolve(&mut alice, id, None, "239.1.2.3:0").unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
    let wrong = join(&mut bench, &mut alice, id, "10.77.0.2:0").unwrap_err();
    assert_eq!(errno(&wrong), Errno::EINVAL);
    let first = join(&mut bench, &mut alice, id, "239.1.2.3:0").unwrap();
    let joined = bench.event(&mut alice);
    assert_eq!((joined.number, joined.uid, joined.id), (event::MULTICAST_JOIN, 0x77, first));
    assert_eq!((joined.qpn(), word(&joined.bytes, 24)), (0xff_ffff, 0x0123_4567));
    assert_eq!(joined.bytes[38..44], [0xff, 0xff, 239, 1, 2, 3]);
    assert_eq!(joined.bytes[48], 1);
    // No LID.
    assert_eq!(joined.bytes[52..54], [0, 0]);
    let second = join(&mut bench, &mut alice, id, "[ff0e::9]:0").unwrap();
    let leave = |join: u32| raw(number::LEAVE_MCAST, &body(16, &[(8, &join.to_ne_bytes())]), 4);
    assert_eq!(word(&bench.say(&mut alice, &leave(first)).unwrap(), 0), 1);
    // An unread event goes with the join, and its byte with it.
    assert_eq!(word(&bench.say(&mut alice, &leave(second)).unwrap(), 0), 0);
    bench.no_event(&mut alice);
    assert_eq!(errno(&bench.say(&mut alice, &leave(first)).unwrap_err()), Errno::ENOENT);
    let third = join(&mut bench, &mut alice, id, "239.1.2.4:0").unwrap();
    let mut bob = bench.program(BOB);
    assert_eq!(errno(&bench.say(&mut bob, &leave(third)).unwrap_err()), Errno::EINVAL);
    // The resolution's and the first join's event were read.
    assert_eq!(bench.destroy(&mut alice, id), 2);
    assert_eq!(bench.server.census().joins, 0);
    let usage = bench.server.usage(ALICE.client).unwrap();
    assert_eq!(
        [Resource::CmIds, Resource::CmJoins, Resource::CmEvents].map(|r| usage.of(r)),
        [0; 3]
    );
}
