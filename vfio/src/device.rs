//! An open PCI function: its regions, interrupts and configuration space.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use crate::address::PciAddress;
use crate::capability;
use crate::error::{Error, Result};
use crate::ffi;
use crate::iommu::Iommu;
use crate::sysfs::{Function, Sysfs, VFIO_PCI, file};

/// A region of a function: a BAR or the configuration space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Bytes.
    pub size: u64,
    /// Its offset in the function's descriptor.
    pub offset: u64,
    /// The parts of it that may be mapped: offset in the region and bytes, whole pages, within the region.
    pub areas: Vec<(u64, u64)>,
}

/// iommufd's node.
const IOMMUFD: &str = "/dev/iommu";

/// The way to a function that is bound to `vfio-pci`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// iommufd and the function's character device, which this is.
    Iommufd(PathBuf),
    /// A container and the node of the function's IOMMU group, which this is.
    Container(PathBuf),
}

impl Interface {
    /// iommufd where the kernel has it, with the function's character device; otherwise a container.
    ///
    /// # Errors
    /// [`Error::NoIommu`] when the function is in no IOMMU group.
    pub fn of(function: &Function) -> Result<Self> {
        Self::in_machine(Path::new("/"), function)
    }

    /// The same on the machine whose root directory is `root`; nodes are named as they are there.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn in_machine(root: &Path, function: &Function) -> Result<Self> {
        let group = function.iommu_group().ok_or(Error::NoIommu(function.address))?;
        let has_iommufd = root.join(IOMMUFD.trim_start_matches('/')).exists();
        Ok(match function.character_device().filter(|_| has_iommufd) {
            Some(name) => Self::Iommufd(Path::new("/dev/vfio/devices").join(name)),
            None => Self::Container(node_of(group)),
        })
    }

    /// The nodes that root alone may open, until others are allowed to.
    #[must_use]
    pub fn nodes(&self) -> Vec<&Path> {
        match self {
            Self::Iommufd(device) => vec![device, Path::new(IOMMUFD)],
            Self::Container(group) => vec![group],
        }
    }
}

/// The node of an IOMMU group.
fn node_of(group: u32) -> PathBuf {
    Path::new("/dev/vfio").join(group.to_string())
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iommufd(device) => write!(f, "iommufd and {}", device.display()),
            Self::Container(group) => write!(f, "a container and {}", group.display()),
        }
    }
}

/// An open function.
#[derive(Debug)]
pub struct Device {
    address: PciAddress,
    interface: Interface,
    file: File,
    iommu: Iommu,
    config: Region,
    // The group stays open as long as the device; a function opened by its own node has none.
    _group: Option<OwnedFd>,
}

impl Device {
    /// Opens a function that is bound to `vfio-pci`, by the [`Interface`] that it has.
    ///
    /// # Errors
    /// The reason and the mend: no IOMMU, another driver, a group that is not viable, in use, no
    /// permission.
    pub fn open(sysfs: &Sysfs, address: PciAddress) -> Result<Self> {
        let function = sysfs.function(address)?;
        let driver = function.driver();
        if driver.as_deref() != Some(VFIO_PCI) {
            return Err(Error::NotBound { address, driver });
        }
        let group = function.iommu_group().ok_or(Error::NoIommu(address))?;
        let interface = Interface::of(&function)?;
        let (fd, iommu, group) = match &interface {
            Interface::Iommufd(path) => {
                let (fd, iommu) = open_by_character_device(sysfs, address, group, path)?;
                (fd, iommu, None)
            }
            Interface::Container(path) => {
                let (fd, iommu, group) = open_by_group(sysfs, address, group, path)?;
                (fd, iommu, Some(group))
            }
        };
        let config = region(fd.as_fd(), vfio::VFIO_PCI_CONFIG_REGION_INDEX)?;
        Ok(Self { address, interface, file: File::from(fd), iommu, config, _group: group })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// How it was opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The IOMMU, which limits the memory that it reaches.
    #[must_use]
    pub fn iommu(&self) -> &Iommu {
        &self.iommu
    }

    /// The function's descriptor, of which regions are mapped.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A BAR, by its PCI number.
    ///
    /// # Errors
    /// [`Error::Os`] or [`Error::Malformed`] when the kernel does not tell.
    pub fn bar(&self, number: u8) -> Result<Region> {
        region(self.fd(), u32::from(number))
    }

    /// Reads from a region, past any mapping.
    ///
    /// # Errors
    /// When the range leaves the region, or the function has gone.
    pub fn read(&self, region: &Region, at: u64, into: &mut [u8]) -> Result<()> {
        let from = self.position(region, at, into.len())?;
        self.file.read_exact_at(into, from).map_err(|error| self.failed(error))
    }

    /// Writes to a region, past any mapping.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<()> {
        let to = self.position(region, at, bytes.len())?;
        self.file.write_all_at(bytes, to).map_err(|error| self.failed(error))
    }

