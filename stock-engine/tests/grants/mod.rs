//! Long messages, that go from memory to memory by grants.

use std::cell::Cell;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::tunnel::TURNOVER;
use queue_engine::{Transport as _, TransportEvent, WqeOperation};
use trial::share::share;

use super::ends::Net;
use super::{MS, SEND, read, write};

/// Of three parts.
const BYTES: usize = 600_000;

/// Two sides of which the first one knows that the other one grants.
fn net(seed: u64) -> (Net, [u32; 2]) {
    let mut net = Net::granting(seed, TURNOVER, 4096);
    let [a, b] = net.connect(7, true);
    net.submit(0, a, write(0, None), &[1; 8]).unwrap();
    net.run(50 * MS);
    net.program(0, a).events.clear();
    net.program(1, b).posted.push_back(BYTES);
    (net, [a, b])
}

fn pattern() -> Vec<u8> {
    (0..BYTES as u32).map(|at| ((at * 7) >> 3) as u8).collect()
}

/// Whether a QP's program is told of an end, and whether of a good one; nothing of its windows is left by then.
fn outcome(net: &mut Net, side: usize, qpn: u32) -> Option<Result<(), Status>> {
    let event = *net.program(side, qpn).events.last()?;
    match event {
        TransportEvent::Completed { .. } => Some(Ok(())),
        TransportEvent::Failed { status, .. } => {
            let ctid = (qpn & 0x3f) as u8;
            assert!(
                net.nodes[side].programs.windows.end(ctid),
                "{status:?} before its windows end"
            );
            Some(Err(status))
        }
        other => panic!("{other:?}"),
    }
}

/// Tries each kind of message, and does something at each time of its transfer, until it is over before that; then `judge`
/// looks at it.
fn at_each_step<T>(
    disturb: impl Fn(&mut Net, [u32; 2], WqeOperation) -> T,
    judge: impl Fn(&mut Net, [u32; 2], WqeOperation, T),
) {
    for operation in [write(0, None), read(0), SEND] {
        let mut steps = 0;
        loop {
            let (mut net, pair) = net(steps);
            let bytes = if operation == read(0) { vec![0; BYTES] } else { pattern() };
            if operation == read(0) {
                net.program(1, pair[1]).open[..BYTES].copy_from_slice(&pattern());
            }
            net.submit(0, pair[0], operation, &bytes).unwrap();
            net.run(steps * 7_000);
            let over = outcome(&mut net, 0, pair[0]).is_some();
            let disturbed = disturb(&mut net, pair, operation);
            for _ in 0..30 {
                if outcome(&mut net, 0, pair[0]).is_none() {
                    net.run(50 * MS);
                }
            }
            judge(&mut net, pair, operation, disturbed);
            if over {
                assert!(steps > 10, "{operation:?} was over at once");
                break;
            }
            steps += share() as u64;
        }
    }
}

#[test]
fn memory_that_goes_behind_reads_while_a_turnover_comes_stops_nobody_else() {
    let [mut failed, mut turned] = [0, 0];
    for step in (0..60).step_by(share()) {
        let mut net = Net::granting(step, 330, 4096);
        let [[a, b], other] = [(); 2].map(|()| net.connect(7, true));
        for (side, qpn) in [(0, a), (1, b)] {
            net.submit(side, qpn, write(0, None), &[1; 8]).unwrap();
        }
        net.run(50 * MS);
        let turnovers = |net: &Net| net.nodes[0].carrier.tally().turnovers;
        let before = turnovers(&net);
        // Requests other than WRITEs may overtake READs.
        for _ in 0..4 {
            net.submit(0, a, read(0), &vec![0; BYTES]).unwrap();
        }
        net.program(1, b).posted.push_back(BYTES);
        let number = net.submit(0, a, SEND, &pattern()).unwrap();
        net.run(step * 3_000);
        net.program(0, a).messages.get_mut(&number).unwrap().truncate(BYTES / 8);
        for _ in 0..30 {
            net.run(50 * MS);
        }
        let is_failed = |event: &TransportEvent| {
            matches!(event, TransportEvent::Failed { status: Status::LocalProtection, .. })
        };
        failed += u32::from(net.program(0, a).events.iter().any(is_failed));
        turned += u32::from(turnovers(&net) > before);
        for side in [0, 1] {
            net.submit(side, other[side], write(0, None), &[5; 8]).unwrap();
        }
        net.run(100 * MS);
        let completed = [0, 1].map(|side| net.program(side, other[side]).completed());
        assert_eq!(completed, [1, 1], "step {step}");
    }
    let few = 10 / share() as u32;
    assert!(failed > few && turned > few, "{failed} failed, {turned} turned");
}

