//! The files of a program's world: device nodes, providers, and what the kernel would show in /sys/class.
//!
//! They may be there already, for another program: then only what differs is put in place, each at once.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::libibverbs::Providers;
use super::sysfs::World;

/// Where the program finds the provider, without the suffix that libibverbs adds.
pub const DRIVER: &str = "/dev/infiniband/libbalboa";
/// What the device nodes are links to.
pub const NODE_TARGET: &str = "/dev/full";
/// What is not in its place yet.
const NEW: &str = ".new";

/// A step that failed that should not.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {error}", path.display())]
pub struct StepError {
    /// What was tried.
    what: &'static str,
    /// On what.
    path: PathBuf,
    /// Why not.
    pub error: io::Error,
}

/// Names a step, for what it fails with.
pub fn step<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> StepError {
    let path = path.to_owned();
    move |error| StepError { what, path, error: error.into() }
}

/// Makes the nodes, and shows the providers: for each private interface one by the name that its libibverbs
/// looks for, and all by their own, by which that one finds the others of its interface.
pub fn build_nodes(dir: &Path, world: &World, providers: &Providers) -> Result<(), StepError> {
    fs::create_dir_all(dir).map_err(step("make", dir))?;
    for node in &world.nodes {
        link(Path::new(NODE_TARGET), &dir.join(node))?;
    }
    let stem = Path::new(DRIVER).file_name().unwrap_or_default().to_string_lossy();
    let mut plugins = Vec::new();
    for provider in &providers.0 {
        link(&provider.file, &dir.join(provider.release.provider()))?;
        let plugin = format!("{stem}{}", provider.release.suffix());
        if !plugins.contains(&plugin) {
            link(&provider.file, &dir.join(&plugin))?;
            plugins.push(plugin);
        }
    }
    Ok(())
}

/// Writes what the kernel would show below /sys/class.
pub fn build_class(dir: &Path, world: &World) -> Result<(), StepError> {
    // Backwards: libibverbs lists the device first whose entry was made last, and programs that are
    // told no device take the first.
    for (path, text) in world.class.iter().rev() {
        let file = dir.join(path);
        let parent = file.parent().unwrap_or(dir);
        fs::create_dir_all(parent).map_err(step("make", parent))?;
        if fs::read(&file).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let new = parent.join(NEW);
        fs::write(&new, text).map_err(step("write", &new))?;
        fs::rename(&new, &file).map_err(step("put in place", &file))?;
    }
    Ok(())
}

/// Makes a symbolic link.
pub fn link(target: &Path, at: &Path) -> Result<(), StepError> {
    if fs::read_link(at).is_ok_and(|there| there == target) {
        return Ok(());
    }
    let new = at.with_file_name(NEW);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(step("remove", &new)(error));
        }
        _ => {}
    }
    symlink(target, &new).map_err(step("link", &new))?;
    fs::rename(&new, at).map_err(step("put in place", at))
}
