//! The scene of an attack: a balboad, a bystander whose round trips are timed, and the watch on both.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Running, Task, last_lines};
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use verbs_programs::hostile::latency::Trips;
use verbs_programs::hostile::{ATTACKING, PATIENCE};

use super::level::Level;
use super::limits::{Excess, Limits};
use super::phase::{Length, Phase};
use crate::footprint::Footprint;

/// How long a program may take to get to its attack.
const PREPARATION: Duration = Duration::from_secs(170);
/// How often balboad is looked at and asked.
const LOOK: Duration = Duration::from_millis(100);
/// Lines of the log that a failure shows.
const SHOWN: usize = 12;

/// The attacking programs, and their limits.
#[derive(Debug)]
pub struct Attack {
    /// Arguments of `verbs-attack`, a program each, which are started one after the other.
    pub programs: Vec<String>,
    /// Threads that can run at any time while they attack. As many do harmless work while the
    /// bystander is timed before and after, so that the cores' being shared is not counted.
    pub threads: usize,
    /// The limits that it must not exceed.
    pub limits: Limits,
}

/// A balboad and a bystander.
pub struct Scene<'a> {
    setting: &'a Setting,
    daemon: Daemon<'a>,
    /// The program that holds the cards' doorbell pages, if the others are to be relayed.
    holder: Option<Running>,
    bystander: Running,
    length: Length,
    footprint: Footprint,
    phases: Vec<Phase>,
    notes: RefCell<Vec<String>>,
}

impl<'a> Scene<'a> {
    /// Starts a balboad with arguments, which give it two cards, and a bystander on both.
    ///
    /// # Errors
    /// When either does not come up.
    pub fn open(setting: &'a Setting, length: Length, arguments: &str) -> Result<Self> {
        Self::beside(setting, length, setting.balboad(arguments)?, None)
    }

    /// A scene in which all doorbell pages of both cards are taken: every program is relayed.
    ///
    /// # Errors
    /// When any of them does not come up.
    pub fn crowded(setting: &'a Setting, length: Length, arguments: &str) -> Result<Self> {
        let daemon = setting.balboad(arguments)?;
        let holder = daemon.take_pages()?;
        Self::beside(setting, length, daemon, Some(holder))
    }

    fn beside(
        setting: &'a Setting,
        length: Length,
        daemon: Daemon<'a>,
        holder: Option<Running>,
    ) -> Result<Self> {
        let program = setting.bin.join("verbs-attack");
        let task = daemon.run("").arg(program).arg("bystander");
        let task = task.arg(daemon.pid().to_string()).limit(PREPARATION);
        let mut bystander = task.start()?;
        // What is made at the first use has been made then.
        let enough = |it: &Running| Trips::lines(&it.output()).count() >= 3;
        bystander.wait_until("it was at work", enough).context("the bystander")?;
        let bystander = bystander.unlimited();
        let footprint = Footprint::of(&daemon)?;
        Ok(Self {
            setting,
            daemon,
            holder,
            bystander,
            length,
            footprint,
            phases: Vec::new(),
            notes: RefCell::default(),
        })
    }

