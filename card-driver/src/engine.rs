//! The engine as balboad sees it: create, modify, query, destroy, keys, events, grants.
//!
//! Implemented by [`crate::admin::AdminEngine`] over the admin queue and event ring of a window: a
//! `vqe` card's own, or of the engine that balboad hosts for a `stock` one ([`crate::hosted`]).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fpga_regs::engine::admin::{
    AllocDm, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq, Membership, ModerateCq,
    ModifyKey, PortAttributes, ResizeCq,
};
use fpga_regs::engine::event::Event;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::window::{
    self, Capabilities, LimitDm, LimitEvents, LimitKeyRq, LimitMulticast, LimitNumbers, LimitPort,
    LimitQpCq, LimitQueues, LimitRate,
};

use crate::backend::DoorbellGrant;
use crate::error::Error;
use crate::gsi::Gsi;
use crate::relay::ClientRings;

/// Event rings that an engine is given at most. All are read by one thread, which is why there are not more.
pub const MOST_EVENT_RINGS: u8 = 4;

/// The receiver of an engine's events about its objects, called by any thread.
pub type Hear = Arc<dyn Fn(Event) + Send + Sync>;

/// One engine: the owner of its objects' numbers.
///
/// Commands are answered before they return, within a limit of seconds; an engine that does not
/// answer is dead from then on ([`Error::Dead`]), and every later command fails at once.
pub trait Engine {
    /// The engine's name, for messages: `balboa0 window 2`.
    fn name(&self) -> &str;
    /// Its limits.
    fn limits(&self) -> &EngineLimits;
    /// Why it is dead; `None` while it lives.
    fn death(&self) -> Option<&str>;

