//! Everything a process of the same user can throw at the sockets of a state directory.

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use hostmem::fdpass::{self, Wait};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket,
};
use shim_abi::{Hello, Role};

use super::say;

/// Connections that are held.
const HELD: usize = 150;
/// Datagrams and messages of garbage.
const GARBAGE: usize = 300;

/// Throws garbage, connections and descriptors at every socket in a directory; prints `thrown`, and holds its
/// descriptors until it is killed.
///
/// # Errors
/// When there is no socket to throw at.
pub fn attack(directory: &Path) -> Result<()> {
    let sockets = sockets_in(directory)?;
    ensure!(!sockets.is_empty(), "no socket in {}", directory.display());
    let mut garbage = vec![0u8; 1 << 17];
    fs::File::open("/dev/urandom")?.read_exact(&mut garbage)?;
    let mut held = Vec::new();
    for path in &sockets {
        let before = held.len();
        held.extend(datagrams(path, &garbage));
        held.extend(connections(path, &garbage));
        ensure!(held.len() > before, "{} takes nothing", path.display());
    }
    say(&format!("thrown at {} sockets, {} connections held", sockets.len(), held.len()));
    std::thread::sleep(super::LIMIT * 100);
    Ok(())
}

/// The sockets in a directory and those below it.
fn sockets_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_socket() {
            found.push(entry.path());
        } else if kind.is_dir() {
            found.extend(sockets_in(&entry.path())?);
        }
    }
    Ok(found)
}

/// Sockets connected to a port, which send frames that are none, frames that look like some, and
/// descriptors; none where the path is that of another kind of socket.
fn datagrams(path: &Path, garbage: &[u8]) -> Vec<OwnedFd> {
    let connected = |_| connected(path, SockType::Datagram, SockFlag::SOCK_NONBLOCK);
    let held: Vec<OwnedFd> = (0..HELD).map_while(connected).collect();
    let Some(fd) = held.first() else { return held };
    for turn in 0..GARBAGE {
        let start = turn * 13 % 4096;
        let mut frame = garbage[start..start + turn * 37 % 9100].to_vec();
        // Every other one is addressed to a card, as IPv4, ARP or RoCE.
        if turn % 2 == 0 && frame.len() > 40 {
            frame[..6].copy_from_slice(&[2, 0xba, 10, 77, 0, (turn % 3) as u8]);
            frame[12..14].copy_from_slice(&[8, if turn % 4 == 0 { 0 } else { 6 }]);
            frame[14] = 0x45;
            frame[23] = 17;
            frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
        }
        let _ = send(fd.as_raw_fd(), &frame, MsgFlags::MSG_DONTWAIT);
    }
    for fd in &held {
        let descriptors = [fd.as_fd(); fdpass::MAX_FDS];
        let _ = fdpass::send(fd.as_fd(), &garbage[..200], &descriptors, Wait::Never);
    }
    held
}

/// A socket of a kind, connected to a path; `None` where that is of another kind.
fn connected(path: &Path, kind: SockType, flags: SockFlag) -> Option<OwnedFd> {
    let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | flags, None).ok()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
    Some(fd)
}

/// Connections: silent ones, ones that send garbage, descriptors, halves of greetings, and whole ones
/// followed by garbage. Those that are still open are the answer.
fn connections(path: &Path, garbage: &[u8]) -> Vec<OwnedFd> {
    let hello = Hello { build: "attack".into(), role: Role::Tool };
    let hello = shim_abi::hello_frame(&hello);
    let mut held = Vec::new();
    for turn in 0..HELD {
        let Some(fd) = connected(path, SockType::SeqPacket, SockFlag::empty()) else { break };
        let own = [fd.as_fd(); fdpass::MAX_FDS];
        let throw = |bytes: &[u8], fds: &[_]| {
            let _ = fdpass::send(fd.as_fd(), bytes, fds, Wait::Never);
        };
        match turn % 6 {
            0 => {}
            1 => throw(&garbage[turn..turn + 1 + turn * 97 % 5000], &[]),
            2 => throw(&garbage[..64], &own),
            3 => throw(&hello[..hello.len() / 2], &[]),
            4 => {
                throw(&hello, &[]);
                throw(&garbage[..100_000], &[]);
                throw(&garbage[turn..turn + 50], &own);
            }
            _ => throw(&hello, &own),
        }
        held.push(fd);
    }
    held
}
