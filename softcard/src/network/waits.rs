//! Payload that logic is still to take, or to give: the waits of each queue pair.
//!
//! Of a queue pair, the transport neither takes nor makes packets meanwhile, so that it waits for one burst each way at
//! most. All other queue pairs go on.

use std::collections::{BTreeMap, VecDeque};

use roce::{Placed, Qpn};

use crate::made::Made;
use crate::port::{Frame, FramePool};
use crate::vfpga::{Answer, Passed, Tag, Unreachable};

/// How long logic may take for an answer, in nanoseconds: more than any logic needs, and little enough that a program whose
/// queue pair hangs is told.
pub(crate) const PATIENCE: u64 = 5_000_000_000;

/// A question about the payload of the placement, or frame, of that number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) number: usize,
    pub(crate) vfpga: usize,
    /// `None` while the logic was not ready to be asked.
    pub(crate) tag: Option<Tag>,
}

/// Open questions, and the outcomes of all placements or frames.
#[derive(Debug)]
struct OpenQuestions {
    until: u64,
    asked: Vec<Asked>,
    placed: Vec<Placed>,
}

impl OpenQuestions {
    /// Sets the outcome of a placement, or of the payload of a frame.
    fn set(&mut self, number: usize, passed: Result<(), Unreachable>) {
        if let Some(placed) = self.placed.get_mut(number) {
            *placed = passed.map_or(Placed::Failed, |()| Placed::Copied);
        }
    }

    /// Takes the question of a tag.
    fn take(&mut self, vfpga: usize, tag: Tag) -> Option<usize> {
        let place = self.asked.iter().position(|it| it.vfpga == vfpga && it.tag == Some(tag))?;
        Some(self.asked.swap_remove(place).number)
    }

    /// Gives up the questions that `is_over` says; how many.
    fn fail(&mut self, is_over: impl Fn(&Asked) -> bool) -> u64 {
        let before = std::mem::take(&mut self.asked);
        let (over, asked): (Vec<Asked>, _) = before.into_iter().partition(is_over);
        self.asked = asked;
        over.iter().for_each(|asked| self.set(asked.number, Err(Unreachable)));
        over.len() as u64
    }
}

/// Frames that are being made of one queue pair, in their order.
#[derive(Default)]
pub(crate) struct Making {
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) made: Vec<Made>,
    /// The outcome for each one's payload.
    pub(crate) placed: Vec<Placed>,
}

#[derive(Default)]
struct Waiting {
    places: Option<OpenQuestions>,
    fetches: Option<(OpenQuestions, VecDeque<Frame>, Vec<Made>)>,
}

impl Waiting {
    fn opens(&self) -> impl Iterator<Item = &OpenQuestions> {
        self.places.iter().chain(self.fetches.iter().map(|(open, ..)| open))
    }

    fn opens_mut(&mut self) -> impl Iterator<Item = &mut OpenQuestions> {
        self.places.iter_mut().chain(self.fetches.iter_mut().map(|(open, ..)| open))
    }
}

/// A wait of a queue pair that has ended.
pub(crate) struct EndedWait {
    pub(crate) qpn: Qpn,
    /// The outcomes of its burst's placements.
    pub(crate) placed: Option<Vec<Placed>>,
    pub(crate) making: Option<Making>,
    /// It waits for nothing more.
    pub(crate) goes_on: bool,
}

/// The waits of a card's queue pairs.
#[derive(Default)]
pub(crate) struct Waits {
    by_qp: BTreeMap<Qpn, Waiting>,
    /// Questions that were given up without an answer.
    pub(crate) unanswered: u64,
}

