//! Attributes of a QP from the driver's command to their effect.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask as Mask, Attributes, QpState as State};
use fpga_regs::engine::wqe::SendOpcode;
use roce::opcode::code;

use super::rig::{MTU, Rig};

fn go(rig: &mut Rig, state: State, mask: Mask, attributes: Attributes) -> AdminStatus {
    rig.modify(&Attributes { mask: Mask::STATE | mask, state, ..attributes })
}

#[test]
fn that_a_send_queue_is_drained_is_told_to_who_asked() {
    for (asked, told) in [(None, false), (Some(0), false), (Some(1), true)] {
        let mut rig = Rig::new();
        let mask = asked.map_or(Mask::empty(), |_| Mask::EN_SQD_ASYNC_NOTIFY);
        let notify = Attributes { sqd_notify: asked.unwrap_or(1), ..Attributes::default() };
        assert_eq!(go(&mut rig, State::Sqd, mask, notify), AdminStatus::Success);
        rig.work();
        let event = rig.event().map(|event| (event.kind, event.code, event.number));
        let drained = (EventType::Qp, QpEvent::SqDrained.0, rig.qpn);
        assert_eq!(event, told.then_some(drained), "{asked:?}");
    }
}

#[test]
fn what_was_rung_for_is_on_the_cable_before_the_qp_ends() {
    for to in [Some(State::Err), Some(State::Reset), None] {
        let mut rig = Rig::new();
        rig.post(SendOpcode::Write, 3 * MTU as u32);
        // The card had no turn between the two.
        match to {
            None => rig.ask_to_destroy(),
            Some(state) => {
                rig.ask_to_modify(&Attributes { mask: Mask::STATE, state, ..Attributes::default() })
            }
        }
        let heard: Vec<u8> = rig.work().iter().map(|frame| frame.opcode).collect();
        assert_eq!(heard, [code::WRITE_FIRST, code::WRITE_MIDDLE, code::WRITE_LAST], "{to:?}");
        let answer = rig.answer().unwrap();
        assert_eq!(answer.status, AdminStatus::Success, "{to:?}");
        assert!(rig.work().is_empty(), "{to:?}");
    }
}
