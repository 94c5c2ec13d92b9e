//! Invariants of every packet service, on any network: seeded, by services that watch themselves.

mod shared;

use std::sync::{Arc, Mutex};

use services::{
    About, Budget, Chain, End, Error, Halt, Operation, PacketService, Part, Placing, ServedQp,
    Settings, Stages, Verdict, limit,
};
use shared::{Dropper, NOTHING, carry, packets, traffic, word};
use trial::rng::{Rng, mix};

/// A call that a watcher has seen of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Begin(Operation),
    Act(Part),
    End(End),
}

/// A service that records its calls, and drops packets by its memory of those before.
#[derive(Debug)]
struct Watcher {
    about: About,
    seen: Mutex<Vec<Seen>>,
}

impl Watcher {
    fn new() -> Arc<Self> {
        let stages = Stages { check: true, act: true, ..Stages::default() };
        let about =
            About { name: "watcher".into(), stages, check_state: 16, act_state: 8, ..NOTHING };
        Arc::new(Self { about, seen: Mutex::default() })
    }
}

/// The digest that a check keeps, after one more payload.
fn digest(before: u64, payload: &[u8]) -> u64 {
    payload.iter().fold(before, |digest, byte| mix(digest ^ u64::from(*byte)))
}

impl PacketService for Watcher {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(
        &self,
        part: &Part,
        payload: &[u8],
        state: &mut [u8],
        _: &mut Budget,
    ) -> Result<Verdict, Halt> {
        assert_eq!(part.length as usize, payload.len());
        let before = word(state);
        state[..8].copy_from_slice(&digest(before, payload).to_le_bytes());
        Ok(Verdict::Accept)
    }

    fn begin(&self, part: &Part, _: &mut [u8], _: &mut Budget) -> Result<(), Halt> {
        self.seen.lock().unwrap().push(Seen::Begin(part.operation));
        Ok(())
    }

    fn act(
        &self,
        part: &Part,
        placing: &mut Placing<'_>,
        _: &mut [u8],
        _: &mut Budget,
    ) -> Result<(), Halt> {
        assert_eq!(part.length as usize, placing.bytes.len());
        self.seen.lock().unwrap().push(Seen::Act(*part));
        Ok(())
    }

    fn end(&self, end: &End, _: &mut [u8], _: &mut Budget) -> Result<(), Halt> {
        self.seen.lock().unwrap().push(Seen::End(*end));
        Ok(())
    }
}

#[test]
fn each_accepted_packet_is_acted_on_once_between_the_beginning_and_the_end_of_its_message() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let (watcher, dropper) = (Watcher::new(), Dropper::new());
        let chain = Chain::new(vec![dropper.clone(), watcher.clone()]).unwrap();
        let mut connection = ServedQp::new(Arc::new(chain));
        let all = traffic(rng);
        let (placed, dropped) = carry(rng, &mut connection, &all, &dropper);
        assert!(placed.iter().zip(&all).all(|(placed, (_, payload))| placed == payload), "{seed}");
        let seen = watcher.seen.lock().unwrap();
        for is_read in [false, true] {
            let own = |operation| (operation == Operation::Read) == is_read;
            let of = |it: &&Seen| match it {
                Seen::Begin(operation) => own(*operation),
                Seen::Act(part) => own(part.operation),
                Seen::End(end) => own(end.operation),
            };
            let mut expected = Vec::new();
            for (part, _) in all.iter().filter(|(part, _)| own(part.operation)) {
                let bytes = part.offset + u64::from(part.length);
                expected.extend(part.is_first().then_some(Seen::Begin(part.operation)));
                expected.push(Seen::Act(*part));
                let end = End { operation: part.operation, bytes };
                expected.extend(part.is_last.then_some(Seen::End(end)));
            }
            let seen: Vec<_> = seen.iter().filter(of).cloned().collect();
            assert_eq!(seen, expected, "seed {seed}");
        }
        let counters = connection.counters();
        assert_eq!(counters.acted_packets, all.len() as u64);
        assert!(counters.dropped_packets >= dropped);
        assert!(!connection.is_busy());
    }
}

