//! One engine in RTL stops, for a reset, or because a ring is out of reach while the transport executes a command: it refuses
//! what is asked until the transport has forgotten all, has nothing of before then, and starts anew.

use std::collections::BTreeSet;

use fpga_regs::engine::admin::{AdminStatus, Destroy, Opcode, RqKind};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::{STATUS, STATUS_ENABLED};
use fpga_regs::engine::wqe::{RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, Sge};

use crate::alone::{Alone, RING_LOST, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::Host;
use crate::messages::{MessageError, blocks_of, bytes_of, gid_of, wrong};
use crate::port::{ATTRIBUTES, Command, Operation, Verdict};
use crate::random::Random;

/// Byte of the attributes that has the index of the GID table.
const SGID_INDEX: usize = 38;
/// Cycles in which the transport goes on to ask of an engine that stops, at most, and those from one claim to the next.
const STOPPING: u64 = 2_000;
const PACE: u64 = 50;

/// The command that is under way; none where the driver orders a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amid {
    CreateQp,
    ModifyQp,
    QueryQp,
    DestroyQp,
    SetGid,
    Reset,
}

/// An engine, and what its transport knows.
struct Bench {
    host: Host,
    qps: BTreeSet<u32>,
    gids: BTreeSet<u8>,
    /// The transport answers no command, and forgets nothing.
    holds: bool,
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        self.host.cycle()?;
        if self.holds {
            return Ok(());
        }
        let port = self.host.vfpga.port();
        let stops = port.stops();
        if stops {
            (self.qps, self.gids) = (BTreeSet::new(), BTreeSet::new());
            port.end_stop();
        }
        while let Some(command) = self.host.vfpga.port().commands.pop_front() {
            // One that is under way then has no effect.
            if !stops && !self.execute(&command) {
                return wrong("a command to the transport", command);
            }
            let status = if stops { AdminStatus::NotFound } else { AdminStatus::Success };
            self.host.vfpga.port().end(command.tag, status.0, [0; ATTRIBUTES]);
        }
        Ok(())
    }
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library, config: &Config) -> Result<(), MessageError> {
    let host = started(library, config)?;
    let mut bench = Bench { host, qps: BTreeSet::new(), gids: BTreeSet::new(), holds: false };
    bench.answer(Opcode::SetGid)?;
    let mut random = Random::new(config.seed ^ 0x570b);
    let all =
        [Amid::CreateQp, Amid::ModifyQp, Amid::QueryQp, Amid::DestroyQp, Amid::SetGid, Amid::Reset];
    let amid = random.one_of(&all);
    bench.stop(amid, random.below(STOPPING))?;
    bench.starts_anew()
}

impl Bench {
    /// Executes a command; `false` where it is of what is not there, or is there already.
    fn execute(&mut self, command: &Command) -> bool {
        let index = command.attributes[SGID_INDEX];
        match command.operation {
            Operation::Create => self.qps.insert(command.qpn),
            Operation::Destroy => self.qps.remove(&command.qpn),
            Operation::SetGid => self.gids.insert(index),
            Operation::ClearGid => self.gids.remove(&index),
            _ => true,
        }
    }

