//! A port that is taken off its cable.

use fpga_regs::engine::event::EventType;
use fpga_regs::engine::wqe::SendOpcode;

use roce::Gid;

use super::pair::{MEMORY, Pair};
use super::rig::{REGION, Rig};
use super::*;

/// The local ACK timeout of the rig's QPs, and more.
const TIMEOUT: u64 = 300_000_000;

fn told(rig: &mut Rig) -> Vec<(EventType, u8)> {
    std::iter::from_fn(|| rig.event()).map(|event| (event.kind, event.code)).collect()
}

fn lost(rig: &Rig) -> u64 {
    let counters = rig.card.counters();
    counters.iter().find(|(name, _)| *name == "port_frames_link_down").unwrap().1
}

/// Lets timeouts go by, as many as a message is tried.
fn wait(pair: &mut Pair, timeouts: usize) {
    for _ in 0..timeouts {
        pair.one.now += TIMEOUT;
        pair.other.now += TIMEOUT;
        pair.work();
    }
}

#[test]
fn frames_stop_both_ways_and_go_on_when_the_cable_is_back() {
    let mut pair = Pair::new();
    pair.one.set_link(false);
    pair.one.write(MEMORY, &[7; 1000]);
    assert!(pair.carry(SendOpcode::Write, 1000).is_none());
    let after = lost(&pair.one);
    assert!(after > 0);
    pair.one.set_link(true);
    wait(&mut pair, 1);
    assert_eq!(pair.one.poll().map(|cqe| cqe.status), Some(Status::Success));
    assert_eq!((pair.other.read(REGION, 1000), lost(&pair.one)), (vec![7; 1000], after));
    // Frames that come by the cable are lost as well, and do not wait there.
    pair.other.set_link(false);
    pair.one.write(MEMORY, &[8; 1000]);
    assert!(pair.carry(SendOpcode::Write, 1000).is_none());
    assert!(lost(&pair.other) > 0);
    pair.other.set_link(true);
    wait(&mut pair, 1);
    assert_eq!(pair.one.poll().map(|cqe| cqe.status), Some(Status::Success));
    assert_eq!(pair.other.read(REGION, 1000), [8; 1000]);
}

#[test]
fn messages_are_tried_until_their_retries_are_used_up() {
    let mut pair = Pair::new();
    pair.other.set_link(false);
    assert!(pair.carry(SendOpcode::Write, 1000).is_none());
    wait(&mut pair, 8);
    assert_eq!(pair.one.poll().map(|cqe| cqe.status), Some(Status::RetryExceeded));
    assert_eq!(pair.one.state(), QpState::Err);
}

#[test]
fn each_change_is_told_once_to_the_engines_of_the_card_and_to_no_other() {
    let mut pair = Pair::new();
    let (down, up) = ((EventType::Port, 0), (EventType::Port, 1));
    assert_eq!(told(&mut pair.one), []);
    for (to, event) in [(false, Some(down)), (false, None), (true, Some(up)), (true, None)] {
        pair.one.set_link(to);
        assert_eq!(told(&mut pair.one), Vec::from_iter(event), "{to}");
    }
    assert_eq!(told(&mut pair.other), []);
}

#[test]
fn groups_are_told_of_anew_when_the_cable_is_back() {
    let mut pair = Pair::new();
    let (now, qpn) = (Instant(pair.one.now), Qpn::new(0x7777).unwrap());
    let stack = &mut pair.one.card.network.stack;
    stack.create_qp(qpn, roce::Service::Ud, 0).unwrap();
    stack.attach(now, qpn, Gid::from_ipv6("ff0e::5".parse().unwrap())).unwrap();
    let mut reports = |up| {
        pair.one.set_link(up);
        wait(&mut pair, 4);
        pair.one.card.network.stack.counters().sent_group_reports
    };
    let joined = reports(true);
    assert!(joined > 0);
    assert_eq!([false, true, true].map(reports), [joined, 2 * joined, 2 * joined]);
}

#[test]
fn a_card_hears_itself_without_a_cable_and_a_reset_puts_it_back() {
    let mut pair = Pair::new();
    pair.one.make_another();
    let own = pair.one.qpn;
    pair.one.connect(OWN, own);
    pair.one.set_link(false);
    let rkey = pair.one.rkey;
    pair.one.write(MEMORY, &[9; 100]);
    pair.one.post_from(MEMORY, SendOpcode::Write, 100, rkey);
    pair.work();
    assert_eq!(pair.one.poll().map(|cqe| cqe.status), Some(Status::Success));
    assert_eq!((pair.one.read(REGION, 100), lost(&pair.one)), (vec![9; 100], 0));
    assert!(!pair.one.card.network.is_link_up());
    pair.one.card.reset_function();
    assert!(pair.one.card.network.is_link_up());
}
