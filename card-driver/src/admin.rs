//! The engine of a `vqe` card: commands over the admin queue, events from the event rings.
//!
//! All rings lie in a memfd of balboad's own that no client sees. One command is under way at a
//! time; its completion is awaited on the vFPGA's vector, with a limit, after which the engine is
//! dead.

mod gsi;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fpga_regs::Block;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, COUNTERS, Completion, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp,
    CreateRq, Destroy, Header, Membership, ModerateCq, ModifyKey, ModifyQp, ModifyRq, Opcode,
    PortAttributes, ResizeCq, RqKind, SetGid, SetLink,
};
use fpga_regs::engine::cqe;
use fpga_regs::engine::doorbell::QueueKind;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::{self, Ignored};
use hostmem::{Access, BlockRing, DmaMemory, SharedMapping, memfd};

use crate::backend::{CardBackend, DoorbellGrant};
use crate::engine::{Engine, EngineEvent, EngineLimits, Hear};
use crate::error::{Error, GONE};
use crate::event_rings::{COMPLETIONS, EventRings, LOG2_EVENTS};
use crate::gsi::{self as queue_pair_1, Gsi};
use crate::iova::Arena;
use crate::limit::{COMMAND_LIMIT, CONFIRM_LIMIT, LOOK_AGAIN, TimeLeft};
use crate::relay::{ClientRings, Relay};
use crate::shell::{Shell, Translator};
use crate::spaces::Recall;
use crate::translations::Purpose;
use gsi::OpenGsi;

const LOG2_ADMIN: u8 = 6;
const SQ_OFFSET: u64 = 0;
const CQ_OFFSET: u64 = 0x1000;
const RESPONSE_OFFSET: u64 = 0x2000;
const EVENTS_OFFSET: u64 = 0x3000;
/// Bytes of an event ring.
const EVENTS_BYTES: u64 = 64 << LOG2_EVENTS;
const _: () = assert!(64 << LOG2_ADMIN <= 0x1000 && COUNTERS.len() * 8 <= 0x1000);

/// The engine in one vFPGA's window.
pub struct AdminEngine {
    name: String,
    shell: Arc<Shell>,
    window: u8,
    limits: EngineLimits,
    memory: Arc<SharedMapping>,
    completions: BlockRing,
    iova: u64,
    command_limit: Duration,
    sq_index: u32,
    cq_index: u32,
    tag: u16,
    events: Arc<EventRings>,
    death: Option<String>,
    /// Rings for clients that have no doorbell page of their own, while there are any.
    relay: Option<Relay>,
    /// The driver's own doorbell page, while queue pair 1 or relayed clients need it.
    own_page: Option<DoorbellGrant>,
    /// Memory for queue pair 1, and where the card sees it; `None` where it is not offered.
    gsi_memory: Option<(Arc<SharedMapping>, u64)>,
    /// Queue pair 1, while it is open.
    gsi: Option<OpenGsi>,
    /// The GID table: all zeros where there is none.
    gids: Vec<[u8; 16]>,
}

impl AdminEngine {
    /// Starts the engine in a window whose magic and version were checked.
    ///
    /// # Errors
    /// [`Error::Dead`] when it does not reset or start, [`Error::Backend`] and [`Error::Memory`]
    /// when its rings cannot be made.
    pub fn start(
        card: u32,
        shell: Arc<Shell>,
        window: u8,
        arena: &mut Arena,
    ) -> Result<Self, Error> {
        let name = format!("balboa{card} window {window}");
        let mut own = |name, bytes| own_memory((card, &shell, window), name, bytes, arena);
        let backend = Arc::clone(shell.backend());
        let csr = user_csr(u64::from(window));
        let limits =
            EngineLimits::read(|offset| backend.read64(Bar::Shell, csr.wrapping_add(offset)));
        if limits.capabilities.contains(window::Capabilities::FAULT_REFUSED) {
            shell.tell_faults(window);
        }
        let (memory, iova) = own("balboad-admin", memory_bytes(limits.event_rings))?;
        let offers_gsi = limits.capabilities.contains(window::Capabilities::GSI);
        let gsi_memory =
            offers_gsi.then(|| own("balboad-gsi", queue_pair_1::MEMORY_BYTES)).transpose()?;
        let ring = |offset, log2: u8| -> Result<BlockRing, Error> {
            let at = block_at(offset, 0);
            Ok(BlockRing::new(Arc::clone(&memory), at, 1 << log2)?)
        };
        let completions = ring(CQ_OFFSET, LOG2_ADMIN)?;
        let events = (0..limits.event_rings).map(|number| ring(events_at(number), LOG2_EVENTS));
        let events = events.collect::<Result<_, _>>()?;
        let events = EventRings::new(name.clone(), Arc::clone(&backend), csr, events)?;
        let events = Arc::new(events);
        shell.hear(window, Arc::clone(&events));
        let mut engine = Self {
            name,
            shell,
            window,
            limits,
            memory,
            completions,
            iova,
            command_limit: COMMAND_LIMIT,
            sq_index: 0,
            cq_index: 0,
            tag: 0,
            events,
            death: None,
            relay: None,
            own_page: None,
            gsi_memory,
            gsi: None,
            gids: vec![[0; 16]; limits.gids.into()],
        };
        engine.restart()?;
        Ok(engine)
    }

