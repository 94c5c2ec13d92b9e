//! The card's counters, under the names that rxe and mlx5 gave them where they have one.

/// Declares a struct of `u64` counters and a way to list them by name.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl $name {
            /// The names of all counters, in the order of declaration.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Every counter with its name, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of one port, in the order of [`COUNTERS`](super::admin::COUNTERS): new ones go to the
    /// end. They wrap after 2^64 and are never reset.
    Counters {
        /// RoCE frames sent.
        sent_pkts,
        /// RoCE frames received for a QP, from its peer if it has one yet.
        rcvd_pkts,
        /// Payload bytes sent, retransmissions included.
        sent_bytes,
        /// Payload bytes received in order.
        rcvd_bytes,
        /// Request frames sent again because they were lost, or seem to be; questions are no such.
        retransmitted_pkts,
        /// Requests received that had been received before.
        duplicate_request,
        /// Requests received ahead of the expected PSN.
        out_of_sequence,
        /// NAKs "PSN sequence error" received.
        packet_seq_err,
        /// NAKs "PSN sequence error" received, under rxe's name.
        rcvd_seq_err,
        /// NAKs "PSN sequence error" sent.
        sent_seq_err,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Messages that found no receive request.
        out_of_buffer,
        /// Responses to READs or atomics found missing by a later response or acknowledgement.
        implied_nak_seq_err,
        /// Acknowledgement timeouts.
        local_ack_timeout_err,
        /// Messages that failed because retries were used up.
        retry_exceeded_err,
        /// Messages that failed because RNR retries were used up.
        retry_rnr_exceeded_err,
        /// Messages that failed because RNR retries were used up, under mlx5's name.
        rnr_nak_retry_err,
        /// WRITE messages received.
        rx_write_requests,
        /// READ requests received, duplicates excluded.
        rx_read_requests,
        /// Atomic requests executed, duplicates excluded.
        rx_atomic_requests,
        /// SEND messages received.
        rdma_recvs,
        /// Messages sent and completed.
        rdma_sends,
        /// Requester: NAKs "remote access error" received.
        req_remote_access_errors,
        /// Requester: NAKs "invalid request" received.
        req_remote_invalid_request,
        /// Requester: NAKs "remote operational error" received.
        req_remote_operational_errors,
        /// Requester: messages that failed.
        req_cqe_error,
        /// Responder: NAKs "remote access error" sent.
        resp_remote_access_errors,
        /// Responder: NAKs "invalid request" sent.
        resp_remote_invalid_request,
        /// Responder: NAKs "remote operational error" sent.
        resp_remote_operational_errors,
        /// Responder: messages longer than the receive buffer.
        resp_local_length_error,
        /// Responder: receive requests that failed.
        resp_cqe_error,
        /// Frames received with the congestion mark of IP.
        np_ecn_marked_roce_packets,
        /// Congestion notification packets received that had no effect.
        rp_cnp_ignored,
        /// ARP requests sent.
        sent_arp_requests,
        /// ARP requests answered.
        arp_replies,
        /// ICMP echo requests answered.
        icmp_replies,
        /// Frames dropped: invariant CRC wrong.
        rx_icrc_encapsulated,
        /// Frames dropped: not for this port's addresses, or of no protocol spoken here.
        drop_not_for_us,
        /// Frames dropped: a header is malformed or inconsistent.
        drop_malformed,
        /// Frames dropped: no QP has the number.
        drop_unknown_qp,
        /// Frames dropped: addresses are not those of the QP's path.
        drop_wrong_source,
        /// Frames dropped: partition key does not match.
        drop_bad_pkey,
        /// Frames dropped, of those in `rcvd_pkts`: the QP's state does not allow them.
        drop_wrong_state,
        /// Frames dropped, of those in `rcvd_pkts`: opcode unknown, or not of this transport service.
        drop_bad_opcode,
        /// Responses dropped: PSN outside the window (ghosts and repetitions).
        drop_stale_response,
        /// Requests dropped silently: ahead of a gap that was already reported.
        drop_after_gap,
        /// Duplicate READs and atomics dropped: their request is no longer known or no longer allowed.
        drop_duplicate_read,
        /// ARP and ICMP answers dropped: the queue was full.
        drop_control_queue,
        /// IPv6 neighbour solicitations answered.
        ndp_replies,
        /// Questions to a silent peer, each an oldest packet sent again.
        sent_questions,
        /// Congestion notification packets sent.
        np_cnp_sent,
        /// Requests received ahead of the expected PSN, under rxe's name.
        out_of_seq_request,
        /// Retries: times that all unacknowledged was sent again for a timeout or a (implied) NAK.
        completer_retry_err,
        /// Requests dropped, of those in `rcvd_pkts`: too many acknowledgements wait to be sent.
        drop_ack_queue,
        /// Datagrams dropped, of those in `rcvd_pkts`: they do not have the Q_Key of the QP.
        drop_bad_qkey,
        /// Datagrams that were not sent: nobody answers at their address, or their address handle is
        /// gone.
        drop_no_neighbour,
        /// Datagrams sent to multicast groups.
        sent_mcast_pkts,
        /// Datagrams received for multicast groups that QPs are in; `rcvd_pkts` counts them once for each QP.
        rcvd_mcast_pkts,
        /// Reports sent of the multicast groups that QPs are in.
        sent_group_reports,
        /// RoCE frames dropped: they came from outside with a source that nobody outside has, such as an address of
        /// this port's own.
        drop_martian_source,
        /// RoCE frames dropped: a service on their way did not let them pass.
        drop_by_service,
        /// Congestion notification packets received that slowed a queue pair down.
        rp_cnp_handled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_listed_by_their_field_names() {
        let counters = Counters { duplicate_request: 1, ..Counters::default() };
        let listed: Vec<_> = counters.iter().filter(|(_, value)| *value != 0).collect();
        assert_eq!(listed, [("duplicate_request", 1)]);
        assert!(counters.iter().map(|(name, _)| name).eq(Counters::NAMES.iter().copied()));
    }
}
