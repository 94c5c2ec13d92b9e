//! The messages (specification, section 12.6), their codes, and the datagrams that carry them.

use core::net::Ipv6Addr;

use super::mad::{self, Attribute, HEADER_LENGTH, LENGTH, Mad};
use super::{Malformed, layout, open};

/// Bytes of a message.
const DATA: usize = LENGTH - HEADER_LENGTH;

open! {
    /// Why a connection is refused or ended (section 12.6.7.2).
    RejectReason(u16) {
        NO_QP = 1, "no QP available";
        NO_EEC = 2, "no EE context available";
        NO_RESOURCES = 3, "no resources available";
        TIMEOUT = 4, "timeout";
        UNSUPPORTED = 5, "unsupported request";
        INVALID_COMM_ID = 6, "invalid communication ID";
        INVALID_COMM_INSTANCE = 7, "invalid communication instance";
        INVALID_SERVICE_ID = 8, "invalid service ID";
        INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
        STALE_CONNECTION = 10, "stale connection";
        RDC_NOT_EXIST = 11, "RDC does not exist";
        INVALID_GID = 12, "primary remote port GID rejected";
        INVALID_LID = 13, "primary remote port LID rejected";
        INVALID_SL = 14, "invalid primary SL";
        INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
        INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
        INVALID_PACKET_RATE = 17, "invalid primary packet rate";
        INVALID_ALTERNATE_GID = 18, "alternate remote port GID rejected";
        INVALID_ALTERNATE_LID = 19, "alternate remote port LID rejected";
        INVALID_ALTERNATE_SL = 20, "invalid alternate SL";
        INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
        INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
        INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
        PORT_AND_CM_REDIRECTION = 24, "port and CM redirection";
        PORT_REDIRECTION = 25, "port redirection";
        INVALID_MTU = 26, "invalid path MTU";
        INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
        CONSUMER = 28, "consumer reject";
        RNR_RETRY_COUNT = 29, "RNR retry count reject";
        DUPLICATE_COMM_ID = 30, "duplicate local communication ID";
        INVALID_CLASS_VERSION = 31, "invalid class version";
        INVALID_FLOW_LABEL = 32, "invalid primary flow label";
        INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
        VENDOR_OPTION = 35, "vendor option not supported";
    }
}

open! {
    /// The message that a REJ refuses, or an MRA acknowledges.
    Rejected(u8) {
        REQ = 0, "REQ";
        REP = 1, "REP";
        OTHER = 2, "other";
    }
}

open! {
    /// How a resolution went (section 12.11.2).
    SidrStatus(u8) {
        VALID = 0, "valid";
        UNSUPPORTED = 1, "service ID not supported";
        REJECTED = 2, "rejected by the service provider";
        NO_QP = 3, "no QP available";
        REDIRECT = 4, "request should be redirected";
        UNSUPPORTED_VERSION = 5, "unsupported version";
    }
}

open! {
    /// The outcome of an alternate path (section 12.8.2).
    ApPathStatus(u8) {
        LOADED = 0, "alternate path information loaded";
        INVALID_COMM_ID = 1, "invalid communication instance";
        UNSUPPORTED = 2, "alternate paths not supported";
        REJECTED = 3, "alternate path information rejected";
    }
}

open! {
    /// The transport service of a connection.
    TransportService(u8) {
        RC = 0, "Reliable Connection";
        UC = 1, "Unreliable Connection";
        RD = 2, "Reliable Datagram";
        EXTENDED = 3, "extended";
    }
}