    /// Sets how long a command may take, for tests of an engine that stays silent.
    pub fn set_command_limit(&mut self, limit: Duration) {
        self.command_limit = limit;
    }

    fn backend(&self) -> &Arc<dyn CardBackend> {
        self.shell.backend()
    }

    fn read(&self, register: u64) -> u64 {
        let csr = user_csr(u64::from(self.window));
        self.backend().read64(Bar::Shell, csr.wrapping_add(register))
    }

    fn write(&self, register: u64, value: u64) {
        let csr = user_csr(u64::from(self.window));
        self.backend().write64(Bar::Shell, csr.wrapping_add(register), value);
    }

    fn dead(&self, why: &str) -> Error {
        Error::Dead { engine: self.name.clone(), why: why.to_owned() }
    }

    /// Declares the engine dead, once.
    fn die(&mut self, why: String) {
        if self.death.is_none() {
            log::error!("{}: {why}", self.name);
            if let Some(open) = &self.gsi {
                open.gsi.end(&why);
            }
            self.death = Some(why);
            self.events.die();
        }
    }

    /// Reads a register until `done` says so; its last value where the limit passed.
    fn await_status(&self, done: impl Fn(u64) -> bool) -> Result<(), u64> {
        let mut time_left = TimeLeft::new(CONFIRM_LIMIT, Instant::now());
        loop {
            let left = time_left.left(Instant::now());
            let status = self.read(window::STATUS);
            if done(status) {
                return Ok(());
            }
            if status == u64::MAX || left.is_zero() {
                return Err(status);
            }
            // It may wait for the answer to a page fault.
            if let Err(error) = self.shell.attend() {
                log::error!("{}: {error}", self.name);
            }
        }
    }

    /// Runs a command without a response buffer.
    fn run<const N: usize>(
        &mut self,
        opcode: Opcode,
        body: [Block; N],
    ) -> Result<Completion, Error> {
        self.command(opcode, body, 0)
    }

    /// Runs a command whose answer is `M` blocks in the response buffer.
    fn ask<const M: usize>(&mut self, opcode: Opcode, number: u32) -> Result<[Block; M], Error> {
        for i in 0..M as u64 {
            self.store_block(block_at(RESPONSE_OFFSET, i), [0; 8])?;
        }
        let response = self.iova.wrapping_add(RESPONSE_OFFSET);
        self.command(opcode, Destroy { number }.encode(), response)?;
        let mut answer = [[0; 8]; M];
        for (i, block) in answer.iter_mut().enumerate() {
            *block = self.load_block(block_at(RESPONSE_OFFSET, i as u64))?;
        }
        Ok(answer)
    }

    fn command<const N: usize>(
        &mut self,
        opcode: Opcode,
        mut body: [Block; N],
        response: u64,
    ) -> Result<Completion, Error> {
        if let Some(why) = &self.death {
            return Err(self.dead(why));
        }
        // The detail of an earlier command, whose answer stayed unread, does not belong to this one.
        drop(self.detail());
        self.tag = self.tag.wrapping_add(1);
        let blocks = u8::try_from(N).unwrap_or(u8::MAX);
        let header = Header { opcode, blocks, tag: self.tag, response }.encode();
        for (word, head) in body.iter_mut().flatten().zip(header.iter().flatten()) {
            *word |= head;
        }
        for block in body {
            let at = ring_at(SQ_OFFSET, self.sq_index, LOG2_ADMIN);
            self.store_block(at, block)?;
            self.sq_index = self.sq_index.wrapping_add(1);
        }
        let expected = self.shell.expect(self.window);
        self.write(window::ADMIN_DOORBELL, u64::from(self.sq_index));
        drop(expected);
        let completion = self.await_completion(opcode)?;
        match completion.status {
            AdminStatus::Success => Ok(completion),
            status => Err(Error::Refused {
                engine: self.name.clone(),
                opcode,
                status,
                detail: self.detail(),
            }),
        }
    }

