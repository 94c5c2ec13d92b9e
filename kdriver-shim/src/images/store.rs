//! Records of images, and the images, as files of the state directory.
//!
//! Each file is written beside its place, given to the disk and renamed, so that its name stands for the whole new
//! file or the whole one before.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};

use bitstreams::digest::Sha256;
use host_view::directory::Directory;

use super::record::Record;

/// The directory in the state directory.
const NAME: &str = "images";
/// How records end, and images.
const RECORD: &str = ".json";
const IMAGE: &str = ".image";
/// The name of a record's file until it is whole, and of an image's, which another thread may be writing meanwhile.
const UNFINISHED: &str = "unfinished";
const UNFINISHED_IMAGE: &str = "unfinished.image";
/// Bytes of the largest record that is read.
const MAX_RECORD: u64 = 1 << 20;

/// The files.
#[derive(Debug)]
pub struct Store {
    state: Directory,
}

impl Store {
    /// The images of a state directory.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(state: &Directory) -> io::Result<Self> {
        Ok(Self { state: state.try_clone()? })
    }

    fn directory(&self) -> io::Result<Option<Directory>> {
        self.state.directory(OsStr::new(NAME))
    }

    fn made(&self) -> io::Result<Directory> {
        match self.directory()? {
            Some(directory) => Ok(directory),
            None => self.state.make(NAME),
        }
    }

    /// The record of the card at a place; `None` where there is none.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn record(&self, location: &str) -> Result<Option<Record>, String> {
        let read = || {
            let Some(directory) = self.directory()? else { return Ok(None) };
            read(&directory, &file_of(location), MAX_RECORD)
        };
        match read() {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => {
                let text = String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
                Record::parse(&text).map(Some)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes the record of the card at a place.
    ///
    /// # Errors
    /// Those of the file system; then the former record is in place.
    pub fn save(&self, location: &str, record: &Record) -> io::Result<()> {
        let name = Naming { unfinished: UNFINISHED, whole: &file_of(location) };
        write(&self.made()?, name, record.text().as_bytes())
    }

    /// Keeps an image.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn put(&self, sha256: &str, bytes: &[u8]) -> io::Result<()> {
        let name = Naming { unfinished: UNFINISHED_IMAGE, whole: &format!("{sha256}{IMAGE}") };
        write(&self.made()?, name, bytes)
    }

    /// An image that is kept, whole.
    ///
    /// # Errors
    /// Why there is none.
    pub fn image(&self, sha256: &str, most: u64) -> Result<Vec<u8>, String> {
        let read = || match self.directory()? {
            Some(directory) => read(&directory, &format!("{sha256}{IMAGE}"), most),
            None => Ok(None),
        };
        let bytes = read().map_err(|error| error.to_string())?.ok_or("it is not kept any more")?;
        match Sha256::of(&bytes).to_string() == sha256 {
            true => Ok(bytes),
            false => Err("what is kept of it is not what it was".into()),
        }
    }

    /// Removes images that no record names, and unfinished files. Where a record cannot be read all of them stay.
    ///
    /// # Errors
    /// Those of the file system, and why a record cannot be read.
    pub fn tidy(&self) -> Result<(), String> {
        let told = |error: io::Error| error.to_string();
        let Some(directory) = self.directory().map_err(told)? else { return Ok(()) };
        let names = directory.names().map_err(told)?;
        let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
        let mut wanted = BTreeSet::new();
        for name in &names {
            let Some(location) = name.strip_suffix(RECORD) else { continue };
            let record = self.record(location)?;
            wanted.extend(record.iter().flat_map(Record::wanted).map(str::to_owned));
        }
        for name in names {
            let unwanted = name.strip_suffix(IMAGE).is_some_and(|sha256| !wanted.contains(sha256));
            if unwanted {
                directory.remove(OsStr::new(name)).map_err(told)?;
            }
        }
        Ok(())
    }
}

/// The name of a record's file.
fn file_of(location: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ":.".contains(c) { c } else { '_' };
    format!("{}{RECORD}", location.chars().map(plain).collect::<String>())
}

fn read(directory: &Directory, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match directory.readable(OsStr::new(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("{name} has more than {most} bytes"))),
        false => Ok(Some(bytes)),
    }
}

/// The name of a file while it is being written, and when it is whole.
struct Naming<'a> {
    unfinished: &'a str,
    whole: &'a str,
}

fn write(directory: &Directory, name: Naming<'_>, bytes: &[u8]) -> io::Result<()> {
    let Naming { unfinished, whole } = name;
    let mut file = directory.file(unfinished)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    directory.rename(unfinished, whole)?;
    nix::unistd::fsync(directory)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::images::record::{Deed, ImageName};

    #[test]
    fn what_a_record_wants_is_kept_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::new(&Directory::open(root.path()).unwrap()).unwrap();
        assert_eq!(store.record("soft:00:00.0"), Ok(None));
        let kept = |bytes: &[u8]| {
            let sha256 = Sha256::of(bytes).to_string();
            store.put(&sha256, bytes).unwrap();
            ImageName {
                name: "x".into(),
                sha256,
                bytes: 1,
                logic: vec![],
                vfpga: None,
                manifest: None,
            }
        };
        let (a, b) = (kept(b"a"), kept(b"b"));
        let mut record = Record::new(Some(a.clone()));
        store.save("soft:00:00.0", &record).unwrap();
        assert_eq!(store.record("soft:00:00.0"), Ok(Some(record.clone())));
        store.tidy().unwrap();
        assert_eq!(store.image(&a.sha256, 10), Ok(b"a".to_vec()));
        assert!(store.image(&b.sha256, 10).unwrap_err().contains("not kept"));
        let b = kept(b"b");
        record.begin(Deed::Flash, b.clone());
        store.save("../soft", &record).unwrap();
        fs::write(root.path().join("images/unfinished.image"), "half").unwrap();
        store.tidy().unwrap();
        assert!(!root.path().join("images/unfinished.image").exists());
        assert!(store.image(&b.sha256, 10).is_ok());
        let images = root.path().join("images");
        assert!(images.join(".._soft.json").exists());
        fs::write(images.join(format!("{}.image", b.sha256)), b"c").unwrap();
        assert!(store.image(&b.sha256, 10).unwrap_err().contains("not what it was"));
        assert!(store.image(&a.sha256, 0).unwrap_err().contains("more than 0 bytes"));
        fs::write(images.join("other.json"), "{").unwrap();
        assert!(store.tidy().is_err() && store.record("other").is_err());
        assert!(store.image(&a.sha256, 10).is_ok());
    }
}
