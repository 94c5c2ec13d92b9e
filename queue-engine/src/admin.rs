//! Admin commands: making, changing and destroying the engine's objects.

use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, Completion, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq,
    Destroy, Header, KeyKind, MAX_VLAN, Membership, ModerateCq, ModifyKey, ModifyQp, ModifyRq,
    Opcode, ResizeCq, RqKind, SetGid, SetLink, SetNeighbour,
};
use fpga_regs::engine::doorbell::QueueKind;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{
    AttributeMask, Attributes, GSI_QKEY, GSI_QPN, QpState, QpType, static_rate_megabits,
};
use fpga_regs::engine::transition;
use fpga_regs::engine::window::{Capabilities, LimitRate};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::cq::{Completions, Cq};
use crate::doorbells::{DoorbellPage, Queue};
use crate::engine::Engine;
use crate::memory::{QueueMemory, Ring, Rings, is_aligned};
use crate::numbers::{Random, take};
use crate::qp::{Qp, SendRing};
use crate::rings::Blocks;
use crate::rq::Rq;
use crate::transport::{LocalGid, Transport};
use crate::under_way::UnderWay;

/// The outcome of a command.
struct Answer {
    result: u32,
    generation: u8,
    response: Vec<Block>,
}

impl Answer {
    fn none() -> Self {
        Self::number(0)
    }

    fn number(result: u32) -> Self {
        Self { result, generation: 0, response: Vec::new() }
    }

    fn generation(self, generation: u8) -> Self {
        Self { generation, ..self }
    }

    fn blocks(response: Vec<Block>) -> Self {
        Self { response, ..Self::none() }
    }
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Executes the commands up to `producer` and raises an interrupt for their completions;
    /// `false` when one of them has to wait: for memory, or for a QP to begin with its posted requests.
    pub(crate) fn execute_admin(
        &mut self,
        now: u64,
        producer: u32,
        memory: &M,
        transport: &mut impl Transport,
    ) -> bool {
        while let Some(admin) = &mut self.admin {
            let before = admin.consumer;
            let Some((header, blocks)) = admin.next(producer) else { break };
            if blocks.is_some_and(|blocks| self.begins_first(now, &header, &blocks, transport)) {
                if let Some(admin) = &mut self.admin {
                    admin.consumer = before;
                }
                return false;
            }
            let outcome = match blocks {
                Some(blocks) if usize::from(header.blocks) >= blocks_of(header.opcode) => {
                    self.execute_command(now, &header, &blocks, memory, transport)
                }
                _ => Err(AdminStatus::Invalid),
            };
            let outcome = outcome.and_then(|answer| {
                respond(header.response, &answer.response, memory).map(|()| answer)
            });
            // Memory is looked for before anything is changed, so the command can come again.
            if matches!(outcome, Err(AdminStatus::BadAddress)) && memory.waits() {
                if let Some(admin) = &mut self.admin {
                    admin.consumer = before;
                }
                return false;
            }
            let mut completion =
                Completion { tag: header.tag, opcode: header.opcode, ..Completion::default() };
            match outcome {
                Ok(answer) => {
                    completion.result = answer.result;
                    completion.generation = answer.generation;
                }
                Err(status) => completion.status = status,
            }
            if let Some(admin) = &mut self.admin {
                admin.complete(completion);
            }
            self.events.raised = true;
        }
        // A QP that was reset or destroyed may have left room to others.
        self.feed_starved();
        true
    }

