//! BAR decode: which register an access means.
//!
//! Registers of BAR0 and BAR2 are 32 bits wide, those of BAR4 64. The interconnect before BAR4 makes
//! of one store a burst to the end of its 64-byte line, whose further beats carry no strobes and
//! undefined data; registers therefore act on strobed bytes only. No read has a side effect.

use fpga_regs::coyote::pci::{Bar, RECONFIGURATION_VECTOR};
use fpga_regs::coyote::shell::{
    self, Datapath, HostCounters, IpAddress, LossCounters, MacAddress, Map, MemCnfg, NetworkCnfg,
    PacketCounters, PrCnfg, ShellPblock, StreamDown,
};
use fpga_regs::coyote::vfpga::Bank;
use fpga_regs::coyote::{static_layer, xdma};

use crate::address_map::{Target, target};
use crate::card::Card;
use crate::network::Identity;
use crate::tally::Count;
use crate::vfpga::{Beat, Logic, occupant};

/// Bytes of a line of the interconnect.
const LINE: u64 = 64;

impl Card {
    /// Reads `bytes` (1, 2, 4 or 8) bytes at `offset`, a multiple of them.
    pub(crate) fn read(&self, now: u64, bar: Bar, offset: u64, bytes: u8) -> u64 {
        let value = match bar {
            Bar::Static | Bar::Xdma => {
                let word = |at| u64::from(self.read_word(bar, at));
                match bytes {
                    8 => word(offset) | word(offset.saturating_add(4)) << 32,
                    _ => word(offset & !3) >> (offset & 3).wrapping_mul(8),
                }
            }
            Bar::Shell if self.is_cut_off() => u64::MAX,
            Bar::Shell => self.read_shell_bar(now, offset & !7) >> (offset & 7).wrapping_mul(8),
        };
        match bytes {
            8 => value,
            _ => value & (1u64 << u32::from(bytes & 7).wrapping_mul(8)).wrapping_sub(1),
        }
    }

    fn read_word(&self, bar: Bar, offset: u64) -> u32 {
        match bar {
            Bar::Static => self.shell.reconfiguration.read(offset),
            _ => self.shell.xdma.read(offset, self.pending()),
        }
    }

    /// A bit for each user interrupt that is requested.
    fn pending(&self) -> u32 {
        let vfpgas = self.vfpgas.iter().map(|vfpga| vfpga.control.isr.is_pending());
        let mut bits = 0;
        for (bit, _) in (0u32..).zip(vfpgas).filter(|(_, pending)| *pending) {
            bits |= 1u32.wrapping_shl(bit);
        }
        let done = self.shell.reconfiguration.is_done();
        bits | u32::from(done).wrapping_shl(RECONFIGURATION_VECTOR.into())
    }

    fn read_shell_bar(&self, now: u64, offset: u64) -> u64 {
        match target(offset) {
            Target::Shell(register) => self.read_shell(register),
            Target::Tlb(index, pages, word) => {
                self.vfpgas.get(index).map_or(0, |vfpga| vfpga.control.read_tlb(pages, word))
            }
            Target::User(index, register) => match self.vfpgas.get(index) {
                Some(vfpga) if vfpga.decoupled => u64::MAX,
                Some(vfpga) => occupant!(&vfpga.logic, logic => logic.read_register(now, register)),
                None => 0,
            },
            Target::Cnfg(bank, index, register) if bank == self.image.bank() => {
                let vfpga = u8::try_from(index).unwrap_or(u8::MAX);
                let stock = self.stock.as_ref().and_then(|it| it.model.load(vfpga, register));
                let shell = || self.vfpgas.get(index).map_or(0, |it| it.control.read(register));
                stock.unwrap_or_else(shell)
            }
            Target::Cnfg(..) | Target::Doorbell(..) | Target::Nowhere => 0,
        }
    }