impl Waits {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_qp.is_empty()
    }

    /// A queue pair waits for the placements of a burst.
    pub(crate) fn wait_for_places(
        &mut self,
        qpn: Qpn,
        until: u64,
        asked: Vec<Asked>,
        placed: Vec<Placed>,
    ) {
        self.by_qp.entry(qpn).or_default().places = Some(OpenQuestions { until, asked, placed });
    }

    /// A queue pair waits for the payload of frames.
    pub(crate) fn wait_for_frames(
        &mut self,
        qpn: Qpn,
        until: u64,
        asked: Vec<Asked>,
        Making { frames, made, placed }: Making,
    ) {
        let open = OpenQuestions { until, asked, placed };
        self.by_qp.entry(qpn).or_default().fetches = Some((open, frames, made));
    }

    /// Takes an answer of a vFPGA's; one to nothing that it was asked has no effect.
    pub(crate) fn answer(&mut self, vfpga: usize, tag: Tag, answer: &Answer) {
        for waiting in self.by_qp.values_mut() {
            match (answer, waiting) {
                (Answer::Placed(answer), Waiting { places: Some(open), .. }) => {
                    let Some(number) = open.take(vfpga, tag) else { continue };
                    open.set(number, *answer);
                }
                (Answer::Fetched(answer), Waiting { fetches: Some((open, frames, made)), .. }) => {
                    let Some(number) = open.take(vfpga, tag) else { continue };
                    let filled = match (answer, frames.get_mut(number), made.get_mut(number)) {
                        (Ok(bytes), Some(frame), Some(made)) => fill(frame, made, bytes),
                        _ => Err(Unreachable),
                    };
                    open.set(number, filled);
                }
                _ => continue,
            }
            return;
        }
    }

    /// Asks again for the payload of frames, by calling `ask` with each; an answer at once is set.
    pub(crate) fn ask_again(&mut self, mut ask: impl FnMut(&mut Made, &mut Frame) -> Passed) {
        for (open, frames, made) in self.by_qp.values_mut().filter_map(|it| it.fetches.as_mut()) {
            for mut asked in std::mem::take(&mut open.asked) {
                let number = asked.number;
                let place = made.get_mut(number).zip(frames.get_mut(number));
                if let (None, Some((made, frame))) = (asked.tag, place) {
                    match ask(made, frame) {
                        Passed::Later(tag) => asked.tag = tag,
                        Passed::Now(passed) => {
                            open.set(number, passed);
                            continue;
                        }
                    }
                }
                open.asked.push(asked);
            }
        }
    }

    /// Gives up questions that are too old, and takes a queue pair's wait that has ended.
    pub(crate) fn take_ended(&mut self, now: u64) -> Option<EndedWait> {
        let is_over = |open: &OpenQuestions| open.asked.is_empty();
        let (qpn, waiting) = self.by_qp.iter_mut().find_map(|(qpn, waiting)| {
            let mut ended = false;
            for open in waiting.opens_mut() {
                if open.until <= now {
                    self.unanswered = self.unanswered.saturating_add(open.fail(|_| true));
                }
                ended |= is_over(open);
            }
            ended.then_some((*qpn, waiting))
        })?;
        let placed = waiting.places.take_if(|open| is_over(open)).map(|open| open.placed);
        let fetched = waiting.fetches.take_if(|(open, ..)| is_over(open));
        let making = fetched.map(|(OpenQuestions { placed, .. }, frames, made)| Making {
            frames,
            made,
            placed,
        });
        let goes_on = waiting.places.is_none() && waiting.fetches.is_none();
        if goes_on {
            self.by_qp.remove(&qpn);
        }
        Some(EndedWait { qpn, placed, making, goes_on })
    }

    /// When the first question is given up.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.by_qp.values().flat_map(Waiting::opens).map(|open| open.until).min()
    }

    /// Forgets the waits of a queue pair, and its frames.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn, pool: &FramePool) {
        if let Some(Waiting { fetches: Some((_, mut frames, _)), .. }) = self.by_qp.remove(&qpn) {
            pool.put_all(&mut frames);
        }
    }

    /// Gives up the questions to a vFPGA.
    pub(crate) fn fail(&mut self, vfpga: usize) {
        for open in self.by_qp.values_mut().flat_map(Waiting::opens_mut) {
            open.fail(|asked| asked.vfpga == vfpga);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.by_qp.clear();
    }
}

/// Puts the payload of a frame there, if it is as long as it is to be.
fn fill(frame: &mut Frame, made: &mut Made, bytes: &[u8]) -> Result<(), Unreachable> {
    let place = frame.as_mut_slice().get_mut(made.body()).filter(|it| it.len() == bytes.len());
    place.ok_or(Unreachable)?.copy_from_slice(bytes);
    made.complete(frame);
    Ok(())
}
