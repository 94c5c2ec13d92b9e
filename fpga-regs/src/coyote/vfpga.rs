//! A vFPGA's windows in BAR4: control registers, TLBs, user CSRs.
//!
//! The control registers stand in one of two banks, as the shell's `ctrl_cnfg` says: 64-bit
//! registers in the vFPGA's control window (the plain bank), or 256-bit registers in a window of
//! their own (the AVX bank). Byte offsets below 0x200 are the same; the other bank is dead.

use super::pci::Bar;
use crate::registers::Place;

constants! {
    /// vFPGAs a shell can have; the fifteenth vector and number belong to reconfiguration.
    pub const MAX_VFPGAS: u64 = 15;
    /// Byte offset in BAR4 of the control window of vFPGA 0.
    pub const CONTROL_WINDOW_BASE: u64 = 0x0010_0000;
    /// Bytes from one control window to the next, and from one AVX bank to the next.
    pub const CONTROL_WINDOW_STRIDE: u64 = 0x4_0000;
    /// In a control window: 64 KiB that insert entries into the large-page TLB.
    pub const LARGE_TLB_OFFSET: u64 = 0x0_0000;
    /// In a control window: 64 KiB that insert entries into the small-page TLB.
    pub const SMALL_TLB_OFFSET: u64 = 0x1_0000;
    /// In a control window: 64 KiB of user CSRs, where the verbs queue engine lives.
    pub const USER_CSR_OFFSET: u64 = 0x2_0000;
    /// In a control window: 64 KiB of plain `cnfg` registers.
    pub const CNFG_OFFSET: u64 = 0x3_0000;
    /// Byte offset in BAR4 of the AVX bank of vFPGA 0.
    pub const AVX_BASE: u64 = 0x0100_0000;
    /// Address spaces of a vFPGA.
    pub const CTIDS: u64 = 64;
}

/// Byte offset in BAR4 of the user CSR window of a vFPGA.
#[must_use]
pub const fn user_csr(vfpga: u64) -> u64 {
    CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + USER_CSR_OFFSET
}

/// Byte offset in BAR4 of the large-page TLB window of a vFPGA.
#[must_use]
pub const fn large_tlb(vfpga: u64) -> u64 {
    CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + LARGE_TLB_OFFSET
}

/// Byte offset in BAR4 of the small-page TLB window of a vFPGA.
#[must_use]
pub const fn small_tlb(vfpga: u64) -> u64 {
    CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + SMALL_TLB_OFFSET
}

/// The bank of a shell's control registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bank {
    /// 64-bit registers in the control window.
    #[default]
    Plain,
    /// 256-bit registers in a window of their own.
    Avx,
}

impl Bank {
    /// The bank that a shell with such a control configuration has.
    #[must_use]
    pub const fn of(ctrl_cnfg: super::shell::CtrlCnfg) -> Self {
        if ctrl_cnfg.avx { Self::Avx } else { Self::Plain }
    }

    /// Byte offset in BAR4 of the control registers of a vFPGA.
    #[must_use]
    pub const fn cnfg(self, vfpga: u64) -> u64 {
        match self {
            Self::Plain => CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + CNFG_OFFSET,
            Self::Avx => AVX_BASE + vfpga * CONTROL_WINDOW_STRIDE,
        }
    }
}

open_enum! {
    /// The cause of a vFPGA's interrupt: of several that wait, the first in this order.
    pub struct EventKind(u16) {
        /// Host memory was copied to card memory.
        Offload = 0,
        /// Card memory was copied to host memory.
        Sync = 1,
        /// A TLB invalidation is complete.
        Invalidated = 2,
        /// A transfer met a page that has no TLB entry; those of reads come first.
        PageFault = 3,
        /// The user logic has something to say.
        Notify = 4,
        /// A reconfiguration is complete.
        Reconfigured = 5,
    }
}

open_enum! {
    /// The memory or network of a stream.
    pub struct Stream(u8) {
        /// Card memory.
        Card = 0,
        /// Host memory.
        Host = 1,
        /// The RDMA stack.
        Rdma = 2,
        /// The TCP stack.
        Tcp = 3,
    }
}

