//! Tests of the bad cable: its faults, their rates, and that it loses no other frames.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::line::{HOLD_NS, LIMIT};
use super::*;
use crate::port::{MIN_FRAME, SwitchPort, switch};

mod pauses;

const SOURCE: FaultSource = FaultSource { seed: 42, card: 0, layer: 0 };

/// Frames of a test that measures rates.
const MANY: u64 = 100_000;

/// Bytes in front of a test frame's number: Ethernet and IPv4 headers.
const NUMBER: usize = MIN_FRAME + 20;

/// The port behind the faults: a cable that a test holds the other end of.
#[derive(Default)]
struct Cable {
    sent: VecDeque<Frame>,
    /// Frames that it takes before it is full.
    room: usize,
    arriving: VecDeque<Frame>,
}

struct CablePort(Rc<RefCell<Cable>>);

impl Port for CablePort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        let mut cable = self.0.borrow_mut();
        let count = burst.len().min(cable.room);
        cable.room -= count;
        cable.sent.extend(burst.drain(..count));
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let mut cable = self.0.borrow_mut();
        let count = cable.arriving.len().min(budget);
        into.extend(cable.arriving.drain(..count));
    }

    fn room(&self) -> usize {
        self.0.borrow().room
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A port with faults, the far end of its cable, and the pool of both.
struct Bench {
    faults: Faults,
    cable: Rc<RefCell<Cable>>,
    pool: FramePool,
}

fn bench(spec: &str, source: FaultSource) -> Bench {
    let cable = Rc::new(RefCell::new(Cable { room: usize::MAX, ..Cable::default() }));
    let pool = FramePool::new(usize::MAX);
    let port = Box::new(CablePort(Rc::clone(&cable)));
    let faults = Faults::new(port, &spec.parse().unwrap(), source, &pool);
    Bench { faults, cable, pool }
}

/// An IPv4 packet that carries a number.
fn numbered(pool: &FramePool, number: u64) -> Frame {
    let header = roce::wire::ipv4::Repr {
        type_of_service: 2,
        time_to_live: 64,
        protocol: 17,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        payload_length: 8,
    };
    let mut frame = pool.take();
    frame.set_len(NUMBER + 8);
    let bytes = frame.as_mut_slice();
    bytes[..6].fill(2);
    bytes[6..12].fill(4);
    bytes[12..MIN_FRAME].copy_from_slice(&[8, 0]);
    bytes[MIN_FRAME..NUMBER].copy_from_slice(&header.to_bytes());
    bytes[NUMBER..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[NUMBER..].try_into().unwrap())
}

impl Bench {
    /// Sends frames with the numbers and returns those that come out at once.
    fn transmit(&mut self, now: u64, numbers: Range<u64>) -> Vec<Vec<u8>> {
        let pool = &self.pool;
        let mut burst: VecDeque<Frame> = numbers.map(|n| numbered(pool, n)).collect();
        self.faults.send(now, &mut burst);
        assert!(burst.is_empty(), "{} frames were refused", burst.len());
        self.transmitted()
    }

    fn transmitted(&mut self) -> Vec<Vec<u8>> {
        let mut cable = self.cable.borrow_mut();
        let frames = cable.sent.drain(..);
        frames.map(|frame| bytes_of(&self.pool, frame)).collect()
    }

    /// Lets frames with the numbers come and returns those that are delivered at once.
    fn deliver(&mut self, now: u64, numbers: Range<u64>) -> Vec<Vec<u8>> {
        self.cable.borrow_mut().arriving.extend(numbers.map(|n| numbered(&self.pool, n)));
        self.delivered(now)
    }

    fn delivered(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut into = VecDeque::new();
            self.faults.receive(now, &mut into, 64);
            assert!(into.len() <= 64);
            all.extend(into.drain(..).map(|frame| bytes_of(&self.pool, frame)));
            if self.faults.next_timeout().is_none_or(|timeout| timeout > now)
                && self.cable.borrow().arriving.is_empty()
            {
                return all;
            }
        }
    }

    /// Sends many frames one way and returns all that comes out in the end.
    fn run(&mut self, direction: Direction, frames: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for first in (0..frames).step_by(64) {
            let numbers = first..frames.min(first + 64);
            all.extend(match direction {
                Direction::Outbound => self.transmit(0, numbers),
                Direction::Inbound => self.deliver(0, numbers),
            });
        }
        let end = u64::MAX;
        let late = self.delivered(end);
        all.extend(match direction {
            Direction::Outbound => self.transmitted(),
            Direction::Inbound => late,
        });
        self.assert_empty();
        all
    }

    /// Nothing is under way, and every frame that was ever made is back in the pool.
    fn assert_empty(&self) {
        assert_eq!(self.faults.next_timeout(), None);
        assert_eq!(self.pool.made(), self.pool.kept() as u64, "frames leak");
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.faults.counters();
        let found: Vec<_> = counters.iter().filter(|(found, _)| *found == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].1
    }
}

