//! The interface of a packet service.

use std::borrow::Cow;
use std::fmt::Debug;

use crate::part::{End, Operations, Part};

/// A service that sees the packets of connections.
///
/// It is shared by all connections that have it, so it keeps nothing of its own: its memory of a connection is
/// the state that it is given, all zeros when the connection begins. The two ways of a connection, messages that the
/// peer sends and answers to this end's READs, have a state each. No service changes the length of a message.
///
/// *Check* and *act* have a state of their own each, for a burst of packets is checked before the first of them is
/// acted on.
pub trait PacketService: Debug + Send + Sync {
    /// The description of the service. Always the same.
    fn about(&self) -> &About;

    /// Looks at a packet whose turn in its message it is. It may be asked again about the same packet, which may have
    /// been dropped or have had to wait, and then answers the same: `state` is a copy, and is kept only when the packet
    /// is accepted by all, or is refused and ends the connection.
    ///
    /// # Errors
    /// [`Halt`], by the budget or by what the service is; then the connection fails.
    fn check(
        &self,
        _part: &Part,
        _payload: &[u8],
        _state: &mut [u8],
        _budget: &mut Budget,
    ) -> Result<Verdict, Halt> {
        Ok(Verdict::Accept)
    }

    /// The matches of a service that searches payload, on one way of a connection, by its state of
    /// *check*.
    fn found(&self, _state: &[u8]) -> u64 {
        0
    }

    /// Begins a message, before its first packet is acted on; never for one that was begun before the service was
    /// attached.
    ///
    /// # Errors
    /// As [`PacketService::check`].
    fn begin(&self, _part: &Part, _state: &mut [u8], _budget: &mut Budget) -> Result<(), Halt> {
        Ok(())
    }

    /// Acts on a packet that was accepted, before its payload is placed: once for each, in the order of the message.
    ///
    /// # Errors
    /// As [`PacketService::check`].
    fn act(
        &self,
        _part: &Part,
        _placing: &mut Placing<'_>,
        _state: &mut [u8],
        _budget: &mut Budget,
    ) -> Result<(), Halt> {
        Ok(())
    }

    /// Ends a message, behind its last packet.
    ///
    /// # Errors
    /// As [`PacketService::check`].
    fn end(&self, _end: &End, _state: &mut [u8], _budget: &mut Budget) -> Result<(), Halt> {
        Ok(())
    }

    /// Changes payload that leaves, before the frame is sealed. A packet may leave several times, and a READ is
    /// repeated from its middle, so the result follows from the part and the bytes alone.
    ///
    /// # Errors
    /// As [`PacketService::check`].
    fn transform(
        &self,
        _part: &Part,
        _payload: &mut [u8],
        _budget: &mut Budget,
    ) -> Result<(), Halt> {
        Ok(())
    }
}

/// The description of a service, and its needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name: small letters, digits and hyphens.
    pub name: Cow<'static, str>,
    /// A sentence for people.
    pub summary: Cow<'static, str>,
    /// The stages at which it has work.
    pub stages: Stages,
    /// The messages that it is for; it does not see others.
    pub operations: Operations,
    /// The form of payload that its *act* takes, if it does not take any bytes.
    pub takes: Option<&'static str>,
    /// The form of payload behind its *act*, if that differs from the one before.
    pub gives: Option<&'static str>,
    /// Bytes that *check* remembers of each way of a connection.
    pub check_state: usize,
    /// Bytes that *act* remembers of each way of a connection.
    pub act_state: usize,
    /// Units of work that a packet may cost at each stage. Beginning and ending a message is part of its first and last
    /// packet.
    pub work: u32,
}

/// The stages at which a service has work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// [`PacketService::check`].
    pub check: bool,
    /// [`PacketService::act`], with the beginning and the end of messages.
    pub act: bool,
    /// Whether that changes payload.
    pub rewrites: bool,
    /// [`PacketService::transform`].
    pub transform: bool,
}

/// A service's verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is dropped as if it were lost: it comes again.
    Drop,
    /// It ends the connection before a byte of it is placed. A request is answered by the NAK "remote operational
    /// error"; a READ of this end completes with "bad response".
    Refuse,
}

/// Payload that is about to be placed.
#[derive(Debug)]
pub struct Placing<'a> {
    /// The bytes, which may be changed.
    pub bytes: &'a mut [u8],
    /// The address of a WRITE in the memory that its key names. It may be changed; key, rights and bounds are checked
    /// behind.
    pub address: Option<u64>,
}

/// The work that a packet may still cost.
#[derive(Debug)]
pub struct Budget(u32);

impl Budget {
    /// A number of units.
    #[must_use]
    pub const fn new(units: u32) -> Self {
        Self(units)
    }

    /// The units that are left.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.0
    }

    /// The units of so many that were given which have been paid.
    pub(crate) fn spent_of(&self, given: u32) -> u64 {
        given.saturating_sub(self.0).into()
    }

    /// Pays for work before it is done.
    ///
    /// # Errors
    /// [`Halt::Exhausted`] where there are fewer units left, none of which is then left.
    #[inline]
    pub fn spend(&mut self, units: u32) -> Result<(), Halt> {
        match self.0.checked_sub(units) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => {
                self.0 = 0;
                Err(Halt::Exhausted)
            }
        }
    }
}

/// Why a service is stopped on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It wanted to do more work on a packet than it had declared.
    Exhausted,
    /// It did what no service may. Only one that was loaded can.
    Fault,
}
