//! Long messages whose memory goes, or is taken back, before they move and while they do: no success is false, and no
//! byte is written to memory that was given back.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options};
use super::moving::{PAGE, is_written, pages_with, pattern, post, reaches, reconnect};
use crate::ffi::{Operation, Recv, Region, Window};

/// Bytes of a message.
const BYTES: usize = 3 << 18;
/// How long it is looked whether anything is written that is not to be.
const LATER: Duration = Duration::from_millis(50);
/// Pages of a message with whose first byte its memory is harmed.
const PLACES: [usize; 4] = [0, 9, 33, 61];

/// The harm done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Nothing lies there any more.
    Away,
    /// It can only be read.
    ReadOnly,
}

/// The owner of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The side that posts the send request.
    Own,
    Peer,
}

/// The way in which memory under a WRITE is taken back.
#[derive(Clone, Copy, Debug)]
enum Back {
    Deregistered,
    /// The region is no more the peer's.
    Modified,
    /// The key is a window's.
    Invalidated,
    /// It is a receive, of a QP that fails for another request of its own.
    Flushed,
}

/// A link, and memory of each side's for one message.
struct Pair<'a> {
    link: &'a ConnectedSides,
    own: Rc<Region>,
    peer: Rc<Region>,
}

impl<'a> Pair<'a> {
    /// Connects anew, and lets each side learn the other one's abilities.
    fn new(link: &'a ConnectedSides) -> Result<Self> {
        reconnect(link)?;
        for _ in 0..2 {
            for (from, to) in [(&link.left, &link.right), (&link.right, &link.left)] {
                to.qp.post_recv(&Recv { wr_id: 0, pieces: vec![to.region.piece(0, 64)] })?;
                post(from, Operation::Send, (from.region.piece(0, 64), 1), (0, 0))?;
                link.success(&to.receive_cq)?;
                link.success(&from.send_cq)?;
            }
        }
        let [own, peer] =
            [&link.left, &link.right].map(|it| Region::new(&it.pd, BYTES, RIGHTS, false));
        let (own, peer) = (own?, peer?);
        Ok(Self { link, own, peer })
    }

    /// Where the bytes come from, and where they go to.
    fn ends(&self, operation: Operation) -> [&Rc<Region>; 2] {
        match operation {
            Operation::Read => [&self.peer, &self.own],
            _ => [&self.own, &self.peer],
        }
    }

    /// Posts one message of all the memory, the bytes of which are `pattern`.
    fn begin(&self, operation: Operation, rkey: u32) -> Result<()> {
        let Self { link, own, peer } = self;
        if operation.receives() {
            link.right.qp.post_recv(&Recv { wr_id: 1, pieces: vec![peer.piece(0, BYTES)] })?;
        }
        post(&link.left, operation, (own.piece(0, BYTES), 1), (peer.address(), rkey))
    }
}

const RIGHTS: v::ibv_access_flags = ACCESS | v::IBV_ACCESS_MW_BIND;

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    region.read(0, &mut bytes);
    bytes
}

/// Nothing is written to memory any more.
fn is_left_alone(region: &Region) -> Result<()> {
    region.write(0, &vec![0; BYTES]);
    std::thread::sleep(LATER);
    let pages = pages_with(BYTES, |all| region.read(0, all), is_written);
    ensure!(pages == 0, "{pages} pages were written after they were given back");
    Ok(())
}

/// The status of a message whose memory goes on one side.
fn failure(operation: Operation, whose: Whose) -> v::ibv_wc_status {
    match (operation, whose) {
        (_, Whose::Own) => v::IBV_WC_LOC_PROT_ERR,
        (_, Whose::Peer) => v::IBV_WC_REM_OP_ERR,
    }
}

/// Memory goes before the message is posted, or with the first byte of a page of it.
fn harmed(
    pair: &Pair<'_>,
    operation: Operation,
    (whose, harm): (Whose, Harm),
    page: Option<usize>,
) -> Result<()> {
    let [from, to] = pair.ends(operation);
    let region = if whose == Whose::Own { &pair.own } else { &pair.peer };
    from.write(0, &pattern(BYTES));
    let change = || match harm {
        Harm::Away => region.take_away(),
        Harm::ReadOnly => region.change(|memory| memory.become_read_only()),
    };
    let mut early = None;
    match page {
        None => {
            change()?;
            pair.begin(operation, pair.peer.rkey())?;
        }
        Some(page) => {
            pair.begin(operation, pair.peer.rkey())?;
            early = reaches(pair.link, to, page)?;
            change()?;
        }
    }
    let link = pair.link;
    let done = early.map_or_else(|| link.completion(&link.left.send_cq), Ok)?;
    let expected = failure(operation, whose);
    let is_target = Rc::ptr_eq(region, to);
    match done.status {
        // What was there before it went has arrived.
        v::IBV_WC_SUCCESS if page.is_some() => {
            ensure!(
                is_target || bytes_of(to) == pattern(BYTES),
                "{done:?}, and other bytes arrived"
            );
        }
        status => ensure!(status == expected, "{done:?}, and not {expected}"),
    }
    if operation == Operation::Send && whose == Whose::Peer && done.status != v::IBV_WC_SUCCESS {
        let received = link.completion(&link.right.receive_cq)?;
        ensure!(received.status == v::IBV_WC_LOC_PROT_ERR, "the receive: {received:?}");
    }
    Ok(())
}