fn bytes_of(pool: &FramePool, frame: Frame) -> Vec<u8> {
    let bytes = frame.as_slice().to_vec();
    pool.put(frame);
    bytes
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    frames.iter().map(|bytes| number_of(bytes)).collect()
}

const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::Outbound, "tx"), (Direction::Inbound, "rx")];

/// The frames that come out each way with one fault at 1 %, and its counter: it happens as often as it should, and no
/// other fault does.
fn alone(item: &str, counter: &str) -> Vec<(Vec<Vec<u8>>, u64)> {
    let each = |(direction, suffix): (Direction, &str)| {
        let mut bench = bench(&format!("{item}=1%"), SOURCE);
        let frames = bench.run(direction, MANY);
        let counter = format!("fault_{counter}_{suffix}");
        let counted = bench.counter(&counter);
        let mut others = bench.faults.counters();
        others.retain(|(name, _)| *name != counter);
        assert!(others.iter().all(|(_, value)| *value == 0), "{item} alone: {others:?}");
        assert_rate(&counter, counted, MANY, 0.01);
        (frames, counted)
    };
    DIRECTIONS.into_iter().map(each).collect()
}

/// Checks that a count is within four standard deviations of its expectation.
fn assert_rate(what: &str, counted: u64, of: u64, rate: f64) {
    let expected = of as f64 * rate;
    let deviation = (expected * (1.0 - rate)).sqrt();
    let off = (counted as f64 - expected) / deviation;
    assert!(off.abs() < 4.0, "{what}: {counted} of {of} are {off:.1} sigma from {expected}");
}

/// The frames that differ from those sent in their place.
fn changed(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, &Vec<u8>)> {
    assert_eq!(frames.len() as u64, MANY);
    let pool = FramePool::new(1);
    let sent = (0..).map(|number| bytes_of(&pool, numbered(&pool, number)));
    sent.zip(frames).filter(|(sent, frame)| sent != *frame).collect()
}

#[test]
fn loss_drops_frames_and_keeps_the_others_in_order() {
    for (frames, counted) in alone("loss", "lost") {
        let numbers = numbers(&frames);
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(numbers.len() as u64, MANY - counted);
    }
}

#[test]
fn dup_sends_frames_twice_and_keeps_all_in_order() {
    for (mut frames, counted) in alone("dup", "duplicated") {
        assert_eq!(frames.len() as u64, MANY + counted);
        frames.dedup();
        assert_eq!(changed(&frames), []);
    }
}

#[test]
fn reorder_lets_one_to_eight_later_frames_pass() {
    for (frames, counted) in alone("reorder", "reordered") {
        let mut numbers = numbers(&frames);
        let mut found = 0;
        let mut displacements = [0; 9];
        for at in 1..numbers.len() {
            let (before, after) = (numbers[at - 1], numbers[at]);
            if after < before {
                found += 1;
                displacements[usize::try_from(before - after).unwrap()] += 1;
            }
        }
        // Two that are held back at once may end in their first order.
        assert!((counted * 9 / 10..=counted).contains(&found), "{found} of {counted}");
        assert_eq!(displacements[0], 0);
        assert!(displacements[1..].iter().all(|count| *count > 70), "{displacements:?}");
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..MANY), "frames are lost or doubled");
    }
}

