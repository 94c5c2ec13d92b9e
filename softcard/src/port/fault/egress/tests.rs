//! Tests of the queues in front of a cable of a given rate.

use roce::Trust;
use roce::qos::Ets;

use super::*;

const MILLISECOND: u64 = 1_000_000;

fn far(text: &str) -> Egress<u64> {
    Egress::new(&text.parse().unwrap(), Direction::Inbound, 2).unwrap()
}

fn own(text: &str) -> Egress<u64> {
    Egress::new(&text.parse().unwrap(), Direction::Outbound, 2).unwrap()
}

fn frame(bytes: u32, priority: u8, item: u64) -> Arrival<u64> {
    Arrival { bytes, priority, way: 0, item }
}

/// A frame that pauses priorities for so many quanta.
fn pause(priorities: &[u8], quanta: u16) -> pfc::Said {
    let mut said = [None; 8];
    priorities.iter().for_each(|priority| said[usize::from(*priority)] = Some(quanta));
    said
}

fn lossless(priorities: u8) -> Qos {
    Qos { pfc: priorities, ..Qos::default() }
}

/// The frames that leave by a time, each with when it did.
fn left(egress: &mut Egress<u64>, now: u64) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| egress.leave(now)).map(|left| (left.item, left.at)).collect()
}

#[test]
fn a_cards_own_frames_wait_for_a_tenth_of_a_millisecond_and_the_others_stay_with_it() {
    for (rate, bytes) in [("10G", 125_000), ("1M", 2 * FRAME_CAPACITY)] {
        let mut queue = own(&format!("rate={rate},buffer=2,ecn=1:2:100%"));
        assert!(queue.red().is_none());
        let mut entered = 0;
        while queue.rooms().most() > 0 && queue.rooms().take(3) {
            assert!(queue.enter(0, frame(1_000, 3, 0)).is_ok());
            entered += 1_000;
        }
        assert!((bytes..bytes + 1_000).contains(&entered), "{rate}: {entered}");
        let open = queue.rooms().open();
        assert!(!open.has(3) && open.has(0) && open.has(7), "the others have room");
    }
    assert_eq!(far("rate=1M").rooms().most(), usize::MAX);
}

#[test]
fn frames_leave_at_the_rate_to_the_nanosecond() {
    for (rate, bits) in [("1000G", 1_000_000_000_000_u128), ("3M", 3_000_000)] {
        let mut queue = far(&format!("rate={rate}"));
        for n in 0..100 {
            assert!(queue.enter(1_000, frame(4_158, 0, n)).is_ok());
        }
        for n in 0..100 {
            let took = (u128::from(n) + 1) * 4_158 * 8 * 1_000_000_000 / bits;
            let at = 1_000 + u64::try_from(took).unwrap();
            assert_eq!(queue.next_timeout(), Some(at), "{rate}");
            assert!(queue.leave(at - 1).is_none());
            assert_eq!(queue.leave(at).map(|it| (it.item, it.at)), Some((n, at)));
        }
        assert_eq!(queue.next_timeout(), None);
    }
}

#[test]
fn what_finds_no_room_is_given_back_and_an_idle_cable_begins_anew() {
    let mut queue = far("rate=8M,buffer=3000");
    let entered = [0, 1, 2, 3].map(|n| queue.enter(0, frame(1_000, n as u8, n)));
    assert_eq!(entered, [Ok(()), Ok(()), Ok(()), Err(3)], "classes share the buffer");
    assert_eq!(queue.counts.map(|it| it.discards), [0, 0, 0, 1, 0, 0, 0, 0]);
    // A byte takes a microsecond, and of those that wait the highest goes first.
    assert_eq!(left(&mut queue, MILLISECOND), [(0, MILLISECOND)]);
    assert_eq!(queue.enter(MILLISECOND, frame(1_001, 0, 4)), Err(4));
    assert_eq!(queue.enter(MILLISECOND, frame(1_000, 0, 5)), Ok(()));
    let late = u64::MAX / 2;
    let found = left(&mut queue, late);
    assert_eq!(found, [(2, 2 * MILLISECOND), (1, 3 * MILLISECOND), (5, 4 * MILLISECOND)]);
    assert_eq!(queue.enter(late, frame(1, 0, 6)), Ok(()));
    assert_eq!(queue.next_timeout(), Some(late + 1_000));
}

#[test]
fn marks_go_by_what_waits_of_the_class() {
    let mut queue = far("rate=8M");
    for (priority, frames) in [(0, 2), (3, 3)] {
        (0..frames).for_each(|n| queue.enter(0, frame(1_000, priority, n)).unwrap());
    }
    let waited = std::iter::from_fn(|| queue.leave(MILLISECOND * 9)).map(|left| left.waited);
    assert_eq!(waited.collect::<Vec<_>>(), [2_000, 3_000, 2_000, 1_000, 1_000]);
}

