//! Files with keys that are shared with peers: they are this user's alone.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use terminal::file::{open_plain, read_text};

/// Bytes that are read of a file at most.
const MAX_BYTES: u64 = 1 << 16;

/// Reads a file that no other user can read.
///
/// # Errors
/// A sentence: it cannot be read, or others may.
pub fn read_own(path: &Path) -> Result<String, String> {
    let file = open_plain(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let own = nix::unistd::geteuid().as_raw();
    if ![0, own].contains(&metadata.uid()) || metadata.mode() & 0o077 != 0 {
        return Err(
            "others may read what is shared with peers; make it yours, and chmod 600 it".into()
        );
    }
    read_text(file, MAX_BYTES).map_err(unreadable)
}

/// Reads a file whose directory no other user can enter.
///
/// # Errors
/// A sentence: it cannot be read.
pub fn read_guarded(path: &Path) -> Result<String, String> {
    open_plain(path).and_then(|file| read_text(file, MAX_BYTES)).map_err(unreadable)
}

fn unreadable(error: io::Error) -> String {
    format!("it cannot be read: {error}")
}

/// The lines of a file that say something, with their numbers: those that are empty, or begin with `#`, do not.
pub fn lines(text: &str) -> impl Iterator<Item = (u32, &str)> {
    let lines = (1_u32..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The bytes that hexadecimal digits stand for; `None` where they are other digits, or more or fewer.
#[must_use]
pub fn key_of<const BYTES: usize>(digits: &str) -> Option<[u8; BYTES]> {
    let digits = digits.as_bytes();
    (digits.len() == BYTES.checked_mul(2)?).then_some(())?;
    let mut key = [0; BYTES];
    for (place, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: &u8| char::from(*digit).to_digit(16);
        let [high, low] = pair.first_chunk()?;
        *place = u8::try_from(value(high)?.checked_mul(16)?.checked_add(value(low)?)?).ok()?;
    }
    Some(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("peers");
        std::fs::write(&path, "text").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(read_own(&path).unwrap_err().contains("chmod 600"), "{mode:o}");
        }
        assert_eq!(read_guarded(&path).unwrap(), "text");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_own(&path).unwrap(), "text");
        assert!(read_own(directory.path()).unwrap_err().contains("no regular file"));
        assert!(read_own(&directory.path().join("none")).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn a_key_has_as_many_digits_as_it_has_to() {
        assert_eq!(key_of("0aF1"), Some([0x0a, 0xf1]));
        for text in ["", "0aF", "0aF10", "+af1", "0ag1", "é12"] {
            assert_eq!(key_of::<2>(text), None, "{text}");
        }
    }
}
