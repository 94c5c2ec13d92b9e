//! Suites of tests and benchmarks that are no packages of Debian's: they are built of their authors' sources, of which
//! a copy must lie in the cache. A suite that the task does not build is put there built.

use std::path::PathBuf;

use crate::cache;

/// A suite, or other programs that are built of such a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name, and that of its directories: of its source in `sources/`, of its build in `suites/`.
    pub name: &'static str,
    /// The name and release of its source.
    pub source: &'static str,
    /// Whether it is built of that source; if not, its users build it by its authors' own build.
    pub is_built_here: bool,
}

/// The MPI program of ours, which checks the bytes that it moves: its file's name, and its text.
pub const MPI: (&str, &str) = ("mpi.c", include_str!("../../scripts/mpi.c"));
/// The compiler of the MPI program for a machine, its package, and the program's name in the machine's job, if this
/// machine could compile it.
pub const MPI_COMPILERS: [(&str, &str, &str); 2] =
    [("mpicc.openmpi", "libopenmpi-dev", "mpi"), ("mpicc.mpich", "libmpich-dev", "mpi-mpich")];

/// Those of which docs/applications-suites.md and docs/applications-rfaas.md have recipes.
pub const SUITES: [Suite; 5] = [
    Suite::new("fabtests", "libfabric 1.17.0, with its fabtests"),
    Suite::new("imb", "the Intel MPI benchmarks, 2021.10"),
    Suite::new("osu", "the OSU micro-benchmarks, 7.4"),
    Suite {
        name: "rfaas",
        source: "rFaaS (4d57ce0), built by its own CMake",
        is_built_here: false,
    },
    Suite::new("ucx", "UCX 1.13.1, with its tests"),
];

impl Suite {
    /// One that is built of its source.
    #[must_use]
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, is_built_here: true }
    }

    /// The directory of its source, or a link to it; `None` where there is none.
    #[must_use]
    pub fn source(&self) -> Option<PathBuf> {
        self.source_directory().filter(|place| place.is_dir())
    }

    fn source_directory(&self) -> Option<PathBuf> {
        Some(cache::directory()?.join("sources").join(self.name))
    }

    /// The directory of the build, or a link to it; `None` if there is none.
    #[must_use]
    pub fn built(&self) -> Option<PathBuf> {
        self.built_directory().filter(|place| place.is_dir())
    }

    fn built_directory(&self) -> Option<PathBuf> {
        Some(cache::directory()?.join("suites").join(self.name))
    }

    /// The advice for a suite without a source, or without a build from elsewhere.
    #[must_use]
    pub fn missing(&self) -> String {
        let (what, place) = match self.is_built_here {
            true => ("its source", self.source_directory()),
            false => ("that build", self.built_directory()),
        };
        let place = place.unwrap_or_default();
        format!("needs {}: put {what}, or a link to it, at {}", self.source, place.display())
    }
}
