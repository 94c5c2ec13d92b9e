//! BAR decode: which register an access means.

use crate::WINDOWS;
use crate::card::{Card, Identity, Interrupts};
use crate::transport::RoceTransport;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::Map;
use fpga_regs::coyote::{shell, static_layer, vfpga, xdma};
use fpga_regs::engine::window;

/// Registers of the shell that only keep what was written.
#[derive(Debug)]
pub(crate) struct Registers {
    eost: u32,
    engine_control: [[u32; xdma::CHANNELS as usize]; 2],
    interrupt_enable: u32,
    vector_map: [u8; xdma::USER_INTERRUPTS as usize],
    /// For each window: its interrupt was raised and not cleared.
    pub(crate) pending: [bool; WINDOWS as usize],
}

impl Default for Registers {
    fn default() -> Self {
        Self {
            eost: static_layer::PR_EOST_DEFAULT,
            engine_control: Default::default(),
            interrupt_enable: 0,
            vector_map: Default::default(),
            pending: Default::default(),
        }
    }
}

/// The register map the software card has.
const MAP: Map = Map::Since2026;
const RDMA_CNFG: u64 = shell::RDMA_CNFG.at(MAP);

/// Where in BAR4 an access goes.
enum Target {
    Shell(u64),
    /// Page 0 of a window.
    Engine(usize, u64),
    /// A slot of a doorbell page.
    Doorbell(u8, u8, usize),
    Cnfg(usize, u64),
    Nowhere,
}

fn target(offset: u64) -> Target {
    let Some(inside) = offset.checked_sub(vfpga::CONTROL_WINDOW_BASE) else {
        return Target::Shell(offset);
    };
    let number = inside / vfpga::CONTROL_WINDOW_STRIDE;
    let within = inside % vfpga::CONTROL_WINDOW_STRIDE;
    let Ok(number) = u8::try_from(number) else { return Target::Nowhere };
    if number >= WINDOWS {
        return Target::Nowhere;
    }
    match (within.checked_sub(vfpga::USER_CSR_OFFSET), within.checked_sub(vfpga::CNFG_OFFSET)) {
        (_, Some(register)) => Target::Cnfg(usize::from(number), register),
        (Some(register), None) if register < window::PAGE_BYTES => {
            Target::Engine(usize::from(number), register)
        }
        (Some(register), None) => {
            let page = u8::try_from(register / window::PAGE_BYTES).unwrap_or(0);
            let slot = (register % window::PAGE_BYTES / 8) as usize;
            Target::Doorbell(number, page, slot)
        }
        (None, None) => Target::Nowhere,
    }
}

impl Registers {
    /// Signals the vector that the window's interrupt is routed to, unless it is pending or masked.
    pub(crate) fn raise(&mut self, window: usize, vectors: &dyn Interrupts) {
        let Some(pending) = self.pending.get_mut(window) else { return };
        if std::mem::replace(pending, true) {
            return;
        }
        self.signal(window, vectors);
    }

    fn signal(&self, window: usize, vectors: &dyn Interrupts) {
        let enabled = u32::try_from(window)
            .ok()
            .and_then(|window| 1u32.checked_shl(window))
            .is_some_and(|bit| self.interrupt_enable & bit != 0);
        let vector = self.vector_map.get(window).copied().map(usize::from);
        if let (true, Some(vector)) = (enabled, vector) {
            vectors.signal(vector);
        }
    }

    fn read_xdma(&self, offset: u64) -> u64 {
        for (direction, controls) in DIRECTIONS.into_iter().zip(&self.engine_control) {
            for (channel, control) in (0..xdma::CHANNELS).zip(controls) {
                let base = xdma::engine(direction, channel);
                match offset.checked_sub(base) {
                    Some(xdma::ENGINE_IDENTIFIER) => {
                        return u64::from(xdma::identifier(direction)) << 16 | channel << 8;
                    }
                    Some(xdma::ENGINE_CONTROL) => return u64::from(*control),
                    _ => {}
                }
            }
        }
        0
    }

