//! Debian's kernels, unpacked and not installed, with the modules that the guest loads.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use harness::process::Task;
use harness::vm::{Hardware, Kernel};
use terminal::report;

use crate::apt::Apt;
use crate::cache::Cache;

/// The settings of a kernel built here, beside the smallest configuration. No modules: nothing needs be loaded.
pub const CONFIG: &str = include_str!("kernel.config");
/// Modules loaded at boot, in this order, each after those it depends on.
pub const AT_BOOT: &[&str] = &["virtio_pci", "9pnet_virtio", "9p"];
/// Modules that cases load when they want them.
pub const ON_REQUEST: &[&str] = &[
    "dummy",
    "ib_core",
    "ib_uverbs",
    "rdma_ucm",
    "crc32_generic",
    "rdma_rxe",
    "tun",
    "overlay",
    "sch_netem",
    "sch_tbf",
    "veth",
    "virtio_net",
    "vfio_iommu_type1",
    "vfio-pci",
];

/// Modules that not every kernel has; they come first, for a device behind a paravirtual IOMMU waits for its driver.
const OPTIONAL: &[&str] = &["virtio_iommu"];

/// A kernel that the guest can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Debian 12's.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's.
    #[value(name = "6.12")]
    V6_12,
    /// The one that `cargo xtask guest kernel` builds.
    #[value(name = "iommufd")]
    Iommufd,
}

impl Version {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Iommufd => "iommufd",
        }
    }

    /// The properties that its cases ask for.
    pub fn kernel(self) -> Kernel<'static> {
        match self {
            Self::V6_1 => Kernel { release: "6.1", iommufd: false },
            Self::V6_12 => Kernel { release: "6.12", iommufd: false },
            Self::Iommufd => Kernel { release: "6.12", iommufd: true },
        }
    }

    /// The hardware that its machines can have: its drivers say.
    pub fn hardware(self) -> &'static [Hardware] {
        match self {
            // It has no driver for the paravirtual IOMMU.
            Self::V6_1 => &[Hardware::Plain, Hardware::IntelIommu, Hardware::IntelIommuRxe],
            Self::V6_12 => &Hardware::ALL,
            // It has no rxe.
            Self::Iommufd => &[Hardware::Plain, Hardware::IntelIommu, Hardware::VirtioIommu],
        }
    }

    /// The name it is kept under.
    fn directory(self) -> String {
        format!("linux-{}", self.name())
    }

    /// The sources that a kept kernel must have been made from.
    fn key(self) -> String {
        match self {
            Self::V6_1 | Self::V6_12 => [OPTIONAL, AT_BOOT, ON_REQUEST].concat().join(" "),
            Self::Iommufd => CONFIG.to_owned(),
        }
    }
}

/// A module, ready to be loaded.
#[derive(Debug)]
pub struct Module {
    /// Its name, with `_` for `-`.
    pub name: String,
    /// The names of those it depends on.
    pub needs: Vec<String>,
    /// Its file.
    pub content: Vec<u8>,
}

/// A kernel and its modules.
#[derive(Clone, Debug)]
pub struct Linux {
    root: PathBuf,
}

impl Linux {
    /// The kernel that is kept, if it is.
    pub fn kept(cache: &Cache, version: Version) -> Option<Self> {
        cache.kept(&version.directory(), &version.key()).map(|root| Self { root })
    }

    /// Fetches a kernel of Debian's.
    ///
    /// # Errors
    /// When it cannot be fetched, or lacks a module.
    pub fn fetch(cache: &Cache, apt: &Apt, version: Version) -> Result<Self> {
        let meta = apt.show("linux-image-amd64")?;
        let package = image_among(&meta, version.name()).with_context(|| {
            format!("the mirror has no linux-image-amd64 of version {}", version.name())
        })?;
        report!("fetching {package}");
        let fill = |root: &Path| {
            let unpacked =
                tempfile::Builder::new().prefix("linux-").tempdir_in(cache.place("."))?;
            apt.unpack(&package, unpacked.path())?;
            keep_what_is_needed(unpacked.path(), root)
        };
        cache.keep(&version.directory(), &version.key(), fill).map(|root| Self { root })
    }

    /// Keeps a kernel that was built here, with everything built in.
    ///
    /// # Errors
    /// When there is no room.
    pub fn keep_built(cache: &Cache, image: &Path) -> Result<Self> {
        let version = Version::Iommufd;
        let fill = |root: &Path| {
            fs::copy(image, root.join("vmlinuz"))?;
            fs::create_dir(root.join("modules"))?;
            fs::write(root.join("order"), "")?;
            Ok(())
        };
        cache.keep(&version.directory(), &version.key(), fill).map(|root| Self { root })
    }

    /// The kernel image.
    pub fn image(&self) -> PathBuf {
        self.root.join("vmlinuz")
    }

    /// All modules, each after those it depends on.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn modules(&self) -> Result<Vec<Module>> {
        let order = fs::read_to_string(self.root.join("order"))?;
        let read = |name: &str| {
            let path = self.root.join("modules").join(format!("{name}.ko"));
            let content = fs::read(&path).with_context(|| path.display().to_string())?;
            let needs = dependencies(&content);
            Ok(Module { name: name.to_owned(), needs, content })
        };
        order.lines().map(read).collect()
    }
}

