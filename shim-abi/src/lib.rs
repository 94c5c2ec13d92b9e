//! The messages between the provider (or the `balboa` tool) and balboad.
//!
//! One `SOCK_SEQPACKET` connection per process, in the state directory under [`SOCKET_NAME`]. The
//! client sends one [`Request`] and waits for one [`Reply`]; nothing is sent unasked, events travel
//! on sockets of their own. Messages are postcard-encoded, at most [`MAX_MESSAGE`] bytes; file
//! descriptors ride along as the response's documentation says.
//!
//! The first request is [`Hello`]. It and its reply carry a fixed prefix ([`hello_frame`]) that
//! every version understands, so that a mismatch is one clear sentence.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

mod message;
mod parts;
pub mod rdma_cm;
pub use message::*;
pub use parts::*;

/// Version of these messages; provider and balboad must agree.
pub const ABI: u32 = 30;
/// The socket's name in the state directory.
pub const SOCKET_NAME: &str = "balboad.sock";
/// The ports' directory in the state directory: `CARD` in it is the directory at `ports/1` of the card in sysfs.
pub const PORTS_DIR: &str = "ports";
/// Largest message in bytes, both ways.
pub const MAX_MESSAGE: usize = 64 << 10;
/// The largest value of a setting of services.
pub const MAX_SETTING: usize = 32 << 10;
/// Bytes of the module of a user's service.
pub const MAX_MODULE: usize = 48 << 10;
/// Largest event of the connection manager's ([`CmEvent`]) in bytes.
pub const CM_EVENT_BYTES: usize = 2048;
/// File descriptors one message may carry.
pub const MAX_FDS: usize = 8;
/// Bytes at the start of a process's ring memory that hold no ring.
///
/// They are 32-bit words, one for each card that the process has: 0 while it has the card, 1 once balboad has taken
/// that away. [`Grant::state`] says which; a card that was reset and opened again has another. The last is
/// [`CM_ERA`].
pub const CARD_STATES_BYTES: u64 = 4096;
/// Byte offset in a process's ring memory of a 32-bit word that balboad moves on when answers that it gave ahead
/// ([`CmAhead`]) may not be true any more.
pub const CM_ERA: u64 = CARD_STATES_BYTES - 4;
/// Bytes of the largest piece in which a program maps its memory for a card behind an IOMMU, cut at
/// multiples of that ([`dma_pieces`]): so much is unmapped at a time, while others wait.
pub const DMA_PIECE: u64 = 64 << 20;
/// Seconds within which balboad answers a verbs program; then the program takes it for hung.
pub const CONTROL_SECONDS: u32 = 30;
/// The environment variable that sets other seconds than [`CONTROL_SECONDS`], for debugging balboad.
pub const CONTROL_SECONDS_VARIABLE: &str = "BALBOA_CONTROL_SECONDS";
/// The environment variable that names the state directory.
pub const STATE_DIR_VARIABLE: &str = "BALBOA_STATE_DIR";
/// The environment variable that tells a balboad to end when no process holds [`LEASE_NAME`] any more, and no
/// program is connected.
pub const LEASE_VARIABLE: &str = "BALBOAD_LEASE";
/// The name in the state directory of the file on which each process that needs such a balboad holds a shared lock
/// (flock), by a descriptor that its children inherit. It is never removed: no other process sees a lock on a
/// removed file.
pub const LEASE_NAME: &str = "balboad.lease";

const MAGIC: [u8; 4] = *b"BALB";
const PREFIX_BYTES: usize = 8;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are no encoding of the expected type.
    #[error("the message ({0} bytes) does not decode; is the other side another build?")]
    Malformed(usize),
    /// The prefix of a hello is not ours.
    #[error("the other side of the socket does not speak balboad's protocol")]
    NotBalboa,
    /// The other side speaks another version.
    #[error(
        "the other side speaks version {theirs} of the messages, this one version {ABI}; install provider and balboad of one release"
    )]
    Version {
        /// The other side's version.
        theirs: u32,
    },
}

/// The pieces of a range of I/O virtual addresses, each by its offset in the range and its bytes.
pub fn dma_pieces(iova: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut offset = 0u64;
    std::iter::from_fn(move || {
        let left = length.checked_sub(offset).filter(|left| *left > 0)?;
        let behind = iova.wrapping_add(offset) % DMA_PIECE;
        let bytes = DMA_PIECE.saturating_sub(behind).min(left);
        let piece = (offset, bytes);
        offset = offset.saturating_add(bytes);
        Some(piece)
    })
}

/// Encodes a message.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only an allocation or a Serialize implementation that fails can make this fail; ours do not.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes a message, all of `bytes`.
///
/// # Errors
/// [`DecodeError::Malformed`] when the bytes are no `T`, or more than one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(DecodeError::Malformed(bytes.len())),
    }
}

/// Encodes the first message of either side: 4 bytes magic, [`ABI`] as u32 little-endian, message.
#[must_use]
pub fn hello_frame<T: Serialize>(message: &T) -> Vec<u8> {
    let mut frame = Vec::from(MAGIC);
    frame.extend(ABI.to_le_bytes());
    frame.extend(encode(message));
    frame
}

