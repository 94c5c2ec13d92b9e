//! BAR0, the static layer: the part of the card that stays while shells come and go.

use super::pci::Bar;
use crate::registers::Place;

constants! {
    /// The value of [`PROBE`] and of the shell's probe in an unchanged build.
    pub const PROBE_VALUE: u32 = 0x000f_f1ce;
    /// Reset value of [`PR_EOST`].
    pub const PR_EOST_DEFAULT: u32 = 1_000_000;
    /// Microseconds to wait behind a reset pulse.
    pub const RESET_SETTLE_MICROS: u64 = 10;
    /// Reconfiguration descriptors that may be queued at a time.
    pub const PR_QUEUE: usize = 32;
    /// Bytes of the buffers that the published driver streams a bitstream from.
    pub const PR_CHUNK_BYTES: u64 = 2 << 20;
}

registers! {
    /// The build constant, the reconfiguration engine, the shell's reset, and counters of DMA channel 2.
    pub const STATIC_LAYER {
        title: "Static layer",
        word: u32,
        bytes: 0x80,
        places: [Place::once(Bar::Static, 0)],
        source: "Coyote driver/include/coyote_defs.h; static_slave.sv and pr_cmplt.sv",
    }

    /// The static layer's build constant, 0x000ff1ce unless the build changed it.
    PROBE @ 0x00: RO reset(PROBE_VALUE as u64);
    /// Queues a descriptor of the reconfiguration engine, from the address and length registers.
    PR_CTRL @ 0x04: WR write PrCtrl {
        /// Queues the descriptor.
        start[0]: bool,
        /// It is the bitstream's last.
        last[1]: bool,
        /// Takes back [`PR_STAT`]'s done bit and with it the interrupt.
        clear[2]: bool,
    } read PrQueue {
        /// Descriptors queued. One leaves the queue when the DMA channel takes it, before its data is fetched.
        queued[5:0]: u8 unit("descriptors"),
    };
    /// State of the reconfiguration engine.
    PR_STAT @ 0x08: RO as PrStat {
        /// The end of start-up: [`PR_EOST`] has gone by since the last word of a bitstream was passed on.
        done[0]: bool,
        /// Another descriptor can be queued.
        ready[1]: bool,
    };
    /// Bitstreams that came to the end of start-up.
    PR_CNT @ 0x0c: RO unit("bitstreams");
    /// Bus address of the descriptor's data, low half.
    PR_ADDR_LOW @ 0x10: RW;
    /// Bus address of the descriptor's data, high half.
    PR_ADDR_HIGH @ 0x14: RW as PrAddrHigh {
        /// Address bits 43 to 32.
        address[11:0]: u16,
    };
    /// Length of the descriptor's data.
    PR_LEN @ 0x18: RW as PrLen {
        /// The length.
        length[27:0]: u32 unit("bytes"),
    };
    /// From the last word of a bitstream to the end of start-up, by a counter, even if the configuration logic rejected
    /// the bitstream.
    PR_EOST @ 0x1c: RW reset(PR_EOST_DEFAULT as u64) unit("clock cycles");
    /// The shell's reset. A pulse is a write of 0, a write of 1, and a wait of at least 10 us.
    PR_EOST_RESET @ 0x20: WO reset(1) as PrEostReset {
        /// Active low.
        run[0]: bool,
    };
    /// Any write decouples the whole shell.
    PR_DCPL_SET @ 0x24: WO;
    /// Any write couples the shell again.
    PR_DCPL_CLR @ 0x28: WO;
    /// DMA channel 2 (reconfiguration and writeback): requests, completions and beats, each as
    /// read from the host and written to it.
    HDMA_STAT[6; 4] @ 0x2c: RO;
    /// Versal: tag of the prefetched queue context.
    QDMA_PFCH_TAG @ 0x44: WO as QdmaPrefetchTag {
        /// The tag.
        tag[6:0]: u8,
        /// Its queue.
        queue[19:8]: u16,
        /// Tag and queue are meant.
        valid[31]: bool,
    };
}