    /// Executes a command; here those of queues.
    fn execute_command(
        &mut self,
        now: u64,
        header: &Header,
        blocks: &Blocks,
        memory: &M,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        let [first, second, third, _] = blocks;
        let named = Destroy::decode(&[*first]).number;
        match header.opcode {
            Opcode::CreateCq => self.create_cq(&CreateCq::decode(&[*first]), memory),
            Opcode::ResizeCq => self.resize_cq(now, &ResizeCq::decode(&[*first]), memory),
            Opcode::ModerateCq => {
                self.check_offered(Capabilities::MODERATION)?;
                let ModerateCq { cqn, count, period } = ModerateCq::decode(&[*first]);
                Completions {
                    cqs: &mut self.cqs,
                    events: &mut self.events,
                    lost: &mut self.lost,
                    now,
                }
                .moderate(cqn, count, period)
                .map(|()| Answer::none())
            }
            Opcode::DestroyCq => self.destroy_cq(named),
            Opcode::CreateRq => self.create_rq(&CreateRq::decode(&[*first]), memory),
            Opcode::ModifyRq => self.modify_rq(&ModifyRq::decode(&[*first])),
            Opcode::DestroyRq => self.destroy_rq(named),
            Opcode::CreateQp => self.create_qp(&CreateQp::decode(&[*first]), memory, transport),
            Opcode::ModifyQp => {
                let attributes = Attributes::decode(&[*second, *third]);
                let qpn = ModifyQp::decode(&[*first]).qpn;
                self.modify_qp(now, qpn, &attributes, transport)
            }
            Opcode::QueryQp => self.query_qp(named, transport),
            Opcode::DestroyQp => self.destroy_qp(now, named, transport),
            Opcode::CreateKey
            | Opcode::ModifyKey
            | Opcode::DestroyKey
            | Opcode::AllocDm
            | Opcode::FreeDm
            | Opcode::CopyDm => self.execute_of_memory(header.opcode, blocks, memory),
            _ => self.execute_of_port(now, header.opcode, blocks, transport),
        }
    }

    /// Executes a command of keys, or of the card's own memory.
    fn execute_of_memory(
        &mut self,
        opcode: Opcode,
        [first, ..]: &Blocks,
        memory: &M,
    ) -> Result<Answer, AdminStatus> {
        let named = Destroy::decode(&[*first]).number;
        match opcode {
            Opcode::CreateKey => {
                self.create_key(CreateKey::decode(&[*first]), memory).map(Answer::number)
            }
            Opcode::ModifyKey => {
                let command = ModifyKey::decode(&[*first]);
                self.keys.modify(&command, memory).map(|()| Answer::none())
            }
            Opcode::DestroyKey => {
                let dm = self.keys.destroy(named)?;
                dm.into_iter().for_each(|dm| self.device_memory.count_key(dm, false));
                Ok(Answer::none())
            }
            Opcode::AllocDm => {
                self.check_offered(Capabilities::DEVICE_MEMORY)?;
                let command = AllocDm::decode(&[*first]);
                self.device_memory.alloc(&command, memory, &mut self.random).map(Answer::number)
            }
            Opcode::FreeDm => {
                self.check_offered(Capabilities::DEVICE_MEMORY)?;
                self.device_memory.free(named).map(|()| Answer::none())
            }
            Opcode::CopyDm => {
                self.check_offered(Capabilities::DEVICE_MEMORY)?;
                let command = CopyDm::decode(&[*first]);
                self.device_memory.copy(&command, memory).map(|()| Answer::none())
            }
            _ => Err(AdminStatus::Unsupported),
        }
    }

