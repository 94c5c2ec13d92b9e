//! Tests of pauses between cards whose cables have rates, and of their settings.

use roce::qos::Ets;

use super::*;

/// Bytes of a frame, of which a hundredth of a second carries ten on the slowest of the cables.
const BYTES: usize = 1_000;

/// A frame of a priority from a card to another one.
fn frame(pool: &FramePool, [to, from]: [u8; 2], priority: u8) -> Frame {
    let mut frame = pool.take();
    frame.set_len(BYTES);
    let header = roce::wire::ipv4::Repr {
        type_of_service: priority << 5,
        time_to_live: 64,
        protocol: 17,
        source: [10, 0, 0, from].into(),
        destination: [10, 0, 0, to].into(),
        payload_length: (BYTES - NUMBER) as u16,
    };
    let bytes = frame.as_mut_slice();
    bytes.fill(0);
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    bytes[12..MIN_FRAME].copy_from_slice(&[8, 0]);
    bytes[MIN_FRAME..NUMBER].copy_from_slice(&header.to_bytes());
    frame
}

/// Cards on a switch, each with frames that it sends without end, and each card's received bytes.
struct Cards {
    ports: Vec<Box<dyn Port>>,
    pool: FramePool,
    now: u64,
    /// Bytes of each priority that each has received, and its pauses.
    received: Vec<[u64; 8]>,
    pauses: Vec<u64>,
}

impl Cards {
    fn new(specs: &[&str], qos: &Qos) -> Self {
        let pool = FramePool::new(usize::MAX);
        let put = |(port, spec): (SwitchPort, &&str)| {
            let spec = spec.parse().unwrap();
            let port = Faults::new(Box::new(port), &spec, SOURCE, &pool);
            Box::new(port) as Box<dyn Port>
        };
        let mut ports: Vec<_> =
            switch(specs.len(), &pool).into_iter().zip(specs).map(put).collect();
        for (number, port) in (0..).zip(&mut ports) {
            port.set_addresses([2, 0, 0, 0, 0, number], &[]);
            port.set_qos(0, qos).unwrap();
        }
        let mut cards = Self {
            now: 0,
            received: vec![[0; 8]; ports.len()],
            pauses: vec![0; ports.len()],
            ports,
            pool,
        };
        // The switch learns where each is.
        for from in 0..cards.ports.len() as u8 {
            let nobody = frame(&cards.pool, [0xff, from], 7);
            cards.ports[usize::from(from)].send(0, &mut VecDeque::from([nobody]));
        }
        cards.run(1_000_000, &[]);
        cards.received.iter_mut().for_each(|it| *it = [0; 8]);
        cards
    }

    /// Lets time pass, in which flows send as much as ports take: each from a card to another one, of a priority.
    fn run(&mut self, time: u64, flows: &[(u8, u8, u8)]) {
        let until = self.now + time;
        while self.now < until {
            for number in 0..self.ports.len() {
                let mut into = VecDeque::new();
                self.ports[number].receive(self.now, &mut into, 64);
                for frame in into {
                    match pfc::parse(frame.as_slice()) {
                        Some(_) => self.pauses[number] += 1,
                        None => {
                            let priority = frame.as_slice()[MIN_FRAME + 1] >> 5;
                            let bytes = frame.as_slice().len() as u64;
                            self.received[number][usize::from(priority)] += bytes;
                        }
                    }
                    self.pool.put(frame);
                }
                let own = flows.iter().filter(|(from, ..)| usize::from(*from) == number);
                for &(from, to, priority) in own {
                    let rooms = &mut self.ports[number].rooms().unwrap();
                    let mut burst = VecDeque::new();
                    while burst.len() < 16 && rooms.take(priority) {
                        burst.push_back(frame(&self.pool, [to, from], priority));
                    }
                    self.ports[number].send(self.now, &mut burst);
                    assert!(burst.is_empty(), "there was room for it");
                }
            }
            self.now += 10_000;
        }
    }

    fn counter(&self, card: usize, name: &str) -> u64 {
        self.ports[card].counters().iter().find(|(found, _)| *found == name).unwrap().1
    }
}

fn lossless(priorities: u8) -> Qos {
    Qos { pfc: priorities, ..Qos::default() }
}

/// Two priorities have the same.
const HALVES: Ets = Ets { strict: 0xe7, weights: [0, 0, 0, 50, 50, 0, 0, 0] };

const SPECS: [&str; 4] = ["rate=100M", "rate=100M", "rate=100M,buffer=256k", "rate=100M"];
/// Two cards send to a third, and one of them by another priority to a fourth.
const FLOWS: [(u8, u8, u8); 3] = [(0, 2, 3), (1, 2, 3), (0, 3, 4)];
const TIME: u64 = 400_000_000;

