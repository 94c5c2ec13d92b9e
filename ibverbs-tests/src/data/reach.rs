//! Whether a card reaches a page: always while it may, and never when it may not.

use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;
use vfio::Iommu;

use super::link::{ACCESS, ConnectedSides, Options};
use super::transfer;
use crate::ffi::{Operation, Region, Send, descriptors_of};
use crate::mortal::say;

const PAGE: usize = 4096;
/// Pages of the region that is taken from the card: a length that no other region has.
const PAGES: usize = 3;
/// The time limit of the other program's answer: the region's place, or the word to go on.
const LIMIT: Duration = Duration::from_secs(60);
/// Address spaces of iommufd have small numbers.
const IOAS: std::ops::Range<u32> = 1..64;

/// A page of the right side's, and how the left one names it.
struct Target<'a> {
    link: &'a ConnectedSides,
    page: Rc<Region>,
    remote: (u64, u32),
    /// The status with which the left side's requests fail.
    failure: v::ibv_wc_status,
}

impl<'a> Target<'a> {
    fn new(link: &'a ConnectedSides, bytes: usize, failure: v::ibv_wc_status) -> Result<Self> {
        let page = Region::new(&link.right.pd, bytes, ACCESS, false)?;
        let remote = (page.address(), page.rkey());
        Ok(Self { link, page, remote, failure })
    }

    /// Writes a number to the page, or reads one of it, in turn; whether it has arrived.
    fn attempt(&self, number: u64) -> Result<bool> {
        let (link, number) = (self.link, number + 1);
        let (bytes, mut found) = (number.to_ne_bytes(), [0; 8]);
        let near = &link.left.region;
        let reads = number % 2 == 0;
        let (from, to, operation) = match reads {
            true => (&self.page, near, Operation::Read),
            false => (near, &self.page, Operation::Write),
        };
        to.write(0, &[0; 8]);
        from.write(0, &bytes);
        let request = Send {
            wr_id: number,
            operation,
            pieces: vec![near.piece(0, 8)],
            remote: self.remote,
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        let done = link.completion(&link.left.send_cq)?;
        to.read(0, &mut found);
        let reached = found == bytes;
        ensure!(reached || found == [0; 8], "neither the number nor nothing: {found:?}");
        match done.status {
            v::IBV_WC_SUCCESS => ensure!(reached, "{done:?}, and nothing arrived"),
            status if status == self.failure => ensure!(!reached, "{done:?}, and it arrived"),
            status => bail!("{}: {done:?}", link.library.status_name(status)),
        }
        Ok(reached)
    }

    /// How many of that many attempts arrive; those that fail begin with a connection anew.
    fn attempts(&self, count: u64) -> Result<u64> {
        let mut reached = 0;
        for number in 0..count {
            if self.attempt(number)? {
                reached += 1;
            } else {
                self.reconnect()?;
            }
        }
        Ok(reached)
    }

    fn reconnect(&self) -> Result<()> {
        for side in [&self.link.left, &self.link.right] {
            side.qp.to(v::IBV_QPS_RESET)?;
        }
        self.link.connect()
    }
}

/// Reaches for a page that is registered, and for the same when it is no more; answers how often it was
/// reached before and after.
///
/// # Errors
/// When a completion tells otherwise than the page does.
pub fn registered(options: &Options, tries: u64) -> Result<[u64; 2]> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(PAGE))?;
    let target = Target::new(&link, PAGE, v::IBV_WC_REM_ACCESS_ERR)?;
    let before = target.attempts(tries)?;
    target.page.deregister()?;
    Ok([before, target.attempts(tries)?])
}

/// Takes memory from a card that is behind an IOMMU, while its key stays, and reaches for it; answers how
/// often it was reached before and after.
///
/// Says `registered` and the region's bytes, finds in the file `place` the address at which the card
/// sees it, says `refused` after the first attempt, and goes on when the file has gone.
///
/// # Errors
/// When something does not go by the book.
pub fn unmapped(options: &Options, place: &Path, tries: u64) -> Result<[u64; 2]> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(PAGE))?;
    let bytes = PAGES * PAGE;
    let target = Target::new(&link, bytes, v::IBV_WC_REM_OP_ERR)?;
    let before = target.attempts(tries)?;
    say(&format!("registered {bytes}"));
    take_from_card(until(|| address_in(place))?, bytes as u64)?;

    ensure!(!target.attempt(0)?, "the card reached what is not mapped for it");
    let event = link.right.context.async_event(LIMIT)?;
    let told = (event.kind, event.element) == (v::IBV_EVENT_QP_FATAL, link.right.qp.element());
    ensure!(told, "not the event of a QP that failed: {event:?}");
    say("refused");
    until(|| (!place.exists()).then_some(()))?;
    target.reconnect()?;
    let after = target.attempts(tries - 1)?;

    // The side whose own memory it is fails by itself.
    let left = &link.left.region;
    let request = Send {
        wr_id: 0,
        operation: Operation::Write,
        pieces: vec![target.page.piece(0, 8)],
        remote: (left.address(), left.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    link.right.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    let done = link.completion(&link.right.send_cq)?;
    ensure!(done.status == v::IBV_WC_LOC_PROT_ERR, "sent from what is not mapped: {done:?}");
    Ok([before, after])
}

/// Ends the mapping of a region at the kernel, as balboad would, which the holder of the card may do.
fn take_from_card(iova: u64, bytes: u64) -> Result<()> {
    let copies = |node: &str| descriptors_of(Path::new(node)).context("no descriptor of the IOMMU");
    for fd in copies("/dev/vfio/vfio")? {
        if Iommu::from_received(fd, None).unmap(iova, bytes)? == bytes {
            return Ok(());
        }
    }
    for fd in copies("/dev/iommu")? {
        for ioas in IOAS {
            // Most numbers are none of an address space.
            let iommu = Iommu::from_received(fd.try_clone()?, Some(ioas));
            if iommu.unmap(iova, bytes).is_ok_and(|unmapped| unmapped == bytes) {
                return Ok(());
            }
        }
    }
    bail!("{bytes} bytes at {iova:#x} are not mapped")
}

/// The address that a file says, in hexadecimal, once it is there and whole.
fn address_in(place: &Path) -> Option<u64> {
    let text = fs::read_to_string(place).ok()?;
    u64::from_str_radix(text.strip_suffix('\n')?.strip_prefix("0x")?, 16).ok()
}

fn until<T>(is: impl Fn() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(it) = is() {
            return Ok(it);
        }
        ensure!(Instant::now() < deadline, "nobody went on within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
