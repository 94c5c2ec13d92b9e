//! Files that a user names: none of them is waited for, and none is another user's by accident.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Mode bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bit of a directory in which only the owner of a file can take it away.
const STICKY: u32 = 0o1000;

/// Opens a regular file to be read. A FIFO, or a device, is refused and not waited for.
///
/// # Errors
/// Those of the file system, or a sentence where it is no regular file.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Reads all of a file's text, of fewer than `most` bytes.
///
/// # Errors
/// Those of reading, or a sentence where it has more.
pub fn read_text(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    match u64::try_from(text.len()) {
        Ok(bytes) if bytes < most => Ok(text),
        _ => Err(io::Error::other(format!("it is longer than {most} bytes"))),
    }
}

/// Opens a file to be written anew, if it is `user`'s alone: a file of that user, a new one of mode 0600, a FIFO of
/// that user with a reader, or a device. Links are not followed, and writing to a full FIFO does not wait.
///
/// # Errors
/// Those of the file system (ENXIO of a FIFO without a reader), [`io::ErrorKind::PermissionDenied`] with a sentence
/// where something else is there.
pub fn open_anew(path: &Path, user: u32) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(flags.bits());
    match options.create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        outcome => return outcome,
    }
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let file = match options.create_new(false).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            return refused("it is a symbolic link; name the file itself".into());
        }
        outcome => outcome?,
    };
    let found = file.metadata()?;
    let kind = found.file_type();
    if kind.is_char_device() {
        return Ok(file);
    }
    if found.uid() != user {
        return refused(format!(
            "it belongs to user {}, not to you (user {user}); name another file",
            found.uid()
        ));
    }
    if kind.is_fifo() {
        return Ok(file);
    }
    if !kind.is_file() || found.nlink() > 1 {
        return refused("it is no plain file, or has another name, too; name another file".into());
    }
    file.set_len(0)?;
    Ok(file)
}

