//! The setting of a case: the programs under test, a directory, and its user.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;
use tempfile::TempDir;
use verbs_sys::{RELEASES, Release};

use crate::process::{self, LIMIT, Running, Task};

/// The ordinary user when the tests run as root: the system's user `nobody`.
pub const NOBODY: u32 = 65534;
/// The directory with the host's shares in the guest: `built`, the programs under test, `job`, the boot's task, and
/// `modules`.
pub const SHARES: &str = "/run/balboa-guest";
/// The programs under test, beside the providers.
const PROGRAMS: [&str; 10] = [
    "balboad",
    "balboa",
    "balboa-perf",
    "verbs-attack",
    "verbs-bench",
    "verbs-data",
    "verbs-mortal",
    "deny-namespaces",
    "in-root",
    "remote-shell",
];

/// The release of rdma-core that is installed here.
///
/// # Errors
/// When it is none that there is a provider for.
pub fn installed_release() -> Result<&'static Release> {
    let query = Task::new("dpkg-query").args(["-W", "-f", "${Version}", "libibverbs1"]);
    let version = query.run()?.success()?.stdout;
    let number = version.split('.').next().and_then(|number| number.parse().ok());
    let release = RELEASES.iter().find(|it| Some(it.number) == number);
    release.with_context(|| format!("there is no provider for libibverbs1 {version}"))
}

/// The releases of rdma-core whose providers are in the directory where cargo put the programs.
///
/// # Errors
/// When none is.
pub fn built_releases(built: &Path) -> Result<Vec<&'static Release>> {
    let is_built = |release: &&Release| built.join(release.provider()).exists();
    let releases: Vec<_> = RELEASES.iter().filter(is_built).collect();
    ensure!(!releases.is_empty(), "{} has no provider", built.display());
    Ok(releases)
}

/// The user that runs a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// An ordinary user: [`NOBODY`] when we are root, otherwise ourselves.
    User,
    /// Root.
    Root,
    /// The user of the tests.
    Ourselves,
}

/// A root directory with another release of rdma-core than this machine's.
#[derive(Clone, Debug)]
pub struct Root {
    /// Where it lies.
    pub path: PathBuf,
}

impl Root {
    /// Whether it has a program.
    pub fn has(&self, program: &str) -> bool {
        ["usr/bin", "usr/sbin"].iter().any(|dir| self.path.join(dir).join(program).is_file())
    }
}

/// The programs under test, where every user can execute them.
#[derive(Debug)]
pub struct Stage {
    home: TempDir,
    root: Option<Root>,
}

impl Stage {
    /// Copies all programs, and the providers that were built, from where cargo put them.
    ///
    /// # Errors
    /// When a program or all providers are missing, or there is no room.
    pub fn new(built: &Path) -> Result<Self> {
        Self::of(built, PROGRAMS.map(str::to_owned), built_releases(built)?)
    }

    /// The same of some programs, and the providers of some releases.
    ///
    /// # Errors
    /// As [`Stage::new`].
    pub fn of<'a>(
        built: &Path,
        programs: impl IntoIterator<Item = String>,
        releases: impl IntoIterator<Item = &'a Release>,
    ) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("balboa-tests-").tempdir()?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(home.path(), open.clone())?;
        let bin = home.path().join("bin");
        fs::create_dir(&bin)?;
        fs::set_permissions(&bin, open.clone())?;
        let providers = releases.into_iter().map(Release::provider);
        for program in programs.into_iter().chain(providers) {
            let (from, to) = (built.join(&program), bin.join(&program));
            fs::copy(&from, &to).with_context(|| {
                format!("cannot copy {} (cargo build --workspace makes it)", from.display())
            })?;
            fs::set_permissions(&to, open.clone())?;
        }
        Ok(Self { home, root: None })
    }

    /// The same, where programs run by `balboa run` do so in a root directory of their own.
    #[must_use]
    pub fn within(mut self, root: Option<&Root>) -> Self {
        self.root = root.cloned();
        self
    }

    /// The same with the library of an engine in RTL, where balboad looks for it: beside the directory that it is in.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn with_rtl(self, library: &Path) -> Result<Self> {
        let beside = self.home.path().join("gateware");
        fs::create_dir(&beside)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755))?;
        fs::copy(library, beside.join("libengine.so"))
            .with_context(|| format!("copy {}", library.display()))?;
        Ok(self)
    }

    /// The directory that everything lies in.
    pub fn path(&self) -> &Path {
        self.home.path()
    }

    /// A setting of its own for one case.
    ///
    /// # Errors
    /// When its directory cannot be made.
    pub fn setting(&self, who: Who) -> Result<Setting> {
        let root = geteuid().is_root();
        let user = (root && who == Who::User).then_some(NOBODY);
        let directory = tempfile::Builder::new().prefix("case-").tempdir_in(self.home.path())?;
        if user.is_some() {
            chown(directory.path(), user, user)?;
        }
        Ok(Setting { bin: self.home.path().join("bin"), directory, user, root: self.root.clone() })
    }
}

