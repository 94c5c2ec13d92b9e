//! Attributes of a queue pair, and the check of a change.

use bitflags::bitflags;
use fpga_regs::engine::admin::CreateAh;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType, static_rate_megabits};
use fpga_regs::engine::transition;
use fpga_regs::engine::window::Capabilities;

use crate::error::Error;
use crate::param;
use crate::psn::Psn;
use crate::types::{Gid, PathMtu, Qpn};
use crate::window::RateLimit;

bitflags! {
    /// The accesses to the QP's memory that the peer may make.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u8 {
        /// RDMA WRITE.
        const REMOTE_WRITE = 1;
        /// RDMA READ.
        const REMOTE_READ = 2;
        /// Atomic operations.
        const REMOTE_ATOMIC = 4;
    }
}

impl From<Access> for AccessFlags {
    /// The part of the granted accesses that peers may make.
    fn from(access: Access) -> Self {
        let pairs = [
            (Access::REMOTE_WRITE, Self::REMOTE_WRITE),
            (Access::REMOTE_READ, Self::REMOTE_READ),
            (Access::REMOTE_ATOMIC, Self::REMOTE_ATOMIC),
        ];
        pairs
            .into_iter()
            .filter(|(granted, _)| access.contains(*granted))
            .map(|(_, may)| may)
            .collect()
    }
}

/// The path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The own GID to use: 0 is the link-local address, 1 the IPv4 address.
    pub sgid_index: u8,
    /// The peer's GID.
    pub dgid: Gid,
    /// IPv4 time to live or IPv6 hop limit; 0 stands for 64.
    pub hop_limit: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label: 20 bits.
    pub flow_label: u32,
    /// Service level; kept, without effect on untagged frames.
    pub sl: u8,
    /// The most that is sent there, by the code of `ibv_rate`; 0 for the port's rate.
    pub static_rate: u8,
}

impl AddressVector {
    /// A path from one of the own GIDs to the peer's, with the usual hop limit and all other fields 0.
    #[must_use]
    pub const fn new(sgid_index: u8, dgid: Gid) -> Self {
        Self {
            sgid_index,
            dgid,
            hop_limit: 0,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            static_rate: 0,
        }
    }
}

impl From<&Attributes> for AddressVector {
    fn from(a: &Attributes) -> Self {
        Self {
            sgid_index: a.sgid_index,
            dgid: Gid::from_bytes(a.dgid),
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
            flow_label: a.flow_label,
            sl: a.sl,
            static_rate: a.static_rate,
        }
    }
}

impl From<&CreateAh> for AddressVector {
    fn from(command: &CreateAh) -> Self {
        Self {
            sgid_index: command.sgid_index,
            dgid: Gid::from_bytes(command.dgid),
            hop_limit: command.hop_limit,
            traffic_class: command.traffic_class,
            flow_label: command.flow_label,
            sl: command.sl,
            static_rate: command.static_rate,
        }
    }
}

/// Changes to a queue pair: `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to enter.
    pub state: Option<QpState>,
    /// The path to the peer.
    pub path: Option<AddressVector>,
    /// The path MTU, at most the port's.
    pub path_mtu: Option<PathMtu>,
    /// The peer's QP number.
    pub dest_qpn: Option<Qpn>,
    /// The first PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// The first PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// READs of the peer that may be outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// The timer code of RNR NAKs sent.
    pub min_rnr_timer: Option<u8>,
    /// The acknowledgement timeout: 4.096 µs · 2^timeout, 0 for none.
    pub timeout: Option<u8>,
    /// Retries after a timeout or sequence error.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs; 7 is for ever.
    pub rnr_retry: Option<u8>,
    /// The accesses that the peer may make.
    pub access: Option<AccessFlags>,
    /// The index of the partition key; only 0 exists.
    pub pkey_index: Option<u16>,
    /// The Q_Key, of datagrams.
    pub qkey: Option<u32>,
    /// The most that it sends.
    pub rate_limit: Option<RateLimit>,
}

