//! The states of a QP, judged by balboad, its engine and the stack below, one behind the other.

use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState as S, QpType};
use fpga_regs::engine::transition::{changes, check, transition};
use fpga_regs::engine::window::Capabilities;
use nix::errno::Errno;
use shim_abi::{Request, Response};

use crate::common::Balboad;
use crate::node::Node;

/// The change that a mask names, with values that are in range.
fn sound(node: &Node, change: &Attributes) -> Attributes {
    Attributes {
        path_mtu: 3,
        access: Access::REMOTE_WRITE.bits(),
        port: 1,
        timeout: 14,
        dest_qpn: node.qpn,
        rq_psn: 7,
        sq_psn: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        retry_count: 7,
        rnr_retry: 7,
        sgid_index: 1,
        hop_limit: 64,
        dgid: node.gid,
        ..*change
    }
}

fn modify(node: &Node, change: &Attributes) -> shim_abi::Reply {
    let attributes = sound(node, change).encode();
    node.client.try_ask(&Request::ModifyQp { qpn: node.qpn, first: None, attributes }).0
}

fn state(node: &Node) -> S {
    let Response::QpAttributes { attributes } =
        node.client.ask(Request::QueryQp { qpn: node.qpn }).0
    else {
        panic!()
    };
    Attributes::decode(&attributes).state
}

/// Puts the QP into a state, from any.
fn put(node: &Node, state: S) {
    let ladder = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd];
    let steps = match ladder.iter().position(|step| *step == state) {
        Some(last) => &ladder[..=last],
        None => &[state],
    };
    for (i, step) in steps.iter().enumerate() {
        let from = steps[i.saturating_sub(1)];
        let required = transition(QpType::Rc, from, *step).unwrap().required;
        let change = Attributes { mask: M::STATE | required, state: *step, ..Default::default() };
        modify(node, &change).unwrap();
    }
}

#[test]
fn every_change_is_judged_as_the_contracts_table_judges_it() {
    let balboad = Balboad::start(&["--soft", "1"]);
    let node = Node::new(&balboad.dir, 0, 4096);
    for from in [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Err] {
        put(&node, from);
        for change in changes(QpType::Rc, from) {
            let judged = check(QpType::Rc, from, &change, Capabilities::RATE_LIMIT);
            match (modify(&node, &change), judged) {
                (Ok(_), Ok(to)) if to == from => {}
                (Ok(_), Ok(to)) => {
                    assert_eq!(state(&node), to, "{from:?}: {change:?}");
                    put(&node, from);
                }
                (Err(refusal), Err(refused)) => {
                    assert_eq!(refusal.errno, Errno::EINVAL as i32);
                    let reason = refused.to_string();
                    assert!(refusal.reason.contains(&reason), "{refusal:?}, not {reason}");
                }
                (answer, judged) => panic!("{from:?}: {change:?}: {answer:?}, not {judged:?}"),
            }
        }
        assert_eq!(state(&node), from, "a refused change changes nothing");
    }
}
