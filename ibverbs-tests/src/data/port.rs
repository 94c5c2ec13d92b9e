//! What becomes of connections, and what programs are told, while ports are changed under them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, Link, Options, Side};
use super::transfer;
use crate::ffi::{Operation, Patience, Send};

/// How long an asynchronous event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Bytes of a message.
const BYTES: usize = 3000;
/// So many tries that somebody may type commands meanwhile: 8 × 1.07 s.
const PATIENT: Patience = Patience { timeout: 18, retry_cnt: 7, rnr_retry: 7 };
/// Few tries, so that giving up takes not long: 3 × 67 ms.
const IMPATIENT: Patience = Patience { timeout: 14, retry_cnt: 2, rnr_retry: 2 };
/// Physical states of a port: there is no cable, and there is one.
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// The `balboa` that changes ports, and the devices that are changed.
struct Tool<'a> {
    balboa: &'a Path,
    options: &'a Options,
}

impl Tool<'_> {
    fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<()> {
        let finished = Command::new(self.balboa).args(arguments).output()?;
        let told = String::from_utf8_lossy(&finished.stderr);
        ensure!(finished.status.success(), "balboa fails with {}: {told}", finished.status);
        ensure!(told.is_empty() && finished.stdout.is_empty(), "balboa says {told:?}");
        Ok(())
    }

    /// Takes a side's port off its cable, or puts it back, and looks at what that side's program sees.
    fn link(&self, side: &Side, index: usize, up: bool) -> Result<()> {
        let device = &self.options.devices[index];
        self.run(&["link", device, if up { "up" } else { "down" }])?;
        let event = side.context.async_event(EVENT)?;
        let told = if up { v::IBV_EVENT_PORT_ACTIVE } else { v::IBV_EVENT_PORT_ERR };
        ensure!((event.kind, event.element) == (told, 1), "{event:?} for {up}");
        self.is(side, index, up)
    }

    /// Checks what a side's program sees of its port.
    fn is(&self, side: &Side, index: usize, up: bool) -> Result<()> {
        let port = side.context.port()?;
        let (state, physical, texts) = match up {
            true => (v::IBV_PORT_ACTIVE, LINK_UP, ["4: ACTIVE\n", "5: LinkUp\n"]),
            false => (v::IBV_PORT_DOWN, DISABLED, ["1: DOWN\n", "3: Disabled\n"]),
        };
        let found = (port.state, port.phys_state);
        ensure!(found == (state, physical), "the port's states are {found:?}");
        for (file, text) in ["state", "phys_state"].into_iter().zip(texts) {
            let device = &self.options.devices[index];
            let file = format!("/sys/class/infiniband/{device}/ports/1/{file}");
            let found = fs::read_to_string(&file).with_context(|| file.clone())?;
            ensure!(found == text, "{file} says {found:?}");
        }
        Ok(())
    }
}

/// Takes ports off their cables and puts them back, by the `balboa` at that path.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn links(options: &Options, balboa: &Path) -> Result<()> {
    let tool = Tool { balboa, options };
    let patient = Options { patience: PATIENT, ..options.clone() };
    let mut link = Link::new(&patient, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    for (index, what) in [(0, "the sender's port"), (1, "the receiver's port")] {
        outlives(&link, &tool, index).with_context(|| format!("{what} comes back"))?;
    }
    link.set_patience(IMPATIENT);
    for (index, what) in [(0, "the sender's port"), (1, "the receiver's port")] {
        fails(&link, &tool, index).with_context(|| format!("{what} does not come back"))?;
    }
    Ok(())
}

/// One side of a link, and the other.
fn sides(link: &Link, index: usize) -> (&Side, &Side) {
    if index == 0 { (&link.left, &link.right) } else { (&link.right, &link.left) }
}

/// Posts a WRITE to the right side.
fn post(link: &Link, wr_id: u64) -> Result<()> {
    let write = Send {
        wr_id,
        operation: Operation::Write,
        pieces: vec![link.left.region.piece(0, BYTES)],
        remote: (link.right.region.address(), link.right.region.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    link.left.qp.post_send(&[write]).map_err(|(failed, _)| failed.into())
}

/// A message that is posted while there is no cable arrives once there is one again.
fn outlives(link: &Link, tool: &Tool<'_>, index: usize) -> Result<()> {
    let (side, other) = sides(link, index);
    tool.link(side, index, false)?;
    tool.is(other, 1 - index, true)?;
    post(link, 1)?;
    // A second one is none.
    tool.run(&["link", &tool.options.devices[index], "down"])?;
    link.nothing_more(&link.left.send_cq)?;
    tool.link(side, index, true)?;
    let completion = link.success(&link.left.send_cq)?;
    ensure!(completion.wr_id == 1, "{completion:?}");
    Ok(())
}

/// A message fails while there is no cable, as where a peer is dead, and the connection can be made anew.
fn fails(link: &Link, tool: &Tool<'_>, index: usize) -> Result<()> {
    link.half_connect(ACCESS)?;
    link.finish()?;
    let (side, _) = sides(link, index);
    tool.link(side, index, false)?;
    post(link, 2)?;
    let completion = link.completion(&link.left.send_cq)?;
    ensure!(completion.status == v::IBV_WC_RETRY_EXC_ERR, "{completion:?}");
    tool.link(side, index, true)?;
    link.half_connect(ACCESS)?;
    link.finish()?;
    post(link, 3)?;
    let completion = link.success(&link.left.send_cq)?;
    ensure!(completion.wr_id == 3, "{completion:?}");
    Ok(())
}
