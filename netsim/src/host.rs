//! A host: the transport of one port, over memory that is a length only.

use std::task::Poll;

use roce::{
    AccessDenied, AccessFlags, AddressVector, Event, Gid, IcrcPolicy, PathMtu, Placed, Placement,
    Psn, QpAttributes, QpState, Qpn, ReceiveError, ReceivedFrame, RemoteAccess, RemoteRange,
    Service, Stack, StackConfig, TakenReceive, Target, Transmit, Verbs,
};

use crate::frame::{Frame, mac_of};
use crate::time::Time;

/// The first queue pair number of a host; the others follow.
const FIRST_QPN: u32 = 2;

/// The path MTU of all connections.
const MTU: PathMtu = PathMtu::Mtu4096;

/// The acknowledgement timeout, 4.096 µs · 2^12 = 17 ms: longer than full buffers hold a packet up.
const TIMEOUT: u8 = 12;

/// Memory that everybody may write, and that keeps nothing.
#[derive(Debug, Default)]
struct Anything;

impl Verbs for Anything {
    fn check_remote(
        &mut self,
        _target: Target,
        _memory: RemoteRange,
        _access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Ok(()))
    }

    fn take_receive(&mut self, _target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Empty))
    }
}

/// A frame whose payload nobody looks at: its invariant CRC is taken to be right.
struct Vouched<'a>(&'a mut [u8]);

impl ReceivedFrame for Vouched<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0
    }

    fn is_vouched_for(&self) -> bool {
        true
    }
}

/// One host.
#[derive(Debug)]
pub struct Host {
    /// Its transport.
    pub stack: Stack,
    /// Its port.
    pub port: u32,
    /// An event wakes it then.
    pub wakes_at: Time,
    /// The flow of each of its queue pairs.
    flows: Vec<u32>,
    placements: Vec<Placement>,
}

impl Host {
    /// A host without queue pairs.
    #[must_use]
    pub fn new(number: u32, port: u32) -> Self {
        let [_, b, c, d] = number.to_be_bytes();
        let config = StackConfig {
            mac: mac_of(number),
            ipv4: [10, b, c, d].into(),
            mtu_max: MTU,
            icrc_policy: IcrcPolicy::TrustVouchedFor,
        };
        Self {
            stack: Stack::new(config),
            port,
            wakes_at: Time::NEVER,
            flows: Vec::new(),
            placements: Vec::new(),
        }
    }

    /// The queue pair that it makes next.
    #[must_use]
    pub fn next_qpn(&self) -> Qpn {
        Qpn::new(FIRST_QPN + self.flows.len() as u32).unwrap_or(Qpn::GROUP)
    }

    /// Makes a queue pair of a flow, connected with the one of this number at host `peer`, whose address tells its
    /// Ethernet address: nobody is asked for it.
    pub fn connect(
        &mut self,
        flow: u32,
        peer: u32,
        peer_qpn: Qpn,
        traffic_class: u8,
    ) -> Result<Qpn, roce::Error> {
        let qpn = self.next_qpn();
        self.stack.create_qp(qpn, Service::Rc, 0)?;
        let dgid = Gid::from_ipv6(mac_of(peer).link_local());
        let path = AddressVector {
            sgid_index: 0,
            dgid,
            hop_limit: 64,
            traffic_class,
            flow_label: 0,
            sl: 0,
        };
        let (access, psn) = (Some(AccessFlags::REMOTE_WRITE), Some(Psn::new(0)));
        let default = QpAttributes::default;
        let init =
            QpAttributes { state: Some(QpState::Init), pkey_index: Some(0), access, ..default() };
        let rtr = QpAttributes {
            state: Some(QpState::Rtr),
            path: Some(path),
            path_mtu: Some(MTU),
            dest_qpn: Some(peer_qpn),
            rq_psn: psn,
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..default()
        };
        let rts = QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: psn,
            timeout: Some(TIMEOUT),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..default()
        };
        for change in [init, rtr, rts] {
            self.stack.modify_qp(Time(0).instant(), qpn, &change)?;
        }
        self.flows.push(flow);
        Ok(qpn)
    }

    /// The flow of one of its queue pairs.
    #[must_use]
    pub fn flow(&self, qpn: Qpn) -> u32 {
        self.flows[(qpn.value() - FIRST_QPN) as usize]
    }

    /// Receives a frame. `arrived` hears how many bytes of payload each flow has got.
    pub fn receive(
        &mut self,
        now: Time,
        frame: &Frame,
        buffer: &mut Vec<u8>,
        mut arrived: impl FnMut(u32, u64),
    ) {
        let now = now.instant();
        let mut frame = Vouched(frame.write(buffer));
        let mut placements = std::mem::take(&mut self.placements);
        // This layer decides everything at once.
        let _ = self.stack.receive(now, &mut frame, 0, &mut Anything, &mut placements);
        for placement in &placements {
            arrived(self.flow(placement.qpn), placement.range.len() as u64);
        }
        // A packet of a connection has one payload at most.
        self.stack.commit(now, &[Placed::Copied][..placements.len().min(1)]);
        placements.clear();
        self.placements = placements;
    }

    /// The next frame to send.
    pub fn transmit(&mut self, now: Time) -> Option<Transmit> {
        let transmit = self.stack.poll_transmit(now.instant())?;
        self.stack.frames_made();
        Some(transmit)
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.stack.poll_event()
    }
}
