//! The program to run: its file, and signs in it that it may fail.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Exit code for a program that is there but cannot be executed, as env(1) has it.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit code for a program that is not there, as env(1) has it.
pub const MISSING: u8 = 127;

/// Why a program is not run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CommandError {
    /// It is not there.
    #[error("{}: command not found{mend}", name.display())]
    Missing {
        /// The name as given.
        name: PathBuf,
        /// The mend, where known.
        mend: Cow<'static, str>,
    },
    /// It is there but may not be executed.
    #[error("{}: not an executable file", .0.display())]
    NotExecutable(PathBuf),
}

impl CommandError {
    /// The exit code of `balboa run`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Missing { .. } => MISSING,
            Self::NotExecutable(_) => NOT_EXECUTABLE,
        }
    }
}

/// A program that can be executed.
#[derive(Debug)]
pub struct Program<'a> {
    /// The name it was called by.
    pub name: &'a OsStr,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// Its file.
    pub path: PathBuf,
}

impl<'a> Program<'a> {
    /// Finds the program of a command line in PATH.
    ///
    /// # Errors
    /// When it is not there or may not be executed.
    pub fn resolve(line: &'a [OsString]) -> Result<Self, CommandError> {
        let (name, arguments) = match line {
            [name, arguments @ ..] => (name.as_os_str(), arguments),
            [] => (OsStr::new(""), &[][..]),
        };
        let path = find(name, std::env::var_os("PATH").as_deref())?;
        Ok(Self { name, arguments, path })
    }

    /// Warnings for the user, before the program prints less clear ones.
    pub fn warnings(&self) -> Vec<String> {
        let called = self.called();
        let mut warnings = Vec::new();
        if called.starts_with("ibv_")
            && called.ends_with("_pingpong")
            && !has_option(self.arguments, PINGPONG_VALUES, 'g', "--gid-idx")
        {
            warnings.push(format!(
                "{called} without -g uses no GID and cannot connect on RoCE: add -g 0 (link-local) or -g 1 (IPv4) on both sides"
            ));
        }
        warnings
    }

    fn called(&self) -> Cow<'_, str> {
        Path::new(self.name).file_name().unwrap_or_default().to_string_lossy()
    }
}

/// Short options of the pingpong programs that take a value.
const PINGPONG_VALUES: &str = "pdismrnlgx";
/// Programs that come with librdmacm.
const RDMA_CM_PROGRAMS: &[&str] = &[
    "cmtime",
    "mckey",
    "rcopy",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "riostream",
    "rping",
    "rstream",
    "ucmatose",
    "udaddy",
    "udpong",
];

fn is_perftest(name: &str) -> bool {
    let kinds = ["ib_write_", "ib_read_", "ib_send_", "ib_atomic_", "raw_ethernet_"];
    kinds.iter().any(|kind| name.starts_with(kind))
}

/// Whether a getopt command line has an option, alone, in a cluster, or in its long form.
fn has_option(arguments: &[OsString], with_value: &str, short: char, long: &str) -> bool {
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--" {
            return false;
        }
        if word.starts_with("--") {
            if word.split('=').next() == Some(long) {
                return true;
            }
            continue;
        }
        let Some(cluster) = word.strip_prefix('-') else { continue };
        let mut letters = cluster.chars();
        while let Some(letter) = letters.next() {
            if letter == short {
                return true;
            }
            if with_value.contains(letter) {
                if letters.as_str().is_empty() {
                    words.next();
                }
                break;
            }
        }
    }
    false
}

/// Finds a program as execvp(3) does.
///
/// # Errors
/// When it is not there or may not be executed.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, CommandError> {
    let missing = || CommandError::Missing { name: name.into(), mend: mend_of(name) };
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match file.is_file() && access(&file, AccessFlags::X_OK).is_ok() {
            true => Ok(file),
            false if file.exists() => Err(CommandError::NotExecutable(file)),
            false => Err(missing()),
        };
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        let file = directory.join(name);
        if !file.is_file() {
            continue;
        }
        if access(&file, AccessFlags::X_OK).is_ok() {
            return Ok(file);
        }
        refused.get_or_insert(file);
    }
    Err(refused.map_or_else(missing, CommandError::NotExecutable))
}

/// The mend for a program that is not there: an option that there is not, or the Debian package that brings a program we
/// know.
fn mend_of(name: &OsStr) -> Cow<'static, str> {
    let name = name.to_string_lossy();
    if name.starts_with('-') {
        return "; balboa run has no such option (see balboa run --help)".into();
    }
    let package = if is_perftest(&name) {
        "perftest"
    } else if name.starts_with("ibv_") {
        "ibverbs-utils"
    } else if RDMA_CM_PROGRAMS.contains(&name.as_ref()) {
        "rdmacm-utils"
    } else {
        return "".into();
    };
    format!("; it comes with the package {package}: apt-get install {package}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn program(words: &[OsString]) -> Program<'_> {
        Program { name: &words[0], arguments: &words[1..], path: PathBuf::new() }
    }

    #[test]
    fn a_pingpong_without_a_gid_index_is_warned_about() {
        for (text, warns) in [
            ("ibv_rc_pingpong", true),
            ("ibv_rc_pingpong -d balboa0 -e host", true),
            ("ibv_rc_pingpong -p g host", true),
            ("ibv_rc_pingpong -g 1", false),
            ("ibv_rc_pingpong -eg1", false),
            ("ibv_ud_pingpong --gid-idx=0", false),
            ("ib_write_bw", false),
        ] {
            assert_eq!(!program(&line(text)).warnings().is_empty(), warns, "{text}");
        }
    }

    #[test]
    fn a_program_is_looked_for_as_a_shell_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        let path = dir.path().as_os_str();
        let plain = CommandError::NotExecutable(dir.path().join("plain"));
        assert_eq!(find(OsStr::new("plain"), Some(path)), Err(plain));
        let missing = find(OsStr::new("ib_send_bw"), Some(path)).unwrap_err();
        assert_eq!(missing.exit_code(), MISSING);
        assert!(missing.to_string().ends_with("apt-get install perftest"), "{missing}");
        assert_eq!(find(OsStr::new("sh"), None).unwrap().file_name(), Some(OsStr::new("sh")));
        let absent = find(OsStr::new("./not/there"), None).unwrap_err();
        assert_eq!(absent.to_string(), "./not/there: command not found");
        let option = find(OsStr::new("--in-plaec"), Some(path)).unwrap_err().to_string();
        assert!(option.starts_with("--in-plaec: command not found; balboa run has no"), "{option}");
    }
}
