//! Root directories of other releases of Debian, each with its own release of rdma-core, and one with a release that is
//! built of its source: nothing of them is installed, and `in-root` runs programs in them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use harness::setting::{Root, installed_release};
use harness::suites::Suite;
use terminal::report;
use verbs_sys::{SONAME, release_in_name};

use crate::apt::{self, Apt};
use crate::cache::Cache;
use crate::{setup, suites};

/// The releases of rdma-core, and where they are from.
pub const RELEASES: [(u32, Origin); 4] = [
    (44, Origin::Debian("bookworm")),
    (50, Origin::Source(&SOURCE)),
    (56, Origin::Debian("trixie")),
    (65, Origin::Debian("sid")),
];

/// Where a release of rdma-core is from.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// This release of Debian.
    Debian(&'static str),
    /// Its authors' source, built in this machine's release of Debian.
    Source(&'static Suite),
}

/// Ubuntu's packages are in no mirror of Debian's.
const SOURCE: Suite = Suite::new("rdma-core-50", "rdma-core 50, as Ubuntu 24.04 has it");
/// Builds it.
const SCRIPT: &str = include_str!("roots/rdma-core.sh");

/// The packages of a root.
const PACKAGES: [&str; 7] = [
    "coreutils",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "python3-pyverbs",
    "rdmacm-utils",
    "ucx-utils",
];
/// Packages that each Debian has, as far as scripts and lintian call them.
const ESSENTIAL: [&str; 12] = [
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "gzip",
    "sed",
    "tar",
    "libc-bin",
];
/// pyverbs' tests, which the package has compressed.
pub const TESTS: &str = "usr/share/doc/rdma-core/tests";

/// Takes a release's number from a command line.
///
/// # Errors
/// When no root has it.
pub fn parse(text: &str) -> Result<u32, String> {
    let known = RELEASES.map(|(number, _)| number);
    let number = text.parse().ok().filter(|number| known.contains(number));
    number.ok_or_else(|| format!("there are {}", known.map(|it| it.to_string()).join(", ")))
}

/// The advice where the source of a release is missing.
pub fn missing(release: u32) -> Option<String> {
    RELEASES.iter().find_map(|(number, origin)| match origin {
        Origin::Source(source) if *number == release => {
            source.source().is_none().then(|| source.missing())
        }
        _ => None,
    })
}

/// Sees to it that the root of a release lies in the cache.
///
/// # Errors
/// When its packages cannot be fetched, its source is not there or does not build, or it is older than this machine.
pub fn fetch(release: u32) -> Result<Root> {
    ensure!(cfg!(target_arch = "x86_64"), "needs an x86-64 machine");
    let origin = RELEASES.iter().find(|(number, _)| *number == release).map(|(_, it)| *it);
    let cache = Cache::open("roots")?;
    let path = match origin.with_context(|| format!("there is no rdma-core {release}"))? {
        Origin::Debian(suite) => {
            if let Ok(here) = installed_release() {
                refuse_older(release, suite, here.number)?;
            }
            of_debian(&cache, suite)?
        }
        Origin::Source(source) => of_source(&cache, source)?,
    };
    let library = path.join("lib/x86_64-linux-gnu").join(SONAME).canonicalize()?;
    ensure!(
        release_in_name(&library) == Some(release),
        "{} is not of rdma-core {release}",
        library.display()
    );
    Ok(Root { path })
}

/// Refuses a release of Debian with an older C library than this machine's, which programs built here need.
fn refuse_older(release: u32, suite: &str, here: u32) -> Result<()> {
    ensure!(
        release >= here,
        "the C library of rdma-core {release}'s root, which is of Debian's {suite}, is older than this machine's, by which everything is built; take release {here} or a newer one"
    );
    Ok(())
}

/// The root of a release of Debian with some packages, and with those that each Debian has.
///
/// # Errors
/// When they cannot be fetched.
pub fn debian(suite: &str, packages: &[&str]) -> Result<PathBuf> {
    let cache = Cache::open("roots")?;
    let packages: Vec<&str> = ESSENTIAL.iter().chain(packages).copied().collect();
    let name = format!("dist-{suite}-{}", packages.last().copied().unwrap_or_default());
    cache.keep(&name, &format!("{suite}: {}", packages.join(" ")), |into| {
        let apt = Apt::open(cache.place(&format!("apt-{suite}")), &[suite])?;
        apt.unpack_with_dependencies(suite, &packages, into)?;
        merge(into)?;
        // Links that packages' scripts would make.
        for (link, to) in [("usr/bin/sh", "dash"), ("etc/dpkg/origins/default", "debian")] {
            if !into.join(link).exists() {
                symlink(to, into.join(link))?;
            }
        }
        Ok(())
    })
}

fn of_debian(cache: &Cache, suite: &str) -> Result<PathBuf> {
    let key = format!("{suite}: {}", PACKAGES.join(" "));
    cache.keep(suite, &key, |into| {
        let apt = Apt::open(cache.place(&format!("apt-{suite}")), &[suite])?;
        apt.unpack_with_dependencies(suite, &PACKAGES, into)?;
        complete(into)
    })
}

/// A root of this machine's release, with rdma-core built of its source over it.
fn of_source(cache: &Cache, source: &Suite) -> Result<PathBuf> {
    let place = source.source().with_context(|| source.missing())?;
    let tells_release = fs::read_to_string(place.join("CMakeLists.txt"))
        .with_context(|| format!("{} is not {}", place.display(), source.source))?;
    // Programs built here run with this machine's C library or a newer one.
    let suite = apt::codename()?;
    let base = of_debian(cache, &suite)?;
    cache.keep(source.name, &format!("{suite}\n{tells_release}\n{SCRIPT}"), |into| {
        setup::packages(setup::RDMA_CORE)?;
        report!("building {} of {}", source.source, place.display());
        Task::new("cp").arg("-a").arg(base.join(".")).arg(into).run()?.success()?;
        suites::compile(SCRIPT, &place, into)
    })
}

/// Makes a root of packages that were unpacked one in which programs run: with one directory of programs
/// and of libraries each, and those that the machine's are shown at.
///
/// # Errors
/// When there is no room.
pub fn merge(root: &Path) -> Result<()> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let (plain, merged) = (root.join(name), root.join("usr").join(name));
        // Newer releases' base-files has them so.
        if plain.is_symlink() {
            continue;
        }
        if plain.is_dir() {
            fs::create_dir_all(&merged)?;
            let copy = Task::new("cp").arg("-a").arg(plain.join(".")).arg(&merged);
            copy.run()?.success()?;
            fs::remove_dir_all(&plain)?;
        }
        if merged.is_dir() {
            symlink(Path::new("usr").join(name), &plain)?;
        }
    }
    for name in ["dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    Ok(())
}

/// Does the work of the packages' scripts, as far as programs need it.
fn complete(root: &Path) -> Result<()> {
    merge(root)?;
    for entry in fs::read_dir(root.join(TESTS))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "gz") {
            Task::new("gunzip").arg(path).run()?.success()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_is_older_than_the_machine_is_refused_by_its_name() {
        let refused = refuse_older(44, "bookworm", 56).unwrap_err().to_string();
        assert!(
            refused.starts_with(
                "the C library of rdma-core 44's root, which is of Debian's bookworm,"
            )
        );
        for release in [56, 65] {
            refuse_older(release, "sid", 56).unwrap();
        }
    }
}