/// The setting of one case.
#[derive(Debug)]
pub struct Setting {
    /// Where the programs under test are.
    pub bin: PathBuf,
    directory: TempDir,
    user: Option<u32>,
    root: Option<Root>,
}

impl Setting {
    /// A directory of the case's own, which belongs to its user.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The root directory that programs run in, if it is another than this machine's.
    pub fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// The uid that the case's programs run as.
    pub fn uid(&self) -> u32 {
        self.user.unwrap_or_else(|| geteuid().as_raw())
    }

    /// A program, as the case's user, in the case's directory.
    pub fn task(&self, program: impl AsRef<std::ffi::OsStr>) -> Task {
        Task::new(program)
            .user(self.user)
            .directory(self.directory())
            .env("HOME", self.directory())
            .env("TMPDIR", self.directory())
    }

    /// One of the programs under test.
    pub fn built(&self, program: &str) -> Task {
        self.task(self.bin.join(program))
    }

    /// `balboa run --state-dir DIR --`, to which the command is to be added.
    pub fn balboa_run(&self, state_dir: &Path) -> Task {
        let balboa = match &self.root {
            None => self.built("balboa"),
            Some(root) => self.inside(root).arg(self.bin.join("balboa")),
        };
        balboa.arg("run").arg("--state-dir").arg(state_dir).arg("--")
    }

    /// A program in a root directory, as the case's user, to which the command is to be added.
    fn inside(&self, root: &Root) -> Task {
        let task = self.built("in-root").user(None);
        // It changes the root first, and the user then.
        let task = match self.user {
            Some(user) => task.arg("--user").arg(user.to_string()),
            None => task,
        };
        let shared = std::env::temp_dir();
        task.arg(&root.path).arg(shared)
    }

    /// The state directory that [`Setting::balboad`] uses.
    pub fn state_dir(&self) -> PathBuf {
        self.directory().join("state")
    }

    /// Starts balboad on [`Setting::state_dir`] and waits for its `ready`.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn balboad(&self, arguments: &str) -> Result<Daemon<'_>> {
        self.balboad_in(&self.state_dir(), arguments)
    }

    /// Starts balboad on a state directory and waits for its `ready`.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn balboad_in(&self, state_dir: &Path, arguments: &str) -> Result<Daemon<'_>> {
        let task = self.built("balboad").arg("--state-dir").arg(state_dir).words(arguments);
        self.started(state_dir, task)
    }

    /// A balboad that another program runs; otherwise as [`Setting::balboad_in`].
    pub fn balboad_within(
        &self,
        state_dir: &Path,
        arguments: &str,
        within: impl FnOnce(&Task) -> Task,
    ) -> Result<Daemon<'_>> {
        let task = self.built("balboad").arg("--state-dir").arg(state_dir).words(arguments);
        self.started(state_dir, within(&task))
    }

    fn started(&self, state_dir: &Path, task: Task) -> Result<Daemon<'_>> {
        let mut running = task.tidy().limit(START).start()?;
        running.wait_until("it was ready", |it| it.output().lines().any(|line| line == "ready"))?;
        let running = running.unlimited();
        Ok(Daemon { setting: self, running, state_dir: state_dir.to_owned() })
    }

    /// Starts two balboads with a card each, joined by a cable whose ends are [`Setting::cable_end`]s.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn cabled_balboads(&self) -> Result<[Daemon<'_>; 2]> {
        self.cabled_balboads_with("")
    }

    /// The same, with further arguments.
    ///
    /// # Errors
    /// As [`Self::cabled_balboads`].
    pub fn cabled_balboads_with(&self, arguments: &str) -> Result<[Daemon<'_>; 2]> {
        let start = |number: usize| {
            let [local, remote] = [number, 1 - number].map(|end| self.cable_end(end));
            let port = format!("--port unix:{},{}", local.display(), remote.display());
            let state_dir = self.directory().join(format!("cabled{number}"));
            let ip = format!("--ip 10.77.0.{}/24", number + 1);
            self.balboad_in(&state_dir, &format!("--soft 1 {port} {ip} {arguments}"))
        };
        Ok([start(0)?, start(1)?])
    }

    /// The socket of one of the two of [`Setting::cabled_balboads`], by which its frames come.
    pub fn cable_end(&self, number: usize) -> PathBuf {
        self.directory().join(format!("cabled{number}.port"))
    }
}

