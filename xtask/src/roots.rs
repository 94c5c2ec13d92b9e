//! Root directories of other releases of Debian, each with its own release of rdma-core: nothing of
//! them is installed, and `in-root` runs programs in them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use ibverbs_tests::process::Task;
use ibverbs_tests::setting::Root;
use verbs_sys::{SONAME, release_in_name};

use crate::apt::Apt;
use crate::cache::Cache;

/// The releases of rdma-core, and the releases of Debian that have them.
pub const RELEASES: [(u32, &str); 3] = [(44, "bookworm"), (56, "trixie"), (65, "sid")];

/// What is run in a root.
const PACKAGES: [&str; 7] = [
    "coreutils",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "python3-pyverbs",
    "rdmacm-utils",
    "ucx-utils",
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

/// Sees to it that the root of a release lies in the cache.
///
/// # Errors
/// When its packages cannot be fetched.
pub fn fetch(release: u32) -> Result<Root> {
    ensure!(cfg!(target_arch = "x86_64"), "needs an x86-64 machine");
    let suite = RELEASES.iter().find(|(number, _)| *number == release).map(|(_, suite)| *suite);
    let suite = suite.with_context(|| format!("no release of Debian has rdma-core {release}"))?;
    let cache = Cache::open("roots")?;
    let key = format!("{suite}: {}", PACKAGES.join(" "));
    let path = cache.keep(suite, &key, |into| {
        let apt = Apt::open(cache.place(&format!("apt-{suite}")), &[suite])?;
        apt.unpack_with_dependencies(suite, &PACKAGES, into)?;
        complete(into, release)
    })?;
    Ok(Root { path, release })
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

/// Does what the packages' scripts would do, as far as programs need it.
fn complete(root: &Path, release: u32) -> Result<()> {
    merge(root)?;
    let library = root.join("lib/x86_64-linux-gnu").join(SONAME).canonicalize()?;
    if release_in_name(&library) != Some(release) {
        bail!("Debian's {} is not of rdma-core {release} any more", library.display());
    }
    for entry in fs::read_dir(root.join(TESTS))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "gz") {
            Task::new("gunzip").arg(path).run()?.success()?;
        }
    }
    Ok(())
}
