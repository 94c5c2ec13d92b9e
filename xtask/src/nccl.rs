//! NCCL's own transport for verbs, unmodified, compiled for a machine without a GPU.
//!
//! `nccl/` has the parts of CUDA and of the rest of NCCL that it names, and the program that drives it. NCCL's source
//! is Debian's, or a given tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::{Both, free_port, run_pair, run_pair_in};
use harness::process::Task;
use harness::runner::{self, Case, Filter, Need};
use harness::setting::{Daemon, Setting};
use harness::summary::Summary;
use terminal::report;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::selection::{self, Selection};
use crate::{cargo, setup};

/// The source package, and where it is.
const PACKAGE: &str = "nvidia-nccl";
const SUITE: &str = "sid";
const COMPONENT: &str = "contrib";

/// The stand-ins for CUDA and the rest of NCCL, and the program.
const CUDA: &str = include_str!("nccl/cuda_runtime.h");
const STUBS: &str = include_str!("nccl/stubs.cc");
const DRIVE: &str = include_str!("nccl/drive.cc");
/// Headers of CUDA's that are the one above under another name.
const SAME: [&str; 3] = ["cuda.h", "cuda_fp16.h", "cuda_bf16.h"];
/// Files of NCCL's beside those of the transport; the last ones are newer than some releases.
const FILES: [&str; 11] = [
    "debug.cc",
    "misc/ibvsymbols.cc",
    "misc/ibvwrap.cc",
    "misc/mlx5dvsymbols.cc",
    "misc/mlx5dvwrap.cc",
    "misc/param.cc",
    "misc/socket.cc",
    "misc/utils.cc",
    "os/linux.cc",
    "param/param.cc",
    "param/param_registry.cc",
];
const TRANSPORT: &str = "transport/net_ib";
/// The file of the transport that only GPUs which send by themselves need.
const GPU_ALONE: &str = "gin.cc";
/// Two headers are not NCCL's to give: that of a whole communicator, and that of CUDA's driver.
const FLAGS: &str = "-std=c++17 -O1 -w -ffunction-sections -fdata-sections -Wl,--gc-sections -pthread \
    -DNCCL_OS_LINUX -DNCCL_COMM_H_ -DNCCL_CUDAWRAP_H_ -include cuda_runtime.h";

/// How a case is run again, with its name.
const REPEAT: &str = "cargo xtask nccl --only";
/// The needs of two machines.
const MACHINES: [Need; 2] =
    [Need::Program("unshare", "util-linux"), Need::Program("ip", "iproute2")];
/// How long the compiler may take, and the program.
const COMPILATION: Duration = Duration::from_secs(15 * 60);
const LIMIT: Duration = Duration::from_secs(180);

/// `cargo xtask nccl`.
#[derive(Debug, Args)]
pub struct Options {
    /// Compile this tree of NCCL's source, in place of Debian's
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
}

/// Builds the program and runs it between software cards.
///
/// # Errors
/// When NCCL cannot be fetched or built.
pub fn nccl(options: &Options) -> Result<ExitCode> {
    let filter = options.selection.filter();
    selection::all_named(&names().collect::<Vec<_>>(), &filter, None)?;
    setup::packages(setup::NCCL)?;
    let mut made = None;
    let program = match &options.source {
        Some(source) => {
            let directory = made.insert(tempfile::tempdir()?).path();
            compile(source, directory)?;
            directory.join("drive")
        }
        None => built()?,
    };
    let summary = runner::run(&cases(&program), &filter, &cargo::build()?, REPEAT)?;
    report!("");
    cargo::conclude(summary)
}

/// Runs all cases with NCCL as Debian has it; where it cannot be fetched they are skipped.
///
/// # Errors
/// When they cannot be run.
pub fn check(programs: &Path) -> Result<Summary> {
    match built() {
        Ok(program) => runner::run(&cases(&program), &Filter::default(), programs, REPEAT),
        Err(error) => Ok(Summary::skipped("NCCL's own transport", &error)),
    }
}

/// The names of all cases.
pub fn names() -> impl Iterator<Item = String> {
    variants().map(|variant| variant.full_name())
}

/// Sees to it that the program lies in the cache.
fn built() -> Result<PathBuf> {
    let cache = Cache::open("nccl")?;
    let key = format!("{PACKAGE}/{SUITE}");
    let source = cache.keep("source", &key, |into| {
        let apt = Apt::open_sources(cache.place("apt"), SUITE, COMPONENT)?;
        apt.unpack_source(&format!("{PACKAGE}/{SUITE}"), into)
    })?;
    let key = [&version(&source)?.join("."), FLAGS, &FILES.concat(), CUDA, STUBS, DRIVE].join("\n");
    let directory = cache.keep("built", &key, |into| compile(&source, into))?;
    Ok(directory.join("drive"))
}

