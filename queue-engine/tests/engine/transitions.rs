//! The states of an RC QP: every pair, with its required and allowed attributes.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use fpga_regs::engine::transition;
use fpga_regs::engine::window::{Capabilities, LimitRate};
use queue_engine::EngineConfig;

use crate::engine::support::bench::{Bench, sound_attributes, standard};
use crate::engine::support::client::ClientQp;
use crate::engine::support::device::{Need, needs};
use crate::engine::support::manual::Manual;

use QpState as S;

const STATES: [QpState; 6] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Err];

/// Every transition, with its required attributes, and the optional ones beside those and the states.
const TABLE: &[(QpState, QpState, &[M], &[M])] = &[
    (S::Reset, S::Reset, &[], &[]),
    (S::Reset, S::Init, &[M::PKEY_INDEX, M::PORT, M::ACCESS], &[]),
    (S::Reset, S::Err, &[], &[]),
    (S::Init, S::Reset, &[], &[]),
    (S::Init, S::Init, &[], &[M::PKEY_INDEX, M::PORT, M::ACCESS]),
    (
        S::Init,
        S::Rtr,
        &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER],
        &[M::ACCESS, M::PKEY_INDEX],
    ),
    (S::Init, S::Err, &[], &[]),
    (S::Rtr, S::Reset, &[], &[]),
    (
        S::Rtr,
        S::Rts,
        &[M::TIMEOUT, M::RETRY_COUNT, M::RNR_RETRY, M::SQ_PSN, M::MAX_RD_ATOMIC],
        &[M::ACCESS, M::MIN_RNR_TIMER],
    ),
    (S::Rtr, S::Err, &[], &[]),
    (S::Rts, S::Reset, &[], &[]),
    (S::Rts, S::Rts, &[], &[M::ACCESS, M::MIN_RNR_TIMER]),
    (S::Rts, S::Sqd, &[], &[M::EN_SQD_ASYNC_NOTIFY]),
    (S::Rts, S::Err, &[], &[]),
    (S::Sqd, S::Reset, &[], &[]),
    (S::Sqd, S::Rts, &[], &[M::ACCESS, M::MIN_RNR_TIMER]),
    (
        S::Sqd,
        S::Sqd,
        &[],
        &[
            M::ACCESS,
            M::MIN_RNR_TIMER,
            M::PKEY_INDEX,
            M::PORT,
            M::AV,
            M::TIMEOUT,
            M::RETRY_COUNT,
            M::RNR_RETRY,
            M::MAX_RD_ATOMIC,
            M::MAX_DEST_RD_ATOMIC,
        ],
    ),
    (S::Sqd, S::Err, &[], &[]),
    (S::Err, S::Reset, &[], &[]),
    (S::Err, S::Err, &[], &[]),
];

struct Fixture {
    bench: Bench<Manual>,
    qp: ClientQp,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(8);
        let rq = bench.create_rq(0, 0);
        let qp = bench.create_qp(2, &cq, &cq, rq);
        Self { bench, qp }
    }

    /// Puts the QP in a state, from any other.
    fn put(&mut self, state: QpState) {
        let qpn = self.qp.qpn;
        self.bench.go(qpn, S::Reset);
        match state {
            S::Reset => {}
            S::Sqd => {
                self.bench.climb(qpn, S::Rts);
                self.bench.go(qpn, S::Sqd);
            }
            S::Err => drop(self.bench.go(qpn, S::Err)),
            _ => self.bench.climb(qpn, state),
        }
    }

    fn modify(&mut self, mask: M, to: QpState) -> AdminStatus {
        let attributes = Attributes { mask, state: to, ..sound_attributes() };
        self.bench.modify(self.qp.qpn, &attributes).status
    }

    fn state(&mut self) -> QpState {
        self.bench.query(self.qp.qpn).state
    }
}

fn union(masks: &[M]) -> M {
    masks.iter().copied().collect()
}

