//! The one way to run a program in tests and in the demo: with a time limit, and never left behind.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::pty::openpty;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// How long a program may take unless told otherwise.
pub const LIMIT: Duration = Duration::from_secs(180);
/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of output that are looked at.
const MAX_OUTPUT: usize = 64 << 20;
/// Lines of output that a failure shows.
const SHOWN_LINES: usize = 40;
/// Where programs are looked for.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The state of a process as the kernel writes it, a letter; none where there is no such process.
pub fn state(pid: i32) -> Option<char> {
    fields(pid)?.first()?.chars().next()
}

/// The kernel's fields of a process behind its number and its name: the state comes first, as proc_pid_stat(5) has it.
fn fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets, and may hold some itself.
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

thread_local! {
    static WORKED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time of all programs whose end this thread has seen, and of those that they have waited for.
pub(crate) fn worked() -> Duration {
    WORKED.get()
}

/// Counts the processor time of a process that has ended and is not reaped yet.
fn count_work(pid: i32) {
    // utime, stime, cutime and cstime.
    let ticks = fields(pid).unwrap_or_default().into_iter().skip(11).take(4);
    let ticks: u64 = ticks.filter_map(|it| it.parse::<u64>().ok()).sum();
    let each = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|it| u64::try_from(it).ok());
    let micros = ticks.saturating_mul(1_000_000 / each.filter(|&it| it > 0).unwrap_or(100));
    WORKED.set(WORKED.get() + Duration::from_micros(micros));
}

/// A program to run, not yet started.
#[derive(Clone, Debug)]
pub struct Task {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    user: Option<u32>,
    limit: Duration,
    end: Signal,
    shown: bool,
    terminal: bool,
}

impl Task {
    /// A program by its path, or its name in PATH.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: vec![("PATH".into(), PATH.into()), ("LC_ALL".into(), "C".into())],
            directory: "/".into(),
            user: None,
            limit: LIMIT,
            end: Signal::SIGKILL,
            shown: false,
            terminal: false,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Adds the words of a text as arguments.
    #[must_use]
    pub fn words(self, text: &str) -> Self {
        self.args(text.split_whitespace())
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref().to_owned();
        self.environment.retain(|(known, _)| *known != name);
        self.environment.push((name, value.as_ref().to_owned()));
        self
    }

    /// Hands on the whole of our own environment, for the build tools.
    #[must_use]
    pub fn with_our_environment(mut self) -> Self {
        self.environment = std::env::vars_os().collect();
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = directory.as_ref().to_owned();
        self
    }

