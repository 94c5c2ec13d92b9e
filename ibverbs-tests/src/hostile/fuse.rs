//! A file system that has one file and never answers its readers, in a mount namespace of this program's own. By hand,
//! as linux/fuse.h has it: all numbers are the machine's.
//!
//! A child serves it, so that it ends when the program is killed: a process that waits for its own answer could not
//! end.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

use crate::ffi::in_child;

/// Bytes of the file.
pub const SIZE: usize = 1 << 20;
/// The file's name, and the numbers of the directory and of it.
const NAME: &str = "silent";
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Bytes of a request's header, and of an answer's.
const HEADER: usize = 40;
const ANSWER: u32 = 16;
/// Opcodes.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
/// The version of the protocol, and the longest write, which never happens.
const VERSION: [u32; 2] = [7, 31];
const MAX_WRITE: u32 = 4096;
/// Seconds for which the kernel may trust an answer.
const VALID: u64 = 3600;

/// Mounts it at a new directory and opens its file. To be called while the program has one thread.
///
/// # Errors
/// When the kernel does not let an ordinary user mount one, or not through this device node.
pub fn silent_file(directory: &Path, node: &Path) -> Result<File> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context("no namespaces")?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    fs::create_dir(directory)?;
    let device = OpenOptions::new().read(true).write(true).open(node);
    let device = device.with_context(|| format!("cannot open {}", node.display()))?;
    let descriptor = device.as_raw_fd();
    let options = format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={gid}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("silent"), directory, Some("fuse"), flags, Some(&*options)).context("no mount")?;
    in_child(|| serve(&device))?;
    drop(device);
    OpenOptions::new().read(true).open(directory.join(NAME)).context("its file")
}

/// Answers all requests but reads, until the program ends.
fn serve(mut device: &File) -> i32 {
    if set_pdeathsig(Signal::SIGKILL).is_err() {
        return 1;
    }
    let mut request = vec![0; 1 << 17];
    while let Ok(length) = device.read(&mut request) {
        let Some(header) = request.get(..length.min(HEADER)).filter(|it| it.len() == HEADER) else {
            return 1;
        };
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let (opcode, node) = (word(4), u64::from(word(16)));
        let answer = match opcode {
            READ | FORGET | INTERRUPT => continue,
            INIT => Ok(init()),
            LOOKUP => Ok(entry()),
            GETATTR => Ok([&VALID.to_ne_bytes()[..], &[0; 8], &attributes(node)].concat()),
            OPEN => Ok(vec![0; 16]),
            RELEASE => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = answer.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
        let mut message = (ANSWER + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(error.to_ne_bytes());
        message.extend(&header[8..16]);
        message.extend(body);
        if device.write_all(&message).is_err() {
            return 1;
        }
    }
    0
}

/// `struct fuse_init_out`: version, read-ahead, flags, background, congestion, write, and no more.
fn init() -> Vec<u8> {
    let [major, minor] = VERSION;
    let words = [major, minor, 0, 0, 0, MAX_WRITE, 1];
    let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    body.resize(64, 0);
    body
}

/// `struct fuse_entry_out` of the file.
fn entry() -> Vec<u8> {
    let words = [FILE, 0, VALID, VALID, 0];
    let mut body: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    body.extend(attributes(FILE));
    body
}

/// `struct fuse_attr`: number, size, blocks, three times, their nanoseconds, mode, links, owner and group,
/// device, block size, flags.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = match node {
        ROOT => (libc::S_IFDIR | 0o700, 0),
        _ => (libc::S_IFREG | 0o600, SIZE as u64),
    };
    let mut body: Vec<u8> =
        [node, size, size / 512, 0, 0, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    body.extend([0, 0, 0, mode, 1, uid, gid, 0, 4096, 0].into_iter().flat_map(u32::to_ne_bytes));
    body
}