/// Doorbell pages of a card that programs can have.
pub const PAGES: usize = 56;
/// How long balboad may take to come up.
const START: Duration = Duration::from_secs(2 * 60);
/// How long balboad may take to end.
const END: Duration = Duration::from_secs(2 * 60);

/// A balboad that runs. Dropping it kills it; [`Daemon::stop`] checks how it ends.
#[derive(Debug)]
pub struct Daemon<'a> {
    setting: &'a Setting,
    running: Running,
    state_dir: PathBuf,
}

impl Daemon<'_> {
    /// Its state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.running.errors()
    }

    /// A command line run by `balboa run`.
    pub fn run(&self, command: &str) -> Task {
        self.setting.balboa_run(&self.state_dir).words(command)
    }

    /// `verbs-mortal` with arguments, run by `balboa run`.
    pub fn mortal(&self, arguments: &str) -> Task {
        self.run("").arg(self.setting.bin.join("verbs-mortal")).words(arguments)
    }

    /// Takes all doorbell pages of the first two cards, as long as the returned program runs: every other program is
    /// relayed.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn take_pages(&self) -> Result<Running> {
        let holder = self.run("").arg(self.setting.bin.join("verbs-attack"));
        let holder = holder.words(&format!("hold --places {PAGES}")).arg(&self.state_dir);
        let mut holder = holder.limit(LIMIT).start()?;
        holder.wait_until("it had the pages", |it| it.has_said("attacking"))?;
        Ok(holder.unlimited())
    }

    /// Sends it a signal, of which it may take no notice.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }

    /// The output of `balboa status --json`.
    ///
    /// # Errors
    /// When it says nothing, or no JSON.
    pub fn status(&self) -> Result<Value> {
        self.status_within(LIMIT)
    }

    /// The same, with a limit of its own.
    ///
    /// # Errors
    /// As [`Daemon::status`], or when it takes longer.
    pub fn status_within(&self, limit: Duration) -> Result<Value> {
        let balboa = self.setting.built("balboa").limit(limit);
        let finished = balboa.words("status --json --state-dir").arg(&self.state_dir).run()?;
        let finished = finished.success()?;
        serde_json::from_str(&finished.stdout).with_context(|| format!("no JSON: {finished}"))
    }

    /// Whether it has ended, or is about to and cannot be kept from it.
    pub fn has_ended(&self) -> bool {
        matches!(process::state(self.pid()), None | Some('Z'))
    }

    /// Kills it without warning.
    ///
    /// # Errors
    /// When it has ended before.
    pub fn kill(self) -> Result<()> {
        self.running.signal(Signal::SIGKILL)?;
        self.running.wait().map(drop)
    }

    /// Ends it by SIGTERM and checks that it ends well and leaves no socket.
    ///
    /// # Errors
    /// When it had ended before, ends badly, or leaves something.
    pub fn stop(self) -> Result<()> {
        self.stop_within(END)
    }

    /// The same, with a limit of its own.
    ///
    /// # Errors
    /// As [`Daemon::stop`].
    pub fn stop_within(self, limit: Duration) -> Result<()> {
        self.running.signal(Signal::SIGTERM)?;
        let finished = self.running.limited(limit).wait()?;
        if !finished.status.success() {
            bail!("balboad did not end well on SIGTERM: {finished}");
        }
        let left = sockets_in(&self.state_dir)?;
        ensure!(left.is_empty(), "balboad left sockets in its state directory: {left:?}");
        Ok(())
    }
}

/// The sockets in a directory that may not be there.
fn sockets_in(directory: &Path) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::FileTypeExt as _;
    let mut sockets = Vec::new();
    if !directory.exists() {
        return Ok(sockets);
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            sockets.push(entry.path());
        }
    }
    sockets.sort();
    Ok(sockets)
}