    fn read_shell(&self, register: u64) -> u64 {
        let map = self.shell.map;
        let network = NetworkCnfg { enabled: true, port: 0 };
        let packets = |Count { tx, rx }| PacketCounters { rx, tx }.encode();
        let tally = &self.network.tally;
        match register {
            shell::PROBE => static_layer::PROBE_VALUE.into(),
            shell::N_CHAN => xdma::CHANNELS,
            shell::N_REGIONS => self.vfpgas.len() as u64,
            shell::CTRL_CNFG => self.image.ctrl_cnfg().encode(),
            shell::MEM_CNFG => {
                MemCnfg { host_streams: true, n_strm_axi: 4, ..MemCnfg::default() }.encode()
            }
            shell::PR_CNFG => PrCnfg { enabled: true }.encode(),
            shell::SHELL_PBLOCK if map == Map::Since2026 => ShellPblock { enabled: true }.encode(),
            _ if register == shell::RDMA_CNFG.at(map) => network.encode(),
            _ if register == shell::DATAPATH_SET.at(map) => self.shell.datapath,
            shell::TCP_OFFSET => self.shell.offsets[0],
            shell::RDMA_OFFSET => self.shell.offsets[1],
            shell::STAT_PACKETS => packets(tally.packets),
            shell::STAT_ARP => packets(tally.arp),
            shell::STAT_ICMP => packets(tally.icmp),
            shell::STAT_TCP => packets(tally.tcp),
            shell::STAT_ROCE => packets(tally.roce),
            shell::STAT_STREAM_DOWN => {
                let down = self.stock.as_ref().is_some_and(|stock| stock.model.stream_is_down());
                StreamDown { down }.encode()
            }
            shell::STAT_IBV if self.stock.is_some() => {
                let tally = self.stock.as_ref().map(|it| it.model.tally()).unwrap_or_default();
                packets(Count { tx: tally.sent, rx: tally.received })
            }
            shell::STAT_RETRANSMISSIONS if self.stock.is_some() => {
                let tally = self.stock.as_ref().map(|it| it.model.tally()).unwrap_or_default();
                LossCounters { psn_drops: tally.psn_drops, retransmissions: tally.repeated }
                    .encode()
            }
            shell::STAT_IBV => {
                let counters = self.network.stack.counters();
                packets(Count { tx: counters.sent_pkts as u32, rx: counters.rcvd_pkts as u32 })
            }
            shell::STAT_RETRANSMISSIONS => {
                let c = self.network.stack.counters();
                LossCounters {
                    psn_drops: c.out_of_sequence.wrapping_add(c.duplicate_request) as u32,
                    retransmissions: c.retransmitted_pkts as u32,
                }
                .encode()
            }
            _ => {
                let m = &self.memory;
                match shell::STAT_HOST.index(register) {
                    // Every request is complete once a burst is.
                    Some(0 | 1) => host(m.read.requests, m.written.requests),
                    Some(2) => host(m.read.beats, m.written.beats),
                    _ => 0,
                }
            }
        }
    }

    /// Writes `bytes` (1, 2, 4 or 8) bytes at `offset`, a multiple of them.
    pub(crate) fn write(&mut self, now: u64, bar: Bar, offset: u64, bytes: u8, value: u64) {
        match bar {
            Bar::Static | Bar::Xdma => {
                let word = offset & !3;
                let first = match bytes {
                    8 | 4 => value as u32,
                    _ => {
                        let beat = beat(offset & 3, bytes, value);
                        beat.over(self.read_word(bar, word).into()) as u32
                    }
                };
                self.write_word(bar, word, first);
                if bytes == 8 {
                    self.write_word(bar, word.saturating_add(4), (value >> 32) as u32);
                }
            }
            Bar::Shell if self.is_cut_off() => {}
            Bar::Shell if self.store_stock(offset, bytes.into(), &value.to_le_bytes()) => {}
            Bar::Shell => {
                let first = offset & !7;
                let line_end = (offset | LINE.wrapping_sub(1)).saturating_add(1);
                let strobed = beat(offset & 7, bytes, value);
                self.write_beat(now, first, strobed);
                for further in (first.saturating_add(8)..line_end).step_by(8) {
                    self.write_beat(now, further, Beat { data: !value, strobe: 0 });
                }
            }
        }
    }

    /// Writes 32 bytes at `offset` of the shell's BAR, a multiple of them, by one store. Registers that are not so wide
    /// get them as four.
    pub(crate) fn write_wide(&mut self, now: u64, offset: u64, bytes: [u8; 32]) {
        if self.is_cut_off() || self.store_stock(offset, bytes.len(), &bytes) {
            return;
        }
        for (at, word) in (offset..).step_by(8).zip(bytes.chunks_exact(8)) {
            let word = word.try_into().map(u64::from_le_bytes).unwrap_or_default();
            self.write(now, Bar::Shell, at, 8, word);
        }
    }

    /// Gives the published image's bank a store, with its size; `false` where it is for another register.
    fn store_stock(&mut self, offset: u64, length: usize, bytes: &[u8]) -> bool {
        let Target::Cnfg(Bank::Avx, index, register) = target(offset) else { return false };
        let (Some(stock), Some(bytes)) = (&mut self.stock, bytes.get(..length)) else {
            return false;
        };
        stock.store(&mut self.memory, index, register, bytes)
    }

