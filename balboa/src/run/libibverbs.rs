//! The libibverbs that a program will load, and the provider for it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use verbs_sys::{RELEASES, Release, SONAME, release_in_name};

use super::elf;

/// A provider: libibverbs' private interface moves, so each release has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The plug-in.
    pub file: PathBuf,
    /// The release that it is for.
    pub release: &'static Release,
}

/// All providers that are there, before all others that of the program's own libibverbs.
#[derive(Debug, PartialEq, Eq)]
pub struct Providers(pub Vec<Provider>);

impl Providers {
    /// A provider, and those for other releases that lie with this program.
    pub fn with(first: Provider) -> Self {
        let others = RELEASES.iter().filter(|release| **release != *first.release);
        let others = others.filter_map(|release| {
            let file = super::beside_us(&release.provider()).ok()?;
            Some(Provider { file, release })
        });
        let others: Vec<Provider> = others.collect();
        Self([vec![first], others].concat())
    }
}

/// Bytes of a program that say which dynamic loader it asks for.
const HEAD: u64 = 1 << 16;

/// Why no provider fits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LibibverbsError {
    /// There is no libibverbs.
    #[error(
        "{SONAME} is not installed, without it no program can use RDMA: apt-get install libibverbs1 ibverbs-utils perftest"
    )]
    NotInstalled,
    /// The file's name does not say the release.
    #[error(
        "cannot tell the rdma-core release of {}: its file should be named like {SONAME}.14.{}.0", .0.display(), RELEASES[0].number
    )]
    UnknownRelease(PathBuf),
    /// There is no provider for the release.
    #[error(
        "{} is of rdma-core {release}, for which there is no Balboa provider (there is one for rdma-core {})",
        file.display(), releases()
    )]
    NoProvider {
        /// The library.
        file: PathBuf,
        /// Its release.
        release: u32,
    },
    /// The file's name says a release, and its private interface is not that release's.
    #[error(
        "{} is named as of rdma-core {}, but does not have that release's private interface, IBVERBS_PRIVATE_{}: it is no libibverbs of rdma-core's",
        file.display(), release.number, release.private_abi
    )]
    Foreign {
        /// The library.
        file: PathBuf,
        /// The release that it is named as.
        release: &'static Release,
    },
    /// The provider is not where it belongs.
    #[error(
        "the provider for rdma-core {}, {}, is neither beside this program ({}) nor in ../lib/balboa from there: build the whole workspace (cargo build --release --workspace) or install the package balboa-provider-{}",
        release.number, release.provider(), dir.display(), release.number
    )]
    ProviderMissing {
        /// The release.
        release: &'static Release,
        /// Where this program is.
        dir: PathBuf,
    },
}

fn releases() -> String {
    let names = RELEASES.iter().map(|it| format!("{} ({})", it.number, it.distribution));
    names.collect::<Vec<_>>().join(", ")
}

/// The provider for the libibverbs that a program will load.
///
/// # Errors
/// When there is no libibverbs, or no provider that fits it.
pub fn provider(program: &Path) -> Result<Provider, LibibverbsError> {
    let library = linked(program).or_else(library).ok_or(LibibverbsError::NotInstalled)?;
    let release = release_of(&library, &fs::read(&library).unwrap_or_default())?;
    match super::beside_us(&release.provider()) {
        Ok(file) => Ok(Provider { file, release }),
        Err(dir) => Err(LibibverbsError::ProviderMissing { release, dir }),
    }
}

/// The release of a library: told by its full file name, for `libibverbs.so.1.14.44.0` is the
/// library of release 44, and borne out by its private interface.
fn release_of(library: &Path, content: &[u8]) -> Result<&'static Release, LibibverbsError> {
    let file = || library.to_owned();
    let number = release_in_name(library).ok_or_else(|| LibibverbsError::UnknownRelease(file()))?;
    let release = RELEASES.iter().find(|it| it.number == number);
    let release =
        release.ok_or_else(|| LibibverbsError::NoProvider { file: file(), release: number })?;
    if elf::private_abi(content) != Some(release.private_abi) {
        return Err(LibibverbsError::Foreign { file: file(), release });
    }
    Ok(release)
}

/// The library that a program is linked with, as the dynamic loader that it names finds it; none
/// for a script, and for a program that loads it later, if at all.
fn linked(program: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(program).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let loader = elf::loader(&head)?;
    // Which lists the libraries and starts nothing, if it is a dynamic loader: the program says so alone.
    let listing = listing(Command::new(loader).arg("--list").arg(program))?;
    let (_, file) = entries(&listing).find(|(name, _)| name.trim() == SONAME)?;
    // "/lib/x86_64-linux-gnu/libibverbs.so.1 (0x00007f0000000000)"
    let end = file.windows(2).rposition(|bytes| bytes == b" (").unwrap_or(file.len());
    Path::new(OsStr::from_bytes(file.get(..end)?)).canonicalize().ok()
}

