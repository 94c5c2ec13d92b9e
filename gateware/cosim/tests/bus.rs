//! The bus before host memory: what passes, in which order, and how fast.

mod support;

use cosim::bus::{Beat, Fault, Master, Port, Request, STREAMS, Violation};
use cosim::limit::{Limit, measure};
use cosim::random::Random;
use cosim::{Bus, Config, Direction, Pages};
use support::Player;

/// Where memory begins, and how much there is.
const BASE: u64 = 0x7000_0000;
const BYTES: u64 = 1 << 18;

fn memory(seed: u64) -> Pages {
    let mut memory = Pages::default();
    memory.map(BASE, BYTES);
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = (0..BYTES).map(|_| random.next_u64() as u8).collect();
    memory.store(BASE, &bytes);
    memory
}

fn bytes_at(memory: &mut Pages, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.load(address, &mut bytes);
    bytes
}

/// A bus that is as unsteady as can be.
fn unsteady(seed: u64) -> Config {
    let mut random = Random::new(seed);
    Config {
        outstanding: random.one_of(&[8, 32, 64]),
        streams: 1 + random.below(STREAMS as u64) as u8,
        latency: random.below(300),
        jitter: random.below(400),
        bytes_per_cycle: 1 + random.below(80),
        payload: random.one_of(&[128, 256, 512]),
        read_request: random.one_of(&[128, 512, 4096]),
        stalls: random.below(200) as u8,
        hasty: 0,
        ends_held: random.below(400),
        seed,
    }
}

#[test]
fn each_byte_arrives_where_it_is_meant_whatever_the_seed() {
    for seed in 0..150 {
        let config = unsteady(seed);
        let mut random = Random::new(seed + 1);
        let mut bus = Bus::new(config.clone());
        let mut host = memory(seed);
        let mut wanted = host.clone();
        let mut player = Player::lazy(seed, random.below(200) as u8);
        let mut read: [Vec<u8>; STREAMS] = Default::default();
        // Reads of the one half, writes to the other, so that their order against each other does not count.
        for _ in 0..random.below(60) {
            let stream = random.below(config.streams.into());
            let most = random.one_of(&[64, 300, 4096]);
            let length = 1 + random.below(most);
            let offset = random.below(BYTES / 2 - length);
            if random.chance(128) {
                player.read(BASE + offset, length as u32, stream as u8);
                let bytes = bytes_at(&mut wanted, BASE + offset, length as usize);
                read[stream as usize].extend(bytes);
            } else {
                // A place of its own for each: the streams of writes do not wait for each other.
                let offset = BYTES / 2 + player.writes.len() as u64 * 4096;
                if offset + length > BYTES {
                    continue;
                }
                let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
                wanted.store(BASE + offset, &bytes);
                player.write(BASE + offset, &bytes, stream as u8);
            }
        }
        let (reads, writes) = (player.reads.len(), player.writes.len());
        player.play(&mut bus, &mut host);
        assert!(host == wanted, "seed {seed}: memory differs");
        assert_eq!(player.read, read, "seed {seed}");
        let ended = |which| player.ends.iter().filter(move |(_, direction, _)| *direction == which);
        assert_eq!(
            (ended(Direction::Read).count(), ended(Direction::Write).count()),
            (reads, writes)
        );
        assert!(player.most_open.iter().all(|most| *most <= config.outstanding), "seed {seed}");
        assert_eq!((bus.counts().reads, bus.counts().writes), (reads as u64, writes as u64));
    }
}

#[test]
fn a_seed_decides_the_cycle_of_everything() {
    let ends = |seed| {
        let mut bus = Bus::new(Config { jitter: 200, stalls: 60, seed, ..Config::default() });
        let mut host = memory(1);
        let mut player = Player::default();
        (0..40).for_each(|n| player.read(BASE + n * 512, 512, 0));
        player.play(&mut bus, &mut host);
        player.ends
    };
    assert_eq!(ends(5), ends(5));
    assert_ne!(ends(5), ends(6));
}