    /// Stops the engine, of which the transport goes on to ask for so many cycles.
    fn stop(&mut self, amid: Amid, asking: u64) -> Result<(), MessageError> {
        let mut cq = self.host.create_cq(4);
        cq.cqn = self.answer(Opcode::CreateCq)?.result;
        let (first, mut kept) = self.connect_qp(cq.cqn, 0, 4)?;
        let (second, rq) = self.connect_qp(cq.cqn, 0, 4)?;
        let mut spare = self.host.create_rq(0, 0, RqKind::Private);
        spare.rqn = self.answer(Opcode::CreateRq)?.result;
        let response = self.host.allocate(128);
        // Nobody takes it before the stop.
        let element = bytes_of(&[Sge { address: 0, length: 64, lkey: 0 }]);
        let header = ReceiveHeader { num_sge: 1, tag: 0 }.encode();
        let entry = blocks_of(&header, RECEIVE_PAYLOAD_OFFSET, &element);
        self.host.post_receive(&mut kept, &first, &entry);
        self.settle()?;
        self.holds = true;
        match amid {
            Amid::CreateQp => drop(self.host.create_qp(cq.cqn, spare.rqn, 4)),
            Amid::ModifyQp => self.host.modify_qp(first.qpn, QpState::Sqd, (1, gid_of(0)), 16),
            Amid::QueryQp => {
                let query = Destroy { number: first.qpn }.encode();
                self.host.command(Opcode::QueryQp, &query, response);
            }
            Amid::DestroyQp => self.host.name(Opcode::DestroyQp, first.qpn),
            Amid::SetGid => self.host.set_gid_at(3, gid_of(1)),
            Amid::Reset => self.host.reset(),
        }
        let mut asked = 1;
        if amid == Amid::Reset {
            // It may come before the reset does.
            self.host.vfpga.port().claim(0, second.qpn);
        } else {
            self.until("a command to the transport", |it| {
                (!it.host.vfpga.port().commands.is_empty()).then_some(())
            })?;
            self.host.lose_receives(&rq);
            self.host.vfpga.port().claim(0, second.qpn);
        }
        self.until("the stop of an engine", |it| it.host.vfpga.port().stops().then_some(()))?;
        // It stops until the transport has forgotten all.
        let status = if amid == Amid::Reset { 0 } else { RING_LOST };
        for cycle in 0..asking {
            if cycle % PACE == 0 {
                self.host.vfpga.port().claim(asked, first.qpn);
                asked += 1;
            }
            self.cycle()?;
        }
        match self.register(STATUS)? {
            it if it == status | STATUS_ENABLED => {}
            it => return wrong("the status of an engine that stops", it),
        }
        self.holds = false;
        self.has_status(status)?;
        match (self.host.event(), amid) {
            (None, Amid::Reset) => {}
            (Some(event), _) if event.kind == EventType::Fatal && amid != Amid::Reset => {}
            (event, _) => return wrong("the event of an engine that stops", event),
        }
        let answers: Vec<_> = self.host.vfpga.port().claimed.drain(..).collect();
        let is_refused = answers.iter().all(|it| it.verdict != Verdict::Done);
        match answers.len() == usize::from(asked) && is_refused {
            true => Ok(()),
            false => wrong("the answers of an engine that stops", answers),
        }
    }

    /// The engine has nothing of before a reset, and goes on as at first.
    fn starts_anew(&mut self) -> Result<(), MessageError> {
        self.host.reset();
        self.has_status(0)?;
        self.host.start(0);
        self.has_status(STATUS_ENABLED)?;
        let cq = self.host.create_cq(4);
        let cqn = self.answer(Opcode::CreateCq)?.result;
        let rq = self.make_rq(0, 0, RqKind::Private)?;
        self.host.create_qp(cqn, rq.rqn, 4);
        let qpn = self.answer(Opcode::CreateQp)?.result;
        self.host.modify_qp(qpn, QpState::Init, (1, gid_of(0)), 16);
        self.answer(Opcode::ModifyQp)?;
        self.host.modify_qp(qpn, QpState::Rtr, (1, gid_of(0)), 16);
        match self.completion()? {
            it if it.status == AdminStatus::Invalid => {}
            it => return wrong("an address of before the reset", (it, cq)),
        }
        self.host.set_gid(gid_of(0));
        self.answer(Opcode::SetGid)?;
        self.host.modify_qp(qpn, QpState::Rtr, (1, gid_of(0)), 16);
        self.answer(Opcode::ModifyQp)?;
        match (self.qps == BTreeSet::from([qpn]), self.gids.len()) {
            (true, 1) => Ok(()),
            _ => wrong("what the transport has", (&self.qps, &self.gids)),
        }
    }
}