/// Major, minor and patch number of a source.
fn version(source: &Path) -> Result<[String; 3]> {
    let file = source.join("makefiles/version.mk");
    let text = fs::read_to_string(&file)
        .with_context(|| format!("{} is no source of NCCL", source.display()))?;
    number(&text).with_context(|| format!("no version in {}", file.display()))
}

fn number(text: &str) -> Option<[String; 3]> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches([' ', ':', '=']).trim_end().to_owned())
    };
    Some([value("NCCL_MAJOR")?, value("NCCL_MINOR")?, value("NCCL_PATCH")?])
}

/// nccl.h, as NCCL's build makes it.
fn header(template: &str, [major, minor, patch]: &[String; 3]) -> Result<String> {
    let code = format!("{major}{minor:0>2}{patch:0>2}");
    let values = [("Major", major), ("Minor", minor), ("Patch", patch), ("Version", &code)];
    let filled =
        values.iter().fold(template.replace("${nccl:Suffix}", ""), |text, (name, value)| {
            text.replace(&format!("${{nccl:{name}}}"), value)
        });
    ensure!(!filled.contains("${nccl:"), "nccl.h.in asks for an unknown value");
    Ok(filled)
}

/// Compiles the transport of a source, with the program `drive`, into a directory.
fn compile(source: &Path, into: &Path) -> Result<()> {
    let version = version(source)?;
    let source = source.canonicalize()?.join("src");
    report!("compiling the transport of NCCL {}", version.join("."));
    let template = fs::read_to_string(source.join("nccl.h.in"))?;
    fs::write(into.join("nccl.h"), header(&template, &version)?)?;
    fs::write(into.join("cuda_runtime.h"), CUDA)?;
    for name in SAME {
        fs::write(into.join(name), "#include \"cuda_runtime.h\"\n")?;
    }
    fs::write(into.join("stubs.cc"), STUBS)?;
    fs::write(into.join("drive.cc"), DRIVE)?;
    let transport = fs::read_dir(source.join(TRANSPORT))?;
    let transport = transport.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_part = |file: &PathBuf| {
        file.extension().is_some_and(|it| it == "cc") && !file.ends_with(GPU_ALONE)
    };
    let others = FILES.iter().map(|file| source.join(file)).filter(|file| file.exists());
    let mut task = Task::new("g++").with_our_environment().directory(into).words(FLAGS);
    for directory in [into, &source.join("include"), &source.join("include/plugin"), &source] {
        task = task.arg("-I").arg(directory);
    }
    for file in transport.into_iter().filter(is_part).chain(others) {
        task = task.arg(file);
    }
    let task = task.words("stubs.cc drive.cc -o drive -ldl").limit(COMPILATION);
    task.run()?.success().context("NCCL's transport does not compile").map(drop)
}

/// The places of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// One machine, whose balboad has four cards.
    Machine,
    /// Two machines on a cable of the kernel's, each with a balboad whose cards have the machine's addresses.
    Hosts,
}

/// The differences of a case from others.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    place: Place,
    /// Further options of balboad.
    cards: &'static str,
    /// The devices of either side, as NCCL is told.
    devices: [&'static str; 2],
    /// Receives that are asked for together.
    together: u8,
    /// NCCL's variables.
    variables: &'static [(&'static str, &'static str)],
}

impl Variant {
    /// The case's name.
    fn full_name(&self) -> String {
        let place = if self.place == Place::Hosts { "hosts/" } else { "" };
        format!("NCCL/{place}{}", self.name)
    }

    /// The same between two machines with a card each; `None` of those that are about several cards, or about one.
    fn between_hosts(self) -> Option<Self> {
        let hosts = Self { place: Place::Hosts, devices: ["=balboa0"; 2], ..self };
        (self.devices == PLAIN.devices).then_some(hosts)
    }
}

const PLAIN: Variant = Variant {
    name: "",
    place: Place::Machine,
    cards: "",
    devices: ["=balboa0", "=balboa1"],
    together: 8,
    variables: &[],
};
const QPS: (&str, &str) = ("NCCL_IB_QPS_PER_CONNECTION", "4");
const SPLIT: (&str, &str) = ("NCCL_IB_SPLIT_DATA_ON_QPS", "1");

