//! The classifier: machine code in messages, found word by word by a network, as BALBOA's artifact does.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use crate::error::Error;
use crate::network::{Network, WORD};
use crate::part::{Operations, Part};
use crate::service::{About, Budget, Halt, PacketService, Stages, Verdict};
use crate::settings::Settings;

/// The network that was taught to find machine code, by `services/training/train.py`.
const WEIGHTS: &str = include_str!("classifier.txt");
/// That network, read once for all classifiers: each queue pair whose program asks for services has a chain of its own.
static NETWORK: LazyLock<Option<Network>> = LazyLock::new(|| Network::parse(WEIGHTS));
/// Units of work that a word costs: about so many steps of another service.
const WORK: u32 = 256;
/// The most words of a packet.
const WORDS: u32 = 4096 / WORD as u32;
/// Bytes of state: the words of machine code at the end of what came, 4 bytes, and all that were found, 8, both
/// little-endian.
const STATE: usize = 12;

/// Looks for machine code in the messages of a connection, in words of 64 bytes.
///
/// Messages are words from their first byte on. Each packet but the last is as long as the path MTU, a multiple of a
/// word, so no word crosses packets. What is left behind the last whole word is not looked at. A packet is refused with
/// the last of so many words, one behind the other, that look like machine code.
pub struct Classifier {
    network: &'static Network,
    words: u16,
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The network's own would be a line for each of its thousands of weights.
        f.debug_struct("Classifier").field("words", &self.words).finish_non_exhaustive()
    }
}

impl Classifier {
    pub(crate) const ABOUT: About = About {
        name: Cow::Borrowed("classifier"),
        summary: Cow::Borrowed(
            "a packet with x86-64 machine code ends its connection: a word of 64 bytes, or --words N of them in a row",
        ),
        stages: Stages { check: true, act: false, rewrites: false, transform: false },
        operations: Operations::ALL,
        takes: None,
        gives: None,
        check_state: STATE,
        act_state: 0,
        work: WORDS * WORK,
    };

    /// Makes one by its setting: `words`, how many of them are refused.
    pub(crate) fn make(settings: &mut Settings) -> Result<Self, Error> {
        let Some(words) = settings.take("words") else { return Self::new(1) };
        let number = std::str::from_utf8(&words).ok().and_then(|text| text.parse().ok());
        let number = number.filter(|number| *number > 0);
        Self::new(number.ok_or_else(|| Error::Words(words.escape_ascii().to_string()))?)
    }

    /// One that refuses so many words of machine code, one behind the other.
    ///
    /// # Errors
    /// [`Error::Weights`] where the network that is compiled in is none.
    pub fn new(words: u16) -> Result<Self, Error> {
        Ok(Self { network: NETWORK.as_ref().ok_or(Error::Weights)?, words })
    }

    /// The score of a word: above 0 where it looks like machine code.
    #[must_use]
    pub fn score(&self, word: &[u8; WORD]) -> i32 {
        self.network.score(word)
    }
}

/// The parts of a state.
fn parts(state: &[u8]) -> Option<(u32, u64)> {
    let (run, found) = state.split_first_chunk()?;
    Some((u32::from_le_bytes(*run), u64::from_le_bytes(*found.first_chunk()?)))
}

impl PacketService for Classifier {
    fn about(&self) -> &About {
        &Self::ABOUT
    }

    fn check(
        &self,
        part: &Part,
        payload: &[u8],
        state: &mut [u8],
        budget: &mut Budget,
    ) -> Result<Verdict, Halt> {
        let (run, mut found) = parts(state).unwrap_or_default();
        let mut run = if part.is_first() { 0 } else { run };
        let mut verdict = Verdict::Accept;
        for word in payload.chunks_exact(WORD).filter_map(|word| word.first_chunk()) {
            budget.spend(WORK)?;
            if self.score(word) <= 0 {
                run = 0;
                continue;
            }
            (run, found) = (run.saturating_add(1), found.saturating_add(1));
            if run >= self.words.into() {
                verdict = Verdict::Refuse;
                break;
            }
        }
        let next = run.to_le_bytes().into_iter().chain(found.to_le_bytes());
        state.iter_mut().zip(next).for_each(|(byte, next)| *byte = next);
        Ok(verdict)
    }

    fn found(&self, state: &[u8]) -> u64 {
        parts(state).map_or(0, |(_, found)| found)
    }
}