registers! {
    /// Work requests, interrupts, completion writeback, card memory, and queue pairs of the stack.
    pub const CNFG {
        title: "vFPGA control registers",
        word: u64,
        bytes: 0x200,
        places: [
            Place::row(
                "plain bank", Bar::Shell, CONTROL_WINDOW_BASE + CNFG_OFFSET,
                CONTROL_WINDOW_STRIDE, MAX_VFPGAS
            ),
            Place::row("AVX bank", Bar::Shell, AVX_BASE, CONTROL_WINDOW_STRIDE, MAX_VFPGAS),
        ],
        source: "Coyote driver/include/coyote_defs.h; cnfg_slave.sv, cnfg_slave_avx.sv",
    }

    /// Read half of a work request. The write posts the request and comes last; reads tell how many
    /// wait. At 32 a further one is lost without notice.
    CTRL @ 0x00: WR write Command {
        /// Operation, or opcode of the one packet in raw mode.
        opcode[4:0]: u8,
        /// One packet is sent as it is, instead of as many as the length takes.
        raw[5]: bool,
        /// For the network.
        rdma[6]: bool,
        /// The request goes to a peer.
        remote[7]: bool,
        /// Stream.
        stream[9:8]: Stream,
        /// Address space.
        ctid[15:10]: u8,
        /// AXI stream of the vFPGA.
        dest[19:16]: u8,
        /// Its end is counted.
        last[20]: bool,
        /// This half is active.
        start[21]: bool,
        /// Clears the completion counters of the address space.
        clear[22]: bool,
        /// Length.
        length[59:32]: u32 unit("bytes"),
    } read CommandQueue {
        /// The number.
        queued[31:0]: u32 unit("commands"),
    };
    /// Virtual address of the read half.
    VADDR_RD @ 0x08: WO as VirtualAddress {
        /// The address.
        vaddr[47:0]: u64,
    };
    /// Write half of a work request.
    CTRL_2 @ 0x10: WO like Command;
    /// Virtual address of the write half.
    VADDR_WR @ 0x18: WO like VirtualAddress;
    /// Interrupts: the event, and the driver's answers. A write of 16 bits is enough.
    ISR @ 0x20: WR write IsrWrite {
        /// Clears the reported event; the next one may follow.
        clear_pending[0]: bool,
        /// Goes on after a fault of a read.
        restart_read[1]: bool,
        /// Goes on after a fault of a write.
        restart_write[2]: bool,
        /// The fault was mended; without it the transfer is dropped.
        success[3]: bool,
        /// Queues an invalidation of the pages that pid, address and length registers name.
        invalidate[4]: bool,
        /// It is the last of a row, whose end is reported.
        invalidate_last[5]: bool,
        /// Locks the TLBs, or unlocks them if they are locked; with the invalidate bit, which then
        /// means nothing.
        lock[6]: bool,
    } read IsrRead {
        /// The event; 0 while none is reported.
        kind[31:16]: EventKind,
        /// Another invalidation can be queued.
        invalidate_ready[32]: bool,
        /// Another answer to a fault can be queued.
        fault_ready[33]: bool,
        /// Stream of the transfer that met a fault.
        stream[49:48]: Stream,
        /// It was a write.
        write[56]: bool,
    };
    /// Address space and process of the event reported last, or as written since for an invalidation or restart. One
    /// register for both, like the next two: see The vFPGA's MMU.
    ISR_PID @ 0x28: RW as IsrPid {
        /// Address space.
        ctid[5:0]: u8,
        /// Process on the host; 0 with an event.
        hpid[63:32]: u32,
    };
    /// Virtual address of the fault reported last, or as written since for an invalidation.
    ISR_VADDR @ 0x30: RW like VirtualAddress;
    /// Length of the fault reported last, or as written since for an invalidation; value of the
    /// notification reported last.
    ISR_LEN @ 0x38: RW as IsrLen {
        /// The length.
        length[27:0]: u32 unit("bytes"),
        /// The value.
        value[63:32]: u32,
    };
    /// Requests sent: local reads, local writes, remote reads, remote writes. Never cleared.
    SENT[4; 8] @ 0x40: RO unit("requests");
    /// Invalidations reported.
    COUNT_INVALIDATIONS @ 0x60: RO unit("events");
    /// Page faults reported.
    COUNT_PAGE_FAULTS @ 0x68: RO unit("events");
    /// Notifications reported.
    COUNT_NOTIFICATIONS @ 0x70: RO unit("events");
    /// Bus addresses of the counters' copies: local reads, local writes, remote reads, remote writes.
    WBACK[4; 8] @ 0x80: RW;
    /// Copies host memory to card memory; reads tell how many commands wait.
    OFFL_CTRL @ 0xa0: WR write Migration {
        /// Starts.
        start[0]: bool,
        /// The last of a row, which is reported.
        last[1]: bool,
        /// Clears the report.
        clear[2]: bool,
        /// Length.
        length[59:32]: u32 unit("bytes"),
    } read OffloadQueue {
        /// The number.
        queued[31:0]: u32 unit("commands"),
    };
    /// Bus address in the host of the next offload.
    OFFL_HOST @ 0xa8: WO;
    /// Address in card memory of the next offload.
    OFFL_CARD @ 0xb0: WO;
    /// Offloads done.
    OFFL_STAT @ 0xc0: RO unit("commands");
    /// Copies card memory to host memory; reads tell how many commands wait.
    SYNC_CTRL @ 0xe0: WR read SyncQueue {
        /// The number.
        queued[31:0]: u32 unit("commands"),
    } like Migration;
    /// Bus address in the host of the next sync.
    SYNC_HOST @ 0xe8: WO;
    /// Address in card memory of the next sync.
    SYNC_CARD @ 0xf0: WO;
    /// Syncs done.
    SYNC_STAT @ 0x100: RO unit("commands");
    /// Asks for the Ethernet address of an IPv4 address.
    NET_ARP @ 0x120: WR write ArpLookup {
        /// The address, host order of the dotted quad.
        ipv4[31:0]: u32,
    } read ArpReady {
        /// It is ready.
        ready[0]: bool,
    };
    /// First word of a queue pair's context.
    RDMA_CTX_0 @ 0x140: WR write RdmaContext0 {
        /// Own QPN.
        qpn[23:0]: u32,
        /// The peer's key.
        rkey[63:32]: u32,
    } read ContextReady {
        /// It is ready.
        ready[0]: bool,
    };
    /// Second word of a queue pair's context.
    RDMA_CTX_1 @ 0x148: WO as RdmaContext1 {
        /// The PSN expected from the peer.
        local_psn[23:0]: u32,
        /// The PSN the peer expects.
        remote_psn[47:24]: u32,
    };
    /// Third word of a queue pair's context, whose write hands the context over.
    RDMA_CTX_2 @ 0x150: WO like VirtualAddress;
    /// First word of a queue pair's connection.
    RDMA_CONN_0 @ 0x160: WR write RdmaConnection0 {
        /// Own QPN.
        qpn[15:0]: u16,
        /// The peer's QPN.
        remote_qpn[39:16]: u32,
        /// UDP source port.
        udp_port[55:40]: u16,
    } read ConnectionReady {
        /// It is ready.
        ready[0]: bool,
    };
    /// First half of the peer's GID.
    RDMA_CONN_1 @ 0x168: WO;
    /// Second half of the peer's GID, whose write hands the connection over.
    RDMA_CONN_2 @ 0x170: WO;
    /// TCP: opening of ports and connections, and their outcome. Not maintained.
    TCP[4; 0x20] @ 0x180: RW;
}

