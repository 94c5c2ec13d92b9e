//! Host memory behind the bus: each access is one transfer of the card's.

use std::task::Poll;

use softcard::logic::{HostTransfer, Missed};

use crate::memory::{Direction, Memory, Reached};

/// The access that is under way. The bus has one at a time: it asks for it again until that has ended.
#[derive(Debug, Default)]
pub(super) struct CardMemory {
    wanted: Option<HostTransfer>,
    end: Option<Result<Vec<u8>, Missed>>,
}

impl CardMemory {
    /// The transfer that the card is to make.
    pub(super) fn due(&self) -> Option<&HostTransfer> {
        self.wanted.as_ref().filter(|_| self.end.is_none())
    }

    /// Takes the end of it.
    pub(super) fn end(&mut self, end: Result<&[u8], Missed>) {
        if self.wanted.is_some() {
            self.end = Some(end.map(<[u8]>::to_vec));
        }
    }

    fn access(&mut self, wanted: HostTransfer) -> Poll<Result<Vec<u8>, Missed>> {
        match &self.wanted {
            None => {
                self.wanted = Some(wanted);
                Poll::Pending
            }
            Some(under_way) if *under_way == wanted => match self.end.take() {
                Some(end) => {
                    self.wanted = None;
                    Poll::Ready(end)
                }
                None => Poll::Pending,
            },
            Some(_) => Poll::Pending,
        }
    }
}

impl Memory for CardMemory {
    fn reaches(&mut self, direction: Direction, address: u64, length: u32) -> Poll<Reached> {
        let writes = direction == Direction::Write;
        self.access(HostTransfer::Reach { writes, address, length }).map(|end| match end {
            Ok(_) => Reached::Mapped,
            Err(Missed::Refused) => Reached::Told,
            // The driver does not know of it, as it would of a card on a bus.
            Err(Missed::Gone) => Reached::Refused,
        })
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()> {
        let wanted = HostTransfer::Read { address, length: into.len() as u32 };
        self.access(wanted).map(|end| match end {
            Ok(bytes) if bytes.len() == into.len() => into.copy_from_slice(&bytes),
            _ => into.fill(0xff),
        })
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Poll<()> {
        self.access(HostTransfer::Write { address, bytes: bytes.to_vec() }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_one_transfer_and_another_waits_for_it() {
        let mut memory = CardMemory::default();
        let mut bytes = [0; 4];
        assert!(memory.read(64, &mut bytes).is_pending());
        assert!(memory.write(128, &[1]).is_pending());
        assert_eq!(memory.due(), Some(&HostTransfer::Read { address: 64, length: 4 }));
        memory.end(Ok(&[1, 2, 3, 4]));
        assert_eq!(memory.due(), None);
        assert!(memory.write(128, &[1]).is_pending(), "the other has not been told yet");
        assert!(memory.read(64, &mut bytes).is_ready());
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert!(memory.reaches(Direction::Write, 0, 1).is_pending());
        memory.end(Err(Missed::Refused));
        assert_eq!(memory.reaches(Direction::Write, 0, 1), Poll::Ready(Reached::Told));
        assert!(memory.reaches(Direction::Read, 0, 1).is_pending());
        memory.end(Err(Missed::Gone));
        assert_eq!(memory.reaches(Direction::Read, 0, 1), Poll::Ready(Reached::Refused));
        assert!(memory.read(64, &mut bytes).is_pending());
        memory.end(Err(Missed::Refused));
        assert!(memory.read(64, &mut bytes).is_ready());
        assert_eq!(bytes, [0xff; 4]);
    }
}