#[test]
fn senders_to_a_full_cable_pause_and_nothing_is_lost() {
    let mut without = Cards::new(&SPECS, &Qos { ets: HALVES, ..Qos::default() });
    without.run(TIME, &FLOWS);
    assert!(without.counter(2, "fault_dropped_rx") > 100 && without.pauses == [0; 4]);

    let mut cards = Cards::new(&SPECS, &Qos { ets: HALVES, ..lossless(1 << 3) });
    cards.run(TIME, &FLOWS);
    assert_eq!((0..4).map(|card| cards.counter(card, "fault_dropped_rx")).sum::<u64>(), 0);
    assert!(cards.pauses[0] > 0 && cards.pauses[1] > 0 && cards.pauses[2..] == [0, 0]);
    let said = cards.counter(2, "tx_prio3_pause");
    assert_eq!(said, cards.pauses.iter().sum::<u64>());
    assert_eq!(cards.counter(1, "rx_prio3_pause"), cards.pauses[1]);
    // 100 Mb/s for 0.4 s: 5 MB, which both share.
    let full = 5_000_000;
    assert!(cards.received[2][3] > full * 95 / 100, "{:?}", cards.received);
    // The flow to another card gets the part of its card's cable that the pauses leave: half, and not less.
    assert!(cards.received[3][4] > full * 48 / 100, "{:?}", cards.received);
}

#[test]
fn a_card_shares_its_cable_by_weights_and_the_switch_does_so_too() {
    let ets = Ets { strict: 0, weights: [10, 0, 0, 60, 30, 0, 0, 0] };
    let shared = |specs: &[&str], flows: &[(u8, u8, u8)]| {
        let mut cards = Cards::new(specs, &Qos { ets, ..lossless(0xff) });
        cards.run(TIME / 4, flows);
        cards.received.iter_mut().for_each(|it| *it = [0; 8]);
        cards.run(TIME, flows);
        let bytes = cards.received[1];
        let sum: u64 = bytes.iter().sum();
        assert!(sum > 4_700_000, "{bytes:?}");
        [0, 3, 4].map(|priority| bytes[priority] * 1_000 / sum)
    };
    // One cable is full at its beginning, the other at its end.
    let own = shared(&["rate=100M", "rate=1G"], &[(0, 1, 0), (0, 1, 3), (0, 1, 4)]);
    let ends = ["rate=1G", "rate=100M,buffer=1M", "rate=1G", "rate=1G"];
    let far = shared(&ends, &[(0, 1, 0), (2, 1, 3), (3, 1, 4)]);
    for shares in [own, far] {
        for (share, weight) in shares.into_iter().zip([100_u64, 600, 300]) {
            assert!(share.abs_diff(weight) <= 20, "{shares:?}");
        }
    }
}

#[test]
fn no_switch_forwards_a_pause_that_a_card_sends() {
    let mut cards = Cards::new(&SPECS, &lossless(1 << 3));
    let mut pause = cards.pool.take();
    pause.set_len(pfc::LENGTH);
    let mac = MacAddr([2, 0, 0, 0, 0, 3]);
    pause.as_mut_slice().copy_from_slice(&pfc::frame(mac, 3, pfc::LONGEST));
    cards.ports[3].send(cards.now, &mut VecDeque::from([pause]));
    cards.run(TIME / 40, &[(0, 1, 3)]);
    assert_eq!(cards.pauses, [0; 4]);
    assert!(cards.received[1][3] > 0);
}

#[test]
fn a_cable_without_a_rate_has_no_queues_to_set() {
    let pool = FramePool::new(8);
    for spec in ["loss=1%", "delay=1us"] {
        let mut port = bench(spec, SOURCE).faults;
        let why = "nothing waits there, for its cable has no rate: start balboad with --fault rate=10G,card=N";
        assert!(port.set_qos(0, &Qos::default()).unwrap_err().to_string().starts_with(why));
        assert!(port.qos().is_err() && port.rooms().is_none());
    }
    let mut port = bench("rate=10G,buffer=64k", SOURCE).faults;
    let refusal = port.set_qos(0, &lossless(1)).unwrap_err().to_string();
    assert!(refusal.contains("all of the cable's buffer of 65536 bytes"), "{refusal}");
    assert_eq!(port.qos().unwrap(), &Qos::untouched());
    // Around others that have none, it is this one's.
    let inner = Box::new(bench("rate=10G", SOURCE).faults);
    let mut port = Faults::new(inner, &"loss=0%,dup=1%".parse().unwrap(), SOURCE, &pool);
    port.set_qos(0, &lossless(1)).unwrap();
    assert_eq!(port.qos().unwrap().pfc, 1);
}