registers! {
    /// Requests completed, of each address space, modulo 2^32.
    pub const PLAIN_COUNTERS {
        title: "Completion counters, plain bank",
        word: u64,
        bytes: 0x600,
        places: [Place::row(
            "", Bar::Shell, CONTROL_WINDOW_BASE + CNFG_OFFSET, CONTROL_WINDOW_STRIDE, MAX_VFPGAS
        )],
        source: "Coyote cnfg_slave.sv",
    }

    /// Local ones.
    PLAIN_LOCAL[64; 8] @ 0x200: RO as CompletionCounters {
        /// Reads.
        reads[31:0]: u32 unit("requests"),
        /// Writes.
        writes[63:32]: u32 unit("requests"),
    };
    /// Those of the RDMA stack.
    PLAIN_REMOTE[64; 8] @ 0x400: RO like CompletionCounters;
}

registers! {
    /// Requests completed, of each address space, modulo 2^32.
    pub const AVX_COUNTERS {
        title: "Completion counters, AVX bank",
        word: u64,
        bytes: 0x1000,
        places: [Place::row("", Bar::Shell, AVX_BASE, CONTROL_WINDOW_STRIDE, MAX_VFPGAS)],
        source: "Coyote cnfg_slave_avx.sv",
    }

    /// Local ones.
    AVX_LOCAL[64; 32] @ 0x800: RO like CompletionCounters;
    /// Those of the RDMA stack.
    AVX_REMOTE[64; 32] @ 0x808: RO like CompletionCounters;
}

registers! {
    /// Inserts entries into a TLB, and removes them: the second word executes the two.
    pub const TLB_WINDOW {
        title: "TLB windows",
        word: u64,
        bytes: 0x10,
        places: [
            Place::row(
                "large pages", Bar::Shell, CONTROL_WINDOW_BASE + LARGE_TLB_OFFSET,
                CONTROL_WINDOW_STRIDE, MAX_VFPGAS
            ),
            Place::row(
                "small pages", Bar::Shell, CONTROL_WINDOW_BASE + SMALL_TLB_OFFSET,
                CONTROL_WINDOW_STRIDE, MAX_VFPGAS
            ),
        ],
        source: "Coyote vfpga_hw.c, create_tlb_mapping; tlb_slave.sv",
    }

    /// First word of an entry; reads return the written value.
    TLB_WORD_0 @ 0x0: RW as TlbWord0 {
        /// Physical page number.
        page[31:0]: u32,
        /// Process on the host; with the tag it names the entry to remove.
        hpid[63:32]: u32,
    };
    /// Second word of an entry, whose write inserts or removes it. The bits of its fields depend on
    /// the TLB's shape, from bit 0: set, tag, ctid (6 bits), stream (2), valid (1).
    TLB_WORD_1 @ 0x8: RW;
}
