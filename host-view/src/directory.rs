//! Directories by descriptor: work in one stays in it, though its path changes, and follows no link in it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory, which the path itself has to be, not a link to it.
    ///
    /// # Errors
    /// ENOTDIR or ELOOP where it is something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory in it; `None` where nothing bears the name.
    ///
    /// # Errors
    /// ENOTDIR or ELOOP where it is something else.
    pub fn directory(&self, name: &OsStr) -> io::Result<Option<Self>> {
        match openat(&self.0, name, DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory in it, of mode 0700, and opens it.
    ///
    /// # Errors
    /// EEXIST where something bears the name.
    pub fn make(&self, name: &str) -> io::Result<Self> {
        mkdirat(&self.0, name, Mode::S_IRWXU)?;
        Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?))
    }

    /// Opens a file in it, and makes it with mode 0600 where it is missing.
    ///
    /// # Errors
    /// ELOOP where it is a link; those of opening a file.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    /// Opens a file in it to be read, without waiting for another process.
    ///
    /// # Errors
    /// ELOOP where it is a link; those of opening a file.
    pub fn readable(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// The status of the directory itself.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn look(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.0)?)
    }

    /// The status of the entry with a name, of a link itself too; `None` if there is none.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn look_at(&self, name: &str) -> io::Result<Option<FileStat>> {
        match fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// All names in it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        // A descriptor of its own, with a place of its own in the directory.
        let mut listing = Dir::openat(&self.0, ".", DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let entry = entry?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(OsStr::from_bytes(name).to_owned()),
            }
        }
        Ok(names)
    }

    /// Removes the entry with a name, which must be no directory.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Renames an entry, in place of one that has the new name.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.0, name, &self.0, to)?)
    }

    /// Removes an empty directory in it.
    ///
    /// # Errors
    /// ENOTEMPTY, ENOTDIR; those of the file system.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir)?)
    }

    /// A second descriptor of the same directory.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether an entry is of a kind.
#[must_use]
pub fn is(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == kind
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_neither_followed_nor_listed_as_what_they_lead_to() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().join("real");
        fs::create_dir(&real).unwrap();
        fs::write(real.join("file"), "precious").unwrap();
        symlink("file", real.join("link")).unwrap();
        symlink("real", root.path().join("way")).unwrap();
        assert!(Directory::open(&root.path().join("way")).is_err());
        let above = Directory::open(root.path()).unwrap();
        assert!(above.directory(OsStr::new("way")).is_err());
        assert!(above.directory(OsStr::new("nothing")).unwrap().is_none());
        let directory = above.directory(OsStr::new("real")).unwrap().unwrap();
        let errno = directory.file("link").unwrap_err().raw_os_error();
        assert_eq!(errno, Some(Errno::ELOOP as i32));
        assert!(directory.readable(OsStr::new("link")).is_err());
        assert!(is(&directory.look_at("link").unwrap().unwrap(), SFlag::S_IFLNK));
        for _ in 0..2 {
            let mut names = directory.names().unwrap();
            names.sort();
            assert_eq!(names, ["file", "link"]);
        }
        directory.remove(OsStr::new("link")).unwrap();
        assert_eq!(fs::read(real.join("file")).unwrap(), b"precious");
    }

    #[test]
    fn a_directory_is_the_same_whatever_becomes_of_its_path() {
        let root = tempfile::tempdir().unwrap();
        let above = Directory::open(root.path()).unwrap();
        let made = above.make("made").unwrap();
        assert!(above.make("made").is_err());
        fs::rename(root.path().join("made"), root.path().join("away")).unwrap();
        fs::create_dir(root.path().join("made")).unwrap();
        made.file("file").unwrap();
        assert!(root.path().join("away/file").exists());
        assert!(above.remove_directory(OsStr::new("away")).is_err(), "it is not empty");
    }
}
