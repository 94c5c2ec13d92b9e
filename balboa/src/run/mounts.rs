//! The namespace of the program, and its mounts.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid};

use super::libibverbs::Providers;
use super::refusal;
use super::sysfs::{CLASSES, CM, MISC, World};
use super::view::{self, StepError};

/// Why the program's world cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// No namespace, or none in which to mount.
    #[error("{0}")]
    Refused(String),
    /// A step failed that should not.
    #[error(transparent)]
    Step(#[from] StepError),
}

fn step<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> MountError {
    let step = view::step(what, path);
    move |error| MountError::Step(step(error))
}

/// Moves this process into a mount namespace of its own; where it is not root, or root may not, by
/// way of a user namespace in which it keeps its uid and gid.
///
/// # Errors
/// When the kernel refuses, with the reason where it can be told.
pub fn enter() -> Result<(), MountError> {
    let plain = geteuid().is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok();
    if !plain {
        enter_user_namespace()?;
    }
    let all_private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    match mount(NOTHING, "/", NOTHING, all_private, NOTHING) {
        Ok(()) => Ok(()),
        Err(errno) => Err(MountError::Refused(refusal::mount(errno))),
    }
}

fn enter_user_namespace() -> Result<(), MountError> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .map_err(|errno| MountError::Refused(refusal::user_namespace(errno)))?;
    // Without this the kernel accepts no gid map of an ordinary user; kernels before 3.19 lack it.
    match fs::write("/proc/self/setgroups", "deny") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(step("write", Path::new("/proc/self/setgroups"))(error));
        }
        _ => {}
    }
    for (map, id) in [("/proc/self/uid_map", uid.as_raw()), ("/proc/self/gid_map", gid.as_raw())] {
        fs::write(map, format!("{id} {id} 1")).map_err(step("write", Path::new(map)))?;
    }
    Ok(())
}

const NOTHING: Option<&str> = None;

/// Shows the world to this process and its descendants.
///
/// It is built on a tmpfs at `stage`, the state directory, and then bound over /dev and /sys/class. When
/// this returns, `stage` shows its former content, and the tmpfs is read-only for everybody.
///
/// # Errors
/// When a step of it fails.
pub fn show(stage: &Path, world: &World, providers: &Providers) -> Result<(), MountError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let live = open_live(stage, world)?;
    mount(Some("balboa"), stage, Some("tmpfs"), flags, Some("mode=0755"))
        .map_err(|errno| MountError::Refused(refusal::mount(errno)))?;
    let (dev, class) = (stage.join("dev"), stage.join("class"));
    mirror(Path::new("/dev"), &dev, &["infiniband"])?;
    let of_host = Path::new("/sys/class");
    mirror(of_host, &class, &[&CLASSES[..], &[MISC]].concat())?;
    // A kernel may have no such devices.
    if of_host.join(MISC).is_dir() {
        mirror(&of_host.join(MISC), &class.join(MISC), &[CM])?;
    }
    view::build_nodes(&dev.join("infiniband"), world, providers)?;
    view::build_class(&class, world)?;
    for (path, directory) in &live {
        bind_live(directory, &class.join(path), flags)?;
    }

    let locked = flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(NOTHING, stage, NOTHING, locked, NOTHING).map_err(step("make read-only", stage))?;
    for (from, over) in [(&dev, "/dev"), (&class, "/sys/class")] {
        bind(from, Path::new(over))?;
    }
    umount2(stage, MntFlags::MNT_DETACH).map_err(step("unmount", stage))
}

/// Makes `to` a directory with everything that `from` has, but for the names in `without`.
fn mirror(from: &Path, to: &Path, without: &[&str]) -> Result<(), MountError> {
    fs::create_dir(to).map_err(step("make", to))?;
    let entries = fs::read_dir(from).map_err(step("list", from))?;
    for entry in entries {
        let entry = entry.map_err(step("list", from))?;
        let name = entry.file_name();
        if without.iter().any(|hidden| name == *hidden) {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        match mirror_entry(&source, &target) {
            // A device that has just been unplugged.
            Err(_) if !source.exists() => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

fn mirror_entry(source: &Path, target: &Path) -> Result<(), MountError> {
    let kind = source.symlink_metadata().map_err(step("look at", source))?.file_type();
    if kind.is_symlink() {
        let link = fs::read_link(source).map_err(step("read", source))?;
        return symlink(link, target).map_err(step("link", target));
    }
    if kind.is_dir() {
        fs::create_dir(target).map_err(step("make", target))?;
    } else {
        fs::write(target, "").map_err(step("make", target))?;
    }
    bind(source, target)
}

/// Binds with everything that is mounted below, as the kernel demands in a user namespace.
fn bind(from: &Path, over: &Path) -> Result<(), MountError> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), over, NOTHING, flags, NOTHING).map_err(|errno| match errno {
        Errno::EPERM | Errno::EACCES => MountError::Refused(refusal::mount(errno)),
        _ => step("mount onto", over)(errno),
    })
}

/// Opens the directories that balboad keeps, which the tmpfs is about to cover.
fn open_live<'a>(
    state_dir: &Path,
    world: &'a World,
) -> Result<Vec<(&'a String, OwnedFd)>, MountError> {
    let mut live = Vec::new();
    for (path, kept) in &world.live {
        let kept = state_dir.join(kept);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match open(&kept, flags, Mode::empty()) {
            Ok(directory) => live.push((path, directory)),
            // A balboad whose disk is full keeps none, which is no reason to run nothing.
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(step("open", &kept)(errno)),
        }
    }
    Ok(live)
}

/// Shows a directory that balboad keeps, for reading only.
fn bind_live(directory: &OwnedFd, over: &Path, flags: MsFlags) -> Result<(), MountError> {
    fs::create_dir_all(over).map_err(step("make", over))?;
    bind(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())), over)?;
    let locked = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(NOTHING, over, NOTHING, locked, NOTHING).map_err(step("make read-only", over))
}
