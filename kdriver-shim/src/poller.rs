//! The epoll set of the control thread, with tokens that outlive no descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use card_driver::lock::lock;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::Error;
use crate::process::ClientId;

/// The owner of a descriptor in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The listening socket.
    Listener,
    /// The signal descriptor.
    Signals,
    /// A client's control socket.
    Control(ClientId),
    /// A client's pidfd.
    Process(ClientId),
    /// A client's completion channel.
    Channel(ClientId, u32),
    /// The asynchronous event socket of a client's context.
    Async(ClientId, u32),
    /// Metrics are asked for.
    Metrics,
    /// News of the addresses of the kernel's devices.
    Addresses,
    /// News of the machine's network.
    Machine,
    /// Answers about programs.
    Answers,
    /// The outcome of work on the bytes of an image.
    Images,
    /// The kernel wants this card back.
    WantedBack(u32),
    /// A datagram of the connection manager's has arrived at this card.
    CmArrival(u32),
    /// An event channel of the connection manager's.
    CmChannel(u64),
    /// Memory of a client's did not answer this card.
    GivenUp(u32),
    /// An engine has news.
    Engine {
        /// Card number.
        card: u32,
        /// Window.
        window: u8,
    },
}

/// A descriptor's place in the set.
#[derive(Debug, PartialEq, Eq)]
pub struct Watch(u64);

/// The epoll set.
///
/// Every registration has a number of its own, so that an event of a descriptor that was closed,
/// perhaps with its number given to another, is not taken for news of that other.
///
/// The control thread waits; other threads may change the set.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    registered: Mutex<Registered>,
}

/// The content of the set.
#[derive(Debug, Default)]
struct Registered {
    tokens: BTreeMap<u64, Token>,
    last: u64,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel has no room for it.
    pub fn new() -> Result<Self, Error> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::os("epoll_create1"))?;
        Ok(Self { epoll, registered: Mutex::default() })
    }

    /// Adds a descriptor; it reports errors and hang-ups with any `interest`.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel has no room for it.
    pub fn watch(&self, fd: impl AsFd, token: Token, interest: EpollFlags) -> Result<Watch, Error> {
        let mut registered = lock(&self.registered);
        let id = registered.last.wrapping_add(1);
        registered.last = id;
        self.epoll
            .add(fd, EpollEvent::new(interest, id))
            .map_err(Error::os("epoll_ctl of a new descriptor"))?;
        registered.tokens.insert(id, token);
        Ok(Watch(id))
    }

    /// Changes the awaited events.
    pub fn change(&self, fd: BorrowedFd<'_>, watch: &Watch, interest: EpollFlags) {
        let mut event = EpollEvent::new(interest, watch.0);
        if let Err(errno) = self.epoll.modify(fd, &mut event) {
            log::error!("a descriptor cannot be watched any more: {errno}");
        }
    }

    /// Takes a descriptor out, before it is closed.
    pub fn unwatch(&self, fd: impl AsFd, watch: Watch) {
        lock(&self.registered).tokens.remove(&watch.0);
        // It may be gone already; then there is nothing to take out.
        let _ = self.epoll.delete(fd);
    }

    /// Waits for events, at most `timeout` milliseconds, and returns them with their numbers.
    ///
    /// Between their arrival and their turn a descriptor may be taken out: ask [`Self::token`].
    ///
    /// # Errors
    /// [`Error::Os`] when the wait itself fails.
    pub fn wait(&self, timeout: Option<u16>) -> Result<Vec<(u64, EpollFlags)>, Error> {
        let mut events = [EpollEvent::empty(); 64];
        let timeout = timeout.map_or(EpollTimeout::NONE, EpollTimeout::from);
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(Error::Os { call: "epoll_wait", errno }),
        };
        Ok(events.iter().take(count).map(|event| (event.data(), event.events())).collect())
    }

    /// The owner of a number from [`Self::wait`]; `None` once it was taken out.
    pub fn token(&self, number: u64) -> Option<Token> {
        lock(&self.registered).tokens.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use hostmem::EventFd;

    use super::*;

    #[test]
    fn an_event_of_a_descriptor_that_was_taken_out_is_nobodys() {
        let poller = Poller::new().unwrap();
        let (a, b) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let watch = poller.watch(&a, Token::Listener, EpollFlags::EPOLLIN).unwrap();
        poller.watch(&b, Token::Signals, EpollFlags::EPOLLIN).unwrap();
        a.signal().unwrap();
        b.signal().unwrap();
        let events = poller.wait(Some(0)).unwrap();
        assert_eq!(events.len(), 2);
        poller.unwatch(&a, watch);
        let tokens: Vec<_> = events.iter().filter_map(|(n, _)| poller.token(*n)).collect();
        assert_eq!(tokens, [Token::Signals]);
        assert_eq!(poller.wait(Some(0)).unwrap().len(), 1);
    }
}
