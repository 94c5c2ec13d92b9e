//! Page 0 of the engine's window.

use fpga_regs::engine::window as w;

use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::memory::Rings;
use crate::numbers::Random;
use crate::transport::Transport;

/// What the driver wrote where the admin and event rings are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueRegisters {
    pub(crate) admin_sq_base: u64,
    pub(crate) admin_sq_size: u64,
    pub(crate) admin_cq_base: u64,
    pub(crate) admin_cq_size: u64,
    pub(crate) event_base: u64,
    pub(crate) event_size: u64,
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Reads the 64-bit register at `offset` of the window; no read has a side effect.
    ///
    /// Unknown and write-only registers read 0.
    #[must_use]
    pub fn read_register(&self, now: u64, offset: u64) -> u64 {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let config = &self.config;
        match offset {
            w::MAGIC => w::MAGIC_VALUE,
            w::VERSION => {
                u64::from(w::VERSION_MINOR)
                    | u64::from(w::VERSION_MAJOR) << 16
                    | u64::from(config.profile.0) << 32
            }
            w::CAPABILITIES => config.capabilities.bits(),
            w::LIMIT_QP_CQ => pair(config.qps, config.cqs),
            w::LIMIT_KEY_RQ => pair(config.keys, config.rqs),
            w::LIMIT_QUEUES => {
                u64::from(config.log2_cq_entries)
                    | u64::from(config.log2_sq_blocks) << 8
                    | u64::from(config.log2_rq_entries) << 16
                    | (fpga_regs::engine::wqe::MAX_SGE as u64) << 24
                    | (fpga_regs::engine::wqe::MAX_INLINE as u64) << 32
                    | u64::from(config.max_rd_atomic) << 48
                    | u64::from(config.max_rd_atomic) << 56
            }
            w::LIMIT_PORT => {
                u64::from(config.max_message) | (self.gids.len() as u64) << 32 | 1 << 40
            }
            w::STATUS => {
                let enabled = if self.enabled { w::STATUS_ENABLED } else { 0 };
                let overflow = if self.events.overflow { w::STATUS_EVENT_OVERFLOW } else { 0 };
                enabled | overflow
            }
            w::TIMESTAMP => now,
            w::ADMIN_SQ_BASE => self.registers.admin_sq_base,
            w::ADMIN_SQ_SIZE => self.registers.admin_sq_size,
            w::ADMIN_CQ_BASE => self.registers.admin_cq_base,
            w::ADMIN_CQ_SIZE => self.registers.admin_cq_size,
            w::EVENT_BASE => self.registers.event_base,
            w::EVENT_SIZE => self.registers.event_size,
            _ => 0,
        }
    }

    /// Writes the 64-bit register at `offset` of the window; unknown ones are ignored.
    pub fn write_register(
        &mut self,
        now: u64,
        offset: u64,
        value: u64,
        memory: &M,
        transport: &mut impl Transport,
    ) {
        match offset {
            w::ADMIN_SQ_BASE => self.registers.admin_sq_base = value,
            w::ADMIN_SQ_SIZE => self.registers.admin_sq_size = value,
            w::ADMIN_CQ_BASE => self.registers.admin_cq_base = value,
            w::ADMIN_CQ_SIZE => self.registers.admin_cq_size = value,
            w::EVENT_BASE => self.registers.event_base = value,
            w::EVENT_SIZE => self.registers.event_size = value,
            w::EVENT_CONSUMER => self.events.consumer = value as u32,
            w::EVENT_OVERFLOW_CLEAR => self.events.overflow = false,
            w::CONTROL if value & w::CONTROL_RESET != 0 => self.stop(transport),
            w::CONTROL if value & w::CONTROL_ENABLE != 0 => self.enable(memory),
            w::ADMIN_DOORBELL if self.enabled => {
                self.execute_admin(now, value as u32, memory, transport);
            }
            _ => {}
        }
    }
}
