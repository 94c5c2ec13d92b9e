//! Many queue pairs share a port fairly, and a lossy one does not slow the others down.

use netsim::config::Faults;
use roce::{Event, Instant, Operation, PathMtu, SendRequest};

use crate::connection::{End, Options};
use crate::memory::{Local, Region};
use crate::network::Network;

const LENGTH: u32 = 8 * 1024;

/// Keeps `count` QPs busy with one operation for a while, and gives the messages that each
/// completed.
fn compete(count: usize, operation: impl Fn(usize) -> Operation) -> Vec<u64> {
    let mut network = Network::new(1, 2, Faults::NONE);
    let options = Options { mtu: PathMtu::Mtu1024, ..Options::default() };
    let region = Region { va: 0, bytes: vec![1; LENGTH as usize], writable: true };
    network.sim.hosts[1].memory.regions.insert(1, region);
    let ends: Vec<End> = (0..count).map(|_| network.connect(0, 1, &options).0).collect();
    let mut done = vec![0; count];
    let deadline = network.now() + 1_500_000;
    while network.now() < deadline {
        let now = Instant(network.now());
        for (index, end) in ends.iter().enumerate() {
            let node = &mut network.sim.hosts[0];
            while roce::param::SEND_RING - node.stack.send_room(end.qpn) < 8 {
                let request = SendRequest {
                    operation: operation(index),
                    length: LENGTH,
                    remote_va: 0,
                    rkey: 1,
                    imm: 0,
                    solicited: false,
                    fence: false,
                };
                let number = node.stack.post_send(now, end.qpn, request).unwrap();
                let local = match request.operation {
                    Operation::Read => Local::Buffer(vec![0; LENGTH as usize]),
                    _ => Local::Pattern(0),
                };
                node.memory.messages.insert((end.qpn.value(), number), local);
            }
        }
        network.wake(0);
        let soon = network.now() + 2_000;
        network.run(soon, |_| false);
        for event in std::mem::take(&mut network.sim.hosts[0].events) {
            match event {
                Event::SendsCompleted { qpn, through } => {
                    let index = ends.iter().position(|end| end.qpn == qpn).unwrap();
                    done[index] = through + 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    done
}

fn assert_fair(done: &[u64]) {
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(*least > 10, "{done:?}");
    assert!(most - least <= 3 + most / 10, "{done:?}");
}

#[test]
fn many_writers_get_equal_shares() {
    assert_fair(&compete(32, |_| Operation::Write));
}

#[test]
fn many_readers_get_equal_shares() {
    assert_fair(&compete(32, |_| Operation::Read));
}

#[test]
fn readers_and_writers_do_not_starve_each_other() {
    let done = compete(16, |index| if index % 2 == 0 { Operation::Read } else { Operation::Write });
    let least = done.iter().min().unwrap();
    assert!(*least > 10, "{done:?}");
}
