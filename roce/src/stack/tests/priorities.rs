//! Frames of each priority for themselves.

use super::*;
use crate::api::DatagramRequest;
use crate::congestion::NotificationPoint;
use crate::types::Address;

const NOW: Instant = Instant(0);

/// The DSCP that stands for a priority, as a traffic class.
fn class(priority: u8) -> u8 {
    priority << 5
}

/// The priority that a frame of IPv6 says by its traffic class.
fn said(transmit: &Transmit) -> u8 {
    (transmit.header.as_slice()[14] << 4 | transmit.header.as_slice()[15] >> 4) >> 5
}

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}

/// The path to a port whose address contains its Ethernet address.
fn vector(traffic_class: u8) -> AddressVector {
    let dgid = Gid::from_ipv6(MacAddr([2, 0, 0, 0, 0, 2]).link_local());
    AddressVector { traffic_class, ..AddressVector::new(0, dgid) }
}

/// Makes a queue pair in RTS, along a path.
fn make(stack: &mut Stack, number: u32, service: Service, path: AddressVector) {
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let [init, rtr, rts] = match service {
        Service::Ud => {
            let (pkey_index, qkey) = (Some(0), Some(1));
            let init = QpAttributes { pkey_index, qkey, ..to(QpState::Init) };
            [init, to(QpState::Rtr), to(QpState::Rts)]
        }
        _ => connection(service, path, qpn(number)),
    };
    let timeout = rts.timeout.map(|_| param::MAX_TIMEOUT);
    let rts = QpAttributes { sq_psn: Some(Psn::new(PSN)), timeout, ..rts };
    stack.create_qp(qpn(number), service, 0).unwrap();
    for change in [init, rtr, rts] {
        stack.modify_qp(NOW, qpn(number), &change).unwrap();
    }
}

fn datagram(ah: u32) -> DatagramRequest {
    let (dest_qpn, imm) = (qpn(9), None);
    DatagramRequest { ah, dest_qpn, qkey: 1, length: 0, imm, solicited: false }
}

/// The queue pairs of the frames that a port gives of some priorities, and the priority of each.
fn given(stack: &mut Stack, open: Priorities) -> Vec<(u32, u8)> {
    let frames = core::iter::from_fn(|| stack.poll_transmit_of(NOW, open));
    frames.map(|it| (it.qpn.map_or(0, Qpn::value), it.priority)).collect()
}

fn only(priority: u8) -> Priorities {
    Priorities::default().with(priority, true)
}

/// RC-108: with random priorities open at random times, and random posts.
#[test]
fn each_queue_pair_keeps_its_order_and_waits_for_its_own_priority_alone() {
    let mut rng = trial::rng::Rng::new(1);
    for _ in 0..200 {
        let mut stack = stack();
        for number in 1..=3 {
            make(&mut stack, number, Service::Rc, vector(class(number as u8)));
            make(&mut stack, 10 + number, Service::Uc, vector(class(number as u8)));
            make(&mut stack, 20 + number, Service::Ud, vector(0));
            stack.create_ah(NOW, number, 0, &vector(class(number as u8))).unwrap();
        }
        // The priorities of each queue pair's messages that are posted and not sent, in order.
        let mut owed = vec![VecDeque::new(); 24];
        let mut numbers = [PSN; 24];
        for _ in 0..200 {
            let number = (rng.below(3) * 10 + rng.below(3) + 1) as u32;
            let (who, priority) = (number as usize, (rng.below(3) + 1) as u8);
            if rng.chance(5_000) && owed[who].len() < 8 {
                if number > 20 {
                    stack.post_datagram(qpn(number), datagram(priority.into())).unwrap();
                    owed[who].push_back(priority);
                } else {
                    stack.post_send(NOW, qpn(number), WRITE).unwrap();
                    owed[who].push_back((number % 10) as u8);
                }
            }
            if !rng.chance(2_000) {
                continue;
            }
            let open = Priorities(rng.below(256) as u8);
            while let Some(sent) = stack.poll_transmit_of(NOW, open) {
                let who = sent.qpn.unwrap().value() as usize;
                assert!(open.has(sent.priority) && said(&sent) == sent.priority);
                assert_eq!(owed[who].pop_front(), Some(sent.priority));
                let header = sent.header.as_slice();
                let psn = u32::from_be_bytes([0, header[71], header[72], header[73]]);
                assert_eq!(psn, numbers[who]);
                numbers[who] += 1;
            }
            let heads = owed.iter().filter_map(VecDeque::front);
            assert!(heads.clone().all(|priority| !open.has(*priority)), "{owed:?} {open:?}");
        }
        while stack.poll_transmit(NOW).is_some() {}
        assert_eq!(stack.shared.ready.len(), 0);
    }
}

