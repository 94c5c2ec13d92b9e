//! Memory windows of type 2, whose keys the other side takes back by a SEND.

use anyhow::{Result, ensure};
use verbs_sys::current::verbs as v;

use super::{Half, Second};
use crate::data::link::{ACCESS, completion, success};
use crate::data::transfer::{self, Transfer};
use crate::ffi::{Operation, Window};

/// The part of the region that windows open.
const OPEN: (usize, usize) = (8192, 16384);
/// Bytes of the WRITEs by a window, which go to its first byte.
const WRITTEN: usize = 3000;
/// Bytes of a WRITE that is refused: one packet, for the refusing side hears no other.
const REFUSED: usize = 200;
/// The rights of windows.
const RIGHTS: v::ibv_access_flags = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;

/// Each side binds windows, and the other one writes by them and takes them back, by a SEND of one
/// packet and by one of several; then `loser` writes by a key that it took back. Answers how many keys
/// were taken back.
pub(super) fn run(half: &mut Half<'_>, mtu: usize, loser: usize) -> Result<usize> {
    let second = half.second_region(ACCESS | v::IBV_ACCESS_MW_BIND)?;
    let sizes = [mtu.min(100), 3 * mtu + 3];
    let mut stale = 0;
    for writer in [1 - loser, loser] {
        let window = (writer != half.line.role).then(|| Window::new(&second.region)).transpose()?;
        for (size, seed) in sizes.into_iter().zip(1..) {
            stale = half.taken_back(&second, window.as_ref(), (size, seed))?;
        }
    }
    if !half.wishes.bad_cable {
        half.refused(&second, loser, stale)?;
    }
    Ok(2 * sizes.len())
}

impl Half<'_> {
    /// This side binds a window if it has one, or else writes by it and takes its key back, which it
    /// answers.
    fn taken_back(
        &mut self,
        second: &Second,
        window: Option<&Window>,
        (size, seed): (usize, u64),
    ) -> Result<u32> {
        let (side, library) = (self.side, self.side.context.library());
        let send = Transfer {
            operation: Operation::Send,
            size,
            gather: 2,
            scatter: 3,
            offset: 5,
            inline: false,
            seed: 50 + seed,
        };
        let region = &side.region;
        transfer::fill_guard(region, send.end());
        transfer::fill_guard(&second.region, second.region.length());
        let Some(window) = window else {
            let [key] = self.line.exchange([0])?;
            let key = u32::try_from(key)?;
            self.write(second, (key, WRITTEN), seed)?;
            let done = success(library, &side.send_cq)?;
            ensure!(done.opcode == v::IBV_WC_RDMA_WRITE, "{done:?}");
            transfer::fill(region, &send.near(), send.seed);
            side.qp.post_invalidating(&send.send(region, (0, 0), 8, true), key)?;
            send.check_sent(side, 8, &success(library, &side.send_cq)?)?;
            self.line.meet()?;
            return Ok(key);
        };
        // Another key than the last, of the same window.
        let key = (window.rkey() & !0xff) | (window.rkey().wrapping_add(1) & 0xff);
        side.qp.post_bind(3, (window, key), OPEN, RIGHTS)?;
        let bound = success(library, &side.send_cq)?;
        ensure!((bound.wr_id, bound.opcode) == (3, v::IBV_WC_BIND_MW), "{bound:?}");
        side.qp.post_recv(&send.receive(region, 9))?;
        self.line.exchange([key.into()])?;
        let received = success(library, &side.receive_cq)?;
        send.check_received(side, 9, &received)?;
        let told = received.invalidated;
        let silent = told.is_none() && self.wishes.mislabels;
        ensure!(told == Some(key) || silent, "{key:#x} was taken back, not {received:?}");
        transfer::check_bytes(region, &[send], send.end())?;
        transfer::check_part(&second.region, (0, 0), OPEN.0, 0)?;
        let end = second.region.length();
        transfer::check_part(&second.region, (OPEN.0, WRITTEN), end, seed)?;
        self.line.meet()?;
        Ok(key)
    }

    /// Writes by a window's key.
    fn write(&self, second: &Second, (key, length): (u32, usize), seed: u64) -> Result<()> {
        transfer::fill(&second.region, &[(0, length)], seed);
        let request = crate::ffi::Send {
            wr_id: 7,
            operation: Operation::Write,
            pieces: vec![second.region.piece(0, length)],
            remote: (second.far.0 + OPEN.0 as u64, key),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        self.side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        Ok(())
    }

    /// A WRITE by a key that was taken back is refused, and writes nothing.
    fn refused(&mut self, second: &Second, writer: usize, key: u32) -> Result<()> {
        transfer::fill_guard(&second.region, second.region.length());
        self.line.meet()?;
        if writer == self.line.role {
            self.write(second, (key, REFUSED), 99)?;
            let refused = completion(&self.side.send_cq)?;
            ensure!(refused.status == v::IBV_WC_REM_ACCESS_ERR, "{refused:?}");
        }
        self.line.meet()?;
        if writer != self.line.role {
            transfer::check_part(&second.region, (0, 0), second.region.length(), 0)?;
        }
        Ok(())
    }
}
