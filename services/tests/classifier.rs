//! The classifier's network against numpy's scores (`classifier.py`), and its verdicts on messages, however packets cut
//! them.

mod numpy;

use std::sync::Arc;

use services::{Chain, Classifier, Error, Operation, Part, Placing, ServedQp, Settings, Verdict};
use trial::rng::{Rng, mix};

/// Bytes of a word.
const WORD: usize = 64;
type Word = [u8; WORD];

/// Words of a seed, as `classifier.py` makes them: of all kinds of bytes, of printable ones, and of few bits.
fn words_of(seed: u64) -> impl Iterator<Item = Word> {
    let number = move |at: u64| mix(at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed));
    (0..).map(move |word: u64| {
        let numbers = (8 * word + 1..=8 * word + 8).map(number);
        let few = |number: u64| number & number.rotate_left(32);
        let bytes: Vec<u8> = match word % 3 {
            0 => numbers.flat_map(u64::to_le_bytes).collect(),
            1 => numbers.flat_map(u64::to_le_bytes).map(|byte| byte % 95 + 32).collect(),
            _ => numbers.map(few).flat_map(u64::to_le_bytes).collect(),
        };
        bytes.try_into().unwrap()
    })
}

/// What `classifier.py` says of words of a seed, by the network here: a hundred scores, how many are above 0, and a digest
/// of all.
fn told(seed: u64, count: usize) -> String {
    let classifier = Classifier::new(1).unwrap();
    let scores: Vec<i32> = words_of(seed).take(count).map(|word| classifier.score(&word)).collect();
    let shown: Vec<_> = scores.iter().step_by(count / 100).map(i32::to_string).collect();
    let found = scores.iter().filter(|score| **score > 0).count();
    let step = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let bytes = scores.iter().flat_map(|score| score.to_le_bytes());
    let digest = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    format!("{}\n{found}\n{digest:016x}\n", shown.join(" "))
}

/// The numbers of words that are recorded. Not optimized, the network takes a minute for the second.
const COUNTS: [usize; 2] = if cfg!(debug_assertions) { [2_000, 0] } else { [2_000, 100_000] };

#[test]
fn words_have_the_scores_that_numpy_gave_them_a_hundred_thousand_of_them_where_it_is_optimized() {
    let recorded = include_str!("classifier.txt");
    let mut rest = recorded;
    for count in COUNTS.into_iter().filter(|count| *count > 0) {
        let told = told(1, count);
        let left = rest.strip_prefix(told.as_str());
        rest = left.unwrap_or_else(|| panic!("of {count} words numpy said {rest}, and not {told}"));
    }
}

#[test]
fn words_of_other_seeds_have_the_scores_that_numpy_gives_them_where_it_is_installed() {
    for (seed, numpys) in numpy::judged("classifier.py", !cfg!(debug_assertions)) {
        assert_eq!(told(seed, 100_000), numpys, "seed {seed}");
    }
}

/// Words that look like machine code, and words that do not, of a seed.
fn sorted(seed: u64) -> [Vec<Word>; 2] {
    let classifier = Classifier::new(1).unwrap();
    let (code, others): (Vec<_>, Vec<_>) =
        words_of(seed).take(600).partition(|word| classifier.score(word) > 0);
    assert!(code.len() > 20 && others.len() > 20, "{} and {}", code.len(), others.len());
    [code, others]
}

/// A message: words of machine code here and there, and mostly some bytes that are no whole word.
fn message(rng: &mut Rng, [code, others]: &[Vec<Word>; 2], often: u32) -> Vec<u8> {
    let words = rng.between(0, 12);
    let word = |_| {
        let from = if rng.chance(often) { code } else { others };
        from[rng.below(from.len() as u64) as usize]
    };
    let mut message: Vec<u8> = (0..words).flat_map(word).collect();
    // The first bytes of machine code: not looked at.
    let behind = rng.between(u64::from(words == 0), 63) as usize;
    message.extend(&code[0][..behind]);
    message
}

/// How many words of a message look like machine code before it is refused, and where the packet's last byte is that is:
/// by the whole message.
fn expected(classifier: &Classifier, message: &[u8], run: usize) -> (u64, Option<usize>) {
    let (mut found, mut behind) = (0, 0);
    for (number, word) in message.chunks_exact(WORD).enumerate() {
        behind = if classifier.score(word.try_into().unwrap()) > 0 { behind + 1 } else { 0 };
        found += u64::from(behind > 0);
        if behind == run {
            return (found, Some((number + 1) * WORD));
        }
    }
    (found, None)
}

/// Has a packet come, perhaps several times before it is accepted, as after a loss behind the check.
fn take(rng: &mut Rng, connection: &mut ServedQp, part: &Part, payload: &[u8]) -> Verdict {
    for _ in 0..rng.below(3) {
        let matches = connection.counters().matches;
        if connection.check(Some((part, payload))) != Verdict::Accept {
            return Verdict::Refuse;
        }
        assert_eq!(connection.counters().matches, matches, "it is not accepted");
    }
    let verdict = connection.check(Some((part, payload)));
    if verdict == Verdict::Accept {
        connection.accept();
        let mut bytes = payload.to_vec();
        assert!(connection.act(&mut Placing { bytes: &mut bytes, address: None }));
        assert_eq!(bytes, payload);
    }
    verdict
}

