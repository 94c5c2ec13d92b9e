//! Frames that are longer on their way than the stack makes them.

use fpga_regs::engine::wqe::SendOpcode;
use roce::wire::icrc;

use super::pair::{MEMORY, Pair};
use super::rig::REGION;
use super::*;
use crate::sealing::{Opened, Opening, Sealed, Sealing, Steps};

/// Bytes of a trailer: a mark, the PSN, the attempt.
const TRAILER: usize = 16;
const MARK: [u8; 4] = *b"seal";

/// The arguments of the step for a frame.
#[derive(Debug)]
struct SeenFrame {
    psn: u32,
    attempt: u64,
    /// Whether it has payload.
    bytes: bool,
}

/// A step that puts a trailer behind each frame, and records its arguments.
#[derive(Debug, Default)]
struct Trailer(Rc<RefCell<Vec<SeenFrame>>>);

impl Sealing for Trailer {
    fn length(&self) -> usize {
        TRAILER
    }

    fn seal(&mut self, frame: &mut [u8], about: &Sealed<'_>) -> bool {
        let (whole, place) = frame.split_last_chunk_mut::<TRAILER>().unwrap();
        assert!(icrc::check(whole), "the step has whole frames");
        let psn = about.psn.value().to_be_bytes();
        place.copy_from_slice(&[&MARK[..], &psn, &about.attempt.to_be_bytes()].concat());
        let Sealed { psn, qpn, attempt, payload } = *about;
        assert!(qpn.is_some());
        self.0.borrow_mut().push(SeenFrame { psn: psn.value(), attempt, bytes: payload.is_some() });
        true
    }
}

/// A step that takes the trailer off, and drops RoCE frames that have none.
#[derive(Debug)]
struct NoTrailer;

impl Opening for NoTrailer {
    fn open(&mut self, frame: &mut [u8]) -> Opened {
        match frame.split_last_chunk::<TRAILER>() {
            Some((whole, trailer)) if trailer.starts_with(&MARK) => {
                Opened::Open { length: whole.len(), sender: None }
            }
            _ => Opened::Refused,
        }
    }
}

fn steps(seen: &Rc<RefCell<Vec<SeenFrame>>>) -> Steps {
    Steps {
        sealing: Some(Box::new(Trailer(Rc::clone(seen)))),
        opening: Some(Box::new(NoTrailer)),
        ..Steps::default()
    }
}

#[test]
fn sealed_frames_carry_messages_and_are_opened_before_anybody_looks_at_them() {
    let mut pair = Pair::new();
    let seen = Rc::default();
    pair.one.card.network.steps = steps(&seen);
    pair.other.card.network.steps = steps(&Rc::default());
    pair.one.write(MEMORY, &[7; 3000]);
    for opcode in [SendOpcode::Write, SendOpcode::Read] {
        assert_eq!(pair.carry(opcode, 3000).unwrap().status, Status::Success);
    }
    assert_eq!(pair.other.read(REGION, 3000), [7; 3000]);
    let seen = seen.borrow();
    let told: Vec<_> = seen.iter().map(|it| (it.psn, it.bytes)).collect();
    assert_eq!(told, [(0, true), (1, true), (2, true), (3, false)]);
    assert!(seen.windows(2).all(|it| it[0].attempt < it[1].attempt), "{seen:?}");
}

#[test]
fn a_repetition_is_another_attempt_at_the_same_psn() {
    let mut pair = Pair::new();
    let seen = Rc::default();
    pair.one.card.network.steps = steps(&seen);
    // The other opens nothing, so it hears nothing, and says nothing.
    pair.other.card.network.set_link(false);
    assert!(pair.carry(SendOpcode::Write, 8).is_none());
    pair.one.now += 1_000_000_000;
    pair.work();
    let seen = seen.borrow();
    assert!(seen.len() > 1);
    assert!(seen.iter().all(|it| it.psn == 0));
    assert!(seen.windows(2).all(|it| it[0].attempt < it[1].attempt), "{seen:?}");
}

/// RC-2.
#[test]
fn who_vouches_for_the_icrc_vouches_for_no_step() {
    let (mut peer, qpn) = peer();
    peer.post_send(Instant(0), qpn, NOTHING).unwrap();
    let request = peer.poll_transmit(Instant(0)).unwrap();
    // In place of its ICRC there are zeros.
    let mut bytes = request.header.as_slice().to_vec();
    bytes.resize(request.frame_length(), 0);
    let (mut card, wire) = card(IcrcPolicy::TrustVouchedFor);
    card.network.steps = steps(&Rc::default());
    let sealed = [&bytes[..], &MARK, &[0; 12]].concat();
    for (bytes, refused, wrong) in [(&bytes, 1, 0), (&sealed, 1, 1)] {
        wire.borrow_mut().to_card.extend(Frame::vouched_for(bytes));
        card.round(0);
        assert!(card.network.counters().contains(&("port_frames_not_opened", refused)));
        // It was the vouched-for frame that the step has changed.
        assert_eq!(card.network.stack.counters().rx_icrc_encapsulated, wrong);
    }
}

#[test]
fn a_frame_that_would_be_too_long_is_not_sent() {
    /// Longer than any frame.
    #[derive(Debug)]
    struct Endless;
    impl Sealing for Endless {
        fn length(&self) -> usize {
            crate::port::FRAME_CAPACITY
        }
        fn seal(&mut self, _: &mut [u8], _: &Sealed<'_>) -> bool {
            panic!("there is no room");
        }
    }
    let (mut card, wire) = card(IcrcPolicy::CheckAll);
    card.network.steps.sealing = Some(Box::new(Endless));
    let qpn = connect(&mut card.network.stack, 0x11, PEER, 0x22);
    card.network.stack.post_send(Instant(0), qpn, NOTHING).unwrap();
    card.round(0);
    assert!(wire.borrow().from_card.is_empty());
}
