//! The two ends of a connection: the sender, and the receiver, which announces its receives.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::plan::{GROUP, Message, Mode};
use crate::data::link::ACCESS;
use crate::ffi::{
    Completion, Context, Cq, Mapping, Operation, Pd, Qp, Recv, Region, Send, TO_RTR, TO_RTS,
};

/// Places for requests in either end's rings; a request has the one of its number.
const SLOTS: usize = 256;
/// Bytes of the entry that announces one receive, of which the last are its number: a reader that sees that has the
/// rest.
const ENTRY: usize = 64;
const ENTRY_NUMBER: usize = ENTRY - 8;
/// Bytes in which the sizes of a group arrive.
const RECORD: usize = 4 * GROUP;
/// The unit of each QP's part of a message, but the last one's.
const CHUNK: usize = 128;
/// From how many bytes on a message has its notice apart, where packets may overtake each other.
const APART: usize = 8192;
/// The addend of flushes' completions to their request's number.
const FLUSH: u64 = 1 << 32;
/// The code of 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
const HOPS: u8 = 255;
const TRIES: u8 = 7;
/// Registered memory may be written in any order.
const RELAXED: v::ibv_access_flags =
    ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC | v::IBV_ACCESS_RELAXED_ORDERING;

/// The device on which both ends are made, and the settings that they share.
pub(super) struct Surroundings {
    pub(super) context: Rc<Context>,
    pub(super) pd: Rc<Pd>,
    pub(super) gid: (u8, [u8; 16]),
    pub(super) mtu: v::ibv_mtu,
    pub(super) timeout: u8,
}

/// Memory of the other side's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Surroundings {
    /// Memory that messages lie in.
    pub(super) fn data(&self, length: usize) -> Result<Rc<Region>> {
        let memory = Mapping::zeroed(length)?;
        let address = memory.address();
        Ok(Region::named(&self.pd, memory, RELAXED, Some(address))?)
    }

    /// Memory that the ends write to each other.
    fn ring(&self, length: usize) -> Result<Rc<Region>> {
        Ok(Region::new(&self.pd, length, ACCESS, false)?)
    }

    fn qp(&self, cq: &Rc<Cq>, sends: usize, receives: usize) -> Result<Qp> {
        let capabilities = v::ibv_qp_cap {
            max_send_wr: sends.try_into()?,
            max_recv_wr: receives.try_into()?,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: ENTRY as u32,
        };
        Ok(Qp::new(&self.pd, cq, cq, capabilities)?)
    }

    fn connect(&self, qp: &Qp, qpn: u32, gid: [u8; 16]) -> Result<()> {
        qp.modify(TO_RTR, |attributes| {
            attributes.qp_state = v::IBV_QPS_RTR;
            attributes.path_mtu = self.mtu;
            attributes.dest_qp_num = qpn;
            attributes.max_dest_rd_atomic = 1;
            attributes.min_rnr_timer = MIN_RNR_TIMER;
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.port_num = 1;
            attributes.ah_attr.grh.dgid = v::ibv_gid { raw: gid };
            attributes.ah_attr.grh.sgid_index = self.gid.0;
            attributes.ah_attr.grh.hop_limit = HOPS;
        })?;
        qp.modify(TO_RTS, |attributes| {
            attributes.qp_state = v::IBV_QPS_RTS;
            attributes.timeout = self.timeout;
            attributes.retry_cnt = TRIES;
            attributes.rnr_retry = TRIES;
            attributes.max_rd_atomic = 1;
        })?;
        Ok(())
    }
}

/// The QPs of an end, and where their requests complete.
pub(super) struct Lanes {
    pub(super) qps: Vec<Qp>,
    cq: Rc<Cq>,
}

impl Lanes {
    fn new(
        place: &Surroundings,
        count: usize,
        entries: usize,
        (sends, receives): (usize, usize),
        access: v::ibv_access_flags,
    ) -> Result<Self> {
        let cq = Cq::new(&place.context, u32::try_from(entries)?, None)?;
        let qps = (0..count).map(|_| {
            let qp = place.qp(&cq, sends, receives)?;
            qp.init(access)?;
            Ok(qp)
        });
        Ok(Self { qps: qps.collect::<Result<_>>()?, cq })
    }