/// Decodes the first message of the other side.
///
/// # Errors
/// [`DecodeError::NotBalboa`], [`DecodeError::Version`] or [`DecodeError::Malformed`].
pub fn decode_hello<T: DeserializeOwned>(frame: &[u8]) -> Result<T, DecodeError> {
    let Some((prefix, message)) = frame.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(DecodeError::NotBalboa);
    };
    let [m0, m1, m2, m3, v0, v1, v2, v3] = *prefix;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(DecodeError::NotBalboa);
    }
    match u32::from_le_bytes([v0, v1, v2, v3]) {
        ABI => decode(message),
        theirs => Err(DecodeError::Version { theirs }),
    }
}

/// Byte offset in a process's ring memory of a state word, by its number; `None` where there is no such.
#[must_use]
pub fn card_state(word: u32) -> Option<u32> {
    word.checked_mul(4).filter(|offset| u64::from(*offset) < CM_ERA)
}

/// The state directory: `given`, else `BALBOA_STATE_DIR`, else the user's default.
///
/// The default is `/run/balboa` for root, `$XDG_RUNTIME_DIR/balboa` where that is set, else
/// `balboa-UID` in the temporary folder; or [`dir_of_namespace`] in it, where a balboad serves there. Provider, tool and
/// balboad all find it here.
#[must_use]
pub fn state_dir(given: Option<&Path>, uid: u32) -> PathBuf {
    if let Some(dir) = named_state_dir(given) {
        return dir;
    }
    let users = if uid == 0 {
        PathBuf::from("/run/balboa")
    } else {
        match set("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("balboa"),
            None => std::env::temp_dir().join(format!("balboa-{uid}")),
        }
    };
    let own = dir_of_namespace(&users, network_namespace());
    if is_served(&own.join(SOCKET_NAME)) { own } else { users }
}

/// Whether a process has a socket open at a path: one that was killed leaves the path, and the kernel gives the numbers
/// of namespaces that have ended to others.
fn is_served(path: &Path) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    use std::os::unix::net::UnixDatagram;
    // Of another type than balboad's: a socket that is there is said to be of the wrong one. A datagram socket does not
    // wait, and its connecting disturbs no process.
    let met = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    met.map_or_else(|error| ![ConnectionRefused, NotFound].contains(&error.kind()), |()| true)
}

/// The state directory that the user names: `given`, else `BALBOA_STATE_DIR`; `None` where the user's default counts.
#[must_use]
pub fn named_state_dir(given: Option<&Path>) -> Option<PathBuf> {
    given.map(PathBuf::from).or_else(|| set(STATE_DIR_VARIABLE))
}

/// The state directory of one network namespace, in a user's default one, which serves another.
#[must_use]
pub fn dir_of_namespace(users: &Path, namespace: u64) -> PathBuf {
    users.join(format!("net-{namespace}"))
}

/// The number of this process's network namespace; 0 where the kernel does not tell.
#[must_use]
pub fn network_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { build: "test".into(), role: Role::Provider }
    }

    #[test]
    fn a_socket_that_was_left_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET_NAME);
        assert!(!is_served(&path));
        // As balboad's, of another type than the one that asks; and nobody has it wait for them.
        let served = std::os::unix::net::UnixListener::bind(&path).unwrap();
        served.set_nonblocking(true).unwrap();
        assert!(is_served(&path));
        assert_eq!(served.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(served);
        assert!(path.exists() && !is_served(&path));
    }

    #[test]
    fn a_hello_survives_its_frame() {
        assert_eq!(decode_hello::<Hello>(&hello_frame(&hello())), Ok(hello()));
    }

    #[test]
    fn another_version_is_named_before_anything_else_is_read() {
        let mut frame = hello_frame(&hello());
        frame[4] = 99;
        frame.truncate(9);
        assert_eq!(decode_hello::<Hello>(&frame), Err(DecodeError::Version { theirs: 99 }));
        assert_eq!(decode_hello::<Hello>(b"GET / HTTP/1.1"), Err(DecodeError::NotBalboa));
        assert_eq!(decode_hello::<Hello>(b"BALB"), Err(DecodeError::NotBalboa));
    }

    #[test]
    fn trailing_and_missing_bytes_are_refused() {
        let mut bytes = encode(&Request::DestroyCq { cqn: 5 });
        assert_eq!(decode::<Request>(&bytes), Ok(Request::DestroyCq { cqn: 5 }));
        bytes.push(0);
        assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed(bytes.len())));
        assert_eq!(decode::<Request>(&[]), Err(DecodeError::Malformed(0)));
    }

    #[test]
    fn pieces_follow_one_another_and_end_at_multiples() {
        for (iova, length) in [(0x1000, 0x1000), (DMA_PIECE - 0x1000, 3 * DMA_PIECE), (0, 0)] {
            let mut end = 0;
            for (offset, bytes) in dma_pieces(iova, length) {
                assert_eq!(offset, end);
                assert!((1..=DMA_PIECE).contains(&bytes));
                assert!(offset == 0 || (iova + offset) % DMA_PIECE == 0);
                end = offset + bytes;
            }
            assert_eq!(end, length);
        }
    }
}