/// RC-108.
#[test]
fn a_notification_leaves_by_its_own_priority() {
    for service in [Service::Rc, Service::Uc] {
        let mut stack = stack();
        let point = NotificationPoint { cnp_dscp: Some(48), ..Default::default() };
        stack.set_notification_point(point).unwrap();
        make(&mut stack, 1, service, vector(class(3)));
        stack.post_send(NOW, qpn(1), WRITE).unwrap();
        let slot = stack.slot(qpn(1)).unwrap();
        stack.slots.core_mut(slot).unwrap().take_mark(&mut stack.shared, NOW);
        // Payload that is not there holds both back, and then neither.
        stack.pause(qpn(1));
        assert_eq!(given(&mut stack, Priorities::ALL), []);
        stack.go_on(qpn(1));
        assert_eq!(given(&mut stack, only(3).with(5, true)), [(1, 3)]);
        stack.post_send(NOW, qpn(1), WRITE).unwrap();
        assert_eq!(given(&mut stack, Priorities::ALL.with(3, false)), [(1, 6)]);
        assert_eq!(given(&mut stack, Priorities::ALL), [(1, 3)]);
        assert_eq!(stack.counters().np_cnp_sent, 1);
    }
}

/// RC-108.
#[test]
fn a_port_tells_priorities_by_what_it_trusts_from_then_on() {
    let mut stack = stack();
    let own = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
    let mut gids = GidTable::default();
    gids[0] = Some(Gid::from_ipv6(MacAddr([2, 0, 0, 0, 0, 1]).link_local()).into());
    gids[1] = Some(Address { gid: own, vlan: 7 });
    stack.set_gids(gids);
    make(&mut stack, 1, Service::Rc, vector(class(3)));
    let tagged = AddressVector { sgid_index: 1, dgid: own, sl: 13, ..vector(class(4)) };
    make(&mut stack, 2, Service::Uc, tagged);
    let plain = AddressVector { sl: 6, ..vector(class(2)) };
    make(&mut stack, 3, Service::Ud, plain);
    stack.create_ah(NOW, 1, 0, &plain).unwrap();
    let post = |stack: &mut Stack| {
        stack.post_send(NOW, qpn(1), WRITE).unwrap();
        stack.post_send(NOW, qpn(2), WRITE).unwrap();
        stack.post_datagram(qpn(3), datagram(1)).unwrap();
    };
    post(&mut stack);
    let open = |stack: &mut Stack, each: [(u8, u32); 3]| {
        for (priority, number) in each {
            assert_eq!(given(stack, only(priority)), [(number, priority)]);
        }
        assert_eq!(given(stack, Priorities::ALL), []);
    };
    open(&mut stack, [(3, 1), (4, 2), (2, 3)]);
    // A queue pair that stands in line goes over to the other line.
    post(&mut stack);
    stack.set_trust(Trust::Pcp).unwrap();
    assert_eq!(given(&mut stack, only(5)), [(2, 5)]);
    assert_eq!(given(&mut stack, Priorities::ALL).len(), 2);
    let mut map = [0; 64];
    (map[class(3) as usize >> 2], map[class(4) as usize >> 2]) = (1, 7);
    stack.set_trust(Trust::Dscp(Box::new(map))).unwrap();
    post(&mut stack);
    open(&mut stack, [(1, 1), (7, 2), (0, 3)]);
    map[0] = 8;
    assert!(stack.set_trust(Trust::Dscp(Box::new(map))).is_err());
    post(&mut stack);
    open(&mut stack, [(1, 1), (7, 2), (0, 3)]);
}

/// RC-108: each datagram has the priority of its handle, even if that number belonged to another handle before.
#[test]
fn a_handle_of_another_priority_by_the_number_of_one_that_is_gone_counts_as_what_it_is() {
    let mut stack = stack();
    make(&mut stack, 1, Service::Ud, vector(0));
    stack.create_ah(NOW, 1, 0, &vector(class(3))).unwrap();
    stack.post_datagram(qpn(1), datagram(1)).unwrap();
    stack.destroy_ah(1);
    stack.create_ah(NOW, 1, 0, &vector(class(5))).unwrap();
    assert_eq!(given(&mut stack, Priorities::ALL.with(5, false)), []);
    assert_eq!(given(&mut stack, only(5)), [(1, 5)]);
}

/// RC-108: a message that was posted in SQD has its turn in RTS, by its own priority.
#[test]
fn a_message_of_another_priority_that_waited_for_rts_is_sent_by_its_own() {
    let mut stack = stack();
    make(&mut stack, 1, Service::Ud, vector(0));
    for ah in [3, 5] {
        stack.create_ah(NOW, ah, 0, &vector(class(ah as u8))).unwrap();
    }
    stack.post_datagram(qpn(1), datagram(3)).unwrap();
    assert_eq!(given(&mut stack, Priorities::ALL), [(1, 3)]);
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    stack.modify_qp(NOW, qpn(1), &to(QpState::Sqd)).unwrap();
    stack.post_datagram(qpn(1), datagram(5)).unwrap();
    assert_eq!(given(&mut stack, Priorities::ALL), []);
    stack.modify_qp(NOW, qpn(1), &to(QpState::Rts)).unwrap();
    assert_eq!(given(&mut stack, only(5)), [(1, 5)]);
}

/// RC-108: frames beside RoCE are of priority 0.
#[test]
fn questions_wait_for_priority_0_alone() {
    let mut stack = stack();
    let dgid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2));
    let path = AddressVector { sgid_index: 1, dgid, ..vector(class(3)) };
    make(&mut stack, 1, Service::Rc, path);
    assert_eq!(given(&mut stack, Priorities::ALL.with(0, false)), []);
    assert_eq!(given(&mut stack, only(0)), [(0, 0)]);
}