/// The changes that bring a queue pair of Reliable Connection up, with usual values; struct update syntax sets others.
impl QpAttributes {
    /// The change from RESET to INIT, with the accesses that the peer may make.
    #[must_use]
    pub fn to_init(access: AccessFlags) -> Self {
        let state = Some(QpState::Init);
        Self { state, pkey_index: Some(0), access: Some(access), ..Self::default() }
    }

    /// The change from INIT to RTR, with the first PSN of the peer: one READ or atomic of the peer may be outstanding,
    /// and RNR NAKs ask for 0.64 ms.
    #[must_use]
    pub fn to_rtr(path: AddressVector, path_mtu: PathMtu, dest_qpn: Qpn, rq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rtr),
            path: Some(path),
            path_mtu: Some(path_mtu),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..Self::default()
        }
    }

    /// The change from RTR to RTS, with the first PSN sent: one READ or atomic may be outstanding, an acknowledgement
    /// takes 67 ms at most, and is asked for again seven times, a receive request without end.
    #[must_use]
    pub fn to_rts(sq_psn: Psn) -> Self {
        Self {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            timeout: Some(14),
            retry_cnt: Some(param::MAX_RETRY),
            rnr_retry: Some(param::RNR_RETRY_INFINITE),
            max_rd_atomic: Some(1),
            ..Self::default()
        }
    }
}

impl QpAttributes {
    /// The attributes that a mask of the card contract names; `None` where one is out of its range, or not
    /// offered.
    #[must_use]
    pub fn from_contract(a: &Attributes) -> Option<Self> {
        use AttributeMask as M;
        let has = |bit| a.mask.contains(bit);
        let mut change = Self::default();
        if has(M::STATE) {
            a.state.name()?;
            change.state = Some(a.state);
        }
        if has(M::PATH_MTU) {
            change.path_mtu = Some(PathMtu::from_code(a.path_mtu)?);
        }
        if has(M::DEST_QPN) {
            change.dest_qpn = Some(Qpn::new(a.dest_qpn)?);
        }
        change.path = has(M::AV).then(|| a.into());
        change.rq_psn = has(M::RQ_PSN).then(|| Psn::new(a.rq_psn));
        change.sq_psn = has(M::SQ_PSN).then(|| Psn::new(a.sq_psn));
        change.max_rd_atomic = has(M::MAX_RD_ATOMIC).then_some(a.max_rd_atomic);
        change.max_dest_rd_atomic = has(M::MAX_DEST_RD_ATOMIC).then_some(a.max_dest_rd_atomic);
        change.min_rnr_timer = has(M::MIN_RNR_TIMER).then_some(a.min_rnr_timer);
        change.timeout = has(M::TIMEOUT).then_some(a.timeout);
        change.retry_cnt = has(M::RETRY_COUNT).then_some(a.retry_count);
        change.rnr_retry = has(M::RNR_RETRY).then_some(a.rnr_retry);
        change.access = has(M::ACCESS).then(|| Access::from_bits_truncate(a.access).into());
        change.pkey_index = has(M::PKEY_INDEX).then_some(a.pkey_index);
        change.qkey = has(M::QKEY).then_some(a.qkey);
        change.rate_limit = has(M::RATE_LIMIT).then_some(RateLimit {
            kilobits: a.rate_limit,
            burst: a.max_burst.saturating_sub(a.typical_packet.into()),
        });
        Some(change)
    }
}

/// The present attributes of a queue pair. Attributes never set read as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpSnapshot {
    /// The state.
    pub state: QpState,
    /// Whether messages that have begun are incomplete, in SQD.
    pub sq_draining: bool,
    /// The path to the peer.
    pub path: Option<AddressVector>,
    /// The path MTU.
    pub path_mtu: Option<PathMtu>,
    /// The peer's QP number.
    pub dest_qpn: Option<Qpn>,
    /// The next PSN expected from the peer.
    pub rq_psn: Psn,
    /// The next PSN to send.
    pub sq_psn: Psn,
    /// READs that may be outstanding to the peer.
    pub max_rd_atomic: u8,
    /// READs of the peer that may be outstanding here.
    pub max_dest_rd_atomic: u8,
    /// The timer code of RNR NAKs sent.
    pub min_rnr_timer: u8,
    /// The acknowledgement timeout code.
    pub timeout: u8,
    /// Retries after a timeout or sequence error.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// The accesses that the peer may make.
    pub access: AccessFlags,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The Q_Key, of datagrams.
    pub qkey: u32,
    /// The most that it sends, in kb/s; 0 for no limit.
    pub rate_limit: u32,
}