/// A service that refuses a packet whose digest over all bytes before differs from that of a plain pass over them.
#[derive(Debug)]
struct Auditor {
    about: About,
    expected: Vec<u64>,
}

impl PacketService for Auditor {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(
        &self,
        _: &Part,
        payload: &[u8],
        state: &mut [u8],
        _: &mut Budget,
    ) -> Result<Verdict, Halt> {
        let count = u64::from_le_bytes(state[8..16].try_into().unwrap());
        let now = digest(word(state), payload);
        state[..8].copy_from_slice(&now.to_le_bytes());
        state[8..16].copy_from_slice(&(count + 1).to_le_bytes());
        let is_right = self.expected.get(count as usize) == Some(&now);
        Ok(if is_right { Verdict::Accept } else { Verdict::Refuse })
    }
}

#[test]
fn a_check_remembers_what_was_accepted_and_nothing_else() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let mut all = traffic(rng);
        all.retain(|(part, _)| part.operation != Operation::Read);
        let mut before = 0;
        let expected = all.iter().map(|(_, payload)| {
            before = digest(before, payload);
            before
        });
        let stages = Stages { check: true, ..Stages::default() };
        let about = About { name: "auditor".into(), stages, check_state: 16, ..NOTHING };
        let auditor = Arc::new(Auditor { about, expected: expected.collect() });
        let dropper = Dropper::new();
        let chain = Chain::new(vec![auditor, dropper.clone()]).unwrap();
        let mut connection = ServedQp::new(Arc::new(chain));
        carry(rng, &mut connection, &all, &dropper);
        assert_eq!(connection.counters().refused_packets, 0, "seed {seed}");
    }
}

#[test]
fn what_was_accepted_before_a_refusal_is_acted_on_and_nothing_is_under_way_behind_it() {
    let stages = Stages { check: true, ..Stages::default() };
    let about = About { name: "auditor".into(), stages, check_state: 16, ..NOTHING };
    let auditor = Auditor { about, expected: vec![digest(0, b"right")] };
    let mut connection = ServedQp::new(Arc::new(Chain::new(vec![Arc::new(auditor)]).unwrap()));
    let check = |connection: &mut ServedQp, offset, text: &[u8], is_last| {
        let part = Part { operation: Operation::Write, offset, length: text.len() as u32, is_last };
        connection.check(Some((&part, text)))
    };
    assert_eq!(check(&mut connection, 0, b"right", false), Verdict::Accept);
    connection.accept();
    assert_eq!(check(&mut connection, 5, b"wrong", false), Verdict::Refuse);
    assert_eq!(check(&mut connection, 0, b"another", true), Verdict::Refuse, "behind the end");
    assert!(connection.is_busy(), "the first packet is to be placed");
    assert!(connection.act(&mut Placing { bytes: &mut b"right".to_vec(), address: None }));
    assert!(!connection.is_busy());
    let counters = connection.counters();
    assert_eq!((counters.refused_packets, counters.acted_bytes), (1, 5));
}

/// Exchanges bytes as they leave for others, by their offset and a key, and back as they come.
#[derive(Debug)]
struct Mask {
    about: About,
    key: u64,
}

impl Mask {
    fn new(name: &'static str, key: u64) -> Arc<Self> {
        let stages = Stages { act: true, rewrites: true, transform: true, ..Stages::default() };
        Arc::new(Self { about: About { name: name.into(), stages, ..NOTHING }, key })
    }

    /// Multiplication and addition, so that the order of two masks matters.
    fn pair(&self, offset: u64) -> (u8, u8) {
        let bits = mix(self.key ^ offset);
        (bits as u8 | 1, (bits >> 8) as u8)
    }
}

/// The number by which an odd one has to be multiplied to make 1.
fn inverse(odd: u8) -> u8 {
    (1..=255).find(|it: &u8| it.wrapping_mul(odd) == 1).unwrap()
}

impl PacketService for Mask {
    fn about(&self) -> &About {
        &self.about
    }

