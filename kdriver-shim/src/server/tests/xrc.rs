//! XRC domains, their queues, and targets, of several clients together.

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use shim_abi::{CreateQp, FileId};

use super::bench::{Peer, records, wanted_qp};
use super::*;

const FILE: FileId = FileId { device: 8, inode: 99 };
const COOKIE: u64 = 0xfeed;

/// A client with a context and a handle of the domain of [`FILE`].
struct Member {
    peer: Peer,
    context: u32,
    pdn: u32,
    cqn: u32,
    xrcd: u32,
    fds: Vec<OwnedFd>,
}

fn open(context: u32) -> Request {
    Request::OpenXrcd { context, file: Some(FILE), creates: true, exclusive: false }
}

impl Member {
    fn new(bench: &mut Bench) -> Self {
        let peer = bench.provider();
        let (context, fds) = bench.open(&peer, 0);
        let context = context.context;
        let pdn = bench.pd(&peer, context);
        let (cqn, _) = bench.cq(&peer, context, None);
        let Response::Xrcd { xrcd } = bench.ask(&peer, open(context)).0 else { panic!() };
        Self { peer, context, pdn, cqn, xrcd, fds }
    }

    fn srq(&self) -> Request {
        let &Self { xrcd, pdn, cqn, .. } = self;
        Request::CreateXrcSrq { xrcd, pdn, cqn, log2_entries: 4, log2_stride: 0, cookie: 0xbeef }
    }

    fn target(&self, bench: &mut Bench, request: Request) -> (u32, u32) {
        match bench.ask(&self.peer, request).0 {
            Response::Target { target, qpn } => (target, qpn),
            other => panic!("{other:?}"),
        }
    }

    fn create(&self, bench: &mut Bench) -> (u32, u32) {
        self.target(bench, Request::CreateTarget { xrcd: self.xrcd, cookie: COOKIE })
    }

    fn share(&self, bench: &mut Bench, qpn: u32) -> u32 {
        let (xrcd, cookie) = (self.xrcd, COOKIE + 1);
        self.target(bench, Request::OpenTarget { xrcd, qpn, cookie }).0
    }

    fn refused(&self, bench: &mut Bench, request: Request) -> Refusal {
        bench.refused(&self.peer, request)
    }

    /// The records of targets that it got: cookies and events.
    fn told(&self) -> Vec<(u64, u32)> {
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let events = records(&self.fds[0]);
        events.iter().map(|it| (number(&it[..8]), number(&it[8..12]) as u32)).collect()
    }
}

fn live(bench: &Bench, window: u8, made_by: Opcode) -> usize {
    bench.cards[0].window(window.into(), |w| w.live.iter().filter(|it| it.0 == made_by).count())
}

fn goes(target: u32, state: QpState) -> Request {
    let attributes = Attributes { mask: AttributeMask::STATE, state, ..Attributes::default() };
    Request::ModifyTarget { target, attributes: attributes.encode() }
}

#[test]
fn a_target_is_anybodys_of_its_domain_and_ends_with_the_last_who_has_it() {
    // Each is on a window of its own.
    let mut bench = Bench::new(1, 2);
    let (one, other) = (Member::new(&mut bench), Member::new(&mut bench));
    let (made, qpn) = one.create(&mut bench);
    let opened = other.share(&mut bench, qpn);
    bench.ask(&other.peer, goes(opened, QpState::Err));
    let query = Request::QueryTarget { target: made };
    let Response::QpAttributes { attributes } = bench.ask(&one.peer, query).0 else { panic!() };
    assert_eq!(Attributes::decode(&attributes).state, QpState::Err);
    bench.ask(&one.peer, goes(made, QpState::Reset));
    let last = u32::from(QpEvent::LastWqeReached.0);
    assert_eq!((one.told(), other.told()), (vec![(COOKIE, last)], vec![(COOKIE + 1, last)]));
    // Its maker gives it up, and it is still there.
    let answer = bench.ask(&one.peer, Request::DestroyTarget { target: made }).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 0, async_events: 1 });
    assert_eq!(live(&bench, 0, Opcode::CreateQp), 1);
    let again = one.share(&mut bench, qpn);
    bench.ask(&one.peer, Request::DestroyTarget { target: again });
    bench.ask(&other.peer, Request::DestroyTarget { target: opened });
    assert_eq!(live(&bench, 0, Opcode::CreateQp), 0);
    let (xrcd, cookie) = (one.xrcd, COOKIE);
    let refusal = one.refused(&mut bench, Request::OpenTarget { xrcd, qpn, cookie });
    assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
}

#[test]
fn a_target_outlives_its_maker_as_long_as_another_client_has_it() {
    let mut bench = Bench::new(1, 2);
    let (one, other) = (Member::new(&mut bench), Member::new(&mut bench));
    let (_, qpn) = one.create(&mut bench);
    let opened = other.share(&mut bench, qpn);
    drop(one);
    bench.turn();
    assert_eq!(live(&bench, 0, Opcode::CreateQp), 1);
    let code = QpEvent::CommunicationEstablished.0;
    bench.cards[0].raise(0, Event { kind: EventType::Qp, code, number: qpn, ..Event::default() });
    bench.turn();
    assert_eq!(other.told(), [(COOKIE + 1, code.into())]);
    bench.ask(&other.peer, Request::QueryTarget { target: opened });
    drop(other);
    bench.turn();
    assert_eq!(live(&bench, 0, Opcode::CreateQp), 0);
    assert_eq!(bench.server.cards[0].xrc.count(), (0, 0));
    assert_eq!(bench.server.cards[0].users[0].listeners.count(), Default::default());
}

