//! Several connections that receive from one queue, and the receives that end with each of them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side, completion};
use crate::ffi::{AsyncEvent, Cq, Failed, Operation, Peer, Qp, Recv, Region, Send, Srq};

/// Receives that the queue holds, a power of two.
const RECEIVES: usize = 16;
/// Bytes of one.
const SLOT: usize = 64 << 10;
/// Connections.
const PAIRS: usize = 3;
/// Messages of each that are checked, and of those as many as are under way at a time.
const MESSAGES: usize = 200;
const BURST: usize = 4;
/// The value of a byte that no message has reached.
const UNTOUCHED: u8 = 0xa5;
/// How long an event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Path MTU.
const MTU: v::ibv_mtu = v::IBV_MTU_1024;

/// One queue, and the connections that share it.
struct Scene {
    /// Two sides with a QP each, which are not of the connections.
    link: ConnectedSides,
    /// Where the receives of the first two complete, and where those of the last.
    cqs: [Rc<Cq>; 2],
    srq: Rc<Srq>,
    source: Rc<Region>,
    slots: Rc<Region>,
    /// Pairs of a sender and a receiver.
    pairs: Vec<(Qp, Qp)>,
    /// First PSN of the next connection: frames of one before must not be taken for its.
    psn: Cell<u32>,
}

/// Runs all of it; answers how many messages arrived.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let mut scene = Scene::new(options)?;
    scene.sizes_and_refusals().context("sizes and refusals")?;
    let count = scene.exchange().context("messages")?;
    scene.limit().context("the limit")?;
    scene.ends().context("receives of a QP that ends")?;
    scene.last_receive().context("the last receive")?;
    Ok(count)
}

impl Scene {
    fn new(options: &Options) -> Result<Self> {
        let link = ConnectedSides::new(options, MTU, 4096)?;
        let ConnectedSides { left, right, .. } = &link;
        let cq = || Cq::new(&right.context, 64, None);
        let cqs = [cq()?, cq()?];
        let srq = Srq::new(&right.pd, RECEIVES as u32, 1)?;
        let source = Region::new(&left.pd, RECEIVES * SLOT, ACCESS, false)?;
        let slots = Region::new(&right.pd, RECEIVES * SLOT, ACCESS, false)?;
        let mut scene =
            Self { link, cqs, srq, source, slots, pairs: Vec::new(), psn: Cell::new(7) };
        for number in 0..PAIRS {
            let pair = scene.pair(usize::from(number + 1 == PAIRS))?;
            scene.pairs.push(pair);
        }
        (0..RECEIVES).try_for_each(|slot| scene.post(slot))?;
        Ok(scene)
    }

    /// A connection whose receives complete on one of the queues.
    fn pair(&self, cq: usize) -> Result<(Qp, Qp)> {
        let ConnectedSides { left, right, .. } = &self.link;
        let capabilities = v::ibv_qp_cap {
            max_send_wr: RECEIVES as u32,
            max_recv_wr: 7,
            max_send_sge: 1,
            max_recv_sge: 7,
            max_inline_data: 0,
        };
        let sender = Qp::new(&left.pd, &left.send_cq, &left.receive_cq, capabilities)?;
        let receiver = Qp::sharing(&self.srq, &right.send_cq, &self.cqs[cq], capabilities)?;
        self.connect(&sender, &receiver)?;
        Ok((sender, receiver))
    }

    fn connect(&self, sender: &Qp, receiver: &Qp) -> Result<()> {
        let ConnectedSides { left, right, .. } = &self.link;
        let psn = self.psn.replace(self.psn.get() + 100_000);
        let peer = |side: &Side, qp: &Qp| -> Result<Peer> {
            let gid_index = self.link.options().gid_index;
            let gid = side.context.gid(gid_index)?;
            Ok(Peer { qpn: qp.number(), gid, gid_index, send_psn: psn, receive_psn: psn, mtu: MTU })
        };
        for (qp, far) in [(sender, peer(right, receiver)?), (receiver, peer(left, sender)?)] {
            qp.init(ACCESS)?;
            qp.connect(&far)?;
        }
        Ok(())
    }

    fn recv(&self, slot: usize) -> Recv {
        Recv { wr_id: slot as u64, pieces: vec![self.slots.piece(slot * SLOT, SLOT)] }
    }

    fn post(&self, slot: usize) -> Result<(), Failed> {
        self.slots.write(slot * SLOT, &[UNTOUCHED; SLOT]);
        self.srq.post(&self.recv(slot))
    }

