//! Queue pairs: types, states and attributes.

open_enum! {
    /// Transport of a QP; the numbers are those of `ibv_qp_type`, and of Linux' `ib_qp_type`.
    pub struct QpType(u8) {
        /// Unreliable Datagram, as queue pair [`GSI_QPN`], which connection managers talk to. A card has one, in
        /// window 0, and its driver alone makes it. It takes no Q_Key but [`GSI_QKEY`], and is in no multicast
        /// group.
        Gsi = 1,
        /// Reliable Connection.
        Rc = 2,
        /// Unreliable Connection.
        Uc = 3,
        /// Unreliable Datagram.
        Ud = 4,
        /// Extended RC, send side.
        XrcSend = 9,
        /// Extended RC, receive side.
        XrcReceive = 10,
    }
}

constants! {
    /// The queue pair that connection managers talk to.
    pub const GSI_QPN: u32 = 1;
    /// Its Q_Key.
    pub const GSI_QKEY: u32 = 0x8001_0000;
}

impl QpType {
    /// Whether each message names its destination.
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// Whether the peer answers each message. Where it does not, one that fails takes its QP to SQE, and is
    /// complete as soon as it was sent.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud | Self::Gsi)
    }
}

open_enum! {
    /// State of a QP; the numbers are those of `ibv_qp_state`.
    pub struct QpState(u8) {
        /// Freshly made, or wiped.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained, or draining.
        Sqd = 4,
        /// Send queue in error (UC, UD).
        Sqe = 5,
        /// In error; everything flushes.
        Err = 6,
    }
}

/// The work of a QP in each state (specification, section 10.3.1). In a state without a code above it does nothing.
impl QpState {
    /// Whether the responder works: requests of the peer are executed and answered.
    #[must_use]
    #[inline]
    pub const fn serves_requests(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }

    /// Whether messages that nobody answers are received.
    #[must_use]
    #[inline]
    pub const fn receives_unreliable(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether the requester works: messages are taken, those that have begun go on, and the
    /// peer's answers are heard.
    #[must_use]
    #[inline]
    pub const fn sends_requests(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether a message that has not begun may begin.
    #[must_use]
    #[inline]
    pub const fn begins_messages(self) -> bool {
        matches!(self, Self::Rts)
    }
}

flags! {
    /// The attributes in a modify; the bits are those of `ibv_qp_attr_mask`.
    pub struct AttributeMask(u32) {
        /// `state`.
        STATE = 1 << 0,
        /// `current_state`.
        CURRENT_STATE = 1 << 1,
        /// Ask for an event when the send queue is drained.
        EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `access`.
        ACCESS = 1 << 3,
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4,
        /// `port`.
        PORT = 1 << 5,
        /// `qkey`.
        QKEY = 1 << 6,
        /// The address vector: `sgid_index`, `hop_limit`, `traffic_class`, `sl`, `static_rate`, `flow_label`, `dgid`.
        AV = 1 << 7,
        /// `path_mtu`.
        PATH_MTU = 1 << 8,
        /// `timeout`.
        TIMEOUT = 1 << 9,
        /// `retry_count`.
        RETRY_COUNT = 1 << 10,
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        MAX_RD_ATOMIC = 1 << 13,
        /// An alternate path; no engine offers one.
        ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17,
        /// Path migration; no engine offers it.
        PATH_MIG_STATE = 1 << 18,
        /// New queue sizes; no engine offers them.
        CAP = 1 << 19,
        /// `dest_qpn`.
        DEST_QPN = 1 << 20,
        /// `rate_limit`, `max_burst` and `typical_packet`, of engines with the capability `RATE_LIMIT` alone.
        RATE_LIMIT = 1 << 25,
    }
}

impl AttributeMask {
    /// The names of the attributes, in the order of their bits; bits without a name as one number.
    #[must_use]
    pub fn names(self) -> String {
        let mut names = String::new();
        // Writing to a string does not fail.
        let _ = bitflags::parser::to_writer(&self, &mut names);
        names.replace(" | ", ", ")
    }
}

layout! {
    /// The attributes of a QP: behind a modify command, and as the answer to a query.
    pub struct Attributes: 2 {
        /// The attributes that count (modify).
        mask @ 0x00: AttributeMask,
        /// State to go to; query: state it is in.
        state @ 0x04: QpState,
        /// State the caller believes it is in.
        current_state @ 0x05: QpState,
        /// 1: ask for an event when drained.
        sqd_notify @ 0x06: u8,
        /// Path MTU as `ibv_mtu`: 1 (256) to 5 (4096).
        path_mtu @ 0x07: u8,
        /// [`super::key::Access`] bits remote peers may use.
        access @ 0x08: u32,
        /// P_Key table index.
        pkey_index @ 0x0c: u16,
        /// Port, from 1.
        port @ 0x0e: u8,
        /// Local ACK timeout code, 0 to 31: 4.096 µs × 2^timeout, 0 for none.
        timeout @ 0x0f: u8,
        /// QPN of the peer.
        dest_qpn @ 0x10: u32,
        /// First PSN expected, 24 bits; query: the next one.
        rq_psn @ 0x14: u32,
        /// First PSN sent, 24 bits; query: the next one.
        sq_psn @ 0x18: u32,
        /// Q_Key.
        qkey @ 0x1c: u32,
        /// READs and atomics the requester may have under way.
        max_rd_atomic @ 0x20: u8,
        /// READs and atomics the responder answers at a time.
        max_dest_rd_atomic @ 0x21: u8,
        /// RNR NAK timer code, 0 to 31.
        min_rnr_timer @ 0x22: u8,
        /// Retries after a timeout or a sequence NAK, 0 to 7.
        retry_count @ 0x23: u8,
        /// Retries after an RNR NAK, 0 to 6; 7 for ever.
        rnr_retry @ 0x24: u8,
        /// Query: 1 while the send queue drains.
        sq_draining @ 0x25: u8,
        /// Local GID table index.
        sgid_index @ 0x26: u8,
        /// Hop limit, or time to live.
        hop_limit @ 0x27: u8,
        /// Traffic class, or type of service.
        traffic_class @ 0x28: u8,
        /// Service level; from a GID of a VLAN, modulo 8 the priority of the tag.
        sl @ 0x29: u8,
        /// The most that the path carries, a code of `ibv_rate`; 0 for the port's rate. Engines without the
        /// capability `RATE_LIMIT` ignore it.
        static_rate @ 0x2a: u8,
        /// Flow label, 20 bits.
        flow_label @ 0x2c: u32,
        /// The most that it sends, in kb/s, within `LIMIT_RATE`; 0 for no limit.
        rate_limit @ 0x30: u32,
        /// Bytes that may leave at once in spite of `rate_limit`, which is not 0 then; 0 for a packet. A query says 0.
        max_burst @ 0x34: u32,
        /// Bytes of a usual packet of its, at most `max_burst` if that is not 0; 0 for unknown. A query says 0.
        typical_packet @ 0x38: u16,
        /// GID of the peer, network order.
        dgid @ 0x40: [u8; 16],
    }
}

/// RNR NAK timer codes in units of 10 µs (specification, section 9.7.5: code 0 is 655.36 ms).
const RNR_TIMER_UNITS: [u16; 32] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The waiting time of an RNR NAK timer code, of which the low five bits count, in microseconds.
#[must_use]
pub const fn rnr_timeout_micros(code: u8) -> u64 {
    match RNR_TIMER_UNITS[(code & 0x1f) as usize] {
        0 => 655_360,
        units => units as u64 * 10,
    }
}

/// Rates by the codes of `ibv_rate`, in Mb/s as `ibv_rate_to_mbps` has them; 0 for codes without one.
const STATIC_RATES: [u32; 25] = [
    0, 0, 2_500, 10_000, 30_000, 5_000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_062, 56_250,
    112_500, 168_750, 25_781, 103_125, 206_250, 309_375, 28_125, 53_125, 425_000, 637_500, 850_000,
    1_275_000,
];

/// The rate that a code of `static_rate` stands for, in Mb/s: 0 for the port's, `None` for a code without one.
#[must_use]
pub const fn static_rate_megabits(code: u8) -> Option<u32> {
    if code == 0 {
        return Some(0);
    }
    if code as usize >= STATIC_RATES.len() || STATIC_RATES[code as usize] == 0 {
        return None;
    }
    Some(STATIC_RATES[code as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState as S;

    #[test]
    fn codes_of_rates_are_those_of_verbs() {
        let known = [(0, 0), (2, 2_500), (3, 10_000), (5, 5_000), (16, 103_125), (24, 1_275_000)];
        for (code, megabits) in known {
            assert_eq!(static_rate_megabits(code), Some(megabits));
        }
        assert_eq!([1, 25, 255].map(static_rate_megabits), [None; 3]);
    }

    #[test]
    fn what_a_queue_pair_does_in_each_state_is_as_written_here() {
        let states =
            [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err, QpState(7), QpState(255)];
        let abilities = states.map(|state| {
            let receives = [state.serves_requests(), state.receives_unreliable()];
            (state, receives, [state.sends_requests(), state.begins_messages()])
        });
        assert_eq!(
            abilities,
            [
                (S::Reset, [false, false], [false, false]),
                (S::Init, [false, false], [false, false]),
                (S::Rtr, [true, true], [false, false]),
                (S::Rts, [true, true], [true, true]),
                (S::Sqd, [true, true], [true, false]),
                (S::Sqe, [false, true], [false, false]),
                (S::Err, [false, false], [false, false]),
                (QpState(7), [false, false], [false, false]),
                (QpState(255), [false, false], [false, false]),
            ]
        );
    }
}
