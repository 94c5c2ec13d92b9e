//! Memory that is taken back while a transfer reaches it: nothing is written to it, and nothing read from it, once the
//! verb that takes it back has returned.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options};
use super::moving::{PAGE, is_written, pages_with, pattern, post, reconnect};
use crate::ffi::{Dm, Mapping, Operation, Patience, Recv, Region, Rereg, Window};

/// Bytes of a message.
const BYTES: usize = 1 << 19;
/// Messages of a transfer, all of the same memory.
const MESSAGES: u64 = 8;
/// The filler of memory that was taken back and is read: no byte of the pattern's.
const SECRET: u8 = 0xe0;
/// So many of them in a row are no accident.
const RUN: usize = 4;
/// The span in which late bytes are looked for, where no completion tells that the transfer is over.
const LATER: Duration = Duration::from_millis(20);
/// A peer that is gone is found out soon.
const PATIENCE: Patience = Patience { timeout: 11, retry_cnt: 1, rnr_retry: 7 };
const RIGHTS: v::ibv_access_flags = ACCESS | v::IBV_ACCESS_MW_BIND;
/// The remote rights of a window, and the other ones of device memory.
const REMOTE: v::ibv_access_flags = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;

/// How memory is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withdrawal {
    Deregistered,
    /// Deregistered, and registered anew at once.
    Anew,
    /// The region has other memory.
    Changed,
    /// Its pages lie elsewhere, and then it is deregistered.
    Moved,
    /// The key was a window's.
    Invalidated,
    /// The queue pair whose memory it is fails.
    Failed,
    /// It is destroyed.
    Destroyed,
}

impl Withdrawal {
    const ALL: [Self; 7] = [
        Self::Deregistered,
        Self::Anew,
        Self::Changed,
        Self::Moved,
        Self::Invalidated,
        Self::Failed,
        Self::Destroyed,
    ];
}

/// The end of a transfer whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Target,
}

/// How many races there were.
#[derive(Debug, Default)]
pub struct Races {
    /// Where the transfer was under way when its memory was taken back.
    under_way: u64,
    /// Where it was over.
    over: u64,
    /// Races for device memory.
    device: u64,
}

impl Races {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.under_way + self.over + self.device
    }
}

impl fmt::Display for Races {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { under_way, over, device } = self;
        write!(f, "{under_way} under way, {over} over before, {device} of device memory")
    }
}

/// Takes memory back so often in each way, at each end of transfers of each kind in turn; answers how many races that were.
///
/// # Errors
/// At the first byte that is where it should not be.
pub fn all(options: &Options, tries: u64, one_sided: bool) -> Result<Races> {
    let options = Options { patience: PATIENCE, ..options.clone() };
    let mut link = ConnectedSides::new(&options, v::IBV_MTU_4096, PAGE)?;
    let mut told = Races::default();
    let operations: &[_] = match one_sided {
        true => &[Operation::Write, Operation::Read],
        false => &[Operation::Write, Operation::Read, Operation::Send],
    };
    for withdrawal in Withdrawal::ALL {
        // Without keys, memory that is registered is open.
        if one_sided && matches!(withdrawal, Withdrawal::Invalidated | Withdrawal::Anew) {
            continue;
        }
        for number in 0..tries {
            let turn = number as usize;
            let operation = match withdrawal {
                // Only remote operations use a key.
                Withdrawal::Invalidated => operations[turn % 2],
                _ => operations[turn % operations.len()],
            };
            let end = match (withdrawal, operation) {
                (Withdrawal::Invalidated, Operation::Write) => End::Target,
                (Withdrawal::Invalidated, _) => End::Source,
                _ => [End::Target, End::Source][turn / operations.len() % 2],
            };
            // In the first half of the message.
            let page = (number * 37 % (BYTES / PAGE / 2) as u64) as usize;
            let what =
                || format!("{withdrawal:?}, {operation:?}, {end:?}, page {page}, try {number}");
            match race(&mut link, (withdrawal, operation, end), page).with_context(what)? {
                true => told.under_way += 1,
                false => told.over += 1,
            }
        }
    }
    if link.right.context.extended_attributes()?.max_dm_size > 0 {
        for number in 0..tries {
            device_memory(&link, number).with_context(|| format!("device memory, try {number}"))?;
            told.device += 1;
        }
    }
    ensure!(told.under_way > 0 || tries == 0, "no transfer was under way: {told}");
    Ok(told)
}

/// Takes memory back when a page of the target was reached; whether the transfer was under way.
fn race(
    link: &mut ConnectedSides,
    (withdrawal, operation, end): (Withdrawal, Operation, End),
    page: usize,
) -> Result<bool> {
    reconnect(link)?;
    let [own, peer] = [&link.left, &link.right].map(|it| Region::new(&it.pd, BYTES, RIGHTS, false));
    let mut regions = [own?, peer?];
    let [own, peer] = &regions;
    let [source, target] = if operation == Operation::Read { [1, 0] } else { [0, 1] };
    regions[source].write(0, &pattern(BYTES));
    let is_left = (operation == Operation::Read) == (end == End::Target);
    let window = (withdrawal == Withdrawal::Invalidated).then(|| bound(link, peer)).transpose()?;
    let rkey = window.as_ref().map_or(peer.rkey(), Window::rkey);
    for wr_id in (0..MESSAGES).filter(|_| operation.receives()) {
        link.right.qp.post_recv(&Recv { wr_id, pieces: vec![peer.piece(0, BYTES)] })?;
    }
    post(&link.left, operation, (own.piece(0, BYTES), MESSAGES), (peer.address(), rkey))?;
    reaches(link, &regions[target], page)?;

    let taken = if end == End::Source { source } else { target };
    let kept = take_back(link, (withdrawal, is_left), &mut regions[taken], window.as_ref())?;
    let (taken, target) = (&regions[taken], &regions[target]);
    // All that was the region's memory, wherever it lies.
    let fill = |byte| {
        taken.write(0, &[byte; BYTES]);
        kept.iter().for_each(|memory| memory.write(0, &[byte; BYTES]));
    };
    fill(if end == End::Source { SECRET } else { 0 });
    let was_over = ends(link)?;
    match end {
        End::Source => {
            let leaked = pages_with(BYTES, |all| target.read(0, all), has_secret);
            ensure!(leaked == 0, "{leaked} pages were read after they were taken back");
        }
        End::Target => {
            let mut written = pages_with(BYTES, |all| taken.read(0, all), is_written);
            for memory in &kept {
                written += pages_with(BYTES, |all| memory.read(0, all), is_written);
            }
            ensure!(written == 0, "{written} pages were written after they were taken back");
        }
    }
    Ok(!was_over)
}

