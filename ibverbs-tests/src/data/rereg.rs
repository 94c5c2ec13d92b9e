//! Registrations that change while QPs use them: their keys stay, the card goes by their present state, and after a
//! refused change they are as before.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options};
use super::{arguments, transfer};
use crate::ffi::{
    Cq, Failed, Mapping, Operation, Patience, Pd, Peer, Qp, Region, Rereg, Send, Window, attempt,
};

/// Bytes of a region's memory, and of a message.
const LENGTH: usize = 1 << 16;
const MESSAGE: usize = 2000;
/// Changes beside messages, and messages beside each.
const ROUNDS: u8 = 20;
const BESIDE: usize = 16;
/// Codes of `ibv_rereg_mr`: libibverbs has refused the arguments, or the device the change.
const REFUSED_INPUT: i32 = v::IBV_REREG_MR_ERR_INPUT;
const REFUSED: i32 = v::IBV_REREG_MR_ERR_CMD;

const READ_ONLY: v::ibv_access_flags = v::IBV_ACCESS_REMOTE_READ;
const LOCAL_ONLY: v::ibv_access_flags = v::IBV_ACCESS_LOCAL_WRITE;

/// A region of the right side's, to which its peer writes and from which it reads.
struct Scene {
    link: ConnectedSides,
    region: Rc<Region>,
    keys: [u32; 2],
    /// Changes that were made or refused.
    changes: usize,
}

/// Runs all of it; answers how many changes there were.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(LENGTH))?;
    let region = Region::named(&link.right.pd, Mapping::zeroed(LENGTH)?, ACCESS, None)?;
    let (.., keys) = region.described();
    let mut scene = Scene { link, region, keys, changes: 0 };
    scene.is_open().context("before any change")?;
    scene.other_memory().context("other memory")?;
    scene.other_rights().context("other rights")?;
    scene.other_domain().context("another protection domain")?;
    scene.all_at_once().context("everything at once")?;
    scene.refused().context("changes that are refused")?;
    scene.kept_beside_messages().context("the same rights beside messages")?;
    (0..ROUNDS)
        .try_for_each(|round| scene.moved_beside_messages(round))
        .context("other memory beside messages")?;
    Ok(scene.changes)
}

impl Scene {
    /// Changes the region; answers with the memory that it had, where it has other memory now.
    fn rereg(&mut self, change: Rereg) -> Result<Option<Mapping>> {
        let pd = change.pd.as_ref().map_or(self.region.pd().element(), |pd| pd.element());
        let memory = change.memory.as_ref().map(|memory| (memory.address(), memory.length()));
        let (address, length) = memory.unwrap_or((self.region.address(), self.region.length()));
        let region = Rc::get_mut(&mut self.region).context("a request still names it")?;
        let before = region.rereg(change)?;
        let found = self.region.described();
        ensure!(found == (pd, address, length, self.keys), "the region is {found:x?}");
        self.changes += 1;
        Ok(before)
    }

    fn set_access(&mut self, access: v::ibv_access_flags) -> Result<()> {
        self.rereg(Rereg { access: Some(access), ..Rereg::default() }).map(drop)
    }