    /// Connects the QPs to those of the other side's end.
    pub(super) fn connect(&self, place: &Surroundings, far: &[u32], gid: [u8; 16]) -> Result<()> {
        ensure!(far.len() == self.qps.len(), "the other side has {} QPs", far.len());
        self.qps.iter().zip(far).try_for_each(|(qp, qpn)| place.connect(qp, *qpn, gid))
    }

    /// Those that carry a request, in the order of its bytes.
    fn of(&self, number: u64, mode: Mode) -> Vec<&Qp> {
        match mode.striped {
            true => self.qps.iter().collect(),
            false => vec![&self.qps[number as usize % self.qps.len()]],
        }
    }

    /// The next completion, which must be a success.
    pub(super) fn poll(&self, place: &Surroundings) -> Result<Option<Completion>> {
        let completion = self.cq.poll()?;
        if let Some(it) = &completion {
            let status = place.context.library().status_name(it.status);
            ensure!(it.status == v::IBV_WC_SUCCESS, "{status}: {it:?}");
        }
        Ok(completion)
    }

    /// The next completion, however it ended.
    pub(super) fn poll_any(&self) -> Result<Option<Completion>> {
        self.cq.poll()
    }
}

fn slot(number: u64) -> usize {
    (number % SLOTS as u64) as usize
}

fn post(qp: &Qp, requests: &[Send]) -> Result<()> {
    qp.post_send(requests).map_err(|(failed, index)| {
        anyhow::Error::from(failed).context(format!("request {index} of {}", requests.len()))
    })
}

/// The sender.
pub(super) struct Sender {
    pub(super) lanes: Lanes,
    /// The region in which the receiver announces its receives.
    pub(super) told: Rc<Region>,
    /// Sizes of groups, on their way.
    sizes: Rc<Region>,
    /// Where they go.
    pub(super) records: Far,
    /// The next request's number.
    number: u64,
    /// The number of QPs that still carry each request, by number.
    open: BTreeMap<u64, usize>,
}

/// A receive as the receiver announced it.
struct Offered {
    far: Far,
    size: usize,
    group: usize,
    tag: u32,
}

impl Sender {
    pub(super) fn new(place: &Surroundings, qps: usize) -> Result<Self> {
        let depths = (2 * SLOTS, 0);
        let lanes = Lanes::new(place, qps, SLOTS * qps, depths, v::IBV_ACCESS_REMOTE_WRITE)?;
        Ok(Self {
            lanes,
            told: place.ring(SLOTS * GROUP * ENTRY)?,
            sizes: place.ring(SLOTS * RECORD)?,
            records: Far { address: 0, key: 0 },
            number: 0,
            open: BTreeMap::new(),
        })
    }

    /// Requests from the oldest on that is under way.
    pub(super) fn under_way(&self) -> u64 {
        self.open.keys().next().map_or(0, |oldest| self.number - oldest)
    }

    fn has_come(&self, index: usize) -> bool {
        let mut number = [0; 8];
        let at = (slot(self.number) * GROUP + index) * ENTRY + ENTRY_NUMBER;
        self.told.read(at, &mut number);
        fence(Ordering::SeqCst);
        u64::from_le_bytes(number) == self.number + 1
    }