/// The same path without links in its directories, if only `trusted` users can make, move or remove the file to
/// which it leads.
#[must_use]
pub fn private_path(path: &Path, trusted: [u32; 2]) -> Option<PathBuf> {
    let parent = match path.parent()? {
        parent if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    let directory = parent.canonicalize().ok()?;
    let private = directory.ancestors().enumerate().all(|(above, directory)| {
        fs::symlink_metadata(directory).is_ok_and(|found| keeps(&found, above > 0, trusted))
    });
    private.then(|| directory.join(path.file_name().unwrap_or_default()))
}

/// Whether a directory holds only files that `trusted` users have put there; of one further up it is enough that no
/// other user can move it.
#[must_use]
pub fn keeps(directory: &Metadata, above: bool, trusted: [u32; 2]) -> bool {
    let closed = directory.mode() & OTHERS_WRITE == 0;
    (closed || (above && directory.mode() & STICKY != 0)) && trusted.contains(&directory.uid())
}

/// Whether a path leads, links followed, to a file that only `trusted` users can change or replace.
#[must_use]
pub fn is_private_file(path: &Path, trusted: [u32; 2]) -> bool {
    let Ok(file) = path.canonicalize() else { return false };
    // A user who can move a link decides where it leads.
    let own = private_path(path, trusted).is_some() && private_path(&file, trusted).is_some();
    own && fs::symlink_metadata(&file).is_ok_and(|found| {
        found.is_file() && found.mode() & OTHERS_WRITE == 0 && trusted.contains(&found.uid())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::{geteuid, mkfifo};

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        mkfifo(&at("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        for path in [at("fifo"), dir.path().to_owned(), "/dev/zero".into()] {
            let why = open_plain(&path).unwrap_err().to_string();
            assert_eq!(why, "it is no regular file", "{}", path.display());
        }
        fs::write(at("file"), "seven b").unwrap();
        let text = |most| read_text(open_plain(&at("file")).unwrap(), most);
        assert_eq!(text(8).unwrap(), "seven b");
        assert!(text(7).unwrap_err().to_string().contains("longer than 7 bytes"));
    }

    #[test]
    fn a_file_of_ones_own_is_written_anew_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let me = geteuid().as_raw();
        let old = at("old");
        fs::write(&old, vec![7; 10_000]).unwrap();
        drop(open_anew(&old, me).unwrap());
        assert_eq!(old.metadata().unwrap().len(), 0);
        drop(open_anew(&at("new"), me).unwrap());
        assert_eq!(at("new").metadata().unwrap().permissions().mode() & 0o777, 0o600);

        fs::write(&old, "old").unwrap();
        fs::write(at("precious"), "precious").unwrap();
        symlink("precious", at("link")).unwrap();
        symlink("nothing", at("loose")).unwrap();
        fs::hard_link(at("precious"), at("name")).unwrap();
        mkfifo(&at("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        let nobody = open_anew(&at("fifo"), me).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(Errno::ENXIO as i32));
        let _reader = OpenOptions::new().read(true).write(true).open(at("fifo")).unwrap();
        open_anew(&at("fifo"), me).unwrap();
        open_anew(Path::new("/dev/null"), me).unwrap();
        let other = me.wrapping_add(1);
        for (name, user, why) in [
            ("link", me, "symbolic link"),
            ("loose", me, "symbolic link"),
            ("name", me, "another name"),
            ("old", other, "belongs to user"),
            ("fifo", other, "belongs to user"),
        ] {
            let refused = open_anew(&at(name), user).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{name}: {refused}");
            assert!(refused.to_string().contains(why), "{name}: {refused}");
        }
        assert_eq!(fs::read(&old).unwrap(), b"old");
        assert_eq!(fs::read(at("precious")).unwrap(), b"precious");
        assert!(!at("nothing").exists());
    }

    #[test]
    fn a_directory_of_ones_own_is_private_and_one_that_others_can_write_to_is_not() {
        let trusted = [geteuid().as_raw(), 0];
        let root = tempfile::tempdir().unwrap();
        let own = root.path().canonicalize().unwrap().join("own");
        fs::create_dir(&own).unwrap();
        let path = own.join("socket");
        let set = |path: &Path, bits| {
            fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
        };
        let found = |path: &Path| fs::symlink_metadata(path).unwrap();
        // The directories above the test's own ones are the machine's.
        let above = own.ancestors().skip(1).all(|it| keeps(&found(it), true, trusted));
        for (bits, closed) in [(0o700, true), (0o755, true), (0o775, false), (0o1777, false)] {
            set(&own, bits);
            assert_eq!(keeps(&found(&own), false, trusted), closed, "{bits:o}");
            let wanted = (closed && above).then(|| path.clone());
            assert_eq!(private_path(&path, trusted), wanted, "{bits:o}");
        }
        set(&own, 0o1777);
        assert!(keeps(&found(&own), true, trusted));
        set(&own, 0o777);
        assert!(!keeps(&found(&own), true, trusted));
        set(&own, 0o700);
        assert!(!keeps(&found(&own), false, [found(&own).uid() + 1; 2]));
        // Somebody else could move it away.
        set(root.path(), 0o777);
        assert_eq!(private_path(&path, trusted), None);
        assert_eq!(private_path(&own.join("no/where"), trusted), None);
    }

    #[test]
    fn a_private_file_is_one_that_nobody_else_can_change_or_replace() {
        let dir = tempfile::tempdir().unwrap();
        let trusted = [0, geteuid().as_raw()];
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let (own, open) = (dir.path().join("own"), dir.path().join("open"));
        for directory in [&own, &open] {
            fs::create_dir(directory).unwrap();
            mode(directory, 0o755);
            fs::write(directory.join("file"), "").unwrap();
            mode(&directory.join("file"), 0o644);
        }
        symlink("../open/file", own.join("link")).unwrap();
        let private = |path: PathBuf| is_private_file(&path, trusted);
        assert!(private(own.join("file")) && private(own.join("link")));
        mode(&open, 0o777);
        assert!(!private(open.join("file")), "another can put one in its place");
        assert!(!private(own.join("link")), "what it leads to is no better");
        mode(&own.join("file"), 0o664);
        assert!(!private(own.join("file")), "a group can write to it");
        mode(&own.join("file"), 0o644);
        assert!(!is_private_file(&own.join("file"), [u32::MAX; 2]), "it is another user's");
        assert!(!private(own.join("none")) && !private(own));
    }
}