#[test]
fn corrupt_flips_exactly_one_bit_and_none_of_the_ethernet_header() {
    for (frames, counted) in alone("corrupt", "corrupted") {
        let changed = changed(&frames);
        assert_eq!(changed.len() as u64, counted);
        for (sent, frame) in changed {
            assert_eq!(sent[..MIN_FRAME], frame[..MIN_FRAME]);
            let bits = sent.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!((bits.sum::<u32>(), sent.len()), (1, frame.len()));
        }
    }
}

#[test]
fn ecn_marks_packets_and_keeps_their_checksum_right() {
    for (frames, counted) in alone("ecn", "ecn_marked") {
        let changed = changed(&frames);
        assert_eq!(changed.len() as u64, counted);
        for (sent, frame) in changed {
            let (header, payload) = roce::wire::ipv4::Repr::parse(&frame[MIN_FRAME..]).unwrap();
            assert_eq!((header.type_of_service, payload), (3, &sent[NUMBER..]));
        }
    }
}

#[test]
fn delay_holds_each_frame_for_its_time_and_keeps_the_order() {
    let (min, max) = (10_000, 50_000);
    let mut bench = bench("delay=10us..50us", SOURCE);
    assert_eq!(bench.transmit(1_000, 0..100), Vec::<Vec<u8>>::new());
    assert_eq!(bench.deliver(1_000, 0..100), Vec::<Vec<u8>>::new());
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut times = Vec::new();
    while let Some(now) = bench.faults.next_timeout() {
        times.push(now);
        received.extend(bench.delivered(now));
        sent.extend(bench.transmitted());
    }
    assert!(times.is_sorted() && times.len() > 4, "{times:?}");
    assert!(times.iter().all(|time| (1_000 + min..=1_000 + max).contains(time)), "{times:?}");
    for frames in [sent, received] {
        assert!(numbers(&frames).into_iter().eq(0..100));
    }
    assert_eq!((bench.counter("fault_delayed_tx"), bench.counter("fault_delayed_rx")), (100, 100));
    bench.assert_empty();

    // A delay of nothing is none: frames need no timer.
    assert_eq!(self::bench("delay=0ns", SOURCE).transmit(5, 0..3).len(), 3);
}

/// Bytes of a numbered frame.
const LENGTH: u64 = NUMBER as u64 + 8;

#[test]
fn what_comes_to_a_card_waits_for_its_cable_and_is_dropped_where_it_finds_no_room() {
    // A byte in a microsecond, and room for a hundred frames.
    let mut bench = bench(&format!("rate=8M,buffer={}", 100 * LENGTH), SOURCE);
    assert!(bench.deliver(0, 0..150).is_empty());
    assert_eq!(bench.counter("fault_dropped_rx"), 50);
    let mut found = Vec::new();
    while let Some(now) = bench.faults.next_timeout() {
        let delivered = bench.delivered(now);
        let at = (found.len() as u64 + 1) * LENGTH * 1_000;
        assert_eq!((now, delivered.len()), (at, 1));
        found.extend(numbers(&delivered));
    }
    assert!(found.into_iter().eq(0..100));
    bench.assert_empty();
}

#[test]
fn a_card_sends_no_faster_than_its_cable_and_keeps_what_is_left() {
    let mut bench = bench("rate=8M,buffer=1", SOURCE);
    let mut waiting: VecDeque<Frame> = (0..1_000).map(|n| numbered(&bench.pool, n)).collect();
    let mut sent = Vec::new();
    for number in 0..=1_000 {
        let now = number * LENGTH * 1_000;
        bench.faults.receive(now, &mut VecDeque::new(), 64);
        bench.faults.send(now, &mut waiting);
        sent.extend(numbers(&bench.transmitted()));
        assert_eq!(sent.len() as u64, number);
        // A bit more than two of the longest frames.
        let held = bench.faults.tx.occupied() as u64 * LENGTH;
        assert!(held < 8_704 + LENGTH && (held > 8_700 || waiting.is_empty()), "{held}");
        let due = bench.faults.next_timeout();
        assert!(due.is_some_and(|at| at <= now + LENGTH * 1_000), "{due:?}");
    }
    bench.delivered(1_000 * LENGTH * 1_000);
    assert!(sent.into_iter().eq(0..1_000));
    bench.assert_empty();
}

