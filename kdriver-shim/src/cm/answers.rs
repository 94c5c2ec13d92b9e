//! Answers about identifiers: addresses, paths, and the attributes that a queue pair is to be changed to.

use std::net::SocketAddr;

use cm::wire::PathRecord;
use cm::{Path, QpAttributes, Transport, param};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask as M, QpState, QpType};

use super::abi::{self, Output, length};

/// The one port that a card has.
pub const PORT_NUMBER: u8 = 1;
/// The index that stands for none: devices are told apart by their GUIDs.
const NO_DEVICE_INDEX: [u8; 4] = [0xff; 4];

/// The attributes of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressHandle {
    /// The destination's GID.
    pub dgid: [u8; 16],
    /// The source's index in the GID table.
    pub sgid_index: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The rate's code.
    pub rate: u8,
}

impl AddressHandle {
    /// The attributes of a handle along a path.
    #[must_use]
    pub fn along(path: &Path, sgid_index: u8) -> Self {
        let route = path.route;
        Self {
            dgid: route.remote.gid.octets(),
            sgid_index,
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            sl: route.sl,
            rate: path.rate,
        }
    }

    /// Its bytes, as the kernel's interfaces have them.
    #[must_use]
    pub fn encode(&self) -> [u8; 32] {
        let mut answer = Output::new(32);
        answer.put(0, &self.dgid);
        answer.put(16, &self.flow_label.to_ne_bytes());
        answer.put(20, &[self.sgid_index, self.hop_limit, self.traffic_class]);
        answer.put(26, &[self.sl]);
        answer.put(28, &[self.rate, 1, PORT_NUMBER]);
        answer.cut(32).try_into().unwrap_or([0; 32])
    }
}

/// An identifier's data for answers.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The GUID of its card, once it has one.
    pub guid: Option<u64>,
    /// The address on this side.
    pub source: Option<SocketAddr>,
    /// The address on the other side.
    pub destination: Option<SocketAddr>,
    /// The path, once there is one.
    pub path: Option<Path>,
    /// The service that each address is, with its port.
    pub services: [u64; 2],
}

impl Facts {
    fn addresses(&self) -> [Option<SocketAddr>; 2] {
        [self.source, self.destination]
    }

    /// The GIDs of both sides.
    fn gids(&self) -> [[u8; 16]; 2] {
        self.addresses().map(|address| address.map_or([0; 16], |it| abi::gid(it.ip())))
    }

    /// The answer to QUERY_ROUTE.
    #[must_use]
    pub fn route(&self, out: usize) -> Vec<u8> {
        let mut answer = Output::new(length::QUERY_ROUTE);
        for (at, address) in [136, 164].into_iter().zip(self.addresses()) {
            if let Some(address) = address {
                answer.put(at, &abi::store(address).0);
            }
        }
        answer.put(200, &NO_DEVICE_INDEX);
        let Some(guid) = self.guid else { return answer.cut(out) };
        answer.put(0, &guid.to_be_bytes());
        answer.put(196, &[PORT_NUMBER]);
        match &self.path {
            None => {
                let [sgid, dgid] = self.gids();
                answer.put(8, &dgid);
                answer.put(24, &sgid);
                answer.put(60, &param::PKEY.to_be_bytes());
            }
            Some(path) => {
                answer.put(8, &user_path(path));
                answer.put(192, &1u32.to_ne_bytes());
            }
        }
        answer.cut(out)
    }

    fn device(&self, answer: &mut Output) -> u16 {
        answer.put(272, &NO_DEVICE_INDEX);
        let Some(guid) = self.guid else { return 0 };
        answer.put(0, &guid.to_be_bytes());
        answer.put(8, &[PORT_NUMBER]);
        answer.put(10, &param::PKEY.to_be_bytes());
        param::PKEY
    }

    /// The answer to QUERY for addresses.
    #[must_use]
    pub fn address(&self, out: usize) -> Vec<u8> {
        let mut answer = Output::new(length::QUERY_ADDR);
        for (n, address) in self.addresses().into_iter().enumerate() {
            let Some((bytes, size)) = address.map(abi::store) else { continue };
            let (size_at, at) = if n == 0 { (12, 16) } else { (14, 144) };
            answer.put(size_at, &size.to_ne_bytes());
            answer.put(at, &bytes);
        }
        self.device(&mut answer);
        answer.cut(out)
    }

    /// The answer to QUERY for GIDs.
    #[must_use]
    pub fn gid(&self, out: usize) -> Vec<u8> {
        let mut answer = Output::new(length::QUERY_ADDR);
        let pkey = self.device(&mut answer);
        let gids = if self.guid.is_some() { self.gids() } else { [[0; 16]; 2] };
        for (n, (gid, service)) in gids.into_iter().zip(self.services).enumerate() {
            let (bytes, size) = abi::store_infiniband(gid, service, pkey);
            let (size_at, at) = if n == 0 { (12, 16) } else { (14, 144) };
            answer.put(size_at, &size.to_ne_bytes());
            answer.put(at, &bytes);
        }
        answer.cut(out)
    }

