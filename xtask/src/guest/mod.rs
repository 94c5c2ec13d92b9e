//! `cargo xtask guest`: tests in a virtual machine, with kernels and devices that the host has not.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::{Args, Subcommand};
use harness::agent::{ADDRESSES, Cable, End};
use harness::pair::free_port;
use harness::runner::{Filter, When};
use harness::setting::{SHARES, built_releases};
use harness::summary::{Clock, Flake, Step, Summary};
use harness::vm::Hardware;
use terminal::report;

mod bench;
mod build;
mod busy;
mod cards;
mod initramfs;
mod linux;
mod pair;
mod qemu;
mod systemd;
mod vm;

use crate::apt::Apt;
use busy::Busy;
use cards::Served;
use linux::Linux;
pub use linux::Version;
use qemu::Qemu;
use vm::{Machine, Parts};

use crate::cache::Cache;
use crate::cases::Set;
use crate::selection::{self, Selection};
use crate::{cargo, dist, gateware, setup};

/// `cargo xtask guest`.
#[derive(Debug, Subcommand)]
pub enum Guest {
    /// Boot a kernel and run the guest's cases
    Test(Options),
    /// Boot two machines on one cable and run programs between them
    Pair(Options),
    /// Boot a kernel, and measure cards and the kernel's soft-RoCE
    Bench(bench::Options),
    /// Measure in the machine that guest bench boots
    #[command(hide = true)]
    Inside(crate::bench::inside::Options),
    /// Boot a kernel and open a shell in it
    Shell {
        /// Boot this kernel
        #[arg(long, value_enum, default_value = "6.12")]
        kernel: Version,
        /// Give the machine a card without an IOMMU (plain), or two cards behind intel-iommu or virtio-iommu
        #[arg(long, value_parser = hardware, default_value = "plain")]
        hardware: Hardware,
    },
    /// Boot a machine with Debian 12's systemd, install the packages in it, and test the service
    Systemd,
    /// Build a kernel with iommufd and VFIO character devices from Debian's source package
    Kernel,
}

/// `cargo xtask guest test` and `pair`.
#[derive(Debug, Args)]
pub struct Options {
    /// Boot this kernel
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Version,
    /// Fail when QEMU or the kernel is missing, instead of counting skips
    #[arg(long)]
    require: bool,
    #[command(flatten)]
    selection: Selection,
    /// List the cases and run nothing
    #[arg(long)]
    list: bool,
    /// Run the cases N times
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u32,
    /// Keep N threads busy beside the cases
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: usize,
}

/// Runs a task of the guest tier.
///
/// # Errors
/// When it cannot be done.
pub fn guest(task: &Guest) -> Result<ExitCode> {
    match task {
        Guest::Test(options) => counted("test", options, names, run_cases),
        Guest::Pair(options) => counted("pair", options, pair::names, pair::run_cases),
        Guest::Bench(options) => bench::bench(options),
        Guest::Inside(options) => {
            crate::bench::inside::measure(options).map(|()| ExitCode::SUCCESS)
        }
        Guest::Shell { kernel, hardware } => shell(*kernel, *hardware),
        Guest::Systemd => systemd::boot(),
        Guest::Kernel => build::kernel(),
    }
}