#[test]
fn what_waits_long_marks_packets_that_may_be_marked() {
    // Nothing is marked up to a hundred frames, half of all at two hundred, and all above.
    let text = format!("rate=8M,ecn={}:{}:50%", 100 * LENGTH, 200 * LENGTH);
    // As many frames wait from the first to the last but as were there at once.
    let marked = |waiting: u64| {
        let mut bench = bench(&text, SOURCE);
        let mut all = Vec::new();
        for number in 0..MANY / 10 {
            let now = number.saturating_sub(waiting) * LENGTH * 1_000;
            all.extend(bench.deliver(now, number..number + 1));
        }
        all.extend(bench.delivered(u64::MAX));
        bench.assert_empty();
        let is_marked = |frame: &&Vec<u8>| frame[MIN_FRAME + 1] & 3 == 3;
        let marked = all.iter().filter(is_marked).count() as u64;
        assert_eq!(marked, bench.counter("fault_ecn_marked_rx"));
        assert_eq!((all.len() as u64, bench.counter("fault_dropped_rx")), (MANY / 10, 0));
        marked
    };
    assert_eq!(marked(90), 0);
    assert_rate("marked at the middle", marked(150), MANY / 10, 0.25);
    // Fewer and fewer frames wait in the end.
    assert!(marked(210) > MANY / 10 - 420);
}

#[test]
fn what_cannot_be_marked_is_not() {
    let mut bench = bench("rate=8M,ecn=1:2:100%", SOURCE);
    let mut frame = numbered(&bench.pool, 1);
    frame.as_mut_slice()[MIN_FRAME + 1] = 0;
    let arriving = [frame, numbered(&bench.pool, 2)];
    bench.cable.borrow_mut().arriving.extend(arriving);
    assert!(bench.delivered(0).is_empty());
    let classes: Vec<u8> = bench.delivered(u64::MAX).iter().map(|it| it[MIN_FRAME + 1]).collect();
    assert_eq!((classes, bench.counter("fault_ecn_marked_rx")), (vec![0, 3], 1));
}

#[test]
fn what_a_cable_of_a_rate_does_depends_on_times_and_not_on_when_it_is_looked_at() {
    let spec = format!("rate=8M,buffer={},ecn={}:{}:90%", 40 * LENGTH, LENGTH, 30 * LENGTH);
    let run = |looks: bool| {
        let mut bench = bench(&spec, SOURCE);
        let mut all = Vec::new();
        for burst in 0..200_u64 {
            let now = burst * 7 * LENGTH * 1_000;
            while looks && bench.faults.next_timeout().is_some_and(|at| at <= now) {
                let at = bench.faults.next_timeout().unwrap();
                all.extend(bench.delivered(at));
            }
            all.extend(bench.deliver(now, burst * 8..burst * 8 + 8));
        }
        all.extend(bench.delivered(u64::MAX));
        (all, bench.counter("fault_dropped_rx"), bench.counter("fault_ecn_marked_rx"))
    };
    let seldom = run(false);
    assert!(seldom.1 > 0 && seldom.2 > 0);
    assert_eq!(seldom, run(true));
}

