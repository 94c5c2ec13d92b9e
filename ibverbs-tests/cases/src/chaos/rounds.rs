//! Rounds of random deaths: programs at work on a balboad, one of them struck, and then a check of all others.
//!
//! A round is decided by its seed alone; round `n` of a run has the seed of the run plus `n`, so that
//! any round can be run again by itself. (When a blow falls, the machine decides.)

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::{Finished, Running};
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use verbs_programs::mortal::{CARD_DIED, PEER_GONE, STOPPED};

use crate::footprint::{Footprint, Holding};

/// How long a program may take to get to work, or to end: beyond it, it hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Random numbers, by splitmix64.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % sides
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.throw(of.len() as u64) as usize]
    }
}

/// The program that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Leader,
    Follower,
    Third,
    Daemon,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Kill,
    Terminate,
    /// Stopped, and continued after so many milliseconds.
    Stop(u64),
}

/// The program that works beside the two that send each other messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Third {
    Transfers,
    Churn,
    Reserve,
}

/// The plan of a round.
#[derive(Clone, Copy, Debug)]
struct Plan {
    third: Third,
    target: Target,
    blow: Blow,
    /// Milliseconds of work before the blow.
    before: u64,
    /// Milliseconds of work after it.
    after: u64,
    /// Whether a program of perftest runs too, which is never struck itself.
    perftest: bool,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let third = dice.pick(&[Third::Transfers, Third::Transfers, Third::Churn, Third::Reserve]);
        let all = [Target::Leader, Target::Follower, Target::Third, Target::Third, Target::Daemon];
        let target = dice.pick(&all);
        let stop = Blow::Stop(1 + dice.throw(30));
        let blow = dice.pick(&[Blow::Kill, Blow::Kill, Blow::Terminate, stop]);
        let (before, after) = (dice.throw(40), dice.throw(15));
        Self { third, target, blow, before, after, perftest: dice.throw(10) == 0 }
    }

    /// Whether the struck one dies of it.
    fn is_deadly(&self) -> bool {
        !matches!(self.blow, Blow::Stop(_))
    }
}

/// One of the programs.
struct Member {
    what: &'static str,
    running: Running,
}

impl Member {
    fn start(daemon: &Daemon<'_>, what: &'static str, arguments: &str) -> Result<Self> {
        Ok(Self { what, running: daemon.mortal(arguments).limit(HANGS).start()? })
    }

    fn await_word(&mut self, word: &str) -> Result<()> {
        let line = |it: &Running| it.output().lines().any(|line| line == word);
        self.running.wait_until(&format!("it said {word}"), line).context(self.what)
    }

    fn end(self) -> Result<Finished> {
        self.running.limited(HANGS).wait().with_context(|| format!("{} hangs", self.what))
    }

    fn ends_with(self, code: u8) -> Result<()> {
        let what = self.what;
        self.end()?.code(code.into()).map(drop).context(what)
    }
}

/// A run of rounds on one state directory.
pub struct Chaos<'a> {
    setting: &'a Setting,
    /// The balboad, kept from round to round while it lives, with its footprint before the first client.
    daemon: Option<(Daemon<'a>, Footprint)>,
    deaths: Deaths,
}

/// Counts of deaths, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// Rounds.
    pub rounds: u64,
    /// Clients that were killed.
    pub clients: u64,
    /// balboads that were ended.
    pub daemons: u64,
    /// Processes that were stopped and continued.
    pub stopped: u64,
}

impl fmt::Display for Deaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, clients, daemons, stopped } = self;
        write!(
            f,
            "{rounds} rounds: {clients} clients and {daemons} balboads killed, {stopped} processes stopped for a while"
        )
    }
}

impl<'a> Chaos<'a> {
    /// Before the first round.
    pub fn new(setting: &'a Setting) -> Self {
        Self { setting, daemon: None, deaths: Deaths::default() }
    }

