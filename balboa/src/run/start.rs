//! `balboa run --start`: the balboad of a state directory, which is started where there is none.
//!
//! This process becomes the program, and so cannot be balboad's parent: another of this program is that
//! ([`super::starter`]), which ends when balboad is ready.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::lease::{Ending, Lease};
use super::mounts::DRIVER;
use crate::client::{Client, ClientError, Introduction};

/// What balboad is told where nothing is asked for.
const DEFAULT: [&str; 2] = ["--soft", "2"];
/// How long balboad may end and be started again, by this and by others, before it is given up.
const LIMIT: Duration = Duration::from_secs(180);
/// How often is looked for a balboad that ends or starts.
pub const RETRY: Duration = Duration::from_millis(20);

/// Why there is no balboad as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `--start` and what is behind it, but nothing behind `--`.
    #[error("no program is given: with --start it stands behind --, as in `balboa run --start {} -- ibv_devinfo`", .0)]
    NoProgram(String),
    /// The one that serves has other options.
    #[error(
        "the balboad that serves {} (process {pid}) was started with `{theirs}`, not with `{asked}`: leave balboad's options out to use it, end it (kill {pid}), or name another directory with --state-dir",
        dir.display()
    )]
    Options {
        /// State directory.
        dir: PathBuf,
        /// The process.
        pid: u32,
        /// Its options.
        theirs: String,
        /// Those that were asked for.
        asked: String,
    },
    /// The one that serves is in another network namespace.
    #[error(
        "the balboad that serves {} (process {pid}) is in another network namespace: name another directory with --state-dir",
        dir.display()
    )]
    Namespace {
        /// State directory.
        dir: PathBuf,
        /// The process.
        pid: u32,
    },
    /// In the world of a program that `balboa run` has started.
    #[error(
        "no balboad serves {} any more, and within balboa run none is started: run this outside",
        .0.display()
    )]
    Within(PathBuf),
    /// It could not be started.
    #[error("{0}")]
    Failed(String),
    /// One after the other ends.
    #[error(
        "no balboad that stays came about in {} within {} s: look at balboad.log there",
        .0.display(), LIMIT.as_secs()
    )]
    Late(PathBuf),
    /// This program cannot be executed again.
    #[error("cannot execute balboa again, which is to start balboad: {0}")]
    Again(io::Error),
    /// There is one, and something is wrong with it.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Where balboad serves, and what keeps it there.
#[derive(Debug)]
pub struct Served {
    /// Its state directory.
    pub dir: PathBuf,
    /// The lease, if it ends with its programs.
    pub lease: Option<Lease>,
}

impl Served {
    /// Where one is looked for, with the lease if there is one.
    pub fn looked_for(given: Option<&Path>) -> Self {
        let dir = shim_abi::state_dir(given, geteuid().as_raw());
        let lease = Lease::take(&dir).ok().flatten();
        Self { dir, lease }
    }
}

/// What was met in a state directory.
enum Met {
    Balboad(Introduction, Option<Lease>),
    Nobody,
    Ending,
}

