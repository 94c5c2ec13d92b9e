//! The parts of a run of the tests. All parts and all of their names are the full run; the default one is those of the
//! names that say so.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, anyhow};
use harness::interrupt;
use harness::runner::{Filter, When};
use harness::scapy;
use harness::setting::installed_release;
use harness::summary::{Clock, Step, Summary};
use terminal::report;
use verbs_sys::RELEASES;

use super::unit;
use crate::cargo::{Profile, WITH_CASES, WITH_SIMULATORS, build_of};
use crate::cases::{Listed, Set};
use crate::guest::Version;
use crate::{checks, conformance, crates, gateware, guest, nccl, network, roots, services, stack};

/// Kernels of the full run.
const KERNELS: [Version; 2] = [Version::V6_1, Version::V6_12];
/// Releases of rdma-core of the full run, beside the one that is installed.
const OTHER_RELEASES: [u32; 2] = [56, 65];

/// A part of a run, made by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The checks beside the tests.
    Checks,
    /// Unit tests, and the documentation's examples.
    Units,
    /// End-to-end cases.
    Cases,
    /// Those of another release of rdma-core.
    Release(u32),
    /// rdma-core's own tests; without a number, of the release that is installed.
    Pyverbs(Option<u32>),
    /// NCCL's own transport.
    Nccl,
    /// The crates by which Rust programs use verbs.
    Crates,
    /// Services' judges that are not ours.
    Services,
    /// The published card's own stack.
    Stack,
    /// Networks in virtual time.
    Network,
    /// The queue engine's RTL, and cards that have it.
    Gateware,
    /// The cases in a virtual machine with this kernel.
    Guest(Version),
}

/// All parts, in the order in which they run: those that fail for simple reasons first.
pub fn all() -> Vec<Part> {
    let mut parts = vec![Part::Checks, Part::Units, Part::Cases];
    parts.extend(OTHER_RELEASES.map(Part::Release));
    parts.push(Part::Pyverbs(None));
    parts.extend(OTHER_RELEASES.map(Some).map(Part::Pyverbs));
    parts.extend([Part::Nccl, Part::Crates, Part::Services, Part::Stack]);
    parts.extend([Part::Network, Part::Gateware]);
    parts.extend(KERNELS.map(Part::Guest));
    parts
}

/// The parts asked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Everything.
    pub full: bool,
    /// All cases of these kernels.
    pub kernels: Vec<Version>,
    /// All cases of these releases of rdma-core, and their pyverbs.
    pub releases: Vec<u32>,
}

impl Wanted {
    /// Whether all names of a part are meant.
    fn all_of(&self, part: Part) -> bool {
        match part {
            Part::Release(release) | Part::Pyverbs(Some(release))
                if self.releases.contains(&release) =>
            {
                true
            }
            Part::Guest(kernel) if self.kernels.contains(&kernel) => true,
            _ => self.full,
        }
    }
}

/// A part's names, and when each is run.
pub type Names = Vec<(String, When)>;

/// The parts of a run, each with the filter of its wanted names; `names` gives all names of a part.
///
/// # Errors
/// When it does not.
pub fn of(wanted: &Wanted, names: impl Fn(Part) -> Result<Names>) -> Result<Vec<(Part, Filter)>> {
    let mut parts = all();
    let further =
        wanted.releases.iter().flat_map(|&it| [Part::Release(it), Part::Pyverbs(Some(it))]);
    for part in further.chain(wanted.kernels.iter().copied().map(Part::Guest)) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    let mut chosen = Vec::new();
    for part in parts {
        if wanted.all_of(part) {
            chosen.push((part, Filter::default()));
            continue;
        }
        let always = names(part)?.into_iter().filter(|(_, when)| *when == When::Always);
        let parts: Vec<String> = always.map(|(name, _)| name).collect();
        if !parts.is_empty() {
            chosen.push((part, Filter { parts, exact: true }));
        }
    }
    Ok(chosen)
}

/// The programs to build for the parts of a run, in cargo's options: without simulators and the providers of releases
/// other than `installed` where nothing runs them.
pub fn programs(wanted: &Wanted, plan: &[(Part, Filter)], installed: u32) -> String {
    let simulates =
        |(part, _): &(Part, Filter)| matches!(part, Part::Stack | Part::Network | Part::Gateware);
    let mut packages =
        if plan.iter().any(simulates) { WITH_SIMULATORS } else { WITH_CASES }.to_owned();
    if !wanted.full && wanted.releases.is_empty() {
        for release in RELEASES.iter().filter(|it| it.number != installed) {
            packages.push_str(&format!(" --exclude balboa-provider-{}", release.number));
        }
    }
    packages
}

