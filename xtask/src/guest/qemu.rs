//! A QEMU with vfio-user, beside the host's.

use std::path::PathBuf;

use anyhow::Result;
use harness::process::Task;
use terminal::report;

use crate::apt::Apt;
use crate::cache::Cache;

/// Where the first QEMU with vfio-user-pci is; the mirror keeps only its current version.
const SUITE: &str = "trixie-backports";
const PACKAGE: &str = "qemu-system-x86";

/// An unpacked QEMU, its libraries and its loader with it.
#[derive(Clone, Debug)]
pub struct Qemu {
    root: PathBuf,
}

impl Qemu {
    /// The QEMU that is kept, if one is.
    pub fn kept(cache: &Cache) -> Option<Self> {
        cache.kept("qemu", SUITE).map(|root| Self { root })
    }

    /// Fetches QEMU.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn fetch(cache: &Cache, apt: &Apt) -> Result<Self> {
        report!("fetching {PACKAGE} of {SUITE}");
        let fill = |root: &std::path::Path| {
            apt.unpack_with_dependencies(SUITE, &[PACKAGE], root)?;
            Self { root: root.to_owned() }.task().arg("--version").run()?.success().map(drop)
        };
        cache.keep("qemu", SUITE, fill).map(|root| Self { root })
    }

    /// `qemu-system-x86_64`, by the loader of its own release, with its firmware.
    pub fn task(&self) -> Task {
        let share = |name: &str| self.root.join("usr/share").join(name);
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        Task::new(libraries.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.root.join("usr/bin/qemu-system-x86_64"))
            .arg("-L")
            .arg(share("qemu"))
            .arg("-L")
            .arg(share("seabios"))
    }
}