#[test]
fn all_faults_together_keep_their_rates_and_lose_no_frame_unseen() {
    let rates = [("lost", 0.05), ("duplicated", 0.1), ("reordered", 0.2), ("corrupted", 0.15)];
    let spec = "loss=5%,dup=10%,reorder=20%,corrupt=15%,ecn=30%,delay=0ns..1ms";
    for (direction, suffix) in DIRECTIONS {
        let mut bench = bench(spec, SOURCE);
        let mut all = Vec::new();
        let mut now = 0;
        for first in (0..MANY).step_by(50) {
            // Time goes on as long as the longest delay of the frames that fit on the way.
            now += 20_000;
            let numbers = first..first + 50;
            match direction {
                Direction::Outbound => all.extend(bench.transmit(now, numbers)),
                Direction::Inbound => all.extend(bench.deliver(now, numbers)),
            }
        }
        all.extend(bench.delivered(u64::MAX));
        all.extend(bench.transmitted());
        bench.assert_empty();
        let count = |cause: &str| bench.counter(&format!("fault_{cause}_{suffix}"));
        assert_eq!(all.len() as u64 + count("lost"), MANY + count("duplicated"));
        assert_rate("lost", count("lost"), MANY, 0.05);
        for (cause, rate) in &rates[1..] {
            assert_rate(cause, count(cause), MANY - count("lost"), *rate);
        }
        assert_rate("ecn_marked", count("ecn_marked"), MANY - count("lost"), 0.3);
        assert_eq!(count("delayed"), MANY - count("lost"));
    }
}

#[test]
fn the_nth_frame_meets_the_same_fate_however_the_frames_come() {
    let spec = "loss=10%,dup=10%,reorder=10%,corrupt=10%,ecn=10%";
    let run = |direction, source, burst: usize| {
        let mut bench = bench(spec, source);
        let mut all = Vec::new();
        for first in (0..2_000).step_by(burst) {
            let numbers = first..2_000.min(first + burst as u64);
            all.extend(match direction {
                Direction::Outbound => bench.transmit(0, numbers),
                Direction::Inbound => bench.deliver(0, numbers),
            });
        }
        all
    };
    for (direction, _) in DIRECTIONS {
        let once = run(direction, SOURCE, 1);
        assert_eq!(once, run(direction, SOURCE, 64));
        assert_eq!(once, run(direction, SOURCE, 499));
        for other in [
            FaultSource { seed: 43, ..SOURCE },
            FaultSource { card: 1, ..SOURCE },
            FaultSource { layer: 1, ..SOURCE },
        ] {
            assert_ne!(once, run(direction, other, 64), "{other:?}");
        }
    }
    assert_ne!(run(Direction::Outbound, SOURCE, 64), run(Direction::Inbound, SOURCE, 64));
}

#[test]
fn a_frame_that_nothing_follows_is_held_back_for_a_bounded_time() {
    for (direction, _) in DIRECTIONS {
        let mut bench = bench("reorder=100%", SOURCE);
        let at_once = match direction {
            Direction::Outbound => bench.transmit(7, 0..1),
            Direction::Inbound => bench.deliver(7, 0..1),
        };
        assert_eq!(at_once.len(), 0);
        assert_eq!(bench.faults.next_timeout(), Some(7 + HOLD_NS));
        assert_eq!(bench.delivered(6 + HOLD_NS).len() + bench.transmitted().len(), 0);
        assert_eq!(bench.delivered(7 + HOLD_NS).len() + bench.transmitted().len(), 1);
        bench.assert_empty();
    }
}

#[test]
fn holding_every_frame_back_reorders_them_and_keeps_few() {
    let mut bench = bench("reorder=100%", SOURCE);
    let mut found = Vec::new();
    for number in 0..1_000 {
        found.extend(numbers(&bench.transmit(0, number..number + 1)));
        assert!(number + 1 - found.len() as u64 <= 8, "{number}: {} have come", found.len());
    }
    assert!(!found.is_sorted());
    let late = found.iter().zip(0..).filter(|(number, at)| *number + 8 < *at).count();
    assert_eq!(late, 0);
}

