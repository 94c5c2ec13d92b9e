//! Connections and events of programs while ports are changed under them.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side};
use super::transfer;
use crate::ffi::{Failed, Operation, Patience};

/// How long an asynchronous event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Bytes of a message.
const BYTES: usize = 3000;
/// Retries that last while commands are typed, on a busy machine: 8 × 2.15 s.
const PATIENT: Patience = Patience { timeout: 19, retry_cnt: 7, rnr_retry: 7 };
/// Where it is given up; more than a busy machine keeps a card waiting that is there: 8 × 134 ms.
const IMPATIENT: Patience = Patience { timeout: 15, retry_cnt: 7, rnr_retry: 7 };
/// Physical states of a port: there is no cable, and there is one.
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// The `balboa` that changes ports, and the devices that are changed.
struct Tool<'a> {
    balboa: &'a Path,
    options: &'a Options,
}

/// Runs the `balboa` at that path with those words, and returns its output.
pub(super) fn run(balboa: &Path, words: &[&str]) -> Result<String> {
    let finished = Command::new(balboa).args(words).output()?;
    let told = String::from_utf8_lossy(&finished.stderr);
    ensure!(finished.status.success() && told.is_empty(), "balboa {words:?}: {told}");
    Ok(String::from_utf8(finished.stdout)?)
}

impl Tool<'_> {
    /// Runs it with those words; gives its output.
    fn run(&self, words: &[&str]) -> Result<String> {
        run(self.balboa, words)
    }

    /// Adds an address to a side's port, and checks that side's view.
    fn add(&self, side: &Side, index: usize, address: &str, gid_index: u8) -> Result<()> {
        let printed = self.run(&["addr", &self.options.devices[index], "add", address])?;
        ensure!(printed == format!("GID {gid_index}\n"), "added as {printed:?}");
        let address: IpAddr = address.parse()?;
        let gid = match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.gid_is(side, index, gid_index, gid.octets())
    }

    /// Deletes an address of a side's port, and checks that side's view.
    fn del(&self, side: &Side, index: usize, address: &str, gid_index: u8) -> Result<()> {
        self.run(&["addr", &self.options.devices[index], "del", address])?;
        self.gid_is(side, index, gid_index, [0; 16])
    }

    /// Checks that a side's program hears of a change and finds a GID, or none.
    fn gid_is(&self, side: &Side, index: usize, gid_index: u8, gid: [u8; 16]) -> Result<()> {
        let event = side.context.async_event(EVENT)?;
        ensure!((event.kind, event.element) == (v::IBV_EVENT_GID_CHANGE, 1), "{event:?}");
        let found = side.context.gid(gid_index)?;
        ensure!(found == gid, "ibv_query_gid says {found:x?}");
        let port = format!("/sys/class/infiniband/{}/ports/1", self.options.devices[index]);
        let file = format!("{port}/gids/{gid_index}");
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let digits: String = gid.iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(text.trim_end().replace(':', "") == digits, "{file} says {text:?}");
        let kind = fs::read_to_string(format!("{port}/gid_attrs/types/{gid_index}")).ok();
        let expected = (gid != [0; 16]).then_some("RoCE v2\n");
        ensure!(kind.as_deref() == expected, "the type of GID {gid_index} is {kind:?}");
        Ok(())
    }

    /// Takes a side's port off its cable, or puts it back, and checks that side's view.
    fn link(&self, side: &Side, index: usize, up: bool) -> Result<()> {
        let device = &self.options.devices[index];
        self.run(&["link", device, if up { "up" } else { "down" }])?;
        let event = side.context.async_event(EVENT)?;
        let told = if up { v::IBV_EVENT_PORT_ACTIVE } else { v::IBV_EVENT_PORT_ERR };
        ensure!((event.kind, event.element) == (told, 1), "{event:?} for {up}");
        self.is(side, index, up)
    }

    /// Checks a side's view of its port.
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
    let mut link = ConnectedSides::new(&patient, v::IBV_MTU_1024, transfer::room(1 << 16))?;
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
fn sides(link: &ConnectedSides, index: usize) -> (&Side, &Side) {
    if index == 0 { (&link.left, &link.right) } else { (&link.right, &link.left) }
}

/// Posts a WRITE to the right side.
fn post(link: &ConnectedSides, wr_id: u64) -> Result<()> {
    let write = link.request(wr_id, Operation::Write, BYTES);
    link.left.qp.post_send(&[write]).map_err(|(failed, _)| failed.into())
}

/// A message that is posted while there is no cable arrives once there is one again.
fn outlives(link: &ConnectedSides, tool: &Tool<'_>, index: usize) -> Result<()> {
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
fn fails(link: &ConnectedSides, tool: &Tool<'_>, index: usize) -> Result<()> {
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

/// Adds addresses to two ports and deletes them, by the `balboa` at that path, and connects by them.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn addresses(options: &Options, balboa: &Path) -> Result<()> {
    let tool = Tool { balboa, options };
    let by = |gid_index| {
        let options = Options { gid_index, patience: IMPATIENT, ..options.clone() };
        ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))
    };
    let first = by(options.gid_index)?;
    let (left, right) = (&first.left, &first.right);
    tool.add(left, 0, "10.88.0.1", 2)?;
    tool.add(right, 1, "10.88.0.2", 2)?;
    tool.add(left, 0, "2001:db8::1", 3)?;
    tool.add(right, 1, "2001:db8::2", 3)?;
    let (second, third) = (by(2)?, by(3)?);
    let works = |link: &ConnectedSides, wr_id| {
        post(link, wr_id)?;
        let completion = link.success(&link.left.send_cq)?;
        ensure!(completion.wr_id == wr_id, "{completion:?}");
        anyhow::Ok(())
    };
    for (link, what) in [(&first, "GID 1"), (&second, "GID 2"), (&third, "GID 3")] {
        works(link, 1).with_context(|| format!("a connection by {what}"))?;
    }
    tool.del(left, 0, "10.88.0.1", 2)?;
    // The connection is left alone: it sends on, and hears nothing.
    let state = second.left.qp.query()?.qp_state;
    ensure!(state == v::IBV_QPS_RTS, "a QP whose address has gone is in {state}");
    post(&second, 2)?;
    let completion = second.completion(&second.left.send_cq)?;
    ensure!(completion.status == v::IBV_WC_RETRY_EXC_ERR, "{completion:?}");
    let refused = second.half_connect(ACCESS).err().context("connected by no address")?;
    let errno = refused.downcast::<Failed>()?.errno;
    ensure!(errno == libc::EINVAL, "a path from no address is refused with {errno}");
    for (link, what) in [(&first, "GID 1"), (&third, "GID 3")] {
        works(link, 3).with_context(|| format!("{what} beside an address that has gone"))?;
    }
    // The index is free again, and the test makes the connection anew by the address that has it now.
    tool.add(left, 0, "10.88.0.9", 2)?;
    second.half_connect(ACCESS)?;
    second.finish()?;
    works(&second, 4).context("a connection by a new address")?;
    tool.del(left, 0, "10.88.0.9", 2)?;
    tool.del(right, 1, "10.88.0.2", 2)?;
    tool.del(left, 0, "2001:db8::1", 3)?;
    tool.del(right, 1, "2001:db8::2", 3)
}
