//! Verbs of the transport: which QPs there can be, and which requests.

use std::net::Ipv4Addr;

use fpga_regs::coyote::vfpga::{self as v, ArpLookup, RdmaConnection0, RdmaContext0, RdmaContext1};
use fpga_regs::engine::admin::{AdminStatus, COUNTERS, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use queue_engine::{LocalGid, Message, Transport, TransportError, WqeOperation};
use tunnel::{Direction, Names};

use crate::ends::Ends;
use crate::exchange::Exchange;
use crate::gid::ipv4_of;
use crate::param::{CTIDS, FURTHER, MESSAGES, SETTLE};
use crate::posts::{Posts, Registers};
use crate::space::{Meeting, Qp, Queued, RequestKind, Space};

/// `ibv_mtu` of 4096, the one that there is.
pub(crate) const MTU: u8 = 5;
/// The lowest of the UDP source ports that RoCE v2 takes.
const UDP_PORTS: u16 = 0xc000;
/// First address that a WRITE must not name: the card takes the bits above for a stream, and stops.
const ADDRESSES: u64 = 1 << 48;

/// Why another address is refused.
const ONE_ADDRESS: &str =
    "a published card has one IPv4 address, in no VLAN; use the GID index that has it";

impl Qp {
    /// Forgets its messages.
    pub(crate) fn fail(&mut self) {
        self.messages.clear();
        self.whole = 0;
        // Flushed messages were not drained.
        self.tells_drained = false;
        self.attributes.state = QpState::Err;
    }
}

/// The post of a request that a published card can carry: its kind, the address and the key.
fn request(operation: WqeOperation) -> Option<(RequestKind, u64, u32)> {
    match operation {
        WqeOperation::Write { remote_address, rkey, immediate: None } => {
            Some((RequestKind::Write, remote_address, rkey))
        }
        WqeOperation::Read { remote_address, rkey } => {
            Some((RequestKind::Read, remote_address, rkey))
        }
        _ => None,
    }
}

/// Takes attributes over that a command names.
pub(crate) fn merge(into: &mut Attributes, from: &Attributes) {
    let has = |bit| from.mask.contains(bit);
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => { $(if has(M::$bit) { $(into.$field = from.$field;)+ })+ };
    }
    take! {
        STATE: state;
        PATH_MTU: path_mtu;
        ACCESS: access;
        PKEY_INDEX: pkey_index;
        TIMEOUT: timeout;
        DEST_QPN: dest_qpn;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        QKEY: qkey;
        MAX_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        RETRY_COUNT: retry_count;
        RNR_RETRY: rnr_retry;
        AV: sgid_index, hop_limit, traffic_class, sl, static_rate, flow_label, dgid;
    }
    into.current_state = into.state;
    into.port = 1;
}

impl<R: Registers> Posts<R> {
    /// Says why a request is not carried.
    fn refuse(&mut self, qpn: u32, why: &str) {
        self.tally.refused = self.tally.refused.saturating_add(1);
        log::warn!("QP {qpn}: {why}");
    }

    /// Logs why a command is refused, and keeps the reason for the program that gave it.
    fn deny(&mut self, qpn: u32, why: &str) -> AdminStatus {
        self.refuse(qpn, why);
        self.reason = Some(why.to_owned());
        AdminStatus::Unsupported
    }

    /// The index of the GID that the card's packets have.
    pub(crate) fn own_gid(&self) -> Option<u8> {
        (0..).zip(&self.gids).find(|(_, gid)| self.is_own(**gid)).map(|(index, _)| index)
    }

    fn is_own(&self, gid: Option<LocalGid>) -> bool {
        let gid = gid.filter(|LocalGid { vlan, .. }| *vlan == 0);
        gid.and_then(|it| ipv4_of(it.gid)) == Some(self.settings.ipv4)
    }

