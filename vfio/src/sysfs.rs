//! Attributes of a PCI function that the kernel shows before it is opened.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fpga_regs::coyote::pci;

use crate::address::PciAddress;
use crate::error::{Error, Result};

/// The driver for programs in user space.
pub const VFIO_PCI: &str = "vfio-pci";

/// The kernel's view of devices, usually `/sys`.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// A tree elsewhere.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A function that is there.
    ///
    /// # Errors
    /// [`Error::NoFunction`] when it is not.
    pub fn function(&self, address: PciAddress) -> Result<Function> {
        let path = self.root.join("bus/pci/devices").join(address.to_string());
        if !path.exists() {
            return Err(Error::NoFunction(address));
        }
        Ok(Function { address, path })
    }

    /// The functions that call themselves a card of ours, in order of their addresses.
    #[must_use]
    pub fn cards(&self) -> Vec<Function> {
        let there = names(&self.root.join("bus/pci/devices")).unwrap_or_default();
        let mut addresses: Vec<PciAddress> =
            there.iter().filter_map(|name| name.parse().ok()).collect();
        addresses.sort_unstable();
        let functions = addresses.into_iter().filter_map(|address| self.function(address).ok());
        functions.filter(|function| function.must_be_a_card().is_ok()).collect()
    }

    /// Whether the kernel has an IOMMU at work.
    #[must_use]
    pub fn has_iommu(&self) -> bool {
        names(&self.root.join("class/iommu")).is_ok_and(|names| !names.is_empty())
    }

    /// The directory of a PCI driver, if the kernel has it.
    #[must_use]
    pub fn driver(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join("bus/pci/drivers").join(name);
        path.exists().then_some(path)
    }

    /// The file that makes the kernel look for a function's driver again.
    #[must_use]
    pub fn drivers_probe(&self) -> PathBuf {
        self.root.join("bus/pci/drivers_probe")
    }

    /// The functions of an IOMMU group, in order.
    ///
    /// # Errors
    /// [`Error::File`] when the group cannot be listed.
    pub fn group(&self, group: u32) -> Result<Vec<PciAddress>> {
        let path = self.root.join(format!("kernel/iommu_groups/{group}/devices"));
        let mut members: Vec<PciAddress> =
            names(&path)?.iter().filter_map(|name| name.parse().ok()).collect();
        members.sort_unstable();
        Ok(members)
    }

    /// The functions of a group that keep it from being used: those with drivers of the kernel's.
    ///
    /// # Errors
    /// [`Error::File`] when the group cannot be listed.
    pub fn in_the_way(&self, group: u32) -> Result<Vec<PciAddress>> {
        // Bridges of PCI Express stay with their driver, and others may be parked.
        const HARMLESS: [&str; 3] = [VFIO_PCI, "pci-stub", "pcieport"];
        let blocks = |address: &PciAddress| {
            let driver = self.function(*address).ok().and_then(|function| function.driver());
            driver.is_some_and(|driver| !HARMLESS.contains(&driver.as_str()))
        };
        Ok(self.group(group)?.into_iter().filter(blocks).collect())
    }

    /// Another function of a group that programs can open: one that is with `vfio-pci` too.
    #[must_use]
    pub fn companion(&self, address: PciAddress, group: u32) -> Option<PciAddress> {
        let with_vfio = |other: &PciAddress| {
            let driver = self.function(*other).ok().and_then(|function| function.driver());
            *other != address && driver.as_deref() == Some(VFIO_PCI)
        };
        self.group(group).ok()?.into_iter().find(with_vfio)
    }
}

/// A PCI function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its address.
    pub address: PciAddress,
    path: PathBuf,
}

impl Function {
    /// Its vendor's number.
    ///
    /// # Errors
    /// [`Error::File`] when the file is missing or holds no number.
    pub fn vendor(&self) -> Result<u16> {
        self.number("vendor")
    }

    /// Its device number.
    ///
    /// # Errors
    /// As [`Self::vendor`].
    pub fn device(&self) -> Result<u16> {
        self.number("device")
    }

    /// Sees to it that it calls itself a card of ours, before anything of it is touched.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] when it does not.
    pub fn must_be_a_card(&self) -> Result<()> {
        let found = (self.vendor()?, self.device()?);
        if found == (pci::VENDOR_ID, pci::DEVICE_ID) {
            return Ok(());
        }
        Err(Error::OtherDevice { address: self.address, vendor: found.0, device: found.1 })
    }