/// The state that the parts of a run share.
#[derive(Debug)]
pub struct Run {
    /// How the programs are built.
    pub profile: Profile,
    /// Whether it is the full run.
    pub full: bool,
    /// Whether a check fails where its tool is not there.
    pub require_checks: bool,
    /// The share of random inputs that its unit tests try.
    pub rounds: unit::Rounds,
    /// The programs to build, in cargo's options.
    pub packages: String,
    /// Where the programs are, once they are built.
    pub built: OnceLock<PathBuf>,
}

impl Run {
    /// Runs the parts of a plan: first the checks, then the others one after the other, and beside these the unit tests and
    /// each kernel's virtual machines, for cases mostly wait.
    ///
    /// # Errors
    /// When a part cannot be run.
    pub fn all(&self, plan: &[(Part, Filter)]) -> Result<Summary> {
        let of = |wanted: fn(Part) -> bool| plan.iter().filter(move |(part, _)| wanted(*part));
        let mut summary = self.one_by_one(of(|part| part == Part::Checks))?;
        if of(Part::needs_programs).next().is_some() {
            let clock = Clock::start();
            self.programs()?;
            summary.steps.push(Step::of("building the programs", &clock));
        }
        interrupt::watch_for_signals();
        let (here, beside) = thread::scope(|scope| {
            let run = |(part, filter): &'_ (Part, Filter)| part.run(filter, self);
            let beside: Vec<_> =
                of(Part::goes_beside).map(|it| scope.spawn(move || run(it))).collect();
            let here = self.one_by_one(of(|it| it != Part::Checks && !it.goes_beside()));
            (here, beside.into_iter().map(ScopedJoinHandle::join).collect::<Vec<_>>())
        });
        summary.add(here?);
        for part in beside {
            summary.add(part.map_err(|_| anyhow!("the thread of a part panicked"))??);
        }
        Ok(summary)
    }

    fn one_by_one<'a>(&self, parts: impl Iterator<Item = &'a (Part, Filter)>) -> Result<Summary> {
        let mut summary = Summary::default();
        for (part, filter) in parts {
            summary.add(part.run(filter, self)?);
        }
        Ok(summary)
    }

    /// The directory of the programs, which are built at first.
    fn programs(&self) -> Result<&Path> {
        if let Some(built) = self.built.get() {
            return Ok(built);
        }
        if let Err(error) = scapy::install() {
            report!("scapy cannot be installed: {error:#}");
        }
        let built = build_of(self.profile, &self.packages)?;
        Ok(self.built.get_or_init(|| built))
    }
}

impl Part {
    /// The names of its checks or cases, as failures name them, and the runs that include each.
    ///
    /// # Errors
    /// When the cases do not build.
    pub fn names(self) -> Result<Names> {
        let in_full = |name: &str| vec![(name.to_owned(), When::Full)];
        Ok(match self {
            Self::Checks => checks::names().map(|(name, when)| (name.to_owned(), when)).collect(),
            Self::Units => unit::NAMES.map(|(name, when)| (name.to_owned(), when)).to_vec(),
            Self::Cases => {
                let name_and_when = |case: Listed| (case.name.clone(), case.when());
                Set::here().list()?.into_iter().map(name_and_when).collect()
            }
            Self::Release(release) => {
                let names = Set::release(release).names()?.into_iter();
                names.map(|name| (name, When::Full)).collect()
            }
            Self::Pyverbs(None) => in_full("pyverbs of the installed rdma-core"),
            Self::Pyverbs(Some(release)) => in_full(&format!("pyverbs of rdma-core {release}")),
            Self::Nccl => nccl::names().map(|name| (name, When::Full)).collect(),
            Self::Crates => in_full("crates of verbs"),
            Self::Services => services::names().map(|it| (it.to_owned(), When::Full)).collect(),
            Self::Stack => in_full("the published card's model against its stack"),
            Self::Network => in_full("simulated networks"),
            Self::Gateware => gateware::names().map(|name| (name, When::Full)).collect(),
            Self::Guest(version) => guest::names_and_when(version)?,
        })
    }

    fn needs_programs(self) -> bool {
        !matches!(self, Self::Checks | Self::Units)
    }

    /// Whether it runs beside the parts that run one after the other.
    fn goes_beside(self) -> bool {
        matches!(self, Self::Units | Self::Guest(_))
    }

