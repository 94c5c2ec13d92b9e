//! `balboa run --start`: the balboad of a state directory, which is started where there is none.
//!
//! This process becomes the program, and so cannot be balboad's parent: another of this program is that
//! ([`super::starter`]), which ends when balboad is ready.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::prctl::{get_child_subreaper, set_child_subreaper};
use nix::unistd::geteuid;
use shim_abi::CardInfo;

use super::lease::{Ending, Lease};
use super::view::DRIVER;
use crate::client::{ClientError, Introduction, ToolClient};

/// The options of balboad if the user gives none.
const DEFAULT: [&str; 2] = ["--soft", "2"];
/// How long balboad may end and be started again, by this and by others, before it is given up.
const LIMIT: Duration = Duration::from_secs(180);
/// The time for which a balboad that another program is just starting is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval of looks for a balboad that ends or starts.
pub const RETRY: Duration = Duration::from_millis(20);

/// Why there is no balboad as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The words from `--start` on, with a space behind them, without any behind `--`.
    #[error("no program is given: with --start it stands behind --, as in `balboa run --start {}-- ibv_devinfo`", .0)]
    NoProgram(String),
    /// The state directory among balboad's options is none, or one of several.
    #[error("--state-dir: {0}; write it once, with the name of a directory")]
    StateDir(&'static str),
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
        /// The requested options.
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
    /// The program runs within `balboa run`, which starts no further balboad.
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
    /// There is one, and it fails.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The state directory of a balboad, and the lease that keeps it.
#[derive(Debug)]
pub struct Served {
    /// Its state directory.
    pub dir: PathBuf,
    /// The lease, if it ends with its programs: taken once this balboad has answered a request.
    pub lease: Option<Lease>,
    /// The connection to it, which is older than the lease.
    pub client: ToolClient,
}

/// The state of a directory's balboad.
enum Met {
    Balboad(Served),
    Nobody(ClientError),
    Ending,
}

/// Finds a balboad that runs, or is just starting, and its cards.
///
/// # Errors
/// None serves, or something is wrong with it.
pub fn found(given: Option<&Path>) -> Result<(Served, Vec<CardInfo>), ClientError> {
    let dir = shim_abi::state_dir(given, geteuid().as_raw());
    let begun = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let failed = match meet(&dir, left) {
            Ok(Met::Balboad(mut served)) => match served.client.cards() {
                Ok(cards) => return Ok((served, cards)),
                Err(error) => error,
            },
            Ok(Met::Nobody(error)) => return Err(error),
            Ok(Met::Ending) => ClientError::NoBalboad { dir: dir.clone() },
            Err(error) => error,
        };
        let ends = matches!(failed, ClientError::Silent { .. } | ClientError::NoBalboad { .. });
        if !ends || left.is_zero() {
            return Err(failed);
        }
        sleep(RETRY);
    }
}

