//! Many rings, and memory that comes and goes beside them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use shim_abi::Request;

use super::{ATTACKING, Opened, stay};
use crate::data::link::ACCESS;
use crate::ffi::{Mapping, Region};
use crate::mortal::hand::RawClient;
use crate::mortal::say;

/// A page of the card's, which goes with the last memory in it.
const PAGE: usize = 2 << 20;
/// The period of a program's reports of its turns.
const PERIOD: Duration = Duration::from_millis(50);

/// Makes QPs, and then registers and deregisters a page without end.
///
/// # Errors
/// When the device refuses a step of it.
pub fn pages(qps: usize) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    let _rings = (0..qps).map(|_| place.qp(1)).collect::<Result<Vec<_>>>()?;
    over_and_over(|| {
        Region::new(&place.pd, PAGE, ACCESS, false)?;
        Ok(())
    })
}

/// Makes QPs and regions of a page each, and waits to be killed.
///
/// # Errors
/// When the device refuses a step of it.
pub fn regions(qps: usize, regions: usize) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    let _rings = (0..qps).map(|_| place.qp(1)).collect::<Result<Vec<_>>>()?;
    let region = |_| Region::new(&place.pd, PAGE, ACCESS, false);
    let _regions = (0..regions).map(region).collect::<Result<Vec<_>, _>>()?;
    stay()
}

/// Registers as much of nothing as it is given; and, if it is to, over and over. By hand, for a provider
/// looks at the pages.
///
/// # Errors
/// When balboad gives nothing.
pub fn empty(directory: &Path, bytes: usize, again: bool) -> Result<()> {
    let client = RawClient::connect(directory)?;
    let pdn = client.open(0)?;
    let memory = Mapping::empty(bytes)?;
    let register = || -> Result<u32> {
        let mut length = bytes as u64;
        let mr = loop {
            // Only to be read: there is no memory for more.
            match client.reserve(pdn, (memory.address(), length), 0) {
                Ok(mr) => break mr,
                Err(refused) if length <= PAGE as u64 => return Err(refused),
                // More than it may have: half of it may be less.
                Err(_) => length /= 2,
            }
        };
        client.ask(&Request::CommitMr { mr })?;
        Ok(mr)
    };
    let mut held = register()?;
    if !again {
        return stay();
    }
    over_and_over(|| {
        client.ask(&Request::DeregMr { mr: held })?;
        held = register()?;
        Ok(())
    })
}

/// Opens the device, registers a page, and leaves.
///
/// # Errors
/// When the device refuses a step of it.
pub fn visit() -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    Region::new(&place.pd, PAGE, ACCESS, false)?;
    Ok(())
}

/// Repeats a turn without end, and reports the number: `turns N`.
fn over_and_over(mut turn: impl FnMut() -> Result<()>) -> Result<()> {
    turn()?;
    say(ATTACKING);
    let (mut turns, mut told) = (0u64, Instant::now());
    loop {
        turn()?;
        turns += 1;
        if told.elapsed() >= PERIOD {
            say(&format!("turns {turns}"));
            told = Instant::now();
        }
    }
}
