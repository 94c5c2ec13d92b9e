//! PCIe functions driven from user space, by the kernel's VFIO: registers, interrupts, reset, DMA.
//!
//! | module | content |
//! |---|---|
//! | [`address`] | the address of a function |
//! | [`sysfs`] | the kernel's files about it, before it is opened |
//! | [`bind`] | giving it to `vfio-pci` and back to its own driver |
//! | [`device`] | the open function |
//! | [`iommu`] | the memory that it may reach: a container of type 1 (version 2), or an I/O address space of iommufd |
//! | [`capability`] | the chains of capabilities in the kernel's answers |
//!
//! The interfaces are those of Linux, `include/uapi/linux/vfio.h` and `iommufd.h`. The ioctls and
//! their `unsafe` are in one module.

#![deny(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::panic, clippy::arithmetic_side_effects, reason = "tests may fail"))]

pub mod address;
pub mod bind;
pub mod capability;
pub mod device;
mod error;
#[expect(unsafe_code, reason = "the ioctls")]
mod ffi;
pub mod iommu;
pub mod sysfs;

pub use address::PciAddress;
pub use device::{Device, Interface};
pub use error::{Error, Result};
pub use iommu::Iommu;
pub use sysfs::Sysfs;
