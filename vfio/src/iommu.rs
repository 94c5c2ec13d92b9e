//! The memory that a card may reach: the mappings from I/O virtual addresses to the memory of processes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use vfio_bindings::bindings::vfio;

use crate::capability;
use crate::error::{Error, Result};
use crate::ffi;

/// The mappings of one card, made by any process that was given the descriptor.
///
/// Memory is pinned for the process that maps it, and counted against its limit of locked memory: by
/// containers that process's own (`VmLck`), by iommufd the memory of all processes of its user
/// (their `VmPin`). Any process with the descriptor can unmap it. The kernel undoes a process's mappings when the last
/// descriptor goes, not when the process does.
#[derive(Debug)]
pub enum Iommu {
    /// A container of type 1, version 2.
    Container(OwnedFd),
    /// An I/O address space of iommufd.
    Iommufd {
        /// The descriptor of `/dev/iommu`.
        fd: OwnedFd,
        /// The number of the address space.
        ioas: u32,
    },
}

impl Iommu {
    /// Takes a descriptor that was received, and the address space's number where it is iommufd's.
    #[must_use]
    pub fn from_received(fd: OwnedFd, ioas: Option<u32>) -> Self {
        match ioas {
            Some(ioas) => Self::Iommufd { fd, ioas },
            None => Self::Container(fd),
        }
    }

    /// The descriptor, to be handed to another process.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        match self {
            Self::Container(fd) | Self::Iommufd { fd, .. } => fd,
        }
    }

    /// The number of the address space, where it is iommufd's.
    #[must_use]
    pub fn ioas(&self) -> Option<u32> {
        match self {
            Self::Container(_) => None,
            Self::Iommufd { ioas, .. } => Some(*ioas),
        }
    }

    /// The processes that share the limit of locked memory.
    fn counted(&self) -> &'static str {
        match self {
            Self::Container(_) => "all that this process locks",
            Self::Iommufd { .. } => "all that this user's processes lock",
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }

    /// Maps memory of this process: whole pages from `address` on, which the kernel pins.
    ///
    /// # Errors
    /// [`Error::Memlock`] when the limit of locked memory is reached, [`Error::Os`] when the memory is
    /// not there, the addresses are taken, or the IOMMU's table of mappings is full.
    pub fn map(&self, address: u64, iova: u64, length: u64, writable: bool) -> Result<()> {
        let memory = ffi::Memory { address, length, iova, writable };
        let mapped = match self {
            Self::Container(fd) => ffi::type1_map(fd.as_fd(), memory),
            Self::Iommufd { fd, ioas } => ffi::ioas_map(fd.as_fd(), *ioas, memory),
        };
        mapped.map_err(|errno| match errno {
            Errno::ENOMEM => match getrlimit(Resource::RLIMIT_MEMLOCK) {
                Ok((limit, _)) => Error::Memlock { length, limit, whose: self.counted() },
                Err(_) => Error::Os { what: "mapping memory for the card", errno },
            },
            Errno::ENOSPC => Error::Lacks(
                "the IOMMU takes no more mappings: raise the limit with echo N > /sys/module/vfio_iommu_type1/parameters/dma_entry_limit and start balboad again".into(),
            ),
            _ => Error::Os { what: "mapping memory for the card", errno },
        })
    }

    /// Unmaps all of a range, also mappings of other processes; returns the number of bytes. On return no DMA to
    /// it can follow.
    ///
    /// # Errors
    /// [`Error::Os`] when a mapping lies across the range's edge.
    pub fn unmap(&self, iova: u64, length: u64) -> Result<u64> {
        let unmapped = match self {
            Self::Container(fd) => ffi::type1_unmap(fd.as_fd(), iova, length),
            Self::Iommufd { fd, ioas } => ffi::ioas_unmap(fd.as_fd(), *ioas, iova, length),
        };
        unmapped.map_err(Error::os("unmapping memory from the card"))
    }

    /// The addresses that can be mapped, first and last of each range, in order.
    ///
    /// # Errors
    /// [`Error::Os`] or [`Error::Malformed`] when the kernel does not tell.
    pub fn ranges(&self) -> Result<Vec<(u64, u64)>> {
        let os = Error::os("asking the IOMMU for its addresses");
        let mut ranges = match self {
            Self::Iommufd { ioas, .. } => ffi::ioas_ranges(self.as_fd(), *ioas).map_err(os)?,
            Self::Container(fd) => {
                let (info, answer) = ffi::iommu_info(fd.as_fd()).map_err(os)?;
                if info.flags & vfio::VFIO_IOMMU_INFO_CAPS == 0 {
                    return Err(Error::Malformed {
                        what: "the IOMMU",
                        why: "it lists no addresses",
                    });
                }
                type1_ranges(&answer, info.cap_offset)?
            }
        };
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        Ok(ranges)
    }
}

fn type1_ranges(answer: &[u8], first: u32) -> Result<Vec<(u64, u64)>> {
    let capabilities = capability::chain(answer, first)?;
    let wanted = |it: &&capability::Capability<'_>| {
        u32::from(it.id) == vfio::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE
    };
    match capabilities.iter().find(wanted) {
        Some(capability) => capability.iova_ranges(),
        None => Err(Error::Malformed { what: "the IOMMU", why: "it lists no addresses" }),
    }
}
