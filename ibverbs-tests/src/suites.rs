//! Suites of tests and benchmarks that are no packages of Debian's: they are built of their authors' sources, of which
//! somebody must have put a copy into the cache.

use std::path::PathBuf;

use crate::cache;

/// One suite, or what else is built of such a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name, and that of its directories: of its source in `sources/`, of what is built in `suites/`.
    pub name: &'static str,
    /// What its source is, and of which release.
    pub source: &'static str,
}

/// Those of which docs/applications-suites.md has recipes.
pub const SUITES: [Suite; 4] = [
    Suite { name: "fabtests", source: "libfabric 1.17.0, with its fabtests" },
    Suite { name: "imb", source: "the Intel MPI benchmarks, 2021.10" },
    Suite { name: "osu", source: "the OSU micro-benchmarks, 7.4" },
    Suite { name: "ucx", source: "UCX 1.13.1, with its tests" },
];

impl Suite {
    /// The directory of its source, or a link to it; `None` where there is none.
    #[must_use]
    pub fn source(&self) -> Option<PathBuf> {
        self.source_directory().filter(|place| place.is_dir())
    }

    fn source_directory(&self) -> Option<PathBuf> {
        Some(cache::directory()?.join("sources").join(self.name))
    }

    /// The directory of what was built; `None` where nothing was.
    #[must_use]
    pub fn built(&self) -> Option<PathBuf> {
        let directory = cache::directory()?.join("suites").join(self.name);
        directory.is_dir().then_some(directory)
    }

    /// What is to be done where there is no source.
    #[must_use]
    pub fn missing(&self) -> String {
        let place = self.source_directory().unwrap_or_default();
        format!("needs {}: put its source, or a link to it, at {}", self.source, place.display())
    }
}