const VARIANTS: [Variant; 9] = [
    Variant { name: "as it is", ..PLAIN },
    Variant { name: "one card", devices: ["=balboa0", "=balboa0"], ..PLAIN },
    Variant { name: "4 QPs", variables: &[QPS, SPLIT], ..PLAIN },
    Variant {
        name: "adaptive routing",
        variables: &[QPS, SPLIT, ("NCCL_IB_ADAPTIVE_ROUTING", "1")],
        ..PLAIN
    },
    // NCCL asks for as many bytes inline as one receive is told by, and posts those of all.
    Variant {
        name: "inline",
        together: 1,
        variables: &[QPS, ("NCCL_IB_USE_INLINE", "1")],
        ..PLAIN
    },
    Variant { name: "IPv6", variables: &[QPS, ("NCCL_IB_ADDR_FAMILY", "AF_INET6")], ..PLAIN },
    Variant {
        name: "receives posted before",
        variables: &[
            QPS,
            ("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "1"),
            ("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "1"),
        ],
        ..PLAIN
    },
    Variant {
        name: "two cards as one",
        devices: ["=balboa0,balboa1", "=balboa2,balboa3"],
        variables: &[QPS, SPLIT],
        ..PLAIN
    },
    Variant {
        name: "bad cable",
        cards: "--fault loss=1%,dup=1%,reorder=1%,corrupt=1%",
        variables: &[QPS, SPLIT, ("NCCL_IB_TIMEOUT", "10")],
        ..PLAIN
    },
];

/// All variants: on one machine, and then those between two.
fn variants() -> impl Iterator<Item = Variant> {
    VARIANTS.into_iter().chain(VARIANTS.into_iter().filter_map(Variant::between_hosts))
}

fn cases(program: &Path) -> Vec<Case> {
    let case = |variant: Variant| {
        let program = program.to_owned();
        let needs: &[Need] = if variant.place == Place::Hosts { &MACHINES } else { &[] };
        Case::new(variant.full_name(), needs, move |setting| {
            fs::copy(&program, setting.directory().join("drive"))?;
            match variant.place {
                Place::Machine => on_one_machine(setting, variant),
                Place::Hosts => on_two(setting, variant),
            }
        })
    };
    variants().map(case).collect()
}

/// The program of one side.
fn drive(setting: &Setting, daemon: &Daemon<'_>, variant: Variant, port: u16) -> Task {
    let task = daemon.run("").arg(setting.directory().join("drive"));
    task.words(&format!("{port} {}", variant.together))
}

/// A side as NCCL is told to run, with the network device by which it finds the other.
fn told(task: Task, variant: Variant, number: usize, device: &str) -> Task {
    let task = task.env("NCCL_IB_HCA", variant.devices[number]);
    let task = task.env("NCCL_SOCKET_IFNAME", device).env("NCCL_DEBUG", "WARN").limit(LIMIT);
    variant.variables.iter().fold(task, |task, (name, value)| task.env(name, value))
}

fn on_one_machine(setting: &Setting, variant: Variant) -> Result<()> {
    let daemon = setting.balboad(&format!("--soft 4 {}", variant.cards))?;
    for card in 0..4 {
        let add = setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir());
        add.words(&format!("balboa{card} add 2001:db8::{}", card + 1)).run()?.success()?;
    }
    let port = free_port()?;
    let side = |number| told(drive(setting, &daemon, variant, port), variant, number, "lo");
    both_right(run_pair(side(0), side(1).arg("127.0.0.1"), port)?)?;
    daemon.stop()
}

fn on_two(setting: &Setting, variant: Variant) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    // NCCL looks at devices that are running alone.
    machines.until_running()?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {}", variant.cards))?;
    let port = free_port()?;
    let side = |number: usize| {
        let drive = drive(setting, &daemons[number], variant, port);
        // Each balboad waits for a processor of its own, and seven retries of 4 ms are soon over.
        told(machines.task(number, &drive), variant, number, WIRE).env("NCCL_IB_TIMEOUT", "16")
    };
    let both = run_pair_in(&machines.process(0), side(0), side(1).arg(IPV4[0]), port)?;
    both_right(both)?;
    daemons.into_iter().try_for_each(Daemon::stop)
}

fn both_right(Both { server, client }: Both) -> Result<()> {
    for side in [server, client] {
        side.says(" bytes arrived as they should")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_sources_version() {
        let text = "##### version\nNCCL_MAJOR   := 2\nNCCL_MINOR   := 9\nNCCL_PATCH := 7\n";
        let version = number(text).unwrap();
        let template = "${nccl:Major}.${nccl:Minor}.${nccl:Patch}${nccl:Suffix} ${nccl:Version}";
        assert_eq!(header(template, &version).unwrap(), "2.9.7 20907");
        assert!(header("${nccl:Other}", &version).is_err());
        assert_eq!(number("NCCL_MAJOR := 2\n"), None);
    }
}