#[test]
fn a_full_port_is_felt_by_the_sender_and_no_frame_is_lost() {
    for spec in ["dup=50%", "reorder=50%", "delay=1us..3us,dup=20%", "ecn=0%", "rate=10G"] {
        let mut bench = bench(spec, SOURCE);
        let mut waiting: VecDeque<Frame> = VecDeque::new();
        let mut next = 0;
        let mut found = Vec::new();
        for step in 0..2_000_u64 {
            // Rooms from none to more than a burst, each for a while.
            bench.cable.borrow_mut().room = [0, 1, 0, 7, 100][(step / 3 % 5) as usize];
            let now = step * 1_000;
            // A card receives, then asks for the room, then sends.
            bench.faults.receive(now, &mut VecDeque::new(), 64);
            let room = bench.faults.room();
            if waiting.is_empty() && next < 20_000 {
                let count = room.min(64) as u64;
                waiting.extend((next..next + count).map(|n| numbered(&bench.pool, n)));
                next += count;
                bench.faults.send(now, &mut waiting);
                assert!(waiting.is_empty(), "{spec}: room for {room}, {} left", waiting.len());
                // One more burst than there is room for.
                waiting.extend((next..next + 64).map(|n| numbered(&bench.pool, n)));
                next += 64;
            }
            bench.faults.send(now, &mut waiting);
            found.extend(numbers(&bench.transmitted()));
            let keeps = ["delay", "rate"].iter().any(|item| spec.contains(item));
            assert!(bench.faults.tx.occupied() <= 2 * CHUNK + 8 || keeps);
            assert!(bench.faults.tx.occupied() <= 2 * LIMIT);
        }
        let put = |frame| bench.pool.put(frame);
        next -= waiting.len() as u64;
        waiting.drain(..).for_each(put);
        bench.cable.borrow_mut().room = usize::MAX;
        assert!(bench.delivered(u64::MAX).is_empty());
        found.extend(numbers(&bench.transmitted()));
        bench.assert_empty();
        found.sort_unstable();
        found.dedup();
        assert!(found.into_iter().eq(0..next), "{spec}: not all of {next} frames have come");
        assert!(next > 5_000, "{spec}: only {next} frames went");
    }
}

#[test]
fn a_long_delay_keeps_a_bounded_number_of_frames_each_way() {
    let mut bench = bench("delay=1000ms", SOURCE);
    assert_eq!(bench.faults.room(), LIMIT);
    let total = LIMIT as u64 + 100;
    let mut burst: VecDeque<Frame> = (0..total).map(|n| numbered(&bench.pool, n)).collect();
    bench.faults.send(0, &mut burst);
    assert_eq!((burst.len(), bench.faults.room()), (100, 0));
    bench.cable.borrow_mut().arriving.extend((0..total).map(|n| numbered(&bench.pool, n)));
    let mut into = VecDeque::new();
    for _ in 0..100 {
        bench.faults.receive(0, &mut into, 64);
    }
    assert_eq!((into.len(), bench.cable.borrow().arriving.len()), (0, 100));
    assert_eq!(bench.faults.next_timeout(), Some(1_000_000_000));

    bench.faults.receive(1_000_000_000, &mut into, usize::MAX);
    assert_eq!(into.len(), LIMIT);
    assert_eq!(bench.transmitted().len(), LIMIT);
    bench.faults.send(1_000_000_000, &mut burst);
    assert!(burst.is_empty());
}

#[test]
fn a_receiver_gets_no_more_than_it_asks_for_and_is_told_of_the_rest() {
    let mut bench = bench("dup=100%", SOURCE);
    bench.cable.borrow_mut().arriving.extend((0..3).map(|n| numbered(&bench.pool, n)));
    let mut found = Vec::new();
    while found.len() < 6 {
        let mut into = VecDeque::new();
        bench.faults.receive(9, &mut into, 1);
        assert_eq!(into.len(), 1);
        found.extend(into.drain(..).map(|frame| number_of(frame.as_slice())));
        if found.len() % 2 == 1 {
            assert_eq!(bench.faults.next_timeout(), Some(9));
        }
    }
    assert_eq!((found, bench.faults.next_timeout()), (vec![0, 0, 1, 1, 2, 2], None));
}

