//! The program's world without a namespace (`balboa run --in-place`), where none may be made: in a container, which is a
//! world already. All of it is in /dev/infiniband; libibverbs is led there by `SYSFS_PATH`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, OFlag};

use super::libibverbs::Providers;
use super::sysfs::{CLASSES, World};
use super::turn;
use super::view::{self, StepError, step};

/// Where it is: libibverbs looks for device nodes here, wherever it finds the devices.
const PLACE: &str = "/dev/infiniband";
/// The directory that stands for /sys there.
const SYSFS: &str = "sys";
/// The lock file of changes there.
const LOCK: &str = ".balboa";
/// The time for which another process's change is waited for.
const TURN: Duration = Duration::from_secs(30);

/// Why it cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum InPlaceError {
    /// There is no directory that could be written to.
    #[error(
        "{0}: --in-place needs a directory {PLACE} that this user may write to, such as a tmpfs of the container's or an emptyDir volume of the pod's"
    )]
    NoPlace(StepError),
    /// Other users could change the libraries that this user's programs load, or have made the file.
    #[error(
        "{}: --in-place needs what is this user's or root's, and no other's to write to: one user alone can use one {PLACE}", .0.display()
    )]
    Others(PathBuf),
    /// Another process holds the lock.
    #[error("another balboa run --in-place has been changing {} for {} s", .0.display(), TURN.as_secs())]
    Busy(PathBuf),
    /// A step failed that should not.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Shows the cards to all processes that see this process's files, in place of earlier ones; returns the value for
/// `SYSFS_PATH`.
///
/// # Errors
/// [`InPlaceError`].
pub fn show(state: &Path, world: &World, providers: &Providers) -> Result<PathBuf, InPlaceError> {
    show_at(Path::new(PLACE), state, world, providers)
}

fn show_at(
    place: &Path,
    state: &Path,
    world: &World,
    providers: &Providers,
) -> Result<PathBuf, InPlaceError> {
    view::make_dir(place).map_err(InPlaceError::NoPlace)?;
    if !fs::metadata(place).is_ok_and(|found| view::is_ours(&found)) {
        return Err(InPlaceError::Others(place.to_owned()));
    }
    let _lock = lock(place)?;
    let sysfs = place.join(SYSFS);
    view::make_dir(&sysfs)?;
    let is_alone = |it: fs::Metadata| it.is_dir() && view::is_ours(&it) && it.mode() & 0o022 == 0;
    if !fs::symlink_metadata(&sysfs).is_ok_and(is_alone) {
        return Err(InPlaceError::Others(sysfs));
    }
    let class = sysfs.join("class");
    forget(place, &class, world)?;
    view::build_nodes(place, world, providers)?;
    view::build_class(&class, world)?;
    for (path, kept) in &world.live {
        let at = class.join(path);
        let parent = at.parent().unwrap_or(&class);
        view::make_dir(parent)?;
        view::link(&state.join(kept), &at)?;
    }
    Ok(sysfs)
}

fn lock(place: &Path) -> Result<Flock<File>, InPlaceError> {
    let path = place.join(LOCK);
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let opened = options.custom_flags(flags.bits()).open(&path);
    let file = opened.map_err(step("open", &path)).map_err(InPlaceError::NoPlace)?;
    let turn =
        turn::wait(file, TURN).map_err(step("lock", &path)).map_err(InPlaceError::NoPlace)?;
    turn.ok_or_else(|| InPlaceError::Busy(place.to_owned()))
}

/// Removes the cards that have gone, and only files that balboa has made.
fn forget(place: &Path, class: &Path, world: &World) -> Result<(), StepError> {
    let nodes: BTreeSet<&str> = world.nodes.iter().map(String::as_str).collect();
    for name in names(place)? {
        let at = place.join(&name);
        let is_ours = fs::symlink_metadata(&at).is_ok_and(|found| view::is_ours(&found))
            && fs::read_link(&at).is_ok_and(|target| target == Path::new(view::NODE_TARGET));
        if is_ours && !nodes.contains(&*name) {
            fs::remove_file(&at).map_err(step("remove", &at))?;
        }
    }
    for of in CLASSES {
        let dir = class.join(of);
        for name in names(&dir)? {
            let prefix = format!("{of}/{name}");
            let stays = |path: &String| {
                path.strip_prefix(&prefix)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            if !world.class.keys().any(stays) {
                let at = dir.join(&name);
                fs::remove_dir_all(&at).map_err(step("remove", &at))?;
            }
        }
    }
    Ok(())
}

/// The names in a directory; none where it is not there.
fn names(dir: &Path) -> Result<Vec<String>, StepError> {
    match fs::read_dir(dir) {
        Ok(entries) => {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            Ok(names.collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(step("list", dir)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::client::tests::card;

    #[test]
    fn what_is_shown_follows_the_cards_and_leaves_alone_what_is_others() {
        let dir = tempfile::tempdir().unwrap();
        let (place, state) = (dir.path().join("infiniband"), Path::new("/run/balboa"));
        let providers = Providers(Vec::new());
        fs::create_dir(&place).unwrap();
        fs::write(place.join("uverbs0"), "the kernel's").unwrap();
        for cards in [&[card(0), card(1)][..], &[card(0), card(1)], &[card(1)]] {
            let sysfs = show_at(&place, state, &World::of(cards), &providers).unwrap();
            assert_eq!(sysfs, place.join("sys"));
            let shown = |path: String| fs::symlink_metadata(place.join(path)).is_ok();
            for number in [0, 1] {
                let there = cards.iter().any(|card| card.card == number);
                assert_eq!(shown(format!("uverbs{}", 900 + number)), there);
                assert_eq!(shown(format!("sys/class/infiniband/balboa{number}/fw_ver")), there);
                let verbs = format!("sys/class/infiniband_verbs/uverbs{}/ibdev", 900 + number);
                assert_eq!(shown(verbs), there);
            }
            let port = fs::read_link(sysfs.join("class/infiniband/balboa1/ports/1")).unwrap();
            assert_eq!(port, Path::new("/run/balboa/ports/balboa1"));
            assert!(shown("uverbs0".into()) && !shown(".new".into()));
        }
    }

    #[test]
    fn what_others_may_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (place, state) = (dir.path().join("infiniband"), Path::new("/run/balboa"));
        let show = || show_at(&place, state, &World::of(&[card(0)]), &Providers(Vec::new()));
        let sysfs = show().unwrap();
        fs::set_permissions(&sysfs, Permissions::from_mode(0o775)).unwrap();
        assert!(matches!(show().unwrap_err(), InPlaceError::Others(path) if path == sysfs));
        // Nor a file that somebody has put there in its stead.
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&sysfs, &elsewhere).unwrap();
        fs::set_permissions(&elsewhere, Permissions::from_mode(0o755)).unwrap();
        symlink(&elsewhere, &sysfs).unwrap();
        assert!(matches!(show().unwrap_err(), InPlaceError::Others(path) if path == sysfs));
        fs::remove_file(&sysfs).unwrap();
        show().unwrap();
    }

    #[test]
    fn without_a_place_to_write_to_it_is_told_what_is_needed() {
        let why = show_at(
            Path::new("/proc/none/infiniband"),
            Path::new("/run/balboa"),
            &World::default(),
            &Providers(Vec::new()),
        );
        let why = why.unwrap_err().to_string();
        assert!(why.contains("emptyDir"), "{why}");
    }
}
