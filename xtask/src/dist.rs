//! `cargo xtask dist`: the Debian package.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ibverbs_tests::process::Task;
use terminal::report;
use verbs_sys::current::{IBVERBS_PABI_VERSION, RELEASE};

use crate::cargo;

/// The package's name among what cargo built.
pub const PACKAGE: &str = "balboa.deb";

/// The programs that users run.
const PROGRAMS: [&str; 3] = ["balboa", "balboad", "softcard"];

/// The provider as cargo names it.
const PROVIDER: &str = "libbalboa_provider.so";

/// Builds everything and makes the package.
///
/// # Errors
/// When the build fails, or dpkg-deb does.
pub fn dist() -> Result<ExitCode> {
    let package = package(&cargo::build()?)?;
    report!("{}", package.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes the package beside what was built, of which it is.
///
/// # Errors
/// When something is missing, or dpkg-deb fails.
pub fn package(built: &Path) -> Result<PathBuf> {
    let home = tempfile::Builder::new().prefix("balboa-dist-").tempdir()?;
    let root = home.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    let architecture = Task::new("dpkg").arg("--print-architecture").run()?.success()?.stdout;
    let architecture = architecture.trim();
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);

    for program in PROGRAMS {
        place(&built.join(program), &root.join("usr/bin").join(program), 0o755)?;
    }
    // As libibverbs of the release looks for it.
    let theirs = format!("libbalboa-rdmav{IBVERBS_PABI_VERSION}.so");
    let libraries = Path::new("usr/lib").join(&triplet).join("libibverbs");
    place(&built.join(PROVIDER), &root.join(&libraries).join(&theirs), 0o644)?;
    // Where `balboa run` looks.
    let kept = root.join("usr/lib/balboa");
    fs::create_dir_all(&kept)?;
    symlink(Path::new("..").join(&triplet).join("libibverbs").join(theirs), kept.join(PROVIDER))?;

    let files = cargo::root().join("packaging");
    let driver = "etc/libibverbs.d/balboa.driver";
    place(&files.join("balboa.driver"), &root.join(driver), 0o644)?;
    for script in ["preinst", "postrm"] {
        place(&files.join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    fs::write(root.join("DEBIAN/conffiles"), format!("/{driver}\n"))?;
    fs::write(root.join("DEBIAN/control"), control(architecture))?;

    let package = built.join(PACKAGE);
    let make = Task::new("dpkg-deb").words("--root-owner-group -Zgzip -z1 --build").arg(root);
    make.arg(&package).run()?.success().context("needs dpkg-deb: apt-get install dpkg")?;
    Ok(package)
}

fn place(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// The package's description. The provider is of one release of libibverbs.
fn control(architecture: &str) -> String {
    let (version, next) = (env!("CARGO_PKG_VERSION"), RELEASE + 1);
    format!(
        "\
Package: balboa
Version: {version}
Architecture: {architecture}
Maintainer: The Balboa verbs authors <nobody@example.org>
Section: net
Priority: optional
Depends: libc6, libgcc-s1, libibverbs1 (>= {RELEASE}), libibverbs1 (<< {next}), ibverbs-providers
Description: Balboa, an open RoCE v2 card, as an RDMA device
 The libibverbs provider of Balboa cards, balboad, which drives them from user
 space and runs software cards, and its tools. Devices of rdma_rxe that are
 named balboaN are given to the provider.
"
    )
}
