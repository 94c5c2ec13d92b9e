//! Host memory behind the bus: each access is one transfer of the card's.

use std::collections::VecDeque;
use std::task::Poll;

use softcard::logic::{HostTransfer, Missed};

use crate::memory::{Direction, Memory, Reached};

/// Requests to read whose bytes are kept; those of a card that was taken off the bus are never read.
const KEPT: usize = 128;

/// The access that is under way. The bus has one at a time: it asks for it again until that has ended.
#[derive(Debug, Default)]
pub(super) struct CardMemory {
    wanted: Option<HostTransfer>,
    end: Option<Result<Vec<u8>, Missed>>,
    /// What requests that the bus has begun with are to read of processes, from their addresses on. A process that ends takes
    /// its memory with it, while a driver's pages stay until the card has read them.
    kept: VecDeque<(u64, Vec<u8>)>,
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

    fn keep(&mut self, address: u64, bytes: Vec<u8>) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((address, bytes));
    }

    /// Those bytes, if a request has them; they are forgotten with its last ones.
    fn take_kept(&mut self, address: u64, count: usize) -> Option<Vec<u8>> {
        let at = |from: u64| usize::try_from(address.checked_sub(from)?).ok();
        let mut kept = self.kept.iter().enumerate();
        let (place, is_last, bytes) = kept.find_map(|(place, (from, bytes))| {
            let end = at(*from)?.checked_add(count)?;
            Some((place, end == bytes.len(), bytes.get(at(*from)?..end)?.to_vec()))
        })?;
        if is_last {
            self.kept.remove(place);
        }
        Some(bytes)
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
            Ok(bytes) => {
                if !bytes.is_empty() {
                    self.keep(address, bytes);
                }
                Reached::Mapped
            }
            Err(Missed::Refused) => Reached::Told,
            // The driver does not know of it, as it would of a card on a bus.
            Err(Missed::Gone) => Reached::Refused,
        })
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()> {
        let wanted = HostTransfer::Read { address, length: into.len() as u32 };
        self.access(wanted).map(|end| {
            let kept = self.take_kept(address, into.len());
            match end.ok().filter(|bytes| bytes.len() == into.len()).or(kept) {
                Some(bytes) => into.copy_from_slice(&bytes),
                None => into.fill(0xff),
            }
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
        assert_eq!(read(&mut memory, 64, Err(Missed::Refused)), [0xff; 4]);
    }

    /// Four bytes that are read, where the card answers so.
    fn read(memory: &mut CardMemory, address: u64, end: Result<&[u8], Missed>) -> [u8; 4] {
        let mut bytes = [0; 4];
        assert!(memory.read(address, &mut bytes).is_pending());
        memory.end(end);
        assert!(memory.read(address, &mut bytes).is_ready());
        bytes
    }

    #[test]
    fn memory_that_goes_away_is_there_for_the_requests_that_were_begun_with() {
        let mut memory = CardMemory::default();
        assert!(memory.reaches(Direction::Read, 64, 8).is_pending());
        memory.end(Ok(&[1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(memory.reaches(Direction::Read, 64, 8), Poll::Ready(Reached::Mapped));
        // What has changed meanwhile is what is read.
        assert_eq!(read(&mut memory, 64, Ok(&[9; 4])), [9; 4]);
        assert_eq!(read(&mut memory, 66, Err(Missed::Gone)), [3, 4, 5, 6]);
        assert_eq!(read(&mut memory, 60, Err(Missed::Gone)), [0xff; 4]);
        assert_eq!(read(&mut memory, 68, Err(Missed::Gone)), [5, 6, 7, 8]);
        assert_eq!(read(&mut memory, 64, Err(Missed::Gone)), [0xff; 4]);
    }
}
