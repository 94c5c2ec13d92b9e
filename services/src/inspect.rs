//! Inspection: patterns in messages, also where they cross the borders of packets.

use std::borrow::Cow;
use std::fmt;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::dfa::DFA;
use aho_corasick::{Anchored, MatchKind, StartKind};

use crate::error::Error;
use crate::part::{Operations, Part};
use crate::patterns::patterns;
use crate::service::{About, Budget, Halt, PacketService, Stages, Verdict};
use crate::settings::Settings;

/// The longest payload of a packet.
const MOST: u32 = 4096;
/// Bytes of state: where the automaton is, 4 bytes, and how many patterns it has found, 8, both little-endian.
const STATE: usize = 12;

/// Looks for patterns in the messages of a connection.
///
/// Where the automaton is, is the state of *check*, so a pattern is found wherever packets cut it, and bytes that come
/// again are looked at from where they began. Each message is looked at by itself. A packet with the last byte of a
/// pattern is refused; or all patterns are counted, those that overlap, too.
pub struct Inspect {
    automaton: DFA,
    start: StateID,
    /// The bytes with which a pattern begins: no other leads away from the start.
    begins: [bool; 256],
    refuses: bool,
}

impl fmt::Debug for Inspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The automaton's own would be a line for each of its thousands of states.
        let patterns = self.automaton.patterns_len();
        f.debug_struct("Inspect")
            .field("patterns", &patterns)
            .field("refuses", &self.refuses)
            .finish_non_exhaustive()
    }
}

impl Inspect {
    pub(crate) const ABOUT: About = About {
        name: Cow::Borrowed("inspect"),
        summary: Cow::Borrowed(
            "patterns of --patterns FILE are looked for in messages; a packet with one ends its connection, or is counted (--mode count)",
        ),
        stages: Stages { check: true, act: false, rewrites: false, transform: false },
        operations: Operations::ALL,
        takes: None,
        gives: None,
        check_state: STATE,
        act_state: 0,
        work: MOST,
    };

    /// Makes one by its settings: `patterns`, a text of them, and `mode`, refuse or count.
    pub(crate) fn make(settings: &mut Settings) -> Result<Self, Error> {
        let refuses = match settings.take("mode").as_deref() {
            None | Some(b"refuse") => true,
            Some(b"count") => false,
            Some(mode) => return Err(Error::Mode(mode.escape_ascii().to_string())),
        };
        let text = settings.take("patterns").ok_or(Error::NoPatterns)?;
        Self::new(&patterns(&text)?, refuses)
    }

    /// One that looks for these patterns, none of which is empty, and refuses packets with one, or counts them.
    ///
    /// # Errors
    /// [`Error::Automaton`] for more than an automaton can have.
    pub fn new(patterns: &[Vec<u8>], refuses: bool) -> Result<Self, Error> {
        let mut builder = DFA::builder();
        // All patterns that end at a byte, whether or not others have begun before them. A search
        // that skips bytes would miss a pattern that a packet cuts.
        builder.match_kind(MatchKind::Standard).start_kind(StartKind::Unanchored).prefilter(false);
        let too_much = |_| Error::Automaton;
        let automaton = builder.build(patterns).map_err(too_much)?;
        let start = automaton.start_state(Anchored::No).map_err(|_| Error::Automaton)?;
        let mut begins = [false; 256];
        for pattern in patterns {
            let first = pattern.first().ok_or(Error::Automaton)?;
            if let Some(begins) = begins.get_mut(usize::from(*first)) {
                *begins = true;
            }
        }
        Ok(Self { automaton, start, begins, refuses })
    }

    /// Whether a pattern begins with a byte.
    #[inline]
    fn begins(&self, byte: u8) -> bool {
        self.begins.get(usize::from(byte)).copied().unwrap_or(true)
    }

    /// Where the automaton is behind those bytes, and how many patterns end in them: at most 1 where the first is enough.
    fn scan(&self, mut at: StateID, mut rest: &[u8]) -> (StateID, u64) {
        let mut matches = 0u64;
        loop {
            if at == self.start {
                // All that leaves the automaton where it is, at several bytes in the time of one.
                let skipped = rest.iter().position(|byte| self.begins(*byte));
                rest = skipped.and_then(|skipped| rest.get(skipped..)).unwrap_or_default();
            }
            let Some((byte, behind)) = rest.split_first() else { return (at, matches) };
            rest = behind;
            at = self.automaton.next_state(Anchored::No, at, *byte);
            if self.automaton.is_match(at) {
                if self.refuses {
                    return (at, 1);
                }
                matches = matches.saturating_add(self.automaton.match_len(at) as u64);
            }
        }
    }
}

/// The parts of a state.
fn parts(state: &[u8]) -> Option<([u8; 4], [u8; 8])> {
    let (at, matches) = state.split_first_chunk()?;
    Some((*at, *matches.first_chunk()?))
}

impl PacketService for Inspect {
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
        budget.spend(u32::try_from(payload.len()).unwrap_or(u32::MAX))?;
        let (at, before) = parts(state).unwrap_or_default();
        // 0, before any message, is no state in which such an automaton can be.
        let at = match u32::from_le_bytes(at) {
            at if at == 0 || part.is_first() => self.start,
            at => StateID::new(at as usize).unwrap_or(self.start),
        };
        let (at, matches) = self.scan(at, payload);
        let found = u64::from_le_bytes(before).saturating_add(matches);
        let next = at.as_u32().to_le_bytes().into_iter().chain(found.to_le_bytes());
        state.iter_mut().zip(next).for_each(|(byte, next)| *byte = next);
        Ok(if self.refuses && matches > 0 { Verdict::Refuse } else { Verdict::Accept })
    }

    fn found(&self, state: &[u8]) -> u64 {
        parts(state).map_or(0, |(_, found)| u64::from_le_bytes(found))
    }
}