    /// Checks that datagrams can go by an address handle; the receiver's IPv4 address.
    pub(crate) fn check_handle(&mut self, command: &CreateAh) -> Result<u32, AdminStatus> {
        let own = self.gids.get(usize::from(command.sgid_index)).copied().flatten();
        let peer = ipv4_of(command.dgid).map(Ipv4Addr::from);
        let has = |peer: u32| {
            let meets = |it: &Exchange| it.meetings.has(peer);
            peer == self.settings.ipv4
                || self.settings.peers.contains_key(&peer)
                    && self.settings.datagrams.as_ref().is_some_and(meets)
        };
        let why = match peer {
            _ if !self.is_own(own) => ONE_ADDRESS.to_owned(),
            Some(peer) if peer.is_multicast() => {
                "there is no multicast through the tunnel".to_owned()
            }
            Some(peer) if has(peer.into()) => match self.misplaced(peer.into()) {
                Some(why) => why,
                None => return Ok(peer.into()),
            },
            Some(_) => {
                "its peer is no published card of this balboad's, to which alone datagrams go through the tunnel".to_owned()
            }
            None => "a published card's peers have IPv4 addresses, through the tunnel, too".to_owned(),
        };
        self.tally.refused = self.tally.refused.saturating_add(1);
        log::warn!("an address handle: {why}");
        self.reason = Some(why);
        Err(AdminStatus::Unsupported)
    }

    /// Why the card reaches another one instead of a peer, if it does.
    fn misplaced(&self, peer: u32) -> Option<String> {
        let other = self.budget.in_place_of(peer).filter(|_| peer != self.settings.ipv4)?;
        let other = Ipv4Addr::from(other);
        Some(format!(
            "a published card has one Ethernet address for all peers whose addresses end in the same byte, and {other} has answered by it; balboa reset makes it forget that"
        ))
    }

    /// Checks that a published card can have such a connection; the peer's IPv4 address.
    fn check_path(&mut self, qpn: u32, wanted: &Attributes) -> Result<u32, AdminStatus> {
        let own = self.gids.get(usize::from(wanted.sgid_index)).copied().flatten();
        if !self.is_own(own) {
            return Err(self.deny(qpn, ONE_ADDRESS));
        }
        let Some(peer) = ipv4_of(wanted.dgid) else {
            return Err(self.deny(qpn, "a published card's peers have IPv4 addresses"));
        };
        if peer == self.settings.ipv4 {
            return match self.settings.local {
                Some(_) => Ok(peer),
                None => Err(self.deny(qpn, "a published card does not send to itself")),
            };
        }
        if wanted.path_mtu != MTU && !self.settings.peers.contains_key(&peer) {
            let why =
                "a published card sends packets of 4096 bytes; another path MTU needs the tunnel";
            return Err(self.deny(qpn, why));
        }
        match self.misplaced(peer) {
            Some(why) => Err(self.deny(qpn, &why)),
            None => Ok(peer),
        }
    }

    /// Hands a QP's context to the card: with it sequence numbers begin, and its requests name that key.
    pub(crate) fn write_context(&mut self, qpn: u32, rkey: u32, theirs: u32, own: u32) {
        let first = RdmaContext0 { qpn, rkey }.encode();
        let second = RdmaContext1 { local_psn: theirs, remote_psn: own }.encode();
        self.registers.store(v::RDMA_CTX_0, [first, second, 0, 0]);
    }

