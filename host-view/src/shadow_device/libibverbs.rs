//! The provider to which libibverbs gives a device that both rxe's and ours claim.
//!
//! The first to be registered wins, and providers are registered as they are loaded: those of
//! `RDMAV_DRIVERS` first, then those that the files of [`DRIVERS`] name, the last name first, the
//! files in the order in which the directory lists them. That order is the file system's: only names
//! in one file have one. So the package's file names rxe's provider before ours, and rxe's own file is
//! diverted out of the directory. (rdma-core 44, `libibverbs/dynamic_driver.c` and `init.c`.)

use std::fs;
use std::path::{Path, PathBuf};

/// The files that name providers.
pub const DRIVERS: &str = "/etc/libibverbs.d";

/// The provider that gets the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimant {
    /// Our provider.
    Ours,
    /// Rxe's, which a file names behind ours or in an order of its own.
    Rxe(PathBuf),
    /// Nobody names ours.
    NotInstalled,
}

impl Claimant {
    /// The fault and its mend; `None` if there is none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Rxe(file) => Some(format!(
                "programs get rxe's provider, not Balboa's, for {} names it and is read first: install the balboa package, which diverts that file",
                file.display()
            )),
            Self::NotInstalled => Some(format!(
                "programs get rxe's provider, not Balboa's, for no file in {DRIVERS} names balboa: install the balboa package"
            )),
        }
    }
}

/// The provider that gets a device of rxe's with the name of a card.
#[must_use]
pub fn claimant() -> Claimant {
    claimant_in(Path::new(DRIVERS))
}

fn claimant_in(directory: &Path) -> Claimant {
    let mut names: Vec<(String, PathBuf)> = Vec::new();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| path.is_file()) {
        let text = fs::read(&path).unwrap_or_default();
        for line in String::from_utf8_lossy(&text).lines() {
            let mut words = line.split_whitespace();
            if let (Some("driver"), Some(name)) = (words.next(), words.next()) {
                // A path names a plug-in by its file.
                let name = name.rsplit('/').next().unwrap_or(name);
                let name = name.strip_prefix("lib").filter(|_| line.contains('/')).unwrap_or(name);
                names.push((name.to_owned(), path.clone()));
            }
        }
    }
    if !names.iter().any(|(name, _)| name == "balboa") {
        return Claimant::NotInstalled;
    }
    match names.into_iter().rev().find(|(name, _)| name == "balboa" || name == "rxe") {
        Some((name, path)) if name == "rxe" => Claimant::Rxe(path),
        _ => Claimant::Ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_a_file_is_loaded_first() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        assert_eq!(claimant_in(home.path()), Claimant::NotInstalled);
        write("mlx5.driver", "driver mlx5\n");
        write("rxe.driver", "# a comment\n driver\trxe\n");
        let claimant = claimant_in(home.path());
        assert_eq!(claimant, Claimant::NotInstalled);
        assert!(claimant.trouble().unwrap().contains("install the balboa package"));
        fs::remove_file(home.path().join("rxe.driver")).unwrap();
        write("balboa.driver", "driver balboa\ndriver rxe\n");
        let file = home.path().join("balboa.driver");
        assert_eq!(claimant_in(home.path()), Claimant::Rxe(file));
        write("balboa.driver", "driver rxe\ndriver /opt/libbalboa\n");
        assert_eq!(claimant_in(home.path()), Claimant::Ours);
        let remark = b"# caf\xe9\ndriver balboa\n";
        fs::write(home.path().join("balboa.driver"), remark).unwrap();
        assert_eq!(claimant_in(home.path()), Claimant::Ours);
        assert_eq!(Claimant::Ours.trouble(), None);
    }

    #[test]
    fn the_packages_own_file_lets_ours_win() {
        let home = tempfile::tempdir().unwrap();
        let file = include_str!("../../../packaging/balboa.driver");
        fs::write(home.path().join("balboa.driver"), file).unwrap();
        assert_eq!(claimant_in(home.path()), Claimant::Ours);
    }
}
