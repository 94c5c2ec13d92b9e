//! Event channels: what programs have in the place of the kernel's open file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hostmem::fdpass::{self, Wait};
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{Shutdown, shutdown};
use shim_abi::CmToken;

use super::abi::{Output, length};
use super::answers::AddressHandle;
use crate::error::Error;
use crate::poller::{Poller, Token, Watch};
use crate::process::ClientId;

/// What the peer of a connection says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Its queue pair.
    pub qpn: u32,
    /// Its words.
    pub private_data: Box<[u8]>,
    /// READs and atomics that it would like to have served at a time.
    pub responder_resources: u8,
    /// READs and atomics that it serves at a time.
    pub initiator_depth: u8,
    /// Whether it has end-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Whether its queue pair has a shared receive queue.
    pub srq: bool,
}

/// Where datagrams go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// The way there.
    pub to: Option<AddressHandle>,
    /// What the peer said.
    pub private_data: Box<[u8]>,
}

/// What an event tells besides its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// Nothing.
    None,
    /// Of a connection.
    Connection(Offered),
    /// Of datagrams.
    Datagrams(Served),
    /// What the program told itself.
    Argument(u64),
}

/// An event that was not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The identifier that counts it.
    pub of: u32,
    /// The join that counts it, too.
    pub join: Option<u32>,
    /// The number by which the program knows what it is about.
    pub uid: u64,
    /// The identifier that it is about, or the join.
    pub about: u32,
    /// What happened.
    pub number: u32,
    /// How it went: 0, the negative number of an error, or a reason.
    pub status: u32,
    /// More of it.
    pub param: Param,
}

impl Event {
    /// The bytes that the kernel would answer GET_EVENT with.
    #[must_use]
    pub fn encode(&self, out: usize) -> Vec<u8> {
        let mut answer = Output::new(length::EVENT);
        answer.put(0, &self.uid.to_ne_bytes());
        answer.put(8, &self.about.to_ne_bytes());
        answer.put(12, &self.number.to_ne_bytes());
        answer.put(16, &self.status.to_ne_bytes());
        match &self.param {
            Param::None => {}
            Param::Argument(argument) => answer.put(20, &argument.to_ne_bytes()),
            Param::Connection(offered) => {
                answer.put(20, &offered.qpn.to_ne_bytes());
                answer.put(28, &offered.private_data);
                let rest = [
                    u8::try_from(offered.private_data.len()).unwrap_or(0),
                    u8::from(offered.srq),
                    offered.responder_resources,
                    offered.initiator_depth,
                    u8::from(offered.flow_control),
                    offered.retry_count,
                    offered.rnr_retry_count,
                ];
                answer.put(284, &rest);
            }
            Param::Datagrams(Served { qpn, qkey, to, private_data }) => {
                answer.put(20, &qpn.to_ne_bytes());
                answer.put(24, &qkey.to_ne_bytes());
                if let Some(to) = to {
                    answer.put(28, &to.encode());
                }
                answer.put(60, private_data);
                answer.put(316, &[u8::try_from(private_data.len()).unwrap_or(0)]);
            }
        }
        answer.cut(out)
    }
}

/// What an event is about, and what happened, as its bytes tell.
pub fn told(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |at| bytes.get(at..)?.first_chunk().map(|it| u32::from_ne_bytes(*it));
    Some((word(8)?, word(12)?))
}

/// An event channel.
#[derive(Debug)]
pub struct Channel {
    /// The client that made it, and whose end is its own.
    pub client: ClientId,
    /// The user who may use it.
    pub uid: u32,
    /// The name by which programs ask for it.
    pub token: CmToken,
    /// Its identifiers.
    pub ids: BTreeSet<u32>,
    socket: OwnedFd,
    watch: Option<Watch>,
    events: BTreeMap<u64, Event>,
    last: u64,
    // The byte of the events that are here is in the socket; who takes the last of them takes it, too.
    told: bool,
}

impl Channel {
    /// A new one, and the program's end of it.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Os`] when descriptors run out.
    pub fn new(
        poller: &Poller,
        key: u64,
        client: ClientId,
        uid: u32,
        token: CmToken,
    ) -> Result<(Self, OwnedFd), Error> {
        let (socket, theirs) = fdpass::pair()?;
        // The program has nothing to say here.
        shutdown(socket.as_raw_fd(), Shutdown::Read).map_err(Error::os("shutdown of a channel"))?;
        let watch = poller.watch(&socket, Token::CmChannel(key), EpollFlags::empty())?;
        let (ids, events) = Default::default();
        let watch = Some(watch);
        Ok((Self { client, uid, token, ids, socket, watch, events, last: 0, told: false }, theirs))
    }

    /// Adds an event, and answers its place.
    pub fn push(&mut self, event: Event) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.events.insert(self.last, event);
        if !self.told {
            // It has room but for who never takes a byte: it is readable then, too.
            self.told = fdpass::send(self.socket.as_fd(), &[1], &[], Wait::Never).is_ok();
        }
        self.last
    }

    /// Takes the oldest event.
    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_first().map(|(_, event)| event)
    }

    /// Takes an event out by its place.
    pub fn remove(&mut self, place: u64) -> Option<Event> {
        self.events.remove(&place)
    }

    /// Whether the last event has gone since this was asked last: then the program takes its byte.
    pub fn drained(&mut self) -> bool {
        self.events.is_empty() && std::mem::replace(&mut self.told, false)
    }

    /// Whether there is a byte in the socket and no event, where nobody is about to take it.
    pub fn has_stale_byte(&self) -> bool {
        let is_read = || fdpass::is_read(self.socket.as_fd()).unwrap_or(true);
        self.events.is_empty() && !self.told && !is_read()
    }

    /// Is heard no more.
    pub fn unwatch(&mut self, poller: &Poller) {
        if let Some(watch) = self.watch.take() {
            poller.unwatch(&self.socket, watch);
        }
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}