    fn told(&self, index: usize) -> Offered {
        let mut entry = [0; ENTRY];
        self.told.read((slot(self.number) * GROUP + index) * ENTRY, &mut entry);
        let long = |at: usize| entry[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let [address, size, key_and_group, tag] = [0, 8, 16, 24].map(long);
        Offered {
            far: Far { address, key: key_and_group as u32 },
            size: size as usize,
            group: (key_and_group >> 32) as usize,
            tag: tag as u32,
        }
    }

    /// Sends the messages of the next request if the receiver is ready for them.
    pub(super) fn send(
        &mut self,
        messages: &[Message],
        data: &Rc<Region>,
        mode: Mode,
    ) -> Result<bool> {
        if !self.has_come(0) {
            return Ok(false);
        }
        let group = self.told(0).group;
        ensure!(group == messages.len(), "told of {group}, not {}", messages.len());
        while !(1..group).all(|index| self.has_come(index)) {
            std::thread::yield_now();
        }
        // In the receiver's order; which message goes where is said by its tag.
        let pairs = (0..group).map(|index| {
            let told = self.told(index);
            let message = messages.iter().find(|message| message.tag == told.tag);
            let message = *message.with_context(|| format!("nobody sends {:#x}", told.tag))?;
            ensure!(told.size == message.room, "there is room for {}", told.size);
            Ok((message, told.far))
        });
        let pairs: Vec<(Message, Far)> = pairs.collect::<Result<_>>()?;
        self.post(&pairs, data, mode)?;
        self.number += 1;
        Ok(true)
    }

    /// On each QP its part of each message, and at the end a notice, by which the receiver knows that
    /// all of this QP's part has come.
    fn post(&mut self, pairs: &[(Message, Far)], data: &Rc<Region>, mode: Mode) -> Result<()> {
        let slot = slot(self.number);
        let sizes: Vec<u8> =
            pairs.iter().flat_map(|(message, _)| (message.size as u32).to_le_bytes()).collect();
        self.sizes.write(slot * RECORD, &sizes);
        let qps = self.lanes.of(self.number, mode);
        let mut sent = vec![0; pairs.len()];
        for qp in &qps {
            let mut list = Vec::new();
            for ((message, far), sent) in pairs.iter().zip(&mut sent) {
                let part = message.size.div_ceil(qps.len()).next_multiple_of(CHUNK);
                let length = part.min(message.size - *sent);
                let piece = (length > 0).then(|| data.piece(message.offset + *sent, length));
                list.push(Send {
                    wr_id: self.number,
                    operation: Operation::Write,
                    pieces: piece.into_iter().collect(),
                    remote: (far.address + *sent as u64, far.key),
                    immediate: 0,
                    flags: 0,
                });
                *sent += length;
            }
            let first = pairs.first().map_or(0, |(message, _)| message.size);
            let notice = Send {
                wr_id: self.number,
                operation: Operation::WriteImmediate,
                pieces: Vec::new(),
                remote: (0, 0),
                immediate: first as u32,
                flags: v::IBV_SEND_SIGNALED,
            };
            match list.last_mut() {
                Some(last) if pairs.len() == 1 && !(mode.routed && first > APART) => {
                    *last = Send { pieces: last.pieces.clone(), remote: last.remote, ..notice };
                }
                _ if pairs.len() == 1 => list.push(notice),
                _ => list.push(Send {
                    pieces: vec![self.sizes.piece(slot * RECORD, sizes.len())],
                    remote: (self.records.address + (slot * RECORD) as u64, self.records.key),
                    ..notice
                }),
            }
            post(qp, &list)?;
        }
        self.open.insert(self.number, qps.len());
        Ok(())
    }

    /// Takes a completion; false if there was none.
    pub(super) fn poll(&mut self, place: &Surroundings) -> Result<bool> {
        let Some(completion) = self.lanes.poll(place)? else { return Ok(false) };
        ensure!(completion.opcode == v::IBV_WC_RDMA_WRITE, "{completion:?}");
        let number = completion.wr_id;
        let open = self.open.get_mut(&number).with_context(|| format!("{completion:?}"))?;
        *open -= 1;
        if *open == 0 {
            self.open.remove(&number);
        }
        Ok(true)
    }
}

/// The receiver.
pub(super) struct Receiver {
    pub(super) lanes: Lanes,
    /// A QP that is its own peer: bytes that it READs have come all the way.
    pub(super) flush: Qp,
    /// The announcements on their way.
    told: Rc<Region>,
    /// Where that goes.
    pub(super) far: Far,
    /// Where sizes of groups arrive.
    pub(super) records: Rc<Region>,
    /// Where the byte of a flush goes.
    landing: Rc<Region>,
    number: u64,
    /// The requests that are open, by number.
    open: BTreeMap<u64, Open>,
}

/// A request that has been told of.
struct Open {
    messages: Vec<Message>,
    /// QPs whose part has not come.
    parts: usize,
    /// The size that a message by itself came with.
    size: usize,
}

impl Receiver {
    pub(super) fn new(place: &Surroundings, qps: usize) -> Result<Self> {
        let rights =
            v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_REMOTE_ATOMIC;
        let depths = (2 * SLOTS, SLOTS);
        let lanes = Lanes::new(place, qps, 2 * SLOTS * qps, depths, rights)?;
        let flush = place.qp(&lanes.cq, SLOTS, 0)?;
        flush.init(v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_READ)?;
        place.connect(&flush, flush.number(), place.gid.1)?;
        Ok(Self {
            lanes,
            flush,
            told: place.ring(SLOTS * GROUP * ENTRY)?,
            far: Far { address: 0, key: 0 },
            records: place.ring(SLOTS * RECORD)?,
            landing: place.ring(1)?,
            number: 0,
            open: BTreeMap::new(),
        })
    }

