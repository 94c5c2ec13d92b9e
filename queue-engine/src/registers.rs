//! Page 0 of the engine's window.

use fpga_regs::engine::window as w;
use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE};

use crate::device_memory;
use crate::doorbells::DoorbellPage;
use crate::engine::{Engine, QPN_RANDOM_BITS};
use crate::memory::Rings;
use crate::numbers::Random;
use crate::transport::Transport;

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Reads the 64-bit register at `offset` of the window; no read has a side effect.
    ///
    /// Unknown and write-only registers read 0.
    #[must_use]
    pub fn read_register(&self, now: u64, offset: u64) -> u64 {
        let config = &self.config;
        match offset {
            w::MAGIC => w::MAGIC_VALUE,
            w::VERSION => {
                let (minor, major) = (w::VERSION_MINOR, w::VERSION_MAJOR);
                w::Version { minor, major, profile: config.profile }.encode()
            }
            w::CAPABILITIES => config.capabilities.bits(),
            w::LIMIT_QP_CQ => w::LimitQpCq { qps: config.qps, cqs: config.cqs }.encode(),
            w::LIMIT_KEY_RQ => w::LimitKeyRq { keys: config.keys, rqs: config.rqs }.encode(),
            w::LIMIT_QUEUES => w::LimitQueues {
                log2_cq_entries: config.log2_cq_entries,
                log2_sq_blocks: config.log2_sq_blocks,
                log2_rq_entries: config.log2_rq_entries,
                max_sge: MAX_SGE as u8,
                max_inline: MAX_INLINE as u16,
                max_reads_answered: config.max_rd_atomic,
                max_reads_under_way: config.max_rd_atomic,
            }
            .encode(),
            w::LIMIT_PORT => w::LimitPort {
                max_message: config.max_message,
                gids: self.gids.len() as u8,
                pkeys: 1,
                ahs: config.ahs,
            }
            .encode(),
            w::LIMIT_DM => w::LimitDm {
                bytes: config.device_memory,
                largest: config.device_memory.min(device_memory::LARGEST),
            }
            .encode(),
            w::LIMIT_MULTICAST => {
                w::LimitMulticast { groups: config.groups, qps_per_group: config.qps_per_group }
                    .encode()
            }
            w::LIMIT_RATE => config.rates.encode(),
            w::LIMIT_EVENTS => w::LimitEvents { rings: config.event_rings }.encode(),
            // All bits are drawn from the generator, which needs no seed.
            w::LIMIT_NUMBERS => {
                let bits = QPN_RANDOM_BITS as u8;
                w::LimitNumbers { qpn_bits: bits, qpn_random: bits }.encode()
            }
            w::STATUS => w::Status {
                enabled: self.enabled,
                fatal: self.fatal != 0,
                fatal_code: self.fatal,
                ..w::Status::default()
            }
            .with_overflows(self.events.overflows())
            .encode(),
            w::TIMESTAMP => now,
            w::ADMIN_SQ_BASE => self.registers.admin_sq_base,
            w::ADMIN_SQ_SIZE => self.registers.admin_sq_size,
            w::ADMIN_CQ_BASE => self.registers.admin_cq_base,
            w::ADMIN_CQ_SIZE => self.registers.admin_cq_size,
            w::EVENT_BASE => self.registers.event_base,
            w::EVENT_SIZE => self.registers.event_size,
            w::EVENT_RINGS => self.registers.event_rings,
            w::EVENT_COMPLETIONS => self.registers.event_completions,
            _ => 0,
        }
    }

    /// Writes the 64-bit register at `offset` of the window; unknown ones are ignored.
    ///
    /// [`Engine::execute`], which must be called next, does the requested work beyond a reset.
    pub fn write_register(&mut self, offset: u64, value: u64, transport: &mut impl Transport) {
        match offset {
            w::ADMIN_SQ_BASE => self.registers.admin_sq_base = value,
            w::ADMIN_SQ_SIZE => self.registers.admin_sq_size = value,
            w::ADMIN_CQ_BASE => self.registers.admin_cq_base = value,
            w::ADMIN_CQ_SIZE => self.registers.admin_cq_size = value,
            w::EVENT_BASE => self.registers.event_base = value,
            w::EVENT_SIZE => self.registers.event_size = value,
            w::EVENT_RINGS => self.registers.event_rings = value,
            w::EVENT_COMPLETIONS => self.registers.event_completions = value,
            w::EVENT_CONSUMER => {
                let w::EventConsumer { consumer, ring } = w::EventConsumer::decode(value);
                self.events.consumed(ring, consumer);
            }
            w::EVENT_OVERFLOW_CLEAR => {
                self.events.clear_overflow(w::EventOverflowClear::decode(value).ring);
            }
            w::CONTROL if value & w::CONTROL_RESET != 0 => self.stop(transport),
            w::CONTROL if value & w::CONTROL_ENABLE != 0 => self.enable(),
            w::ADMIN_DOORBELL if self.enabled => self.admin_rung = Some(value as u32),
            _ => {}
        }
    }
}
