//! Messages between two cards, in the place of a program's memory: bytes that the ends of a link read and write.

use std::collections::VecDeque;

use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{
    Message, Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Unreachable,
    WqeOperation,
};

use crate::datagram::{Datagram, MESSAGE};
use crate::host::Host;

/// Messages on their way.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Those that were sent and are not answered, oldest first.
    sent: VecDeque<Vec<u8>>,
    /// The number of the oldest.
    first: u64,
    /// Those that come; the last one may not be there whole.
    coming: VecDeque<Vec<u8>>,
    taken: u64,
}

impl Traffic {
    /// Keeps a message until it is answered, and makes the message that the tunnel carries.
    pub fn send(&mut self, datagram: &Datagram) -> Message {
        let bytes = datagram.to_message();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.sent.push_back(bytes);
        let operation = WqeOperation::Send { immediate: None };
        Message { operation, length, solicited: false, fence: false, srqn: None }
    }

    /// Forgets messages that were answered.
    pub fn answered(&mut self, count: u64) {
        for _ in 0..count {
            if self.sent.pop_front().is_some() {
                self.first = self.first.wrapping_add(1);
            }
        }
    }

    /// Takes the oldest message that has come whole.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.coming.pop_front()
    }

    /// Messages that wait for an answer.
    #[must_use]
    pub fn out(&self) -> usize {
        self.sent.len()
    }
}

impl Host for Traffic {
    fn allows(&self, _: u32, _: RemoteRange, _: RemoteAccess) -> bool {
        false
    }

    fn take_receive(&mut self, _: u32) -> Result<TakenReceive, ReceiveError> {
        let id = self.taken;
        self.taken = id.wrapping_add(1);
        self.coming.push_back(Vec::new());
        Ok(TakenReceive { id, capacity: MESSAGE as u64, left: None })
    }

    fn read(
        &mut self,
        _: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        let Payload::Message { number } = payload else { return Err(Unreachable) };
        let index = usize::try_from(number.wrapping_sub(self.first));
        let index = index.map_err(|_| Unreachable)?;
        let message = self.sent.get(index).ok_or(Unreachable)?;
        let start = usize::try_from(offset).map_err(|_| Unreachable)?;
        let end = start.checked_add(into.len()).ok_or(Unreachable)?;
        into.copy_from_slice(message.get(start..end).ok_or(Unreachable)?);
        Ok(())
    }

    fn write(
        &mut self,
        _: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable> {
        let Payload::Receive { .. } = payload else { return Err(Unreachable) };
        // The parts of a message come in their order, and one message behind the other.
        let message = self.coming.back_mut().ok_or(Unreachable)?;
        if message.len() as u64 != offset || message.len().saturating_add(from.len()) > MESSAGE {
            return Err(Unreachable);
        }
        message.extend_from_slice(from);
        Ok(())
    }

    fn atomic(&mut self, _: u32, _: u32, _: u64, _: AtomicOperation) -> Result<u64, Unreachable> {
        Err(Unreachable)
    }

    fn open(&mut self, _: u32, _: Payload, _: u64, _: u32) -> Option<u64> {
        None
    }

    fn close(&mut self, _: u32, _: u64) {}

    fn is_closed(&self, _: u32, _: u64) -> bool {
        true
    }
}
