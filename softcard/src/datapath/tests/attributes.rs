//! Attributes of a QP from the driver's command to what they do.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask as Mask, Attributes, QpState as State};

use super::rig::Rig;

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