    fn await_completion(&mut self, opcode: Opcode) -> Result<Completion, Error> {
        let mut time_left = TimeLeft::new(self.command_limit, Instant::now());
        let mut unexpected = 0u32;
        loop {
            let seen = self.shell.signals(self.window);
            if let Some(completion) = self.take_completion() {
                if completion.tag == self.tag && completion.opcode == opcode {
                    return Ok(completion);
                }
                log::warn!("{}: unexpected admin completion {completion:?}", self.name);
                unexpected = unexpected.saturating_add(1);
                // As many as the ring has cannot be left from earlier commands: the engine answers
                // commands that were never given, and would do so for ever.
                if unexpected > 1 << LOG2_ADMIN {
                    self.die(format!(
                        "it answers commands that were never given, and not {opcode:?}"
                    ));
                    return Err(self.dead("it answers commands that were never given"));
                }
                continue;
            }
            let left = time_left.left(Instant::now());
            self.check_fatal();
            if self.death.is_none()
                && (left.is_zero() || !self.shell.wait(self.window, seen, left.min(LOOK_AGAIN))?)
            {
                self.examine(left.is_zero().then_some(opcode));
            }
            if let Some(why) = &self.death {
                return Err(self.dead(why));
            }
        }
    }

    /// Looks whether it still runs; `late` is a command that was not answered in its time.
    fn examine(&mut self, late: Option<Opcode>) {
        let status = self.read(window::STATUS);
        if status == u64::MAX {
            self.die(GONE.to_owned());
        } else if let Some(why) = self.shell.failure(self.window) {
            self.abandon(why);
        } else if status & window::STATUS_FATAL != 0 {
            self.die(format!("the engine stopped with code {}", status >> 32));
        } else if status & window::STATUS_ENABLED == 0 {
            self.die("it stands still, and not by our doing: the card was reset".to_owned());
        } else if let Some(opcode) = late {
            let limit = self.command_limit.as_secs_f32();
            self.die(format!("no answer to {opcode:?} within {limit} s (status {status:#x})"));
        }
    }

    fn translator(&self) -> &dyn Translator {
        self.shell.translator()
    }

    /// The words that are added to the refusal of the last command; empty, or begins with `; `.
    fn detail(&self) -> String {
        let reason = self.translator().reason(self.window);
        reason.map(|why| format!("; {why}")).unwrap_or_default()
    }

    /// Ends a queue pair's address space; an engine whose card does not confirm that is given up.
    fn end_space(&mut self, qpn: u32, anew: bool) -> Result<(), Error> {
        let ended = self.translator().end_space(&self.shell, self.window, qpn, anew);
        if ended.is_err() {
            self.check();
        }
        ended
    }

    fn take_completion(&mut self) -> Option<Completion> {
        let expected = cqe::expected_phase(self.cq_index, LOG2_ADMIN);
        let entry = self.completions.block(self.cq_index);
        let entry = entry.written(|last| cqe::phase(last) == expected)?;
        self.cq_index = self.cq_index.wrapping_add(1);
        Some(Completion::decode(&[entry.load()]))
    }

    fn load_block(&self, at: usize) -> Result<Block, Error> {
        let mut block = [0; 8];
        for (i, word) in block.iter_mut().enumerate() {
            *word = self.memory.load_relaxed_u64(at.saturating_add(i.saturating_mul(8)))?;
        }
        Ok(block)
    }

    fn store_block(&self, at: usize, block: Block) -> Result<(), Error> {
        for (i, word) in block.into_iter().enumerate() {
            self.memory.store_release_u64(at.saturating_add(i.saturating_mul(8)), word)?;
        }
        Ok(())
    }

    fn check_fatal(&mut self) {
        if let Some(why) = self.events.take_fatal() {
            self.die(why);
        }
    }