/// Builds everything, runs cases that need a machine, and prints their count.
fn counted(
    task: &str,
    options: &Options,
    names: fn(Version) -> Result<Vec<String>>,
    run: fn(Version, &Filter, &Path) -> Result<Summary>,
) -> Result<ExitCode> {
    let filter = options.selection.filter();
    let names = names(options.kernel)?;
    let list = format!("cargo xtask guest {task} --kernel {} --list", options.kernel.name());
    selection::all_named(&names, &filter, Some(&list))?;
    if options.list {
        for name in names {
            terminal::say(format_args!("{name}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    may_lack(setup::packages(&setup::tests()));
    let built = cargo::build_with_cases()?;
    let _busy = Busy::start(options.busy);
    let mut summary = Summary::default();
    for round in 1..=options.rounds {
        if options.rounds > 1 {
            report!("round {round} of {}", options.rounds);
        }
        summary.add(run(options.kernel, &filter, &built)?);
    }
    report!("");
    let nothing_ran = summary.passed == 0 && summary.failed.is_empty();
    let code = cargo::conclude(summary)?;
    Ok(if nothing_ran && !options.require { ExitCode::SUCCESS } else { code })
}

/// Reports what is missing, of which the cases that need it tell again.
fn may_lack(had: Result<()>) {
    if let Err(error) = had {
        report!("{error:#}");
    }
}

fn hardware(name: &str) -> Result<Hardware, String> {
    let names: Vec<&str> = Hardware::ALL.iter().map(|it| it.name()).collect();
    Hardware::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

fn shell(version: Version, hardware: Hardware) -> Result<ExitCode> {
    ensure!(
        version.hardware().contains(&hardware),
        "kernel {} has no driver for {}: take --kernel 6.12",
        version.name(),
        hardware.name()
    );
    ensure!(io::stdin().is_terminal(), "a shell needs a terminal as its standard input");
    may_lack(setup::packages(&setup::tests()));
    let parts = parts(version, &cargo::build_with_cases()?)?;
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let status = Machine::new(&parts, hardware, home.path())?.interact()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Boots a kernel, runs cases in it and counts them; where the machine cannot be had, all of them
/// are skipped with the reason.
///
/// # Errors
/// When the machine cannot be laid out.
pub fn run_cases(version: Version, filter: &Filter, built: &Path) -> Result<Summary> {
    with_parts(version, filter, built, names, |parts| {
        // What runs against a machine, and a pair of machines, waits more than it computes: it runs beside the others.
        let (inside, against) = thread::scope(|scope| {
            let against = scope.spawn(|| run_outside(version, filter, parts));
            (run_all_inside(version, filter, parts), against.join())
        });
        let mut summary = inside?;
        summary.add(against.map_err(|_| anyhow!("the thread of a virtual machine panicked"))??);
        Ok(summary)
    })
}

/// Boots a kernel with each hardware and runs cases in it.
fn run_all_inside(version: Version, filter: &Filter, parts: &Parts) -> Result<Summary> {
    let mut summary = Summary::default();
    for hardware in version.hardware() {
        let mut boots = Vec::new();
        for boot in Boot::ALL {
            if takes_any(filter, &inside(version, *hardware, boot).names()?) {
                boots.push(boot);
            }
        }
        if !boots.is_empty() {
            summary.add(run_inside(version, *hardware, &boots, filter, parts)?);
        }
    }
    Ok(summary)
}

/// Boots a kernel and runs cases here against it, then those of pairs of machines.
fn run_outside(version: Version, filter: &Filter, parts: &Parts) -> Result<Summary> {
    let mut summary = Summary::default();
    if takes_any(filter, &against(version)?) {
        summary.add(run_against(version, filter, parts)?);
    }
    if takes_any(filter, &pair::in_test(version)?) {
        summary.add(pair::run_few(version, filter, parts)?);
    }
    Ok(summary)
}

fn takes_any(filter: &Filter, names: &[String]) -> bool {
    names.iter().any(|name| filter.takes(name))
}

/// Fetches the parts of machines and runs cases in them; where they cannot be had, the cases are skipped with the
/// reason.
fn with_parts(
    version: Version,
    filter: &Filter,
    built: &Path,
    names: fn(Version) -> Result<Vec<String>>,
    run: impl FnOnce(&Parts) -> Result<Summary>,
) -> Result<Summary> {
    report!("guest, kernel {}", version.name());
    let place = place(version);
    let started = Instant::now();
    let parts = match parts(version, built) {
        Ok(parts) => parts,
        Err(error) => {
            let reason = format!("{error:#}");
            report!("skip guest {}: {reason}", version.name());
            let names = names(version)?.into_iter().filter(|name| filter.takes(name));
            let skipped = names.map(|name| (format!("{place}{name}"), reason.clone())).collect();
            return Ok(Summary { skipped, ..Summary::default() });
        }
    };
    let mut summary = run(&parts)?;
    summary.name_after(&place);
    let seconds = started.elapsed().as_secs_f32();
    report!("guest, kernel {}: {summary} ({seconds:.0} s)", version.name());
    Ok(summary)
}

/// The names of all cases: those that run in the machine, those that run against it, and those of a
/// pair of machines.
fn names(version: Version) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for hardware in version.hardware() {
        for boot in Boot::ALL {
            names.extend(inside(version, *hardware, boot).names()?);
        }
    }
    names.extend(against(version)?);
    names.extend(pair::in_test(version)?);
    Ok(names)
}

/// The names of all cases as the test command has them, and in which of its runs they are: the default one boots one
/// machine once, with cards behind an IOMMU, and leaves out what root repeats and what is long.
///
/// # Errors
/// When the cases do not build.
pub fn names_and_when(version: Version) -> Result<Vec<(String, When)>> {
    let always = match version {
        Version::V6_1 => inside(version, Hardware::IntelIommu, Boot::First).names()?,
        Version::V6_12 | Version::Iommufd => Vec::new(),
    };
    let repeats = |name: &String| always.iter().any(|it| name.strip_suffix("/root") == Some(it));
    let is_few = |name: &String| !repeats(name) && !LONG.iter().any(|long| name.contains(long));
    let when = |name: &String| match always.contains(name) && is_few(name) {
        true => When::Always,
        false => When::Full,
    };
    let names = names(version)?.into_iter();
    Ok(names.map(|name| (format!("{}{name}", place(version)), when(&name))).collect())
}

/// What takes half a minute of processors and more there, and is left to the full run: images of one vFPGA, of which
/// other cases load whole ones, and ends in mid-transfer, of which another case tries balboad's.
const LONG: [&str; 3] = [
    "tended/one vFPGA",
    "cards are reset in mid-transfer",
    "cards die and are taken out in mid-transfer",
];

/// A filter of those names, as one of the names that a machine's cases have.
pub fn within(version: Version, filter: &Filter) -> Filter {
    let place = place(version);
    let own = |part: &String| part.strip_prefix(&place).unwrap_or(part).to_owned();
    Filter { parts: filter.parts.iter().map(own).collect(), exact: filter.exact }
}

/// The start of the names of a kernel's cases in the test command.
fn place(version: Version) -> String {
    format!("guest {}/", version.name())
}

/// The names of the cases that run against the machine.
fn against(version: Version) -> Result<Vec<String>> {
    // The kernel that is built here is for VFIO: that of Debian's release is the same in this.
    if version == Version::Iommufd { Ok(Vec::new()) } else { Set::against().names() }
}

/// A boot of a machine that may have two, with the same cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    First,
    Second,
}

impl Boot {
    const ALL: [Self; 2] = [Self::First, Self::Second];
}

/// The cases that run in a machine.
fn inside(version: Version, hardware: Hardware, boot: Boot) -> Set {
    Set::guest(hardware, version.kernel(), boot == Boot::Second)
}

/// Boots a kernel and runs cases in it.
fn run_inside(
    version: Version,
    hardware: Hardware,
    boots: &[Boot],
    filter: &Filter,
    parts: &Parts,
) -> Result<Summary> {
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let machine = Machine::new(parts, hardware, home.path())?;
    let mut cards = machine.cards().serve()?;
    let mut summary = Summary::default();
    for boot in boots {
        let job = vm::job(&command(version, hardware, *boot, filter));
        let name = match boot {
            Boot::First => hardware.name().to_owned(),
            Boot::Second => format!("{}/second boot", hardware.name()),
        };
        let mut run = || -> Result<_> {
            machine.cards().revive(&mut cards)?;
            Ok(run_boot(version, &machine, &job, &mut cards))
        };
        let clock = Clock::start();
        let mut booted = run()?;
        let mut first = None;
        let mut attempts = 1;
        while let Err(error) = &booted.1 {
            let is_of_qemu = is_of_qemu(error);
            if attempts == if is_of_qemu { ATTEMPTS } else { 2 } {
                break;
            }
            report!("{error:#}\n{name} did not run to its end, and is booted once more");
            if !is_of_qemu {
                first = Some(format!("{}{error:#}\n", booted.0));
            }
            attempts += 1;
            booted = run()?;
        }
        let mut counted = count(booted, &name);
        counted.steps.push(Step::of(&format!("{name}/all of the machine"), &clock));
        if let Some(first) = first.filter(|_| counted.failed.is_empty()) {
            let name = format!("{name}/{ITSELF}");
            counted.flaky.push(Flake { name, outputs: format!("{first}then it ran to its end\n") });
        }
        summary.add(counted);
    }
    Ok(summary)
}

/// The name of the culprit when a machine ends before its cases.
const ITSELF: &str = "the machine itself";

/// How often a machine is booted at most whose QEMU ends itself.
const ATTEMPTS: u32 = 5;

/// Whether QEMU ended itself: its vfio-user client, now and then, sets the error of a card that dies
/// twice, which its assertion forbids. No case is to blame for that.
fn is_of_qemu(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("util/error.c") && text.contains("Assertion")
}

/// Boots a machine and prints the output of its job, which is returned beside how it ended.
fn run_boot(
    version: Version,
    machine: &Machine<'_>,
    job: &str,
    cards: &mut Served,
) -> (String, Result<()>) {
    let mut lines = String::new();
    let place = place(version);
    let outcome = machine.run(job, cards, |line| {
        // Machines of other kernels and cases of this machine print beside it.
        report!("  {place} {line}");
        lines.push_str(line);
        lines.push('\n');
    });
    (lines, outcome)
}

/// Counts the cases of a boot; `name` stands for the boot where it failed itself.
fn count((lines, outcome): (String, Result<()>), name: &str) -> Summary {
    let mut summary = Summary::parse(&lines).unwrap_or_default();
    if let Err(error) = outcome {
        report!("FAIL {name}\n{error:#}");
        summary.failed.push(format!("{name}/{ITSELF}"));
    } else if summary == Summary::default() {
        report!("FAIL {name}: no count of cases");
        summary.failed.push(format!("{name}/the count of its cases"));
    }
    summary
}

/// Boots a kernel and runs cases here against its RDMA device.
fn run_against(version: Version, filter: &Filter, parts: &Parts) -> Result<Summary> {
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let cable = Cable { near: home.path().join("card.sock"), far: home.path().join("guest.sock") };
    let port = free_port()?;
    let [_, address] = ADDRESSES;
    let job = vm::agent_job(End::Rxe, address);
    let machine = Machine::new(parts, Hardware::Plain, home.path())?;
    let repeat = format!("cargo xtask guest test --kernel {} --only", version.name());
    let needs_rtl = |name: &String| filter.takes(name) && name.contains("/rtl/");
    if against(version)?.iter().any(needs_rtl) {
        may_lack(gateware::libraries().map(drop));
    }
    let served = machine.serve(&job, &cable.turned(), address, Some(port));
    let outcome = served.and_then(|served| {
        let cases = Set::against().with_line(served.line()).on_cable(&cable, port);
        let outcome = cases.run(filter, &parts.built, &repeat);
        served.ended(outcome)
    });
    outcome.or_else(|error| {
        report!("FAIL guest {}\n{error:#}", version.name());
        let failed = vec!["the machine that is tested against".to_owned()];
        Ok(Summary { failed, ..Summary::default() })
    })
}

/// The command that runs in the guest.
fn command(version: Version, hardware: Hardware, boot: Boot, filter: &Filter) -> String {
    let quoted = |word: &str| format!(" '{}'", word.replace('\'', r"'\''"));
    let mut command = format!("{SHARES}/built/cases run --repeat");
    command
        .push_str(&quoted(&format!("cargo xtask guest test --kernel {} --only", version.name())));
    for part in &filter.parts {
        command.push_str(&quoted(&format!("--only={part}")));
    }
    if filter.exact {
        command.push_str(" --exact");
    }
    inside(version, hardware, boot).words().iter().for_each(|word| command.push_str(&quoted(word)));
    command
}

/// The releases of Debian that a machine's parts are taken from.
const SUITES: [&str; 3] = ["bookworm", "trixie", "trixie-backports"];

/// Fetches the parts of a machine that are not kept.
fn parts(version: Version, built: &Path) -> Result<Parts> {
    ensure!(cfg!(target_arch = "x86_64"), "needs an x86-64 machine");
    pack(built)?;
    let cache = cache()?;
    let mut apt = Lazy { cache: &cache, apt: None };
    let qemu = match Qemu::kept(&cache) {
        Some(qemu) => qemu,
        None => Qemu::fetch(&cache, apt.get()?)?,
    };
    let linux = match (Linux::kept(&cache, version), version) {
        (Some(linux), _) => linux,
        (None, Version::Iommufd) => {
            anyhow::bail!("needs a kernel of its own: cargo xtask guest kernel builds it")
        }
        (None, _) => Linux::fetch(&cache, apt.get()?, version)?,
    };
    let busybox = match cache.kept("busybox", BUSYBOX) {
        Some(root) => root,
        None => {
            let apt = apt.get()?;
            cache.keep("busybox", BUSYBOX, |root| apt.unpack(BUSYBOX, root))?
        }
    };
    let (busybox, built) = (busybox.join("bin/busybox"), built.to_owned());
    Ok(Parts { qemu, linux, busybox, built, until: Instant::now() + vm::LIMIT })
}

/// Makes the packages, once, for machines of several kernels read them at the same time.
fn pack(built: &Path) -> Result<()> {
    static PACKED: Mutex<bool> = Mutex::new(false);
    let mut packed = PACKED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*packed {
        dist::packages(built, &built.join("dist"), built_releases(built)?)?;
        *packed = true;
    }
    Ok(())
}

/// The cache of machines' parts.
fn cache() -> Result<Cache> {
    Cache::open("guest")
}

const BUSYBOX: &str = "busybox-static/bookworm";

/// The private apt root, opened for the first fetch.
struct Lazy<'a> {
    cache: &'a Cache,
    apt: Option<Apt>,
}

impl Lazy<'_> {
    fn get(&mut self) -> Result<&Apt> {
        if self.apt.is_none() {
            self.apt = Some(Apt::open(self.cache.place("apt"), &SUITES)?);
        }
        self.apt.as_ref().context("apt was opened")
    }
}