/// Where the bytes are to get to.
fn target(net: &mut Net, [a, b]: [u32; 2], operation: WqeOperation) -> Option<&mut Vec<u8>> {
    match operation {
        WqeOperation::Read { .. } => net.program(0, a).messages.get_mut(&1),
        WqeOperation::Send { .. } => net.program(1, b).taken.get_mut(0),
        _ => Some(&mut net.program(1, b).open),
    }
}

/// Whether all of them are there.
fn is_whole(net: &mut Net, pair: [u32; 2], operation: WqeOperation) -> bool {
    target(net, pair, operation).is_some_and(|bytes| bytes.get(..BYTES) == Some(&pattern()))
}

/// They are, where that was said.
fn is_exact(net: &mut Net, pair: [u32; 2], operation: WqeOperation) {
    assert!(is_whole(net, pair, operation), "{operation:?}");
}

#[test]
fn long_messages_of_each_kind_go_without_slots() {
    let mut net = Net::granting(31, TURNOVER, 64 << 10);
    let [a, b] = net.connect(7, true);
    // Only from an answer on the peer is known to grant.
    net.submit(0, a, write(0, None), &[1; 8]).unwrap();
    net.run(50 * MS);
    let before = [0, 1].map(|side| net.nodes[side].carrier.tally());
    net.program(1, b).posted.push_back(100_000);
    let bytes: Vec<u8> = (0..100_003u32).map(|at| ((at * 7) >> 3) as u8).collect();
    net.submit(0, a, write(5, None), &bytes).unwrap();
    let number = net.submit(0, a, read(4), &vec![0; 100_003]).unwrap();
    net.submit(0, a, SEND, &bytes[..99_999]).unwrap();
    net.run(100 * MS);
    assert_eq!(net.program(0, a).completed(), 4, "{:?}", net.program(0, a).events);
    assert!(net.program(1, b).open[5..100_008] == bytes[..]);
    assert!(net.program(0, a).messages[&number][1..] == bytes[..100_002]);
    assert!(net.program(1, b).taken[0][..99_999] == bytes[..99_999]);
    let after = [0, 1].map(|side| net.nodes[side].carrier.tally());
    assert_eq!([0, 1].map(|side| after[side].granted), [100_000 + 99_996, 100_000]);
    assert!([0, 1].iter().all(|side| after[*side].sent - before[*side].sent < 10), "{after:?}");
}

#[test]
fn memory_where_bytes_are_to_get_to_that_goes_at_any_time_makes_no_success_false() {
    at_each_step(
        |net, pair, operation| {
            let whole = is_whole(net, pair, operation);
            if let Some(bytes) = target(net, pair, operation) {
                bytes.truncate(BYTES / 2);
            }
            whole
        },
        |net, pair, operation, whole| match outcome(net, 0, pair[0]) {
            Some(Ok(())) => {
                // A receive that was not taken by then is another one.
                let taken = operation == SEND && is_whole(net, pair, operation);
                assert!(whole || taken, "{operation:?}");
            }
            Some(Err(Status::RemoteOperation)) if operation != read(0) => {}
            Some(Err(Status::LocalProtection)) if operation == read(0) => {}
            other => panic!("{operation:?}: {other:?}"),
        },
    );
}

#[test]
fn memory_that_bytes_come_from_that_goes_at_any_time_makes_no_success_false() {
    at_each_step(
        |net, [a, b], operation| match operation {
            WqeOperation::Read { .. } => net.program(1, b).open.truncate(BYTES / 2),
            _ => net.program(0, a).messages.get_mut(&1).unwrap().truncate(BYTES / 2),
        },
        |net, pair, operation, ()| match outcome(net, 0, pair[0]) {
            Some(Ok(())) => is_exact(net, pair, operation),
            Some(Err(Status::RemoteOperation)) if operation == read(0) => {}
            Some(Err(Status::LocalProtection)) if operation != read(0) => {}
            other => panic!("{operation:?}: {other:?}"),
        },
    );
}

#[test]
fn what_a_program_changes_while_it_moves_is_what_it_was_at_some_time() {
    at_each_step(
        |net, [a, b], operation| match operation {
            WqeOperation::Read { .. } => net.program(1, b).open[BYTES / 2] ^= 0xff,
            _ => net.program(0, a).messages.get_mut(&1).unwrap()[BYTES / 2] ^= 0xff,
        },
        |net, pair, operation, ()| {
            assert_eq!(outcome(net, 0, pair[0]), Some(Ok(())), "{operation:?}");
            let mut bytes = target(net, pair, operation).unwrap()[..BYTES].to_vec();
            if bytes != pattern() {
                bytes[BYTES / 2] ^= 0xff;
            }
            assert!(bytes == pattern(), "{operation:?}");
        },
    );
}

