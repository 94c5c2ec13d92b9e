//! Address handles that a program destroys as soon as it has posted, as a NIC lets it.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, Options, success};
use crate::ffi::{
    Ah, Completion, Context, Cq, Destination, Library, Operation, Pd, Qp, Recv, Region, Send,
    Service,
};

/// Handles that are made at a time, and datagrams with each.
const TURNS: [(u32, u32); 3] = [(400, 3), (1000, 1), (1, 1000)];
/// Handles that are made after the datagram of the one before has arrived: no other object uses their peer then.
const ONES: u32 = 100;
/// Datagrams that are answered by the header that came with them.
const ANSWERS: u32 = 20;
/// Work requests that each queue takes.
const DEPTH: u32 = 2048;
/// Bytes of a datagram, which are its number, of the network header before it, and of the room for it.
const LENGTH: usize = 4;
const HEADER: usize = 40;
const SLOT: usize = 64;
const QKEY: u32 = 0x0bad_cafe;
/// Traffic class and hop limit.
const MARKS: (u8, u8) = (0, 64);

/// A queue pair of datagrams.
struct End {
    qp: Qp,
    cq: Rc<Cq>,
    region: Rc<Region>,
    pd: Rc<Pd>,
}

/// The sender and the receiver.
struct Scene {
    library: &'static Library,
    from: End,
    to: End,
    gid: [u8; 16],
    gid_index: u8,
    /// The number of the next datagram.
    next: u32,
}

/// Runs all of it; answers how many datagrams arrived.
///
/// # Errors
/// At the first that is missing, or out of order.
pub fn all(options: &Options) -> Result<u32> {
    let library = Library::open()?;
    let end = |side: usize| End::new(library, &options.devices[side]);
    let (from, to, gid_index) = (end(0)?, end(1)?, options.gid_index);
    let gid = to.pd.context().gid(gid_index)?;
    let mut scene = Scene { library, from, to, gid, gid_index, next: 0 };
    for (handles, each) in TURNS {
        scene.turn(handles, each).with_context(|| format!("{each} with each of {handles}"))?;
    }
    for _ in 0..ONES {
        scene.turn(1, 1).context("one with one")?;
    }
    scene.behind_nobody().context("behind one to nobody")?;
    (0..ANSWERS).try_for_each(|_| scene.answered()).context("answers to who sent")?;
    Ok(scene.next)
}

impl Scene {
    /// Handles one after another, each destroyed when datagrams were posted with it, of which only the last of
    /// all is signaled.
    fn turn(&mut self, handles: u32, each: u32) -> Result<()> {
        let count = handles * each;
        (0..count).try_for_each(|slot| self.to.receive(slot))?;
        for handle in 0..handles {
            let to = Ah::new(&self.from.pd, self.gid, self.gid_index, MARKS)?;
            for datagram in 0..each {
                let is_last = handle + 1 == handles && datagram + 1 == each;
                self.send(&to, handle * each + datagram, is_last)?;
            }
        }
        success(self.library, &self.from.cq)?;
        (0..count).try_for_each(|slot| self.arrives(slot).map(drop))
    }

    /// A datagram to an address without a host waits for a while and is lost, as if its handle were there, and one
    /// behind it arrives.
    fn behind_nobody(&mut self) -> Result<()> {
        self.to.receive(0)?;
        let mut nobody = self.gid;
        nobody[15] ^= 0x55;
        self.send(&Ah::new(&self.from.pd, nobody, self.gid_index, MARKS)?, 1, true)?;
        self.send(&Ah::new(&self.from.pd, self.gid, self.gid_index, MARKS)?, 0, true)?;
        let ended = [(); 2].map(|()| success(self.library, &self.from.cq));
        for (ended, wr_id) in ended.into_iter().zip([1, 0]) {
            ensure!(ended?.wr_id == wr_id, "sends end out of order");
        }
        self.arrives(0).map(drop)
    }

    /// A datagram comes, and its receiver answers by the handle that its header makes.
    fn answered(&mut self) -> Result<()> {
        self.to.receive(0)?;
        self.from.receive(1)?;
        self.send(&Ah::new(&self.from.pd, self.gid, self.gid_index, MARKS)?, 0, true)?;
        success(self.library, &self.from.cq)?;
        let received = self.arrives(0)?;
        let mut header = [0; HEADER];
        self.to.region.read(0, &mut header);
        let sender = Ah::to_sender_of(&self.to.pd, &received, header)?;
        self.to.region.write(SLOT, &self.next.to_ne_bytes());
        let answer = Send {
            wr_id: 7,
            operation: Operation::Send,
            pieces: vec![self.to.region.piece(SLOT, LENGTH)],
            remote: (0, 0),
            immediate: 0,
            flags: 0,
        };
        let to = Destination { handle: &sender, qpn: received.source_qpn, qkey: QKEY };
        self.to.qp.post_datagram(&answer, to)?;
        let came = success(self.library, &self.from.cq)?;
        let mut bytes = [0; LENGTH];
        self.from.region.read(SLOT + HEADER, &mut bytes);
        let found = (came.wr_id, came.source_qpn, u32::from_ne_bytes(bytes));
        ensure!(found == (1, self.to.qp.number(), self.next), "{found:?} came: {came:?}");
        self.next += 1;
        Ok(())
    }

    /// Posts the datagram that a receive of this turn is to have: they are numbered from the next one on.
    fn send(&self, to: &Ah, slot: u32, signaled: bool) -> Result<()> {
        let (at, first) = (slot as usize * SLOT, self.next);
        self.from.region.write(at, &(first + slot).to_ne_bytes());
        let datagram = Send {
            wr_id: slot.into(),
            operation: Operation::Send,
            pieces: vec![self.from.region.piece(at, LENGTH)],
            remote: (0, 0),
            immediate: 0,
            flags: if signaled { v::IBV_SEND_SIGNALED } else { 0 },
        };
        let to = Destination { handle: to, qpn: self.to.qp.number(), qkey: QKEY };
        Ok(self.from.qp.post_datagram(&datagram, to)?)
    }

    /// Waits for the next datagram, which is to be in this receive.
    fn arrives(&mut self, slot: u32) -> Result<Completion> {
        let received = success(self.library, &self.to.cq)?;
        let mut bytes = [0; LENGTH];
        self.to.region.read(slot as usize * SLOT + HEADER, &mut bytes);
        let found = u32::from_ne_bytes(bytes);
        let is_next = received.wr_id == u64::from(slot) && found == self.next;
        ensure!(is_next, "{found} came, not {}: {received:?}", self.next);
        self.next += 1;
        Ok(received)
    }
}

impl End {
    fn new(library: &'static Library, device: &str) -> Result<Self> {
        let context = Context::open(library, device)?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, DEPTH, None)?);
        let capabilities = v::ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = Qp::of(Service::Datagram, &pd, [&cq, &cq], capabilities)?;
        qp.to_datagrams(QKEY, 0)?;
        let region = Region::new(&pd, DEPTH as usize * SLOT, ACCESS, false)?;
        Ok(Self { qp, cq, region, pd })
    }

    fn receive(&self, slot: u32) -> Result<()> {
        let pieces = vec![self.region.piece(slot as usize * SLOT, SLOT)];
        Ok(self.qp.post_recv(&Recv { wr_id: slot.into(), pieces })?)
    }
}