    /// Executes a command of address handles, groups, or the port itself.
    fn execute_of_port(
        &mut self,
        now: u64,
        opcode: Opcode,
        [first, second, ..]: &Blocks,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        let named = Destroy::decode(&[*first]).number;
        match opcode {
            Opcode::CreateAh => {
                self.create_ah(now, &CreateAh::decode(&[*first, *second]), transport)
            }
            Opcode::DestroyAh => self.destroy_ah(named, transport),
            Opcode::QueryAh => self.query_ah(named, transport),
            Opcode::AttachMulticast => {
                self.set_member(now, &Membership::decode(&[*first]), true, transport)
            }
            Opcode::DetachMulticast => {
                self.set_member(now, &Membership::decode(&[*first]), false, transport)
            }
            Opcode::SetGid => self.set_gid(&SetGid::decode(&[*first]), transport),
            Opcode::SetNeighbour => {
                let SetNeighbour { mac, valid, gid } = SetNeighbour::decode(&[*first]);
                transport.set_neighbour(gid, (valid == 1).then_some(mac)).map(|()| Answer::none())
            }
            Opcode::SetLink => {
                let SetLink { up } = SetLink::decode(&[*first]);
                transport.set_link(up == 1).map(|()| Answer::none())
            }
            Opcode::QueryPort => {
                let port = transport.port().ok_or(AdminStatus::Unsupported)?;
                Ok(Answer::blocks(port.encode().to_vec()))
            }
            Opcode::QueryCounters => Ok(Answer::blocks(
                transport
                    .counters()
                    .chunks(8)
                    .map(|chunk| std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0)))
                    .collect(),
            )),
            _ => Err(AdminStatus::Unsupported),
        }
    }

    fn create_key(&mut self, command: CreateKey, memory: &M) -> Result<u32, AdminStatus> {
        if matches!(command.kind, KeyKind::Window1 | KeyKind::Window2) {
            self.check_offered(Capabilities::MEMORY_WINDOW)?;
        }
        if command.kind == KeyKind::Null {
            self.check_offered(Capabilities::NULL_MR)?;
        }
        if command.kind != KeyKind::DeviceMemory {
            return self.keys.create(&command, memory, &mut self.random);
        }
        self.check_offered(Capabilities::DEVICE_MEMORY)?;
        let CreateKey { dm, iova: offset, length, .. } = command;
        let iova = self.device_memory.address(dm, offset, length)?;
        let key = self.keys.create(&CreateKey { iova, ..command }, memory, &mut self.random)?;
        self.device_memory.count_key(dm, true);
        Ok(key)
    }

    fn create_cq(&mut self, command: &CreateCq, memory: &M) -> Result<Answer, AdminStatus> {
        if command.log2_entries > self.config.log2_cq_entries {
            return Err(AdminStatus::Invalid);
        }
        self.check_page(command.page)?;
        if !self.events.has(command.vector) {
            return Err(AdminStatus::Invalid);
        }
        let window = queue(memory, command.ring, command.log2_entries)?;
        let cqn = self.cq_numbers.draw(&mut self.random).ok_or(AdminStatus::NoResources)?;
        self.cqs.insert(cqn, Cq::new(window, command));
        self.doorbells.add(command.page, Queue { kind: QueueKind::Completion, number: cqn });
        Ok(Answer::number(cqn))
    }

    fn resize_cq(
        &mut self,
        now: u64,
        command: &ResizeCq,
        memory: &M,
    ) -> Result<Answer, AdminStatus> {
        self.check_offered(Capabilities::RESIZE_CQ)?;
        if command.log2_entries > self.config.log2_cq_entries {
            return Err(AdminStatus::Invalid);
        }
        let window = queue(memory, command.ring, command.log2_entries)?;
        Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now }
            .resize(command.cqn, window, command.log2_entries)
            .map(Answer::number)
    }

    fn destroy_cq(&mut self, cqn: u32) -> Result<Answer, AdminStatus> {
        let cq = self.cqs.get(&cqn).ok_or(AdminStatus::NotFound)?;
        if cq.users > 0 {
            return Err(AdminStatus::Busy);
        }
        self.doorbells.remove(cq.page, Queue { kind: QueueKind::Completion, number: cqn });
        Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now: 0 }
            .remove(cqn);
        self.cq_numbers.free(cqn);
        Ok(Answer::none())
    }

    fn create_rq(&mut self, command: &CreateRq, memory: &M) -> Result<Answer, AdminStatus> {
        match command.kind {
            RqKind::Private => {}
            RqKind::Shared => self.check_offered(Capabilities::SRQ)?,
            RqKind::Xrc => self.check_offered(Capabilities::XRC)?,
            _ => return Err(AdminStatus::Unsupported),
        }
        if command.log2_entries > self.config.log2_rq_entries || command.log2_stride > 3 {
            return Err(AdminStatus::Invalid);
        }
        self.check_page(command.page)?;
        if command.kind == RqKind::Xrc && !self.cqs.contains_key(&command.cqn) {
            return Err(AdminStatus::NotFound);
        }
        let log2_blocks = command.log2_entries.saturating_add(command.log2_stride);
        let window = queue(memory, command.ring, log2_blocks)?;
        let rqn = self.rq_numbers.draw(&mut self.random).ok_or(AdminStatus::NoResources)?;
        let rq = Rq::new(window, command);
        self.count_cq_of(&rq, true);
        self.rqs.insert(rqn, rq);
        self.doorbells.add(command.page, Queue { kind: QueueKind::Receive, number: rqn });
        Ok(Answer::number(rqn))
    }

    /// A shared receive queue of an XRC domain begins to use its completion queue, or ends to.
    fn count_cq_of(&mut self, rq: &Rq<M>, begins: bool) {
        let cqn = rq.xrc.as_ref().map(|queue| queue.cqn);
        if let Some(cq) = cqn.and_then(|cqn| self.cqs.get_mut(&cqn)) {
            let users = cq.users;
            cq.users = if begins { users.saturating_add(1) } else { users.saturating_sub(1) };
        }
    }

    /// Sets the limit of a shared receive queue; fewer entries than that are told of at once.
    fn modify_rq(&mut self, command: &ModifyRq) -> Result<Answer, AdminStatus> {
        if self.config.capabilities.intersection(Capabilities::SRQ | Capabilities::XRC).is_empty() {
            return Err(AdminStatus::Unsupported);
        }
        let rq = self.rqs.get_mut(&command.rqn).ok_or(AdminStatus::NotFound)?;
        rq.set_limit(command.limit).ok_or(AdminStatus::Invalid)?;
        if rq.fell_below_limit() {
            self.below_limit.push(command.rqn);
        }
        Ok(Answer::none())
    }

    fn destroy_rq(&mut self, rqn: u32) -> Result<Answer, AdminStatus> {
        let rq = self.rqs.get(&rqn).ok_or(AdminStatus::NotFound)?;
        if !rq.is_unused() {
            return Err(AdminStatus::Busy);
        }
        self.doorbells.remove(rq.page, Queue { kind: QueueKind::Receive, number: rqn });
        if let Some(rq) = take(&mut self.rqs, rqn) {
            self.count_cq_of(&rq, false);
        }
        self.rq_numbers.free(rqn);
        Ok(Answer::none())
    }

    fn create_qp(
        &mut self,
        command: &CreateQp,
        memory: &M,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        self.check_offered(match command.kind {
            QpType::Rc => Capabilities::RC,
            QpType::Uc => Capabilities::UC,
            QpType::Ud => Capabilities::UD,
            QpType::Gsi => Capabilities::GSI,
            QpType::XrcSend | QpType::XrcReceive => Capabilities::XRC,
            _ => return Err(AdminStatus::Unsupported),
        })?;
        if command.log2_sq_blocks > self.config.log2_sq_blocks {
            return Err(AdminStatus::Invalid);
        }
        self.check_page(command.page)?;
        if command.kind == QpType::XrcReceive {
            let (qpn, generation) = self.create_target(command, transport)?;
            return Ok(Answer::number(qpn).generation(generation));
        }
        let is_sender = command.kind == QpType::XrcSend;
        let command = &match is_sender {
            // It receives nothing, so the fields are ignored.
            true => CreateQp { receive_cqn: command.send_cqn, rqn: 0, ..*command },
            false => *command,
        };
        let has_cq = |cqn| self.cqs.contains_key(cqn);
        if !has_cq(&command.send_cqn) || !has_cq(&command.receive_cqn) {
            return Err(AdminStatus::NotFound);
        }
        if !is_sender {
            let rq = self.rqs.get(&command.rqn).filter(|rq| rq.xrc.is_none());
            if !rq.ok_or(AdminStatus::NotFound)?.takes_users() {
                return Err(AdminStatus::Busy);
            }
        }
        let window = queue(memory, command.sq_ring, command.log2_sq_blocks)?;
        let qpn = match transport.name_qp(command.kind) {
            Some(named) => named?,
            None => self.qp_number(command.kind)?,
        };
        if let Err(status) = transport.create_qp(qpn, command) {
            self.qp_numbers.free(qpn);
            return Err(status);
        }
        let generation = self.random.next_u32() as u8;
        let generation = self.doorbells.fresh_generation(command.page, qpn, generation);
        self.attach(command, qpn);
        if command.kind.is_datagram() {
            self.ahs.join(command.pdn, qpn);
        }
        self.qps.insert(qpn, new_qp(command, qpn, generation, window));
        self.doorbells.add(command.page, Queue { kind: QueueKind::Send, number: qpn });
        Ok(Answer::number(qpn).generation(generation))
    }

    /// The number of a QP that is made.
    fn qp_number(&mut self, kind: QpType) -> Result<u32, AdminStatus> {
        let number = match kind {
            QpType::Gsi => (!self.qps.contains_key(&GSI_QPN)).then_some(GSI_QPN),
            _ => self.qp_numbers.draw(&mut self.random),
        };
        number.ok_or(AdminStatus::NoResources)
    }

    fn attach(&mut self, command: &CreateQp, qpn: u32) {
        for cqn in [command.send_cqn, command.receive_cqn] {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.users = cq.users.saturating_add(1);
            }
        }
        if let Some(rq) = self.rqs.get_mut(&command.rqn) {
            rq.attach(qpn);
        }
    }

    fn destroy_qp(
        &mut self,
        now: u64,
        qpn: u32,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        if self.targets.contains_key(&qpn) {
            return self.destroy_target(qpn, transport).map(|()| Answer::none());
        }
        self.give_up_taken(now, qpn);
        let qp = self.qps.get_mut(&qpn).ok_or(AdminStatus::NotFound)?;
        qp.state = QpState::Reset;
        transport.destroy_qp(qpn);
        self.let_handles_go(qpn, transport);
        let mut qp = take(&mut self.qps, qpn).ok_or(AdminStatus::NotFound)?;
        qp.under_way.reset(self.shares.of(qp.page));
        self.flushing.remove(&qpn);
        if qp.kind.is_datagram() {
            self.ahs.leave(qp.pdn, qpn);
        }
        self.doorbells.remove(qp.page, Queue { kind: QueueKind::Send, number: qpn });
        for cqn in [qp.send_cqn, qp.receive_cqn] {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        if let Some(rq) = self.rqs.get_mut(&qp.rqn) {
            rq.detach();
        }
        self.qp_numbers.free(qpn);
        Ok(Answer::none())
    }

    fn modify_qp(
        &mut self,
        now: u64,
        qpn: u32,
        attributes: &Attributes,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        if self.targets.contains_key(&qpn) {
            let generation = self.modify_target(now, qpn, attributes, transport)?;
            return Ok(Answer::none().generation(generation));
        }
        let qp = self.qps.get(&qpn).ok_or(AdminStatus::NotFound)?;
        let mask = attributes.mask;
        let from = qp.state;
        let to = transition::check(qp.kind, from, attributes, self.config.capabilities)?;
        self.check_ranges(attributes)?;
        let has_qkey = mask.contains(AttributeMask::QKEY);
        if qp.kind == QpType::Gsi && has_qkey && attributes.qkey != GSI_QKEY {
            return Err(AdminStatus::Invalid);
        }
        transport.modify_qp(now, qpn, &Attributes { state: to, ..*attributes })?;
        if to == QpState::Reset {
            self.give_up_taken(now, qpn);
        }
        let Some(qp) = self.qps.get_mut(&qpn) else { return Err(AdminStatus::NotFound) };
        qp.state = to;
        // The first flush notes a QP that goes to ERR.
        if to != QpState::Err {
            self.flushing.remove(&qpn);
        }
        if from != to && to == QpState::Sqd {
            let asked = mask.contains(AttributeMask::EN_SQD_ASYNC_NOTIFY);
            qp.tells_drained = asked && attributes.sqd_notify == 1;
        }
        if mask.contains(AttributeMask::ACCESS) {
            qp.access = Access::from_bits_truncate(attributes.access);
        }
        if to == QpState::Reset {
            qp.reset(self.shares.of(qp.page));
            qp.generation = self.doorbells.fresh_generation(qp.page, qpn, qp.generation);
            if let Some(rq) = self.rqs.get_mut(&qp.rqn) {
                rq.reset();
            }
        }
        let generation = qp.generation;
        self.let_handles_go(qpn, transport);
        self.look_at(qpn);
        Ok(Answer::none().generation(generation))
    }

    pub(crate) fn check_ranges(&self, a: &Attributes) -> Result<(), AdminStatus> {
        use AttributeMask as M;
        let sound = [
            (M::PKEY_INDEX, a.pkey_index == 0),
            (M::PORT, a.port == 1),
            (M::ACCESS, Access::from_bits(a.access).is_some()),
            (M::AV, self.is_address(a.sgid_index, a.dgid, a.flow_label, a.sl)),
            (M::AV, self.is_static_rate(a.static_rate)),
            (M::PATH_MTU, (1..=5).contains(&a.path_mtu)),
            (M::TIMEOUT, a.timeout < 32),
            (M::RETRY_COUNT, a.retry_count < 8),
            (M::RNR_RETRY, a.rnr_retry < 8),
            (M::RQ_PSN, a.rq_psn < 1 << 24),
            (M::SQ_PSN, a.sq_psn < 1 << 24),
            (M::DEST_QPN, a.dest_qpn < 1 << 24),
            (M::MIN_RNR_TIMER, a.min_rnr_timer < 32),
            (M::MAX_RD_ATOMIC, a.max_rd_atomic <= self.config.max_rd_atomic),
            (M::MAX_DEST_RD_ATOMIC, a.max_dest_rd_atomic <= self.config.max_rd_atomic),
            (M::RATE_LIMIT, self.is_rate(a)),
        ];
        let all = sound.iter().all(|(bit, sound)| *sound || !a.mask.contains(*bit));
        if all { Ok(()) } else { Err(AdminStatus::Invalid) }
    }

    /// Whether a path can have a rate. Where none is kept to, none is looked at.
    fn is_static_rate(&self, code: u8) -> bool {
        let is_offered = self.config.capabilities.contains(Capabilities::RATE_LIMIT);
        !is_offered || static_rate_megabits(code).is_some()
    }

    /// Whether a queue pair can be held to a rate.
    fn is_rate(&self, a: &Attributes) -> bool {
        let LimitRate { min, max } = self.config.rates;
        let is_free = (a.rate_limit, a.max_burst, a.typical_packet) == (0, 0, 0);
        let has_room = a.max_burst == 0 || u32::from(a.typical_packet) <= a.max_burst;
        is_free || (min..=max).contains(&a.rate_limit) && has_room
    }

    fn query_qp(&self, qpn: u32, transport: &impl Transport) -> Result<Answer, AdminStatus> {
        let own = self.qps.get(&qpn).map(|qp| (qp.state, qp.access));
        let own = own.or_else(|| self.query_target(qpn));
        let (state, access) = own.ok_or(AdminStatus::NotFound)?;
        let attributes = transport.query_qp(qpn).ok_or(AdminStatus::NotFound)?;
        let attributes = Attributes {
            mask: AttributeMask::empty(),
            state,
            current_state: state,
            access: access.bits(),
            ..attributes
        };
        Ok(Answer::blocks(attributes.encode().to_vec()))
    }

    fn create_ah(
        &mut self,
        now: u64,
        command: &CreateAh,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        self.check_offered(Capabilities::UD)?;
        self.check_page(command.page)?;
        let CreateAh { sgid_index, dgid, flow_label, sl, .. } = *command;
        let is_rate = self.is_static_rate(command.static_rate);
        if !self.is_address(sgid_index, dgid, flow_label, sl) || !is_rate {
            return Err(AdminStatus::Invalid);
        }
        let ah = self.ahs.create(&mut self.random, command.pdn).ok_or(AdminStatus::NoResources)?;
        if let Err(status) = transport.create_ah(now, ah, command) {
            self.ahs.forget(ah);
            return Err(status);
        }
        Ok(Answer::number(ah))
    }

    fn destroy_ah(
        &mut self,
        ah: u32,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        self.check_offered(Capabilities::UD)?;
        if self.ahs.end(ah)? {
            self.ahs.forget(ah);
            transport.destroy_ah(ah);
        }
        Ok(Answer::none())
    }

    fn query_ah(&self, ah: u32, transport: &impl Transport) -> Result<Answer, AdminStatus> {
        self.check_offered(Capabilities::UD)?;
        if !self.ahs.has(ah) {
            return Err(AdminStatus::NotFound);
        }
        transport.query_ah(ah).map(|is_known| Answer::number(is_known.into()))
    }

    /// Takes a QP into a multicast group, or out of it.
    fn set_member(
        &mut self,
        now: u64,
        command: &Membership,
        member: bool,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        self.check_offered(Capabilities::MULTICAST)?;
        let Membership { qpn, group } = *command;
        let qp = self.qps.get(&qpn).ok_or(AdminStatus::NotFound)?;
        if qp.kind != QpType::Ud {
            return Err(AdminStatus::Invalid);
        }
        transport.set_member(now, qpn, group, member).map(|()| Answer::none())
    }

    /// Whether an address vector can be one.
    fn is_address(&self, sgid_index: u8, dgid: [u8; 16], flow_label: u32, sl: u8) -> bool {
        let gid = self.gids.get(usize::from(sgid_index)).copied().flatten();
        gid.is_some() && dgid != [0; 16] && flow_label < 1 << 20 && sl < 16
    }

    fn set_gid(
        &mut self,
        command: &SetGid,
        transport: &mut impl Transport,
    ) -> Result<Answer, AdminStatus> {
        let SetGid { index, valid, vlan, gid } = *command;
        let entry = self.gids.get_mut(usize::from(index)).ok_or(AdminStatus::Invalid)?;
        let is_valid = valid == 1;
        if is_valid && vlan > MAX_VLAN {
            return Err(AdminStatus::Invalid);
        }
        transport.set_gid(index, is_valid.then_some(LocalGid { gid, vlan }))?;
        *entry = is_valid.then_some(gid);
        Ok(Answer::none())
    }

    fn check_offered(&self, capabilities: Capabilities) -> Result<(), AdminStatus> {
        let offered = self.config.capabilities.contains(capabilities);
        if offered { Ok(()) } else { Err(AdminStatus::Unsupported) }
    }

    fn check_page(&self, page: u8) -> Result<(), AdminStatus> {
        if self.doorbells.is_open(page) { Ok(()) } else { Err(AdminStatus::Invalid) }
    }
}