#[test]
fn classes_share_a_cable_by_weights() {
    for mut queue in [own("rate=8M"), far("rate=8M")] {
        let ets = Ets { strict: 0x80, weights: [10, 0, 0, 60, 30, 0, 0, 0] };
        assert!(queue.set(0, Qos { ets, ..Qos::default() }, |_| 0).is_empty());
        let mut bytes = [0_u64; 8];
        let (mut now, mut at) = (0, [0; 8]);
        // As much of each waits at any time, and of the strict one a frame now and then.
        for step in 0..20_000_u64 {
            for priority in [0_u8, 3, 4] {
                while at[usize::from(priority)] < 20 {
                    queue.enter(now, frame(1_000, priority, priority.into())).unwrap();
                    at[usize::from(priority)] += 1;
                }
            }
            if step % 10 == 0 {
                queue.enter(now, frame(500, 7, 7)).unwrap();
                at[7] += 1;
            }
            now = queue.next_timeout().unwrap();
            let item = queue.leave(now).unwrap().item as usize;
            at[item] -= 1;
            bytes[item] += if item == 7 { 500 } else { 1_000 };
        }
        assert!(bytes[7] > 900_000 && at[7] <= 2, "{bytes:?} {at:?}");
        let rest: u64 = [0, 3, 4].map(|class| bytes[class]).iter().sum();
        for (class, weight) in [(0, 10), (3, 60), (4, 30)] {
            let share = bytes[class] * 1_000 / rest;
            assert!(share.abs_diff(weight * 10) <= 5, "class {class}: {share}");
        }
    }
}

#[test]
fn a_paused_priority_stops_and_the_others_go_on() {
    let mut queue = own("rate=8M");
    assert!(queue.set(0, lossless(1 << 3), |_| 0).is_empty());
    // The one that has begun to leave does so.
    for (item, priority) in [(0, 3), (1, 3), (2, 4), (3, 3)] {
        queue.enter(0, frame(1_000, priority, item)).unwrap();
    }
    // 100 quanta of 512 bits: 6.4 ms.
    queue.heed(0, &pause(&[3, 4], 100));
    assert_eq!(queue.counts.map(|it| it.pauses), [0, 0, 0, 1, 0, 0, 0, 0], "4 has no flow control");
    let found = left(&mut queue, 6 * MILLISECOND);
    assert_eq!(found, [(0, MILLISECOND), (2, 2 * MILLISECOND)]);
    assert_eq!(queue.next_timeout(), Some(6_400_000));
    assert_eq!(left(&mut queue, 8 * MILLISECOND), [(1, 7_400_000)]);
    // One that lets go on does at once.
    queue.enter(8 * MILLISECOND, frame(1_000, 3, 4)).unwrap();
    queue.heed(8 * MILLISECOND, &pause(&[3], 0xffff));
    assert_eq!(left(&mut queue, 9 * MILLISECOND), [(3, 8_400_000)]);
    queue.heed(9 * MILLISECOND, &pause(&[3], 0));
    assert_eq!(left(&mut queue, 11 * MILLISECOND), [(4, 10 * MILLISECOND)]);
}

#[test]
fn a_class_waits_for_all_of_its_priorities() {
    let mut queue = own("rate=8M");
    let classes = [0, 0, 0, 0, 0, 5, 5, 7];
    assert!(queue.set(0, Qos { classes, ..lossless(0xff) }, |_| 0).is_empty());
    queue.heed(0, &pause(&[5], 1_000));
    queue.heed(0, &pause(&[6], 100));
    queue.enter(0, frame(1_000, 6, 6)).unwrap();
    queue.heed(1, &pause(&[6], 0));
    assert_eq!(queue.next_timeout(), Some(64 * MILLISECOND), "priority 5 is paused");
}

