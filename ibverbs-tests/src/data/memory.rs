//! Memory of every kind, by every name: bytes arrive in it and are read from it, and none beside it.

use std::io::Write as _;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options};
use super::transfer;
use crate::ffi::{DmaBuf, Failed, Mapping, Operation, Region, Send};

/// Bytes of a region.
const LENGTH: usize = 1 << 16;
/// Bytes of the largest region, and of the memory that stands all over it.
const LARGEST: usize = 16 << 30;
const PART: usize = 16 << 20;
/// Bytes of one of huge pages: two of x86-64's, or a part of one of another machine's.
const HUGE: usize = 4 << 20;
/// Bytes of a message.
const MESSAGE: usize = 10_000;

/// How work requests name the first byte of a region.
const NAMES: [(&str, Name); 4] = [
    ("its address", Name::Address),
    ("0, by IBV_ACCESS_ZERO_BASED", Name::Zero),
    ("0, by ibv_reg_mr_iova2", Name::Iova(0)),
    ("an address of nobody's, within its page elsewhere", Name::Iova(0x1234_5678_9abc_d123)),
];

#[derive(Clone, Copy)]
enum Name {
    Address,
    Zero,
    Iova(u64),
}

/// The counts of trials.
#[derive(Debug)]
pub struct Tried {
    /// Regions.
    pub regions: usize,
    /// Whether the machine had huge pages for one of them.
    pub huge: bool,
    /// The outcome of a dma-buf.
    pub dma_buf: DmaBufIs,
}

/// The outcome of a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaBufIs {
    /// One of the regions is one.
    Reached,
    /// It was refused with EOPNOTSUPP: this kernel's are for the processor alone.
    Refused,
    /// The kernel makes none.
    Missing,
}

/// Runs all of it; `pinned` where the card keeps the pages that it was given, `copied` where the host copies for it all the
/// same.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options, pinned: bool, copied: bool) -> Result<Tried> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(LENGTH))?;
    let mut count = 0;
    for (kind, make) in KINDS {
        for (name_is, name) in NAMES {
            let region = register(&link, make()?, name)?;
            moves(&link, &region).with_context(|| format!("{kind}, named by {name_is}"))?;
            count += 1;
        }
    }
    let region = register(&link, Mapping::zeroed(LENGTH)?, Name::Address)?;
    replaced(&link, &region, pinned && !copied).context("other memory at its addresses")?;
    if !pinned {
        // What pins memory counts each time that a page is mapped.
        let file = tempfile::tempfile()?;
        file.set_len(PART as u64)?;
        let large = register(&link, Mapping::repeating(&file, PART, LARGEST)?, Name::Address)?;
        moves(&link, &large).context("the largest region")?;
        count += 1;
    }
    // How many a machine has set aside is its own affair.
    let huge = Mapping::huge(HUGE).ok();
    let has_huge = huge.is_some();
    if let Some(huge) = huge {
        moves(&link, &register(&link, huge, Name::Address)?).context("huge pages")?;
    }
    let dma_buf = dma_buf(&link).context("a dma-buf")?;
    let regions = count + 1 + usize::from(has_huge) + usize::from(dma_buf == DmaBufIs::Reached);
    Ok(Tried { regions, huge: has_huge, dma_buf })
}

/// Moves bytes to a dma-buf and from there.
fn dma_buf(link: &ConnectedSides) -> Result<DmaBufIs> {
    let Some(buffer) = DmaBuf::new(LENGTH)? else { return Ok(DmaBufIs::Missing) };
    match Region::of_dma_buf(&link.right.pd, buffer, ACCESS, 0x7654_3000) {
        Ok(region) => moves(link, &region).map(|()| DmaBufIs::Reached),
        Err(Failed { errno: libc::EOPNOTSUPP, .. }) => Ok(DmaBufIs::Refused),
        Err(failed) => Err(failed.into()),
    }
}

