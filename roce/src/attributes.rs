//! Attributes of a queue pair, and the check of a change.

use bitflags::bitflags;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpType};
use fpga_regs::engine::transition;

use crate::error::Error;
use crate::param;
use crate::psn::Psn;
use crate::state::QpState;
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
    /// The Q_Key, of datagrams.
    pub qkey: Option<u32>,
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
    /// The Q_Key, of datagrams.
    pub qkey: u32,
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
    let (from, to) = (from.into(), change.state.unwrap_or(from).into());
    // The stack is one port's: a change that needs a port has it.
    let port = transition::transition(kind, from, to)
        .map_or(AttributeMask::empty(), |row| row.required & AttributeMask::PORT);
    let mask = named(change) | port;
    let named = Attributes { mask, state: to, ..Attributes::default() };
    // RC-77, RC-78, RC-81, XRC-9
    transition::check(kind, from, &named)
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
        let error = check(QpType::Rc, qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("min_rnr_timer"), "{error}");
        let change = QpAttributes { path_mtu: Some(PathMtu::Mtu512), ..change };
        let error = check(QpType::Rc, qpn, QpState::Sqd, &change, PathMtu::Mtu4096).unwrap_err();
        assert!(error.to_string().contains("PATH_MTU"), "{error}");
    }
}