fn new_qp<M: Rings>(command: &CreateQp, qpn: u32, generation: u8, memory: QueueMemory<M>) -> Qp<M> {
    Qp {
        qpn,
        kind: command.kind,
        generation,
        pdn: command.pdn,
        page: command.page,
        send_cqn: command.send_cqn,
        receive_cqn: command.receive_cqn,
        rqn: command.rqn,
        state: QpState::Reset,
        access: Access::empty(),
        tells_drained: false,
        reached_last: false,
        failing: None,
        sq: SendRing {
            memory,
            entries: command.sq_ring.wrapping_add(BLOCK_BYTES as u64),
            log2_blocks: command.log2_sq_blocks,
            fetch: 0,
            producer: 0,
            stopped: false,
        },
        under_way: UnderWay::default(),
        receives: Default::default(),
        next_receive: 0,
        held: Default::default(),
        queued: false,
        starved: false,
    }
}

/// The memory of a queue: its record, then 2^`log2_blocks` blocks.
fn queue<M: Rings>(memory: &M, iova: u64, log2_blocks: u8) -> Result<QueueMemory<M>, AdminStatus> {
    if !is_aligned(iova) {
        return Err(AdminStatus::Invalid);
    }
    QueueMemory::open(memory, iova, log2_blocks).ok_or(AdminStatus::BadAddress)
}

/// Blocks a command takes at least.
const fn blocks_of(opcode: Opcode) -> usize {
    match opcode {
        Opcode::ModifyQp => ModifyQp::BLOCKS + Attributes::BLOCKS,
        Opcode::CreateAh => CreateAh::BLOCKS,
        _ => 1,
    }
}

/// Writes an answer, if there is one, to the response buffer.
fn respond(iova: u64, response: &[Block], memory: &impl Rings) -> Result<(), AdminStatus> {
    if response.is_empty() {
        return Ok(());
    }
    if iova == 0 || !is_aligned(iova) {
        return Err(AdminStatus::Invalid);
    }
    let addresses = (iova..=u64::MAX).step_by(BLOCK_BYTES);
    for (address, block) in addresses.zip(response) {
        memory.ring(address, 0).ok_or(AdminStatus::BadAddress)?.write(0, block);
    }
    Ok(())
}
