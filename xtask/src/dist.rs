//! `cargo xtask dist`: the Debian packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::process::Task;
use terminal::report;
use verbs_sys::{RELEASES, Release};

use crate::cargo;
use crate::checks::links;

mod check;
mod package;
mod sbom;

use package::Package;

/// The programs that users run.
const PROGRAMS: [&str; 3] = ["balboa", "balboad", "softcard"];

/// Files of the service: where in the sources, and where in the package `balboa`.
const SERVICE: [(&str, &str); 9] = [
    ("packaging/systemd/balboad.service", "usr/lib/systemd/system/balboad.service"),
    ("packaging/systemd/balboad.socket", "usr/lib/systemd/system/balboad.socket"),
    ("packaging/systemd/user/balboad.service", "usr/lib/systemd/user/balboad.service"),
    ("packaging/systemd/user/balboad.socket", "usr/lib/systemd/user/balboad.socket"),
    ("packaging/balboa.sysusers", "usr/lib/sysusers.d/balboa.conf"),
    ("packaging/balboa.tmpfiles", "usr/lib/tmpfiles.d/balboa.conf"),
    ("packaging/balboa.modprobe", "usr/lib/modprobe.d/balboa.conf"),
    ("udev/60-balboa.rules", "usr/lib/udev/rules.d/60-balboa.rules"),
    ("packaging/grafana-dashboard.json", "usr/share/balboa/grafana-dashboard.json"),
];
/// The example of a configuration file that administrators change.
const EXAMPLE: (&str, &str) =
    ("udev/61-balboa-bind.rules", "usr/share/doc/balboa/examples/61-balboa-bind.rules");
/// The header for programs that ask for services.
const HEADER: (&str, &str) = ("provider/include/balboa_dv.h", "usr/include/infiniband/balboa_dv.h");
const CONFIGURATION: (&str, &str) = ("packaging/balboad.toml", "etc/balboa/balboad.toml");
/// The files that the package of documents has, besides all of `docs`.
const DOCUMENTS: [&str; 5] =
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "packaging/README.md", "udev/README.md"];

/// `cargo xtask dist`.
#[derive(Debug, Args)]
pub struct Options {
    /// Check the packages as well: build them again in another directory and compare, run lintian, and install,
    /// upgrade, use and purge them in root directories of Debian 12 and 13
    #[arg(long)]
    check: bool,
}

