//! Device nodes that ordinary users can open.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::geteuid;

/// Makes a device node that every user may open.
pub fn open_copy(node: &Path, at: &Path) -> io::Result<()> {
    let number = fs::metadata(node)?.rdev();
    mknod(at, SFlag::S_IFCHR, Mode::empty(), number)?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o666))
}

/// The reason why an ordinary user cannot open a device node, nor a copy that we make; `None` if one can.
pub fn cannot_open(node: &Path) -> Option<String> {
    let open = |node: &Path| OpenOptions::new().read(true).write(true).open(node).map(drop);
    let copied = || {
        let directory = tempfile::tempdir()?;
        let copy = directory.path().join("node");
        open_copy(node, &copy)?;
        open(&copy)
    };
    let outcome = if geteuid().is_root() { copied() } else { open(node) };
    outcome.err().map(|error| format!("needs {}: {error}", node.display()))
}
