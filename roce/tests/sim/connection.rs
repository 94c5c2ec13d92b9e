//! Connected queue pairs.

use roce::{AccessFlags, AddressVector, Gid, Instant, PathMtu, Psn, QpAttributes, QpState, Qpn};

use crate::network::Network;

/// The attributes of both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub mtu: PathMtu,
    pub ipv4: bool,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub access: AccessFlags,
    pub traffic_class: u8,
    /// The first PSNs in both directions; drawn at random if not given.
    pub psns: Option<(u32, u32)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: PathMtu::Mtu1024,
            ipv4: true,
            // 1 ms.
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: AccessFlags::all(),
            traffic_class: 0,
            psns: None,
        }
    }
}

/// The side of a connection that a queue pair has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It sends and receives.
    Both,
    /// It sends along XRC.
    Sends,
    /// It receives along XRC.
    Receives,
}

impl Side {
    /// The part of a change that concerns this side.
    pub fn of(self, change: &QpAttributes) -> QpAttributes {
        match self {
            Self::Both => *change,
            Self::Sends => {
                QpAttributes { max_dest_rd_atomic: None, min_rnr_timer: None, ..*change }
            }
            Self::Receives => {
                QpAttributes { max_rd_atomic: None, retry_cnt: None, rnr_retry: None, ..*change }
            }
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    pub node: usize,
    pub qpn: Qpn,
}

impl Network {
    /// A queue pair number that node `node` does not use yet.
    fn free_qpn(&mut self, node: usize) -> Qpn {
        loop {
            let qpn = Qpn::new(self.rng.between(2, 0xff_fffe) as u32).unwrap();
            if self.sim.hosts[node].stack.query_qp(qpn).is_none() {
                return qpn;
            }
        }
    }

    /// The GID by which node `node` is reached.
    pub fn gid(&self, node: usize, ipv4: bool) -> Gid {
        let node = &self.sim.hosts[node];
        if ipv4 { Gid::from_ipv4(node.ipv4) } else { Gid::from_ipv6(node.mac.link_local()) }
    }

    /// Creates a connected pair of queue pairs in RTS.
    pub fn connect(&mut self, a: usize, b: usize, options: &Options) -> (End, End) {
        let one = End { node: a, qpn: self.free_qpn(a) };
        self.sim.hosts[a].stack.create_qp(one.qpn, roce::Service::Rc, 0).unwrap();
        let other = End { node: b, qpn: self.free_qpn(b) };
        self.sim.hosts[b].stack.create_qp(other.qpn, roce::Service::Rc, 0).unwrap();
        let (to_other, to_one) = options
            .psns
            .unwrap_or_else(|| (self.rng.below(1 << 24) as u32, self.rng.below(1 << 24) as u32));
        self.bring_up(one, other, to_other, to_one, options);
        self.bring_up(other, one, to_one, to_other, options);
        (one, other)
    }

    /// Creates a connected pair of XRC queue pairs in RTS: from `a` to the shared receive queues of a domain at
    /// `b`.
    pub fn connect_xrc(
        &mut self,
        a: usize,
        b: usize,
        domain: u32,
        options: &Options,
    ) -> (End, End) {
        let one = End { node: a, qpn: self.free_qpn(a) };
        self.sim.hosts[a].stack.create_qp(one.qpn, roce::Service::XrcSend, 0).unwrap();
        let other = End { node: b, qpn: self.free_qpn(b) };
        self.sim.hosts[b]
            .stack
            .create_qp(other.qpn, roce::Service::XrcReceive { domain }, 0)
            .unwrap();
        let (to_other, to_one) = options
            .psns
            .unwrap_or_else(|| (self.rng.below(1 << 24) as u32, self.rng.below(1 << 24) as u32));
        self.bring_up_side(Side::Sends, (one, other), (to_other, to_one), options);
        self.bring_up_side(Side::Receives, (other, one), (to_one, to_other), options);
        (one, other)
    }

    /// Takes a queue pair from RESET to RTS.
    pub fn bring_up(&mut self, own: End, peer: End, sq_psn: u32, rq_psn: u32, options: &Options) {
        self.bring_up_side(Side::Both, (own, peer), (sq_psn, rq_psn), options);
    }

    fn bring_up_side(
        &mut self,
        side: Side,
        (own, peer): (End, End),
        (sq_psn, rq_psn): (u32, u32),
        options: &Options,
    ) {
        self.modify(own, &to_init(options));
        let dgid = self.gid(peer.node, options.ipv4);
        self.modify(own, &side.of(&to_rtr(options, dgid, peer.qpn, rq_psn)));
        self.modify(own, &side.of(&to_rts(options, sq_psn)));
    }

    pub fn modify(&mut self, end: End, change: &QpAttributes) {
        let now = Instant(self.now());
        self.sim.hosts[end.node].stack.modify_qp(now, end.qpn, change).unwrap();
        self.wake(end.node);
    }

    pub fn set_state(&mut self, end: End, state: QpState) {
        self.modify(end, &QpAttributes { state: Some(state), ..QpAttributes::default() });
    }

    pub fn state(&self, end: End) -> QpState {
        self.sim.hosts[end.node].stack.query_qp(end.qpn).unwrap().state
    }
}

pub fn to_init(options: &Options) -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        access: Some(options.access),
        ..QpAttributes::default()
    }
}

pub fn to_rtr(options: &Options, dgid: Gid, dest_qpn: Qpn, rq_psn: u32) -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Rtr),
        path: Some(AddressVector {
            hop_limit: 1,
            traffic_class: options.traffic_class,
            ..AddressVector::new(u8::from(options.ipv4), dgid)
        }),
        path_mtu: Some(options.mtu),
        dest_qpn: Some(dest_qpn),
        rq_psn: Some(Psn::new(rq_psn)),
        max_dest_rd_atomic: Some(options.max_dest_rd_atomic),
        min_rnr_timer: Some(options.min_rnr_timer),
        ..QpAttributes::default()
    }
}

pub fn to_rts(options: &Options, sq_psn: u32) -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(sq_psn)),
        timeout: Some(options.timeout),
        retry_cnt: Some(options.retry_cnt),
        rnr_retry: Some(options.rnr_retry),
        max_rd_atomic: Some(options.max_rd_atomic),
        ..QpAttributes::default()
    }
}
