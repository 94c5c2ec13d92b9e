//! A client's process.

/// Number of a client, never used twice in a balboad's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A client's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id, from the socket's credentials.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Name of its command.
    pub command: String,
}