    /// Makes a completion queue and returns its number.
    fn create_cq(&mut self, command: &CreateCq) -> Result<u32, Error>;
    /// Moves a completion queue to another ring, and returns the index behind the last entry of the old
    /// one, which nothing reads or writes any more. One that is refused stays as it is.
    fn resize_cq(&mut self, command: &ResizeCq) -> Result<u32, Error>;
    /// Says how many completions an event of a completion queue is of, and how long it waits for them.
    fn moderate_cq(&mut self, command: &ModerateCq) -> Result<(), Error>;
    /// Ends a completion queue; none of its events is told afterwards.
    fn destroy_cq(&mut self, cqn: u32) -> Result<(), Error>;
    /// Makes a receive queue and returns its number.
    fn create_rq(&mut self, command: &CreateRq) -> Result<u32, Error>;
    /// Sets below how many entries of a shared receive queue an event is raised, once; 0 for none. Its
    /// events of before have been told.
    fn modify_rq(&mut self, rqn: u32, limit: u32) -> Result<(), Error>;
    /// Ends a receive queue; none of its events is told afterwards.
    fn destroy_rq(&mut self, rqn: u32) -> Result<(), Error>;
    /// Makes a QP in RESET and returns its number and generation.
    fn create_qp(&mut self, command: &CreateQp) -> Result<(u32, u8), Error>;
    /// Changes a QP and returns its generation; its events of before have been told.
    fn modify_qp(&mut self, qpn: u32, attributes: &Attributes) -> Result<u8, Error>;
    /// A QP's attributes and its state.
    fn query_qp(&mut self, qpn: u32) -> Result<Attributes, Error>;
    /// Ends a QP once no completion and no DMA of it can follow; none of its events is told
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::Unconfirmed`] where something may be out, and the engine lives: the QP stays, and so do its number and its
    /// rings.
    fn destroy_qp(&mut self, qpn: u32) -> Result<(), Error>;
    /// Makes a key for mapped memory.
    fn create_key(&mut self, command: &CreateKey) -> Result<u32, Error>;
    /// Gives a key other memory, another domain and other rights, once no DMA under the former ones can follow. One
    /// that is refused stays as it is.
    fn modify_key(&mut self, command: &ModifyKey) -> Result<(), Error>;
    /// Ends a key once no DMA under it can follow.
    fn destroy_key(&mut self, key: u32) -> Result<(), Error>;
    /// Gives out a part of the card's own memory, zeroed, and returns its number.
    fn alloc_dm(&mut self, command: &AllocDm) -> Result<u32, Error>;
    /// Takes back a part of the card's own memory that no key names.
    fn free_dm(&mut self, dm: u32) -> Result<(), Error>;
    /// Copies bytes between the host and the card's own memory.
    fn copy_dm(&mut self, command: &CopyDm) -> Result<(), Error>;
    /// Makes an address handle and returns its number.
    fn create_ah(&mut self, command: &CreateAh) -> Result<u32, Error>;
    /// Whether the MAC address that an address handle leads to is known.
    fn query_ah(&mut self, ah: u32) -> Result<bool, Error>;
    /// Ends an address handle.
    fn destroy_ah(&mut self, ah: u32) -> Result<(), Error>;
    /// Takes a QP into a multicast group.
    fn attach_multicast(&mut self, membership: &Membership) -> Result<(), Error>;
    /// Takes a QP out of a multicast group.
    fn detach_multicast(&mut self, membership: &Membership) -> Result<(), Error>;
    /// Writes an entry of the GID table, in a VLAN or, with 0, in none; `None` empties it.
    fn set_gid(&mut self, index: u8, gid: Option<[u8; 16]>, vlan: u16) -> Result<(), Error>;
    /// Takes the card's port off its cable, or puts it back; every engine of the card tells of it.
    fn set_link(&mut self, up: bool) -> Result<(), Error>;
    /// The port, now.
    fn query_port(&mut self) -> Result<PortAttributes, Error>;
    /// The clock of every timestamp, now, in nanoseconds.
    fn query_clock(&mut self) -> Result<u64, Error>;
    /// The counters, in the order of `fpga_regs::engine::admin::COUNTERS`.
    fn query_counters(&mut self) -> Result<Vec<u64>, Error>;
    /// What it counts of its own, by name; without what it does not count, or has not seen.
    fn own_counters(&mut self) -> Vec<(&'static str, u64)>;

    /// Grants a client with that ring memory the doorbell page of its number, or, above
    /// [`window::DOORBELL_PAGES`], a page of memory for which the driver rings by [`window::RELAY_PAGE`].
    fn grant(&mut self, client: u8, rings: ClientRings) -> Result<DoorbellGrant, Error>;
    /// Takes a client's page back.
    fn revoke(&mut self, client: u8);

    /// Opens queue pair 1, or answers with the one that is open. It stays open when the engine starts anew, and
    /// ends with it.
    ///
    /// # Errors
    /// [`Error::Refused`] as unsupported where the engine does not offer [`Capabilities::GSI`]; the engine's.
    fn open_gsi(&mut self) -> Result<Arc<Gsi>, Error>;
    /// Closes queue pair 1; datagrams that still arrive are lost.
    fn close_gsi(&mut self);

    /// Tells `hear` of the events of objects, where they are found.
    fn listen(&mut self, hear: Hear);
    /// A descriptor that is readable when the engine has news; [`Self::service`] makes it quiet.
    fn news(&self) -> BorrowedFd<'_>;
    /// Takes the engine's news, for [`Self::next_event`], and runs the commands that queue pair 1 waits for.
    fn service(&mut self);
    /// The next event of the engine itself.
    fn next_event(&mut self) -> Option<EngineEvent>;

    /// Looks whether it still runs; [`Self::death`] tells.
    fn check(&mut self);
    /// Gives it up: it is dead from now on.
    fn abandon(&mut self, why: &str);
    /// Waits until the engine that was given up is reset: from then on it reaches for no memory.
    ///
    /// # Errors
    /// [`Error::Dead`] where it does not come to that.
    fn await_reset(&mut self) -> Result<(), Error>;

    /// Stops the engine, forgets every object of it and starts it anew.
    fn restart(&mut self) -> Result<(), Error>;
}

/// An event of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// Events of these rings were lost, bit n for ring n: every completion queue that is told of there may have
    /// fired, and with the first ring every QP may have failed.
    Lost {
        /// The rings.
        rings: u8,
    },
    /// The engine is dead, see [`Engine::death`].
    Dead,
}

/// The features and limits of an engine, as its window reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLimits {
    /// Operations and transports.
    pub capabilities: Capabilities,
    /// QPs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Keys.
    pub keys: u32,
    /// Receive queues.
    pub rqs: u32,
    /// log2 of the largest CQ.
    pub log2_cq_entries: u8,
    /// log2 of the largest send ring, in blocks.
    pub log2_sq_blocks: u8,
    /// log2 of the largest receive ring, in entries.
    pub log2_rq_entries: u8,
    /// SGEs of an entry.
    pub max_sge: u8,
    /// Inline bytes of an entry.
    pub max_inline: u16,
    /// READs a QP answers at a time.
    pub max_rd_atomic: u8,
    /// READs a QP has under way at a time.
    pub max_init_rd_atomic: u8,
    /// Bytes of the largest message.
    pub max_message: u32,
    /// GID table entries.
    pub gids: u8,
    /// P_Key table entries.
    pub pkeys: u8,
    /// Address handles.
    pub ahs: u16,
    /// Multicast groups, and QPs in one of them.
    pub groups: u16,
    /// See [`Self::groups`].
    pub qps_per_group: u16,
    /// Bytes of the card's own memory, and of the largest part.
    pub dm_bytes: u32,
    /// See [`Self::dm_bytes`].
    pub largest_dm: u32,
    /// Event rings that the driver lays, and so completion vectors: from 1 to [`MOST_EVENT_RINGS`].
    pub event_rings: u8,
    /// The lowest rate that a QP can be held to, in kb/s; 0 where it cannot.
    pub least_rate: u32,
    /// The highest, which is the port's.
    pub most_rate: u32,
    /// Bits of a QPN below the vFPGA's number, and those of them that nobody can guess; 0 where the engine does not say.
    pub qpn_bits: u8,
    /// See [`Self::qpn_bits`].
    pub qpn_random: u8,
}

impl EngineLimits {
    /// Decodes the window's capability words; `read` reads the register at an offset of the window.
    pub fn read(read: impl Fn(u64) -> u64) -> Self {
        let LimitQpCq { qps, cqs } = LimitQpCq::decode(read(window::LIMIT_QP_CQ));
        let LimitKeyRq { keys, rqs } = LimitKeyRq::decode(read(window::LIMIT_KEY_RQ));
        let queues = LimitQueues::decode(read(window::LIMIT_QUEUES));
        let port = LimitPort::decode(read(window::LIMIT_PORT));
        let dm = LimitDm::decode(read(window::LIMIT_DM));
        let events = LimitEvents::decode(read(window::LIMIT_EVENTS));
        let multicast = LimitMulticast::decode(read(window::LIMIT_MULTICAST));
        let rate = LimitRate::decode(read(window::LIMIT_RATE));
        let LimitNumbers { qpn_bits, qpn_random } =
            LimitNumbers::decode(read(window::LIMIT_NUMBERS));
        Self {
            capabilities: Capabilities::from_bits_retain(read(window::CAPABILITIES)),
            qps,
            cqs,
            keys,
            rqs,
            log2_cq_entries: queues.log2_cq_entries,
            log2_sq_blocks: queues.log2_sq_blocks,
            log2_rq_entries: queues.log2_rq_entries,
            max_sge: queues.max_sge,
            max_inline: queues.max_inline,
            max_rd_atomic: queues.max_reads_answered,
            max_init_rd_atomic: queues.max_reads_under_way,
            max_message: port.max_message,
            gids: port.gids,
            pkeys: port.pkeys,
            ahs: port.ahs,
            groups: multicast.groups,
            qps_per_group: multicast.qps_per_group,
            dm_bytes: dm.bytes,
            largest_dm: dm.largest,
            event_rings: events.rings.clamp(1, MOST_EVENT_RINGS),
            least_rate: rate.min,
            most_rate: rate.max,
            qpn_bits,
            qpn_random,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_words_decode_as_the_window_lays_them_out() {
        let limits = EngineLimits::read(|offset| match offset {
            window::CAPABILITIES => Capabilities::RC.bits(),
            window::LIMIT_QP_CQ => 1024 | 2048 << 32,
            window::LIMIT_KEY_RQ => 4096 | 512 << 32,
            window::LIMIT_QUEUES => {
                22 | 15 << 8 | 14 << 16 | 16 << 24 | 288 << 32 | 8 << 48 | 9 << 56
            }
            window::LIMIT_PORT => 1 << 30 | 16 << 32 | 1 << 40 | 300 << 48,
            window::LIMIT_DM => 4096 | 1024 << 32,
            window::LIMIT_MULTICAST => 100 | 20 << 16,
            window::LIMIT_EVENTS => 3,
            window::LIMIT_RATE => 1_000 | 25_000_000 << 32,
            window::LIMIT_NUMBERS => 20 | 13 << 8,
            _ => u64::MAX,
        });
        let wanted = EngineLimits {
            capabilities: Capabilities::RC,
            qps: 1024,
            cqs: 2048,
            keys: 4096,
            rqs: 512,
            log2_cq_entries: 22,
            log2_sq_blocks: 15,
            log2_rq_entries: 14,
            max_sge: 16,
            max_inline: 288,
            max_rd_atomic: 8,
            max_init_rd_atomic: 9,
            max_message: 1 << 30,
            gids: 16,
            pkeys: 1,
            ahs: 300,
            groups: 100,
            qps_per_group: 20,
            dm_bytes: 4096,
            largest_dm: 1024,
            event_rings: 3,
            least_rate: 1_000,
            most_rate: 25_000_000,
            qpn_bits: 20,
            qpn_random: 13,
        };
        assert_eq!(limits, wanted);
    }

    #[test]
    fn an_engine_that_does_not_know_of_event_rings_has_one_and_one_of_many_gets_as_many_as_are_laid()
     {
        for (told, laid) in [(0, 1), (1, 1), (4, 4), (5, MOST_EVENT_RINGS), (255, MOST_EVENT_RINGS)]
        {
            let read = |offset| if offset == window::LIMIT_EVENTS { told } else { 0 };
            assert_eq!(EngineLimits::read(read).event_rings, laid);
        }
    }
}
