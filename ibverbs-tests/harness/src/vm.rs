//! A virtual machine of the tests, seen from inside: its hardware and kernel, the modules that it loads, its programs,
//! and its requests to the host.
//!
//! `cargo xtask guest` boots it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::process::Task;
use crate::setting::SHARES;

pub mod cards;
pub mod package;
pub mod rxe;

/// The start of the guest's requests to the host, which answers with a line once it is done.
pub const ASK: &str = "host: ";
/// The machine's MTU on the cable: path MTU 4096 and its headers fit.
pub const MTU: u32 = 4200;
/// The line to the host, from the guest's side.
const LINE: &str = "/dev/ttyS1";
/// The line by which the guest tells that its job is done.
pub const DONE: &str = "the job is done";

/// A kernel, as far as the cases depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The start of its release: `6.12`.
    pub release: &'a str,
    /// Whether it has iommufd and character devices of VFIO's.
    pub iommufd: bool,
}

/// The hardware of a machine besides its processors, its memory and the host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// A card that is behind no IOMMU.
    Plain,
    /// Two cards on one cable, behind Intel's IOMMU; the second has a neighbour in its slot.
    IntelIommu,
    /// The same behind a paravirtual IOMMU.
    VirtioIommu,
    /// One card behind Intel's IOMMU, its cable plugged into the machine's network device.
    IntelIommuRxe,
    /// Two cards as published on one cable, behind Intel's IOMMU; the parts of a store of 32 bytes are one to them.
    Published,
    /// Two cards that play FPGAs, on one cable, behind Intel's IOMMU.
    Fpga,
}

impl Hardware {
    /// All there is.
    pub const ALL: [Self; 6] = [
        Self::Plain,
        Self::IntelIommu,
        Self::VirtioIommu,
        Self::IntelIommuRxe,
        Self::Published,
        Self::Fpga,
    ];

    /// Its name, with which the names of its cases begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::IntelIommu => "intel-iommu",
            Self::VirtioIommu => "virtio-iommu",
            Self::IntelIommuRxe => "intel-iommu-rxe",
            Self::Published => "intel-iommu-published",
            Self::Fpga => "intel-iommu-fpga",
        }
    }

    /// The hardware of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hardware| hardware.name() == name)
    }
}

/// Loads a module, after those it depends on; one that is there or built in stays as
/// it is.
///
/// # Errors
/// When the machine was not given it, or the kernel refuses it.
pub fn load(module: &str) -> Result<()> {
    if !Path::new("/proc/modules").exists() {
        // A kernel without modules has everything built in that it was configured for.
        return Ok(());
    }
    let directory = Path::new(SHARES).join("modules");
    let needs = fs::read_to_string(directory.join("needs")).context("no modules are shared")?;
    load_after_needed(&directory, &needs, &module.replace('-', "_"))
}

fn load_after_needed(directory: &Path, needs: &str, module: &str) -> Result<()> {
    if Path::new("/sys/module").join(module).exists() {
        return Ok(());
    }
    let prefix = format!("{module}:");
    let line = needs.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.with_context(|| format!("the machine has no module {module}"))?;
    for needed in line.split_whitespace() {
        load_after_needed(directory, needs, needed)?;
    }
    let file = File::open(directory.join(format!("{module}.ko")))?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("the kernel refuses module {module}")),
    }
}

/// Where a program is: among those under test, or where the system has it.
pub fn program(name: &str) -> PathBuf {
    let built = Path::new(SHARES).join("built").join(name);
    if built.exists() { built } else { name.into() }
}

/// A program by its command line.
pub fn task(line: &str) -> Task {
    let (name, words) = line.split_once(' ').unwrap_or((line, ""));
    Task::new(program(name)).words(words)
}

/// Runs a command line that succeeds; gives its output.
///
/// # Errors
/// When it fails.
pub fn run(line: &str) -> Result<String> {
    Ok(task(line).run()?.success()?.stdout)
}

/// Asks the host for an act on a card: `kill` its server, as a card that drops dead; `count` its objects.
///
/// Answers in the host's words.
///
/// # Errors
/// When the host does not answer.
pub fn ask_host(what: &str, card: usize) -> Result<String> {
    let mut line = File::options().read(true).write(true).open(LINE)?;
    writeln!(line, "{ASK}{what} card {card}")?;
    let mut answer = String::new();
    BufReader::new(line).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Asks the host for an act that has no answer but its end.
///
/// # Errors
/// When it cannot, with the reason.
pub fn have_host(what: &str, card: usize) -> Result<()> {
    let answer = ask_host(what, card)?;
    ensure!(answer == "done", "the host was to {what} card {card}: {answer}");
    Ok(())
}
