//! BAR4 from 0: the shell's registers, in both of the published maps.

pub use super::map::Map;
use super::pci::Bar;
use super::static_layer::PROBE_VALUE;
use crate::registers::Place;

/// [`CTRL_CNFG`] of a build with plain registers, writeback and the default TLBs.
pub const CTRL_CNFG_DEFAULT: CtrlCnfg = CtrlCnfg {
    avx: false,
    bypass: true,
    tlb_fast_path: false,
    writeback: true,
    stlb_order: 10,
    stlb_ways: 4,
    ltlb_order: 9,
    ltlb_ways: 2,
    stlb_page_bits: 12,
    ltlb_page_bits: 21,
};

registers! {
    /// The shell's description, its network addresses, and its counters.
    pub const SHELL {
        title: "Shell registers",
        word: u64,
        bytes: 0x400,
        places: [Place::once(Bar::Shell, 0)],
        source: "Coyote driver/include/coyote_defs.h; shell RTL",
    }

    /// The shell's build constant, as the static layer's.
    PROBE @ 0x000: RO reset(PROBE_VALUE as u64);
    /// Host DMA channels.
    N_CHAN @ 0x008: RO reset(3) unit("channels");
    /// vFPGAs built in, 1 to 15.
    N_REGIONS @ 0x010: RO unit("vFPGAs");
    /// How the vFPGAs' control and MMUs are built.
    CTRL_CNFG @ 0x018: RO as CtrlCnfg {
        /// The 256-bit register bank is built in instead of the plain one.
        avx[0]: bool,
        /// The DMA engines take descriptors from the card; always set.
        bypass[1]: bool,
        /// The TLBs' fast path is built in.
        tlb_fast_path[2]: bool,
        /// Completion counters are written back to host memory.
        writeback[3]: bool,
        /// log2 of the sets of the small-page TLB.
        stlb_order[7:4]: u8,
        /// Ways of the small-page TLB.
        stlb_ways[11:8]: u8,
        /// log2 of the sets of the large-page TLB.
        ltlb_order[15:12]: u8,
        /// Ways of the large-page TLB.
        ltlb_ways[19:16]: u8,
        /// log2 of the bytes of a small page.
        stlb_page_bits[25:20]: u8,
        /// log2 of the bytes of a large page.
        ltlb_page_bits[31:26]: u8,
    };
    /// The memory that the vFPGAs reach.
    MEM_CNFG @ 0x020: RO as MemCnfg {
        /// Host streams are built in.
        host_streams[0]: bool,
        /// Card memory is built in.
        card_memory[1]: bool,
        /// AXI streams of a vFPGA towards the host.
        n_strm_axi[7:2]: u8,
        /// AXI streams of a vFPGA towards card memory.
        n_card_axi[13:8]: u8,
        /// Versal: the HBM is addressed as one block.
        block_hbm[14]: bool,
    };
    /// Reconfiguration of single vFPGAs is built in.
    PR_CNFG @ 0x028: RO as PrCnfg {
        /// Built in.
        enabled[0]: bool,
    };
    /// Reconfiguration of the whole shell is built in.
    SHELL_PBLOCK @ 0x030 only Since2026: RO as ShellPblock {
        /// Built in.
        enabled[0]: bool,
    };
    /// The RDMA stack.
    RDMA_CNFG @ 0x038 was 0x030: RO as NetworkCnfg {
        /// Built in.
        enabled[0]: bool,
        /// QSFP port it uses.
        port[1]: u8,
    };
    /// The TCP stack.
    TCP_CNFG @ 0x040 was 0x038: RO like NetworkCnfg;
    /// Takes vFPGAs off the datapath.
    DATAPATH_SET @ 0x048 was 0x040: W1S as Datapath {
        /// Decouples vFPGA *i* for bit *i*.
        decouple[31:0]: u32,
        /// Holds vFPGA *i* in its reconfiguration reset for bit *i*.
        reset[63:32]: u32,
    };
    /// Puts vFPGAs back on the datapath.
    DATAPATH_CLEAR @ 0x050 was 0x048: W1C like Datapath;
    /// IPv4 address, host order of the dotted quad: 0x0a000001 is 10.0.0.1. Reads answer 0.
    IP_ADDRESS @ 0x100: WO as IpAddress {
        /// The address.
        ipv4[31:0]: u32,
    };
    /// MAC address, first octet highest. Reads answer 0.
    MAC_ADDRESS @ 0x108: WO as MacAddress {
        /// The address.
        mac[47:0]: u64,
    };
    /// First byte of the TCP buffers in card memory.
    TCP_OFFSET @ 0x110: RW unit("bytes");
    /// First byte of the RDMA retransmission buffer in card memory.
    RDMA_OFFSET @ 0x118: RW unit("bytes");
    /// Host DMA channel *i* / 3: requests, completions and data beats for *i* mod 3 = 0, 1 and 2.
    STAT_HOST[6; 8] @ 0x200: RO as HostCounters {
        /// Host to card.
        h2c[31:0]: u32,
        /// Card to host.
        c2h[63:32]: u32,
    };
    /// Packets of every kind.
    STAT_PACKETS @ 0x300: RO as PacketCounters {
        /// Received.
        rx[31:0]: u32 unit("packets"),
        /// Transmitted.
        tx[63:32]: u32 unit("packets"),
    };
    /// ARP packets.
    STAT_ARP @ 0x308: RO like PacketCounters;
    /// ICMP packets.
    STAT_ICMP @ 0x310: RO like PacketCounters;
    /// TCP packets.
    STAT_TCP @ 0x318: RO like PacketCounters;
    /// RoCE packets, before the transport.
    STAT_ROCE @ 0x320: RO like PacketCounters;
    /// Packets whose BTH the transport parsed or generated.
    STAT_IBV @ 0x328: RO like PacketCounters;
    /// Losses and retransmissions of the transport.
    STAT_RETRANSMISSIONS @ 0x330: RO as LossCounters {
        /// Packets dropped for their PSN.
        psn_drops[31:0]: u32 unit("packets"),
        /// Packets sent again.
        retransmissions[63:32]: u32 unit("packets"),
    };
    /// TCP sessions.
    STAT_TCP_SESSIONS @ 0x338: RO unit("sessions");
    /// Whether the network's receive side got stuck.
    STAT_STREAM_DOWN @ 0x340: RO as StreamDown {
        /// The receive stream was held back for 256 cycles or more; only reprogramming cures it.
        down[0]: bool,
    };
}