#[test]
fn answers_overtake_each_other_between_streams_and_none_does_within_one() {
    let mut overtook = false;
    for seed in 0..20 {
        let config = Config { streams: 2, jitter: 500, seed, ..Config::default() };
        let mut bus = Bus::new(config);
        let mut host = memory(seed);
        let mut player = Player::default();
        player.read(BASE, 64, 0);
        player.read(BASE + 64, 64, 1);
        player.read(BASE + 128, 64, 0);
        player.play(&mut bus, &mut host);
        let order: Vec<u8> = player.ends.iter().map(|(_, _, done)| done.stream).collect();
        overtook |= order[0] == 1;
        assert_eq!(
            player.read[0],
            bytes_at(&mut host, BASE, 64)
                .into_iter()
                .chain(bytes_at(&mut host, BASE + 128, 64))
                .collect::<Vec<_>>()
        );
    }
    assert!(overtook);
}

#[test]
fn a_read_sees_what_was_written_before_it_and_an_interrupt_comes_behind_it() {
    for seed in 0..50 {
        let mut bus = Bus::new(Config { jitter: 300, stalls: 100, seed, ..Config::default() });
        let mut host = memory(seed);
        let mut player = Player::lazy(seed, 100);
        player.write(BASE + 4000, &[7; 1000], 0);
        while !player.ends.iter().any(|(_, direction, _)| *direction == Direction::Write) {
            player.cycle(&mut bus, &mut host).unwrap();
        }
        player.read(BASE + 4000, 1000, 0);
        player.notify.push_back(9);
        let mut interrupt = None;
        while interrupt.is_none() {
            player.cycle(&mut bus, &mut host).unwrap();
            interrupt = bus.take_interrupt();
        }
        assert_eq!(interrupt, Some(9));
        assert_eq!(bytes_at(&mut host, BASE + 4000, 1000), [7; 1000]);
        player.play(&mut bus, &mut host);
        assert_eq!(player.read[0], [7; 1000]);
    }
}

#[test]
fn a_refused_fault_sends_nothing_back_and_all_else_goes_on() {
    let mut bus = Bus::new(Config { outstanding: 2, ..Config::default() });
    let mut host = memory(3);
    let mut player = Player::default();
    let beyond = BASE + BYTES - 10;
    for _ in 0..5 {
        player.read(beyond, 20, 0);
        player.write(beyond, &[1; 200], 0);
    }
    player.read(BASE, 100, 0);
    player.write(BASE + 200, &[2; 100], 0);
    player.play(&mut bus, &mut host);
    assert_eq!(player.read[0], bytes_at(&mut host, BASE, 100));
    assert_eq!(bytes_at(&mut host, BASE + 200, 100), [2; 100]);
    assert_eq!((player.ends.len(), bus.counts().refused), (2, 10));
    let faults: Vec<Fault> = std::iter::from_fn(|| bus.take_fault()).collect();
    let fault = |direction, length| Fault { direction, address: beyond, length };
    assert_eq!(faults.len(), 10);
    assert!(faults.contains(&fault(Direction::Read, 20)));
    assert!(faults.contains(&fault(Direction::Write, 200)));
    assert_eq!(bytes_at(&mut host, beyond, 10), bytes_at(&mut memory(3), beyond, 10));
}

#[test]
fn a_fault_is_refused_behind_all_ahead_of_it_or_at_once_where_none_has_the_same_bytes() {
    let beyond = BASE + BYTES;
    for (hasty, first, is_early) in
        [(0, BASE, false), (u8::MAX, BASE, true), (u8::MAX, beyond - 32, false)]
    {
        let mut earlier = 0;
        for seed in 0..20 {
            let mut bus = Bus::new(Config { hasty, seed, ..Config::default() });
            let mut host = memory(8);
            // What is there when the first one begins goes before the second.
            host.map(beyond, 4096);
            let mut player = Player::default();
            player.read(first, 64, 0);
            player.cycle(&mut bus, &mut host).unwrap();
            host.unmap(beyond, 1);
            player.read(beyond, 20, 0);
            while bus.counts().refused == 0 {
                player.cycle(&mut bus, &mut host).unwrap();
            }
            earlier += usize::from(player.ends.is_empty());
            player.play(&mut bus, &mut host);
            assert_eq!((player.ends.len(), player.read[0].len()), (1, 64));
        }
        // The seed lets one of 256 wait.
        assert_eq!(earlier > 15, is_early, "{hasty} {first:#x}: {earlier}");
        assert!(is_early || earlier == 0);
    }
}