    /// Requests from the oldest on that is under way.
    pub(super) fn under_way(&self) -> u64 {
        self.open.keys().next().map_or(0, |oldest| self.number - oldest)
    }

    /// Tells the sender where it wants the messages of the next request.
    pub(super) fn receive(
        &mut self,
        messages: &[Message],
        data: &Rc<Region>,
        mode: Mode,
    ) -> Result<()> {
        let slot = slot(self.number);
        let qps = self.lanes.of(self.number, mode);
        for qp in &qps {
            qp.post_recv(&Recv { wr_id: self.number, pieces: Vec::new() })?;
        }
        self.records.write(slot * RECORD, &[0; RECORD]);
        let open = Open { messages: messages.to_vec(), parts: qps.len(), size: 0 };
        self.open.insert(self.number, open);
        let entries: Vec<u8> =
            messages.iter().flat_map(|message| self.entry(message, messages.len(), data)).collect();
        let at = slot * GROUP * ENTRY;
        self.told.write(at, &entries);
        let first = self.lanes.qps.first().context("there is no QP")?;
        let inline = entries.len() <= first.capabilities.max_inline_data as usize;
        // So that the send queue gets empty: once in each turn of the ring.
        let signalled = slot == 0;
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let write = Send {
            wr_id: self.number,
            operation: Operation::Write,
            pieces: vec![self.told.piece(at, entries.len())],
            remote: (self.far.address + at as u64, self.far.key),
            immediate: 0,
            flags: flag(inline, v::IBV_SEND_INLINE) | flag(signalled, v::IBV_SEND_SIGNALED),
        };
        post(first, &[write])?;
        self.number += 1;
        Ok(())
    }

    fn entry(&self, message: &Message, group: usize, data: &Region) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        let longs = [
            (0, data.address() + message.offset as u64),
            (8, message.room as u64),
            (16, u64::from(data.rkey()) | (group as u64) << 32),
            (24, message.tag.into()),
            (ENTRY_NUMBER, self.number + 1),
        ];
        for (at, long) in longs {
            entry[at..at + 8].copy_from_slice(&long.to_le_bytes());
        }
        entry
    }

    /// Takes a completion; gives the messages that are whole by it, or None if there was no completion.
    pub(super) fn poll(
        &mut self,
        place: &Surroundings,
        data: &Rc<Region>,
    ) -> Result<Option<Vec<Message>>> {
        let Some(completion) = self.lanes.poll(place)? else { return Ok(None) };
        match completion.opcode {
            // What was told has been written.
            v::IBV_WC_RDMA_WRITE => Ok(Some(Vec::new())),
            v::IBV_WC_RDMA_READ => {
                let number = completion.wr_id - FLUSH;
                let open = self.open.remove(&number).context("a flush of nothing")?;
                Ok(Some(open.messages))
            }
            v::IBV_WC_RECV_RDMA_WITH_IMM => self.notice(&completion, data).map(Some),
            _ => anyhow::bail!("{completion:?}"),
        }
    }

    /// All of a QP's part has come.
    fn notice(&mut self, completion: &Completion, data: &Rc<Region>) -> Result<Vec<Message>> {
        let number = completion.wr_id;
        let open = self.open.get_mut(&number).with_context(|| format!("{completion:?}"))?;
        open.size = completion.immediate.context("a notice without a size")? as usize;
        open.parts = open.parts.checked_sub(1).context("a part too many")?;
        if open.parts > 0 {
            return Ok(Vec::new());
        }
        let mut record = [0; RECORD];
        self.records.read(slot(number) * RECORD, &mut record);
        let alone = open.messages.len() == 1;
        for (index, message) in open.messages.iter().enumerate() {
            let size = record[4 * index..4 * index + 4].try_into().map_or(0, u32::from_le_bytes);
            let size = if alone { open.size } else { size as usize };
            ensure!(size == message.size, "{message:?} came with {size} bytes");
        }
        let Some(last) = open.messages.iter().rev().find(|message| message.size > 0) else {
            return Ok(self.open.remove(&number).map_or(Vec::new(), |open| open.messages));
        };
        let read = Send {
            wr_id: number + FLUSH,
            operation: Operation::Read,
            pieces: vec![self.landing.piece(0, 1)],
            remote: (data.address() + last.offset as u64, data.rkey()),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        post(&self.flush, &[read])?;
        Ok(Vec::new())
    }
}
