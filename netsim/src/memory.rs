//! The memory that a host's transport works on.

use std::task::Poll;

use roce::wire::icrc;
use roce::{
    AccessDenied, FramePayload, Instant, Placed, Placement, ReceiveError, RemoteAccess,
    RemoteRange, ResponderMemory, Stack, TakenReceive, Target,
};

use crate::frame::{Frame, Received};
use crate::time::Time;

/// A host's memory, keys and receive queues: the layer above its transport.
pub trait Memory: ResponderMemory {
    /// Whether frames have their payload by bytes, and an invariant CRC. Else both are lengths only, and taken to be
    /// right.
    const BYTES: bool;

    /// Appends the bytes of a payload to a frame, and says whether they could be read. Not asked without bytes.
    fn fetch(&mut self, payload: &FramePayload, frame: &mut Vec<u8>) -> bool;

    /// Places the payload that a frame has for a placement.
    fn place(&mut self, placement: &Placement, frame: &[u8]) -> Placed;

    /// Gives a frame to the transport, for which this decides everything at once.
    fn receive(
        &mut self,
        stack: &mut Stack,
        now: Instant,
        frame: &mut Received,
        index: usize,
        placements: &mut Vec<Placement>,
    ) where
        Self: Sized,
    {
        let taken = stack.receive(now, frame, index, self, placements);
        debug_assert!(taken.is_ready(), "a frame that nobody decides about");
    }

    /// Ends a frame that has its payload by bytes: one of a queue pair with its invariant CRC.
    fn seal(&mut self, frame: &mut Vec<u8>, needs_icrc: bool) {
        if needs_icrc {
            frame.extend([0; icrc::LENGTH]);
            let sealed = icrc::append(frame);
            debug_assert!(sealed.is_ok(), "a frame that cannot be sealed");
        }
    }

    /// Sees a frame of its host's go onto the cable, and may change it. Says whether it arrives at the other end.
    fn sees_off(&mut self, _host: u32, _now: Time, _frame: &mut Frame) -> bool {
        true
    }
}

/// Memory that every peer may write, and that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths;

impl Memory for Lengths {
    const BYTES: bool = false;

    fn fetch(&mut self, _payload: &FramePayload, _frame: &mut Vec<u8>) -> bool {
        false
    }

    fn place(&mut self, _placement: &Placement, _frame: &[u8]) -> Placed {
        Placed::Copied
    }
}

impl ResponderMemory for Lengths {
    fn check_remote(
        &mut self,
        _target: Target,
        _memory: RemoteRange,
        _access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Ok(()))
    }

    fn take_receive(&mut self, _target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Empty))
    }
}