/// Finds the balboad that serves this network namespace, by these options if there are any, or starts one.
///
/// # Errors
/// [`StartError`].
pub fn served(given: Option<&Path>, options: &[OsString]) -> Result<Served, StartError> {
    let (behind, options) = split(options)?;
    let options = with_card(options);
    if behind.is_some() && given.is_some() {
        return Err(StartError::StateDir(TWICE));
    }
    let given = behind.as_deref().or(given);
    // In the user's own directory there is one for each other namespace.
    let mut moves = shim_abi::named_state_dir(given).is_none();
    let mut dir = shim_abi::state_dir(given, geteuid().as_raw());
    let here = shim_abi::network_namespace();
    let begun = Instant::now();
    let mut silences = 0;
    while begun.elapsed() < LIMIT {
        let met = meet(&dir, Duration::ZERO).and_then(|met| match met {
            Met::Balboad(mut served) => {
                let who = served.client.introduce()?;
                Ok((Met::Balboad(served), Some(who)))
            }
            other => Ok((other, None)),
        });
        match met {
            Ok((Met::Balboad(served), Some(who))) => {
                let told = who.network_namespace != 0 && here != 0;
                if told && who.network_namespace != here {
                    if std::mem::take(&mut moves) {
                        dir = shim_abi::dir_of_namespace(&dir, here);
                        continue;
                    }
                    return Err(StartError::Namespace { dir, pid: who.pid });
                }
                check_options(&dir, &who, &options)?;
                return Ok(served);
            }
            Ok((Met::Nobody(_), _))
                if env::var_os("RDMAV_DRIVERS").is_some_and(|it| it == DRIVER) =>
            {
                return Err(StartError::Within(dir));
            }
            Ok((Met::Nobody(_), _)) => start(&dir, &options)?,
            Ok(_) => sleep(RETRY),
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

/// Meets the balboad that serves a directory, and takes its lease: a listener has made the lease's file before, and one
/// that answers afterwards sees the lease.
fn meet(dir: &Path, patience: Duration) -> Result<Met, ClientError> {
    let connected = ToolClient::connect(dir, patience);
    let client = match connected {
        Ok(client) => client,
        Err(error @ (ClientError::NoBalboad { .. } | ClientError::Stale { .. })) => {
            return Ok(Met::Nobody(error));
        }
        // A balboad that ends answers no client any more. The directory is the user's own by now.
        Err(ClientError::Silent { .. }) if Lease::take(dir).is_err() => return Ok(Met::Ending),
        Err(error) => return Err(error),
    };
    Ok(match Lease::take(dir) {
        Ok(lease) => Met::Balboad(Served { dir: dir.to_owned(), lease, client }),
        Err(Ending) => Met::Ending,
    })
}

/// Starts one, and waits until it is ready.
fn start(dir: &Path, options: &[OsString]) -> Result<(), StartError> {
    // Its own file, wherever that is by now.
    let mut starter = Command::new("/proc/self/exe");
    starter.arg("start-balboad").arg("--state-dir").arg(dir).arg("--");
    match options {
        [] => starter.args(DEFAULT),
        options => starter.args(options),
    };
    starter.stdin(Stdio::null());
    let ended = meanwhile(|| starter.output()).map_err(StartError::Again)?;
    if ended.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&ended.stderr);
    let told = told.trim();
    Err(StartError::Failed(match told.strip_prefix("balboa start-balboad: ") {
        Some(told) => told.to_owned(),
        None => format!("the process that starts balboad failed ({}): {told}", ended.status),
    }))
}

/// Runs a function while this process learns how its children end, and gets no orphans: with SIGCHLD ignored, which it
/// may have inherited, the kernel does not tell, and a subreaper would become the parent of their children.
pub fn meanwhile<T>(then: impl FnOnce() -> T) -> T {
    let ignored = hostmem::signal::heed(libc::SIGCHLD);
    let reaps = get_child_subreaper().unwrap_or(false) && set_child_subreaper(false).is_ok();
    let outcome = then();
    if reaps {
        let _ = set_child_subreaper(true);
    }
    if ignored {
        hostmem::signal::ignore(libc::SIGCHLD);
    }
    outcome
}

/// The fault of a state directory that is named more than once.
const TWICE: &str = "it is given twice";

/// balboad's options, without the state directory that is named among them.
fn split(words: &[OsString]) -> Result<(Option<PathBuf>, Vec<OsString>), StartError> {
    let (mut dir, mut options) = (None, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.as_bytes();
        let named = match text.strip_prefix(b"--state-dir") {
            Some([]) => {
                let value = words.next().map(|word| word.as_bytes());
                value.filter(|value| !value.starts_with(b"-")).unwrap_or_default()
            }
            Some([b'=', named @ ..]) => named,
            _ => {
                options.push(word.clone());
                continue;
            }
        };
        if named.is_empty() {
            return Err(StartError::StateDir("its value is missing"));
        }
        if dir.replace(PathBuf::from(OsStr::from_bytes(named))).is_some() {
            return Err(StartError::StateDir(TWICE));
        }
    }
    Ok((dir, options))
}

/// The options, with a card where they name none but the machine's network for it.
fn with_card(mut options: Vec<OsString>) -> Vec<OsString> {
    let mut network = false;
    for (number, word) in options.iter().enumerate() {
        let word = word.to_string_lossy();
        if ["--soft", "--vfio", "--config"].contains(&word.split('=').next().unwrap_or_default()) {
            return options;
        }
        let next = options.get(number.saturating_add(1)).map(|it| it.to_string_lossy());
        let link = match &*word {
            "--port" => next.as_deref(),
            word => word.strip_prefix("--port="),
        };
        network |= link.is_some_and(|link| link == "udp" || link.starts_with("udp:"));
    }
    if network {
        options.splice(0..0, ["--soft", "1"].map(OsString::from));
    }
    options
}

/// Words as they are told.
fn words(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The error of a line without a program, whose words from `--start` on these are.
pub fn no_program(given: &[OsString]) -> StartError {
    let mut given = words(given);
    if !given.is_empty() {
        given.push(' ');
    }
    StartError::NoProgram(given)
}

fn check_options(dir: &Path, who: &Introduction, asked: &[OsString]) -> Result<(), StartError> {
    let theirs: Vec<OsString> = who.options.iter().map(OsString::from).collect();
    // balboad has taken them, so nothing is wrong with them.
    let (_, theirs) = split(&theirs)?;
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
    use std::fs::{File, Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use nix::fcntl::{Flock, FlockArg};
    use shim_abi::LEASE_NAME;

    use super::*;
    use crate::client::tests::{greeted, listening};

    /// One that comes while it is looked for makes its file, and then listens.
    #[test]
    fn the_lease_of_one_that_comes_meanwhile_is_not_missed() {
        let (dir, listener) = listening();
        let file = dir.path().join(LEASE_NAME);
        let balboad = std::thread::spawn(move || {
            // Accepted behind everything that was done before connecting.
            let (mut tool, _) = listener.accept().unwrap();
            drop(File::create(file).unwrap());
            crate::client::tests::greet(&mut tool);
            tool
        });
        let Met::Balboad(served) = meet(dir.path(), Duration::ZERO).unwrap() else {
            panic!("it serves")
        };
        assert!(served.lease.is_some());
        balboad.join().unwrap();
    }

    #[test]
    fn one_that_ends_is_not_met_any_more() {
        let (dir, listener) = listening();
        let file = File::create(dir.path().join(LEASE_NAME)).unwrap();
        let over = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        let balboad = std::thread::spawn(move || {
            let tool = greeted(&listener);
            drop(listener.accept().unwrap());
            tool
        });
        assert!(matches!(meet(dir.path(), Duration::ZERO), Ok(Met::Ending)));
        // Whether it answers the hello or not.
        assert!(matches!(meet(dir.path(), Duration::ZERO), Ok(Met::Ending)));
        balboad.join().unwrap();
        drop(over);
    }

    /// A user who can write there could keep everybody waiting for an end.
    #[test]
    fn whose_directory_it_is_is_looked_at_before_its_lease() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(LEASE_NAME)).unwrap();
        let _held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let met = meet(dir.path(), Duration::ZERO);
        assert!(matches!(met, Err(ClientError::Open { .. })));
    }

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
    fn on_the_machines_network_there_is_one_card() {
        for (given, taken) in [
            ("--port udp", "--soft 1 --port udp"),
            ("-v --port=udp:eth0", "--soft 1 -v --port=udp:eth0"),
            ("--soft 1 --port udp", "--soft 1 --port udp"),
            ("--port udp --soft-map 0=x", "--soft 1 --port udp --soft-map 0=x"),
            ("--port packet:eth0", "--port packet:eth0"),
            ("", ""),
        ] {
            assert_eq!(with_card(list(given)), list(taken), "{given}");
        }
    }

    #[test]
    fn the_state_directory_may_stand_among_balboads_options() {
        let split = |text: &str| split(&list(text)).map_err(|error| error.to_string());
        let both = (Some("D".into()), list("--soft 1 --lossy"));
        assert_eq!(split("--soft 1 --state-dir D --lossy"), Ok(both));
        assert_eq!(split("--state-dir=E"), Ok((Some("E".into()), Vec::new())));
        assert_eq!(split("--soft 1").unwrap().0, None);
        for (text, fault) in [
            ("--soft 1 --state-dir", "its value is missing"),
            ("--state-dir=", "its value is missing"),
            ("--state-dir --lossy", "its value is missing"),
            ("--state-dir D --soft 1 --state-dir=D", "it is given twice"),
        ] {
            let told = format!("--state-dir: {fault}; write it once, with the name of a directory");
            assert_eq!(split(text), Err(told), "{text}");
        }
    }
}
