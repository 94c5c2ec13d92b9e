//! Messages that a published card carries without the tunnel, and requests that it refuses: every byte compared.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, becomes};
use crate::ffi::{Completion, Mapping, Operation, Pd, Region, Rereg, Send};

/// Bytes of a region.
const ROOM: usize = 1 << 20;
/// The filler of bytes that must not change.
const GUARD: u8 = 0xee;
/// Bytes between the pieces of a message.
const GAP: usize = 61;
/// Bytes of the pieces of messages.
const PIECES: [&[usize]; 6] =
    [&[4], &[4; 16], &[4096; 16], &[0, 4, 0, 8, 0], &[4, 8, 4000, 60_000], &[300_000, 200_000]];
/// The same of messages that fail.
const ODD: [&[usize]; 2] = [&[2, 2], &[8, 3, 1]];
/// A page without an owner, far from where the kernel maps memory.
const ELSEWHERE: u64 = 0x1234_5678_9000;
/// Rounds in which memory ends under WRITEs, each some time later.
const ENDS: u32 = 10;

/// Tries all of it; answers how many messages arrived, and how many things were refused.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options) -> Result<(usize, usize)> {
    let mut arrived = 0;
    for operation in [Operation::Write, Operation::Read] {
        let link = link(options)?;
        for sizes in PIECES {
            moves(&link, operation, sizes).with_context(|| format!("{operation:?} {sizes:?}"))?;
            arrived += 1;
        }
    }
    let mut refused = 0;
    for sizes in ODD {
        fails(&link(options)?, sizes, None, v::IBV_WC_LOC_LEN_ERR)?;
        refused += 1;
    }
    for address in [1 << 48, u64::MAX - 3] {
        fails(&link(options)?, &[4], Some(address), v::IBV_WC_LOC_QP_OP_ERR)?;
        refused += 1;
    }
    refused += names(&link(options)?).context("names of regions")?;
    for taken in Withdrawn::ALL {
        rights(&link(options)?, taken).with_context(|| format!("{taken:?}"))?;
    }
    for round in 0..ENDS {
        ends(&link(options)?, round).with_context(|| format!("memory that ends, {round}"))?;
    }
    Ok((arrived, refused))
}

fn link(options: &Options) -> Result<ConnectedSides> {
    ConnectedSides::new(options, v::IBV_MTU_4096, ROOM)
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8) + seed) as u8).collect()
}

/// A request of the left side's for these pieces of its memory, each at its place and of its length.
fn request(
    link: &ConnectedSides,
    operation: Operation,
    pieces: &[(usize, usize)],
    far: (u64, u32),
) -> Send {
    let near = &link.left.region;
    Send {
        wr_id: 7,
        operation,
        pieces: pieces.iter().map(|(at, length)| near.piece(*at, *length)).collect(),
        remote: far,
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    }
}

fn post(link: &ConnectedSides, request: Send) -> Result<()> {
    link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed.into())
}

/// Where pieces of these lengths lie.
fn places(sizes: &[usize]) -> Vec<(usize, usize)> {
    let mut at = 12;
    let mut place = |size: &usize| {
        let place = (at, *size);
        at += size + GAP;
        place
    };
    sizes.iter().map(&mut place).collect()
}

/// A message of several pieces, to a place that none of them is aligned to, and nothing beside it.
fn moves(link: &ConnectedSides, operation: Operation, sizes: &[usize]) -> Result<()> {
    const AT: usize = 4095;
    let (near, far) = (&link.left.region, &link.right.region);
    let (places, total) = (places(sizes), sizes.iter().sum::<usize>());
    let bytes = pattern(total, total);
    let (from, to) = if operation == Operation::Read { (far, near) } else { (near, far) };
    for region in [near, far] {
        region.write(0, &vec![GUARD; ROOM]);
    }
    let lay = |all: &mut [u8]| {
        let mut done = 0;
        for (at, size) in &places {
            all[*at..at + size].copy_from_slice(&bytes[done..done + size]);
            done += size;
        }
    };
    let (mut scattered, mut whole) = (vec![GUARD; ROOM], vec![GUARD; ROOM]);
    lay(&mut scattered);
    whole[AT..AT + total].copy_from_slice(&bytes);
    let is_read = operation == Operation::Read;
    let (before, wanted) = if is_read { (whole, scattered) } else { (scattered, whole) };
    from.write(0, &before);
    post(link, request(link, operation, &places, (far.address() + AT as u64, far.rkey())))?;
    link.success(&link.left.send_cq)?;
    becomes(to, &wanted)
}