/// The attributes as the card contract has them; the port is the stack's one.
impl From<QpSnapshot> for Attributes {
    fn from(snapshot: QpSnapshot) -> Self {
        let path = snapshot.path;
        Self {
            state: snapshot.state,
            current_state: snapshot.state,
            path_mtu: snapshot.path_mtu.map_or(0, PathMtu::code),
            pkey_index: snapshot.pkey_index,
            port: 1,
            timeout: snapshot.timeout,
            dest_qpn: snapshot.dest_qpn.map_or(0, Qpn::value),
            rq_psn: snapshot.rq_psn.value(),
            sq_psn: snapshot.sq_psn.value(),
            max_rd_atomic: snapshot.max_rd_atomic,
            max_dest_rd_atomic: snapshot.max_dest_rd_atomic,
            min_rnr_timer: snapshot.min_rnr_timer,
            retry_count: snapshot.retry_cnt,
            rnr_retry: snapshot.rnr_retry,
            sq_draining: u8::from(snapshot.sq_draining),
            sgid_index: path.map_or(0, |path| path.sgid_index),
            hop_limit: path.map_or(0, |path| path.hop_limit),
            traffic_class: path.map_or(0, |path| path.traffic_class),
            sl: path.map_or(0, |path| path.sl),
            static_rate: path.map_or(0, |path| path.static_rate),
            flow_label: path.map_or(0, |path| path.flow_label),
            dgid: path.map_or([0; 16], |path| path.dgid.to_bytes()),
            qkey: snapshot.qkey,
            rate_limit: snapshot.rate_limit,
            ..Self::default()
        }
    }
}

impl QpSnapshot {
    /// Takes over the attributes of a change that was checked, but for state, path and PSNs.
    pub(crate) fn apply(&mut self, change: &QpAttributes) {
        fn set<T: Copy>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        self.path_mtu = change.path_mtu.or(self.path_mtu);
        self.dest_qpn = change.dest_qpn.or(self.dest_qpn);
        set(&mut self.max_rd_atomic, change.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, change.max_dest_rd_atomic);
        set(&mut self.min_rnr_timer, change.min_rnr_timer);
        set(&mut self.timeout, change.timeout);
        set(&mut self.retry_cnt, change.retry_cnt);
        set(&mut self.rnr_retry, change.rnr_retry);
        set(&mut self.access, change.access);
        set(&mut self.pkey_index, change.pkey_index);
        set(&mut self.qkey, change.qkey);
        set(&mut self.rate_limit, change.rate_limit.map(|limit| limit.kilobits));
    }
}

/// The attributes that a change names.
fn named(change: &QpAttributes) -> AttributeMask {
    let named = [
        (AttributeMask::STATE, change.state.is_some()),
        (AttributeMask::AV, change.path.is_some()),
        (AttributeMask::PATH_MTU, change.path_mtu.is_some()),
        (AttributeMask::DEST_QPN, change.dest_qpn.is_some()),
        (AttributeMask::RQ_PSN, change.rq_psn.is_some()),
        (AttributeMask::SQ_PSN, change.sq_psn.is_some()),
        (AttributeMask::MAX_RD_ATOMIC, change.max_rd_atomic.is_some()),
        (AttributeMask::MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic.is_some()),
        (AttributeMask::MIN_RNR_TIMER, change.min_rnr_timer.is_some()),
        (AttributeMask::TIMEOUT, change.timeout.is_some()),
        (AttributeMask::RETRY_COUNT, change.retry_cnt.is_some()),
        (AttributeMask::RNR_RETRY, change.rnr_retry.is_some()),
        (AttributeMask::ACCESS, change.access.is_some()),
        (AttributeMask::PKEY_INDEX, change.pkey_index.is_some()),
        (AttributeMask::QKEY, change.qkey.is_some()),
        (AttributeMask::RATE_LIMIT, change.rate_limit.is_some()),
    ];
    named.into_iter().filter(|(_, given)| *given).map(|(attribute, _)| attribute).collect()
}

