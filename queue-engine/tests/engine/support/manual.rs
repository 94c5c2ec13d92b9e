//! A transport that keeps messages until the test decides their fate.

use std::collections::{BTreeMap, BTreeSet};

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use queue_engine::{LocalGid, Message, Transport, TransportError, TransportEvent, WqeOperation};

/// A message as it was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub qpn: u32,
    pub number: u64,
    pub operation: WqeOperation,
    pub length: u32,
    pub solicited: bool,
    pub fence: bool,
}

#[derive(Debug, Default)]
struct Qp {
    attributes: Attributes,
    next: u64,
    under_way: usize,
}

/// The transport, with everything the engine told it.
#[derive(Debug)]
pub struct Manual {
    qps: BTreeMap<u32, Qp>,
    /// Messages in the order of their submission.
    pub sent: Vec<Sent>,
    /// Every modify, in order.
    pub modified: Vec<(u32, Attributes)>,
    /// Every destroy, in order.
    pub destroyed: Vec<u32>,
    /// Every QP that was to give memory back, in order.
    pub narrowed: Vec<u32>,
    /// Messages a QP may have under way.
    pub capacity: usize,
    /// How submissions are refused.
    pub refusal: Option<TransportError>,
    /// How creating and changing QPs is refused.
    pub admin_refusal: Option<AdminStatus>,
    pub gids: BTreeMap<u8, LocalGid>,
    pub neighbours: BTreeMap<[u8; 16], [u8; 6]>,
    /// Address handles.
    pub ahs: BTreeMap<u32, CreateAh>,
    /// Whether the peers of address handles are found; `None` where it cannot say.
    pub finds: Option<bool>,
    pub members: BTreeSet<(u32, [u8; 16])>,
    pub counters: Vec<u64>,
    pub port: Option<PortAttributes>,
    /// The shared receive queue that the last message named.
    pub last_srqn: Option<u32>,
    /// Whether QPs with packets to send stand in line for them.
    pub keeps_in_line: bool,
    /// Whether memory of QPs in ERR may still be reached.
    pub lingers: bool,
    /// Whether it fails connections itself that lose a completion.
    pub refuses: bool,
    /// Those that it was told of, in order.
    pub refused: Vec<u32>,
}

impl Default for Manual {
    fn default() -> Self {
        Self {
            qps: BTreeMap::new(),
            sent: Vec::new(),
            modified: Vec::new(),
            destroyed: Vec::new(),
            narrowed: Vec::new(),
            capacity: usize::MAX,
            refusal: None,
            admin_refusal: None,
            gids: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            ahs: BTreeMap::new(),
            finds: None,
            members: BTreeSet::new(),
            counters: Vec::new(),
            port: None,
            last_srqn: None,
            keeps_in_line: false,
            lingers: false,
            refuses: false,
            refused: Vec::new(),
        }
    }
}

impl Manual {
    /// A transport of which each QP may have `capacity` messages under way.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// The oldest `count` messages of a QP end well.
    pub fn completed(&mut self, qpn: u32, count: u64) -> TransportEvent {
        let qp = self.qps.get_mut(&qpn).unwrap();
        qp.under_way -= usize::try_from(count).unwrap();
        TransportEvent::Completed { qpn, count }
    }

    /// The oldest message of a QP fails.
    pub fn failed(&mut self, qpn: u32, status: Status) -> TransportEvent {
        self.enter_error(qpn);
        TransportEvent::Failed { qpn, status }
    }

    /// A QP goes to ERR by itself.
    pub fn enter_error(&mut self, qpn: u32) {
        let qp = self.qps.get_mut(&qpn).unwrap();
        qp.attributes.state = QpState::Err;
        qp.under_way = 0;
    }

    /// Messages a QP has under way.
    pub fn under_way(&self, qpn: u32) -> usize {
        self.qps.get(&qpn).map_or(0, |qp| qp.under_way)
    }

    /// Whether there is a QP.
    pub fn has(&self, qpn: u32) -> bool {
        self.qps.contains_key(&qpn)
    }

    /// The state a QP is in as far as the transport knows.
    pub fn state(&self, qpn: u32) -> QpState {
        self.qps[&qpn].attributes.state
    }
}

impl Transport for Manual {
    fn create_qp(&mut self, qpn: u32, _: &CreateQp) -> Result<(), AdminStatus> {
        self.admin_refusal.map_or(Ok(()), Err)?;
        assert!(self.qps.insert(qpn, Qp::default()).is_none(), "QPN {qpn:#x} is in use");
        Ok(())
    }