/// Calls ports as the card thread does, until none asks for more, and returns the frames that they receive.
fn rounds(ports: &mut [&mut dyn Port], now: u64, waiting: &mut VecDeque<Frame>) -> Vec<u64> {
    let mut found = Vec::new();
    loop {
        let mut worked = false;
        for (number, port) in ports.iter_mut().enumerate() {
            let mut into = VecDeque::new();
            port.receive(now, &mut into, 64);
            worked |= !into.is_empty();
            found.extend(into.iter().map(|frame| number_of(frame.as_slice())));
            let before = waiting.len();
            if number == 0 {
                port.send(now, waiting);
            }
            worked |= waiting.len() < before;
        }
        let due = |port: &&mut dyn Port| port.next_timeout().is_some_and(|time| time <= now);
        if !worked && !ports.iter().any(due) {
            return found;
        }
    }
}

fn switched(specs: [Option<&str>; 2], pool: &FramePool) -> Vec<Box<dyn Port>> {
    let with_faults = |(port, spec): (SwitchPort, Option<&str>)| match spec {
        Some(spec) => {
            let spec = spec.parse().unwrap();
            Box::new(Faults::new(Box::new(port), &spec, SOURCE, pool)) as Box<dyn Port>
        }
        None => Box::new(port),
    };
    switch(2, pool).into_iter().zip(specs).map(with_faults).collect()
}

#[test]
fn frames_that_nobody_sees_go_by_do_not_stall_those_behind_them() {
    let pool = FramePool::new(usize::MAX);
    // More than a switch keeps, so the sender waits until the receiver has swallowed some.
    let burst = || -> VecDeque<Frame> { (0..2_000).map(|n| numbered(&pool, n)).collect() };
    for (specs, expected) in [
        ([None, Some("loss=100%")], 0),
        ([Some("dup=100%"), Some("loss=100%")], 0),
        ([Some("dup=100%"), None], 4_000),
        ([Some("reorder=100%"), Some("dup=100%")], 4_000),
    ] {
        for backwards in [false, true] {
            let mut ports = switched(specs, &pool);
            let [sender, receiver] = &mut ports[..] else { unreachable!() };
            let mut waiting = burst();
            let mut found = match backwards {
                false => rounds(&mut [&mut **sender, &mut **receiver], 0, &mut waiting),
                // The sender comes last in a round: its frames wait for the next one.
                true => {
                    let mut found = Vec::new();
                    while !waiting.is_empty() {
                        sender.send(0, &mut waiting);
                        found.extend(rounds(
                            &mut [&mut **receiver, &mut **sender],
                            0,
                            &mut VecDeque::new(),
                        ));
                    }
                    found
                }
            };
            assert!(waiting.is_empty(), "{specs:?}: {} frames are stuck", waiting.len());
            found.extend(rounds(&mut [&mut **sender, &mut **receiver], HOLD_NS, &mut waiting));
            assert_eq!(found.len(), expected, "{specs:?}");
        }
    }
}

#[test]
fn a_delayed_frame_reaches_a_card_that_was_asked_before_its_sender() {
    let pool = FramePool::new(usize::MAX);
    let mut ports = switched([Some("delay=5us"), None], &pool);
    let [sender, receiver] = &mut ports[..] else { unreachable!() };
    sender.send(0, &mut VecDeque::from([numbered(&pool, 3)]));
    assert_eq!(sender.next_timeout(), Some(5_000));
    let found = rounds(&mut [&mut **receiver, &mut **sender], 5_000, &mut VecDeque::new());
    assert_eq!(found, [3]);
}

#[test]
fn faults_around_faults_both_apply_and_count_together() {
    let cable = Rc::new(RefCell::new(Cable { room: usize::MAX, ..Cable::default() }));
    let pool = FramePool::new(usize::MAX);
    let spec = "loss=10%".parse().unwrap();
    let mut port: Box<dyn Port> = Box::new(CablePort(Rc::clone(&cable)));
    for layer in [1, 0] {
        port = Box::new(Faults::new(port, &spec, FaultSource { layer, ..SOURCE }, &pool));
    }
    let mut faults = Bench { faults: bench("ecn=0%", SOURCE).faults, cable, pool };
    faults.faults.port = port;
    let survived = faults.run(Direction::Outbound, MANY).len() as u64;
    assert_eq!(faults.counter("fault_lost_tx"), MANY - survived);
    assert_rate("lost by two", MANY - survived, MANY, 0.19);
}