fn connection(words: u16) -> ServedQp {
    let classifier = Classifier::new(words).unwrap();
    ServedQp::new(Arc::new(Chain::new(vec![Arc::new(classifier)]).unwrap()))
}

#[test]
fn the_packet_with_the_last_word_of_a_run_is_refused_and_none_before_it_at_any_path_mtu() {
    let words = sorted(3);
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..100 {
        let rng = &mut Rng::new(seed);
        let run = rng.pick(&[1, 1, 2, 3, 7]);
        let (mut connection, reference) = (connection(run), Classifier::new(run).unwrap());
        let (mut matches, mut passed) = (0, 0);
        'messages: for _ in 0..rng.between(1, 4) {
            let message = message(rng, &words, 10_000 - 10_000 / u32::from(run));
            let (found, end) = expected(&reference, &message, run.into());
            matches += found;
            let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
            // Path MTUs, and shorter packets, whose borders a run crosses as well.
            let mtu = rng.pick(&[64, 128, 256, 512, 1024, 2048, 4096]);
            for (number, payload) in message.chunks(mtu).enumerate() {
                let behind = number * mtu + payload.len();
                let (offset, length) = ((number * mtu) as u64, payload.len() as u32);
                let part = Part { operation, offset, length, is_last: behind == message.len() };
                let verdict = take(rng, &mut connection, &part, payload);
                let is_refused = end.is_some_and(|end| end <= behind);
                assert_eq!(verdict == Verdict::Refuse, is_refused, "seed {seed}");
                if is_refused {
                    assert_eq!(take(rng, &mut connection, &part, payload), Verdict::Refuse);
                    refused += 1;
                    break 'messages;
                }
                passed += payload.len() as u64;
            }
            whole += 1;
        }
        let counters = connection.counters();
        assert_eq!((counters.matches, counters.acted_bytes), (matches, passed), "seed {seed}");
        assert_eq!(counters.over_budget, 0);
    }
    assert!(refused > 20 && whole > 20, "{refused} and {whole}");
}

#[test]
fn machine_code_is_looked_for_in_whole_words_of_each_message_alone() {
    let [code, others] = sorted(4);
    let say = |connection: &mut ServedQp, bytes: &[u8]| {
        let operation = Operation::Write;
        let part = Part { operation, offset: 0, length: bytes.len() as u32, is_last: true };
        take(&mut Rng::new(1), connection, &part, bytes)
    };
    let mut one = connection(1);
    assert_eq!(say(&mut one, &code[0][..63]), Verdict::Accept, "no whole word");
    assert_eq!(say(&mut one, &others[0]), Verdict::Accept);
    assert_eq!(say(&mut one, &code[0]), Verdict::Refuse);
    let mut two = connection(2);
    for _ in 0..3 {
        assert_eq!(say(&mut two, &code[0]), Verdict::Accept, "a run ends with its message");
    }
    assert_eq!(say(&mut two, &[code[0], others[0], code[1]].concat()), Verdict::Accept);
    assert_eq!(say(&mut two, &[code[0], code[1]].concat()), Verdict::Refuse);
    assert_eq!((two.counters().matches, two.counters().refused_packets), (7, 1));
}

#[test]
fn a_packet_longer_than_any_is_more_work_than_was_declared() {
    let [_, others] = sorted(5);
    let say = |connection: &mut ServedQp, words: usize| {
        let bytes: Vec<u8> = others.iter().cycle().take(words).flatten().copied().collect();
        let operation = Operation::Send;
        let part = Part { operation, offset: 0, length: bytes.len() as u32, is_last: true };
        take(&mut Rng::new(1), connection, &part, &bytes)
    };
    let (mut just, mut more) = (connection(1), connection(1));
    assert_eq!(say(&mut just, 64), Verdict::Accept);
    assert_eq!(say(&mut more, 65), Verdict::Refuse);
    assert_eq!((just.counters().over_budget, more.counters().over_budget), (0, 1));
}

#[test]
fn a_classifier_is_made_of_its_settings_or_refused_in_a_sentence() {
    let chain = |names: &[&str], words: &[u8]| {
        let settings = Settings::new(vec![("words".to_owned(), words.to_vec())]);
        settings.and_then(|settings| Chain::named(names, settings))
    };
    for words in [&b"1"[..], b"8", b"65535"] {
        assert_eq!(chain(&["classifier", "preprocess"], words).unwrap().names().len(), 2);
    }
    for words in [&b""[..], b"0", b"-1", b"65536", b"many", b"\xff\n"] {
        let why = chain(&["classifier"], words).unwrap_err();
        assert_eq!(why, Error::Words(words.escape_ascii().to_string()));
        assert!(!why.to_string().contains('\n'));
    }
    assert_eq!(chain(&["preprocess"], b"8").unwrap_err(), Error::Setting("words".into()));
    let behind = Error::CheckBehind { checks: "classifier".into(), rewrites: "preprocess".into() };
    assert_eq!(chain(&["preprocess", "classifier"], b"8").unwrap_err(), behind);
}