    /// The balboad.
    pub fn daemon(&self) -> &Daemon<'a> {
        &self.daemon
    }

    /// The resources of balboad now.
    ///
    /// # Errors
    /// When it has ended.
    pub fn level(&self) -> Result<Level> {
        Level::of(&self.daemon)
    }

    /// The measurements of a phase.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// How long it is.
    pub fn length(&self) -> Length {
        self.length
    }

    /// `verbs-attack` with arguments, run by `balboa run`.
    pub fn program(&self, arguments: &str) -> Task {
        let task = self.daemon.run("").arg(self.setting.bin.join("verbs-attack"));
        task.words(arguments).limit(PREPARATION)
    }

    /// Starts `verbs-attack` with arguments and waits until it is at it.
    ///
    /// # Errors
    /// When it ends before.
    pub fn start(&self, arguments: &str) -> Result<Running> {
        let mut running = self.program(arguments).start()?;
        running.wait_until("it attacked", |it| it.has_said(ATTACKING))?;
        Ok(running.unlimited())
    }

    /// Threads that do harmless work as long as the answer lives.
    fn load(&self, threads: usize) -> Result<Running> {
        let task = self.setting.built("verbs-attack").arg("load").arg(threads.to_string());
        let mut running = task.start()?;
        running.wait_until("it worked", |it| it.has_said(ATTACKING))?;
        Ok(running.unlimited())
    }

    /// Measures a phase of the length's span.
    ///
    /// # Errors
    /// When the bystander stands still, or the status is not told.
    pub fn watch(&mut self, name: &'static str) -> Result<&Phase> {
        let from = self.lines_of_bystander();
        let begin = self.level()?;
        let (started, mut peak, mut status) = (Instant::now(), begin.clone(), Duration::ZERO);
        let end = loop {
            let asked = Instant::now();
            self.daemon.status_within(PATIENCE).with_context(|| format!("{name}: the status"))?;
            status = status.max(asked.elapsed());
            let level = self.level()?;
            peak.raise(&level);
            if started.elapsed() >= self.length.span() {
                break level;
            }
            std::thread::sleep(LOOK);
        };
        let span = started.elapsed();
        // A round trip that takes long is told of when it is over.
        let under_way = self.lines_of_bystander();
        let deadline = Instant::now() + PATIENCE;
        while self.lines_of_bystander() <= under_way.max(from + 1) {
            ensure!(
                Instant::now() < deadline,
                "{name}: the bystander stands still for {PATIENCE:?}: {}",
                self.bystander.errors()
            );
            std::thread::sleep(LOOK / 10);
        }
        let mut trips = Trips::default();
        // The first began before.
        for line in Trips::lines(&self.bystander.output()).skip(from + 1) {
            trips.merge(&line.parse()?);
        }
        self.phases.push(Phase { name, span, trips, status, begin, end, peak });
        self.phases.last().context("a phase")
    }

    /// Watches beside threads that do harmless work.
    ///
    /// # Errors
    /// As [`Scene::watch`].
    pub fn watch_beside(&mut self, name: &'static str, threads: usize) -> Result<()> {
        let load = self.load(threads)?;
        self.watch(name)?;
        load.signal(Signal::SIGKILL)?;
        load.wait().map(drop)
    }

    /// Runs a check while the bystander rests.
    ///
    /// # Errors
    /// As `act`, or when the bystander has ended.
    pub fn alone<T>(&self, act: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.bystander.signal(Signal::SIGSTOP)?;
        std::thread::sleep(LOOK);
        let outcome = act(self);
        self.bystander.signal(Signal::SIGCONT)?;
        outcome
    }

    /// Adds a line to the report.
    pub fn note(&self, line: String) {
        self.notes.borrow_mut().push(line);
    }

    /// Waits until balboad has ended all clients but the bystander and so many more.
    ///
    /// # Errors
    /// When it does not.
    pub fn left(&self, programs: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.daemon.status_within(PATIENCE)?;
            let clients = status["clients"].as_array().map_or(0, Vec::len);
            if clients <= programs + 1 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{clients} clients are there still");
        }
    }

    fn lines_of_bystander(&self) -> usize {
        Trips::lines(&self.bystander.output()).count()
    }

    /// Suffers an attack; `look` makes further checks while it goes on.
    ///
    /// # Errors
    /// With everything that was measured, when a limit is exceeded.
    pub fn suffer(
        mut self,
        attack: &Attack,
        look: impl FnOnce(&mut Self, &mut Vec<Running>, &mut Excess) -> Result<()>,
    ) -> Result<()> {
        let mut excess = Excess::default();
        let outcome = self.play(attack, look, &mut excess);
        let report = self.report();
        let outcome = outcome.and_then(|()| excess.judged());
        outcome.with_context(|| format!("{report}\n{}", self.end_of_log()))?;
        if self.length != Length::Short {
            terminal::report!("{report}");
        }
        self.close().context(report)
    }

    fn play(
        &mut self,
        attack: &Attack,
        look: impl FnOnce(&mut Self, &mut Vec<Running>, &mut Excess) -> Result<()>,
        excess: &mut Excess,
    ) -> Result<()> {
        self.watch_beside("before", attack.threads)?;
        let mut programs = Vec::new();
        for arguments in &attack.programs {
            programs.push(self.start(arguments)?);
        }
        self.watch("while")?;
        look(self, &mut programs, excess)?;
        for program in &programs {
            // It may have ended by itself.
            let _ = program.signal(Signal::SIGKILL);
        }
        programs.into_iter().try_for_each(|program| program.limited(PATIENCE).wait().map(drop))?;
        if let Err(error) = self.footprint.restored(&self.daemon) {
            excess.unless(false, || error.to_string());
        }
        self.watch_beside("after", attack.threads)?;
        if let [before, during, after] = self.phases.as_slice() {
            attack.limits.judge([before, during, after], self.length, excess);
        }
        Ok(())
    }

    /// Asks balboad to end, by SIGTERM, and says whether it does in that time.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn ends_within(&self, limit: Duration) -> Result<bool> {
        self.daemon.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + limit;
        while !self.daemon.has_ended() {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK / 10);
        }
        Ok(true)
    }

    /// The measurements, a line for each phase.
    pub fn report(&self) -> String {
        let mut lines: Vec<String> = self.phases.iter().map(Phase::to_string).collect();
        lines.extend(self.notes.borrow().iter().cloned());
        lines.iter().map(|line| format!("     {line}")).collect::<Vec<_>>().join("\n")
    }

    /// The last lines of balboad's log.
    fn end_of_log(&self) -> String {
        let log = self.daemon.log();
        last_lines(&log, SHOWN).iter().map(|line| format!("     balboad: {line}\n")).collect()
    }

    /// Ends the bystander, and balboad by SIGTERM.
    ///
    /// # Errors
    /// When balboad does not end well.
    pub fn close(self) -> Result<()> {
        for program in [self.bystander].into_iter().chain(self.holder) {
            program.signal(Signal::SIGKILL)?;
            program.wait()?;
        }
        self.daemon.stop()
    }
}

/// The last number that a program has said behind a word.
///
/// # Errors
/// When it has said none.
pub fn number_said(running: &Running, word: &str) -> Result<u64> {
    let output = running.output();
    let mut lines = output.lines().rev().filter_map(|line| line.strip_prefix(word));
    let number = lines.find_map(|number| number.parse().ok());
    number.with_context(|| format!("nobody said {word:?} and a number"))
}