layout! {
    /// Request for communication (section 12.6.5).
    Req of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The service that is asked for.
        service_id: u64 = 8:0 + 64;
        /// The sender's GUID.
        local_ca_guid: u64 = 16:0 + 64;
        /// The sender's Q_Key, of datagrams.
        local_qkey: u32 = 28:0 + 32;
        /// The sender's queue pair.
        local_qpn: u32 = 32:0 + 24;
        /// READs and atomics that the sender serves at a time.
        responder_resources: u8 = 35:0 + 8;
        /// The sender's end-to-end context.
        local_eecn: u32 = 36:0 + 24;
        /// READs and atomics that the sender would like to have under way.
        initiator_depth: u8 = 39:0 + 8;
        /// The receiver's end-to-end context.
        remote_eecn: u32 = 40:0 + 24;
        /// How long the receiver may take to answer: 4.096 µs · 2^code.
        remote_cm_response_timeout: u8 = 43:0 + 5;
        /// The transport service of the connection.
        transport_service: TransportService = 43:5 + 2;
        /// Whether the sender has end-to-end flow control.
        end_to_end_flow_control: bool = 43:7 + 1;
        /// The PSN that the receiver shall begin with.
        starting_psn: u32 = 44:0 + 24;
        /// How long the sender takes to answer: 4.096 µs · 2^code.
        local_cm_response_timeout: u8 = 47:0 + 5;
        /// Retries of the receiver's queue pair.
        retry_count: u8 = 47:5 + 3;
        /// The partition key.
        pkey: u16 = 48:0 + 16;
        /// The path MTU's code.
        path_mtu: u8 = 50:0 + 4;
        /// Whether a reliable datagram channel exists.
        rdc_exists: bool = 50:4 + 1;
        /// Retries of the receiver's queue pair after RNR NAKs.
        rnr_retry_count: u8 = 50:5 + 3;
        /// How often a message that is not answered is sent again.
        max_cm_retries: u8 = 51:0 + 4;
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = 51:4 + 1;
        /// The kind of an extended transport; 1 is XRC.
        extended_transport: u8 = 51:5 + 3;
        /// The path's LID of the sender's port.
        primary_local_lid: u16 = 52:0 + 16;
        /// The path's LID of the receiver's port.
        primary_remote_lid: u16 = 54:0 + 16;
        /// The path's GID of the sender's port.
        primary_local_gid: Ipv6Addr = 56:0 + 128;
        /// The path's GID of the receiver's port.
        primary_remote_gid: Ipv6Addr = 72:0 + 128;
        /// The path's flow label.
        primary_flow_label: u32 = 88:0 + 20;
        /// The path's rate.
        primary_packet_rate: u8 = 91:2 + 6;
        /// The path's traffic class.
        primary_traffic_class: u8 = 92:0 + 8;
        /// The path's hop limit.
        primary_hop_limit: u8 = 93:0 + 8;
        /// The path's service level.
        primary_sl: u8 = 94:0 + 4;
        /// Whether the path does not leave the subnet.
        primary_subnet_local: bool = 94:4 + 1;
        /// The acknowledgement timeout of the receiver's queue pair.
        primary_local_ack_timeout: u8 = 95:0 + 5;
        /// An alternate path, as the fields of the primary one.
        alternate: AlternatePath = 96:0 + 352;
        /// The private data of the sender's consumer.
        private_data: [u8; 92] = 140:0 + 736;
    }
}

/// An alternate path, which does not exist in RoCE: the bytes of its fields, not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath(pub [u8; 44]);

impl AlternatePath {
    /// None.
    pub const NONE: Self = Self([0; 44]);

    /// Whether there is one: it has a LID, or a GID, of the sender's port.
    #[must_use]
    pub fn exists(&self) -> bool {
        let lid = self.0.iter().take(2);
        let gid = self.0.iter().skip(4).take(16);
        lid.chain(gid).any(|byte| *byte != 0)
    }
}

impl super::Value for AlternatePath {
    const ZERO: Self = Self::NONE;

    fn load(bytes: &[u8], place: super::FieldBits) -> Self {
        Self(super::Value::load(bytes, place))
    }

    fn store(self, bytes: &mut [u8], place: super::FieldBits) {
        self.0.store(bytes, place);
    }
}

layout! {
    /// Message receipt acknowledgement: the answer takes longer (section 12.6.6).
    Mra of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The kind of the received message.
        message: Rejected = 8:0 + 2;
        /// How long the answer takes: 4.096 µs · 2^code.
        service_timeout: u8 = 9:0 + 5;
        /// The private data of the sender's consumer.
        private_data: [u8; 222] = 10:0 + 1776;
    }
}

layout! {
    /// Reject (section 12.6.7).
    Rej of 232 {
        /// The sender's communication ID; 0 where it has none.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID; 0 where the sender does not know it.
        remote_comm_id: u32 = 4:0 + 32;
        /// The message that is refused.
        message: Rejected = 8:0 + 2;
        /// Bytes of the additional information.
        info_length: u8 = 9:0 + 7;
        /// Why.
        reason: RejectReason = 10:0 + 16;
        /// More about the reason.
        info: [u8; 72] = 12:0 + 576;
        /// The private data of the sender's consumer.
        private_data: [u8; 148] = 84:0 + 1184;
    }
}

layout! {
    /// Reply to a request for communication (section 12.6.8).
    Rep of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The sender's Q_Key, of datagrams.
        local_qkey: u32 = 8:0 + 32;
        /// The sender's queue pair.
        local_qpn: u32 = 12:0 + 24;
        /// The sender's end-to-end context.
        local_eecn: u32 = 16:0 + 24;
        /// The PSN that the receiver shall begin with.
        starting_psn: u32 = 20:0 + 24;
        /// READs and atomics that the sender serves at a time.
        responder_resources: u8 = 24:0 + 8;
        /// READs and atomics that the sender has under way at most.
        initiator_depth: u8 = 25:0 + 8;
        /// How long the sender takes to acknowledge: 4.096 µs · 2^code.
        target_ack_delay: u8 = 26:0 + 5;
        /// The outcome of the alternate path; 1 is "not supported".
        failover_accepted: u8 = 26:5 + 2;
        /// Whether the sender has end-to-end flow control.
        end_to_end_flow_control: bool = 26:7 + 1;
        /// Retries of the receiver's queue pair after RNR NAKs.
        rnr_retry_count: u8 = 27:0 + 3;
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = 27:3 + 1;
        /// The sender's GUID.
        local_ca_guid: u64 = 28:0 + 64;
        /// The private data of the sender's consumer.
        private_data: [u8; 196] = 36:0 + 1568;
    }
}