    /// Connects a QP: RTR.
    fn connect(&mut self, now: u64, qpn: u32, wanted: &Attributes) -> Result<(), AdminStatus> {
        let peer = self.check_path(qpn, wanted)?;
        let ctid = self.ctid(qpn).ok_or(AdminStatus::NotFound)?;
        let direction = Direction { from: self.name(qpn), to: (peer, wanted.dest_qpn) };
        if peer == self.settings.ipv4 {
            let key = self.settings.local.as_ref().map(|local| local.key);
            let key = key.ok_or(AdminStatus::Unsupported)?;
            let space = self.space(qpn).ok_or(AdminStatus::NotFound)?;
            space.closed = false;
            if let Some(qp) = &mut space.qp {
                qp.tunnel = Some(Names { direction, key });
            }
            return Ok(());
        }
        let meets = self.settings.meetings.has(peer);
        if self.is_sent_to(qpn) {
            self.deny(qpn, "what was sent to its last connection is not answered yet, and would be refused, which stops the sender's card; try again");
            return Err(AdminStatus::Busy);
        }
        let key = self.settings.peers.get(&peer).copied();
        let tunnel = key.map(|key| Names { direction, key });
        let own = self.name(qpn);
        let connect = |ends: &mut Ends| ends.connect(own, direction.to, wanted.rq_psn);
        let met = meets.then(|| self.settings.meetings.ends(connect));
        let [theirs, numbers_own] = match (&tunnel, met) {
            (Some(names), _) => names.first_psns(),
            // Both ends are this process's: with one number both ways, that of the end that connects first, it is
            // complete at RTR.
            (None, Some(number)) => [number; 2],
            (None, None) => [wanted.rq_psn, wanted.sq_psn],
        };
        self.write_context(qpn, 0, theirs, numbers_own);
        let own = u16::try_from(qpn).map_err(|_| AdminStatus::NotFound)?;
        let connection =
            RdmaConnection0 { qpn: own, remote_qpn: wanted.dest_qpn, udp_port: UDP_PORTS | own };
        let gid = u64::from(peer) << 32 | u64::from(peer);
        self.registers.store(v::RDMA_CONN_0, [connection.encode(), gid, gid, 0]);
        self.registers.store(v::NET_ARP, [ArpLookup { ipv4: peer }.encode(), 0, 0, 0]);
        let before = self.local(ctid);
        let to_rnic = tunnel.is_none() && !meets && self.settings.rnics.contains(&peer);
        if tunnel.is_some() {
            self.begin_count(ctid, RequestKind::Write);
        }
        let Some(space) = self.space(qpn) else { return Err(AdminStatus::NotFound) };
        space.closed = false;
        if let Some(qp) = &mut space.qp {
            (qp.before, qp.settled) = (before, now.saturating_add(SETTLE));
            qp.kind = tunnel.is_some().then_some(RequestKind::Write);
            qp.to_rnic = to_rnic;
            qp.tunnel = tunnel;
            qp.meeting = meets.then_some(Meeting::Connected);
        }
        Ok(())
    }

    /// Lets a QP send: only now its first number is known, and the card takes both numbers together.
    fn let_send(&mut self, qpn: u32, wanted: &Attributes) -> Result<(), AdminStatus> {
        let ctid = self.ctid(qpn).ok_or(AdminStatus::NotFound)?;
        let now = self.local(ctid);
        let space = self.spaces.get(usize::from(ctid));
        let qp = space.and_then(|space| space.qp.as_ref());
        if qp.is_some_and(|qp| qp.tunnel.is_some() || qp.meeting.is_some()) {
            return Ok(());
        }
        if qp.map(|qp| qp.before) != Some(now) {
            self.deny(qpn, "its peer has sent before this side was in RTS, and a published card would forget the numbers of that");
            return Err(AdminStatus::Busy);
        }
        self.write_context(qpn, 0, wanted.rq_psn, wanted.sq_psn);
        Ok(())
    }

