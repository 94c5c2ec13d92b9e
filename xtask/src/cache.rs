//! The cache of fetched and built files, kept between runs: whole or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use terminal::report;

/// The name of the file, in each kept directory, that names the sources of its content.
const KEY: &str = "made-from";

/// The directory of kept things, for this process alone as long as the value lives.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    _lock: Flock<File>,
}

impl Cache {
    /// Opens a part of the cache, after any other run that fills it.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn open(part: &str) -> Result<Self> {
        let root = harness::cache::directory()
            .context("there is no place to keep what is fetched: set XDG_CACHE_HOME or HOME")?
            .join(part);
        Self::at(root)
    }

    fn at(root: PathBuf) -> Result<Self> {
        let make = || fs::create_dir_all(&root);
        make().with_context(|| format!("cannot make {}", root.display()))?;
        let path = root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((file, _)) => {
                report!("waiting for another run that fills {}", root.display());
                Flock::lock(file, FlockArg::LockExclusive)
                    .map_err(|(_, errno)| errno)
                    .with_context(|| format!("cannot lock {}", path.display()))?
            }
        };
        Ok(Self { root, _lock: lock })
    }

    /// A directory in the cache for files that may be incomplete, such as lists of packages.
    pub fn place(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The directory `name`, if it is there and was made from `key`.
    pub fn kept(&self, name: &str, key: &str) -> Option<PathBuf> {
        let directory = self.root.join(name);
        fs::read_to_string(directory.join(KEY)).is_ok_and(|it| it == key).then_some(directory)
    }

    /// The directory `name`, filled by `fill` unless it was already, from the same `key`.
    ///
    /// It gets its name once it is complete, so that an interrupted run leaves none behind.
    ///
    /// # Errors
    /// `fill`'s, or when the directory cannot be made.
    pub fn keep(
        &self,
        name: &str,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(directory) = self.kept(name, key) {
            return Ok(directory);
        }
        let (directory, growing) = (self.root.join(name), self.root.join(format!("{name}.part")));
        remove(&growing)?;
        fs::create_dir(&growing)?;
        fill(&growing)?;
        fs::write(growing.join(KEY), key)?;
        remove(&directory)?;
        fs::rename(&growing, &directory)?;
        Ok(directory)
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn what_was_not_completed_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path().join("cache")).unwrap();
        let half = |directory: &Path| {
            fs::write(directory.join("half"), "")?;
            bail!("interrupted")
        };
        assert!(cache.keep("thing", "1", half).is_err());
        assert_eq!(cache.kept("thing", "1"), None);
        let kept = cache.keep("thing", "1", |at| Ok(fs::write(at.join("whole"), "")?)).unwrap();
        assert!(kept.join("whole").exists() && !kept.join("half").exists());
    }

    #[test]
    fn what_is_kept_is_made_again_only_from_another_key() {
        let home = tempfile::tempdir().unwrap();
        let cache = Cache::at(home.path().join("cache")).unwrap();
        cache.keep("thing", "1", |at| Ok(fs::write(at.join("first"), "")?)).unwrap();
        cache.keep("thing", "1", |_| bail!("not again")).unwrap();
        let kept = cache.keep("thing", "2", |_| Ok(())).unwrap();
        assert!(!kept.join("first").exists());
    }
}
