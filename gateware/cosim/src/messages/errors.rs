//! Each way in which each operation can fail, on a queue pair that is connected, and on the same one connected again; what
//! stands behind it, and what is posted in ERR, is flushed.

use fpga_regs::Block;
use fpga_regs::engine::admin::{Opcode, RqKind};
use fpga_regs::engine::cqe::{Flags, Status};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window::{self, Capabilities};
use fpga_regs::engine::wqe::{
    MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge,
};

use super::refusals::MAX_MESSAGE;
use super::{
    MessageError, REGION, STATES, Test, answer, blocks_of, bytes_of, connect, create_qp, create_rq,
    register, send_entry, wrong,
};
use crate::coverage::{self, Ended, WORKING, When};
use crate::host::{RIGHTS, Region};

/// Bytes of a message.
const LENGTH: u32 = 11;
/// The tags of the peer's receives: of the message before the one that fails, of that, and one that nothing takes; and of
/// the requester's own.
const PEERS: [u32; 3] = [1, 2, 3];
const OWN: u32 = 4;

/// A way to fail.
#[derive(Clone, Copy, Debug)]
struct Failure {
    /// The operation that fails, and that of the messages around it.
    opcode: SendOpcode,
    around: SendOpcode,
    status: Status,
    /// Memory of the peer that is out of reach.
    lost: Region,
}

impl Failure {
    /// Whether it is the receive that is at fault, and how that ends then.
    fn of_receive(&self) -> Option<Status> {
        match self.status {
            Status::RemoteInvalidRequest if self.opcode != SendOpcode::WriteImm => {
                Some(Status::LocalLength)
            }
            Status::RemoteOperation => Some(Status::LocalProtection),
            _ => None,
        }
        .filter(|_| coverage::takes_receive(self.opcode))
    }
}

