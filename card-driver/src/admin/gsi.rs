//! The part of an engine's queue pair 1 that takes commands.

use std::sync::Arc;

use fpga_regs::engine::admin::{
    AdminStatus, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq, KeyKind, Opcode, RqKind,
};
use fpga_regs::engine::key;
use fpga_regs::engine::qp::{AttributeMask, Attributes, GSI_QKEY, GSI_QPN, QpState, QpType};
use fpga_regs::engine::window::{PAGE_BYTES, RELAY_PAGE};

use super::{AdminEngine, Engine, Error, user_csr};
use crate::address::gid_text;
use crate::gsi::{
    BUFFERS_AT, DriverBell, Gsi, GsiAddress, MEMORY_BYTES, Names, RECEIVE_CQ_AT, RQ_AT, SEND_CQ_AT,
    SQ_AT, Sizes, Task,
};

/// The protection domain of all that it has: clients' have 24 bits.
const DOMAIN: u32 = u32::MAX;
/// Address handles that are made or ended in one go: others are served between.
const TURN: usize = 16;

/// An open queue pair 1.
pub(super) struct OpenGsi {
    pub(super) gsi: Arc<Gsi>,
    objects: Objects,
}

/// The engine's objects for it.
#[derive(Default)]
struct Objects {
    send_cqn: Option<u32>,
    receive_cqn: Option<u32>,
    rqn: Option<u32>,
    key: Option<u32>,
    qpn: Option<u32>,
}

impl AdminEngine {
    /// Opens queue pair 1, by the driver's own doorbell page.
    pub(super) fn make_gsi(&mut self) -> Result<Arc<Gsi>, Error> {
        let Some((memory, iova)) = &self.gsi_memory else {
            let detail = "; it has no queue pair 1 to give".into();
            let (opcode, status) = (Opcode::CreateQp, AdminStatus::Unsupported);
            return Err(Error::Refused { engine: self.name.clone(), opcode, status, detail });
        };
        let memory = (Arc::clone(memory), *iova);
        let gsi = Arc::new(Gsi::new(&self.name, memory, self.events.caller()?)?);
        gsi.set_gids(self.gids.clone(), None);
        self.own_page()?;
        self.gsi = Some(OpenGsi { gsi: Arc::clone(&gsi), objects: Objects::default() });
        match self.begin_gsi() {
            Ok(()) => Ok(gsi),
            Err(error) => {
                self.unmake_gsi();
                Err(error)
            }
        }
    }

    /// Closes it.
    pub(super) fn unmake_gsi(&mut self) {
        if self.gsi.is_some() {
            self.end_gsi("its queue pair 1 was closed");
            self.gsi = None;
            self.release_own_page();
        }
    }

    /// Makes the queue pair, of which the engine has nothing.
    pub(super) fn begin_gsi(&mut self) -> Result<(), Error> {
        let Some(OpenGsi { gsi, .. }) = &self.gsi else { return Ok(()) };
        let gsi = Arc::clone(gsi);
        gsi.empty()?;
        let limits = self.limits;
        let sizes =
            Sizes::within(limits.log2_sq_blocks, limits.log2_rq_entries, limits.log2_cq_entries);
        let mut objects = Objects::default();
        let made = self.make_objects(&gsi, sizes, &mut objects);
        if let Some(open) = &mut self.gsi {
            open.objects = objects;
        }
        let names = made?;
        self.events.tell_arrivals(Some(&gsi));
        let page = u64::from(RELAY_PAGE).saturating_mul(PAGE_BYTES);
        let page = user_csr(self.window.into()).saturating_add(page);
        gsi.begin(DriverBell { backend: Arc::clone(self.backend()), page }, sizes, names)
    }

    fn make_objects(
        &mut self,
        gsi: &Gsi,
        sizes: Sizes,
        made: &mut Objects,
    ) -> Result<Names, Error> {
        let Sizes { log2_sends, log2_send_cq, log2_receives } = sizes;
        let (page, pdn) = (RELAY_PAGE, DOMAIN);
        let (ring, log2_entries) = (gsi.at(SEND_CQ_AT), log2_send_cq);
        let send_cqn = self.create_cq(&CreateCq { ring, log2_entries, page, vector: 0 })?;
        made.send_cqn = Some(send_cqn);
        let (ring, log2_entries) = (gsi.at(RECEIVE_CQ_AT), log2_receives);
        let receive_cqn = self.create_cq(&CreateCq { ring, log2_entries, page, vector: 0 })?;
        made.receive_cqn = Some(receive_cqn);
        let (ring, kind) = (gsi.at(RQ_AT), RqKind::Private);
        let queue = CreateRq { ring, log2_entries, page, kind, pdn, ..CreateRq::default() };
        let rqn = self.create_rq(&queue)?;
        made.rqn = Some(rqn);
        let (va, length) = (gsi.at(BUFFERS_AT), MEMORY_BYTES.saturating_sub(BUFFERS_AT));
        let (access, kind) = (key::Access::LOCAL_WRITE, KeyKind::Region);
        let region = CreateKey { va, length, iova: va, pdn, access, kind, ..CreateKey::default() };
        let key = self.create_key(&region)?;
        made.key = Some(key);
        let (sq_ring, log2_sq_blocks, kind) = (gsi.at(SQ_AT), log2_sends, QpType::Gsi);
        let queues = CreateQp { sq_ring, log2_sq_blocks, page, kind, pdn, ..CreateQp::default() };
        let (qpn, _) = self.create_qp(&CreateQp { send_cqn, receive_cqn, rqn, ..queues })?;
        made.qpn = Some(qpn);
        if qpn != GSI_QPN {
            let why = format!("{}: it made queue pair {qpn:#x} in the place of 1", self.name);
            return Err(Error::Backend(why));
        }
        let generation = self.bring_to_send()?;
        Ok(Names { receive_cqn, rqn, key, generation })
    }