    /// Runs as another user and its group, which only root can.
    #[must_use]
    pub fn user(mut self, user: Option<u32>) -> Self {
        self.user = user;
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Ends with SIGTERM instead of SIGKILL when we do, so that it can tidy up.
    #[must_use]
    pub fn tidy(mut self) -> Self {
        self.end = Signal::SIGTERM;
        self
    }

    /// Lets the output go where ours goes, instead of keeping it.
    #[must_use]
    pub fn shown(mut self) -> Self {
        self.shown = true;
        self
    }

    /// Gives it a terminal as standard input, with no typing but [`Running::type_in`]'s, instead of nothing.
    #[must_use]
    pub fn at_terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// The program and its arguments.
    pub fn command_line(&self) -> impl Iterator<Item = &OsStr> {
        std::iter::once(&self.program).chain(&self.arguments).map(OsString::as_os_str)
    }

    /// Starts the program.
    ///
    /// It ends with the calling thread in any case (PR_SET_PDEATHSIG, by setpriv(1)).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(self) -> Result<Running> {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--pdeathsig", self.end.as_str().trim_start_matches("SIG")]);
        if let Some(user) = self.user {
            let user = user.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        command.arg("--").arg(&self.program).args(&self.arguments);
        command.env_clear().envs(self.environment.iter().cloned());
        command.current_dir(&self.directory).process_group(0);
        let mut terminal = None;
        command.stdin(if self.terminal {
            let both = openpty(None, None).context("no terminal for a program")?;
            terminal = Some(both.master);
            Stdio::from(both.slave)
        } else {
            Stdio::null()
        });
        let keep = || tempfile::tempfile().context("no temporary file for a program's output");
        let (out, err) = (keep()?, keep()?);
        if !self.shown {
            command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        }
        let child = crate::interrupt::unmasked(|| command.spawn());
        let child = child.with_context(|| format!("cannot start {self}"))?;
        let started = Instant::now();
        Ok(Running { task: self, child, out, err, started, done: false, terminal })
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// When it cannot be started, or exceeds its limit.
    pub fn run(self) -> Result<Finished> {
        self.start()?.wait()
    }

    /// Whether a program of this name is in the PATH that programs are given.
    pub fn is_installed(program: &str) -> bool {
        PATH.split(':').any(|directory| Path::new(directory).join(program).is_file())
    }
}

/// The task as a line for a shell.
impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = self.user {
            write!(f, "setpriv --reuid {user} --regid {user} --clear-groups ")?;
        }
        write!(f, "{}", quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A program that runs. Dropping it kills it and all of its process group.
#[derive(Debug)]
pub struct Running {
    task: Task,
    child: Child,
    out: File,
    err: File,
    started: Instant,
    done: bool,
    /// The other end of its terminal, which would hang up without it.
    terminal: Option<OwnedFd>,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// Whether its first thread waits for an event, and not within the kernel for a lock.
    pub fn sleeps(&self) -> bool {
        state(self.pid()) == Some('S')
    }

    /// How long its own code has run, in ticks of the kernel's clock.
    pub fn user_ticks(&self) -> u64 {
        fields(self.pid()).and_then(|it| it.get(11)?.parse().ok()).unwrap_or(0)
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        text_of(&self.out)
    }

    /// Its standard error so far.
    pub fn errors(&self) -> String {
        text_of(&self.err)
    }

    /// Whether it has said a word, in a line of its own.
    pub fn has_said(&self, word: &str) -> bool {
        self.output().lines().any(|line| line == word)
    }

    /// Types at its terminal.
    ///
    /// # Errors
    /// When it has none.
    pub fn type_in(&self, text: &str) -> Result<()> {
        let terminal = self.terminal.as_ref().context("it has no terminal")?;
        Ok(File::from(terminal.try_clone()?).write_all(text.as_bytes())?)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// When it has gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        killpg(Pid::from_raw(self.pid()), signal)
            .with_context(|| format!("cannot send {signal} to {}", self.task))
    }

    /// Counts its time limit from now.
    #[must_use]
    pub fn limited(mut self, limit: Duration) -> Self {
        self.started = Instant::now();
        self.task.limit = limit;
        self
    }

    /// Lifts its time limit.
    #[must_use]
    pub fn unlimited(self) -> Self {
        self.limited(Duration::MAX)
    }

    /// Waits until a condition on it holds.
    ///
    /// # Errors
    /// When it ends before, or its time limit passes.
    pub fn wait_until(&mut self, what: &str, mut is: impl FnMut(&Self) -> bool) -> Result<()> {
        loop {
            if is(self) {
                return Ok(());
            }
            if let Some(status) = self.try_wait()? {
                bail!("it ended before {what}: {}", self.finished(status));
            }
            self.check_limit()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When its time limit passes; it is killed then.
    pub fn wait(mut self) -> Result<Finished> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(self.finished(status));
            }
            self.check_limit()?;
            std::thread::sleep(LOOK);
        }
    }

    fn check_limit(&mut self) -> Result<()> {
        if self.started.elapsed() <= self.task.limit {
            return Ok(());
        }
        let status = self.kill()?;
        bail!("it still ran after {:?} and was killed: {}", self.task.limit, self.finished(status))
    }

    fn kill(&mut self) -> io::Result<ExitStatus> {
        // The group, because the program may have started others.
        let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        self.reap(WaitPidFlag::empty())?;
        self.child.wait()
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.reap(WaitPidFlag::WNOHANG)? {
            return Ok(None);
        }
        self.child.wait().map(Some)
    }

    /// Waits for its end, or looks whether it has ended, and counts its processor time then.
    fn reap(&mut self, how: WaitPidFlag) -> io::Result<bool> {
        let process = Id::Pid(Pid::from_raw(self.pid()));
        let status = waitid(process, how | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        self.done = status != WaitStatus::StillAlive;
        if self.done {
            count_work(self.pid());
        }
        Ok(self.done)
    }

    fn finished(&self, status: ExitStatus) -> Finished {
        Finished {
            command: self.task.to_string(),
            status,
            stdout: self.output(),
            stderr: self.errors(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.kill();
        }
    }
}

/// The last lines of a text, in their order.
#[must_use]
pub fn last_lines(text: &str, count: usize) -> Vec<&str> {
    let skipped = text.lines().count().saturating_sub(count);
    text.lines().skip(skipped).collect()
}

fn text_of(file: &File) -> String {
    let bytes = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    let mut text = vec![0; usize::try_from(bytes).unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT)];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(read);
    String::from_utf8_lossy(&text).into_owned()
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Itself, if it succeeded.
    ///
    /// # Errors
    /// When it ended in another way than with exit code 0.
    pub fn success(self) -> Result<Self> {
        self.code(0)
    }

    /// Itself, if it ended with this exit code.
    ///
    /// # Errors
    /// When it ended in another way.
    pub fn code(self, code: i32) -> Result<Self> {
        if self.status.code() != Some(code) {
            bail!("expected exit code {code}: {self}");
        }
        Ok(self)
    }

    /// Itself, if its standard output has the text.
    ///
    /// # Errors
    /// When it has not.
    pub fn says(self, text: &str) -> Result<Self> {
        if !self.stdout.contains(text) {
            bail!("expected {text:?} on standard output: {self}");
        }
        Ok(self)
    }

    /// Itself, if its standard error has the text.
    ///
    /// # Errors
    /// When it has not.
    pub fn complains(self, text: &str) -> Result<Self> {
        if !self.stderr.contains(text) {
            bail!("expected {text:?} on standard error: {self}");
        }
        Ok(self)
    }

    /// Itself, if it ended with this exit code, and its standard error is one sentence, which has the text.
    ///
    /// # Errors
    /// When it ended in another way, or says otherwise or more.
    pub fn refuses(self, code: i32, why: &str) -> Result<Self> {
        let refused = self.code(code)?.complains(why)?;
        if refused.stderr.lines().count() != 1 {
            bail!("expected one sentence on standard error: {refused}");
        }
        Ok(refused)
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.command)?;
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "ended with exit code {code}")?,
            (None, Some(signal)) => write!(f, "was ended by signal {signal}")?,
            (None, None) => write!(f, "ended")?,
        }
        for (name, text) in [("output", &self.stdout), ("errors", &self.stderr)] {
            let lines: Vec<&str> = text.trim_end().lines().collect();
            let left_out = lines.len().saturating_sub(SHOWN_LINES);
            if !lines.is_empty() {
                write!(f, "\n--- {name}")?;
            }
            if left_out > 0 {
                write!(f, " ({left_out} earlier lines left out)")?;
            }
            lines.iter().skip(left_out).try_for_each(|line| write!(f, "\n{line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_exit_code_are_kept() {
        let script = "echo out; echo err >&2; exit 3";
        let finished = Task::new("sh").args(["-c", script]).run().unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert!(finished.clone().code(3).is_ok());
        let message = finished.success().unwrap_err().to_string();
        assert!(message.contains("`sh -c 'echo out; echo err >&2; exit 3'`"), "{message}");
    }

    #[test]
    fn a_program_beyond_its_limit_is_killed_with_what_it_started() {
        let script = "sleep 1000 & echo $!; wait";
        let task = Task::new("sh").args(["-c", script]).limit(Duration::from_secs(2));
        let error = task.run().unwrap_err().to_string();
        assert!(error.contains("was killed"), "{error}");
        let grandchild = error.lines().last().unwrap();
        let stat = format!("/proc/{grandchild}/stat");
        // An orphan that was killed is gone, or waits as a zombie for init to look; on a busy machine
        // it is some time before it has come to its end.
        let state = || std::fs::read_to_string(&stat).unwrap_or_default();
        let ended = || Some(state()).is_some_and(|it| it.is_empty() || it.contains(") Z"));
        for _ in 0..1000 {
            if ended() {
                return;
            }
            std::thread::sleep(LOOK);
        }
        panic!("it still runs: {}", state());
    }

    #[test]
    fn what_runs_can_be_waited_for() {
        let mut running =
            Task::new("sh").args(["-c", "echo ready; exec sleep 1000"]).start().unwrap();
        running.wait_until("ready", |it| it.output() == "ready\n").unwrap();
        running.signal(Signal::SIGTERM).unwrap();
        assert_eq!(running.wait().unwrap().status.signal(), Some(15));
    }

    #[test]
    fn a_command_line_is_shown_as_a_shell_takes_it() {
        let task = Task::new("ls").words("-l x").args(["it's", ""]).user(Some(7));
        let line = r"setpriv --reuid 7 --regid 7 --clear-groups ls -l x 'it'\''s' ''";
        assert_eq!(task.to_string(), line);
    }
}