/// Whether bytes of memory that was taken back are in a page. A single such byte proves nothing: slots of the tunnel,
/// with bytes of any value, may land in the spare page, which the card then reads in place of memory that was taken
/// back.
fn has_secret(page: &[u8]) -> bool {
    page.windows(RUN).any(|bytes| bytes.iter().all(|byte| *byte == SECRET))
}

/// A window on all of a region of the right side's, under a new key.
fn bound(link: &ConnectedSides, region: &Rc<Region>) -> Result<Window> {
    let window = Window::new(region)?;
    let rkey = window.rkey() ^ 1;
    link.right.qp.post_bind(2, (&window, rkey), (0, BYTES), REMOTE)?;
    link.success(&link.right.send_cq)?;
    Ok(window)
}

/// Takes a region's memory back; answers with memory of it that lies elsewhere now, or is none of it any more.
fn take_back(
    link: &mut ConnectedSides,
    (withdrawal, is_left): (Withdrawal, bool),
    region: &mut Rc<Region>,
    window: Option<&Window>,
) -> Result<Vec<Mapping>> {
    let mut kept = Vec::new();
    let side = if is_left { &mut link.left } else { &mut link.right };
    let whole = |region| Rc::get_mut(region).context("a request still names it");
    match withdrawal {
        Withdrawal::Deregistered => region.deregister()?,
        Withdrawal::Anew => whole(region)?.register_anew(RIGHTS)?,
        Withdrawal::Changed => {
            let memory = Some(Mapping::zeroed(BYTES)?);
            kept.extend(whole(region)?.rereg(Rereg { memory, ..Rereg::default() })?);
        }
        Withdrawal::Moved => {
            kept.push(region.change(Mapping::move_pages)?);
            region.deregister()?;
        }
        Withdrawal::Invalidated => {
            let window = window.context("there is no window")?;
            side.qp.post_invalidate(3, window.rkey())?;
            link.success(&link.right.send_cq)?;
        }
        Withdrawal::Failed => side.qp.to(v::IBV_QPS_ERR)?,
        Withdrawal::Destroyed => side.renew_qp()?,
    }
    Ok(kept)
}

/// Waits until a page of a transfer's target is there.
fn reaches(link: &ConnectedSides, target: &Region, page: usize) -> Result<()> {
    let done = super::moving::reaches(link, target, page)?;
    let failed = done.filter(|done| done.status != v::IBV_WC_SUCCESS);
    failed.map_or(Ok(()), |failed| bail!("page {page} is not written: {failed:?}"))
}

/// Waits until the transfer is over, or would be; whether all of it had come before its memory was taken back.
fn ends(link: &ConnectedSides) -> Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < LATER {
        match link.left.send_cq.poll()? {
            Some(done) if done.status != v::IBV_WC_SUCCESS => return Ok(false),
            Some(done) if done.wr_id + 1 == MESSAGES => return Ok(true),
            _ => std::thread::yield_now(),
        }
    }
    Ok(false)
}

/// Frees device memory under a READ of it, or a WRITE to it, and gives it to another owner, which sees and shows
/// nothing of it.
fn device_memory(link: &ConnectedSides, number: u64) -> Result<()> {
    reconnect(link)?;
    let right = &link.right;
    let own = Region::new(&link.left.pd, BYTES, ACCESS, false)?;
    let dm = Dm::new(&right.context, BYTES, 0)?;
    let region = dm.register(&right.pd, (0, BYTES), ACCESS | v::IBV_ACCESS_ZERO_BASED)?;
    let operation = [Operation::Read, Operation::Write][(number % 2) as usize];
    match operation {
        Operation::Read => dm.write(0, &pattern(BYTES))?,
        _ => own.write(0, &pattern(BYTES)),
    }
    post(&link.left, operation, (own.piece(0, BYTES), MESSAGES), (0, region.rkey()))?;
    if operation == Operation::Read {
        reaches(link, &own, (number * 37 % 100) as usize)?;
    }
    drop(region);
    drop(dm);
    // As many as there are, so that the freed one is among them.
    let mut others = Vec::new();
    while let Ok(other) = Dm::new(&right.context, BYTES, 0) {
        let fresh = other.read(0, BYTES)?;
        ensure!(fresh.iter().all(|byte| *byte == 0), "another is given what was there before");
        other.write(0, &[SECRET; BYTES])?;
        others.push(other);
    }
    ensure!(!others.is_empty(), "what was freed is not given to others");
    ends(link)?;
    let leaked = pages_with(BYTES, |all| own.read(0, all), has_secret);
    ensure!(leaked == 0, "{leaked} pages of another's memory were read");
    for other in &others {
        let all = other.read(0, BYTES)?;
        ensure!(all.iter().all(|byte| *byte == SECRET), "another's memory was written to");
    }
    Ok(())
}