/// The file that the dynamic loader would take for `libibverbs.so.1`.
fn library() -> Option<PathBuf> {
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|dir| !dir.as_os_str().is_empty());
    let given = given.map(|dir| dir.join(SONAME));
    let usual = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"];
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let usual = usual.iter().flat_map(|dir| {
        let dir = Path::new(dir);
        [dir.join(&triplet).join(SONAME), dir.join(SONAME)]
    });
    given.chain(cached()).chain(usual).find_map(|file| file.canonicalize().ok())
}

/// The files in the loader's cache, by asking the program that keeps it.
fn cached() -> Vec<PathBuf> {
    ["/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|ldconfig| listing(Command::new(ldconfig).arg("-p")))
        .map(|listing| from_cache(&listing))
        .unwrap_or_default()
}

/// The time, and the bytes, that a program which lists libraries may take.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
const MAX_LISTING_BYTES: usize = 16 << 20;

/// The output of a program that lists libraries; none if it does not end, or writes without end.
fn listing(command: &mut Command) -> Option<Vec<u8>> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().ok()?;
    let text = child.stdout.take().and_then(|output| read_all(output, LISTING_PATIENCE));
    // It has closed its output, or was too slow; processes that it has started go with it.
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    // Or it has left that group.
    let _ = child.kill();
    let _ = child.wait();
    text
}

/// All that comes from a pipe until its end, if that comes in time.
fn read_all(mut pipe: impl Read + AsFd, patience: Duration) -> Option<Vec<u8>> {
    let end = Instant::now().checked_add(patience)?;
    let mut text = Vec::new();
    let mut piece = [0; 1 << 16];
    while text.len() < MAX_LISTING_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => continue,
            Err(_) | Ok(0) => return None,
            Ok(_) => {}
        }
        match pipe.read(&mut piece) {
            Ok(0) => return Some(text),
            Ok(bytes) => text.extend_from_slice(piece.get(..bytes)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// The separator of a library's name and its file, which is a path in any bytes.
const ARROW: &[u8] = b" => ";

/// The library's files in the output of `ldconfig -p`, those of this architecture:
/// `libibverbs.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libibverbs.so.1`.
fn from_cache(listing: &[u8]) -> Vec<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "AArch64",
        other => other,
    };
    entries(listing)
        .filter(|(name, _)| {
            name.split_whitespace().next() == Some(SONAME) && name.contains(architecture)
        })
        .map(|(_, file)| PathBuf::from(OsStr::from_bytes(file)))
        .collect()
}

/// The names and the files of a listing of libraries.
fn entries(listing: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    listing.split(|&byte| byte == b'\n').filter_map(|line| {
        let arrow = line.windows(ARROW.len()).position(|bytes| bytes == ARROW)?;
        let (name, file) = line.split_at_checked(arrow)?;
        Some((String::from_utf8_lossy(name), file.get(ARROW.len()..)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_file_name_and_borne_out_by_the_file() {
        for release in &RELEASES {
            let file = format!("/lib/libibverbs.so.1.14.{}.0", release.number);
            let content = format!("\0IBVERBS_PRIVATE_{}\0", release.private_abi);
            assert_eq!(release_of(Path::new(&file), content.as_bytes()), Ok(release));
            let other = release_of(Path::new(&file), b"\0IBVERBS_PRIVATE_33\0").unwrap_err();
            assert!(other.to_string().contains("is no libibverbs of rdma-core's"), "{other}");
        }
        let between = release_of(Path::new("/lib/libibverbs.so.1.14.52.1"), b"").unwrap_err();
        assert!(between.to_string().contains("is of rdma-core 52, for which"), "{between}");
        for odd in ["/lib/libibverbs.so.1", "/lib/libibverbs.so.1.x", "/lib/libc.so.6"] {
            let error = release_of(Path::new(odd), b"").unwrap_err();
            assert_eq!(error, LibibverbsError::UnknownRelease(odd.into()));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_cache_is_read_for_this_architecture_only() {
        let listing = b"2 libs found in cache\n\
            \tlibibverbs.so.1 (libc6) => /lib/i386-linux-gnu/libibverbs.so.1\n\
            \tlibibverbs.so.1 (libc6,x86-64) => /opt/n\xe9w/libibverbs.so.1\n\
            \tlibibverbs.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libibverbs.so\n";
        let found = OsStr::from_bytes(b"/opt/n\xe9w/libibverbs.so.1");
        assert_eq!(from_cache(listing), [PathBuf::from(found)]);
    }

    #[test]
    fn a_lister_that_does_not_end_is_not_waited_for() {
        let (output, _kept_open) = nix::unistd::pipe().unwrap();
        assert_eq!(read_all(File::from(output), Duration::ZERO), None);
        let told = listing(Command::new("/bin/sh").args(["-c", "echo told; sleep 1000 >&2 &"]));
        assert_eq!(told, Some(b"told\n".to_vec()));
        assert_eq!(listing(&mut Command::new("/nonexistent")), None);
        let leaves = "setpgrp(0, getpgrp(getppid)); close(STDOUT); sleep";
        assert_eq!(listing(Command::new("/usr/bin/perl").args(["-e", leaves])), Some(Vec::new()));
    }
}