/// Builds everything and makes the packages in `target/dist`.
///
/// # Errors
/// When the build fails, or dpkg-deb does, or a check.
pub fn dist(options: &Options) -> Result<ExitCode> {
    let target = cargo::target_directory()?;
    let built = cargo::build_for_others(&cargo::root(), &target.join("packaged"), &cargo::home()?)?;
    let into = target.join("dist");
    let made = packages(&built, &into, &RELEASES)?;
    for package in &made {
        report!("{}", package.display());
    }
    if options.check {
        check::check(&built, &made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the packages of the built files: the programs, their documents, and the providers for releases of rdma-core.
///
/// # Errors
/// When something is missing, or dpkg-deb fails.
pub fn packages<'a>(
    built: &Path,
    into: &Path,
    releases: impl IntoIterator<Item = &'a Release>,
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(into)?;
    let mut made = vec![
        programs(built)?.make(&into.join("balboa.deb"))?,
        documents()?.make(&into.join("balboa-doc.deb"))?,
    ];
    for release in releases {
        let file = into.join(format!("balboa-provider-{}.deb", release.number));
        made.push(provider(built, release)?.make(&file)?);
    }
    Ok(made)
}

/// The package of the programs and the service.
fn programs(built: &Path) -> Result<Package> {
    let package = Package::new(
        "balboa",
        "\
Depends: libc6, libgcc-s1
Recommends: balboa-provider
Suggests: balboa-doc
Section: net
Description: open RoCE v2 card, driven from user space
 balboad drives Balboa cards from user space and runs software cards; the
 tool balboa shows and tends them, and runs verbs programs on them. Verbs
 programs need the provider for their release of rdma-core besides.
",
    )?;
    for program in PROGRAMS {
        package.place_binary(&built.join(program), &format!("usr/bin/{program}"), 0o755)?;
    }
    let perf = "usr/lib/balboa/balboa-perf";
    package.place_binary(&built.join("balboa-perf"), perf, 0o755)?;
    manual(built, &package.path("usr/share"))?;
    let sources = cargo::root();
    for (from, to) in SERVICE.iter().chain([&EXAMPLE, &HEADER, &CONFIGURATION]) {
        package.place(&sources.join(from), to, 0o644)?;
    }
    for script in ["postinst", "prerm", "postrm"] {
        let from = sources.join("packaging").join(format!("balboa.{script}"));
        package.place(&from, &format!("DEBIAN/{script}"), 0o755)?;
    }
    package.conffile(CONFIGURATION.1)?;
    fs::write(package.path("usr/share/doc/balboa/balboa.cdx.json"), sbom::of_workspace()?)?;
    Ok(package)
}

/// The package of documents.
fn documents() -> Result<Package> {
    let package = Package::new(
        "balboa-doc",
        "\
Section: doc
Description: open RoCE v2 card, driven from user space (documents)
 What Balboa is, how it is used, run as a service and watched, what it keeps
 from whom, and what its cards are asked by their drivers.
",
    )?;
    let sources = cargo::root();
    let mut names: Vec<String> = DOCUMENTS.map(str::to_owned).to_vec();
    for extension in ["md", "svg"] {
        for page in links::files_below(&sources.join("docs"), extension)? {
            names.push(page.strip_prefix(&sources)?.display().to_string());
        }
    }
    for name in names {
        package.place(&sources.join(&name), &format!("usr/share/doc/balboa-doc/{name}"), 0o644)?;
    }
    Ok(package)
}

/// The package of a provider, which is of one release of libibverbs.
fn provider(built: &Path, release: &Release) -> Result<Package> {
    let Release { number, distribution, .. } = release;
    let (built_name, next) = (release.provider(), number + 1);
    let package = Package::new(
        &format!("balboa-provider-{number}"),
        &format!(
            "\
Provides: balboa-provider
Conflicts: balboa-provider
Replaces: balboa-provider
Depends: libc6, libgcc-s1, libibverbs1 (>= {number}), libibverbs1 (<< {next}), ibverbs-providers
Recommends: balboa
Section: net
Description: open RoCE v2 card as an RDMA device (rdma-core {number})
 The libibverbs provider of Balboa cards for rdma-core {number}, as in {distribution}.
 Devices of rdma_rxe that are named balboaN are given to it.
"
        ),
    )?;
    // As libibverbs of the release looks for it.
    let libraries = format!("{}-linux-gnu/libibverbs", std::env::consts::ARCH);
    let theirs = format!("{libraries}/libbalboa{}", release.suffix());
    package.place_binary(&built.join(&built_name), &format!("usr/lib/{theirs}"), 0o644)?;
    // Where `balboa run` looks.
    let kept = package.path("usr/lib/balboa");
    fs::create_dir_all(&kept)?;
    symlink(Path::new("..").join(theirs), kept.join(built_name))?;

    let files = cargo::root().join("packaging");
    let driver = "etc/libibverbs.d/balboa.driver";
    package.place(&files.join("balboa.driver"), driver, 0o644)?;
    for script in ["preinst", "postrm"] {
        package.place(&files.join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    package.conffile(driver)?;
    package.overrule("diversion-for-unknown-file", "it is of the package ibverbs-providers")?;
    Ok(package)
}

/// Places the programs' manual pages, and the files that complete their command lines.
fn manual(built: &Path, share: &Path) -> Result<()> {
    let pages = share.join("man/man1");
    let completions = share.join("bash-completion/completions");
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    for program in PROGRAMS {
        // One of them has no commands, but options only.
        let dashes = if program == "balboad" { "--" } else { "" };
        let task = || Task::new(built.join(program));
        task().arg(format!("{dashes}manual")).arg(&pages).run()?.success()?;
        let script = task().arg(format!("{dashes}completions")).arg("bash").run()?.success()?;
        fs::write(completions.join(program), script.stdout)?;
    }
    for page in fs::read_dir(&pages)? {
        package::compress(&page?.path())?;
    }
    Ok(())
}