    /// The answer to QUERY for paths: of these there are as many as there is room for.
    #[must_use]
    pub fn paths(&self, out: usize) -> Vec<u8> {
        let Some(path) = self.path else { return Output::new(length::QUERY_PATH).cut(out) };
        let whole = length::QUERY_PATH.saturating_add(length::PATH);
        let mut answer = Output::new(whole);
        answer.put(0, &1u32.to_ne_bytes());
        answer.put(8, &abi::PATH_FLAGS.to_ne_bytes());
        answer.put(16, &PathRecord::from(path).to_bytes());
        answer.cut(if out < whole { length::QUERY_PATH } else { whole })
    }
}

/// A path record as QUERY_ROUTE has it.
fn user_path(path: &Path) -> Vec<u8> {
    let record = PathRecord::from(*path);
    let mut answer = Output::new(64);
    answer.put(0, &record.dgid.octets());
    answer.put(16, &record.sgid.octets());
    answer.put(40, &record.flow_label.to_be_bytes());
    answer.put(44, &u32::from(record.reversible).to_ne_bytes());
    answer.put(48, &u32::from(record.mtu).to_ne_bytes());
    answer.put(52, &record.pkey.to_be_bytes());
    let rest = [
        record.hop_limit,
        record.traffic_class,
        record.numb_path,
        record.sl,
        record.mtu_selector,
        record.rate_selector,
        record.rate,
        record.packet_lifetime_selector,
        record.packet_lifetime,
        record.preference,
    ];
    answer.put(54, &rest);
    answer.cut(64)
}

/// The change that brings a queue pair to a state: `struct ib_uverbs_qp_attr`.
#[derive(Debug)]
pub struct QpChange {
    mask: M,
    answer: Output,
}

impl QpChange {
    /// The attributes of a change to a state alone.
    #[must_use]
    pub fn to(state: QpState) -> Self {
        let mut answer = Output::new(length::QP_ATTR);
        answer.put(4, &u32::from(state.0).to_ne_bytes());
        Self { mask: M::STATE, answer }
    }

    fn word(&mut self, bit: M, at: usize, value: u32) {
        self.mask |= bit;
        self.answer.put(at, &value.to_ne_bytes());
    }

    fn byte(&mut self, bit: M, at: usize, value: u8) {
        self.mask |= bit;
        self.answer.put(at, &[value]);
    }

    fn port(&mut self) {
        self.mask |= M::PKEY_INDEX;
        self.byte(M::PORT, 133, PORT_NUMBER);
    }

    /// The data before there is a connection: the port, and of datagrams the Q_Key. A queue pair of that kind has no
    /// rights yet.
    #[must_use]
    pub fn unconnected(mut self, kind: QpType, qkey: u32) -> Self {
        self.port();
        match kind {
            QpType::Ud => self.word(M::QKEY, 20, qkey),
            _ => self.word(M::ACCESS, 36, 0),
        }
        self
    }

    /// The data of a connection, of a card at that index of its GID table.
    #[must_use]
    pub fn connected(mut self, attributes: &QpAttributes, sgid_index: u8) -> Self {
        match attributes {
            QpAttributes::Init { remote_read_atomic } => {
                let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                let reads = if *remote_read_atomic { reads } else { Access::empty() };
                self.port();
                self.word(M::ACCESS, 36, (Access::REMOTE_WRITE | reads).bits());
            }
            QpAttributes::Rtr {
                transport,
                path,
                dest_qpn,
                rq_psn,
                max_dest_rd_atomic,
                min_rnr_timer,
            } => {
                self.mask |= M::AV;
                self.answer.put(40, &AddressHandle::along(path, sgid_index).encode());
                self.word(M::PATH_MTU, 12, path.mtu.into());
                self.word(M::DEST_QPN, 32, *dest_qpn);
                self.word(M::RQ_PSN, 24, *rq_psn);
                if *transport == Transport::Rc {
                    self.byte(M::MAX_DEST_RD_ATOMIC, 131, *max_dest_rd_atomic);
                    self.byte(M::MIN_RNR_TIMER, 132, *min_rnr_timer);
                }
            }
            QpAttributes::Rts {
                transport,
                sq_psn,
                max_rd_atomic,
                retry_cnt,
                rnr_retry,
                timeout,
            } => {
                self.word(M::SQ_PSN, 28, *sq_psn);
                if *transport == Transport::Rc {
                    self.byte(M::TIMEOUT, 134, *timeout);
                    self.byte(M::RETRY_COUNT, 135, *retry_cnt);
                    self.byte(M::RNR_RETRY, 136, *rnr_retry);
                    self.byte(M::MAX_RD_ATOMIC, 130, *max_rd_atomic);
                }
            }
        }
        self
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(mut self) -> Vec<u8> {
        self.answer.put(0, &self.mask.bits().to_ne_bytes());
        self.answer.cut(length::QP_ATTR)
    }
}