#[test]
fn senders_pause_before_anything_is_lost_and_again_and_go_on_when_there_is_room() {
    let mut queue = far("rate=8M,buffer=128k");
    assert!(queue.set(0, lossless(1 << 3), |_| 0).is_empty());
    let mut entered = 0;
    while queue.said.is_empty() {
        queue.enter(0, Arrival { way: 1, ..frame(1_000, 3, entered) }).unwrap();
        entered += 1;
    }
    let paused = Pause { way: 1, priority: 3, quanta: pfc::LONGEST };
    assert_eq!(queue.said.pop_front(), Some(paused));
    // Frames under way have room: two each way, and those of the card's own queue.
    for n in 0..8 {
        queue.enter(0, Arrival { way: 1, ..frame(1_000, 3, entered + n) }).unwrap();
    }
    assert!(queue.said.is_empty() && queue.tend(0).is_empty());
    // Half of 65,535 quanta, and nothing has left.
    let half = pfc::duration(pfc::LONGEST / 2, 8_000_000, Instant::SECOND);
    assert_eq!(half, 2_097_088_000);
    let mut held = far("rate=1M,buffer=128k");
    held.set(0, lossless(1 << 3), |_| 0);
    while held.said.is_empty() {
        held.enter(0, frame(4_000, 3, 0)).unwrap();
    }
    held.said.clear();
    let again = pfc::duration(pfc::LONGEST / 2, 1_000_000, Instant::SECOND);
    assert!(held.tend(again - 1).is_empty() && held.said.is_empty());
    assert!(held.tend(again).is_empty());
    assert_eq!(held.said, [Pause { way: 0, ..paused }]);
    // It drains, and its sender goes on before it is empty.
    let mut waits = entered + 8;
    while queue.said.is_empty() {
        queue.leave(u64::MAX / 2).unwrap();
        waits -= 1;
    }
    assert_eq!(queue.said, [Pause { quanta: 0, ..paused }]);
    assert!(waits > 0 && queue.counts[3].discards == 0);
}

#[test]
fn a_priority_without_flow_control_is_dropped_and_takes_no_room_from_one_that_has() {
    let mut queue = far("rate=8M,buffer=64k");
    queue.set(0, lossless(1 << 3), |_| 0);
    while queue.enter(0, frame(1_000, 0, 0)).is_ok() {}
    assert_eq!((queue.counts[0].discards, queue.said.len()), (1, 0));
    (0..8).for_each(|n| queue.enter(0, frame(1_000, 3, n)).unwrap());
    assert_eq!(queue.counts[3].discards, 0);
}

#[test]
fn a_peer_that_pauses_for_ever_has_its_frames_dropped_and_the_others_go_on() {
    let mut queue = own("rate=8M");
    queue.set(0, lossless(1 << 3), |_| 0);
    queue.enter(0, frame(1_000, 4, 9)).unwrap();
    (0..5).for_each(|n| queue.enter(0, frame(1_000, 3, n)).unwrap());
    let (mut given_up, mut gone) = (Vec::new(), 0);
    for step in 0..1_000 {
        let now = step * MILLISECOND;
        queue.heed(now, &pause(&[3], 0xffff));
        given_up.extend(queue.tend(now));
        gone += left(&mut queue, now).len();
        if given_up.is_empty() {
            assert!(now < 400 * MILLISECOND, "it is detected");
        } else if step % 100 == 0 {
            assert_eq!(queue.enter(now, frame(1_000, 3, 77)), Err(77));
            queue.enter(now, frame(1_000, 4, 9)).unwrap();
        }
    }
    assert_eq!((given_up, queue.stood_still), (vec![0, 1, 2, 3, 4], 1));
    assert!(gone >= 7 && queue.given_up > 10, "{gone} {}", queue.given_up);
    // 200 ms behind the last pause it is as before.
    let now = 1_200 * MILLISECOND;
    queue.heed(now, &pause(&[3], 0));
    queue.enter(now, frame(1_000, 3, 8)).unwrap();
    assert_eq!(left(&mut queue, now + MILLISECOND), [(8, now + MILLISECOND)]);
}

#[test]
fn other_settings_let_what_waits_come_again_and_nobody_stays_paused() {
    let mut queue = far("rate=8M,buffer=64k");
    queue.set(0, lossless(1 << 3), |_| 0);
    while queue.said.is_empty() {
        queue.enter(0, frame(1_000, 3, 3)).unwrap();
    }
    queue.said.clear();
    let waits = queue.len();
    let trust = Trust::Pcp;
    assert!(queue.set(0, Qos { trust, ..lossless(0) }, |_| 5).is_empty());
    assert_eq!(queue.said, [Pause { way: 0, priority: 3, quanta: 0 }]);
    assert_eq!((queue.len(), queue.qos().pfc), (waits, 0));
    let found = left(&mut queue, u64::MAX / 2);
    assert_eq!(found.len(), waits);
    // The first had begun to leave.
    assert_eq!((queue.counts[3].packets, queue.counts[5].packets), (1, waits as u64 - 1));
    assert_eq!(queue.next_timeout(), None);
    while queue.enter(0, frame(1_000, 0, 0)).is_ok() {}
    assert!(queue.len() >= 65, "the whole buffer is free again: {}", queue.len());
}

#[test]
fn a_buffer_that_headroom_fills_is_told_and_nothing_changes() {
    assert_eq!(far("rate=10G").lacks(&lossless(7)), None);
    assert_eq!(far("rate=10G,buffer=64k").lacks(&lossless(1)), Some(64 << 10));
    assert_eq!(own("rate=10G,buffer=64k").lacks(&lossless(1)), None);
}