#[test]
fn a_page_that_a_card_takes_from_elsewhere_or_puts_elsewhere_comes_again_in_slots() {
    for operation in [write(0, None), read(0), SEND] {
        for (side, page) in [0, 1].into_iter().flat_map(|side| [0, 24, 140].map(|it| (side, it))) {
            let (mut net, pair) = net(page.into());
            let is_read = operation == read(0);
            if is_read {
                net.program(1, pair[1]).open[..BYTES].copy_from_slice(&pattern());
            }
            let bytes = if is_read { vec![0; BYTES] } else { pattern() };
            net.nodes[side].programs.strays = Some(page);
            net.submit(0, pair[0], operation, &bytes).unwrap();
            net.run(100 * MS);
            let at = format!("{operation:?}, side {side}, page {page}");
            assert_eq!(net.nodes[side].programs.strays, None, "{at}");
            let astray: u64 = net.nodes.iter().map(|node| node.carrier.tally().astray).sum();
            // With it the parts behind it, as far as they were under way.
            assert!((1..=3).contains(&astray), "{at}: {astray}");
            assert_eq!(outcome(&mut net, 0, pair[0]), Some(Ok(())), "{at}");
            is_exact(&mut net, pair, operation);
        }
    }
}

#[test]
fn a_peer_that_stands_at_any_time_ends_the_queue_pair_with_its_windows() {
    at_each_step(
        |net, _, _| net.nodes[1].stands = true,
        |net, pair, operation, ()| match outcome(net, 0, pair[0]) {
            Some(Ok(())) => is_exact(net, pair, operation),
            Some(Err(Status::RetryExceeded)) => {}
            other => panic!("{operation:?}: {other:?}"),
        },
    );
}

#[test]
fn a_queue_pair_that_the_engine_fails_at_any_time_is_told_so_behind_its_windows() {
    let waited = Cell::new(0);
    for side in [0, 1] {
        at_each_step(
            |net, pair, _| {
                net.fail(side, pair[side]);
                assert!(net.nodes[side].carrier.lingers(pair[side]));
                net.program(side, pair[side]).events.clear();
                let (qpn, ctid) = (pair[side], (pair[side] & 0x3f) as u8);
                let mut begun = false;
                while net.program(side, qpn).events.is_empty() {
                    begun |= !net.nodes[side].programs.windows.end(ctid);
                    net.run(5_000);
                }
                waited.set(waited.get() + u32::from(begun));
                let told = &net.program(side, qpn).events;
                assert_eq!(told[..], [TransportEvent::Error { qpn }]);
                assert!(
                    net.nodes[side].programs.windows.end(ctid)
                        && !net.nodes[side].carrier.lingers(qpn)
                );
                // The first side is looked at below.
                net.program(side, qpn).events = vec![TransportEvent::Completed { qpn, count: 0 }];
            },
            |_, _, _, ()| {},
        );
    }
    assert!(waited.get() > 10 / share() as u32);
}

#[test]
fn what_a_card_repeats_late_lands_in_no_window_of_before() {
    let (mut net, [a, b]) = net(32);
    net.submit(0, a, SEND, &pattern()).unwrap();
    net.run(100 * MS);
    assert_eq!(outcome(&mut net, 0, a), Some(Ok(())));
    let granted = net.nodes[1].programs.opened.clone();
    assert!(!granted.is_empty());
    for window in &granted {
        net.land(1, b, *window, &[0xee; 4096]);
    }
    is_exact(&mut net, [a, b], SEND);
    // Nor in the one that is next.
    net.program(1, b).posted.push_back(BYTES);
    net.submit(0, a, SEND, &pattern()).unwrap();
    while net.nodes[1].programs.opened.len() == granted.len() {
        net.run(5_000);
    }
    for window in &granted {
        net.land(1, b, *window, &[0xee; 4096]);
    }
    net.run(100 * MS);
    assert_eq!(net.program(0, a).completed(), 2);
    assert!(net.program(1, b).taken[1] == pattern());
}

#[test]
fn more_than_there_is_room_for_goes_in_slots_and_every_byte_is_its_own() {
    let mut net = Net::granting(33, 200, 4096);
    let pairs: Vec<_> = (0..40).map(|_| net.connect(7, true)).collect();
    for pair in &pairs {
        for side in [0, 1] {
            net.submit(side, pair[side], write(0, None), &[1; 8]).unwrap();
        }
    }
    net.run(100 * MS);
    for pair in &pairs {
        for side in [0, 1] {
            net.submit(side, pair[side], write(0, None), &[pair[side] as u8; 100_000]).unwrap();
        }
    }
    net.run(2_000 * MS);
    for pair in &pairs {
        for side in [0, 1] {
            assert_eq!(net.program(side, pair[side]).completed(), 2);
            let open = &net.program(1 - side, pair[1 - side]).open;
            assert!(open[..100_000] == [pair[side] as u8; 100_000]);
        }
    }
    let refused: u64 = net.nodes.iter().map(|node| node.programs.windows.counts().1).sum();
    assert!(refused > 0, "there was room for all");
}