    /// The status of a request between the left side's memory and an address, by the region's key.
    fn outcome(&self, operation: Operation, address: u64) -> Result<v::ibv_wc_status> {
        let left = &self.link.left;
        let request = Send {
            wr_id: 1,
            operation,
            pieces: vec![left.region.piece(0, MESSAGE)],
            remote: (address, self.keys[1]),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        self.ended(&left.send_cq)
    }

    /// The next completion's status; the link is made anew behind an error.
    fn ended(&self, cq: &Cq) -> Result<v::ibv_wc_status> {
        let status = self.link.completion(cq)?.status;
        if status != v::IBV_WC_SUCCESS {
            self.reconnect()?;
        }
        Ok(status)
    }

    fn reconnect(&self) -> Result<()> {
        let ConnectedSides { left, right, .. } = &self.link;
        [left, right].iter().try_for_each(|side| side.qp.to(v::IBV_QPS_RESET))?;
        self.link.connect()
    }

    /// The status of the right side's own request with the region: a WRITE from it, or a READ into it.
    fn own_outcome(&self, operation: Operation) -> Result<v::ibv_wc_status> {
        let ConnectedSides { left, right, .. } = &self.link;
        let request = Send {
            wr_id: 1,
            operation,
            pieces: vec![self.region.piece(0, MESSAGE)],
            remote: (left.region.address(), left.region.rkey()),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        right.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        self.ended(&right.send_cq)
    }

    /// A request that comes to this.
    fn comes_to(&self, what: (Operation, u64), wanted: v::ibv_wc_status) -> Result<()> {
        let found = self.outcome(what.0, what.1)?;
        let name = |status| self.link.library.status_name(status);
        ensure!(found == wanted, "{what:x?}: {}, not {}", name(found), name(wanted));
        Ok(())
    }

    /// The peer writes all of the region's ends and reads them back.
    fn is_open(&self) -> Result<()> {
        let (left, region) = (&self.link.left.region, &self.region);
        let last = region.length() - MESSAGE;
        for (offset, seed) in [(0, 3), (last, 5), (last / 2, 7)] {
            let bytes: Vec<u8> = (0..MESSAGE).map(|at| (at as u8).wrapping_mul(seed)).collect();
            left.write(0, &bytes);
            let place = region.address() + offset as u64;
            self.comes_to((Operation::Write, place), v::IBV_WC_SUCCESS)?;
            let mut found = vec![0; MESSAGE];
            region.read(offset, &mut found);
            ensure!(found == bytes, "a WRITE at {offset} left other bytes there");
            left.write(0, &[0; MESSAGE]);
            self.comes_to((Operation::Read, place), v::IBV_WC_SUCCESS)?;
            left.read(0, &mut found);
            ensure!(found == bytes, "a READ at {offset} gave other bytes");
        }
        ensure!(self.own_outcome(Operation::Write)? == v::IBV_WC_SUCCESS, "its own WRITE");
        ensure!(self.own_outcome(Operation::Read)? == v::IBV_WC_SUCCESS, "its own READ");
        Ok(())
    }

    /// Memory of another size: the key opens it, and closes the earlier memory.
    fn other_memory(&mut self) -> Result<()> {
        for length in [LENGTH / 2, 2 * LENGTH, MESSAGE] {
            let (old_address, old_length) = (self.region.address(), self.region.length());
            let memory = Some(Mapping::zeroed(length)?);
            let before = self.rereg(Rereg { memory, ..Rereg::default() })?;
            let before = before.context("it has other memory")?;
            let bytes = contents(&before);
            self.is_open()?;
            let behind = self.region.address() + (length - MESSAGE + 1) as u64;
            for address in [old_address, old_address + (old_length - MESSAGE) as u64, behind] {
                for operation in [Operation::Write, Operation::Read] {
                    self.comes_to((operation, address), v::IBV_WC_REM_ACCESS_ERR)?;
                }
            }
            ensure!(contents(&before) == bytes, "the memory that it had has changed");
        }
        Ok(())
    }

    fn other_rights(&mut self) -> Result<()> {
        let (granted, denied) = (v::IBV_WC_SUCCESS, v::IBV_WC_REM_ACCESS_ERR);
        for (access, writes, reads, own_reads) in [
            (READ_ONLY, denied, granted, v::IBV_WC_LOC_PROT_ERR),
            (LOCAL_ONLY, denied, denied, granted),
            (LOCAL_ONLY | v::IBV_ACCESS_REMOTE_WRITE, granted, denied, granted),
            (0, denied, denied, v::IBV_WC_LOC_PROT_ERR),
        ] {
            self.set_access(access)?;
            let address = self.region.address();
            let tried = || -> Result<()> {
                self.comes_to((Operation::Write, address), writes)?;
                self.comes_to((Operation::Read, address), reads)?;
                let found = self.own_outcome(Operation::Read)?;
                ensure!(found == own_reads, "its own READ comes to {found}, not {own_reads}");
                ensure!(self.own_outcome(Operation::Write)? == granted, "its own WRITE");
                Ok(())
            };
            tried().with_context(|| format!("rights {access:#x}"))?;
            self.set_access(ACCESS)?;
            self.is_open().with_context(|| format!("behind rights {access:#x}"))?;
        }
        Ok(())
    }

    /// In another domain only that one's QPs reach it, and the one before may go.
    fn other_domain(&mut self) -> Result<()> {
        let own = Rc::clone(&self.link.right.pd);
        let other = Pd::new(&self.link.right.context)?;
        let qp = self.to_itself(&other)?;
        let change = |pd: &Rc<Pd>| Rereg { pd: Some(Rc::clone(pd)), ..Rereg::default() };
        for _ in 0..2 {
            self.rereg(change(&other))?;
            let address = self.region.address();
            self.comes_to((Operation::Write, address), v::IBV_WC_REM_ACCESS_ERR)?;
            self.comes_to((Operation::Read, address), v::IBV_WC_REM_ACCESS_ERR)?;
            ensure!(self.own_outcome(Operation::Read)? == v::IBV_WC_LOC_PROT_ERR, "its own READ");
            ensure!(self.own_outcome(Operation::Write)? == v::IBV_WC_LOC_PROT_ERR, "its own WRITE");
            let request = Send {
                wr_id: 1,
                operation: Operation::Write,
                pieces: vec![self.region.piece(0, MESSAGE / 2)],
                remote: (address + (MESSAGE / 2) as u64, self.keys[1]),
                immediate: 0,
                flags: v::IBV_SEND_SIGNALED,
            };
            qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
            self.link.success(&self.link.right.send_cq).context("a QP of the domain it is in")?;
            self.rereg(change(&own))?;
            self.is_open().context("back in its domain")?;
        }
        // A domain without regions can be deallocated, and a domain with one cannot.
        let first = Pd::new(&self.link.right.context)?;
        self.rereg(change(&first))?;
        let found = attempt::dealloc_used_pd(&first).err().context("it goes")?;
        ensure!(found.downcast::<Failed>()?.errno == libc::EBUSY);
        self.rereg(change(&own))?;
        drop(first);
        self.is_open()
    }

    /// A QP of the right side's in a domain, connected to itself.
    fn to_itself(&self, pd: &Rc<Pd>) -> Result<Qp> {
        let (right, gid_index) = (&self.link.right, self.link.options().gid_index);
        let qp = Qp::new(pd, &right.send_cq, &right.receive_cq, arguments::capabilities())?;
        let (gid, mtu) = (right.context.gid(gid_index)?, v::IBV_MTU_1024);
        let own = Peer { qpn: qp.number(), gid, gid_index, send_psn: 7, receive_psn: 7, mtu };
        qp.init(ACCESS)?;
        qp.receive_from(&own)?;
        qp.send_to(&own, Patience::default())?;
        Ok(qp)
    }

    fn all_at_once(&mut self) -> Result<()> {
        let own = Rc::clone(&self.link.right.pd);
        let other = Pd::new(&self.link.right.context)?;
        let (memory, access) = (Some(Mapping::zeroed(LENGTH)?), Some(READ_ONLY));
        self.rereg(Rereg { pd: Some(other), memory, access })?;
        let address = self.region.address();
        self.comes_to((Operation::Read, address), v::IBV_WC_REM_ACCESS_ERR)?;
        self.rereg(Rereg { pd: Some(own), ..Rereg::default() })?;
        self.comes_to((Operation::Read, address), v::IBV_WC_SUCCESS)?;
        self.comes_to((Operation::Write, address), v::IBV_WC_REM_ACCESS_ERR)?;
        self.set_access(ACCESS)?;
        self.is_open()
    }

    /// Each wrong argument has its code and its errno, and the region is unchanged.
    fn refused(&mut self) -> Result<()> {
        use v::{
            IBV_REREG_MR_CHANGE_ACCESS as RIGHTS, IBV_REREG_MR_CHANGE_PD as DOMAIN,
            IBV_REREG_MR_CHANGE_TRANSLATION as MEMORY,
        };
        const EINVAL: i32 = libc::EINVAL;
        let foreign = Pd::new(&self.link.left.context)?;
        let closed = Mapping::empty(LENGTH)?;
        let closed = (closed.address(), closed.length());
        let most = self.link.right.context.attributes()?.max_mr_size as usize;
        let on_demand = v::IBV_ACCESS_ON_DEMAND;
        let none = (0, 0);
        let before = self.region.described();
        for (what, flags, pd, memory, access, wanted) in [
            ("an unknown flag", 8, None, none, 0, (REFUSED_INPUT, EINVAL)),
            ("no bytes", MEMORY, None, (closed.0, 0), 0, (REFUSED_INPUT, EINVAL)),
            ("the address 0", MEMORY, None, (0, LENGTH), 0, (REFUSED_INPUT, EINVAL)),
            ("rights without their flag", MEMORY, None, closed, 1, (REFUSED_INPUT, EINVAL)),
            ("no domain", DOMAIN, None, none, 0, (REFUSED, EINVAL)),
            ("another context's", DOMAIN, Some(&*foreign), none, 0, (REFUSED, EINVAL)),
            ("remote writes alone", RIGHTS, None, none, 2, (REFUSED, EINVAL)),
            ("an unknown right", RIGHTS, None, none, 1 << 12, (REFUSED, EINVAL)),
            ("paging", RIGHTS, None, none, on_demand, (REFUSED, libc::EOPNOTSUPP)),
            ("memory that is not writable", MEMORY, None, closed, 0, (REFUSED, libc::EFAULT)),
            ("too much memory", MEMORY, None, (closed.0, most + 1), 0, (REFUSED, EINVAL)),
            ("memory and a bad right", MEMORY | RIGHTS, None, closed, 2, (REFUSED, EINVAL)),
        ] {
            let found = attempt::rereg_refused(&self.region, flags, pd, memory, access);
            ensure!(found == wanted, "{what}: code and errno are {found:?}, not {wanted:?}");
            ensure!(self.region.described() == before, "{what}: the region has changed");
            self.is_open().with_context(|| format!("behind {what}"))?;
            self.changes += 1;
        }
        self.set_access(ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let window = Window::new(&self.region)?;
        let key = (window.rkey() & !0xff) | (window.rkey().wrapping_add(1) & 0xff);
        let right = &self.link.right;
        right.qp.post_bind(1, (&window, key), (0, LENGTH), v::IBV_ACCESS_REMOTE_READ)?;
        self.link.success(&right.send_cq)?;
        let found = attempt::rereg_refused(&self.region, RIGHTS, None, none, ACCESS);
        ensure!(found == (REFUSED, libc::EBUSY), "with a window bound: {found:?}");
        drop(window);
        self.set_access(ACCESS)?;
        self.is_open().context("without the window")
    }

    /// WRITEs of a byte to different places of the region, posted together.
    fn post_beside(&self, byte: u8) -> Result<()> {
        let left = &self.link.left;
        left.region.write(0, &[byte; MESSAGE]);
        let requests: Vec<Send> = (0..BESIDE)
            .map(|index| Send {
                wr_id: index as u64,
                operation: Operation::Write,
                pieces: vec![left.region.piece(0, MESSAGE)],
                remote: (self.region.address() + (index * MESSAGE) as u64, self.keys[1]),
                immediate: 0,
                flags: v::IBV_SEND_SIGNALED,
            })
            .collect();
        Ok(left.qp.post_send(&requests).map_err(|(failed, _)| failed)?)
    }

    /// A change that leaves a peer its rights fails none of its messages.
    fn kept_beside_messages(&mut self) -> Result<()> {
        for round in 1..=ROUNDS {
            self.post_beside(round)?;
            let pd = Some(Rc::clone(&self.link.right.pd));
            self.rereg(Rereg { pd, memory: None, access: Some(ACCESS) })?;
            for wr_id in 0..BESIDE as u64 {
                ensure!(self.link.success(&self.link.left.send_cq)?.wr_id == wr_id);
            }
            let mut found = vec![0; BESIDE * MESSAGE];
            self.region.read(0, &mut found);
            ensure!(found.iter().all(|byte| *byte == round), "round {round}: other bytes");
        }
        Ok(())
    }

    /// Messages to the memory that a region had: each has arrived, or is refused with all behind it, and none
    /// arrives behind the change.
    fn moved_beside_messages(&mut self, round: u8) -> Result<()> {
        let byte = 100 + round;
        self.post_beside(byte)?;
        let memory = Some(Mapping::zeroed(LENGTH)?);
        let before = self.rereg(Rereg { memory, ..Rereg::default() })?;
        let before = before.context("it has other memory")?;
        let bytes = contents(&before);
        let cq = &self.link.left.send_cq;
        let mut failed = false;
        for index in 0..BESIDE {
            let status = self.link.completion(cq)?.status;
            let arrived = bytes[index * MESSAGE..][..MESSAGE].iter().all(|it| *it == byte);
            let is_right = match status {
                v::IBV_WC_SUCCESS => !failed && arrived,
                v::IBV_WC_REM_ACCESS_ERR | v::IBV_WC_REM_OP_ERR => !failed,
                v::IBV_WC_WR_FLUSH_ERR => failed,
                _ => false,
            };
            let name = self.link.library.status_name(status);
            ensure!(is_right, "round {round}, message {index}: {name}, arrived: {arrived}");
            failed |= status != v::IBV_WC_SUCCESS;
        }
        if failed {
            self.reconnect()?;
        }
        ensure!(contents(&before) == bytes, "round {round}: bytes came behind the change");
        let now = self.region.change(|memory| Ok::<_, Failed>(contents(memory)))?;
        ensure!(now.iter().all(|it| *it == 0), "round {round}: bytes came to the new memory");
        self.is_open()
    }
}

fn contents(memory: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0; memory.length()];
    memory.read(0, &mut bytes);
    bytes
}
