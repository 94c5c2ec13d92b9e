//! The published example's logic: it forwards the network's accesses to host memory, and its `notify` is tied off.
//!
//! The way of the data is the published stack's own (`stock.rs`); for the shell there is nothing here.

use std::task::Poll;

use roce::{AccessDenied, Event, ReceiveError, TakenReceive, Target};

use super::logic::{Logic, Ports};
use super::request::{Access, Tag};

/// Logic without user registers, which no message of `roce` is for.
#[derive(Debug)]
pub(crate) struct PassThrough;

impl Logic for PassThrough {
    fn read_register(&self, _now: u64, _offset: u64) -> u64 {
        0
    }

    fn write_register(&mut self, _: u64, _: u64, _: u64, _: &mut Ports<'_>) {}

    fn reset(&mut self, _ports: &mut Ports<'_>) {}

    fn lost_memory(&mut self, _now: u64, _ports: &mut Ports<'_>) {}

    fn work(&mut self, _now: u64, _ports: &mut Ports<'_>) -> bool {
        false
    }

    fn take_notify(&mut self) -> Option<u32> {
        None
    }

    fn check_remote(&mut self, _: Tag, _: &Access) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Err(AccessDenied::Memory))
    }

    fn take_receive(&mut self, _: Tag, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Invalid))
    }

    fn take_event(&mut self, _now: u64, _event: Event, _ports: &mut Ports<'_>) {}
}