#[test]
fn exactly_the_transitions_of_the_table_exist() {
    let mut fixture = Fixture::new();
    for from in STATES {
        for to in STATES.into_iter().chain([S::Sqe, QpState(7), QpState(255)]) {
            let entry = TABLE.iter().find(|entry| (entry.0, entry.1) == (from, to));
            let mask = M::STATE | entry.map_or(M::empty(), |entry| union(entry.2));
            fixture.put(from);
            let status = fixture.modify(mask, to);
            let expected = entry.map_or(AdminStatus::BadState, |_| AdminStatus::Success);
            assert_eq!(status, expected, "{from:?} -> {to:?}");
            assert_eq!(fixture.state(), if entry.is_some() { to } else { from });
        }
    }
}

#[test]
fn each_required_attribute_is_required() {
    let mut fixture = Fixture::new();
    for &(from, to, required, _) in TABLE {
        for &missing in required {
            fixture.put(from);
            let status = fixture.modify(M::STATE | (union(required) - missing), to);
            assert_eq!(status, AdminStatus::Invalid, "{from:?} -> {to:?} without {missing:?}");
            assert_eq!(fixture.state(), from);
        }
    }
}

#[test]
fn each_attribute_is_allowed_exactly_where_the_table_says() {
    let mut fixture = Fixture::new();
    for &(from, to, required, optional) in TABLE {
        let further = transition::further(QpType::Rc, from, to, standard().capabilities);
        let allowed = union(required) | union(optional) | further | M::STATE;
        for bit in (0..32).map(|bit| M::from_bits_retain(1 << bit)) {
            fixture.put(from);
            let attributes = Attributes {
                mask: M::STATE | union(required) | bit,
                state: to,
                current_state: from,
                ..sound_attributes()
            };
            let status = fixture.bench.modify(fixture.qp.qpn, &attributes).status;
            let good = allowed.contains(bit) || bit == M::CURRENT_STATE;
            let expected = if good { AdminStatus::Success } else { AdminStatus::Invalid };
            assert_eq!(status, expected, "{from:?} -> {to:?} with {bit:?}");
        }
    }
}

#[test]
fn every_change_is_judged_as_the_shared_table_judges_it() {
    let mut fixture = Fixture::new();
    for from in STATES {
        for change in transition::changes(QpType::Rc, from) {
            fixture.put(from);
            let Attributes { mask, state, current_state, .. } = change;
            let attributes = Attributes { mask, state, current_state, ..sound_attributes() };
            let status = fixture.bench.modify(fixture.qp.qpn, &attributes).status;
            let judged = transition::check(QpType::Rc, from, &change, standard().capabilities);
            let expected = judged.map_or_else(AdminStatus::from, |_| AdminStatus::Success);
            assert_eq!(status, expected, "{from:?}: {change:?}");
            assert_eq!(fixture.state(), judged.unwrap_or(from), "{from:?}: {change:?}");
        }
    }
}

/// A change to a rate, with a burst and a packet of so many bytes.
fn rate(rate_limit: u32, max_burst: u32, typical_packet: u16) -> Attributes {
    let mask = M::RATE_LIMIT;
    Attributes { mask, rate_limit, max_burst, typical_packet, ..sound_attributes() }
}

#[test]
fn a_rate_within_its_range_reaches_the_transport_and_no_other_does() {
    needs!(Capabilities::RATE_LIMIT);
    let mut fixture = Fixture::new();
    let (qpn, LimitRate { min, max }) = (fixture.qp.qpn, standard().rates);
    fixture.put(S::Rts);
    for good in [rate(min, 0, 0), rate(max, 9_000, 9_000), rate(min, 0, 1_500), rate(0, 0, 0)] {
        assert_eq!(fixture.bench.modify(qpn, &good).status, AdminStatus::Success);
        let (to, given) = fixture.bench.transport.modified.last().copied().unwrap();
        let told = (given.rate_limit, given.max_burst, given.typical_packet);
        assert_eq!((to, told), (qpn, (good.rate_limit, good.max_burst, good.typical_packet)));
    }
    let changes = fixture.bench.transport.modified.len();
    for bad in [
        rate(min - 1, 0, 0),
        rate(max + 1, 0, 0),
        rate(0, 1, 0),
        rate(0, 0, 1),
        rate(min, 1_499, 1_500),
    ] {
        assert_eq!(fixture.bench.modify(qpn, &bad).status, AdminStatus::Invalid, "{bad:?}");
    }
    assert_eq!(fixture.bench.transport.modified.len(), changes);
}

