//! The modes of `verbs-attack`: hostile verbs programs, and the one that they must not harm.
//!
//! An attacker says `attacking` once it is at it, and goes on until it is killed. The program that starts it judges the
//! effect on others.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use verbs_sys::current::verbs as v;

use crate::ffi::{Context, Cq, Library, Patience, Pd, Peer, Qp};
use crate::mortal::say;

pub mod bystander;
pub mod cable;
pub mod control;
pub mod frame;
pub mod fuse;
pub mod latency;
pub mod queues;
pub mod relayed_doorbells;
pub mod requests;
pub mod retries;
pub mod silence;
pub mod translations;
pub mod unanswered;
mod waits;

/// The line of an attacker once it attacks.
pub const ATTACKING: &str = "attacking";
/// How long anything may take that is bound to come, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The longest wait for an acknowledgement, which is more than two hours, and tries without end.
const PATIENT: Patience = Patience { timeout: 31, retry_cnt: 7, rnr_retry: 7 };
/// The GID index of the port's IPv4 address.
const GID: u8 = 1;

/// A device, with the objects that QPs on it need.
pub(crate) struct Opened {
    pub context: Rc<Context>,
    pub pd: Rc<Pd>,
    pub cq: Rc<Cq>,
    pub gid: [u8; 16],
}

impl Opened {
    /// Opens a device, with a completion queue of so many entries at least.
    pub fn open(device: &str, entries: u32) -> Result<Self> {
        let context = Context::open(Library::open()?, device)?;
        let (pd, gid) = (Pd::new(&context)?, context.gid(GID)?);
        let cq = Cq::new(&context, entries, None)?;
        Ok(Self { context, pd, cq, gid })
    }

    /// A QP that takes so many work requests of either kind.
    pub fn qp(&self, requests: u32) -> Result<Qp> {
        self.qp_on(&self.cq, requests)
    }

    /// The same on another completion queue.
    pub fn qp_on(&self, cq: &Rc<Cq>, requests: u32) -> Result<Qp> {
        let capabilities = v::ibv_qp_cap {
            max_send_wr: requests,
            max_recv_wr: requests,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        Ok(Qp::new(&self.pd, cq, cq, capabilities)?)
    }

    /// A QP by its number, its own or another program's, as a peer.
    pub fn peer(&self, qpn: u32) -> Peer {
        let (gid, gid_index, mtu) = (self.gid, GID, v::IBV_MTU_1024);
        Peer { qpn, gid, gid_index, send_psn: 0, receive_psn: 0, mtu }
    }
}

/// Says that the attack is under way, and lets it be.
fn stay() -> Result<()> {
    say(ATTACKING);
    loop {
        std::thread::park();
    }
}

/// Threads that are always ready to run, and do no other harm.
///
/// # Errors
/// Never: it ends by being killed.
pub fn load(threads: usize) -> Result<()> {
    for _ in 1..threads {
        std::thread::spawn(spin);
    }
    say(ATTACKING);
    if threads == 0 {
        return stay();
    }
    spin()
}

fn spin() -> ! {
    let mut word = 1u64;
    loop {
        word = std::hint::black_box(word.rotate_left(7) ^ 0x5a);
    }
}