    /// Runs rounds with the seeds from `seed` on.
    ///
    /// # Errors
    /// At the first round after which not everything is well, with how to repeat it.
    pub fn run(mut self, seed: u64, rounds: u64) -> Result<Deaths> {
        for seed in (seed..).take(usize::try_from(rounds)?) {
            let plan = Plan::of(seed);
            self.round(plan).with_context(|| {
                format!("{plan:?}\nrepeat: cargo xtask chaos --seed {seed} --rounds 1")
            })?;
            self.deaths.rounds += 1;
        }
        if let Some((daemon, _)) = self.daemon.take() {
            daemon.stop()?;
        }
        Ok(self.deaths)
    }

    fn round(&mut self, plan: Plan) -> Result<()> {
        let (daemon, footprint) = match self.daemon.take() {
            Some(daemon) => daemon,
            None => {
                let daemon = self.setting.balboad("--soft 2")?;
                let footprint = Footprint::of(&daemon)?;
                (daemon, footprint)
            }
        };
        let place =
            tempfile::Builder::new().prefix("round-").tempdir_in(self.setting.directory())?;
        let uid = Some(self.setting.uid());
        std::os::unix::fs::chown(place.path(), uid, uid)?;
        let members = start(&daemon, plan, place.path())?;
        std::thread::sleep(Duration::from_millis(plan.before));
        let connected = Holding { programs: members.len(), ..Holding::default() };
        footprint.bounded(&daemon, connected)?;

        let survivor = match plan.target {
            Target::Daemon => self.strike_daemon(daemon, plan.blow)?,
            target => {
                let victim = &members[target as usize].running;
                self.strike(plan.blow, |signal| victim.signal(signal))?;
                self.deaths.clients += u64::from(plan.is_deadly());
                Some(daemon)
            }
        };
        std::thread::sleep(Duration::from_millis(plan.after));
        fs::write(stop_file(place.path()), "")?;
        judge(plan, members)?;
        if let Some(daemon) = survivor {
            footprint.restored(&daemon)?;
            self.daemon = Some((daemon, footprint));
        }
        Ok(())
    }

    fn strike(&mut self, blow: Blow, signal: impl Fn(Signal) -> Result<()>) -> Result<()> {
        match blow {
            Blow::Kill => signal(Signal::SIGKILL),
            Blow::Terminate => signal(Signal::SIGTERM),
            Blow::Stop(milliseconds) => {
                self.deaths.stopped += 1;
                signal(Signal::SIGSTOP)?;
                std::thread::sleep(Duration::from_millis(milliseconds));
                signal(Signal::SIGCONT)
            }
        }
    }

