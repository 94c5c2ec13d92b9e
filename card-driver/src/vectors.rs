//! The interrupt vectors of a card's vFPGAs, as a thread that serves them all waits for them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::backend::CardBackend;
use crate::error::Error;

/// The value in the set for the order to stop.
const STOP: u64 = u64::MAX;

/// An epoll set of the vectors, out of which each may be taken for a while.
#[derive(Debug)]
pub struct Vectors {
    epoll: Epoll,
}

/// A vector that one thread serves itself; dropping it puts it back into the set.
#[derive(Debug)]
pub struct TakenVector<'a> {
    vectors: &'a Vectors,
    fd: BorrowedFd<'a>,
    index: u8,
}

impl Vectors {
    /// The vectors of that many vFPGAs, and a descriptor that is readable at the end of serving.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel has no room for them.
    pub fn new(
        backend: &dyn CardBackend,
        regions: u8,
        stop: BorrowedFd<'_>,
    ) -> Result<Self, Error> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::os("epoll_create1"))?;
        let vector = |index| Some((backend.vector(u16::from(index))?, u64::from(index)));
        for (fd, number) in (0..regions).filter_map(vector).chain([(stop, STOP)]) {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, number))
                .map_err(Error::os("epoll_ctl of an interrupt vector"))?;
        }
        Ok(Self { epoll })
    }

    /// Takes a vector out of the set, whose signals then wake no waiter of it.
    #[must_use]
    pub fn take<'a>(&'a self, fd: BorrowedFd<'a>, index: u8) -> TakenVector<'a> {
        self.change(fd, index, EpollFlags::empty());
        TakenVector { vectors: self, fd, index }
    }

    fn change(&self, fd: BorrowedFd<'_>, index: u8, interest: EpollFlags) {
        let mut event = EpollEvent::new(interest, u64::from(index));
        if let Err(errno) = self.epoll.modify(fd, &mut event) {
            log::error!("vector {index} cannot be waited for as it should: {errno}");
        }
    }

    /// Waits for signals of vectors, and names their vFPGAs; `None` at the end of serving.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it wait.
    pub fn wait(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut events = [EpollEvent::empty(); 16];
        let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(Error::Os { call: "epoll_wait for interrupts", errno }),
        };
        let numbers = events.iter().take(count).map(EpollEvent::data);
        let signalled = numbers.map(|number| u8::try_from(number).ok());
        // The number that stands for the order to stop is no vFPGA's.
        Ok(signalled.collect())
    }
}

impl Drop for TakenVector<'_> {
    fn drop(&mut self) {
        self.vectors.change(self.fd.as_fd(), self.index, EpollFlags::EPOLLIN);
    }
}

#[cfg(test)]
mod tests {
    use hostmem::EventFd;

    use super::*;
    use crate::fake::FakeCard;

    #[test]
    fn a_vector_that_was_taken_wakes_nobody_until_it_is_back() {
        let card = FakeCard::new(2);
        let stop = EventFd::new().unwrap();
        let vectors = Vectors::new(&card, 2, stop.as_fd()).unwrap();
        let taken = vectors.take(card.vector(0).unwrap(), 0);
        card.signal(0);
        card.signal(1);
        assert_eq!(vectors.wait().unwrap(), Some(vec![1]));
        drop(taken);
        let both = vectors.wait().unwrap();
        assert!(both == Some(vec![0, 1]) || both == Some(vec![1, 0]), "{both:?}");
        stop.signal().unwrap();
        assert_eq!(vectors.wait().unwrap(), None);
    }
}