    /// Takes queue pair 1 from RESET to where it sends; its generation.
    fn bring_to_send(&mut self) -> Result<u8, Error> {
        use AttributeMask as M;
        let steps = [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ];
        let mut generation = 0;
        for (state, mask) in steps {
            let (mask, port, qkey) = (mask | M::STATE, 1, GSI_QKEY);
            let change = Attributes { mask, state, port, qkey, ..Attributes::default() };
            generation = self.modify_qp(GSI_QPN, &change)?;
        }
        Ok(generation)
    }

    /// Ends the queue pair. An engine that does not do that is dead, or will be.
    fn end_gsi(&mut self, why: &str) {
        let Some(OpenGsi { gsi, objects }) = &mut self.gsi else { return };
        let Objects { send_cqn, receive_cqn, rqn, key, qpn } = std::mem::take(objects);
        let handles = gsi.end(why);
        self.events.tell_arrivals(None);
        let told = |done: Result<(), Error>| {
            if let Err(error) = done {
                log::debug!("queue pair 1 is not taken apart: {error}");
            }
        };
        qpn.into_iter().for_each(|qpn| told(self.destroy_qp(qpn)));
        rqn.into_iter().for_each(|rqn| told(self.destroy_rq(rqn)));
        let cqns = [send_cqn, receive_cqn];
        cqns.into_iter().flatten().for_each(|cqn| told(self.destroy_cq(cqn)));
        key.into_iter().for_each(|key| told(self.destroy_key(key)));
        handles.into_iter().for_each(|ah| told(self.destroy_ah(ah)));
    }

    /// Runs the commands that are due: makes the handles that datagrams wait for, some at a time, asks whether peers
    /// are found, ends unused handles, and begins anew where the card failed a send.
    pub(super) fn attend_gsi(&mut self) {
        let Some(OpenGsi { gsi, .. }) = &self.gsi else { return };
        let gsi = Arc::clone(gsi);
        if gsi.has_failed() {
            log::error!("{}: it failed a send of queue pair 1, which begins anew", self.name);
            self.end_gsi("it begins anew");
            if let Err(error) = self.begin_gsi() {
                log::error!("{}: queue pair 1 is closed: {error}", self.name);
                return self.unmake_gsi();
            }
        }
        for _ in 0..TURN {
            match gsi.next_task() {
                Task::End(ah) => {
                    if let Err(error) = self.destroy_ah(ah) {
                        log::debug!("a handle does not end: {error}");
                    }
                }
                Task::Make(address) => {
                    let made = self.create_ah(&create_ah(&address));
                    if let Err(error) = &made {
                        log::debug!("nothing goes to {}: {error}", gid_text(address.dgid));
                    }
                    gsi.settle(address, made.ok());
                }
                Task::Ask(address, ah) => {
                    let is_found = match self.query_ah(ah) {
                        Ok(is_found) => is_found,
                        // A card that cannot tell is sent to without.
                        Err(Error::Refused { status: AdminStatus::Unsupported, .. }) => true,
                        Err(error) => {
                            log::debug!("a handle's peer is not looked for: {error}");
                            false
                        }
                    };
                    gsi.answer(&address, ah, is_found);
                }
                Task::Drop(address) => gsi.settle(address, None),
                Task::Nothing => return,
            }
        }
        gsi.call();
    }
}

fn create_ah(address: &GsiAddress) -> CreateAh {
    let GsiAddress { sgid_index, dgid, hop_limit, traffic_class, flow_label, sl } = *address;
    let (pdn, page) = (DOMAIN, RELAY_PAGE);
    let static_rate = 0;
    CreateAh { pdn, sgid_index, hop_limit, traffic_class, sl, static_rate, page, flow_label, dgid }
}
