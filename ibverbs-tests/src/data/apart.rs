//! Both sides of a connection in a process of their own, so that the devices need not be of one
//! machine, or of one maker.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use verbs_sys::current::verbs as v;

use super::line::{Line, Role};
use super::link::{ACCESS, Options, Side, success};
use super::transfer::{self, Transfer};
use super::{MTUS, PIECES};
use crate::ffi::{Library, Operation, Peer, Region, Service};

mod atomics;
mod datagrams;
mod lossy;
mod windows;

use datagrams::Datagrams;

/// Bytes of a message that is longer than every path MTU.
const LONG: usize = 20_011;
/// Bytes of the messages of one side alone: of one packet, of some, and of more than a published card has out.
const ONE_SIDED: [usize; 6] = [4, 4092, 4096, 4100, 20_012, 80_000];
/// First PSNs of the side that waited and of the one that connected. They wrap around after the
/// first few packets.
const PSNS: [u32; 2] = [0xff_fffa, 0xff_fff0];
/// The rights that a QP gives a peer that may use atomics.
const RIGHTS: v::ibv_access_flags = ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC;

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// READs of nothing name no key.
    pub keyless: bool,
    /// The cable loses frames: messages without acknowledgement need not arrive, and no answer is asked for that is
    /// said only once.
    pub bad_cable: bool,
    /// A receive does not say which key was taken back: rdma_rxe marks it by the kernel's flag, which means
    /// another thing to programs.
    pub mislabels: bool,
    /// The side that connects WRITEs and READs, on a QP each, and nothing else is done: a published card carries no
    /// more.
    pub one_sided: bool,
    /// A WRITE may be acknowledged before it has landed, as a published card does: its target is waited for.
    pub late: bool,
}

/// How long such a WRITE may take to land.
const LATE: Duration = Duration::from_secs(60);

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Messages that arrived.
    pub messages: usize,
    /// Atomics that were executed once.
    pub atomics: usize,
    /// Keys that a SEND took back.
    pub keys: usize,
}

/// What both devices have beyond messages.
#[derive(Clone, Copy, Debug, Default)]
struct Common {
    atomics: bool,
    windows: bool,
}

/// One side of a connection, and the other one as far as it is known.
struct Half<'a> {
    side: &'a Side,
    line: &'a mut Line,
    far: Far,
    wishes: Wishes,
}

/// The other side's queue pair and region.
struct Far {
    qpn: u32,
    gid: [u8; 16],
    region: (u64, u32),
}

/// Waits on a TCP port, or connects to it, and moves messages of every kind both ways; answers how
/// many.
///
/// # Errors
/// At the first that goes wrong.
pub fn run(options: &Options, host: Option<&str>, port: u16, wishes: Wishes) -> Result<Done> {
    let library = Library::open()?;
    let longest = if wishes.one_sided { ONE_SIDED[ONE_SIDED.len() - 1] } else { LONG };
    let side = Side::new(library, options, 0, transfer::room(longest))?;
    let mut line = Line::new(host, port)?;
    match options.service {
        Service::Datagram => {
            let mut half = Datagrams::new(&side, &mut line, options)?;
            if wishes.bad_cable { lossy::datagrams(&mut half) } else { half.run() }
        }
        Service::Unreliable if wishes.bad_cable => lossy::connections(side, &mut line, options),
        Service::Reliable if wishes.one_sided => one_sided(side, &mut line, options, wishes),
        _ => connections(side, &mut line, options, wishes),
    }
}

/// Messages of every kind at every path MTU that the port has.
///
/// Each path MTU has QPs of its own. A QP of rdma_rxe cannot be connected again: RESET leaves it the READ
/// that it was answering (`qp->resp.res`), which may be a repetition for which the requester no longer waits,
/// and the first request of its next life is taken for that READ and refused for its key.
fn connections(mut side: Side, line: &mut Line, options: &Options, wishes: Wishes) -> Result<Done> {
    let mut done = Done::default();
    let widest = side.context.port()?.active_mtu;
    let common = match options.service {
        Service::Reliable => Common::exchange(&side, line)?,
        _ => Common::default(),
    };
    let rights = if common.atomics { RIGHTS } else { ACCESS };
    for (turn, mtu) in MTUS.into_iter().enumerate().take_while(|(_, mtu)| *mtu <= widest) {
        side.renew_qp()?;
        let mut half = Half::connected(&side, line, options, rights, (mtu, wishes))
            .with_context(|| format!("at ibv_mtu {mtu}"))?;
        for transfer in transfers(128 << mtu) {
            if options.service == Service::Unreliable && transfer.reads() {
                continue;
            }
            for sender in [0, 1] {
                half.run(&transfer, sender).with_context(|| {
                    let from = if sender == half.line.role { "to" } else { "from" };
                    format!("{transfer:?} {from} the other side at ibv_mtu {mtu}")
                })?;
                done.messages += 1;
            }
        }
        if common.atomics {
            done.atomics += atomics::run(&mut half).context("atomics")?;
        }
        if common.windows {
            done.keys += windows::run(&mut half, 128 << mtu, turn % 2)
                .with_context(|| format!("SEND with invalidate at ibv_mtu {mtu}"))?;
        }
    }
    Ok(done)
}

/// WRITEs and READs of the side that connects.
fn one_sided(mut side: Side, line: &mut Line, options: &Options, wishes: Wishes) -> Result<Done> {
    let mut done = Done::default();
    for operation in [Operation::Write, Operation::Read] {
        side.renew_qp()?;
        let mut half = Half::connected(&side, line, options, RIGHTS, (v::IBV_MTU_4096, wishes))?;
        for (turn, size) in ONE_SIDED.into_iter().enumerate() {
            let (offset, seed) = (4 * turn, turn as u64);
            let transfer =
                Transfer { operation, size, gather: 1, scatter: 1, offset, inline: false, seed };
            half.run(&transfer, 1).with_context(|| format!("{transfer:?}"))?;
            done.messages += 1;
        }
    }
    Ok(done)
}

