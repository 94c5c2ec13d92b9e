//! Attributes of a queue pair, and the check of a change.

use bitflags::bitflags;

use crate::error::Error;
use crate::param;
use crate::psn::Psn;
use crate::state::{self, QpState};
use crate::types::{Gid, PathMtu, Qpn};

bitflags! {
    /// What the peer may do to the QP's memory.
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
    /// What the peer may do.
    pub access: Option<AccessFlags>,
    /// The index of the partition key; only 0 exists.
    pub pkey_index: Option<u16>,
}

/// The present attributes of a queue pair. Attributes never set read as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpSnapshot {
    /// The state.
    pub state: QpState,
    /// In SQD: messages that have begun are not yet complete.
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
    /// What the peer may do.
    pub access: AccessFlags,
    /// The index of the partition key.
    pub pkey_index: u16,
}

bitflags! {
    /// Which attributes a change names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Mask: u16 {
        const PATH = 1;
        const PATH_MTU = 1 << 1;
        const DEST_QPN = 1 << 2;
        const RQ_PSN = 1 << 3;
        const SQ_PSN = 1 << 4;
        const MAX_RD_ATOMIC = 1 << 5;
        const MAX_DEST_RD_ATOMIC = 1 << 6;
        const MIN_RNR_TIMER = 1 << 7;
        const TIMEOUT = 1 << 8;
        const RETRY_CNT = 1 << 9;
        const RNR_RETRY = 1 << 10;
        const ACCESS = 1 << 11;
        const PKEY_INDEX = 1 << 12;
    }
}

impl Mask {
    /// The attributes that `change` names.
    fn of(change: &QpAttributes) -> Self {
        let mut mask = Self::empty();
        mask.set(Self::PATH, change.path.is_some());
        mask.set(Self::PATH_MTU, change.path_mtu.is_some());
        mask.set(Self::DEST_QPN, change.dest_qpn.is_some());
        mask.set(Self::RQ_PSN, change.rq_psn.is_some());
        mask.set(Self::SQ_PSN, change.sq_psn.is_some());
        mask.set(Self::MAX_RD_ATOMIC, change.max_rd_atomic.is_some());
        mask.set(Self::MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic.is_some());
        mask.set(Self::MIN_RNR_TIMER, change.min_rnr_timer.is_some());
        mask.set(Self::TIMEOUT, change.timeout.is_some());
        mask.set(Self::RETRY_CNT, change.retry_cnt.is_some());
        mask.set(Self::RNR_RETRY, change.rnr_retry.is_some());
        mask.set(Self::ACCESS, change.access.is_some());
        mask.set(Self::PKEY_INDEX, change.pkey_index.is_some());
        mask
    }

    /// The names of the attributes, as in [`QpAttributes`].
    pub(crate) fn names(self) -> String {
        let names: Vec<String> = self.iter_names().map(|(n, _)| n.to_lowercase()).collect();
        names.join(", ")
    }
}

/// Checks a change of a QP in state `from`: transition, attributes present, values in range.
pub(crate) fn check(
    qpn: Qpn,
    from: QpState,
    change: &QpAttributes,
    mtu_max: PathMtu,
) -> Result<(), Error> {
    let to = change.state.unwrap_or(from);
    let rule = state::transition(from, to).ok_or(Error::BadTransition { qpn, from, to })?;
    let given = Mask::of(change);
    let missing = rule.required.difference(given);
    if !missing.is_empty() {
        return Err(Error::MissingAttributes { qpn, from, to, names: missing.names() });
    }
    // RC-78
    // Attributes beside the point are refused, not ignored: the caller believes they took effect.
    // Towards RESET and ERR nothing but the state matters, as everybody expects.
    let forbidden = given.difference(rule.required.union(rule.optional));
    if !forbidden.is_empty() && !matches!(to, QpState::Reset | QpState::Err) {
        return Err(Error::ForbiddenAttributes { qpn, from, to, names: forbidden.names() });
    }
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
    limit("sgid_index", gid, param::GID_TABLE_LENGTH.saturating_sub(1) as u64)
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
        let error = check(qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("min_rnr_timer"), "{error}");
        let change = QpAttributes { path_mtu: Some(PathMtu::Mtu512), ..change };
        let error = check(qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("path_mtu"), "{error}");
    }
}
