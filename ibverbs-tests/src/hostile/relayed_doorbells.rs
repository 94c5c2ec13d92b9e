//! Places on a card that are taken, and doorbells that balboad relays.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use hostmem::{Access, DoorbellPage, EventFd, PAGE_BYTES, SharedMapping};
use shim_abi::{DoorbellAccess, Request, Response};

use super::{ATTACKING, stay};
use crate::mortal::hand::RawClient;
use crate::mortal::say;

/// Slots of a doorbell page.
const SLOTS: usize = 512;
/// Completion queues of the program that rings: so many that most of their slots have one.
const QUEUES: u32 = 400;
/// How often it rings before it wakes the relay, whether that sleeps or not.
const AT_ONCE: u64 = 64;

/// Takes so many places on each of the first two cards, by as many connections, and keeps them.
///
/// # Errors
/// When there are fewer.
pub fn hold(directory: &Path, places: usize) -> Result<()> {
    let take = |_| -> Result<RawClient> {
        let client = RawClient::connect(directory)?;
        for card in [0, 1] {
            client.ask(&Request::OpenContext { card })?;
        }
        Ok(client)
    };
    let _clients = (0..places).map(take).collect::<Result<Vec<_>>>()?;
    stay()
}

/// Rings without end, and with nothing to tell, by a page that is relayed, with a wake-up each time.
///
/// # Errors
/// When it is not relayed.
pub fn ring(directory: &Path) -> Result<()> {
    let client = RawClient::connect(directory)?;
    let (response, fds) = client.ask(&Request::OpenContext { card: 0 })?;
    let Response::Context(info) = response else { anyhow::bail!("{response:?}") };
    let access = info.grant.access;
    ensure!(matches!(access, DoorbellAccess::Relay { .. }), "it is not relayed: {access:?}");
    let mut fds = fds.into_iter().skip(1);
    let mut next = || fds.next().context("a descriptor is missing");
    let (page, wake) = (next()?, EventFd::from_received(next()?));
    let page = SharedMapping::new(page.as_fd(), 0, PAGE_BYTES, Access::ReadWrite)?;
    let page = DoorbellPage::new(Arc::new(page), 0)?;
    for _ in 0..QUEUES {
        let (context, log2_entries, channel, cookie) = (info.context, 0, None, 0);
        client.ask(&Request::CreateCq { context, log2_entries, channel, vector: 0, cookie })?;
    }
    say(ATTACKING);
    for turn in 1u64.. {
        for slot in 0..SLOTS {
            page.ring(slot, turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        if turn % AT_ONCE == 0 {
            wake.signal()?;
        }
    }
    Ok(())
}