    fn modify_qp(&mut self, _: u64, qpn: u32, attributes: &Attributes) -> Result<(), AdminStatus> {
        self.admin_refusal.map_or(Ok(()), Err)?;
        self.modified.push((qpn, *attributes));
        let qp = self.qps.get_mut(&qpn).ok_or(AdminStatus::NotFound)?;
        if attributes.mask.contains(AttributeMask::STATE) {
            match attributes.state {
                QpState::Reset => *qp = Qp::default(),
                QpState::Err => qp.under_way = 0,
                _ => {}
            }
            qp.attributes.state = attributes.state;
        }
        if attributes.mask.contains(AttributeMask::DEST_QPN) {
            qp.attributes.dest_qpn = attributes.dest_qpn;
        }
        Ok(())
    }

    fn refuse(&mut self, _: u64, qpn: u32) -> bool {
        self.refused.push(qpn);
        self.refuses
    }

    fn lingers(&self, qpn: u32) -> bool {
        assert_eq!(self.state(qpn), QpState::Err);
        self.lingers
    }

    fn stands_in_line(&self, qpn: u32) -> bool {
        self.keeps_in_line && self.under_way(qpn) > 0
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        self.qps.get(&qpn).map(|qp| qp.attributes)
    }

    fn destroy_qp(&mut self, qpn: u32) {
        assert!(self.qps.remove(&qpn).is_some(), "QPN {qpn:#x} does not exist");
        self.destroyed.push(qpn);
    }

    fn create_ah(&mut self, _: u64, ah: u32, command: &CreateAh) -> Result<(), AdminStatus> {
        self.admin_refusal.map_or(Ok(()), Err)?;
        assert!(self.ahs.insert(ah, *command).is_none(), "address handle {ah:#x} is in use");
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        assert!(self.ahs.remove(&ah).is_some(), "address handle {ah:#x} does not exist");
    }

    fn query_ah(&self, ah: u32) -> Result<bool, AdminStatus> {
        assert!(self.ahs.contains_key(&ah), "address handle {ah:#x} does not exist");
        self.finds.ok_or(AdminStatus::Unsupported)
    }

    fn set_member(
        &mut self,
        _: u64,
        qpn: u32,
        group: [u8; 16],
        member: bool,
    ) -> Result<(), AdminStatus> {
        self.admin_refusal.map_or(Ok(()), Err)?;
        let changed = match member {
            true => self.members.insert((qpn, group)),
            false => self.members.remove(&(qpn, group)),
        };
        if changed || member { Ok(()) } else { Err(AdminStatus::NotFound) }
    }

    fn room(&self, qpn: u32) -> usize {
        self.capacity - self.under_way(qpn).min(self.capacity)
    }

    fn narrow(&mut self, qpn: u32) {
        self.narrowed.push(qpn);
    }

    fn submit(&mut self, _: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        self.refusal.map_or(Ok(()), Err)?;
        let qp = self.qps.get_mut(&qpn).expect("the QP exists");
        if qp.attributes.state != QpState::Rts {
            return Err(TransportError::WrongState);
        }
        if qp.under_way >= self.capacity {
            return Err(TransportError::Full);
        }
        let number = qp.next;
        qp.next += 1;
        qp.under_way += 1;
        let Message { operation, length, solicited, fence, srqn } = *message;
        self.last_srqn = srqn;
        self.sent.push(Sent { qpn, number, operation, length, solicited, fence });
        Ok(number)
    }

    fn counters(&self) -> Vec<u64> {
        self.counters.clone()
    }

    fn port(&self) -> Option<PortAttributes> {
        self.port
    }

    fn set_link(&mut self, up: bool) -> Result<(), AdminStatus> {
        let port = self.port.as_mut().ok_or(AdminStatus::Unsupported)?;
        port.link_up = up.into();
        Ok(())
    }

    fn set_gid(&mut self, index: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        self.admin_refusal.map_or(Ok(()), Err)?;
        match gid {
            Some(gid) => self.gids.insert(index, gid),
            None => self.gids.remove(&index),
        };
        Ok(())
    }

    fn set_neighbour(&mut self, gid: [u8; 16], mac: Option<[u8; 6]>) -> Result<(), AdminStatus> {
        match mac {
            Some(mac) => self.neighbours.insert(gid, mac),
            None => self.neighbours.remove(&gid),
        };
        Ok(())
    }
}
