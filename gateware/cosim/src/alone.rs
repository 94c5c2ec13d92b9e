//! One engine in RTL whose transport is a test.

use fpga_regs::engine::admin::{Completion, Opcode, RqKind};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::{FATAL_RING_UNREACHABLE, STATUS, STATUS_FATAL};

use crate::bus::Config;
use crate::card::Vfpga;
use crate::ffi::Library;
use crate::host::{Host, Qp, Rq};
use crate::messages::{MessageError, PATIENCE, gid_of, wrong};
use crate::port::{ATTRIBUTES, Command, Operation, Port};

/// The status register of an engine that stopped for a ring.
pub(crate) const RING_LOST: u64 = STATUS_FATAL | (FATAL_RING_UNREACHABLE as u64) << 32;

/// A host whose engine is started, and has been asked for an address.
pub(crate) fn started(library: &Library, config: &Config) -> Result<Host, MessageError> {
    let mut host = Host::new(Vfpga::new(library, config.clone())?);
    start(&mut host)?;
    Ok(host)
}

/// Starts the engine of a host, and asks it for an address.
pub(crate) fn start(host: &mut Host) -> Result<(), MessageError> {
    host.start(0);
    while !host.vfpga.is_quiet() {
        host.cycle()?;
    }
    // Both ends have that address: there is no network.
    host.set_gid(gid_of(0));
    Ok(())
}

/// A cycle of the engine, whose commands all succeed, and whose transport forgets at once; a new queue pair has room for so many
/// messages.
pub(crate) fn cycle(host: &mut Host, room: u16) -> Result<&mut Port, MessageError> {
    host.cycle()?;
    let port = host.vfpga.port();
    obey_all(port, room);
    if port.stops() {
        port.end_stop();
    }
    Ok(port)
}

/// Executes all commands well; a new queue pair has room for so many messages.
pub(crate) fn obey_all(port: &mut Port, room: u16) {
    while let Some(command) = port.commands.pop_front() {
        obey(port, &command, room);
    }
}

/// Executes a command well; a new queue pair has room for so many messages.
pub(crate) fn obey(port: &mut Port, command: &Command, room: u16) {
    port.end(command.tag, 0, [0; ATTRIBUTES]);
    if command.operation == Operation::Create {
        port.give_room(command.qpn, room);
    }
}

/// A test that is the transport of one engine.
pub(crate) trait Alone {
    fn host(&mut self) -> &mut Host;

    /// A cycle of the engine, and what the transport does then.
    fn cycle(&mut self) -> Result<(), MessageError>;

    /// Waits until something is seen, which is called so if it does not come.
    fn until<T>(
        &mut self,
        what: &'static str,
        mut seen: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, MessageError> {
        for _ in 0..PATIENCE {
            if let Some(it) = seen(self) {
                return Ok(it);
            }
            self.cycle()?;
        }
        Err(MessageError::Late(what))
    }

    /// Waits for the answer to a command.
    fn completion(&mut self) -> Result<Completion, MessageError> {
        self.until("an answer", |it| it.host().answer())
    }

    /// Waits for the answer to a command, which has to be a success.
    fn answer(&mut self, opcode: Opcode) -> Result<Completion, MessageError> {
        match self.completion()? {
            it if it.status.0 == 0 && it.opcode == opcode => Ok(it),
            it => wrong("the answer to a command", it),
        }
    }

    /// Waits until nothing is under way.
    fn settle(&mut self) -> Result<(), MessageError> {
        self.until("the end of what is under way", |it| it.host().vfpga.is_quiet().then_some(()))
    }

    /// The value of a register.
    fn register(&mut self, register: u64) -> Result<u64, MessageError> {
        self.host().vfpga.ask(register as u16);
        self.until("a register", |it| it.host().vfpga.take_answer())
    }

    /// Waits until the status register has a value, and nothing is under way.
    fn has_status(&mut self, status: u64) -> Result<(), MessageError> {
        for cycle in 0..PATIENCE {
            if cycle % 64 == 0 {
                self.host().vfpga.ask(STATUS as u16);
            }
            self.cycle()?;
            if self.host().vfpga.take_answer() == Some(status) {
                return self.settle();
            }
        }
        Err(MessageError::Late("a status"))
    }

    /// Makes a queue pair with a receive queue of its own, and takes it to RTS.
    fn connect_qp(
        &mut self,
        cqn: u32,
        log2_receives: u8,
        log2_blocks: u8,
    ) -> Result<(Qp, Rq), MessageError> {
        let rq = self.make_rq(log2_receives, 0, RqKind::Private)?;
        Ok((self.make_qp(cqn, rq.rqn, log2_blocks)?, rq))
    }

    /// Makes a receive queue.
    fn make_rq(
        &mut self,
        log2_entries: u8,
        log2_stride: u8,
        kind: RqKind,
    ) -> Result<Rq, MessageError> {
        let mut rq = self.host().create_rq(log2_entries, log2_stride, kind);
        rq.rqn = self.answer(Opcode::CreateRq)?.result;
        Ok(rq)
    }

    /// Makes a queue pair, and takes it to RTS.
    fn make_qp(&mut self, cqn: u32, rqn: u32, log2_blocks: u8) -> Result<Qp, MessageError> {
        let mut qp = self.host().create_qp(cqn, rqn, log2_blocks);
        let made = self.answer(Opcode::CreateQp)?;
        if Host::made(&mut qp, &made).is_err() {
            return wrong("a queue pair", made);
        }
        self.ready(qp.qpn)?;
        Ok(qp)
    }

    /// Takes a queue pair from RESET to RTS.
    fn ready(&mut self, qpn: u32) -> Result<(), MessageError> {
        let states = [QpState::Init, QpState::Rtr, QpState::Rts];
        for state in states {
            self.host().modify_qp(qpn, state, (1, gid_of(0)), 16);
        }
        states.iter().try_for_each(|_| self.answer(Opcode::ModifyQp).map(drop))
    }
}