/// A kind of memory, and how it is made.
type Kind = (&'static str, fn() -> Result<Mapping>);

const KINDS: [Kind; 4] = [
    ("anonymous memory", || Ok(Mapping::zeroed(LENGTH)?)),
    ("shared memory", || Ok(Mapping::shared(LENGTH)?)),
    ("a file", || {
        let mut file = tempfile::tempfile()?;
        file.write_all(&[0; LENGTH])?;
        Ok(Mapping::sharing(&file, LENGTH)?)
    }),
    ("a file with holes", || {
        let file = tempfile::tempfile()?;
        file.set_len(LENGTH as u64)?;
        Ok(Mapping::sharing(&file, LENGTH)?)
    }),
];

fn register(link: &ConnectedSides, memory: Mapping, name: Name) -> Result<Rc<Region>, Failed> {
    let access = ACCESS | v::IBV_ACCESS_RELAXED_ORDERING;
    let (access, iova) = match name {
        Name::Address => (access, None),
        Name::Zero => (access | v::IBV_ACCESS_ZERO_BASED, None),
        Name::Iova(iova) => (access, Some(iova)),
    };
    Region::named(&link.right.pd, memory, access, iova)
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..MESSAGE).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Moves bytes of the left region to a place in another one, or from there.
fn request(link: &ConnectedSides, operation: Operation, region: &Region, offset: usize) -> Send {
    Send {
        wr_id: 1,
        operation,
        pieces: vec![link.left.region.piece(0, MESSAGE)],
        remote: (region.address().wrapping_add(offset as u64), region.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    }
}

fn post(link: &ConnectedSides, request: Send) -> Result<()> {
    link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    link.success(&link.left.send_cq).map(drop)
}

/// Bytes are written, received and read at the end of the region; a byte more is refused.
fn moves(link: &ConnectedSides, region: &Rc<Region>) -> Result<()> {
    let last = region.length() - MESSAGE;
    let (left, mut found) = (&link.left.region, vec![0; MESSAGE]);
    left.write(0, &pattern(1));
    post(link, request(link, Operation::Write, region, last))?;
    region.read(last, &mut found);
    ensure!(found == pattern(1), "a WRITE wrote other bytes");
    let mut before = [0xff; 64];
    region.read(last - 64, &mut before);
    ensure!(before == [0; 64], "a WRITE wrote before its place");

    region.write(last, &pattern(2));
    post(link, request(link, Operation::Read, region, last))?;
    left.read(0, &mut found);
    ensure!(found == pattern(2), "a READ read other bytes");

    left.write(0, &pattern(3));
    let pieces = vec![region.piece(last, MESSAGE)];
    link.right.qp.post_recv(&crate::ffi::Recv { wr_id: 2, pieces })?;
    post(link, Send { remote: (0, 0), ..request(link, Operation::Send, region, 0) })?;
    link.success(&link.right.receive_cq)?;
    region.read(last, &mut found);
    ensure!(found == pattern(3), "a SEND brought other bytes");

    let beyond = request(link, Operation::Write, region, last + 1);
    link.left.qp.post_send(&[beyond]).map_err(|(failed, _)| failed)?;
    let refused = link.completion(&link.left.send_cq)?.status;
    ensure!(refused == v::IBV_WC_REM_ACCESS_ERR, "a byte too far ends with status {refused}");
    link.half_connect(ACCESS)?;
    link.finish()
}

/// Where a program maps other pages at the addresses of a region, a card reaches those from then on, or, if it has
/// `pinned` them, the earlier ones.
fn replaced(link: &ConnectedSides, region: &Rc<Region>, pinned: bool) -> Result<()> {
    let mut file = tempfile::tempfile()?;
    file.write_all(&pattern(4))?;
    file.set_len(LENGTH as u64)?;
    region.change(|memory| memory.become_file(&file))?;
    post(link, request(link, Operation::Read, region, 0))?;
    let mut found = vec![0; MESSAGE];
    link.left.region.read(0, &mut found);
    let expected = if pinned { vec![0; MESSAGE] } else { pattern(4) };
    ensure!(found == expected, "the READ read other bytes than the card is to reach");
    Ok(())
}