    fn number(&self, name: &str) -> Result<u16> {
        let path = self.path.join(name);
        let text = fs::read_to_string(&path).map_err(file(&path))?;
        let digits = text.trim().trim_start_matches("0x");
        u16::from_str_radix(digits, 16)
            .map_err(|error| file(&path)(std::io::Error::new(ErrorKind::InvalidData, error)))
    }

    /// The driver it is bound to.
    #[must_use]
    pub fn driver(&self) -> Option<String> {
        self.link("driver")
    }

    /// Its IOMMU group.
    #[must_use]
    pub fn iommu_group(&self) -> Option<u32> {
        self.link("iommu_group")?.parse().ok()
    }

    /// The name of its VFIO character device, `vfioN`, where the kernel makes one.
    #[must_use]
    pub fn character_device(&self) -> Option<String> {
        let names = names(&self.path.join("vfio-dev")).ok()?;
        names.into_iter().find(|name| name.starts_with("vfio"))
    }

    /// A file of it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The last part of the target of a link of it.
    fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.path.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(file(directory))? {
        let entry = entry.map_err(file(directory))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// The error of a file.
pub(crate) fn file(path: &Path) -> impl Fn(std::io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::File { path: path.clone(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree with a card at 0000:3b:00.0 and a network interface beside it in group 7.
    pub(crate) fn tree() -> (tempfile::TempDir, Sysfs) {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        for driver in ["vfio-pci", "e1000e"] {
            let path = root.join("bus/pci/drivers").join(driver);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("unbind"), "").unwrap();
        }
        fs::write(root.join("bus/pci/drivers_probe"), "").unwrap();
        fs::create_dir_all(root.join("class/iommu/dmar0")).unwrap();
        for (address, device, driver) in
            [("0000:3b:00.0", "0x903f\n", None), ("0000:3b:00.1", "0x10d3\n", Some("e1000e"))]
        {
            let path = root.join("bus/pci/devices").join(address);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("vendor"), "0x10ee\n").unwrap();
            fs::write(path.join("device"), device).unwrap();
            fs::write(path.join("driver_override"), "(null)\n").unwrap();
            let group = root.join("kernel/iommu_groups/7");
            fs::create_dir_all(group.join("devices")).unwrap();
            symlink(&path, group.join("devices").join(address)).unwrap();
            symlink(&group, path.join("iommu_group")).unwrap();
            if let Some(driver) = driver {
                symlink(root.join("bus/pci/drivers").join(driver), path.join("driver")).unwrap();
            }
        }
        let sysfs = Sysfs::at(root);
        (home, sysfs)
    }

    #[test]
    fn a_function_tells_what_it_is_and_whose() {
        let (_home, sysfs) = tree();
        let card = sysfs.function("3b:00.0".parse().unwrap()).unwrap();
        assert_eq!((card.vendor().unwrap(), card.device().unwrap()), (0x10ee, 0x903f));
        assert_eq!((card.driver(), card.iommu_group()), (None, Some(7)));
        assert_eq!(card.character_device(), None);
        fs::create_dir_all(card.file("vfio-dev/vfio3")).unwrap();
        assert_eq!(card.character_device().as_deref(), Some("vfio3"));
        card.must_be_a_card().unwrap();
        let cards: Vec<_> = sysfs.cards().into_iter().map(|card| card.address).collect();
        assert_eq!(cards, [card.address]);
        let neighbour = sysfs.function("3b:00.1".parse().unwrap()).unwrap();
        let other = neighbour.must_be_a_card().unwrap_err().to_string();
        assert!(other.contains("10ee:10d3, not a Coyote card (10ee:903f)"), "{other}");
        let missing = sysfs.function("01:00.0".parse().unwrap()).unwrap_err().to_string();
        assert!(missing.contains("0000:01:00.0"), "{missing}");
    }

    #[test]
    fn those_of_a_group_that_the_kernel_uses_are_in_the_way() {
        let (_home, sysfs) = tree();
        let texts =
            |list: Vec<PciAddress>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(sysfs.group(7).unwrap()), ["0000:3b:00.0", "0000:3b:00.1"]);
        assert_eq!(texts(sysfs.in_the_way(7).unwrap()), ["0000:3b:00.1"]);
        assert!(sysfs.group(8).is_err());
    }

    #[test]
    fn a_number_that_is_none_is_told_with_its_file() {
        let (_home, sysfs) = tree();
        let card = sysfs.function("3b:00.0".parse().unwrap()).unwrap();
        fs::write(card.file("vendor"), "0xnothing\n").unwrap();
        assert!(card.vendor().unwrap_err().to_string().contains("vendor"));
    }
}