    /// Begins to ring for clients by a doorbell page of our own.
    fn start_relay(&mut self) -> Result<Relay, Error> {
        let name = self.name.clone();
        let relay = Relay::start(&name, self.own_page()?);
        match &relay {
            Ok(_) => log::info!("{name}: doorbell pages have run out, and a relay begins"),
            Err(_) => self.release_own_page(),
        }
        relay
    }

    /// The driver's own doorbell page, which the card looks at from now on.
    fn own_page(&mut self) -> Result<&DoorbellGrant, Error> {
        let page = match self.own_page.take() {
            Some(page) => page,
            None => self.backend().grant_page(self.window, window::RELAY_PAGE)?,
        };
        Ok(self.own_page.insert(page))
    }

    /// Gives it back, unless queue pair 1 or relayed clients need it.
    fn release_own_page(&mut self) {
        let unused = self.relay.is_none() && self.gsi.is_none();
        if unused && self.own_page.take().is_some() {
            self.backend().revoke_page(self.window, window::RELAY_PAGE);
        }
    }

    /// Tells the relay, if there is one. Rings always lie in their clients' ring memory.
    fn relayed(&mut self, tell: impl FnOnce(&mut Relay) -> Result<(), Error>) {
        let Some(relay) = &mut self.relay else { return };
        if let Err(error) = tell(relay) {
            log::error!("{}: a queue is not relayed: {error}", self.name);
        }
    }

    fn destroy(&mut self, opcode: Opcode, number: u32) -> Result<(), Error> {
        self.run(opcode, Destroy { number }.encode())?;
        self.hear();
        Ok(())
    }

    /// Passes on the events that the engine raised before its answer, and that are in the ring by now: while their
    /// objects exist.
    fn hear(&mut self) {
        self.events.drain();
        self.check_fatal();
    }
}

