//! Errors, in sentences that name the function, the reason and the mend.

use std::path::PathBuf;

use fpga_regs::coyote::pci;
use nix::errno::Errno;

use crate::address::PciAddress;

/// An outcome of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a function cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No function has this address.
    #[error(
        "there is no PCI function at {0}; lspci -D lists them, and a rescan of the bus (echo 1 > /sys/bus/pci/rescan) finds those that have come"
    )]
    NoFunction(PciAddress),
    /// The function is another device.
    #[error(
        "{address} is {vendor:04x}:{device:04x}, not a Coyote card ({:04x}:{:04x}); lspci -D -d {:04x}: lists those that may be",
        pci::VENDOR_ID,
        pci::DEVICE_ID,
        pci::VENDOR_ID
    )]
    OtherDevice {
        /// The function.
        address: PciAddress,
        /// Its vendor.
        vendor: u16,
        /// Its device number.
        device: u16,
    },
    /// The kernel has put the function into no IOMMU group.
    #[error(
        "{0} is behind no IOMMU: switch VT-d or AMD-Vi on in the firmware, and boot with intel_iommu=on on an Intel machine (AMD's is on by default, unless amd_iommu=off or iommu=off was given)"
    )]
    NoIommu(PciAddress),
    /// The function is bound to another driver, or to none.
    #[error("{address} is bound to {}, not to vfio-pci: run balboa bind {address} as root", driver.as_deref().unwrap_or("no driver"))]
    NotBound {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
    },
    /// `vfio-pci` did not take the function.
    #[error("{address} stays with {}: {why}", driver.as_deref().unwrap_or("no driver"))]
    NotTaken {
        /// The function.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
        /// The property to look at.
        why: &'static str,
    },
    /// `vfio-pci` is not there.
    #[error("the kernel has no driver {0}; load it with: modprobe {0}")]
    NoDriver(&'static str),
    /// Other functions of the group are in use by the kernel.
    #[error(
        "the IOMMU group {group} of {address} is not viable: drivers of the kernel's use {} of it; take each from its driver: echo ADDRESS > /sys/bus/pci/devices/ADDRESS/driver/unbind",
        list(others)
    )]
    NotViable {
        /// The function.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// The functions in the way.
        others: Vec<PciAddress>,
    },
    /// Somebody has the function open.
    #[error("{address} is in use: another process has {} open", path.display())]
    InUse {
        /// The function.
        address: PciAddress,
        /// The device node.
        path: PathBuf,
    },
    /// The IOMMU lets a function raise interrupts that are not its own, and the kernel was not told to
    /// put up with it.
    #[error(
        "the IOMMU of {address} does not keep the card from raising any interrupt of the machine: switch interrupt remapping on in the firmware, or take the risk: echo 1 > /sys/module/{module}/parameters/allow_unsafe_interrupts"
    )]
    UnsafeInterrupts {
        /// The function.
        address: PciAddress,
        /// The module that refuses.
        module: &'static str,
    },
    /// The device node may not be opened.
    #[error("{} may not be opened by this user: give it to the user who runs balboad (chown USER {}), or run balboad as root", path.display(), path.display())]
    NoPermission {
        /// The device node.
        path: PathBuf,
    },
    /// The lockable memory is used up.
    #[error(
        "{length} bytes cannot be locked in memory (the limit is {limit} bytes, for {whose} together): raise it with ulimit -l, LimitMEMLOCK= or /etc/security/limits.conf"
    )]
    Memlock {
        /// Bytes to be mapped.
        length: u64,
        /// The limit, bytes.
        limit: u64,
        /// Its user.
        whose: &'static str,
    },
    /// A file of sysfs or a device node could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An ioctl failed.
    #[error("{what}: {errno}")]
    Os {
        /// The request.
        what: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// The kernel's interface, or the function, lacks something.
    #[error("{0}")]
    Lacks(String),
    /// The kernel's answer makes no sense.
    #[error("the kernel's answer about {what} is malformed: {why}")]
    Malformed {
        /// The subject of the question.
        what: &'static str,
        /// The fault of the answer.
        why: &'static str,
    },
    /// A mapping of the function's memory could not be made.
    #[error("{0}")]
    Memory(#[from] hostmem::Error),
}

fn list(functions: &[PciAddress]) -> String {
    functions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The error number that fits.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Os { errno, .. } => *errno,
            Self::Memlock { .. } => Errno::ENOMEM,
            Self::NoPermission { .. } => Errno::EACCES,
            Self::InUse { .. } => Errno::EBUSY,
            Self::NoFunction(_) => Errno::ENODEV,
            Self::Lacks(_) => Errno::ENOSPC,
            Self::File { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            Self::Memory(error) => error.errno().unwrap_or(Errno::EIO),
            _ => Errno::EIO,
        }
    }

    /// An ioctl's error.
    pub(crate) fn os(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Os { what, errno }
    }
}
