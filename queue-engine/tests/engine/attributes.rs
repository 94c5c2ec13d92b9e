//! The ranges of QP attributes, and the answer to a query.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState};

use crate::engine::support::bench::{Bench, sound_attributes, step_to};

type Change = fn(&mut Attributes);

/// Attributes out of range by the state they are set on the way to.
const WRONG: &[(QpState, &str, Change)] = &[
    (QpState::Init, "pkey_index 1", |a| a.pkey_index = 1),
    (QpState::Init, "port 0", |a| a.port = 0),
    (QpState::Init, "port 2", |a| a.port = 2),
    (QpState::Init, "an unknown right", |a| a.access |= 1 << 31),
    (QpState::Rtr, "path_mtu 0", |a| a.path_mtu = 0),
    (QpState::Rtr, "path_mtu 6", |a| a.path_mtu = 6),
    (QpState::Rtr, "an empty GID index", |a| a.sgid_index = 1),
    (QpState::Rtr, "a GID index beyond the table", |a| a.sgid_index = 200),
    (QpState::Rtr, "a peer without GID", |a| a.dgid = [0; 16]),
    (QpState::Rtr, "a flow label of 21 bits", |a| a.flow_label = 1 << 20),
    (QpState::Rtr, "a service level of 5 bits", |a| a.sl = 16),
    (QpState::Rtr, "rq_psn of 25 bits", |a| a.rq_psn = 1 << 24),
    (QpState::Rtr, "dest_qpn of 25 bits", |a| a.dest_qpn = 1 << 24),
    (QpState::Rtr, "min_rnr_timer 32", |a| a.min_rnr_timer = 32),
    (QpState::Rtr, "max_dest_rd_atomic 17", |a| a.max_dest_rd_atomic = 17),
    (QpState::Rts, "timeout 32", |a| a.timeout = 32),
    (QpState::Rts, "retry_count 8", |a| a.retry_count = 8),
    (QpState::Rts, "rnr_retry 8", |a| a.rnr_retry = 8),
    (QpState::Rts, "sq_psn of 25 bits", |a| a.sq_psn = 1 << 24),
    (QpState::Rts, "max_rd_atomic 17", |a| a.max_rd_atomic = 17),
];

/// Attributes at the edge of their range.
const EDGES: &[(QpState, &str, Change)] = &[
    (QpState::Init, "no rights", |a| a.access = 0),
    (QpState::Init, "every right", |a| a.access = Access::all().bits()),
    (QpState::Rtr, "path_mtu 1", |a| a.path_mtu = 1),
    (QpState::Rtr, "path_mtu 5", |a| a.path_mtu = 5),
    (QpState::Rtr, "flow label", |a| a.flow_label = 0xf_ffff),
    (QpState::Rtr, "rq_psn", |a| a.rq_psn = 0xff_ffff),
    (QpState::Rtr, "dest_qpn", |a| a.dest_qpn = 0xff_ffff),
    (QpState::Rtr, "min_rnr_timer", |a| a.min_rnr_timer = 31),
    (QpState::Rtr, "max_dest_rd_atomic", |a| a.max_dest_rd_atomic = 16),
    (QpState::Rts, "timeout 31", |a| a.timeout = 31),
    (QpState::Rts, "no timeout", |a| a.timeout = 0),
    (QpState::Rts, "sq_psn", |a| a.sq_psn = 0xff_ffff),
    (QpState::Rts, "max_rd_atomic 0", |a| a.max_rd_atomic = 0),
];

fn apply(cases: &[(QpState, &str, Change)], expected: AdminStatus) {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    for (state, name, change) in cases {
        bench.go(qp.qpn, QpState::Reset);
        match *state {
            QpState::Rtr => bench.climb(qp.qpn, QpState::Init),
            QpState::Rts => bench.climb(qp.qpn, QpState::Rtr),
            _ => {}
        }
        let mut attributes = step_to(*state);
        change(&mut attributes);
        assert_eq!(bench.modify(qp.qpn, &attributes).status, expected, "{name}");
    }
}

#[test]
fn attributes_out_of_range_are_invalid() {
    apply(WRONG, AdminStatus::Invalid);
}

#[test]
fn attributes_at_the_edge_of_their_range_are_taken() {
    apply(EDGES, AdminStatus::Success);
}

#[test]
fn attributes_that_the_mask_does_not_name_are_not_looked_at() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    let nonsense = Attributes::decode(&[[u64::MAX; 8]; 2]);
    let attributes = Attributes { mask: M::empty(), ..nonsense };
    assert_eq!(bench.modify(qp.qpn, &attributes).status, AdminStatus::Success);
    assert_eq!(bench.query(qp.qpn).state, QpState::Rts);
}

#[test]
fn the_transport_hears_the_state_to_go_to_and_the_attributes_as_given() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    let heard: Vec<_> = bench.transport.modified.iter().map(|(_, a)| *a).collect();
    let expected = [QpState::Init, QpState::Rtr, QpState::Rts].map(step_to);
    assert_eq!(heard, expected);
    let attributes =
        Attributes { mask: M::MIN_RNR_TIMER, state: QpState::Reset, ..sound_attributes() };
    assert_eq!(bench.modify(qp.qpn, &attributes).status, AdminStatus::Success);
    let (_, heard) = bench.transport.modified.last().unwrap();
    assert_eq!(*heard, Attributes { state: QpState::Rts, ..attributes });
}

#[test]
fn a_query_tells_the_engines_state_and_rights_and_the_transports_path() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    let attributes = bench.query(qp.qpn);
    assert_eq!((attributes.state, attributes.current_state), (QpState::Rts, QpState::Rts));
    assert_eq!(attributes.access, sound_attributes().access);
    assert_eq!(attributes.dest_qpn, sound_attributes().dest_qpn);
    assert_eq!(attributes.mask, M::empty());
    bench.go(qp.qpn, QpState::Reset);
    assert_eq!(bench.query(qp.qpn).access, 0);
}