impl Engine for AdminEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn death(&self) -> Option<&str> {
        self.death.as_deref()
    }

    fn create_cq(&mut self, command: &CreateCq) -> Result<u32, Error> {
        let cqn = self.run(Opcode::CreateCq, command.encode())?.result;
        self.relayed(|relay| {
            relay.add(command.page, (QueueKind::Completion, cqn), command.ring, false)
        });
        Ok(cqn)
    }

    fn moderate_cq(&mut self, command: &ModerateCq) -> Result<(), Error> {
        self.run(Opcode::ModerateCq, command.encode()).map(drop)
    }

    fn resize_cq(&mut self, command: &ResizeCq) -> Result<u32, Error> {
        // The card answers a read after it has looked at earlier posts: so making a queue smaller than its
        // messages under way is refused, as far as the card has come.
        let _ = self.read(window::STATUS);
        let end = self.run(Opcode::ResizeCq, command.encode())?.result;
        self.relayed(|relay| relay.move_cq(command.cqn, command.ring));
        Ok(end)
    }

    fn destroy_cq(&mut self, cqn: u32) -> Result<(), Error> {
        self.destroy(Opcode::DestroyCq, cqn)?;
        self.relayed(|relay| relay.remove((QueueKind::Completion, cqn)));
        Ok(())
    }

    fn create_rq(&mut self, command: &CreateRq) -> Result<u32, Error> {
        let rqn = self.run(Opcode::CreateRq, command.encode())?.result;
        let is_private = command.kind == RqKind::Private;
        self.relayed(|relay| {
            relay.add(command.page, (QueueKind::Receive, rqn), command.ring, is_private)
        });
        Ok(rqn)
    }

    fn modify_rq(&mut self, rqn: u32, limit: u32) -> Result<(), Error> {
        self.run(Opcode::ModifyRq, ModifyRq { rqn, limit }.encode())?;
        self.hear();
        Ok(())
    }

    fn destroy_rq(&mut self, rqn: u32) -> Result<(), Error> {
        self.destroy(Opcode::DestroyRq, rqn)?;
        self.relayed(|relay| relay.remove((QueueKind::Receive, rqn)));
        Ok(())
    }

    fn create_qp(&mut self, command: &CreateQp) -> Result<(u32, u8), Error> {
        let completion = self.run(Opcode::CreateQp, command.encode())?;
        let (qpn, generation) = (completion.result, completion.generation);
        // The target of an XRC connection has no queue of its own.
        if command.kind != QpType::XrcReceive {
            self.relayed(|relay| {
                relay.add_qp(command.page, qpn, command.sq_ring, command.rqn)?;
                relay.renew_qp(qpn, generation);
                Ok(())
            });
        }
        Ok((qpn, generation))
    }

    fn modify_qp(&mut self, qpn: u32, attributes: &Attributes) -> Result<u8, Error> {
        let [head] = ModifyQp { qpn }.encode();
        let [first, second] = attributes.encode();
        let state = attributes.state;
        let changes = attributes.mask.contains(AttributeMask::STATE);
        // If queue pairs have address spaces of their own, accesses under way in these outlive the queue pairs.
        if changes && matches!(state, QpState::Err | QpState::Reset) {
            self.end_space(qpn, state == QpState::Reset)?;
        }
        if changes && state == QpState::Rtr {
            self.translator().settle(self.window, qpn);
        }
        let generation = self.run(Opcode::ModifyQp, [head, first, second])?.generation;
        self.hear();
        if changes && state == QpState::Rtr {
            self.translator().surface(&self.shell, self.window);
        }
        if attributes.mask.contains(AttributeMask::ACCESS) {
            self.translator().lapse(&self.shell, self.window)?;
            self.translator().recall(&self.shell, self.window, Recall::Qp { qpn })?;
        }
        self.relayed(|relay| {
            relay.renew_qp(qpn, generation);
            Ok(())
        });
        Ok(generation)
    }

    fn query_qp(&mut self, qpn: u32) -> Result<Attributes, Error> {
        Ok(Attributes::decode(&self.ask(Opcode::QueryQp, qpn)?))
    }

    fn destroy_qp(&mut self, qpn: u32) -> Result<(), Error> {
        let ended = self.end_space(qpn, false);
        ended.map_err(|error| match (error, &self.death) {
            (Error::Dead { engine, why }, None) => Error::Unconfirmed { engine, why },
            (error, _) => error,
        })?;
        self.destroy(Opcode::DestroyQp, qpn)?;
        self.relayed(|relay| relay.remove((QueueKind::Send, qpn)));
        Ok(())
    }

    fn create_key(&mut self, command: &CreateKey) -> Result<u32, Error> {
        let key = self.run(Opcode::CreateKey, command.encode())?.result;
        self.translator().surface(&self.shell, self.window);
        Ok(key)
    }

    fn modify_key(&mut self, command: &ModifyKey) -> Result<(), Error> {
        self.run(Opcode::ModifyKey, command.encode())?;
        self.translator().lapse(&self.shell, self.window)?;
        let ModifyKey { iova, length, .. } = *command;
        self.translator().recall(&self.shell, self.window, Recall::Memory { iova, length })?;
        self.translator().surface(&self.shell, self.window);
        Ok(())
    }

    fn alloc_dm(&mut self, command: &AllocDm) -> Result<u32, Error> {
        Ok(self.run(Opcode::AllocDm, command.encode())?.result)
    }

    fn free_dm(&mut self, dm: u32) -> Result<(), Error> {
        self.run(Opcode::FreeDm, Destroy { number: dm }.encode()).map(drop)
    }

    fn copy_dm(&mut self, command: &CopyDm) -> Result<(), Error> {
        self.run(Opcode::CopyDm, command.encode()).map(drop)
    }

    fn destroy_key(&mut self, key: u32) -> Result<(), Error> {
        self.run(Opcode::DestroyKey, Destroy { number: key }.encode())?;
        self.translator().lapse(&self.shell, self.window)
    }

    fn create_ah(&mut self, command: &CreateAh) -> Result<u32, Error> {
        Ok(self.run(Opcode::CreateAh, command.encode())?.result)
    }

    fn query_ah(&mut self, ah: u32) -> Result<bool, Error> {
        Ok(self.run(Opcode::QueryAh, Destroy { number: ah }.encode())?.result != 0)
    }

    fn destroy_ah(&mut self, ah: u32) -> Result<(), Error> {
        self.run(Opcode::DestroyAh, Destroy { number: ah }.encode()).map(drop)
    }

    fn attach_multicast(&mut self, membership: &Membership) -> Result<(), Error> {
        self.run(Opcode::AttachMulticast, membership.encode()).map(drop)
    }

    fn detach_multicast(&mut self, membership: &Membership) -> Result<(), Error> {
        self.run(Opcode::DetachMulticast, membership.encode()).map(drop)
    }

    fn set_gid(&mut self, index: u8, gid: Option<[u8; 16]>, vlan: u16) -> Result<(), Error> {
        let valid = u8::from(gid.is_some());
        let command = SetGid { index, valid, vlan, gid: gid.unwrap_or_default() };
        self.run(Opcode::SetGid, command.encode())?;
        if let Some(entry) = self.gids.get_mut(usize::from(index)) {
            *entry = command.gid;
        }
        if let Some(open) = &self.gsi {
            open.gsi.set_gids(self.gids.clone(), Some(index));
        }
        Ok(())
    }

    fn set_link(&mut self, up: bool) -> Result<(), Error> {
        self.run(Opcode::SetLink, SetLink { up: up.into() }.encode()).map(drop)
    }

    fn query_port(&mut self) -> Result<PortAttributes, Error> {
        Ok(PortAttributes::decode(&self.ask(Opcode::QueryPort, 0)?))
    }

    fn query_clock(&mut self) -> Result<u64, Error> {
        let now = self.read(window::TIMESTAMP);
        // A card that left the bus answers all ones, and so does no clock for centuries.
        if now == u64::MAX {
            self.examine(None);
        }
        match &self.death {
            Some(why) => Err(self.dead(why)),
            None => Ok(now),
        }
    }

    fn query_counters(&mut self) -> Result<Vec<u64>, Error> {
        const BLOCKS: usize = COUNTERS.len().div_ceil(8);
        let answer = self.ask::<BLOCKS>(Opcode::QueryCounters, 0)?;
        Ok(answer.into_iter().flatten().take(COUNTERS.len()).collect())
    }

    fn own_counters(&mut self) -> Vec<(&'static str, u64)> {
        let Ignored { stores, doorbells } = Ignored::decode(self.read(window::IGNORED));
        let counted = [
            ("engine_payload_read", self.read(window::PAYLOAD_READ)),
            ("engine_payload_written", self.read(window::PAYLOAD_WRITTEN)),
            ("engine_ignored_stores", stores.into()),
            ("engine_ignored_doorbells", doorbells.into()),
        ];
        // An engine that does not count reads 0; a card that left the bus reads all ones.
        let is_gone = self.read(window::MAGIC) == u64::MAX;
        counted.into_iter().filter(|(_, value)| *value != 0 && !is_gone).collect()
    }

    fn grant(&mut self, client: u8, rings: ClientRings) -> Result<DoorbellGrant, Error> {
        if client <= window::DOORBELL_PAGES {
            return self.backend().grant_page(self.window, client);
        }
        let mut relay = match self.relay.take() {
            Some(relay) => relay,
            None => self.start_relay()?,
        };
        let grant = relay.join(client, rings);
        self.relay = Some(relay);
        if grant.is_err() {
            self.revoke(client);
        }
        grant
    }

    fn revoke(&mut self, client: u8) {
        if client <= window::DOORBELL_PAGES {
            return self.backend().revoke_page(self.window, client);
        }
        if self.relay.as_mut().is_some_and(|relay| relay.leave(client)) {
            // Its thread ends before the card loses its page.
            self.relay = None;
            self.release_own_page();
        }
    }

    fn open_gsi(&mut self) -> Result<Arc<Gsi>, Error> {
        match &self.gsi {
            Some(open) => Ok(Arc::clone(&open.gsi)),
            None => self.make_gsi(),
        }
    }

    fn close_gsi(&mut self) {
        self.unmake_gsi();
    }

    fn listen(&mut self, hear: Hear) {
        self.events.listen(hear);
    }

    fn news(&self) -> BorrowedFd<'_> {
        self.events.news()
    }

    fn service(&mut self) {
        let _ = nix::unistd::read(self.events.news(), &mut [0; 8]);
        self.check_fatal();
        self.attend_gsi();
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.check_fatal();
        self.events.next_event()
    }

    fn check(&mut self) {
        if self.death.is_none() {
            self.examine(None);
        }
    }

    fn abandon(&mut self, why: &str) {
        // Where the card is still there, it is to reach for no memory any more.
        self.write(window::CONTROL, window::CONTROL_RESET);
        self.die(why.to_owned());
    }

    fn await_reset(&mut self) -> Result<(), Error> {
        self.await_status(|status| status == 0).map_err(|status| match status {
            u64::MAX => self.dead(GONE),
            _ => self.dead(&format!("it does not reset: its status stays {status:#x}")),
        })
    }

    fn restart(&mut self) -> Result<(), Error> {
        if let Some(open) = &self.gsi {
            open.gsi.end("its engine starts anew");
        }
        self.gids.fill([0; 16]);
        self.write(window::CONTROL, window::CONTROL_RESET);
        self.await_reset()?;
        self.events.reset(|| {
            for at in (0..memory_bytes(self.limits.event_rings)).step_by(8) {
                self.memory.store_relaxed_u64(usize::try_from(at).unwrap_or(usize::MAX), 0)?;
            }
            Ok(())
        })?;
        // Ahead of the first command, behind which the engine would be given up again.
        if !self.translator().outlives_engines() && self.shell.is_in_doubt(self.window) {
            self.shell.begin_anew(self.window);
        }
        (self.sq_index, self.cq_index) = (0, 0);
        if self.limits.capabilities.contains(window::Capabilities::SEED) {
            // Where the shell was not reset since, the engine goes on with the one that it has.
            self.write(window::SEED, seed());
        }
        let registers = [
            (window::ADMIN_SQ_BASE, self.iova.wrapping_add(SQ_OFFSET)),
            (window::ADMIN_SQ_SIZE, u64::from(LOG2_ADMIN)),
            (window::ADMIN_CQ_BASE, self.iova.wrapping_add(CQ_OFFSET)),
            (window::ADMIN_CQ_SIZE, u64::from(LOG2_ADMIN)),
            (window::EVENT_BASE, self.iova.wrapping_add(EVENTS_OFFSET)),
            (window::EVENT_SIZE, u64::from(LOG2_EVENTS)),
            (window::EVENT_RINGS, u64::from(self.limits.event_rings)),
            (window::EVENT_COMPLETIONS, u64::from(COMPLETIONS)),
        ];
        for (register, value) in registers {
            self.write(register, value);
        }
        self.write(window::CONTROL, window::CONTROL_ENABLE);
        match self.await_status(|status| status & window::STATUS_ENABLED != 0) {
            Ok(()) => {
                self.death = None;
                self.begin_gsi()
            }
            Err(status) => {
                Err(self.dead(&format!("it does not start: its status stays {status:#x}")))
            }
        }
    }
}

