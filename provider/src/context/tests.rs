use hostmem::{Liveness, memfd};
use shim_abi::{Refusal, Reply};

use super::*;
use crate::control::tests::{self as control, Answer, Script, answer, greeting};
use crate::ffi::types::zeroed;
use crate::qp::tests::queues_of;

use AttributeMask as M;

/// A QP in RESET of a card, and the balboad that has it.
struct Bench {
    context: Context,
    qp: Qp,
    script: Script,
    /// The life of the card.
    card: Option<Liveness>,
}

impl Bench {
    /// The answers about the QP.
    fn new(answers: Vec<Answer>) -> Self {
        let (words, writer) = memfd::create_read_only_for_others("words", PAGE_BYTES).unwrap();
        let card = Some(Liveness::hold(Arc::new(writer), 64).unwrap());
        let opening = control::context(true, control::granted_with(words));
        let all = [greeting(), opening].into_iter().chain(answers).collect();
        let script = control::script(all);
        let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
        let opened = connection.open_context(0).unwrap();
        let asynchronous = Arc::new(EventSource::asynchronous(Arc::clone(&opened.path)));
        let context = Context { connection: Arc::new(connection), opened, asynchronous };
        let queues = queues_of(QpType::Rc);
        queues.set_state(QpState::Reset);
        let (cap, cookie, init) = (zeroed(), 1, Mutex::default());
        let qp = Qp { queues, cap, cqs: None, target: None, cookie, init };
        Self { context, qp, script, card }
    }

    fn modify(&self, attributes: &Attributes) -> Result<()> {
        self.context.modify_qp(&self.qp, attributes)
    }

    fn state(&self) -> QpState {
        self.qp.queues.state()
    }

    /// The requests about the QP.
    fn asked(self) -> Vec<Request> {
        let asked = self.script.server.join().unwrap();
        asked.iter().skip(2).map(|request| shim_abi::decode(request).unwrap()).collect()
    }
}

fn modified() -> Answer {
    answer(Response::QpModified { generation: 0 })
}

fn init() -> Attributes {
    let (mask, state, current_state) = (Init::MASK, QpState::Init, QpState::Init);
    Attributes { mask, state, current_state, port: 1, access: 2, ..Attributes::default() }
}

fn to(state: QpState) -> Attributes {
    Attributes { mask: M::STATE | M::SQ_PSN, state, sq_psn: 5, ..Attributes::default() }
}

/// The request for a change of the QP.
fn request(bench: &Bench, first: Option<&Attributes>, attributes: &Attributes) -> Request {
    let (qpn, first) = (bench.qp.queues.qpn(), first.map(Attributes::encode));
    Request::ModifyQp { qpn, first, attributes: attributes.encode() }
}

#[test]
fn a_change_to_init_goes_with_the_next_one() {
    let bench = Bench::new(vec![modified(), modified()]);
    let from_reset = Attributes { current_state: QpState::Reset, ..init() };
    for again in [from_reset, init(), init()] {
        bench.modify(&again).unwrap();
        assert_eq!(bench.state(), QpState::Init);
    }
    assert_eq!(bench.qp.queues.receive.begin().err(), None, "receives can be posted");
    for state in [QpState::Rtr, QpState::Rts] {
        bench.modify(&to(state)).unwrap();
        assert_eq!(bench.state(), state);
    }
    let wanted = [
        request(&bench, Some(&init()), &to(QpState::Rtr)),
        request(&bench, None, &to(QpState::Rts)),
    ];
    assert_eq!(bench.asked(), wanted);
}

#[test]
fn a_change_to_init_goes_again_with_the_one_behind_a_refused_one() {
    let refusal = Refusal { errno: libc::EADDRINUSE, reason: "another's".into() };
    let refused = (shim_abi::encode(&Reply::Err(refusal)), Vec::new());
    let bench = Bench::new(vec![refused, modified()]);
    bench.modify(&init()).unwrap();
    let error = bench.modify(&to(QpState::Rtr)).unwrap_err();
    assert_eq!((error.errno(), bench.state()), (libc::EADDRINUSE, QpState::Init));
    bench.modify(&init()).unwrap();
    bench.modify(&to(QpState::Rtr)).unwrap();
    let wanted = request(&bench, Some(&init()), &to(QpState::Rtr));
    assert_eq!(bench.asked(), [wanted.clone(), wanted]);
}

#[test]
fn a_query_is_of_the_state_that_the_program_has_chosen() {
    let attributes = init().encode();
    let bench =
        Bench::new(vec![modified(), answer(Response::QpAttributes { attributes }), modified()]);
    bench.modify(&init()).unwrap();
    assert_eq!(bench.context.query_qp(&bench.qp).unwrap().state, QpState::Init);
    bench.modify(&to(QpState::Rtr)).unwrap();
    let wanted = [
        request(&bench, None, &init()),
        Request::QueryQp { qpn: bench.qp.queues.qpn() },
        request(&bench, None, &to(QpState::Rtr)),
    ];
    assert_eq!(bench.asked(), wanted);
}

#[test]
fn balboad_is_told_at_once_of_what_it_may_refuse() {
    // A Q_Key may be a privileged one, and balboad may know of another state than the program names.
    let datagrams = Attributes { mask: init().mask | M::QKEY, ..init() };
    let named = Attributes { mask: init().mask | M::CURRENT_STATE, ..init() };
    for change in [datagrams, named, Attributes { mask: M::STATE, ..init() }] {
        let bench = Bench::new(vec![modified()]);
        bench.modify(&change).unwrap();
        let wanted = request(&bench, None, &change);
        assert_eq!(bench.asked(), [wanted]);
    }
    let mut bench = Bench::new(vec![modified()]);
    drop(bench.card.take());
    bench.modify(&init()).unwrap();
    let wanted = request(&bench, None, &init());
    assert_eq!(bench.asked(), [wanted], "the card is dead");
}

#[test]
fn a_queue_pair_whose_balboad_has_gone_does_not_come_to_init() {
    let bench = Bench::new(vec![answer(Response::QpAttributes { attributes: init().encode() })]);
    bench.context.query_qp(&bench.qp).unwrap();
    bench.qp.queues.set_state(QpState::Reset);
    let Bench { context, qp, script, card: _card } = bench;
    script.server.join().unwrap();
    assert!(matches!(context.query_qp(&qp), Err(Error::Gone)));
    assert!(matches!(context.modify_qp(&qp, &init()), Err(Error::Gone)));
    assert_eq!(qp.queues.state(), QpState::Reset);
}