impl Test {
    /// Tries all of them, and answers how many.
    pub(super) fn errors(&mut self) -> Result<usize, MessageError> {
        let offered = self.register(0, window::CAPABILITIES)?;
        let lost = register(&mut self.pair, 1, RIGHTS)?;
        self.pair.hosts[1].memory.unmap(lost.address, REGION);
        let mut count = 0;
        for (opcode, is_offered, status) in
            coverage::failures(Capabilities::from_bits_retain(offered))
        {
            let around = if is_offered { opcode } else { SendOpcode::Write };
            self.fresh()?;
            for when in WORKING {
                self.when = when;
                let failed = self.fails_as(Failure { opcode, around, status, lost });
                failed.or_else(|error| {
                    wrong("a request that fails", (opcode, status, when, error.to_string()))
                })?;
                connect(&mut self.pair, &mut self.sides, self.refusal, &STATES)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// New queue pairs take the place of both.
    fn fresh(&mut self) -> Result<(), MessageError> {
        let Self { pair, sides, .. } = self;
        for (number, side) in sides.iter_mut().enumerate() {
            side.rq = create_rq(pair, number, 0, RqKind::Private)?;
            side.qp = create_qp(pair, number, side.cq.cqn, side.rq.rqn)?;
        }
        connect(pair, sides, self.refusal, &STATES[1..])
    }

    /// A message ends well, the one behind it fails, and the others are flushed.
    fn fails_as(&mut self, failure: Failure) -> Result<(), MessageError> {
        let Failure { opcode, around, status, .. } = failure;
        let (request, takes) = (Ended::Request(around.0), coverage::takes_receive(around));
        let at_fault = failure.of_receive();
        if takes {
            self.post_receives(at_fault);
        }
        self.post_receive(0, OWN, 0, &[]);
        let good = self.entry(around);
        let mut at = self.sides[0].qp.index();
        self.pair.hosts[0].post(&mut self.sides[0].qp, &good);
        self.come(0, &[(request, at, Status::Success)])?;
        at += good.len() as u32;
        if takes {
            self.come(1, &[(Ended::Taken(around.0), PEERS[0], Status::Success)])?;
        }
        if status == Status::RemoteInvalidRequest && at_fault.is_none() {
            self.withdraw()?;
        }
        let bad = self.bad(&failure);
        self.pair.hosts[0].put(&mut self.sides[0].qp, &bad);
        self.pair.hosts[0].post(&mut self.sides[0].qp, &good);
        let behind = at + bad.len() as u32;
        self.come(
            0,
            &[
                (Ended::Request(opcode.0), at, status),
                (request, behind, Status::Flushed),
                (Ended::Unfilled, OWN, Status::Flushed),
            ],
        )?;
        if let Some(status) = at_fault {
            let taken = (Ended::Taken(opcode.0), PEERS[1], status);
            self.come(1, &[taken, (Ended::Unfilled, PEERS[2], Status::Flushed)])?;
        }
        self.ends()?;
        self.when = When::Failed;
        self.post_receive(0, OWN, 0, &[]);
        self.come(0, &[(Ended::Unfilled, OWN, Status::Flushed)])?;
        self.pair.hosts[0].post(&mut self.sides[0].qp, &good);
        self.come(0, &[(request, behind + good.len() as u32, Status::Flushed)])?;
        self.ends()
    }

    /// Posts the peer's receives, of which the second one may have to end with a status.
    fn post_receives(&mut self, second: Option<Status>) {
        let Region { address, key: lkey } = self.sides[1].region;
        for tag in PEERS {
            let second = second.filter(|_| tag == PEERS[1]);
            let short = u32::from(second == Some(Status::LocalLength));
            // An entry has no more elements than its blocks have.
            let too_many = u8::from(second == Some(Status::LocalProtection));
            let most = self.sides[1].rq.most_elements() as u8;
            let num_sge = if too_many > 0 { most + too_many } else { 1 };
            let sge = Sge { address, length: LENGTH - short, lkey };
            self.post_receive(1, tag, num_sge, &[sge]);
        }
    }

    /// The peer's queue pair grants no peer anything any more.
    fn withdraw(&mut self) -> Result<(), MessageError> {
        let attributes = Attributes {
            mask: AttributeMask::STATE | AttributeMask::ACCESS,
            state: QpState::Rts,
            access: Access::LOCAL_WRITE.bits(),
            ..Attributes::default()
        };
        self.pair.hosts[1].change_qp(self.sides[1].qp.qpn, &attributes);
        answer(&mut self.pair, 1, Opcode::ModifyQp).map(drop)
    }

    /// The header of a message that is well.
    fn header(&self, opcode: SendOpcode) -> SendHeader {
        let Region { key: rkey, address: remote_address } = self.sides[1].region;
        let flags = SendFlags::SIGNALED;
        SendHeader { opcode, flags, remote_address, rkey, ..SendHeader::default() }
    }

    fn piece(&self) -> Sge {
        let Region { key: lkey, address } = self.sides[0].region;
        Sge { address, length: LENGTH, lkey }
    }

    fn entry(&self, opcode: SendOpcode) -> Vec<Block> {
        send_entry(self.header(opcode), &[self.piece()])
    }

    /// The entry that fails by itself, or by what it names at the peer.
    fn bad(&self, failure: &Failure) -> Vec<Block> {
        let (header, piece) = (self.header(failure.opcode), self.piece());
        let is_offered = failure.opcode == failure.around;
        match failure.status {
            Status::LocalQpOperation if is_offered => {
                let (num_sge, blocks) = (MAX_SGE as u8 + 1, SEND_MAX_BLOCKS as u8);
                let header = SendHeader { num_sge, blocks, ..header }.encode();
                blocks_of(&header, SEND_PAYLOAD_OFFSET, &bytes_of(&[piece; MAX_SGE]))
            }
            Status::LocalLength => send_entry(header, &[Sge { length: MAX_MESSAGE + 1, ..piece }]),
            Status::LocalProtection => send_entry(header, &[Sge { lkey: 0, ..piece }]),
            Status::RemoteAccess => send_entry(SendHeader { rkey: 0, ..header }, &[piece]),
            Status::RemoteOperation if failure.of_receive().is_none() => {
                let Region { key: rkey, address: remote_address } = failure.lost;
                send_entry(SendHeader { rkey, remote_address, ..header }, &[piece])
            }
            _ => send_entry(header, &[piece]),
        }
    }

    /// Waits for completions on a side: those of requests in their order, and those of receives in theirs.
    fn come(&mut self, side: usize, wanted: &[(Ended, u32, Status)]) -> Result<(), MessageError> {
        let mut left = wanted.to_vec();
        while !left.is_empty() {
            let entry = self.completion(side)?;
            let of_receive = entry.flags.contains(Flags::RECEIVE);
            let is_next = |(ended, ..): &(Ended, u32, Status)| {
                matches!(ended, Ended::Request(_)) != of_receive
            };
            let next = left.iter().position(is_next).map(|at| left.remove(at));
            match next {
                Some((ended, index, status))
                    if (index, status) == (entry.wqe_index, entry.status) =>
                {
                    self.note(ended, status);
                }
                _ => return wrong("the completion of what fails", (wanted, next, entry)),
            }
        }
        Ok(())
    }
}