    fn position(&self, region: &Region, at: u64, bytes: usize) -> Result<u64> {
        let end = u64::try_from(bytes).ok().and_then(|bytes| at.checked_add(bytes));
        end.filter(|end| *end <= region.size)
            .and_then(|_| region.offset.checked_add(at))
            .ok_or(Error::Malformed { what: "a region", why: "an access leaves it" })
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::File { path: self.address.to_string().into(), source }
    }

    /// Reads 16 bits of configuration space.
    ///
    /// # Errors
    /// When the offset leaves it, or the function has gone.
    pub fn read_config(&self, offset: u16) -> Result<u16> {
        let mut bytes = [0; 2];
        self.read(&self.config, offset.into(), &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Writes 16 bits of configuration space.
    ///
    /// # Errors
    /// As [`Self::read_config`].
    pub fn write_config(&self, offset: u16, value: u16) -> Result<()> {
        self.write(&self.config, offset.into(), &value.to_le_bytes())
    }

    /// MSI-X vectors it has.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not tell.
    pub fn vectors(&self) -> Result<u32> {
        ffi::irq_count(self.fd(), vfio::VFIO_PCI_MSIX_IRQ_INDEX)
            .map_err(Error::os("asking for a card's interrupts"))
    }

    /// Makes the MSI-X vectors, from 0 on, signal these event counters.
    ///
    /// # Errors
    /// [`Error::Os`] when the function has fewer, or the kernel no room.
    pub fn signal(&self, eventfds: &[BorrowedFd<'_>]) -> Result<()> {
        ffi::set_irqs(self.fd(), vfio::VFIO_PCI_MSIX_IRQ_INDEX, eventfds)
            .map_err(Error::os("setting a card's interrupts up"))
    }

    /// Makes the kernel signal this event counter when it wants the function back: it is to be taken out, or its driver
    /// is being unbound, and the kernel waits for the programs that have it open. Signalled again every ten seconds
    /// until then.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not do that.
    pub fn signal_request(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        ffi::set_irqs(self.fd(), vfio::VFIO_PCI_REQ_IRQ_INDEX, &[eventfd])
            .map_err(Error::os("asking to be told when the kernel wants a card back"))
    }

    /// Resets the function; its registers are as after power-on, its mappings of memory stay.
    ///
    /// # Errors
    /// [`Error::Os`] when it cannot be reset by itself.
    pub fn reset(&self) -> Result<()> {
        ffi::reset(self.fd()).map_err(Error::os("resetting a card"))
    }
}

fn open_by_character_device(
    sysfs: &Sysfs,
    address: PciAddress,
    group: u32,
    path: &Path,
) -> Result<(OwnedFd, Iommu)> {
    let device = open(address, path)?;
    let iommu = open(address, Path::new(IOMMUFD))?;
    ffi::bind_iommufd(device.as_fd(), iommu.as_fd())
        .map_err(|errno| not_given_to_iommufd(sysfs, address, group, path, errno))?;
    let ioas = ffi::alloc_ioas(iommu.as_fd()).map_err(Error::os("making an I/O address space"))?;
    ffi::attach(device.as_fd(), ioas)
        .map_err(Error::os("attaching a card to its address space"))?;
    Ok((device, Iommu::Iommufd { fd: iommu, ioas }))
}

/// Why iommufd does not take a function: the error number leaves it open, the kernel's files about the
/// function's group tell.
fn not_given_to_iommufd(
    sysfs: &Sysfs,
    address: PciAddress,
    group: u32,
    path: &Path,
    errno: Errno,
) -> Error {
    let others = sysfs.in_the_way(group).unwrap_or_default();
    match errno {
        // Another descriptor of the function is bound.
        Errno::EINVAL => Error::InUse { address, path: path.to_owned() },
        // The group belongs to a driver of the kernel's, or to a process that has its node open.
        Errno::EPERM | Errno::EBUSY if !others.is_empty() => {
            Error::NotViable { address, group, others }
        }
        Errno::EBUSY => Error::InUse { address, path: node_of(group) },
        // It may belong to a process that has another function of it open, if one can be opened.
        Errno::EPERM => match sysfs.companion(address, group) {
            Some(companion) => Error::InUse { address: companion, path: node_of(group) },
            None => Error::UnsafeInterrupts { address, module: "iommufd" },
        },
        errno => Error::Os { what: "binding a card to iommufd", errno },
    }
}

fn open_by_group(
    sysfs: &Sysfs,
    address: PciAddress,
    number: u32,
    path: &Path,
) -> Result<(OwnedFd, Iommu, OwnedFd)> {
    let group = open(address, path)?;
    let viable = ffi::is_viable(group.as_fd()).map_err(Error::os("asking for a group's state"))?;
    if !viable {
        return Err(Error::NotViable { address, group: number, others: sysfs.in_the_way(number)? });
    }
    let container = open(address, Path::new("/dev/vfio/vfio"))?;
    let version = ffi::api_version(container.as_fd()).map_err(Error::os("asking for VFIO"))?;
    if version != 0 || !ffi::has_extension(container.as_fd(), vfio::VFIO_TYPE1v2_IOMMU) {
        return Err(Error::Lacks(
            "the kernel has no IOMMU driver for VFIO; load it with: modprobe vfio_iommu_type1"
                .into(),
        ));
    }
    ffi::set_container(group.as_fd(), container.as_fd())
        .map_err(Error::os("putting a group into a container"))?;
    ffi::set_iommu(container.as_fd(), vfio::VFIO_TYPE1v2_IOMMU).map_err(|errno| match errno {
        Errno::EPERM => Error::UnsafeInterrupts { address, module: "vfio_iommu_type1" },
        errno => Error::Os { what: "setting a container's IOMMU up", errno },
    })?;
    let device = ffi::device_of_group(group.as_fd(), &address.to_string())
        .map_err(Error::os("opening a card by its group"))?;
    Ok((device, Iommu::Container(container), group))
}

fn open(address: PciAddress, path: &Path) -> Result<OwnedFd> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map(OwnedFd::from).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Error::NoPermission { path: path.to_owned() },
        _ if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
            Error::InUse { address, path: path.to_owned() }
        }
        _ => file(path)(error),
    })
}