    fn write_word(&mut self, bar: Bar, offset: u64, value: u32) {
        match (bar, offset) {
            (Bar::Static, static_layer::PR_EOST_RESET) => {
                if !static_layer::PrEostReset::decode(value).run {
                    self.reset();
                }
            }
            (Bar::Static, _) => self.shell.reconfiguration.write(offset, value),
            _ => {
                let enabled = self.shell.xdma.write(offset, value) & self.pending();
                for interrupt in (0..32usize).filter(|bit| enabled & 1 << (bit & 31) != 0) {
                    self.shell.signal(interrupt);
                }
            }
        }
    }

    fn write_beat(&mut self, now: u64, offset: u64, beat: Beat) {
        if beat.strobe == 0 {
            return;
        }
        match target(offset) {
            Target::Shell(register) => self.write_shell(register, beat),
            Target::Tlb(index, pages, word) => {
                if let Some(vfpga) = self.vfpgas.get_mut(index) {
                    vfpga.control.write_tlb(pages, word, beat);
                }
            }
            Target::User(index, register) => self.write_user(now, index, register, beat),
            Target::Doorbell(window, page, slot) => {
                let vfpga = self.vfpgas.get_mut(usize::from(window));
                if let Some(Some(slots)) = vfpga.and_then(|vfpga| vfpga.page(page)) {
                    slots.0.ring(slot, beat.over(0));
                }
            }
            Target::Cnfg(bank, index, register) if bank == self.image.bank() => {
                if self
                    .vfpgas
                    .get_mut(index)
                    .is_some_and(|vfpga| vfpga.control.write(register, beat))
                {
                    self.shell.signal(index);
                }
            }
            Target::Cnfg(..) | Target::Nowhere => {}
        }
    }

    fn write_shell(&mut self, register: u64, beat: Beat) {
        let value = beat.over(0);
        match register {
            shell::IP_ADDRESS => {
                let IpAddress { ipv4 } = IpAddress::decode(value);
                let identity = Identity { ipv4, ..self.network.identity() };
                self.set_identity(identity);
            }
            shell::MAC_ADDRESS => {
                let [_, _, mac @ ..] = MacAddress::decode(value).mac.to_be_bytes();
                let identity = Identity { mac, ..self.network.identity() };
                self.set_identity(identity);
            }
            shell::TCP_OFFSET => self.shell.offsets[0] = beat.over(self.shell.offsets[0]),
            shell::RDMA_OFFSET => self.shell.offsets[1] = beat.over(self.shell.offsets[1]),
            _ if register == shell::DATAPATH_SET.at(self.shell.map) => {
                self.set_datapath(self.shell.datapath | value);
            }
            _ if register == shell::DATAPATH_CLEAR.at(self.shell.map) => {
                self.set_datapath(self.shell.datapath & !value);
            }
            _ => {}
        }
    }

    fn set_identity(&mut self, identity: Identity) {
        self.network.set_identity(identity);
        if let Some(stock) = &mut self.stock {
            stock.set_identity(self.network.identity());
        }
    }

    /// Decouples vFPGAs, and resets those whose reset bit is newly set.
    fn set_datapath(&mut self, value: u64) {
        let fresh = Datapath::decode(value & !self.shell.datapath).reset;
        self.shell.datapath = value;
        for index in 0..self.vfpgas.len() {
            let bit =
                |bits: u32| u32::try_from(index).is_ok_and(|bit| bits.wrapping_shr(bit) & 1 == 1);
            if bit(fresh) {
                self.stop_transfers(index);
            }
            if let Some(vfpga) = self.vfpgas.get_mut(index) {
                vfpga.decoupled = bit(value as u32);
                if bit(fresh) {
                    vfpga.reset_logic(&mut self.network);
                }
            }
        }
    }

    fn write_user(&mut self, now: u64, index: usize, register: u64, beat: Beat) {
        let Some(vfpga) = self.vfpgas.get_mut(index).filter(|vfpga| !vfpga.decoupled) else {
            return;
        };
        let (logic, mut ports) = vfpga.parts(&mut self.network);
        occupant!(logic, logic => {
            let value = match beat.strobe {
                u8::MAX => beat.data,
                _ => beat.over(logic.read_register(now, register)),
            };
            logic.write_register(now, register, value, &mut ports);
        });
        if ports.has_stopped() {
            self.stop_transfers(index);
        }
        self.work_at_once(now, index);
    }
}

fn host(h2c: u32, c2h: u32) -> u64 {
    HostCounters { h2c, c2h }.encode()
}

/// The beat that carries `bytes` bytes at byte `lane` of a word.
fn beat(lane: u64, bytes: u8, value: u64) -> Beat {
    let strobe = match bytes {
        8 => u8::MAX,
        _ => (1u8.wrapping_shl(bytes.into())).wrapping_sub(1),
    };
    let lane = (lane & 7) as u32;
    Beat { data: value.wrapping_shl(lane.wrapping_mul(8)), strobe: strobe.wrapping_shl(lane) }
}