layout! {
    /// Ready to use (section 12.6.9).
    Rtu of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The private data of the sender's consumer.
        private_data: [u8; 224] = 8:0 + 1792;
    }
}

layout! {
    /// Request for disconnection (section 12.6.10).
    Dreq of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The receiver's queue pair.
        remote_qpn: u32 = 8:0 + 24;
        /// The private data of the sender's consumer.
        private_data: [u8; 220] = 12:0 + 1760;
    }
}

layout! {
    /// Reply to a request for disconnection (section 12.6.11).
    Drep of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The private data of the sender's consumer.
        private_data: [u8; 224] = 8:0 + 1792;
    }
}

layout! {
    /// Load alternate path (section 12.8.1): the fields that a refusal needs.
    Lap of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// The receiver's queue pair.
        remote_qpn: u32 = 12:0 + 24;
        /// How long the receiver may take to answer: 4.096 µs · 2^code.
        remote_cm_response_timeout: u8 = 15:0 + 5;
        /// The path.
        alternate: AlternatePath = 20:0 + 352;
        /// The private data of the sender's consumer.
        private_data: [u8; 168] = 64:0 + 1344;
    }
}

layout! {
    /// Alternate path response (section 12.8.2).
    Apr of 232 {
        /// The sender's communication ID.
        local_comm_id: u32 = 0:0 + 32;
        /// The receiver's communication ID.
        remote_comm_id: u32 = 4:0 + 32;
        /// Bytes of the additional information.
        info_length: u8 = 8:0 + 8;
        /// The outcome of the path.
        status: ApPathStatus = 9:0 + 8;
        /// More about it.
        info: [u8; 72] = 12:0 + 576;
        /// The private data of the sender's consumer.
        private_data: [u8; 148] = 84:0 + 1184;
    }
}

layout! {
    /// Service ID resolution request (section 12.11.1).
    SidrReq of 232 {
        /// The sender's number of the request.
        request_id: u32 = 0:0 + 32;
        /// The partition key.
        pkey: u16 = 4:0 + 16;
        /// The service that is asked for.
        service_id: u64 = 8:0 + 64;
        /// The private data of the sender's consumer.
        private_data: [u8; 216] = 16:0 + 1728;
    }
}

layout! {
    /// Service ID resolution response (section 12.11.2).
    SidrRep of 232 {
        /// The receiver's number of its request.
        request_id: u32 = 0:0 + 32;
        /// How it went.
        status: SidrStatus = 4:0 + 8;
        /// Bytes of the additional information.
        info_length: u8 = 5:0 + 8;
        /// The queue pair that serves.
        qpn: u32 = 8:0 + 24;
        /// The service that was asked for.
        service_id: u64 = 12:0 + 64;
        /// The Q_Key of the queue pair.
        qkey: u32 = 20:0 + 32;
        /// More about a status.
        info: [u8; 72] = 24:0 + 576;
        /// The private data of the sender's consumer.
        private_data: [u8; 136] = 96:0 + 1088;
    }
}

/// A message and its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The transaction ID: an answer has its request's.
    pub transaction_id: u64,
    /// The message.
    pub body: Body,
}

macro_rules! bodies {
    ($($body:ident = $attribute:ident;)*) => {
        /// A message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is the message of its name")]
        pub enum Body {
            $($body($body),)*
        }

        impl Body {
            /// The attribute that names the message.
            #[must_use]
            pub const fn attribute(&self) -> Attribute {
                match self {
                    $(Self::$body(_) => Attribute::$attribute,)*
                }
            }

            fn load(attribute: Attribute, data: &[u8; DATA]) -> Option<Self> {
                match attribute {
                    $(Attribute::$attribute => Some(Self::$body($body::load(data))),)*
                    _ => None,
                }
            }

            fn to_bytes(self) -> [u8; DATA] {
                match self {
                    $(Self::$body(body) => body.to_bytes(),)*
                }
            }
        }

        $(impl From<$body> for Body {
            fn from(body: $body) -> Self {
                Self::$body(body)
            }
        })*
    };
}

bodies! {
    Req = REQ;
    Mra = MRA;
    Rej = REJ;
    Rep = REP;
    Rtu = RTU;
    Dreq = DREQ;
    Drep = DREP;
    SidrReq = SIDR_REQ;
    SidrRep = SIDR_REP;
    Lap = LAP;
    Apr = APR;
}

impl Message {
    /// The message in a datagram.
    ///
    /// # Errors
    /// Where the datagram is no message of the connection manager's.
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let (transaction_id, attribute, data) = mad::parse(datagram)?;
        // CM-2
        let body = Body::load(attribute, data).ok_or(Malformed::Attribute(attribute.0))?;
        Ok(Self { transaction_id, body })
    }

    /// The datagram of the message.
    #[must_use]
    pub fn to_bytes(&self) -> Mad {
        mad::emit(self.transaction_id, self.body.attribute(), &self.body.to_bytes())
    }
}

#[cfg(test)]
mod tests;
