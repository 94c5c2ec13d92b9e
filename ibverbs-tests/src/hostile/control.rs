//! Hostile requests to balboad itself.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use shim_abi::{Request, Role};

use super::{ATTACKING, Opened};
use crate::data::link::ACCESS;
use crate::ffi::{Mapping, Region};
use crate::mortal::hand::RawClient;
use crate::mortal::say;

/// Requests of a connection that are refused.
const REFUSED: u32 = 150;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Opens a card and makes refused requests by so many connections, and then by more without end.
///
/// # Errors
/// When balboad does not answer.
pub fn refusals(directory: &Path, connections: usize) -> Result<()> {
    for turn in 1.. {
        let client = RawClient::connect(directory)?;
        client.ask(&Request::OpenContext { card: 0 })?;
        for cqn in 1..=REFUSED {
            ensure!(client.ask(&Request::DestroyCq { cqn }).is_err(), "there is no queue {cqn}");
        }
        if turn == connections {
            say(ATTACKING);
        }
    }
    Ok(())
}

/// Asks for the status on so many connections without end, each time on all of them, and reads the answers.
///
/// # Errors
/// When balboad does not answer.
pub fn ask(directory: &Path, connections: usize) -> Result<()> {
    let connect = |_| RawClient::connect_as(directory, Role::Tool);
    let clients = (0..connections).map(connect).collect::<Result<Vec<_>>>()?;
    for turn in 0.. {
        clients.iter().try_for_each(|client| client.send(&Request::Status))?;
        if turn == 0 {
            say(ATTACKING);
        }
        clients.iter().try_for_each(|client| client.answer().map(drop))?;
    }
    Ok(())
}

/// Registers memory with a file mapped beside it whose name is no text, and that file's.
///
/// # Errors
/// When the device refuses.
pub fn path(directory: &Path) -> Result<()> {
    let name = directory.join(OsStr::from_bytes(b"no\xfftext\n"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&name)?;
    file.set_len(PAGE as u64)?;
    let place = Opened::open("balboa0", 16)?;
    // Before and behind it, wherever the kernel puts them.
    let before = Mapping::zeroed(PAGE)?;
    let named = Mapping::of_file(&file, PAGE)?;
    let behind = Mapping::zeroed(PAGE)?;
    for (what, memory) in [("the file", named), ("a page", before), ("another", behind)] {
        Region::over(&place.pd, memory, ACCESS, false)
            .with_context(|| format!("to register {what}"))?;
    }
    Ok(())
}
