//! Payload as services see it: which bytes of which kind of message.

/// The operation of a message with payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A SEND of any kind, towards its receiver.
    Send,
    /// A WRITE of any kind, towards the memory that it names.
    Write,
    /// A READ's responses, towards the end that asked.
    Read,
}

/// Some of the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// SENDs.
    pub send: bool,
    /// WRITEs.
    pub write: bool,
    /// READs.
    pub read: bool,
}

impl Operations {
    /// All of them.
    pub const ALL: Self = Self { send: true, write: true, read: true };
    /// The operations that name memory.
    pub const REMOTE: Self = Self { send: false, write: true, read: true };

    /// Each operation that there is.
    pub fn each() -> impl Iterator<Item = Operation> {
        [Operation::Send, Operation::Write, Operation::Read].into_iter()
    }

    /// Whether an operation is among them.
    #[must_use]
    pub const fn has(self, operation: Operation) -> bool {
        match operation {
            Operation::Send => self.send,
            Operation::Write => self.write,
            Operation::Read => self.read,
        }
    }
}

/// The part of a message that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The operation of the message.
    pub operation: Operation,
    /// The offset of the first byte in the message.
    ///
    /// At the end that answers a READ, it is the offset in the request that came. One request asks for 2^20 packets at
    /// most, and a longer READ becomes several requests: offsets modulo 2^28, 2^20 packets of the smallest MTU, are the
    /// same at both ends.
    pub offset: u64,
    /// Bytes; never 0.
    pub length: u32,
    /// Whether it ends the message.
    pub is_last: bool,
}

impl Part {
    /// Whether it begins the message.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.offset == 0
    }
}

/// The end of a message, all of whose packets were acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The operation of the message.
    pub operation: Operation,
    /// Its bytes.
    pub bytes: u64,
}