    fn act(
        &self,
        part: &Part,
        placing: &mut Placing<'_>,
        _: &mut [u8],
        _: &mut Budget,
    ) -> Result<(), Halt> {
        for (offset, byte) in (part.offset..).zip(&mut *placing.bytes) {
            let (factor, summand) = self.pair(offset);
            *byte = byte.wrapping_sub(summand).wrapping_mul(inverse(factor));
        }
        Ok(())
    }

    fn transform(&self, part: &Part, payload: &mut [u8], _: &mut Budget) -> Result<(), Halt> {
        for (offset, byte) in (part.offset..).zip(payload) {
            let (factor, summand) = self.pair(offset);
            *byte = byte.wrapping_mul(factor).wrapping_add(summand);
        }
        Ok(())
    }
}

#[test]
fn what_is_changed_as_it_leaves_comes_back_in_the_chain_s_order_also_repeated_from_the_middle() {
    for seed in 0..50 {
        let rng = &mut Rng::new(seed);
        let names: [&'static str; 3] = ["one", "two", "three"];
        let masks = names.map(|name| Mask::new(name, rng.next()) as Arc<dyn PacketService>);
        // The receiver's chain undoes in its order; the sender's is the same.
        let chain = Arc::new(Chain::new(masks.to_vec()).unwrap());
        let (mut from, mut to) =
            (ServedQp::new(Arc::clone(&chain)), ServedQp::new(Arc::clone(&chain)));
        let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
        let mut repeated = 0;
        for (part, payload) in packets(rng, operation, 256) {
            let leave = |from: &mut ServedQp| {
                let mut bytes = payload.clone();
                assert!(from.transform(&part, &mut bytes));
                bytes
            };
            let mut bytes = leave(&mut from);
            while rng.chance(5000) {
                assert_eq!(leave(&mut from), bytes, "a repetition has the same bytes");
                repeated += 1;
            }
            assert_eq!(to.check(Some((&part, &bytes))), Verdict::Accept);
            to.accept();
            assert!(to.act(&mut Placing { bytes: &mut bytes, address: None }));
            assert_eq!(bytes, payload, "seed {seed}");
        }
        let (sent, came) = (from.counters(), to.counters());
        assert_eq!(sent.transformed_packets, came.acted_packets + repeated);
    }
}

/// Spends so much on each packet, at the stage that it has.
#[derive(Debug)]
struct Glutton {
    about: About,
    spends: u32,
}

impl Glutton {
    fn eat(&self, budget: &mut Budget) -> Result<(), Halt> {
        for _ in 0..self.spends {
            budget.spend(1)?;
        }
        Ok(())
    }
}

impl PacketService for Glutton {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(
        &self,
        _: &Part,
        _: &[u8],
        _: &mut [u8],
        budget: &mut Budget,
    ) -> Result<Verdict, Halt> {
        self.eat(budget).map(|()| Verdict::Accept)
    }

    fn act(
        &self,
        _: &Part,
        _: &mut Placing<'_>,
        _: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), Halt> {
        self.eat(budget)
    }

    fn transform(&self, _: &Part, _: &mut [u8], budget: &mut Budget) -> Result<(), Halt> {
        self.eat(budget)
    }
}

#[test]
fn a_service_that_exceeds_its_work_is_stopped_and_its_connection_alone_fails() {
    let check = Stages { check: true, ..Stages::default() };
    let act = Stages { act: true, ..Stages::default() };
    let transform = Stages { transform: true, ..Stages::default() };
    let part = Part { operation: Operation::Write, offset: 0, length: 8, is_last: true };
    // Whether a packet passes a connection with such a service.
    let passes = |connection: &mut ServedQp| {
        let mut bytes = [1; 8];
        connection.check(Some((&part, &bytes))) == Verdict::Accept
            && {
                connection.accept();
                connection.act(&mut Placing { bytes: &mut bytes, address: None })
            }
            && connection.transform(&part, &mut bytes)
    };
    for stages in [check, act, transform] {
        let about = About { name: "glutton".into(), stages, work: 1000, ..NOTHING };
        let connection = |spends| {
            let chain =
                Chain::new(vec![Arc::new(Glutton { about: about.clone(), spends })]).unwrap();
            ServedQp::new(Arc::new(chain))
        };
        let (mut endless, mut just) = (connection(u32::MAX), connection(1000));
        for round in 0..3 {
            assert!(!passes(&mut endless), "it has failed for good");
            assert!(passes(&mut just), "{round}");
        }
        assert_eq!(endless.counters().over_budget, 1);
        assert_eq!(just.counters().over_budget, 0);
        assert!(!endless.is_busy());
    }
}

#[test]
fn services_that_do_not_fit_are_no_chain() {
    let service =
        |about: About| -> Arc<dyn PacketService> { Arc::new(Glutton { about, spends: 0 }) };
    let named = |name: &'static str| About { name: name.into(), ..NOTHING };
    let refused =
        |abouts: &[About]| Chain::new(abouts.iter().cloned().map(service).collect()).unwrap_err();
    let rewrites = Stages { act: true, rewrites: true, ..Stages::default() };
    let rewriting = About { stages: rewrites, gives: Some("b"), ..named("rewriting") };
    let checks = About { stages: Stages { check: true, ..Stages::default() }, ..named("checks") };
    let takes = |takes| About { takes: Some(takes), ..named("takes") };

    assert_eq!(refused(&[]), Error::Length(0));
    assert_eq!(refused(&[NOTHING; limit::CHAIN + 1]), Error::Length(limit::CHAIN + 1));
    assert_eq!(refused(&[NOTHING, NOTHING]), Error::Twice("nothing".into()));
    let behind = Error::CheckBehind { checks: "checks".into(), rewrites: "rewriting".into() };
    assert_eq!(refused(&[rewriting.clone(), checks.clone()]), behind);
    let form = Error::Form { name: "takes".into(), takes: "a", gives: "b" };
    assert_eq!(refused(&[rewriting.clone(), NOTHING, takes("a")]), form);
    let large = About { check_state: limit::STATE, act_state: 1, ..NOTHING };
    assert_eq!(refused(&[large]), Error::State(limit::STATE + 1));
    let half = |name: &'static str| About { work: limit::WORK / 2 + 1, ..named(name) };
    assert_eq!(refused(&[half("one"), half("two")]), Error::Work(limit::WORK + 2));
    let named = |names: &[&str]| Chain::named(names, Settings::default()).unwrap_err();
    assert_eq!(named(&[]), Error::Length(0));
    assert_eq!(named(&["preprocess", "preprocess"]), Error::Twice("preprocess".into()));
    let unknown = named(&["nonsense"]).to_string();
    assert_eq!(
        unknown,
        r#"there is no service "nonsense"; there are classifier, inspect, preprocess"#
    );

    let fit = [checks, rewriting, takes("b")].map(service);
    assert_eq!(Chain::new(fit.to_vec()).unwrap().names(), ["checks", "rewriting", "takes"]);
}

/// Moves WRITEs.
#[derive(Debug)]
struct Mover(About);

impl PacketService for Mover {
    fn about(&self) -> &About {
        &self.0
    }

    fn act(
        &self,
        _: &Part,
        placing: &mut Placing<'_>,
        _: &mut [u8],
        _: &mut Budget,
    ) -> Result<(), Halt> {
        placing.address = placing.address.map(|address| address.wrapping_add(100));
        Ok(())
    }
}

#[test]
fn an_act_can_name_another_place() {
    let stages = Stages { act: true, ..Stages::default() };
    let mover = Mover(About { name: "mover".into(), stages, ..NOTHING });
    let mut connection = ServedQp::new(Arc::new(Chain::new(vec![Arc::new(mover)]).unwrap()));
    let part = Part { operation: Operation::Write, offset: 0, length: 1, is_last: true };
    assert_eq!(connection.check(Some((&part, &[1]))), Verdict::Accept);
    connection.accept();
    let mut placing = Placing { bytes: &mut [1], address: Some(u64::MAX) };
    assert!(connection.act(&mut placing));
    assert_eq!(placing.address, Some(99));
}