fn region(device: BorrowedFd<'_>, index: u32) -> Result<Region> {
    let (info, answer) =
        ffi::region_info(device, index).map_err(Error::os("asking for a card's regions"))?;
    let mappable = info.flags & vfio::VFIO_REGION_INFO_FLAG_MMAP != 0;
    let chain =
        if info.flags & vfio::VFIO_REGION_INFO_FLAG_CAPS != 0 { info.cap_offset } else { 0 };
    let areas = if mappable { areas(&answer, chain, info.size)? } else { Vec::new() };
    Ok(Region { size: info.size, offset: info.offset, areas })
}

/// The parts of a region of `size` bytes that may be mapped: those of its sparse capability, or all of it.
fn areas(answer: &[u8], chain: u32, size: u64) -> Result<Vec<(u64, u64)>> {
    const PAGE: u64 = 4096;
    let capabilities = capability::chain(answer, chain)?;
    let sparse =
        capabilities.iter().find(|it| u32::from(it.id) == vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    let mut areas = match sparse {
        Some(capability) => capability.sparse_areas()?,
        None => vec![(0, size)],
    };
    areas.retain(|(_, bytes)| *bytes > 0);
    for (offset, bytes) in &areas {
        let inside = offset.checked_add(*bytes).is_some_and(|end| end <= size);
        if !inside || offset % PAGE != 0 || bytes % PAGE != 0 {
            return Err(Error::Malformed {
                what: "a region",
                why: "an area to be mapped is not whole pages within it",
            });
        }
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn sparse(listed: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(u32::try_from(listed.len()).unwrap().to_ne_bytes());
        bytes.extend([0; 4]);
        listed.iter().for_each(|(offset, size)| {
            bytes.extend(offset.to_ne_bytes());
            bytes.extend(size.to_ne_bytes());
        });
        bytes
    }

    #[test]
    fn a_region_without_a_sparse_list_may_be_mapped_whole() {
        assert_eq!(areas(&[0; 32], 0, 1 << 20).unwrap(), [(0, 1 << 20)]);
    }

    #[test]
    fn a_sparse_list_is_taken_as_it_is_and_checked() {
        let answer = sparse(&[(0x1000, 0x2000), (0x8000, 0), (0xf000, 0x1000)]);
        assert_eq!(areas(&answer, 32, 0x10000).unwrap(), [(0x1000, 0x2000), (0xf000, 0x1000)]);
        for bad in [(0xf000, 0x2000), (0x1001, 0x1000), (0x1000, 0x800), (u64::MAX - 4095, 8192)] {
            let refused = areas(&sparse(&[bad]), 32, 0x10000).unwrap_err().to_string();
            assert!(refused.contains("whole pages"), "{refused}");
        }
    }

    #[test]
    fn a_function_without_a_character_device_is_reached_by_its_group() {
        let (_home, sysfs) = crate::sysfs::tests::tree();
        let function = sysfs.function("3b:00.0".parse().unwrap()).unwrap();
        let interface = Interface::of(&function).unwrap();
        assert_eq!(interface.to_string(), "a container and /dev/vfio/7");
        assert_eq!(interface.nodes(), [Path::new("/dev/vfio/7")]);
        std::fs::remove_file(function.file("iommu_group")).unwrap();
        assert!(matches!(Interface::of(&function), Err(Error::NoIommu(_))));
    }

    #[test]
    fn why_iommufd_refuses_is_told_by_what_else_is_in_the_group() {
        let (home, sysfs) = crate::sysfs::tests::tree();
        let address = "3b:00.0".parse().unwrap();
        let path = Path::new("/dev/vfio/devices/vfio0");
        let why = |errno| not_given_to_iommufd(&sysfs, address, 7, path, errno).to_string();
        assert!(why(Errno::EINVAL).contains("another process has /dev/vfio/devices/vfio0 open"));
        assert!(why(Errno::EBUSY).contains("not viable: drivers of the kernel's use 0000:3b:00.1"));
        assert!(why(Errno::EPERM).contains("not viable: drivers of the kernel's use 0000:3b:00.1"));
        let driver = home.path().join("bus/pci/devices/0000:3b:00.1/driver");
        std::fs::remove_file(&driver).unwrap();
        assert!(why(Errno::EBUSY).contains("another process has /dev/vfio/7 open"));
        assert!(why(Errno::EPERM).contains("/sys/module/iommufd/parameters/allow_unsafe"));
        symlink(home.path().join("bus/pci/drivers/vfio-pci"), driver).unwrap();
        assert!(why(Errno::EPERM).contains("0000:3b:00.1 is in use"));
        assert!(why(Errno::ENOMEM).contains("ENOMEM"));
    }

    #[test]
    fn a_function_that_is_not_with_vfio_pci_is_not_opened() {
        let (_home, sysfs) = crate::sysfs::tests::tree();
        let text = |at: &str| Device::open(&sysfs, at.parse().unwrap()).unwrap_err().to_string();
        assert!(
            text("3b:00.0").contains("no driver, not to vfio-pci: run balboa bind 0000:3b:00.0")
        );
        assert!(text("3b:00.1").contains("bound to e1000e"));
    }
}
