//! Answers that are given ahead.

use std::sync::Arc;

use hostmem::{Access, SharedMapping, memfd};
use shim_abi::{CM_ERA, CmQuestion};

use super::*;

/// The word of a program's by which it is told that answers hold no longer.
struct Word(Arc<SharedMapping>);

impl Word {
    fn of(bench: &mut Bench, program: &Program) -> Self {
        let memory = memfd::create("rings", 4096).unwrap();
        let mapping = SharedMapping::new(memory.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
        let mapping = Arc::new(mapping);
        bench.server.tell_ahead(program.asker.client, &mapping);
        Self(mapping)
    }

    fn era(&self) -> u32 {
        self.0.load_acquire_u32(CM_ERA as usize).unwrap()
    }
}

/// Two programs that are told ahead, one of which has a request of the other's.
struct Asked {
    bench: Bench,
    alice: Program,
    bob: Program,
    words: [Word; 2],
    /// The identifiers of both.
    ids: [u32; 2],
}

fn asked() -> Asked {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let words = [&alice, &bob].map(|program| Word::of(&mut bench, program));
    let listener = bench.id(&mut bob, 1);
    bench.bind(&mut bob, listener, "10.77.0.2:7174").unwrap();
    bench.listen(&mut bob, listener, 10).unwrap();
    let id = bench.id(&mut alice, 2);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    bench.connect(&mut alice, id, 17, b"ask").unwrap();
    bench.carry();
    let asked = bench.event(&mut bob);
    assert_eq!(asked.number, event::CONNECT_REQUEST);
    Asked { bench, alice, bob, words, ids: [id, asked.id] }
}

impl Bench {
    /// Checks that a program's questions are answered as the answers ahead with its last event said; gives the states
    /// in them.
    fn holds(&mut self, program: &mut Program, id: u32) -> Vec<u32> {
        let ahead = program.ahead.clone().unwrap();
        assert_eq!(ahead.id, id);
        let mut states = Vec::new();
        for (question, answer) in ahead.answers {
            let asked = match question {
                CmQuestion::Route => {
                    let asked = body(16, &[(8, &id.to_ne_bytes())]);
                    self.say(program, &raw(number::QUERY_ROUTE, &asked, 208))
                }
                CmQuestion::QpAttributes(state) => {
                    states.push(state);
                    self.qp_attr(program, id, state)
                }
            };
            assert_eq!(asked.unwrap(), answer, "{question:?}");
        }
        states
    }
}

#[test]
fn what_is_told_ahead_is_what_is_answered() {
    let mut it = asked();
    let [id, asked] = it.ids;
    assert_eq!(it.bench.holds(&mut it.bob, asked), [1, 2, 3]);
    it.bench.accept(&mut it.bob, asked, 3, 18, b"yes").unwrap();
    it.bench.carry();
    assert_eq!(it.bench.event(&mut it.alice).number, event::CONNECT_RESPONSE);
    assert_eq!(it.bench.holds(&mut it.alice, id), [1, 2, 3]);
    it.bench.ready(&mut it.alice, id).unwrap();
    it.bench.carry();
    assert_eq!(it.bench.event(&mut it.bob).number, event::ESTABLISHED);
    // Each has changed its own before the other did.
    assert_eq!(it.words.map(|word| word.era()), [0, 0]);
}

#[test]
fn routes_are_told_ahead() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let _word = Word::of(&mut bench, &alice);
    let id = bench.id(&mut alice, 2);
    bench.resolve(&mut alice, id, None, "10.77.0.2:7174").unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
    assert!(bench.holds(&mut alice, id).is_empty());
    bench.route(&mut alice, id).unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ROUTE_RESOLVED);
    assert_eq!(bench.holds(&mut alice, id), [1]);
}

#[test]
fn who_shares_no_memory_is_told_nothing_ahead() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let id = bench.id(&mut alice, 2);
    bench.reach(&mut alice, id, "10.77.0.2:7174");
    assert_eq!(alice.ahead, None);
}

#[test]
fn what_a_peer_changes_ends_the_era_of_whom_it_concerns() {
    let mut it = asked();
    let [id, asked] = it.ids;
    it.bench.destroy(&mut it.alice, id);
    it.bench.carry();
    assert_eq!(it.words.map(|word| word.era()), [0, 1]);
    assert!(it.bench.qp_attr(&mut it.bob, asked, 2).is_err());
}

#[test]
fn what_another_process_of_the_channel_changes_ends_the_era() {
    let mut it = asked();
    let [_, asked] = it.ids;
    let child = Asker { client: ClientId(3), uid: UID };
    let (bob, own) = (it.bob.asker, it.words[1].era());
    it.bob.asker = child;
    it.bench.accept(&mut it.bob, asked, 3, 18, b"yes").unwrap();
    it.bob.asker = bob;
    assert_eq!((own, it.words[1].era()), (0, 1));
}

#[test]
fn a_command_that_was_sent_before_the_event_was_read_ends_the_era() {
    let mut it = asked();
    let [_, asked] = it.ids;
    // Another thread has read it meanwhile, and said so.
    it.bench.tell_read(&mut it.bob);
    it.bob.read = 0;
    it.bench.accept(&mut it.bob, asked, 3, 18, b"yes").unwrap();
    assert_eq!(it.words.map(|word| word.era()), [0, 1]);
}

#[test]
fn addresses_and_cards_that_go_end_all_eras() {
    let mut it = asked();
    it.bench.server.outdate_all();
    assert_eq!([it.words[0].era(), it.words[1].era()], [1, 1]);
    it.bench.server.lose_card(1);
    assert_eq!(it.words.map(|word| word.era()), [2, 2]);
}

#[test]
fn a_channel_that_ends_ends_the_era_of_who_was_told() {
    let mut it = asked();
    let key = it.bench.server.tokens[&it.bob.token];
    it.bench.server.hang_up(key);
    while it.bench.server.is_ending() {
        it.bench.server.go_on_ending(&mut it.bench.wire);
    }
    assert_eq!(it.words.map(|word| word.era()), [0, 1]);
}
