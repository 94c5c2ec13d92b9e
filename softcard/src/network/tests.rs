use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::*;

/// The number of groups that the kernel lets a port be in, fewer than the port believes.
const ROOM: usize = 2;

/// A port that keeps which groups it hears.
#[derive(Default)]
struct HearingPort(Rc<RefCell<Vec<IpAddr>>>);

impl Port for HearingPort {
    fn send(&mut self, _now: u64, _burst: &mut VecDeque<Frame>) {
        panic!("no frame is sent");
    }

    fn receive(&mut self, _now: u64, _into: &mut VecDeque<Frame>, _budget: usize) {}

    fn room(&self) -> usize {
        0
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        let mut groups = self.0.borrow_mut();
        let had = groups.len();
        groups.retain(|it| *it != group);
        assert_eq!(groups.len() < had, !is_member, "told once of each change: {group}");
        if is_member && groups.len() < ROOM {
            groups.push(group);
            return true;
        }
        !is_member
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

#[test]
fn a_port_hears_a_group_as_long_as_queue_pairs_are_in_it() {
    let port = HearingPort::default();
    let heard = Rc::clone(&port.0);
    let mut network = Network::new(Box::new(port), IcrcPolicy::CheckAll, FramePool::new(8));
    let qpns = [2, 3].map(|number| Qpn::new(number).unwrap());
    let groups: Vec<Gid> =
        (1..=3).map(|last| Gid::from_ipv4(std::net::Ipv4Addr::new(239, 1, 1, last))).collect();
    let ips: Vec<IpAddr> = groups.iter().copied().map(ip_of).collect();
    for qpn in qpns {
        network.stack.create_qp(qpn, roce::Service::Ud, 0).unwrap();
        // All reports but the first are held back, and the second group is heard at once nevertheless.
        for group in &groups[..2] {
            network.set_member(0, qpn, *group, true).unwrap();
        }
        assert_eq!(*heard.borrow(), ips[..2]);
    }
    let full = network.set_member(0, qpns[0], groups[2], true);
    assert_eq!(full, Err(roce::Error::TooManyGroups(2)));
    assert!(!network.stack.has_members(groups[2]), "it was refused");

    network.set_member(0, qpns[0], groups[0], false).unwrap();
    assert_eq!(*heard.borrow(), ips[..2]);
    network.destroy_qp(qpns[1]);
    assert_eq!(*heard.borrow(), ips[1..2]);
    network.destroy_qp(qpns[0]);
    assert!(heard.borrow().is_empty());
}
