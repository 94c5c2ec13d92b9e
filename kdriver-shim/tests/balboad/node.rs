//! A verbs program in miniature: one QP with its queues, memory and completion channel.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fpga_regs::engine::cqe::{Cqe, expected_phase, phase};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use fpga_regs::engine::key::Access as KeyAccess;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState};
use fpga_regs::engine::wqe::{SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge};
use hostmem::fdpass::{Wait, receive};
use hostmem::{
    Access, AsleepWord, BlockRing, DoorbellPage, EventFd, Lifeline, Record, SharedMapping, Waker,
    memfd,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shim_abi::{CreateQp, DoorbellAccess, Grant, Request, Response};

use crate::common::{LIMIT, RawClient};

const LOG2: u8 = 6;
const COOKIE: u64 = 0x5eed;

/// One side of a connection.
pub struct Node {
    pub client: RawClient,
    pub gid: [u8; 16],
    pub qpn: u32,
    pub cqn: u32,
    pub memory: SharedMapping,
    pub key: u32,
    generation: u8,
    asynchronous: OwnedFd,
    channel: OwnedFd,
    liveness: Lifeline,
    doorbells: DoorbellPage,
    waker: Waker,
    sq: (BlockRing, Record),
    cq: (BlockRing, Record),
    posted: u32,
    consumed: u32,
    armed: u32,
}

fn map(fd: &OwnedFd, bytes: usize, access: Access) -> SharedMapping {
    SharedMapping::new(fd.as_fd(), 0, bytes, access).unwrap()
}

impl Node {
    /// Opens a card and makes one of everything; `bytes` of memory.
    pub fn new(dir: &Path, card: u32, bytes: usize) -> Self {
        let client = RawClient::provider(dir);
        let (Response::Context(info), fds) = client.ask(Request::OpenContext { card }) else {
            panic!()
        };
        let Ok::<[OwnedFd; 5], _>([asynchronous, page, wake, thread_page, rings]) = fds.try_into()
        else {
            panic!("a first context brings five descriptors")
        };
        let Grant { first: true, access: DoorbellAccess::Page { asleep, liveness, .. }, .. } =
            info.grant
        else {
            panic!("{:?}", info.grant)
        };
        let rings = Arc::new(map(&rings, info.rings.length as usize, Access::ReadWrite));
        let words = Arc::new(map(&thread_page, 4096, Access::ReadOnly));
        let word = AsleepWord::new(Arc::clone(&words), asleep as usize).unwrap();
        let waker = Waker::new(word, EventFd::from_received(wake));
        let page = Arc::new(map(&page, 4096, Access::ReadWrite));

        let context = info.context;
        let (Response::Channel { channel }, mut fds) =
            client.ask(Request::CreateChannel { context })
        else {
            panic!()
        };
        let channel_fd = fds.remove(0);
        let (Response::Pd { pdn }, _) = client.ask(Request::AllocPd { context }) else { panic!() };
        let fd = memfd::create("buffer", bytes).unwrap();
        let memory = map(&fd, bytes, Access::ReadWrite);
        let key = register(&client, pdn, &memory);
        let request = Request::CreateCq {
            context,
            log2_entries: LOG2,
            channel: Some(channel),
            vector: 0,
            cookie: COOKIE,
        };
        let (Response::Cq { cqn, ring }, _) = client.ask(request) else { panic!() };
        let cq = ring_view(&rings, ring);
        let request = Request::CreateQp(CreateQp {
            pdn,
            kind: 2,
            send_cqn: cqn,
            receive_cqn: cqn,
            log2_sq_blocks: LOG2,
            srqn: None,
            log2_rq_entries: LOG2,
            log2_rq_stride: 0,
            cookie: COOKIE,
            chain: None,
        });
        let (Response::Qp { qpn, generation, sq_ring, .. }, _) = client.ask(request) else {
            panic!()
        };
        Self {
            client,
            gid: info.card.port.gids[1],
            qpn,
            cqn,
            memory,
            key,
            generation,
            asynchronous,
            channel: channel_fd,
            liveness: Lifeline::new(words, liveness as usize).unwrap(),
            doorbells: DoorbellPage::new(page, 0).unwrap(),
            waker,
            sq: ring_view(&rings, sq_ring),
            cq,
            posted: 0,
            consumed: 0,
            armed: 0,
        }
    }

    /// Takes the QP to RTS, towards a peer.
    pub fn connect(&mut self, gid: [u8; 16], qpn: u32) {
        let steps = [
            Attributes {
                state: QpState::Init,
                mask: M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS,
                port: 1,
                access: KeyAccess::REMOTE_WRITE.bits(),
                ..Attributes::default()
            },
            Attributes {
                state: QpState::Rtr,
                mask: M::STATE
                    | M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
                path_mtu: 3,
                dest_qpn: qpn,
                rq_psn: 7,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                sgid_index: 1,
                hop_limit: 64,
                port: 1,
                dgid: gid,
                ..Attributes::default()
            },
            Attributes {
                state: QpState::Rts,
                mask: M::STATE
                    | M::TIMEOUT
                    | M::RETRY_COUNT
                    | M::RNR_RETRY
                    | M::SQ_PSN
                    | M::MAX_RD_ATOMIC,
                timeout: 14,
                retry_count: 7,
                rnr_retry: 7,
                sq_psn: 7,
                max_rd_atomic: 1,
                ..Attributes::default()
            },
        ];
        for attributes in steps {
            let request =
                Request::ModifyQp { qpn: self.qpn, first: None, attributes: attributes.encode() };
            self.client.ask(request);
        }
    }

    /// Posts a signaled RDMA WRITE of `length` bytes from the start of the memory.
    pub fn write(&mut self, length: u32, remote_address: u64, rkey: u32) {
        let header = SendHeader {
            opcode: SendOpcode::Write,
            flags: SendFlags::SIGNALED,
            num_sge: 1,
            blocks: 1,
            remote_address,
            rkey,
            ..SendHeader::default()
        };
        let [mut block] = header.encode();
        let sge = Sge { address: self.memory.address() as u64, length, lkey: self.key };
        block[SEND_PAYLOAD_OFFSET / 8..][..2].copy_from_slice(&sge.encode());
        self.sq.0.write(self.posted, &block);
        self.posted += 1;
        self.sq.1.store_release_u32(record::PRODUCER / 4, self.posted);
        self.ring(QueueKind::Send, self.qpn, self.generation, self.posted);
    }

    /// Arms the completion queue.
    pub fn arm(&mut self) {
        self.armed = Arm::next_sequence(self.armed);
        let arm = Arm { consumer: self.consumed, sequence: self.armed, kind: ArmKind::Any };
        self.cq.1.store_release_u64(record::ARM / 8, arm.encode());
        self.ring(QueueKind::Completion, self.cqn, 0, self.armed);
    }

    fn ring(&self, kind: QueueKind, number: u32, generation: u8, index: u32) {
        self.doorbells.ring(slot(kind, number), slot_value(number, generation, index));
        self.waker.wake_if_asleep().unwrap();
    }

    /// Waits for the completion channel's record.
    pub fn await_event(&self) {
        assert_eq!(self.await_record(&self.channel, 8), COOKIE.to_le_bytes());
        let read = self.cq.1.load_relaxed_u32(record::EVENTS_READ / 4);
        self.cq.1.store_release_u32(record::EVENTS_READ / 4, read + 1);
    }

    /// Waits for an asynchronous event and returns its type.
    pub fn await_asynchronous(&self) -> u32 {
        let record = self.await_record(&self.asynchronous, 16);
        u32::from_le_bytes(record[8..12].try_into().unwrap())
    }

    fn await_record(&self, socket: &OwnedFd, bytes: usize) -> Vec<u8> {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut fds, limit), Ok(1), "no event came");
        let mut buffer = vec![0; 64];
        let received = receive(socket.as_fd(), &mut buffer, Wait::Never).unwrap();
        assert_eq!(received.bytes, bytes);
        buffer.truncate(bytes);
        buffer
    }

    /// The next completion, where there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let expected = expected_phase(self.consumed, LOG2);
        let entry = self.cq.0.block(self.consumed).written(|last| phase(last) == expected)?;
        let entry = Cqe::decode(&[entry.load()]);
        self.consumed += 1;
        self.cq.1.store_release_u32(record::CONSUMER / 4, self.consumed);
        Some(entry)
    }

    /// Whether the card thread has died.
    pub fn card_is_dead(&self) -> bool {
        self.liveness.is_dead()
    }
}

fn register(client: &RawClient, pdn: u32, memory: &SharedMapping) -> u32 {
    let address = memory.address() as u64;
    let access = (KeyAccess::LOCAL_WRITE | KeyAccess::REMOTE_WRITE).bits();
    let length = memory.len() as u64;
    let request = Request::ReserveMr { pdn, address, length, hca_va: address, access };
    let (Response::Reserved { mr, .. }, _) = client.ask(request) else { panic!() };
    let (Response::Mr { lkey, .. }, _) = client.ask(Request::CommitMr { mr }) else { panic!() };
    lkey
}

fn ring_view(rings: &Arc<SharedMapping>, at: u64) -> (BlockRing, Record) {
    let at = at as usize;
    let entries = at + record::ENTRIES as usize;
    (
        BlockRing::new(Arc::clone(rings), entries, 1 << LOG2).unwrap(),
        Record::new(Arc::clone(rings), at).unwrap(),
    )
}
