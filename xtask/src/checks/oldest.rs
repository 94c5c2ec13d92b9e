//! Whether everything compiles with the oldest compiler that the manifest allows, which is Debian 13's.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;

use super::Lacking;
use crate::apt::Apt;
use crate::cache::Cache;
use crate::cargo::{cargo, root};

/// The release of Debian, and its package.
const SUITE: &str = "trixie";
const PACKAGE: &str = "rustc";
/// The compiler's name among the unpacked files.
const PROGRAM: &str = "oldest-rustc";

/// Type-checks everything.
///
/// # Errors
/// [`Lacking`] when the compiler cannot be had; that it is not the version of the manifest; its findings.
pub fn check() -> Result<()> {
    let cache = Cache::open("rust")?;
    let compiler = compiler(&cache)
        .map_err(|error| Lacking(format!("Debian 13's rustc cannot be fetched: {error:#}")))?;
    is_named(&compiler)?;
    // Its warnings are ignored: newer compilers know better.
    let task = cargo("check --workspace --all-targets --locked --quiet").env("RUSTC", compiler);
    task.env("CARGO_TARGET_DIR", cache.place("target")).run()?.success().map(drop)
}

/// The compiler, unpacked once.
fn compiler(cache: &Cache) -> Result<PathBuf> {
    let unpacked = cache.keep(SUITE, PACKAGE, |into| {
        let apt = Apt::open(cache.place("apt"), &[SUITE])?;
        apt.unpack_with_dependencies(SUITE, &[PACKAGE], into)?;
        let program = into.join(PROGRAM);
        fs::write(&program, script(&cache.place(SUITE))?)?;
        Ok(fs::set_permissions(&program, Permissions::from_mode(0o755))?)
    })?;
    Ok(unpacked.join(PROGRAM))
}

/// Whether a compiler is the one that the manifest names.
fn is_named(compiler: &Path) -> Result<()> {
    let version = Task::new(compiler).arg("--version").run()?.success()?.stdout;
    let named = manifests()?;
    ensure!(
        version.starts_with(&format!("rustc {named}.")),
        "Debian 13 has {}, and Cargo.toml has rust-version {named}",
        version.trim_end()
    );
    Ok(())
}

/// Runs the compiler with its own loader and libraries, which are newer than this machine's may be.
fn script(unpacked: &Path) -> Result<String> {
    let usr = unpacked.join("usr");
    let usr = usr.to_str().filter(|it| !it.contains('\'')).context("an odd name of a directory")?;
    Ok(format!(
        "#!/bin/sh\n\
        exec '{usr}/lib64/ld-linux-x86-64.so.2' --library-path '{usr}/lib/x86_64-linux-gnu' '{usr}/bin/rustc' \
        --sysroot '{usr}' \"$@\"\n"
    ))
}

/// The oldest release that the manifest allows.
fn manifests() -> Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = line.and_then(|line| line.strip_suffix('"'));
    Ok(version.context("Cargo.toml has no rust-version")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_a_release() {
        let parts: Vec<u32> = manifests().unwrap().split('.').flat_map(str::parse).collect();
        assert_eq!(parts.len(), 2);
    }
}