/// Finds the balboad that serves this network namespace, by these options if there are any, or starts one.
///
/// # Errors
/// [`StartError`].
pub fn served(given: Option<&Path>, options: &[OsString]) -> Result<Served, StartError> {
    let (behind, options) = split(options);
    let given = behind.as_deref().or(given);
    // In the user's own directory there is one for each other namespace.
    let mut moves = shim_abi::named_state_dir(given).is_none();
    let mut dir = shim_abi::state_dir(given, geteuid().as_raw());
    let here = shim_abi::network_namespace();
    let begun = Instant::now();
    let mut silences = 0;
    while begun.elapsed() < LIMIT {
        match meet(&dir) {
            Ok(Met::Balboad(who, lease)) => {
                let told = who.network_namespace != 0 && here != 0;
                if told && who.network_namespace != here {
                    if std::mem::take(&mut moves) {
                        dir = shim_abi::dir_of_namespace(&dir, here);
                        continue;
                    }
                    return Err(StartError::Namespace { dir, pid: who.pid });
                }
                check_options(&dir, &who, &options)?;
                return Ok(Served { dir, lease });
            }
            Ok(Met::Nobody) if env::var_os("RDMAV_DRIVERS").is_some_and(|it| it == DRIVER) => {
                return Err(StartError::Within(dir));
            }
            Ok(Met::Nobody) => start(&dir, &options)?,
            Ok(Met::Ending) => sleep(RETRY),
            // It has ended since it was met, or hangs.
            Err(ClientError::Silent { .. }) if silences < 2 => {
                silences += 1;
                sleep(RETRY);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StartError::Late(dir))
}

fn meet(dir: &Path) -> Result<Met, ClientError> {
    // Before it is asked: the answer is that of one that is held.
    let lease = match Lease::take(dir) {
        Ok(lease) => lease,
        Err(Ending) => return Ok(Met::Ending),
    };
    let asked = Client::connect(dir, Duration::ZERO).and_then(|mut client| client.introduce());
    match asked {
        Ok(who) => Ok(Met::Balboad(who, lease)),
        Err(ClientError::NoBalboad { .. } | ClientError::Stale { .. }) => Ok(Met::Nobody),
        Err(error) => Err(error),
    }
}

/// Has one started, and waits until it is ready.
fn start(dir: &Path, options: &[OsString]) -> Result<(), StartError> {
    // Its own file, wherever that is by now.
    let mut starter = Command::new("/proc/self/exe");
    starter.arg("start-balboad").arg("--state-dir").arg(dir).arg("--");
    match options {
        [] => starter.args(DEFAULT),
        options => starter.args(options),
    };
    let ended = starter.stdin(Stdio::null()).output().map_err(StartError::Again)?;
    if ended.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&ended.stderr);
    let told = told.trim();
    Err(StartError::Failed(match told.strip_prefix("balboa start-balboad: ") {
        Some(told) => told.to_owned(),
        None => format!("what was to start balboad failed ({}): {told}", ended.status),
    }))
}

/// balboad's options, without the state directory that is named among them.
fn split(words: &[OsString]) -> (Option<PathBuf>, Vec<OsString>) {
    let (mut dir, mut options) = (None, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--state-dir" {
            dir = words.next().map(PathBuf::from).or(dir);
        } else if let Some(named) = text.strip_prefix("--state-dir=") {
            dir = Some(PathBuf::from(named));
        } else {
            options.push(word.clone());
        }
    }
    (dir, options)
}

/// Words as they are told.
pub fn words(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn check_options(dir: &Path, who: &Introduction, asked: &[OsString]) -> Result<(), StartError> {
    let theirs: Vec<OsString> = who.options.iter().map(OsString::from).collect();
    let (_, theirs) = split(&theirs);
    if asked.is_empty() || each(asked) == each(&theirs) {
        return Ok(());
    }
    let (dir, pid) = (dir.to_owned(), who.pid);
    Err(StartError::Options { dir, pid, theirs: words(&theirs), asked: words(asked) })
}

/// The options, each with its values and in one order, without how much is logged.
fn each(words: &[OsString]) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for word in words {
        let word = word.to_string_lossy();
        match options.last_mut() {
            Some(option) if !word.starts_with('-') => {
                option.push('=');
                option.push_str(&word);
            }
            _ => options.push(word.into_owned()),
        }
    }
    options.retain(|option| !["-v", "-vv", "--verbose"].contains(&&**option));
    options.sort();
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn options_are_the_same_however_they_are_written() {
        let who = |text: &str| Introduction {
            pid: 7,
            network_namespace: 1,
            options: text.split_whitespace().map(str::to_owned).collect(),
        };
        let check = |theirs, asked| check_options(Path::new("D"), &who(theirs), &list(asked));
        for (theirs, asked) in [
            ("--state-dir D --soft 2", "--soft 2"),
            ("--state-dir=D --soft=2 -v", "--soft 2"),
            ("--soft 2 --ip 1=10.0.0.1 --lossy", "--lossy --ip=1=10.0.0.1 --soft 2 --verbose"),
            ("--soft 4", ""),
        ] {
            assert!(check(theirs, asked).is_ok(), "{theirs} and {asked}");
        }
        for (theirs, asked) in [
            ("--soft 2", "--soft 1"),
            ("--soft 2 --lossy", "--soft 2"),
            ("--fault loss=1%", "--fault loss=1% --fault loss=1%"),
        ] {
            let told = check(theirs, asked).unwrap_err().to_string();
            assert!(told.contains(&format!("with `{theirs}`, not with `{asked}`")), "{told}");
            assert!(told.contains("kill 7"), "{told}");
        }
    }

    #[test]
    fn the_state_directory_may_stand_among_balboads_options() {
        let (dir, rest) = split(&list("--soft 1 --state-dir D --lossy"));
        assert_eq!((dir, rest), (Some("D".into()), list("--soft 1 --lossy")));
        assert_eq!(split(&list("--state-dir=E")), (Some("E".into()), Vec::new()));
        assert_eq!(split(&list("--soft 1")).0, None);
    }
}