/// The package of the kernel of a version: `linux-image-6.1.0-9-amd64=6.1.27-1` for `6.1`.
fn image_among(shown: &str, version: &str) -> Option<String> {
    let stanza = shown.split("\n\n").find(|stanza| {
        let line = stanza.lines().find_map(|line| line.strip_prefix("Version: "));
        line.is_some_and(|it| it.strip_prefix(version).is_some_and(|rest| rest.starts_with('.')))
    })?;
    let depends = stanza.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let image = depends.split(", ").find(|it| it.starts_with("linux-image-"))?;
    let (name, version) = image.split_once(" (= ")?;
    Some(format!("{name}={}", version.trim_end_matches(')')))
}

/// Copies the image and the modules that the guest loads, uncompressed, out of a package.
fn keep_what_is_needed(package: &Path, root: &Path) -> Result<()> {
    let boot = fs::read_dir(package.join("boot"))?.flatten().map(|entry| entry.path());
    let is_image = |path: &PathBuf| path.file_name().is_some_and(|it| named(it, "vmlinuz-"));
    let image = boot.into_iter().find(is_image).context("the package has no boot/vmlinuz")?;
    fs::copy(image, root.join("vmlinuz"))?;

    let known = ["lib/modules", "usr/lib/modules"].map(|it| package.join(it));
    let all = known.iter().find(|it| it.is_dir()).context("the package has no modules")?;
    let mut library = Library::default();
    library.add(all)?;
    let kept = root.join("modules");
    fs::create_dir(&kept)?;
    let mut order = Vec::new();
    let there = OPTIONAL.iter().filter(|name| library.files.contains_key(**name));
    for name in there.chain(AT_BOOT).chain(ON_REQUEST) {
        library.load(name, &kept, &mut order)?;
    }
    fs::write(root.join("order"), order.join("\n"))?;
    Ok(())
}

fn named(name: &std::ffi::OsStr, prefix: &str) -> bool {
    name.to_string_lossy().starts_with(prefix)
}

/// The modules of a kernel package, by name with `_` for `-`.
#[derive(Debug, Default)]
struct Library {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
}

impl Library {
    fn add(&mut self, directory: &Path) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                self.add(&path)?;
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == "modules.builtin" {
                let list = fs::read_to_string(&path)?;
                self.builtin.extend(list.lines().filter_map(module_name));
            } else if let Some(name) = module_name(&name) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// Writes a module and those it depends on to `kept`, and adds their names to `order`.
    fn load(&self, name: &str, kept: &Path, order: &mut Vec<String>) -> Result<()> {
        let name = name.replace('-', "_");
        if order.contains(&name) || self.builtin.contains(&name) {
            return Ok(());
        }
        let Some(path) = self.files.get(&name) else { bail!("the kernel has no module {name}") };
        let file = kept.join(format!("{name}.ko"));
        if path.extension().is_some_and(|it| it == "xz") {
            let compressed = kept.join(format!("{name}.ko.xz"));
            fs::copy(path, &compressed)?;
            let expand = Task::new("xz").arg("-d").arg(&compressed).run()?;
            expand.success().context("needs xz: apt-get install xz-utils")?;
        } else {
            fs::copy(path, &file)?;
        }
        for needed in dependencies(&fs::read(&file)?) {
            self.load(&needed, kept, order)?;
        }
        order.push(name);
        Ok(())
    }
}

/// The module's name in a path that ends in `.ko` or `.ko.xz`.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let name = file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// The modules that one depends on, from the `depends=` of its `.modinfo` section.
fn dependencies(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(FIELD.len()).position(|it| it == FIELD) else {
        return Vec::new();
    };
    let list = module.get(at + FIELD.len()..).unwrap_or_default();
    let list = list.split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
Package: linux-image-amd64
Version: 6.12.107-1
Depends: linux-base, linux-image-6.12.107+deb13-amd64 (= 6.12.107-1)

Package: linux-image-amd64
Version: 6.1.176-1
Depends: linux-image-6.1.0-50-amd64 (= 6.1.176-1)
";

    #[test]
    fn the_kernel_of_a_version_is_found_in_its_metapackage() {
        let found = |version| image_among(SHOWN, version);
        assert_eq!(found("6.1").as_deref(), Some("linux-image-6.1.0-50-amd64=6.1.176-1"));
        assert_eq!(found("6.12").as_deref(), Some("linux-image-6.12.107+deb13-amd64=6.12.107-1"));
        assert_eq!(found("6"), None.or(found("6.12")));
        assert_eq!(found("6.2"), None);
    }

    #[test]
    fn a_modules_dependencies_are_in_its_modinfo() {
        let module = b"\x7fELF\0license=GPL\0depends=vfio-pci-core,vfio\0name=vfio_pci\0";
        assert_eq!(dependencies(module), ["vfio_pci_core", "vfio"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"").is_empty());
        assert_eq!(module_name("kernel/fs/a-b.ko.xz").as_deref(), Some("a_b"));
        assert_eq!(module_name("modules.order"), None);
    }
}