#[test]
fn memory_that_goes_while_it_is_asked_for_reads_as_ones_and_keeps_no_writes() {
    let mut bus = Bus::new(Config::default());
    let mut host = memory(4);
    let mut player = Player::default();
    player.read(BASE, 64, 0);
    player.write(BASE + 4096, &[1; 64], 0);
    (0..10).for_each(|_| player.cycle(&mut bus, &mut host).unwrap());
    host.unmap(BASE, 8192);
    player.play(&mut bus, &mut host);
    assert_eq!(player.read[0], [0xff; 64]);
    assert!(!host.has(BASE + 4096, 1));
    assert_eq!((player.ends.len(), bus.counts().refused), (2, 0));
}

#[test]
fn logic_that_is_taken_off_reaches_nothing_and_hears_nothing_of_before() {
    for cycles in (0..600).step_by(7) {
        let mut bus = Bus::new(Config { jitter: 50, seed: cycles, ..Config::default() });
        let mut host = memory(5);
        let before = host.clone();
        let mut player = Player::default();
        for n in 0..20 {
            player.read(BASE + n * 4096, 4096, 0);
            player.write(BASE + (n + 20) * 4096, &[n as u8; 4096], 0);
        }
        (0..cycles).for_each(|_| player.cycle(&mut bus, &mut host).unwrap());
        bus.decouple(true);
        // It still drives whatever it likes.
        let wild = Master {
            read: Some(Request { address: BASE, length: 0, stream: 200 }),
            data: [Some(Beat { data: [9; 64], bytes: 64, last: false }); STREAMS],
            takes: [true; STREAMS],
            notify: Some(1),
            ..Master::default()
        };
        let mut waited = 0;
        while !bus.is_quiet() {
            bus.clock(&wild, &mut host).unwrap();
            assert_eq!(*bus.driven(), Default::default());
            waited += 1;
            assert!(waited < 2000);
        }
        // What was written is a beginning of what it wanted to write.
        let written = bytes_at(&mut host, BASE + 20 * 4096, 20 * 4096);
        let old = bytes_at(&mut before.clone(), BASE + 20 * 4096, 20 * 4096);
        let wanted: Vec<u8> = (0..20).flat_map(|n: u8| [n; 4096]).collect();
        let count = written.iter().zip(&wanted).take_while(|(is, wanted)| is == wanted).count();
        let behind = (count + 255) & !255;
        assert!(written[behind..] == old[behind..], "after {cycles} cycles");
        assert_eq!(bus.take_interrupt(), None);
        bus.decouple(false);
        let mut player = Player::default();
        player.read(BASE + 100, 50, 0);
        player.play(&mut bus, &mut host);
        assert_eq!(player.read[0], bytes_at(&mut host, BASE + 100, 50));
    }
}

#[test]
fn time_passes_at_once_only_while_nothing_is_under_way() {
    let mut bus = Bus::new(Config::default());
    let mut host = memory(6);
    bus.pass(1000);
    assert_eq!(bus.now(), 1000);
    let mut player = Player::default();
    player.read(BASE, 64, 0);
    player.cycle(&mut bus, &mut host).unwrap();
    bus.pass(1000);
    assert_eq!(bus.now(), 1001);
    player.play(&mut bus, &mut host);
    let [(end, ..)] = player.ends[..] else { panic!("{:?}", player.ends) };
    assert!((1000 + 250..1000 + 262).contains(&end), "{end}");
}

/// What the bus says to masters that break a rule in their second cycle.
fn broken(first: Master, second: Master) -> Violation {
    let mut bus = Bus::new(Config { outstanding: 1, streams: 2, ..Config::default() });
    let mut host = memory(7);
    bus.clock(&first, &mut host).unwrap();
    for _ in 0..3 {
        if let Err(violation) = bus.clock(&second, &mut host) {
            return violation;
        }
    }
    panic!("it says nothing to {second:?}");
}