/// Memory under a WRITE is taken back with the first byte of a page.
fn taken_back(pair: &Pair<'_>, back: Back, page: usize) -> Result<()> {
    let Pair { link, own, peer } = pair;
    own.write(0, &pattern(BYTES));
    let right = &link.right;
    let window = matches!(back, Back::Invalidated).then(|| Window::new(peer)).transpose()?;
    let mut rkey = peer.rkey();
    if let Some(window) = &window {
        rkey = window.rkey() ^ 1;
        right.qp.post_bind(2, (window, rkey), (0, BYTES), v::IBV_ACCESS_REMOTE_WRITE)?;
        link.success(&right.send_cq)?;
    }
    let operation = match back {
        Back::Flushed => Operation::Send,
        _ => Operation::Write,
    };
    pair.begin(operation, rkey)?;
    let early = reaches(pair.link, peer, page)?;
    match back {
        Back::Deregistered => peer.deregister()?,
        Back::Modified => peer.set_access(v::IBV_ACCESS_LOCAL_WRITE)?,
        Back::Invalidated => {
            right.qp.post_invalidate(3, rkey)?;
            link.success(&right.send_cq)?;
        }
        Back::Flushed => {
            let wrong = right.region.piece(0, 64).with_wrong_key();
            post(right, Operation::Send, (wrong, 1), (0, 0))?;
            let failed = link.completion(&right.send_cq)?;
            ensure!(failed.status == v::IBV_WC_LOC_PROT_ERR, "{failed:?}");
            let received = link.completion(&right.receive_cq)?;
            let said = [v::IBV_WC_WR_FLUSH_ERR, v::IBV_WC_SUCCESS];
            ensure!(said.contains(&received.status), "the receive: {received:?}");
        }
    }
    is_left_alone(peer)?;
    if early.is_none() && !matches!(back, Back::Flushed) {
        let done = link.completion(&link.left.send_cq)?;
        // All of it may have been there by then.
        let said = [v::IBV_WC_SUCCESS, v::IBV_WC_REM_ACCESS_ERR, v::IBV_WC_REM_OP_ERR];
        ensure!(said.contains(&done.status), "{done:?}");
    }
    Ok(())
}

/// Sends a long message from memory of which no page ever comes, by a device node of userfaultfd's.
///
/// # Errors
/// When it succeeds, or nothing becomes of it.
pub fn silent(options: &Options, node: &Path) -> Result<()> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, PAGE)?;
    let pair = Pair::new(&link)?;
    let _faults = pair.own.change(|memory| memory.withhold(node))?;
    pair.begin(Operation::Send, 0)?;
    let done = link.completion(&link.left.send_cq)?;
    ensure!(done.status != v::IBV_WC_SUCCESS, "it succeeds: {done:?}");
    Ok(())
}

/// Runs all of it; answers how many messages there were.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, PAGE)?;
    let mut count = 0;
    let mut with = |what: String, try_it: &dyn Fn(&Pair<'_>) -> Result<()>| -> Result<()> {
        count += 1;
        Pair::new(&link).and_then(|pair| try_it(&pair)).context(what)
    };
    let times = || std::iter::once(None).chain(PLACES.map(Some));
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        for (whose, harm, page) in [Whose::Own, Whose::Peer]
            .into_iter()
            .flat_map(|whose| [Harm::Away, Harm::ReadOnly].map(|harm| (whose, harm)))
            .flat_map(|(whose, harm)| times().map(move |page| (whose, harm, page)))
        {
            let is_target = (operation == Operation::Read) == (whose == Whose::Own);
            // What is only read may be read.
            if harm == Harm::ReadOnly && !is_target {
                continue;
            }
            let what = format!("{operation:?}, {whose:?} {harm:?}, page {page:?}");
            with(what, &|pair| harmed(pair, operation, (whose, harm), page))?;
        }
    }
    for back in [Back::Deregistered, Back::Modified, Back::Invalidated, Back::Flushed] {
        for page in PLACES {
            with(format!("{back:?}, page {page}"), &|pair| taken_back(pair, back, page))?;
        }
    }
    Ok(count)
}