#[test]
fn an_engine_without_rates_takes_none_and_looks_at_none_of_a_path() {
    needs!(Need::OtherLimits);
    let lacks = standard().capabilities - Capabilities::RATE_LIMIT;
    for (capabilities, path) in
        [(lacks, AdminStatus::Success), (standard().capabilities, AdminStatus::Invalid)]
    {
        let config = EngineConfig { capabilities, ..standard() };
        let mut bench = Bench::with(config, Manual::default());
        let cq = bench.create_cq(8);
        let rq = bench.create_rq(0, 0);
        let qp = bench.create_qp(2, &cq, &cq, rq);
        bench.climb(qp.qpn, S::Rts);
        let is_offered = capabilities.contains(Capabilities::RATE_LIMIT);
        let taken = if is_offered { AdminStatus::Success } else { AdminStatus::Invalid };
        assert_eq!(bench.modify(qp.qpn, &rate(standard().rates.min, 0, 0)).status, taken);
        bench.go(qp.qpn, S::Sqd);
        let odd = Attributes { mask: M::AV, static_rate: 1, ..sound_attributes() };
        assert_eq!(bench.modify(qp.qpn, &odd).status, path);
    }
}

#[test]
fn without_a_state_in_the_mask_the_qp_stays_where_it_is() {
    let mut fixture = Fixture::new();
    for (from, status) in [
        (S::Init, AdminStatus::Success),
        (S::Rtr, AdminStatus::BadState),
        (S::Rts, AdminStatus::Success),
        (S::Sqd, AdminStatus::Success),
    ] {
        fixture.put(from);
        assert_eq!(fixture.modify(M::ACCESS, S::Reset), status, "{from:?}");
        assert_eq!(fixture.state(), from);
    }
}

#[test]
fn a_wrong_current_state_is_refused() {
    let mut fixture = Fixture::new();
    fixture.put(S::Rts);
    let wrong = Attributes {
        mask: M::STATE | M::CURRENT_STATE,
        state: S::Sqd,
        current_state: S::Rtr,
        ..sound_attributes()
    };
    assert_eq!(fixture.bench.modify(fixture.qp.qpn, &wrong).status, AdminStatus::BadState);
    let right = Attributes { current_state: S::Rts, ..wrong };
    assert_eq!(fixture.bench.modify(fixture.qp.qpn, &right).status, AdminStatus::Success);
}

#[test]
fn a_transition_that_the_transport_refuses_does_not_happen() {
    let mut fixture = Fixture::new();
    fixture.put(S::Init);
    let generation = fixture.bench.go(fixture.qp.qpn, S::Init);
    fixture.bench.transport.admin_refusal = Some(AdminStatus::Invalid);
    assert_eq!(fixture.modify(M::STATE, S::Reset), AdminStatus::Invalid);
    fixture.bench.transport.admin_refusal = None;
    assert_eq!(fixture.state(), S::Init);
    assert_eq!(fixture.bench.go(fixture.qp.qpn, S::Init), generation);
}

#[test]
fn each_reset_is_a_new_generation_and_nothing_else_is() {
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let mut generation = fixture.qp.generation;
    for _ in 0..300 {
        fixture.bench.climb(qpn, S::Rts);
        assert_eq!(fixture.bench.go(qpn, S::Sqd), generation);
        assert_eq!(fixture.bench.go(qpn, S::Err), generation);
        generation = generation.wrapping_add(1);
        assert_eq!(fixture.bench.go(qpn, S::Reset), generation);
    }
}

#[test]
fn a_qp_that_does_not_exist_cannot_be_modified() {
    let mut fixture = Fixture::new();
    let attributes = Attributes { mask: M::STATE, state: S::Err, ..Default::default() };
    assert_eq!(fixture.bench.modify(1, &attributes).status, AdminStatus::NotFound);
}
