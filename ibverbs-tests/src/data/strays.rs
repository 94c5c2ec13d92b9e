//! Requests to queue pairs that do not wait for them: absent, another peer's, not connected yet, connected anew. They
//! fail, or wait, and no other queue pair is harmed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side, becomes};
use crate::ffi::{Completion, Operation, Peer, Send};

const BYTES: usize = 8;
/// How long a request waits for its peer to be connected.
const EARLY: Duration = Duration::from_millis(100);
/// The difference of a QPN from all existing ones.
const OTHER: u32 = 0x15;
/// Requests that are posted to a queue pair of before.
const BEHIND: u64 = 4;

/// Sends to each kind of them in turn, and sees after each that a connection of others goes on; how many failed.
///
/// # Errors
/// When one comes to another end than it should, or another queue pair is harmed.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_4096, BYTES)?;
    let bystanders = ConnectedSides::new(options, v::IBV_MTU_4096, BYTES)?;
    passes(&bystanders, 0)?;
    passes(&link, 1)?;

    let mut failed = 0;
    let right = link.right.qp.number();
    for (number, qpn, whose) in [(2, right ^ OTHER, "nobody's"), (3, right, "another one's")] {
        let mut stray = Side::new(link.library, options, 0, BYTES)?;
        stray.qp.init(ACCESS)?;
        let peer = peer_of(&link, qpn)?;
        stray.qp.receive_from(&peer)?;
        stray.qp.send_to(&peer, options.patience)?;
        write(&stray, &link, number)?;
        fails(&link, &stray, whose)?;
        failed += 1;
        stray.renew_qp()?;
        passes(&bystanders, number)?;
        passes(&link, number)?;
    }

    early(&link)?;
    passes(&bystanders, 4)?;
    anew(&link)?;
    passes(&bystanders, 5)?;
    Ok(failed + 1)
}

/// The right side of a link as a peer, by another number.
fn peer_of(link: &ConnectedSides, qpn: u32) -> Result<Peer> {
    let Options { gid_index, .. } = *link.options();
    let gid = link.right.context.gid(gid_index)?;
    Ok(Peer { qpn, gid, gid_index, send_psn: 1, receive_psn: 1, mtu: v::IBV_MTU_4096 })
}

/// Posts a WRITE of a number to the right side of a link.
fn write(from: &Side, link: &ConnectedSides, number: u64) -> Result<()> {
    from.region.write(0, &number.to_ne_bytes());
    let to = &link.right.region;
    let request = Send {
        wr_id: number,
        operation: Operation::Write,
        pieces: vec![from.region.piece(0, BYTES)],
        remote: (to.address(), to.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    Ok(from.qp.post_send(&[request]).map_err(|(failed, _)| failed)?)
}

/// Waits for a number.
fn arrives(link: &ConnectedSides, number: u64) -> Result<()> {
    becomes(&link.right.region, &number.to_ne_bytes()).with_context(|| format!("number {number}"))
}

/// Whether a number has arrived.
fn has(link: &ConnectedSides, number: u64) -> bool {
    let mut found = [0; BYTES];
    link.right.region.read(0, &mut found);
    found == number.to_ne_bytes()
}

/// A WRITE from the left side of a link arrives.
fn passes(link: &ConnectedSides, number: u64) -> Result<()> {
    write(&link.left, link, number)?;
    link.success(&link.left.send_cq).with_context(|| format!("behind stray {number}"))?;
    arrives(link, number)
}

/// The next request of a side is not answered.
fn fails(link: &ConnectedSides, side: &Side, whose: &str) -> Result<Completion> {
    let done = link.completion(&side.send_cq)?;
    ensure!(
        done.status == v::IBV_WC_RETRY_EXC_ERR && !has(link, done.wr_id),
        "a request to {whose} QP: {done:?}"
    );
    Ok(done)
}

/// A request sent before the peer is connected waits for it.
fn early(link: &ConnectedSides) -> Result<()> {
    for side in [&link.left, &link.right] {
        side.qp.to(v::IBV_QPS_RESET)?;
        side.qp.init(ACCESS)?;
    }
    let (left, right) = link.peers()?;
    link.left.qp.receive_from(&right)?;
    link.left.qp.send_to(&right, link.options().patience)?;
    write(&link.left, link, 4)?;
    std::thread::sleep(EARLY);
    ensure!(link.left.send_cq.poll()?.is_none() && !has(link, 4), "nobody was there to answer");
    link.right.qp.receive_from(&left)?;
    // What has waited may come before this and after it.
    link.finish()?;
    link.success(&link.left.send_cq).context("a request that was early")?;
    arrives(link, 4)?;
    write(&link.left, link, 5)?;
    link.success(&link.left.send_cq).context("the request behind it")?;
    arrives(link, 5)
}

/// A request to a queue pair that was connected anew since fails, until its sender is, too.
fn anew(link: &ConnectedSides) -> Result<()> {
    let (left, _) = link.peers()?;
    link.right.qp.to(v::IBV_QPS_RESET)?;
    link.right.qp.init(ACCESS)?;
    link.right.qp.receive_from(&left)?;
    for number in 0..BEHIND {
        write(&link.left, link, 50 + number)?;
    }
    fails(link, &link.left, "a renewed")?;
    for _ in 1..BEHIND {
        let done = link.completion(&link.left.send_cq)?;
        ensure!(done.status == v::IBV_WC_WR_FLUSH_ERR, "behind that: {done:?}");
    }
    for side in [&link.left, &link.right] {
        side.qp.to(v::IBV_QPS_RESET)?;
    }
    link.connect()?;
    passes(link, 60)
}
