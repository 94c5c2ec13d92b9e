//! Unreliable Connection's part of a port: sending.

use super::{Stack, Turn};
use crate::api::Transmit;
use crate::param;
use crate::types::Instant;

impl Stack {
    /// Makes the next packet of a queue pair.
    pub(super) fn transmit_unreliable(&mut self, slot: u32, now: Instant, priority: u8) -> Turn {
        if let Some(notification) = self.transmit_notification(slot, priority) {
            return Turn::Frame(notification);
        }
        for _ in 0..param::TRANSMIT_QUANTUM {
            let Some(qp) = self.slots.uc(slot) else { return Turn::Over };
            // It stands in another line.
            if qp.core.priority != priority {
                return Turn::Over;
            }
            if qp.head().is_none() {
                return Turn::Over;
            }
            let Some(path) = &qp.core.path else { return Turn::Over };
            if !path.is_resolved() {
                // UD-7, UD-8
                if now < qp.patient_until {
                    qp.core.set_timer(&mut self.shared, Some(qp.patient_until));
                    return Turn::Over;
                }
                qp.drop_head(&mut self.shared);
                continue;
            }
            // RC-107
            if qp.core.is_held(now) {
                qp.core.hold(&mut self.shared);
                return Turn::Over;
            }
            let (peer, client) = (path.neighbour(), qp.core.client);
            let is_due = now >= qp.next_check;
            if is_due {
                qp.next_check = now.after(param::DATAGRAM_CHECK_INTERVAL);
            }
            let Some(mut transmit) = qp.transmit(&mut self.shared) else { return Turn::Over };
            qp.core.departs(&mut self.shared, now, &mut transmit);
            let making = (slot, qp.core.generation);
            if self.making.last() != Some(&making) {
                self.making.push(making);
            }
            // UD-9
            if let Some(peer) = peer.filter(|_| is_due) {
                if self.neighbours.probe(peer.address, client, now) {
                    self.ask(peer);
                }
            }
            return Turn::Frame(transmit);
        }
        Turn::Later
    }

    /// Makes the notification that the queue pair's peer is due.
    // RC-94
    fn transmit_notification(&mut self, slot: u32, priority: u8) -> Option<Transmit> {
        let qp = self.slots.core_mut(slot)?;
        let notification = qp.transmit_notification(&mut self.shared, priority)?;
        qp.count_sent(&mut self.shared);
        Some(notification)
    }
}