    /// The reason why a message is not carried, if there is one.
    fn objection(&self, space: &Space, message: &Message) -> Option<&'static str> {
        let Some((kind, remote, rkey)) = request(message.operation) else {
            return Some("a published card has WRITE and READ; others need the tunnel");
        };
        if message.length == 0 || message.length % 4 != 0 {
            return Some(
                "a published card carries multiples of 4 bytes; other lengths need the tunnel",
            );
        }
        if remote.saturating_add(message.length.into()) > ADDRESSES {
            return Some("a published card has addresses of 48 bits");
        }
        let qp = space.qp.as_ref()?;
        if kind == RequestKind::Read && qp.attributes.max_rd_atomic == 0 {
            return Some("its max_rd_atomic is 0: it may have no READ out");
        }
        if qp.kind.is_some_and(|before| before != kind) {
            return Some(
                "WRITE and READ of one QP would meet in one cursor of the card; without the tunnel each wants a QP of its own",
            );
        }
        if qp.to_rnic && qp.rkey.is_some_and(|before| before != rkey) {
            return Some(
                "a published card names one key for each QP, and an RNIC looks at it; there is no tunnel to an RNIC, and each key wants a QP of its own",
            );
        }
        None
    }

    /// Prepares the card for the first request of a QP: which of its counters will tell the ends, and which key it names.
    fn begin(&mut self, qpn: u32, kind: RequestKind, rkey: u32) -> Result<(), TransportError> {
        let ctid = self.ctid(qpn).ok_or(TransportError::WrongState)?;
        let now = self.local(ctid);
        let qp = self.space(qpn).and_then(|space| space.qp.as_mut());
        let qp = qp.ok_or(TransportError::WrongState)?;
        let (before, to_rnic) = (qp.before, qp.to_rnic);
        let [theirs, own] = [qp.attributes.rq_psn, qp.attributes.sq_psn];
        if kind == RequestKind::Read && now >> 32 != before >> 32 {
            self.refuse(qpn, "its peer WRITEs to it, which a published card does not keep apart from its own READs; without the tunnel each direction wants a QP of its own");
            return Err(TransportError::Unsupported);
        }
        if to_rnic {
            if now != before {
                self.refuse(qpn, "its peer has sent before it did, so that the key of its requests can be told to the card no more; there is no tunnel to an RNIC, and each direction wants a QP of its own");
                return Err(TransportError::Unsupported);
            }
            qp.rkey = Some(rkey);
            self.write_context(qpn, rkey, theirs, own);
        }
        self.begin_count(ctid, kind);
        Ok(())
    }
}

impl<R: Registers> Transport for Posts<R> {
    fn name_qp(&mut self, _: QpType) -> Option<Result<u32, AdminStatus>> {
        // QPs 0 and 1 have a meaning of their own elsewhere.
        let first = if self.settings.vfpga == 0 { 2 } else { 0 };
        let free = (0..CTIDS).zip(&self.spaces).skip(first).filter(|(_, space)| space.is_free());
        // Packets that peers sent before a reset, and repeat, must not meet a queue pair that begins behind it.
        let begin = self.settings.past_lives.wrapping_mul(FURTHER) as u8;
        let age = |ctid: u8, freed| {
            (self.is_sent_to(self.qpn(ctid)), freed, ctid.wrapping_sub(begin) % CTIDS)
        };
        let ctid = free.map(|(ctid, space)| (age(ctid, space.freed), ctid)).min();
        let ctid = ctid.map(|(_, ctid)| ctid);
        Some(ctid.map(|ctid| self.qpn(ctid)).ok_or(AdminStatus::NoResources))
    }

    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus> {
        if command.kind != QpType::Rc {
            return Err(
                self.deny(qpn, "a published card has Reliable Connections; others need the tunnel")
            );
        }
        let space = self.space(qpn).filter(|space| space.is_free());
        let space = space.ok_or(AdminStatus::NoResources)?;
        space.qp = Some(Qp::default());
        Ok(())
    }