    /// Runs those of its names that a filter takes; parts that are one, whole.
    ///
    /// # Errors
    /// When it cannot be run.
    fn run(self, filter: &Filter, run: &Run) -> Result<Summary> {
        let clock = Clock::start();
        let step = |mut summary: Summary, name| {
            summary.steps.push(Step::of(name, &clock));
            summary
        };
        match self {
            Self::Checks => Ok(checks::run(filter, run.require_checks)),
            Self::Units => unit::run(run.rounds, filter),
            Self::Services => services::check(run.require_checks),
            Self::Cases => {
                report!("end-to-end tests");
                Set::here().run(filter, run.programs()?, "cargo xtask test --only")
            }
            Self::Release(release) => of_release(release, filter, run.programs()?),
            Self::Pyverbs(release) => {
                let installed = installed_release()?.number;
                // The full run has that as the installed one's already.
                if release == Some(installed) && run.full {
                    return Ok(Summary::default());
                }
                conformance::check(release.unwrap_or(installed), run.programs()?)
            }
            Self::Nccl => nccl::check(run.programs()?),
            Self::Crates => Ok(step(crates::check(run.programs()?)?, "crates of verbs")),
            Self::Stack => Ok(step(stack::check(run.programs()?)?, "the published card's stack")),
            Self::Network => network::check(run.programs()?),
            Self::Gateware => gateware::check(run.programs()?, run.require_checks),
            Self::Guest(version) => {
                guest::run_cases(version, &guest::within(version, filter), run.programs()?)
            }
        }
    }
}

/// The cases of another release of rdma-core; skipped where its packages cannot be fetched.
fn of_release(release: u32, filter: &Filter, built: &Path) -> Result<Summary> {
    let cases = Set::release(release);
    if !cases.names()?.iter().any(|name| filter.takes(name)) {
        return Ok(Summary::default());
    }
    match roots::fetch(release) {
        Ok(root) => {
            let repeat = format!("cargo xtask test --rdma-core {release} --only");
            cases.within(&root).run(filter, built, &repeat)
        }
        Err(error) => Ok(Summary::skipped(&format!("release {release}"), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of parts whose own would have to be built.
    fn names(part: Part) -> Result<Names> {
        let case = |name: &str, when| (format!("{part:?}/{name}"), when);
        match part {
            Part::Cases => Ok(vec![case("one", When::Always), case("two", When::Full)]),
            Part::Guest(Version::V6_1) => Ok(vec![case("one", When::Always)]),
            Part::Release(_) | Part::Guest(_) => Ok(vec![case("one", When::Full)]),
            other => other.names(),
        }
    }

    fn taken(wanted: &Wanted) -> Vec<String> {
        let plan = of(wanted, names).unwrap().into_iter().flat_map(|(part, filter)| {
            let names = names(part).unwrap().into_iter().map(|(name, _)| name);
            names.filter(move |name| filter.takes(name))
        });
        plan.collect()
    }

    fn built(wanted: &Wanted) -> String {
        programs(wanted, &of(wanted, names).unwrap(), 50)
    }

    fn full() -> Vec<String> {
        taken(&Wanted { full: true, ..Wanted::default() })
    }

    #[test]
    fn the_full_run_has_every_name_once_and_the_default_one_those_that_say_so() {
        let all: Vec<_> = all().into_iter().flat_map(|part| names(part).unwrap()).collect();
        let of = |wanted: &[When]| -> Vec<String> {
            let names = all.iter().filter(|(_, when)| wanted.contains(when));
            names.map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(full(), of(&[When::Always, When::Full]));
        assert_eq!(taken(&Wanted::default()), of(&[When::Always]));
        let mut once = full();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }

    #[test]
    fn the_full_run_has_everything_that_can_be_run_by_itself() {
        let full = full();
        let has = |name: &str| assert!(full.iter().any(|it| it == name), "{name}");
        checks::names().for_each(|(name, _)| has(name));
        nccl::names().for_each(|name| has(&name));
        let parts = OTHER_RELEASES.map(Part::Release).into_iter().chain(KERNELS.map(Part::Guest));
        for part in parts.chain([Part::Cases]) {
            names(part).unwrap().iter().for_each(|(name, _)| has(name));
        }
    }

    #[test]
    fn the_fuzzer_and_the_simulator_are_built_where_they_are_run() {
        let full = Wanted { full: true, ..Wanted::default() };
        assert_eq!(built(&full), WITH_SIMULATORS);
        assert!(built(&Wanted::default()).starts_with(WITH_CASES));
    }

    #[test]
    fn other_releases_providers_are_built_where_they_are_run() {
        let others = " --exclude balboa-provider-44 --exclude balboa-provider-56 --exclude balboa-provider-65";
        assert_eq!(built(&Wanted::default()), format!("{WITH_CASES}{others}"));
        let of_release = Wanted { releases: vec![65], ..Wanted::default() };
        assert_eq!(built(&of_release), WITH_CASES);
    }

    #[test]
    fn kernels_and_releases_that_are_named_are_run_whole() {
        let wanted =
            Wanted { full: false, kernels: vec![Version::Iommufd], releases: vec![50, 65] };
        let taken = taken(&wanted);
        let has = |name: &str| taken.iter().any(|it| it == name);
        let guest = names(Part::Guest(Version::Iommufd)).unwrap();
        assert!(guest.iter().all(|(name, _)| has(name)));
        assert!(has("Release(50)/one") && has("pyverbs of rdma-core 65"));
        assert!(!has("pyverbs of rdma-core 56") && !has("Release(56)/one"));
    }
}