#[test]
fn each_broken_rule_is_named() {
    let idle = Master::default();
    let request = Request { address: BASE, length: 100, stream: 0 };
    let read = |request| Master { read: Some(request), ..Master::default() };
    let write = |request| Master { write: Some(request), ..Master::default() };
    // The second request has to wait, for there is one place.
    let second = Request { address: BASE + 64, ..request };
    let mut bus = Bus::new(Config { outstanding: 1, ..Config::default() });
    let mut host = memory(7);
    bus.clock(&read(request), &mut host).unwrap();
    bus.clock(&read(second), &mut host).unwrap();
    let unstable = Violation::Unstable { cycle: 2, port: Port::Read };
    assert_eq!(bus.clock(&read(request), &mut host), Err(unstable));
    assert_eq!(
        unstable.to_string(),
        "cycle 2: sq_rd changed before it was taken; hold valid and what it shows until ready"
    );
    let long = Request { length: 4097, ..request };
    let length = |port, length| Violation::Length { cycle: 1, port, length };
    assert_eq!(broken(idle, read(long)), length(Port::Read, 4097));
    assert_eq!(broken(idle, write(Request { length: 0, ..request })), length(Port::Write, 0));
    let stream = Violation::Stream { cycle: 1, port: Port::Write, stream: 2, streams: 2 };
    assert_eq!(broken(idle, write(Request { stream: 2, ..request })), stream);
    let data = |bytes, last| {
        let mut master = Master::default();
        master.data[0] = Some(Beat { data: [0; 64], bytes, last });
        master
    };
    for (bytes, last) in [(63, false), (64, true), (0, false)] {
        let beat = Violation::Beat { cycle: 1, stream: 0, bytes, last, left: 100 };
        assert_eq!(broken(write(request), data(bytes, last)), beat);
    }
    let notify = |value| Master { notify: Some(value), ..Master::default() };
    let mut bus = Bus::new(Config { stalls: 255, ..Config::default() });
    bus.clock(&notify(1), &mut host).unwrap();
    let told = bus.clock(&notify(2), &mut host);
    assert_eq!(told, Err(Violation::Unstable { cycle: 1, port: Port::Notify }));
}

fn limit(config: &Config, direction: Direction, length: u32) -> Limit {
    measure(config, direction, length, 15_000).unwrap()
}

#[test]
fn the_places_of_the_shell_limit_small_reads_and_the_link_large_ones() {
    for outstanding in [8, 32, 64] {
        let config = Config { outstanding, ..Config::default() };
        // Each place serves one request in a time of latency.
        let most = outstanding as f64 / config.latency as f64 * 250e6;
        let small = limit(&config, Direction::Read, 64).per_second();
        assert!(small <= most && small > 0.9 * most, "{outstanding}: {small} of {most}");
        // 256 bytes and a header at a time.
        let most = 63.0 * 256.0 / 276.0 * 250e6;
        let large = limit(&config, Direction::Read, 4096).bandwidth();
        assert!(large <= most * 1.001 && large > 0.97 * most, "{outstanding}: {large} of {most}");
    }
}

#[test]
fn writes_wait_for_no_answer() {
    for outstanding in [8, 64] {
        let config = Config { outstanding, ..Config::default() };
        let most = 63.0 * 256.0 / 280.0 * 250e6;
        let large = limit(&config, Direction::Write, 4096).bandwidth();
        assert!(large <= most * 1.001 && large > 0.97 * most, "{large} of {most}");
        // A packet of 64 bytes and a header.
        let most = 63.0 / 88.0 * 250e6;
        let small = limit(&config, Direction::Write, 64).per_second();
        assert!(small <= most * 1.001 && small > 0.97 * most, "{small} of {most}");
    }
}

#[test]
fn ends_of_writes_that_are_kept_back_are_told_one_a_cycle() {
    let (writes, seeds) = (8, 20);
    let mut together = [0; 2];
    for seed in 0..seeds {
        for (ends_held, together) in [0, 500].into_iter().zip(&mut together) {
            let mut bus = Bus::new(Config { ends_held, seed, ..Config::default() });
            let (mut host, mut player) = (memory(seed), Player::default());
            (0..writes as u64).for_each(|it| player.write(BASE + 64 * it, &[7; 64], 0));
            while player.ends.len() < writes {
                player.cycle(&mut bus, &mut host).unwrap();
            }
            let first = player.ends[0].0;
            let are_together = (first..).zip(&player.ends).all(|(cycle, end)| end.0 == cycle);
            *together += usize::from(are_together);
        }
    }
    // On the link they take more than a cycle each.
    assert!(together[0] == 0 && together[1] > 15, "{together:?} of {seeds}");
}

#[test]
fn a_request_of_no_bytes_has_no_limit() {
    let none = measure(&Config::default(), Direction::Read, 0, 10);
    assert!(matches!(none, Err(Violation::Length { .. })));
}
