//! The files of a program's world: device nodes, providers, and the entries that the kernel would show in /sys/class.
//!
//! They may be there already, for another program: then only differing files are replaced, each atomically.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::libibverbs::Providers;
use super::sysfs::World;

/// The program's path of the provider, without the suffix that libibverbs adds.
pub const DRIVER: &str = "/dev/infiniband/libbalboa";
/// The target of the device nodes' links.
pub const NODE_TARGET: &str = "/dev/full";
/// The start of the names of files that are not in their places yet.
const NEW: &str = ".new";

/// A step that failed that should not.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {error}", path.display())]
pub struct StepError {
    /// The step.
    what: &'static str,
    /// The path that it was tried on.
    path: PathBuf,
    /// Why not.
    pub error: io::Error,
}

/// Names a step, for its errors.
pub fn step<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> StepError {
    let path = path.to_owned();
    move |error| StepError { what, path, error: error.into() }
}

/// Makes the nodes, and shows the providers: for each private interface one by the name that its libibverbs
/// looks for, and all by their own, by which that one finds the others of its interface.
pub fn build_nodes(dir: &Path, world: &World, providers: &Providers) -> Result<(), StepError> {
    make_dir(dir)?;
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

/// Writes the files that the kernel would show below /sys/class.
pub fn build_class(dir: &Path, world: &World) -> Result<(), StepError> {
    // Backwards: libibverbs lists the device first whose entry was made last, and programs that are
    // told no device take the first.
    for (path, text) in world.class.iter().rev() {
        let file = dir.join(path);
        let parent = file.parent().unwrap_or(dir);
        make_dir(parent)?;
        if fs::read(&file).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let mode = Permissions::from_mode(0o644);
        let new = tempfile::Builder::new().prefix(NEW).permissions(mode).tempfile_in(parent);
        let mut new = new.map_err(step("make", &file))?;
        new.write_all(text.as_bytes()).map_err(step("write", &file))?;
        new.persist(&file).map_err(|it| step("put in place", &file)(it.error))?;
    }
    Ok(())
}

/// Makes a missing directory, writable for this user alone, under any umask.
pub fn make_dir(dir: &Path) -> Result<(), StepError> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(step("make", dir))
}

/// Whether a file is this user's, or root's.
pub fn is_ours(found: &Metadata) -> bool {
    [geteuid().as_raw(), 0].contains(&found.uid())
}

/// Makes a symbolic link.
pub fn link(target: &Path, at: &Path) -> Result<(), StepError> {
    let is_ours = fs::symlink_metadata(at).is_ok_and(|found| is_ours(&found));
    if is_ours && fs::read_link(at).is_ok_and(|there| there == target) {
        return Ok(());
    }
    let dir = at.parent().unwrap_or(at);
    let new = tempfile::Builder::new().prefix(NEW).make_in(dir, |new| symlink(target, new));
    let new = new.map_err(step("link", at))?.into_temp_path();
    new.persist(at).map_err(|it| step("put in place", at)(it.error))
}