    /// Strikes balboad; answers it if it survives.
    fn strike_daemon(&mut self, daemon: Daemon<'a>, blow: Blow) -> Result<Option<Daemon<'a>>> {
        match blow {
            Blow::Kill => daemon.kill()?,
            Blow::Terminate => daemon.stop()?,
            Blow::Stop(_) => {
                self.strike(blow, |signal| daemon.signal(signal))?;
                return Ok(Some(daemon));
            }
        }
        self.deaths.daemons += 1;
        Ok(None)
    }
}

fn stop_file(place: &Path) -> PathBuf {
    place.join("stop")
}

/// Starts the programs of a round, in the order of [`Target`], and waits until they are at work.
fn start(daemon: &Daemon<'_>, plan: Plan, place: &Path) -> Result<Vec<Member>> {
    let stop = stop_file(place);
    let stop = stop.display();
    let pair = format!("pair {} {stop}", place.join("meet").display());
    let (third, word) = match plan.third {
        Third::Transfers => (format!("transfers {stop}"), "running"),
        Third::Churn => (format!("churn {stop}"), "running"),
        Third::Reserve => (format!("reserve {}", daemon.state_dir().display()), "reserved"),
    };
    let mut members = vec![
        Member::start(daemon, "the leader", &format!("{pair} --lead"))?,
        Member::start(daemon, "the follower", &pair)?,
        Member::start(daemon, "the third", &third)?,
    ];
    if plan.perftest && plan.target != Target::Daemon {
        let command = "ib_write_bw -F -s 4096 -n 200";
        let both = harness::pair::run_between((daemon, 0), (daemon, 1), command);
        both.context("a program of the distribution beside them")?;
    }
    let mut words = members.iter_mut().zip(["running", "running", word]);
    let at_work = words.try_for_each(|(member, word)| member.await_word(word));
    // Who ends because another has ended does not say why.
    at_work.with_context(|| errors(&members))?;
    Ok(members)
}

/// What the programs of a round complained of so far.
fn errors(members: &[Member]) -> String {
    members.iter().map(|it| format!("{} said: {:?}\n", it.what, it.running.errors())).collect()
}

/// Looks how the programs of a round end.
fn judge(plan: Plan, members: Vec<Member>) -> Result<()> {
    let dead = plan.is_deadly().then_some(plan.target);
    let [leader, follower, third]: [Member; 3] =
        members.try_into().map_err(|_| anyhow::anyhow!("three are at work"))?;
    let orderly = if dead == Some(Target::Daemon) { CARD_DIED } else { STOPPED };
    // The third first: it depends on no other.
    match (dead, plan.third) {
        (Some(Target::Third), _) => killed(third)?,
        (_, Third::Reserve) => {
            third.running.signal(Signal::SIGKILL)?;
            killed(third)?;
        }
        _ => third.ends_with(orderly)?,
    }
    match dead {
        Some(Target::Leader) => {
            killed(leader)?;
            follower.ends_with(PEER_GONE)
        }
        Some(Target::Follower) => {
            killed(follower)?;
            leader.ends_with(PEER_GONE)
        }
        _ => {
            leader.ends_with(orderly)?;
            follower.ends_with(orderly)
        }
    }
}

fn killed(member: Member) -> Result<()> {
    let what = member.what;
    let finished = member.end()?;
    ensure!(finished.status.code().is_none(), "{what} was to be killed: {finished}");
    Ok(())
}

/// QPs of a program that is killed while it has many.
pub const QPS: u64 = 10_000;
/// Its regions.
pub const REGIONS: u64 = 2_000;
/// The longest life, in milliseconds: some are killed while they still make their objects.
const LIFE: u64 = 8_000;

/// Runs rounds in which a program with [`QPS`] and [`REGIONS`] is killed beside one that transfers: at
/// any moment, also before it has all of them, as their seeds decide. balboad takes no more for the
/// last than for the first.
///
/// # Errors
/// At the first round after which not everything is well, with how to repeat it.
pub fn at_scale(setting: &Setting, seed: u64, rounds: u64) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let footprint = Footprint::of(&daemon)?;
    for seed in (seed..).take(usize::try_from(rounds)?) {
        let life = Duration::from_millis(Dice(seed).throw(LIFE));
        let round = || -> Result<()> {
            let stop = setting.directory().join(format!("stop{seed}"));
            let transfers = format!("transfers {}", stop.display());
            let mut beside = Member::start(&daemon, "the one beside", &transfers)?;
            beside.await_word("running")?;
            let arguments = format!("regions --qps {QPS} --regions {REGIONS}");
            let task = daemon.run("").arg(setting.bin.join("verbs-attack")).words(&arguments);
            let large = task.limit(Duration::MAX).start()?;
            std::thread::sleep(life);
            footprint.bounded(&daemon, Holding { programs: 2, qps: QPS, regions: REGIONS })?;
            large.signal(Signal::SIGKILL)?;
            large.limited(HANGS).wait()?;
            fs::write(stop, "")?;
            beside.ends_with(STOPPED)?;
            footprint.restored(&daemon)
        };
        round().with_context(|| {
            format!(
                "killed after {life:?}\nrepeat: cargo xtask chaos --many --seed {seed} --rounds 1"
            )
        })?;
    }
    daemon.stop()
}

/// Runs rounds for the table of cases.
///
/// # Errors
/// As [`Chaos::run`], or when the rounds did not meet every kind of death.
pub fn rounds(setting: &Setting, seed: u64, rounds: u64) -> Result<()> {
    let deaths = Chaos::new(setting).run(seed, rounds)?;
    if deaths.clients == 0 || deaths.daemons == 0 || deaths.stopped == 0 {
        bail!("too few rounds to meet every kind of death: {deaths}");
    }
    Ok(())
}