    fn modify_qp(&mut self, now: u64, qpn: u32, change: &Attributes) -> Result<(), AdminStatus> {
        let space = self.space(qpn).ok_or(AdminStatus::NotFound)?;
        let (busy, lost) = (!space.out.is_empty(), space.lost.is_some());
        let qp = space.qp.as_ref().ok_or(AdminStatus::NotFound)?;
        let from = qp.attributes.state;
        let mut wanted = qp.attributes;
        merge(&mut wanted, change);
        let moved =
            (wanted.dgid, wanted.sgid_index) != (qp.attributes.dgid, qp.attributes.sgid_index);
        let to = if change.mask.contains(M::STATE) { change.state } else { from };
        match (from, to) {
            (QpState::Init, QpState::Rtr) if lost => {
                let why = "its number rests until the card is reset; make another QP";
                self.deny(qpn, why);
                return Err(AdminStatus::NoResources);
            }
            (QpState::Init, QpState::Rtr) if busy => return Err(AdminStatus::Busy),
            (QpState::Init, QpState::Rtr) => self.connect(now, qpn, &wanted)?,
            (QpState::Rtr, QpState::Rts) => self.let_send(qpn, &wanted)?,
            (QpState::Sqd, QpState::Sqd) if moved => {
                return Err(self.deny(qpn, "a published card's connection keeps its path"));
            }
            _ => {}
        }
        let Some(qp) = self.space(qpn).and_then(|space| space.qp.as_mut()) else {
            return Err(AdminStatus::NotFound);
        };
        let resumes = (from, to) == (QpState::Sqd, QpState::Rts);
        let ends = matches!(to, QpState::Reset | QpState::Err);
        match to {
            QpState::Reset => *qp = Qp::default(),
            QpState::Err => {
                qp.attributes = wanted;
                qp.fail();
            }
            _ => {
                qp.attributes = wanted;
                qp.tells_drained = to == QpState::Sqd && (from != to || qp.tells_drained);
            }
        }
        match self.space(qpn) {
            Some(space) if resumes && space.out.is_empty() => space.progress = now,
            _ => {}
        }
        if ends {
            self.part(qpn);
        }
        Ok(())
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        let ctid = self.ctid(qpn)?;
        let qp = self.spaces.get(usize::from(ctid))?.qp.as_ref()?;
        Some(Attributes { sq_draining: qp.is_draining().into(), ..qp.attributes })
    }

    fn destroy_qp(&mut self, qpn: u32) {
        let freed = self.frees.wrapping_add(1);
        self.frees = freed;
        if let Some(space) = self.space(qpn) {
            (space.qp, space.freed) = (None, freed);
        }
        self.part(qpn);
    }

    fn room(&self, qpn: u32) -> usize {
        let space = self.ctid(qpn).and_then(|ctid| self.spaces.get(usize::from(ctid)));
        let qp = space.and_then(|space| space.qp.as_ref());
        qp.map_or(0, |qp| MESSAGES.saturating_sub(qp.messages.len()))
    }

    fn submit(&mut self, now: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let ctid = self.ctid(qpn).ok_or(TransportError::WrongState)?;
        let Some(space) = self.spaces.get(usize::from(ctid)) else {
            return Err(TransportError::WrongState);
        };
        let qp = space.qp.as_ref().ok_or(TransportError::WrongState)?;
        if qp.attributes.state != QpState::Rts || space.lost.is_some() {
            return Err(TransportError::WrongState);
        }
        if qp.messages.len() >= MESSAGES {
            return Err(TransportError::Full);
        }
        if let Some(why) = self.objection(space, message) {
            self.refuse(qpn, why);
            return Err(TransportError::Unsupported);
        }
        let (kind, remote, rkey) = request(message.operation).ok_or(TransportError::Unsupported)?;
        if qp.kind.is_none() {
            self.begin(qpn, kind, rkey)?;
        }
        let Some(space) = self.spaces.get_mut(usize::from(ctid)) else {
            return Err(TransportError::WrongState);
        };
        let Some(qp) = space.qp.as_mut() else { return Err(TransportError::WrongState) };
        if space.out.is_empty() && qp.messages.is_empty() {
            space.progress = now;
        }
        qp.kind = Some(kind);
        let (length, posted) = (message.length, 0);
        qp.messages.push_back(Queued { remote, length, posted, failed: None, staged: None });
        let number = qp.next;
        qp.next = number.wrapping_add(1);
        Ok(number)
    }

    fn counters(&self) -> Vec<u64> {
        vec![0; COUNTERS.len()]
    }

    fn port(&self) -> Option<PortAttributes> {
        let mac = self.settings.mac;
        let mtu = MTU;
        Some(PortAttributes {
            mac,
            link_up: 1,
            max_mtu: mtu,
            active_mtu: mtu,
            ..PortAttributes::default()
        })
    }

    fn set_gid(&mut self, index: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        if let Some(place) = self.gids.get_mut(usize::from(index)) {
            *place = gid;
        }
        Ok(())
    }
}