    fn write_xdma(&mut self, offset: u64, value: u32, vectors: &dyn Interrupts) {
        for (direction, controls) in DIRECTIONS.into_iter().zip(&mut self.engine_control) {
            for (channel, control) in (0..xdma::CHANNELS).zip(controls) {
                if offset.checked_sub(xdma::engine(direction, channel))
                    == Some(xdma::ENGINE_CONTROL)
                {
                    *control = value;
                }
            }
        }
        if offset == xdma::USER_INTERRUPT_ENABLE_SET {
            self.interrupt_enable |= value;
            for window in 0..self.pending.len() {
                if self.pending.get(window) == Some(&true) {
                    self.signal(window, vectors);
                }
            }
        }
        if let Some(first) = offset.checked_sub(xdma::USER_VECTOR_MAP) {
            let places = self.vector_map.iter_mut().skip(first as usize).take(4);
            for (place, vector) in places.zip(value.to_le_bytes()) {
                *place = vector & 0x1f;
            }
        }
    }
}

const DIRECTIONS: [xdma::Direction; 2] = [xdma::Direction::HostToCard, xdma::Direction::CardToHost];

impl Card {
    /// Reads a register.
    pub(crate) fn read(&self, now: u64, bar: Bar, offset: u64) -> u64 {
        match bar {
            Bar::Static => match offset {
                static_layer::PROBE => u64::from(static_layer::PROBE_VALUE),
                static_layer::PR_EOST => u64::from(self.registers.eost),
                _ => 0,
            },
            Bar::Xdma => self.registers.read_xdma(offset),
            Bar::Shell => match target(offset) {
                Target::Shell(register) => self.read_shell(register),
                Target::Engine(window, register) => {
                    self.engines.get(window).map_or(0, |e| e.read_register(now, register))
                }
                Target::Cnfg(window, vfpga::ISR)
                    if self.registers.pending.get(window) == Some(&true) =>
                {
                    vfpga::ISR_KIND_NOTIFY << 16
                }
                Target::Doorbell(..) | Target::Cnfg(..) | Target::Nowhere => 0,
            },
        }
    }

    fn read_shell(&self, register: u64) -> u64 {
        let counters = self.stack.counters();
        let pair = |sent: u64, received: u64| sent << 32 | received & u64::from(u32::MAX);
        match register {
            shell::PROBE => u64::from(static_layer::PROBE_VALUE),
            shell::N_CHAN => xdma::CHANNELS,
            shell::N_REGIONS => u64::from(WINDOWS),
            shell::CTRL_CNFG => shell::CTRL_CNFG_DEFAULT.encode(),
            shell::MEM_CNFG | RDMA_CNFG => 1,
            shell::STAT_ROCE | shell::STAT_IBV => pair(counters.sent_pkts, counters.rcvd_pkts),
            shell::STAT_ARP => pair(counters.sent_arp_requests, counters.arp_replies),
            shell::STAT_RETRANSMISSIONS => {
                pair(counters.retransmitted_pkts, counters.out_of_sequence)
            }
            _ => 0,
        }
    }

    /// Writes a register.
    pub(crate) fn write(&mut self, now: u64, bar: Bar, offset: u64, value: u64) {
        match bar {
            Bar::Static => match offset {
                static_layer::PR_EOST => self.registers.eost = value as u32,
                static_layer::PR_EOST_RESET if value & 1 == 0 => self.reset(),
                _ => {}
            },
            Bar::Xdma => {
                self.registers.write_xdma(offset, value as u32, &*self.vectors);
            }
            Bar::Shell => match target(offset) {
                Target::Shell(register) => self.write_shell(register, value),
                Target::Engine(window, register) => {
                    self.write_engine(now, window, register, value);
                }
                Target::Doorbell(window, page, slot) => {
                    if let Some(Some(slots)) = self.page(window, page) {
                        slots.0.ring(slot, value);
                    }
                }
                Target::Cnfg(window, vfpga::ISR) if value & vfpga::ISR_CLEAR_PENDING != 0 => {
                    if let Some(pending) = self.registers.pending.get_mut(window) {
                        *pending = false;
                    }
                }
                Target::Cnfg(..) | Target::Nowhere => {}
            },
        }
    }

    fn write_shell(&mut self, register: u64, value: u64) {
        match register {
            shell::IP_ADDRESS => {
                self.set_identity(Identity { ipv4: value as u32, ..self.identity });
            }
            shell::MAC_ADDRESS => {
                let [_, _, mac @ ..] = value.to_be_bytes();
                self.set_identity(Identity { mac, ..self.identity });
            }
            _ => {}
        }
    }

    fn write_engine(&mut self, now: u64, window: usize, register: u64, value: u64) {
        if let Some(engine) = self.engines.get_mut(window) {
            let mut transport = RoceTransport { stack: &mut self.stack, identity: self.identity };
            engine.write_register(now, register, value, &self.memory, &mut transport);
        }
        self.raise_interrupts();
    }
}
