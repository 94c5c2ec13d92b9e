//! `balboa run`: a program in a world of its own in which the cards are its RDMA devices.
//!
//! libibverbs believes the kernel. Asked over netlink, a kernel without our device names none, and
//! that answer is final. So the program runs in a mount namespace that shows the devices in
//! `/sys/class` and `/dev/infiniband` ([`mounts`], [`sysfs`]), behind a filter that has RDMA netlink sockets
//! answered from those, or refused ([`netlink`], [`filter`]). `RDMAV_DRIVERS` names the provider, of which
//! each release of libibverbs finds its own. In a container that may make no namespace, all of it stands in
//! `/dev/infiniband` of the container ([`in_place`]).
//!
//! The program holds a lease on its balboad ([`lease`]); where there is none, one may be started ([`start`]).

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::prctl::set_no_new_privs;

use self::libibverbs::Providers;
use crate::args;
use crate::client::ClientError;

mod command;
mod elf;
mod filter;
mod first;
mod in_place;
mod lease;
mod libibverbs;
mod mounts;
pub mod netlink;
pub mod refusal;
mod start;
pub mod starter;
mod sysfs;
mod turn;
mod view;

/// Why the program was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program cannot be found or executed.
    #[error(transparent)]
    Command(#[from] command::CommandError),
    /// No libibverbs that we have a provider for.
    #[error(transparent)]
    Libibverbs(#[from] libibverbs::LibibverbsError),
    /// No balboad.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// None, and none could be started; or another than was asked for.
    #[error(transparent)]
    Start(#[from] start::StartError),
    /// A balboad without cards.
    #[error("balboad in {} has no card: start it with --soft 1 or more", .0.display())]
    NoCards(PathBuf),
    /// The program of `balboa perf` is not where it belongs.
    #[error(
        "the program that measures, balboa-perf, is neither beside this program ({}) nor in ../lib/balboa from there: build the whole workspace (cargo build --release --workspace) or install the package balboa", .0.display()
    )]
    NoPerf(PathBuf),
    /// The kernel refuses the namespace or the mounts in it.
    #[error(transparent)]
    Mounts(#[from] mounts::MountError),
    /// There is no place for the files that are mounted otherwise.
    #[error(transparent)]
    InPlace(#[from] in_place::InPlaceError),
    /// The kernel refuses the filter.
    #[error(
        "cannot install the seccomp filter that hides RDMA netlink ({0}): the kernel needs CONFIG_SECCOMP_FILTER"
    )]
    Filter(#[from] hostmem::Error),
    /// The kernel refuses to take rights away.
    #[error("cannot set no_new_privs: {0}")]
    NoNewPrivs(#[from] nix::errno::Errno),
    /// The state directory went away.
    #[error("cannot find the state directory {}: {error}", dir.display())]
    StateDir {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// exec(2) failed.
    #[error("cannot execute {}: {error}", path.display())]
    Exec {
        /// The program.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl RunError {
    /// The exit code, as env(1) has it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Command(error) => error.exit_code(),
            Self::Exec { error, .. } if error.kind() == io::ErrorKind::NotFound => command::MISSING,
            Self::Exec { .. } => command::NOT_EXECUTABLE,
            _ => crate::OWN_FAILURE,
        }
    }
}

/// The provider that programs here get if they find libibverbs where most do, and its release.
///
/// # Errors
/// Why there is none.
pub fn release() -> Result<String, libibverbs::LibibverbsError> {
    // This program is linked with none, so that the usual one is looked for.
    let provider = libibverbs::provider(&env::current_exe().unwrap_or_default())?;
    let (release, file) = (provider.release.number, provider.file.display());
    Ok(format!("rdma-core {release}, provider {file}"))
}

/// A file of ours, beside this program or in `../lib/balboa` from there.
///
/// # Errors
/// The directory that this program is in, where it is in neither.
pub fn beside_us(name: &str) -> Result<PathBuf, PathBuf> {
    let us = env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    beside(&us, name).ok_or_else(|| us.parent().unwrap_or(Path::new("/")).to_owned())
}

/// A file of ours, beside a program or in `../lib/balboa` from there.
pub fn beside(program: &Path, name: &str) -> Option<PathBuf> {
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.to_owned(), dir.join("../lib/balboa")];
    places.iter().find_map(|place| place.join(name).canonicalize().ok())
}

/// Becomes the program, or where that is no place for balboad's parent, its parent: then its exit code.
///
/// # Errors
/// The step that failed.
pub fn run(arguments: &args::Run) -> Result<u8, RunError> {
    if let (Some(words), []) = (&arguments.start, &*arguments.command) {
        return Err(start::no_program(words).into());
    }
    let program = command::Program::resolve(&arguments.command)?;
    for warning in program.warnings() {
        terminal::complain("balboa run: warning", warning);
    }
    let given = arguments.state_dir.path();
    let started = arguments.start.as_ref().map(|words| start::served(given, words)).transpose()?;
    // Programs that are executed from here on get no further rights: the program also names the
    // loader that is asked for its libraries.
    set_no_new_privs()?;
    let providers = Providers::with(libibverbs::provider(&program.path)?);

    let (start::Served { dir, lease, client }, cards) = match started {
        Some(mut served) => {
            let cards = served.client.cards()?;
            (served, cards)
        }
        None => start::found(given)?,
    };
    drop(client);
    if cards.is_empty() {
        return Err(RunError::NoCards(dir));
    }
    // The program may change its working directory.
    let dir = dir.canonicalize().map_err(|error| RunError::StateDir { dir: dir.clone(), error })?;

    let world = sysfs::World::of(&cards);
    let sysfs = if arguments.in_place {
        Some(in_place::show(&dir, &world, &providers)?)
    } else {
        // Behind all that owners of files say: a user namespace knows no user but the caller.
        mounts::enter()?;
        // The world is built on the state directory, which is sure to be there and to be the caller's
        // and is covered only meanwhile.
        mounts::show(&dir, &world, &providers)?;
        None
    };
    let class = sysfs.as_deref().unwrap_or(Path::new("/sys")).join("class");
    start::meanwhile(|| netlink::install(&class))?;
    let mut command = prepared(&program, &dir, sysfs.as_deref());
    if let Some(lease) = &lease {
        lease.hand_on()?;
    }
    let failed = |error| RunError::Exec { path: program.path.clone(), error };
    if first::is_first() {
        // The lease is held until then: dropping it would let go for the program, too.
        return first::stay(&mut command).map_err(failed);
    }
    Err(failed(command.exec()))
}

/// The variable by which libibverbs is led to another tree than /sys.
const SYSFS: &str = "SYSFS_PATH";
/// Whether UCX looks into the network header before a datagram for the address that it was sent to. UCX 1.13
/// takes that header for one of IPv6, unless a provider of another vendor is there, and drops datagrams of IPv4.
const UCX_DGID_CHECK: &str = "UCX_UD_ETH_DGID_CHECK";

/// The command and its environment: `sysfs` is where libibverbs finds the tree that stands for /sys, if it is not
/// there.
fn prepared(program: &command::Program, state_dir: &Path, sysfs: Option<&Path>) -> Command {
    let mut command = Command::new(&program.path);
    command
        .arg0(program.name)
        .args(program.arguments)
        .env("RDMAV_DRIVERS", view::DRIVER)
        .env(shim_abi::STATE_DIR_VARIABLE, state_dir);
    match sysfs {
        Some(sysfs) => command.env(SYSFS, sysfs),
        // It would lead libibverbs past the tree that stands in /sys.
        None => command.env_remove(SYSFS),
    };
    if env::var_os(UCX_DGID_CHECK).is_none() {
        command.env(UCX_DGID_CHECK, "n");
    }
    command
}
