//! A ring of one engine in RTL is out of reach while the transport still executes a command: the engine stops, tells the
//! driver, and has the transport forget all, also what that command makes.

use std::collections::BTreeSet;

use fpga_regs::engine::admin::{Destroy, Opcode, RqKind};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;

use crate::alone::{Alone, RING_LOST, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::Host;
use crate::messages::{MessageError, PATIENCE, gid_of, wrong};
use crate::port::{ATTRIBUTES, Operation};
use crate::random::Random;

/// Byte of the attributes that has the index of the GID table.
const SGID_INDEX: usize = 38;
/// Cycles in which the fault of a ring is told, and more.
const STOPPING: u64 = 5_000;

/// The command that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amid {
    CreateQp,
    ModifyQp,
    QueryQp,
    SetGid,
    Reset,
}

/// An engine, and what its transport knows.
struct Bench {
    host: Host,
    qps: BTreeSet<u32>,
    gids: BTreeSet<u8>,
    /// Whether commands wait.
    holds: bool,
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        self.host.cycle()?;
        let port = self.host.vfpga.port();
        while !self.holds {
            let Some(command) = port.commands.pop_front() else { break };
            let index = command.attributes[SGID_INDEX];
            let is_sound = match command.operation {
                Operation::Create => self.qps.insert(command.qpn),
                Operation::Destroy => self.qps.remove(&command.qpn),
                Operation::SetGid => self.gids.insert(index),
                Operation::ClearGid => self.gids.remove(&index),
                _ => true,
            };
            if !is_sound {
                return wrong("a command to the transport", command);
            }
            port.end(command.tag, 0, [0; ATTRIBUTES]);
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
    let all = [Amid::CreateQp, Amid::ModifyQp, Amid::QueryQp, Amid::SetGid, Amid::Reset];
    let amid = random.one_of(&all);
    bench.stop(amid)
}

impl Bench {
    fn stop(&mut self, amid: Amid) -> Result<(), MessageError> {
        let mut cq = self.host.create_cq(4);
        cq.cqn = self.answer(Opcode::CreateCq)?.result;
        let (first, first_rq) = self.connect_qp(cq.cqn, 0, 4)?;
        let (second, second_rq) = self.connect_qp(cq.cqn, 0, 4)?;
        let mut spare = self.host.create_rq(0, 0, RqKind::Private);
        spare.rqn = self.answer(Opcode::CreateRq)?.result;
        let response = self.host.allocate(128);
        self.settle()?;
        self.holds = true;
        match amid {
            Amid::CreateQp => drop(self.host.create_qp(cq.cqn, spare.rqn, 4)),
            Amid::ModifyQp => {
                self.host.modify_qp(first.qpn, QpState::Sqd, (1, gid_of(0)), 16);
            }
            Amid::QueryQp => {
                let query = Destroy { number: first.qpn }.encode();
                self.host.command(Opcode::QueryQp, &query, response);
            }
            Amid::SetGid => self.host.set_gid_at(3, gid_of(1)),
            Amid::Reset => self.host.reset(),
        }
        for _ in 0..PATIENCE {
            if !self.host.vfpga.port().commands.is_empty() {
                break;
            }
            self.cycle()?;
        }
        // A reset ends one of them, of which nobody can claim any more.
        let is_second = self.host.vfpga.port().commands.iter().any(|it| it.qpn == second.qpn);
        let (other, rq) = if is_second { (first.qpn, first_rq) } else { (second.qpn, second_rq) };
        self.host.lose_receives(&rq);
        self.host.vfpga.port().claim(1, other);
        for _ in 0..STOPPING {
            self.cycle()?;
        }
        self.holds = false;
        self.has_status(if amid == Amid::Reset { 0 } else { RING_LOST })?;
        match self.host.event() {
            Some(event) if event.kind == EventType::Fatal => {}
            event => return wrong("the event of an engine that stops amid a command", event),
        }
        if !self.qps.is_empty() || !self.gids.is_empty() {
            return wrong("what the transport still has", (amid, &self.qps, &self.gids));
        }
        self.host.reset();
        self.has_status(0)
    }
}