#[test]
fn targets_are_found_in_their_own_domain_only_and_handles_are_their_clients() {
    let mut bench = Bench::new(1, 1);
    let (one, other) = (Member::new(&mut bench), Member::new(&mut bench));
    let (target, qpn) = one.create(&mut bench);
    let open =
        Request::OpenXrcd { context: other.context, file: None, creates: true, exclusive: false };
    let Response::Xrcd { xrcd } = bench.ask(&other.peer, open).0 else { panic!() };
    let refusal = other.refused(&mut bench, Request::OpenTarget { xrcd, qpn, cookie: 0 });
    assert!(refusal.reason.contains("in that domain"), "{refusal:?}");
    for request in [
        goes(target, QpState::Reset),
        Request::QueryTarget { target },
        Request::DestroyTarget { target },
        Request::QueryQp { qpn },
        Request::DestroyQp { qpn },
        Request::CloseXrcd { xrcd: 4096 },
    ] {
        assert_eq!(other.refused(&mut bench, request).errno, Errno::EINVAL as i32);
    }
}

#[test]
fn a_domain_stays_while_something_of_its_client_is_in_it() {
    let mut bench = Bench::new(1, 1);
    let one = Member::new(&mut bench);
    let close = Request::CloseXrcd { xrcd: one.xrcd };
    let (target, _) = one.create(&mut bench);
    assert_eq!(one.refused(&mut bench, close.clone()).errno, Errno::EBUSY as i32);
    bench.ask(&one.peer, Request::DestroyTarget { target });
    let Response::Srq { srqn, .. } = bench.ask(&one.peer, one.srq()).0 else { panic!() };
    for request in [
        close.clone(),
        Request::DestroyCq { cqn: one.cqn },
        Request::DeallocPd { pdn: one.pdn },
        Request::CloseContext { context: one.context },
    ] {
        assert_eq!(one.refused(&mut bench, request).errno, Errno::EBUSY as i32);
    }
    let wanted = CreateQp { srqn: Some(srqn), ..wanted_qp(one.pdn, one.cqn) };
    let refusal = one.refused(&mut bench, Request::CreateQp(wanted));
    assert!(refusal.reason.contains("XRC domain"), "{refusal:?}");
    bench.ask(&one.peer, Request::ModifySrq { srqn, limit: 3 });
    bench.ask(&one.peer, Request::DestroySrq { srqn });
    bench.ask(&one.peer, Request::DestroyCq { cqn: one.cqn });
    bench.ask(&one.peer, close.clone());
    assert_eq!(one.refused(&mut bench, close).errno, Errno::EINVAL as i32);
    assert_eq!(bench.server.cards[0].xrc.count(), (0, 0));
    let open = |creates, exclusive| Request::OpenXrcd {
        context: one.context,
        file: Some(FILE),
        creates,
        exclusive,
    };
    assert_eq!(one.refused(&mut bench, open(false, false)).errno, Errno::EAGAIN as i32);
    bench.ask(&one.peer, open(true, true));
    assert_eq!(one.refused(&mut bench, open(true, true)).errno, Errno::EINVAL as i32);
}

#[test]
fn an_initiator_has_no_receive_queue() {
    let mut bench = Bench::new(1, 1);
    let one = Member::new(&mut bench);
    let kind = QpType::XrcSend.0;
    let wanted = CreateQp { kind, receive_cqn: 0, ..wanted_qp(one.pdn, one.cqn) };
    let Response::Qp { qpn, receive, .. } = bench.ask(&one.peer, Request::CreateQp(wanted)).0
    else {
        panic!()
    };
    assert_eq!((receive, live(&bench, 0, Opcode::CreateRq)), (None, 0));
    bench.ask(&one.peer, Request::DestroyQp { qpn });
    let kind = QpType::XrcReceive.0;
    let wanted = CreateQp { kind, ..wanted_qp(one.pdn, one.cqn) };
    let refusal = one.refused(&mut bench, Request::CreateQp(wanted));
    assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
}

#[test]
fn what_is_left_of_a_window_that_was_started_anew_leads_nowhere() {
    let mut bench = Bench::new(1, 2);
    let (one, other) = (Member::new(&mut bench), Member::new(&mut bench));
    let (_, qpn) = one.create(&mut bench);
    let opened = other.share(&mut bench, qpn);
    bench.server.cards[0].window(0).unwrap().engine.abandon("it was told to");
    bench.turn();
    drop(one);
    bench.turn();
    let refusal = other.refused(&mut bench, Request::QueryTarget { target: opened });
    assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
    bench.ask(&other.peer, Request::DestroyTarget { target: opened });
    bench.ask(&other.peer, Request::CloseXrcd { xrcd: other.xrcd });
    assert_eq!(bench.server.cards[0].xrc.count(), (0, 0));
}

#[test]
fn a_card_without_xrc_refuses_it() {
    let mut bench = Bench::lacking(Capabilities::XRC, 1, 1);
    let peer = bench.provider();
    let (context, _fds) = bench.open(&peer, 0);
    let refusal = bench.refused(&peer, open(context.context));
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32, "{refusal:?}");
}