/// A request that is not carried fails by its status, and ends its QP.
fn fails(
    link: &ConnectedSides,
    sizes: &[usize],
    address: Option<u64>,
    status: v::ibv_wc_status,
) -> Result<()> {
    let far = &link.right.region;
    let far = (address.unwrap_or(far.address()), far.rkey());
    post(link, request(link, Operation::Write, &places(sizes), far))?;
    let Completion { status: found, .. } = link.completion(&link.left.send_cq)?;
    ensure!(found == status, "{sizes:?} to {far:x?}: {}", link.library.status_name(found));
    Ok(())
}

/// Peers find memory by its address: open memory has no other name, and closed memory may have any.
fn names(link: &ConnectedSides) -> Result<usize> {
    let pd = &link.right.pd;
    let named = |access, iova| Region::named(pd, Mapping::zeroed(8192)?, access, iova);
    let zero_based = v::IBV_ACCESS_ZERO_BASED;
    let mut refused = 0;
    for (access, iova) in [
        (ACCESS, Some(ELSEWHERE)),
        (ACCESS, Some(ELSEWHERE + 4)),
        (ACCESS | zero_based, None),
        (v::IBV_ACCESS_REMOTE_READ, Some(0)),
    ] {
        let outcome = named(access, iova).map(drop);
        let errno = outcome.as_ref().err().map(|failed| failed.errno);
        ensure!(errno == Some(libc::EOPNOTSUPP), "{access:#x}, {iova:x?}: {outcome:?}");
        refused += 1;
    }
    let own = named(v::IBV_ACCESS_LOCAL_WRITE, Some(ELSEWHERE))?;
    let outcome = own.set_access(ACCESS);
    ensure!(outcome.as_ref().is_err_and(|it| it.errno == libc::EOPNOTSUPP), "{outcome:?}");
    Ok(refused + 1)
}

/// The object whose rights are taken away.
#[derive(Clone, Copy, Debug)]
enum Withdrawn {
    Region,
    Domain,
    Qp,
}

impl Withdrawn {
    const ALL: [Self; 3] = [Self::Region, Self::Domain, Self::Qp];
}

/// Memory that a peer has written to is out of its reach once the rights to it are gone, with any status at the peer.
fn rights(link: &ConnectedSides, taken: Withdrawn) -> Result<()> {
    let mut target = Region::new(&link.right.pd, ROOM, ACCESS, false)?;
    let far = (target.address(), target.rkey());
    let write = || {
        post(link, request(link, Operation::Write, &[(0, ROOM)], far))?;
        link.success(&link.left.send_cq)
    };
    link.left.region.write(0, &pattern(1, ROOM));
    write()?;
    becomes(&target, &pattern(1, ROOM))?;
    match taken {
        Withdrawn::Region => target.set_access(v::IBV_ACCESS_LOCAL_WRITE)?,
        Withdrawn::Domain => {
            let (pd, none) = (Some(Pd::new(&link.right.context)?), Rereg::default());
            let region = Rc::get_mut(&mut target).context("nobody else names it")?;
            region.rereg(Rereg { pd, ..none })?;
        }
        Withdrawn::Qp => link.right.qp.modify(v::IBV_QP_ACCESS_FLAGS, |attributes| {
            attributes.qp_access_flags = v::IBV_ACCESS_LOCAL_WRITE;
        })?,
    }
    let guard = vec![GUARD; ROOM];
    target.write(0, &guard);
    write()?;
    let mut found = vec![0; ROOM];
    target.read(0, &mut found);
    ensure!(found == guard, "it was written to without a right");
    Ok(())
}

/// A region ends while its peer writes to it; on return nothing more lands there, with any status at the peer.
fn ends(link: &ConnectedSides, round: u32) -> Result<()> {
    const WRITES: usize = 4;
    let target: Rc<Region> = Region::new(&link.right.pd, ROOM, ACCESS, false)?;
    let far = (target.address(), target.rkey());
    for _ in 0..WRITES {
        post(link, request(link, Operation::Write, &[(0, ROOM / 2)], far))?;
    }
    std::thread::sleep(Duration::from_micros(300) * round);
    target.deregister()?;
    let guard = vec![GUARD; ROOM];
    target.write(0, &guard);
    for _ in 0..WRITES {
        link.success(&link.left.send_cq)?;
    }
    let mut found = vec![0; ROOM];
    target.read(0, &mut found);
    ensure!(found == guard, "it was written to behind its end");
    Ok(())
}