/// Checks a change of a QP in state `from`: transition, attributes present, values in range.
pub(crate) fn check(
    kind: QpType,
    qpn: Qpn,
    from: QpState,
    change: &QpAttributes,
    mtu_max: PathMtu,
) -> Result<(), Error> {
    let to = change.state.unwrap_or(from);
    // The stack is one port's: a change that needs a port has it.
    let port = transition::transition(kind, from, to)
        .map_or(AttributeMask::empty(), |row| row.required & AttributeMask::PORT);
    let mask = named(change) | port;
    let named = Attributes { mask, state: to, ..Attributes::default() };
    // RC-77, RC-78, RC-81, XRC-9
    transition::check(kind, from, &named, Capabilities::RATE_LIMIT)
        .map_err(|refused| Error::BadTransition { qpn, refused })?;
    check_values(qpn, change, mtu_max)
}

fn check_values(qpn: Qpn, change: &QpAttributes, mtu_max: PathMtu) -> Result<(), Error> {
    let limit = |attribute, value: Option<u64>, limit: u64| match value {
        Some(value) if value > limit => Err(Error::BadValue { qpn, attribute, value, limit }),
        _ => Ok(()),
    };
    let small = |value: Option<u8>| value.map(u64::from);
    let reads = u64::from(param::MAX_RD_ATOMIC);
    limit("max_rd_atomic", small(change.max_rd_atomic), reads)?;
    limit("max_dest_rd_atomic", small(change.max_dest_rd_atomic), reads)?;
    limit("min_rnr_timer", small(change.min_rnr_timer), u64::from(param::MAX_RNR_TIMER))?;
    limit("timeout", small(change.timeout), u64::from(param::MAX_TIMEOUT))?;
    limit("retry_cnt", small(change.retry_cnt), u64::from(param::MAX_RETRY))?;
    limit("rnr_retry", small(change.rnr_retry), u64::from(param::MAX_RETRY))?;
    let last_pkey = u64::from(param::PKEY_TABLE_LENGTH.saturating_sub(1));
    limit("pkey_index", change.pkey_index.map(u64::from), last_pkey)?;
    let mtu = change.path_mtu.map(|mtu| u64::from(mtu.bytes()));
    limit("path_mtu", mtu, u64::from(mtu_max.bytes()))?;
    let gid = change.path.map(|path| u64::from(path.sgid_index));
    limit("sgid_index", gid, param::GID_TABLE_LENGTH.saturating_sub(1) as u64)?;
    if let Some(path) = change.path {
        check_static_rate(path.static_rate)?;
    }
    let rate = change.rate_limit.unwrap_or_default();
    rate.check().map_err(|refused| Error::BadRate { qpn, refused })
}

/// Refuses codes of no rate.
pub(crate) fn check_static_rate(code: u8) -> Result<(), Error> {
    static_rate_megabits(code).map(|_| ()).ok_or(Error::NoRate(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-78.
    #[test]
    fn values_beyond_a_limit_are_refused_by_name() {
        let qpn = Qpn::new(7).unwrap();
        let change = QpAttributes {
            state: Some(QpState::Rts),
            min_rnr_timer: Some(32),
            ..QpAttributes::default()
        };
        let error = check(QpType::Rc, qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("min_rnr_timer"), "{error}");
        let change = QpAttributes { path_mtu: Some(PathMtu::Mtu512), ..change };
        let error = check(QpType::Rc, qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("PATH_MTU"), "{error}");
    }
}