impl Drop for AdminEngine {
    /// Ends queue pair 1, so that its other holders keep nothing of the card.
    fn drop(&mut self) {
        if let Some(open) = &self.gsi {
            open.gsi.end("the card was given up");
        }
    }
}

/// A number from which nobody else can draw what an engine draws.
fn seed() -> u64 {
    let mut word = [0; 8];
    // Linux answers for every such size once booted, and retries are its own.
    while getrandom::fill(&mut word).is_err() {}
    // 0 is none.
    u64::from_le_bytes(word).max(1)
}

/// Where an event ring begins in the engine's memory.
fn events_at(number: u8) -> u64 {
    EVENTS_OFFSET.saturating_add(EVENTS_BYTES.saturating_mul(number.into()))
}

/// Bytes of the engine's memory with so many event rings.
fn memory_bytes(event_rings: u8) -> u64 {
    events_at(event_rings)
}

/// Memory of balboad's own, which no client sees, and where the card sees it.
fn own_memory(
    (card, shell, window): (u32, &Arc<Shell>, u8),
    name: &str,
    length: u64,
    arena: &mut Arena,
) -> Result<(Arc<SharedMapping>, u64), Error> {
    let none = || Error::NoAddressSpace { card, length };
    let bytes = usize::try_from(length).map_err(|_| none())?;
    let fd = memfd::create(name, bytes)?;
    let memory = Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite)?);
    let range = arena.allocate(length, 0, Instant::now()).ok_or_else(none)?;
    let shared = DmaMemory::Shared { mapping: Arc::clone(&memory), offset: 0 };
    shell.backend().dma_map(range.start(), range.length(), shared)?;
    shell.map(window, range.start(), range.length(), Purpose::OwnRings);
    Ok((memory, range.start()))
}

/// Byte offset of entry `index` of a ring of 2^`log2` blocks at `base`.
fn ring_at(base: u64, index: u32, log2: u8) -> usize {
    let mask = (1u64 << (log2 & 31)).wrapping_sub(1);
    block_at(base, u64::from(index) & mask)
}

/// Byte offset of block `number` behind `base`.
fn block_at(base: u64, number: u64) -> usize {
    usize::try_from(base.saturating_add(number.saturating_mul(64))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
