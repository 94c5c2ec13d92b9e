//! Which libibverbs a program will load, and the provider that fits it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use verbs_sys::current::{DEBIAN, IBVERBS_PABI_VERSION, RELEASE};

/// A provider: libibverbs' private interface moves, so each release has its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Provider {
    /// The plug-in.
    pub file: PathBuf,
    kind: &'static Kind,
}

impl Provider {
    /// What libibverbs adds to a driver's name to find its file.
    pub fn suffix(&self) -> String {
        format!("-rdmav{}.so", self.kind.private_abi)
    }
}

/// What there is to choose from.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    /// Release of rdma-core.
    release: u32,
    /// Version of its private interface, in the plug-in's name.
    private_abi: u32,
    /// The plug-in as cargo names it.
    file: &'static str,
}

/// A provider for each release of rdma-core that is served.
const KINDS: &[Kind] =
    &[Kind { release: RELEASE, private_abi: IBVERBS_PABI_VERSION, file: "libbalboa_provider.so" }];

const SONAME: &str = "libibverbs.so.1";

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
        "cannot tell the rdma-core release of {}: its file should be named like {SONAME}.14.{RELEASE}.0", .0.display()
    )]
    UnknownRelease(PathBuf),
    /// There is no provider for the release.
    #[error(
        "{} is of rdma-core {release}, for which there is no Balboa provider yet (there is one for rdma-core {}, as in Debian {DEBIAN})",
        file.display(), releases()
    )]
    NoProvider {
        /// The library.
        file: PathBuf,
        /// Its release.
        release: u32,
    },
    /// The provider is not where it belongs.
    #[error(
        "the provider {name} is neither beside this program ({}) nor in ../lib/balboa from there: build the whole workspace (cargo build --release --workspace)",
        dir.display()
    )]
    ProviderMissing {
        /// The plug-in.
        name: &'static str,
        /// Where this program is.
        dir: PathBuf,
    },
}

fn releases() -> String {
    KINDS.iter().map(|kind| kind.release.to_string()).collect::<Vec<_>>().join(", ")
}

/// The provider for the libibverbs that programs load here.
///
/// # Errors
/// When there is no libibverbs, or no provider that fits it.
pub fn provider() -> Result<Provider, LibibverbsError> {
    let library = library().ok_or(LibibverbsError::NotInstalled)?;
    let kind = kind_for(&library)?;
    let program = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let dir = program.parent().unwrap_or(Path::new("/")).to_owned();
    let places = [dir.join(kind.file), dir.join("../lib/balboa").join(kind.file)];
    match places.iter().find_map(|place| place.canonicalize().ok()) {
        Some(file) => Ok(Provider { file, kind }),
        None => Err(LibibverbsError::ProviderMissing { name: kind.file, dir }),
    }
}

/// The provider for a library, told by its full file name: `libibverbs.so.1.14.44.0` is the
/// library of release 44.
fn kind_for(library: &Path) -> Result<&'static Kind, LibibverbsError> {
    let name = library.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let release = name
        .strip_prefix(SONAME)
        .and_then(|version| version.strip_prefix('.'))
        .and_then(|version| version.split('.').nth(1))
        .and_then(|release| release.parse().ok());
    let Some(release) = release else {
        return Err(LibibverbsError::UnknownRelease(library.to_owned()));
    };
    KINDS
        .iter()
        .find(|kind| kind.release == release)
        .ok_or_else(|| LibibverbsError::NoProvider { file: library.to_owned(), release })
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

/// What the loader's cache has, by asking the program that keeps it.
fn cached() -> Vec<PathBuf> {
    ["/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|ldconfig| Command::new(ldconfig).arg("-p").output().ok())
        .map(|output| from_cache(&output.stdout))
        .unwrap_or_default()
}

/// What stands between a library's name and its file, which is a path in any bytes.
const ARROW: &[u8] = b" => ";

/// The library's files in the output of `ldconfig -p`, those of this architecture:
/// `libibverbs.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libibverbs.so.1`.
fn from_cache(listing: &[u8]) -> Vec<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        "aarch64" => "AArch64",
        other => other,
    };
    let lines = listing.split(|&byte| byte == b'\n');
    let entries = lines.filter_map(|line| {
        let arrow = line.windows(ARROW.len()).position(|bytes| bytes == ARROW)?;
        let (name, file) = line.split_at_checked(arrow)?;
        Some((String::from_utf8_lossy(name), file.get(ARROW.len()..)?))
    });
    entries
        .filter(|(name, _)| {
            name.split_whitespace().next() == Some(SONAME) && name.contains(architecture)
        })
        .map(|(_, file)| PathBuf::from(OsStr::from_bytes(file)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_file_name() {
        let kind = kind_for(Path::new(&format!("/lib/libibverbs.so.1.14.{RELEASE}.0")));
        assert_eq!(kind, Ok(&KINDS[0]));
        let newer = kind_for(Path::new("/lib/libibverbs.so.1.14.56.1")).unwrap_err();
        assert!(newer.to_string().contains("rdma-core 56"), "{newer}");
        for odd in ["/lib/libibverbs.so.1", "/lib/libibverbs.so.1.x", "/lib/libc.so.6"] {
            let error = kind_for(Path::new(odd)).unwrap_err();
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
    fn the_plugin_has_the_name_that_libibverbs_looks_for() {
        let provider = Provider { file: PathBuf::new(), kind: &KINDS[0] };
        assert_eq!(provider.suffix(), format!("-rdmav{IBVERBS_PABI_VERSION}.so"));
    }
}