/// Every operation with sizes around the path MTU, given in bytes.
fn transfers(mtu: usize) -> impl Iterator<Item = Transfer> {
    let sizes = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 3, LONG];
    let all = Operation::ALL
        .into_iter()
        .flat_map(move |operation| sizes.into_iter().map(move |size| (operation, size)));
    all.enumerate().map(move |(turn, (operation, size))| Transfer {
        operation,
        size,
        gather: PIECES[turn % PIECES.len()],
        scatter: PIECES[(turn / 2 + 1) % PIECES.len()],
        offset: turn % 7,
        inline: size < 64 && operation != Operation::Read && turn % 2 == 0,
        seed: (mtu + turn) as u64,
    })
}

impl Common {
    /// Asks this side's device and the other side.
    fn exchange(side: &Side, line: &mut Line) -> Result<Self> {
        let device = side.context.attributes()?;
        let atomics = device.atomic_cap != v::IBV_ATOMIC_NONE;
        let windows = device.device_cap_flags & v::IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0;
        let theirs = line.exchange([atomics, windows].map(u128::from))?;
        let [their_atomics, their_windows] = theirs.map(|has| has != 0);
        Ok(Self { atomics: atomics && their_atomics, windows: windows && their_windows })
    }
}

impl Far {
    /// Exchanges the queue pairs and regions of both sides.
    fn exchange(side: &Side, line: &mut Line, options: &Options) -> Result<Self> {
        let gid = u128::from_be_bytes(side.context.gid(options.gid_index)?);
        let (address, key) = (side.region.address(), side.region.rkey());
        let told = [u128::from(side.qp.number()), gid, address.into(), key.into()];
        let [qpn, gid, address, key] = line.exchange(told)?;
        let region = (address.try_into()?, key.try_into()?);
        Ok(Self { qpn: qpn.try_into()?, gid: gid.to_be_bytes(), region })
    }
}

impl<'a> Half<'a> {
    /// Connects a side's QP, which is in RESET, to the other side's.
    fn connected(
        side: &'a Side,
        line: &'a mut Line,
        options: &Options,
        rights: v::ibv_access_flags,
        (mtu, wishes): (v::ibv_mtu, Wishes),
    ) -> Result<Self> {
        let far = Far::exchange(side, line, options)?;
        let peer = Peer {
            qpn: far.qpn,
            gid: far.gid,
            gid_index: options.gid_index,
            send_psn: PSNS[line.role],
            receive_psn: PSNS[1 - line.role],
            mtu,
        };
        side.qp.init(rights)?;
        side.qp.receive_from(&peer)?;
        side.qp.send_to(&peer, options.patience)?;
        line.meet()?;
        Ok(Self { side, line, far, wishes })
    }

    /// One message, of which this side sees its half.
    fn run(&mut self, transfer: &Transfer, sender: Role) -> Result<()> {
        let (near, end) = (sender == self.line.role, transfer.end());
        let region = &self.side.region;
        transfer::fill_guard(region, end);
        match transfer.reads() {
            true if !near => transfer::fill(region, &transfer.far(), transfer.seed),
            false if near => transfer::fill(region, &transfer.near(), transfer.seed),
            _ => {}
        }
        // An unacknowledged WRITE has an empty SEND behind it: the WRITE is there when the SEND is.
        let unreliable = self.side.qp.service() == Service::Unreliable;
        let tail = (unreliable && !transfer.operation.receives()).then_some(Transfer {
            operation: Operation::Send,
            size: 0,
            ..*transfer
        });
        let received = tail.as_ref().unwrap_or(transfer);
        let receives = received.operation.receives() && !near;
        if receives {
            self.side.qp.post_recv(&received.receive(region, 5))?;
        }
        self.line.meet()?;
        let (side, library) = (self.side, self.side.context.library());
        if near {
            let (address, key) = self.far.region;
            let needs_none = self.wishes.keyless && transfer.reads() && transfer.size == 0;
            let far = (address, if needs_none { 0 } else { key });
            let sends = [Some(transfer), tail.as_ref()].into_iter().flatten().zip(6..);
            for (sent, wr_id) in sends {
                let request = sent.send(&side.region, far, wr_id, true);
                side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
                sent.check_sent(side, wr_id, &success(library, &side.send_cq)?)?;
            }
        }
        if receives {
            received.check_received(side, 5, &success(library, &side.receive_cq)?)?;
        }
        self.line.meet()?;
        if near == transfer.reads() {
            let check = || transfer::check_bytes(&self.side.region, &[*transfer], end);
            let begun = Instant::now();
            while !near && self.wishes.late && check().is_err() && begun.elapsed() < LATE {
                std::thread::sleep(Duration::from_millis(1));
            }
            check()?;
        }
        Ok(())
    }

    /// Makes a region for this side's part of the next test, and exchanges the addresses.
    fn second_region(&mut self, access: v::ibv_access_flags) -> Result<Second> {
        let region = Region::new(&self.side.pd, SECOND, access, false)?;
        let [address, key] = self.line.exchange([region.address().into(), region.rkey().into()])?;
        Ok(Second { region, far: (address.try_into()?, key.try_into()?) })
    }
}

/// Bytes of a second region.
const SECOND: usize = 64 << 10;

/// A second region, and where the other side has its own.
struct Second {
    region: Rc<Region>,
    far: (u64, u32),
}