    /// Sends bytes of the source.
    fn send(&self, pair: usize, (at, length): (usize, usize), immediate: u32) -> Result<()> {
        let request = Send {
            wr_id: pair as u64,
            operation: Operation::SendImmediate,
            pieces: vec![self.source.piece(at, length)],
            remote: (0, 0),
            immediate,
            flags: v::IBV_SEND_SIGNALED,
        };
        Ok(self.pairs[pair].0.post_send(&[request]).map_err(|(error, _)| error)?)
    }

    /// Waits until so many sends have been acknowledged.
    fn acknowledged(&self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.link.success(&self.link.left.send_cq)?;
        }
        Ok(())
    }

    fn sizes_and_refusals(&self) -> Result<()> {
        let granted = self.srq.granted;
        ensure!((granted.max_wr, granted.max_sge >= 1) == (RECEIVES as u32, true));
        let now = self.srq.query()?;
        let told = (now.max_wr, now.max_sge, now.srq_limit);
        ensure!(told == (granted.max_wr, granted.max_sge, 0), "ibv_query_srq says {told:?}");
        let device = self.link.right.context.attributes()?;
        let most = [device.max_srq, device.max_srq_wr, device.max_srq_sge];
        ensure!(most.iter().all(|most| *most >= 16), "ibv_query_device says {most:?}");
        let receiver = &self.pairs[0].1;
        let own = (receiver.capabilities.max_recv_wr, receiver.capabilities.max_recv_sge);
        ensure!(own == (0, 0), "it has receives of its own: {own:?}");
        let limit = |srq_limit| v::ibv_srq_attr { max_wr: 64, max_sge: 1, srq_limit };
        let too_many = Srq::new(&self.link.right.pd, device.max_srq_wr as u32 + 1, 1);
        let too_long = Srq::new(&self.link.right.pd, 1, device.max_srq_sge as u32 + 1);
        let refusals = [
            (self.post(0), libc::ENOMEM),
            (receiver.post_recv(&self.recv(0)), libc::EINVAL),
            (self.srq.modify(v::IBV_SRQ_MAX_WR, limit(0)), libc::EOPNOTSUPP),
            (self.srq.modify(v::IBV_SRQ_MAX_WR | v::IBV_SRQ_LIMIT, limit(1)), libc::EOPNOTSUPP),
            (self.srq.modify(v::IBV_SRQ_LIMIT, limit(RECEIVES as u32 + 1)), libc::EINVAL),
            (self.srq.modify(4, limit(1)), libc::EINVAL),
            (too_many.map(drop), libc::EINVAL),
            (too_long.map(drop), libc::EINVAL),
            (Err(self.srq.refuses_to_go()), libc::EBUSY),
        ];
        for (at, (outcome, errno)) in refusals.into_iter().enumerate() {
            let refused = outcome.err();
            let fits = refused.as_ref().is_some_and(|refused| refused.errno == errno);
            ensure!(fits, "refusal {at}: {refused:?}");
        }
        ensure!(self.srq.query()?.srq_limit == 0, "a refused change has set a limit");
        Ok(())
    }

    /// Messages of all connections at once, each with its own bytes, in the order in which it sent them.
    fn exchange(&self) -> Result<usize> {
        let numbers: BTreeMap<u32, usize> =
            self.pairs.iter().enumerate().map(|(at, (_, qp))| (qp.number(), at)).collect();
        let mut come = [0usize; PAIRS];
        for first in (0..MESSAGES).step_by(BURST) {
            for number in first..first + BURST {
                for pair in 0..PAIRS {
                    let (length, bytes) = message(pair, number);
                    let place = (number - first) * PAIRS + pair;
                    self.source.write(place * SLOT, &bytes);
                    self.send(pair, (place * SLOT, length), number as u32)?;
                }
            }
            self.acknowledged(PAIRS * BURST)?;
            while come.iter().sum::<usize>() < PAIRS * (first + BURST) {
                self.take(&numbers, &mut come)?;
            }
        }
        Ok(PAIRS * MESSAGES)
    }

    fn take(&self, numbers: &BTreeMap<u32, usize>, come: &mut [usize; PAIRS]) -> Result<()> {
        for cq in &self.cqs {
            while let Some(completion) = cq.poll()? {
                let status = completion.status;
                ensure!(status == v::IBV_WC_SUCCESS, "status {status}");
                let pair = *numbers.get(&completion.qp_num).context("a QP of nobody's")?;
                ensure!((pair + 1 == PAIRS) == Rc::ptr_eq(cq, &self.cqs[1]), "on another CQ");
                let (length, bytes) = message(pair, come[pair]);
                let wanted = (length as u32, Some(come[pair] as u32));
                let told = (completion.byte_len, completion.immediate);
                ensure!(told == wanted, "message {} of {pair}: {told:?}", come[pair]);
                let slot = usize::try_from(completion.wr_id)?;
                let mut found = vec![0; SLOT];
                self.slots.read(slot * SLOT, &mut found);
                ensure!(found[..length] == bytes, "bytes of message {} of {pair}", come[pair]);
                ensure!(found[length..].iter().all(|&it| it == UNTOUCHED), "bytes behind it");
                come[pair] += 1;
                self.post(slot)?;
            }
        }
        Ok(())
    }

    /// Waits for an event, past others.
    fn event(&self, kind: v::ibv_event_type, element: usize) -> Result<()> {
        let wanted = AsyncEvent { kind, element };
        while self.link.right.context.async_event(EVENT).with_context(|| format!("{wanted:x?}"))?
            != wanted
        {}
        Ok(())
    }

    /// The program is told once that few receives are left.
    fn limit(&self) -> Result<()> {
        let limit = v::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: RECEIVES as u32 - 1 };
        self.srq.modify(v::IBV_SRQ_LIMIT, limit)?;
        self.send(0, (0, 100), 0)?;
        self.acknowledged(1)?;
        let now = self.srq.query()?.srq_limit;
        ensure!(now == RECEIVES as u32 - 1, "the limit is {now}, and as many receives are left");
        self.send(2, (0, 100), 0)?;
        self.acknowledged(1)?;
        self.event(v::IBV_EVENT_SRQ_LIMIT_REACHED, self.srq.element())?;
        ensure!(self.srq.query()?.srq_limit == 0, "it is told of, and there all the same");
        for cq in &self.cqs {
            let slot = completion(cq)?.wr_id;
            self.post(usize::try_from(slot)?)?;
        }
        Ok(())
    }

    /// Receives that a QP has taken are free when it is reset or destroyed, polled or not, and no other's are.
    fn ends(&mut self) -> Result<()> {
        for round in 0..8 {
            // Four are complete and unpolled, and of a fifth any part has come.
            for _ in 0..4 {
                self.send(0, (0, 1000), 0)?;
            }
            self.acknowledged(4)?;
            self.send(0, (0, SLOT), 0)?;
            if round % 2 == 0 {
                self.pairs[0].1.to(v::IBV_QPS_RESET)?;
                self.pairs[0].0.to(v::IBV_QPS_RESET)?;
                let (sender, receiver) = &self.pairs[0];
                self.connect(sender, receiver)?;
            } else {
                self.pairs.remove(0);
                let pair = self.pair(0)?;
                self.pairs.insert(0, pair);
            }
            self.link.nothing_more(&self.cqs[0])?;
            // No call tells which receives are free: messages to another queue pair find those that it holds.
            let mut free = 0;
            while self.srq.post(&self.recv(0)).is_ok() {
                free += 1;
            }
            ensure!((4..=5).contains(&free), "{free} places are free in round {round}");
            for _ in 0..RECEIVES {
                self.send(1, (0, 10), 0)?;
                self.acknowledged(1)?;
                let found = self.link.success(&self.cqs[0])?;
                ensure!(found.qp_num == self.pairs[1].1.number());
            }
            (0..RECEIVES).try_for_each(|slot| self.post(slot))?;
            ensure!(self.post(0).is_err_and(|error| error.errno == libc::ENOMEM));
        }
        Ok(())
    }

    /// A QP in ERR says that it takes no more, and leaves the others' receives.
    fn last_receive(&self) -> Result<()> {
        let failed = &self.pairs[2].1;
        failed.to(v::IBV_QPS_ERR)?;
        self.event(v::IBV_EVENT_QP_LAST_WQE_REACHED, failed.element())?;
        self.link.nothing_more(&self.cqs[1])?;
        for _ in 0..RECEIVES {
            self.send(0, (0, 10), 0)?;
            self.acknowledged(1)?;
            self.link.success(&self.cqs[0])?;
        }
        Ok(())
    }
}

/// A message of a connection: its length, and its bytes.
fn message(pair: usize, number: usize) -> (usize, Vec<u8>) {
    let length = (number * 977 + pair * 31) % 9000 + usize::from(number % 50 == 7) * 40_000;
    let byte = |at: usize| (at * 7 + number * 3 + pair * 101) as u8;
    (length, (0..length).map(byte).collect())
}
