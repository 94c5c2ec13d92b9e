//! Counters: the port's, which the contract names, and each queue pair's.

use fpga_regs::counters;
pub use fpga_regs::engine::counters::Counters;

counters! {
    /// Counters of one queue pair since its creation.
    QpCounters {
        /// Frames sent.
        sent_pkts,
        /// Frames received that passed all checks of their origin; all, while it has no peer.
        rcvd_pkts,
        /// Request frames sent again.
        retransmitted_pkts,
        /// Requests received that had been received before.
        duplicate_request,
        /// Requests received ahead of the expected PSN.
        out_of_sequence,
        /// NAKs "PSN sequence error" received.
        packet_seq_err,
        /// READ responses found missing.
        implied_nak_seq_err,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Acknowledgement timeouts.
        local_ack_timeout_err,
        /// Congestion notification packets sent.
        np_cnp_sent,
    }
}

/// Counts one event.
pub(crate) fn bump(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

/// Counts `amount`.
pub(crate) fn add(counter: &mut u64, amount: u64) {
    *counter = counter.wrapping_add(amount);
}
