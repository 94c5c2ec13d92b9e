//! Giving a function to `vfio-pci`, and back to the driver that it would have by itself.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use crate::address::PciAddress;
use crate::error::{Error, Result};
use crate::sysfs::{Sysfs, VFIO_PCI, file};

/// The text that empties a function's `driver_override`: an empty line.
const NO_OVERRIDE: &str = "\n";

/// Binds a function to `vfio-pci`, by its `driver_override`, and returns its IOMMU group.
///
/// A function that is bound already stays so; one that cannot be bound gets its own driver back. The
/// group is looked at last: some IOMMUs make it when a driver comes.
///
/// # Errors
/// The missing condition, and the mend; [`Error::OtherDevice`] for a device that is no card, which keeps its driver.
pub fn bind(sysfs: &Sysfs, address: PciAddress) -> Result<u32> {
    let function = sysfs.function(address)?;
    function.must_be_a_card()?;
    if !sysfs.has_iommu() {
        return Err(Error::NoIommu(address));
    }
    if sysfs.driver(VFIO_PCI).is_none() {
        return Err(Error::NoDriver(VFIO_PCI));
    }
    let driver = function.driver();
    if driver.as_deref() != Some(VFIO_PCI) {
        write(&function.file("driver_override"), VFIO_PCI)?;
        if driver.is_some() {
            write(&function.file("driver/unbind"), &address.to_string())?;
        }
        write(&sysfs.drivers_probe(), &address.to_string())?;
    }
    let group = function.iommu_group();
    match function.driver() {
        Some(driver) if driver == VFIO_PCI => group.ok_or(Error::NoIommu(address)),
        _ => {
            write(&function.file("driver_override"), NO_OVERRIDE)?;
            write(&sysfs.drivers_probe(), &address.to_string())?;
            let why = "vfio-pci did not take it; the kernel's log (dmesg) says why";
            group.ok_or(Error::NoIommu(address))?;
            Err(Error::NotTaken { address, driver: function.driver(), why })
        }
    }
}

/// Takes a function from `vfio-pci` and lets the kernel find its driver; returns that driver.
///
/// # Errors
/// [`Error::NotBound`] when it is not with `vfio-pci`, or the failed write.
pub fn unbind(sysfs: &Sysfs, address: PciAddress) -> Result<Option<String>> {
    let function = sysfs.function(address)?;
    let driver = function.driver();
    if driver.as_deref() != Some(VFIO_PCI) {
        return Err(Error::NotTaken {
            address,
            driver,
            why: "it is not with vfio-pci, so there is nothing to undo",
        });
    }
    write(&function.file("driver_override"), NO_OVERRIDE)?;
    write(&function.file("driver/unbind"), &address.to_string())?;
    write(&sysfs.drivers_probe(), &address.to_string())?;
    Ok(function.driver())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let open = File::options().write(true).open(path);
    match open.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Error::File {
            path: path.to_owned(),
            source: std::io::Error::new(error.kind(), "only root may write it: run this as root"),
        }),
        other => other.map_err(file(path)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sysfs::tests::tree;

    #[test]
    fn binding_writes_what_the_kernel_wants_in_order() {
        let (home, sysfs) = tree();
        let address: PciAddress = "3b:00.1".parse().unwrap();
        let other = bind(&sysfs, address).unwrap_err().to_string();
        assert!(other.contains("not a Coyote card"), "{other}");
        let unbind = home.path().join("bus/pci/drivers/e1000e/unbind");
        assert_eq!(fs::read_to_string(unbind).unwrap(), "", "it was taken from its driver");
        fs::write(home.path().join("bus/pci/devices/0000:3b:00.1/device"), "0x903f\n").unwrap();
        // A tree of files has no kernel that would act.
        let refused = bind(&sysfs, address).unwrap_err().to_string();
        assert!(refused.contains("stays with e1000e") && refused.contains("dmesg"), "{refused}");
        let read = |path: &str| fs::read_to_string(home.path().join("bus/pci").join(path)).unwrap();
        assert!(read("devices/0000:3b:00.1/driver_override").ends_with("fio-pci"));
        assert_eq!(read("drivers/e1000e/unbind"), "0000:3b:00.1");
        assert_eq!(read("drivers_probe"), "0000:3b:00.1");
    }

    #[test]
    fn a_function_of_vfio_pci_is_left_alone_and_can_be_given_back() {
        let (home, sysfs) = tree();
        let address: PciAddress = "3b:00.0".parse().unwrap();
        let refused = unbind(&sysfs, address).unwrap_err().to_string();
        assert!(refused.contains("nothing to undo"), "{refused}");
        let card = home.path().join("bus/pci/devices/0000:3b:00.0");
        symlink(home.path().join("bus/pci/drivers/vfio-pci"), card.join("driver")).unwrap();
        assert_eq!(bind(&sysfs, address).unwrap(), 7);
        unbind(&sysfs, address).unwrap();
        assert!(fs::read_to_string(card.join("driver_override")).unwrap().starts_with('\n'));
    }

    #[test]
    fn what_is_missing_is_named_with_its_mend() {
        let (home, sysfs) = tree();
        let address: PciAddress = "3b:00.0".parse().unwrap();
        fs::remove_dir_all(home.path().join("bus/pci/drivers/vfio-pci")).unwrap();
        assert!(bind(&sysfs, address).unwrap_err().to_string().contains("modprobe vfio-pci"));
        fs::remove_dir_all(home.path().join("class/iommu")).unwrap();
        assert!(bind(&sysfs, address).unwrap_err().to_string().contains("intel_iommu=on"));
        let nowhere = bind(&sysfs, "01:00.0".parse().unwrap()).unwrap_err().to_string();
        assert!(nowhere.contains("no PCI function at 0000:01:00.0"), "{nowhere}");
    }
}
