//! The ioctls: each as a function that can be called without `unsafe`, or names its needs.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use iommufd_bindings::iommufd;
use nix::errno::Errno;
use nix::libc::{c_int, c_ulong, c_void};
use vfio_bindings::bindings::vfio;

/// All of VFIO's ioctls carry their arguments' size in the argument, none in their number.
const fn number(group: u8, number: u32) -> c_ulong {
    (group as c_ulong) << 8 | number as c_ulong
}

const fn vfio_number(offset: u32) -> c_ulong {
    number(vfio::VFIO_TYPE, vfio::VFIO_BASE.wrapping_add(offset))
}

const fn iommu_number(command: u32) -> c_ulong {
    number(b';', command)
}

const GET_API_VERSION: c_ulong = vfio_number(0);
const CHECK_EXTENSION: c_ulong = vfio_number(1);
const SET_IOMMU: c_ulong = vfio_number(2);
const GROUP_GET_STATUS: c_ulong = vfio_number(3);
const GROUP_SET_CONTAINER: c_ulong = vfio_number(4);
const GROUP_GET_DEVICE_FD: c_ulong = vfio_number(6);
const DEVICE_GET_REGION_INFO: c_ulong = vfio_number(8);
const DEVICE_GET_IRQ_INFO: c_ulong = vfio_number(9);
const DEVICE_SET_IRQS: c_ulong = vfio_number(10);
const DEVICE_RESET: c_ulong = vfio_number(11);
const IOMMU_GET_INFO: c_ulong = vfio_number(12);
const IOMMU_MAP_DMA: c_ulong = vfio_number(13);
const IOMMU_UNMAP_DMA: c_ulong = vfio_number(14);
const DEVICE_BIND_IOMMUFD: c_ulong = vfio_number(18);
const DEVICE_ATTACH_IOMMUFD_PT: c_ulong = vfio_number(19);
const IOAS_ALLOC: c_ulong = iommu_number(iommufd::IOMMUFD_CMD_IOAS_ALLOC);
const IOAS_IOVA_RANGES: c_ulong = iommu_number(iommufd::IOMMUFD_CMD_IOAS_IOVA_RANGES);
const IOAS_MAP: c_ulong = iommu_number(iommufd::IOMMUFD_CMD_IOAS_MAP);
const IOAS_UNMAP: c_ulong = iommu_number(iommufd::IOMMUFD_CMD_IOAS_UNMAP);

/// Bytes of a structure, as these interfaces want them told.
pub(crate) const fn size_of<T>() -> u32 {
    // The structures have tens of bytes.
    std::mem::size_of::<T>() as u32
}

/// Calls an ioctl that takes an integer.
fn with_integer(fd: BorrowedFd<'_>, number: c_ulong, argument: c_ulong) -> nix::Result<c_int> {
    // SAFETY: the ioctls this is called for take the argument by value and touch no memory of ours.
    Errno::result(unsafe { nix::libc::ioctl(fd.as_raw_fd(), number, argument) })
}

/// Calls an ioctl that reads and writes a structure.
///
/// # Safety
/// `T` is the structure of that ioctl, its size field (where it has one) is at most its size, and
/// it points to memory that the ioctl may use as it does.
unsafe fn with<T>(fd: BorrowedFd<'_>, number: c_ulong, argument: &mut T) -> nix::Result<c_int> {
    let argument: *mut T = argument;
    // SAFETY: the caller's promise.
    Errno::result(unsafe { nix::libc::ioctl(fd.as_raw_fd(), number, argument.cast::<c_void>()) })
}

pub(crate) fn api_version(container: BorrowedFd<'_>) -> nix::Result<c_int> {
    with_integer(container, GET_API_VERSION, 0)
}

pub(crate) fn has_extension(container: BorrowedFd<'_>, extension: u32) -> bool {
    with_integer(container, CHECK_EXTENSION, c_ulong::from(extension)).is_ok_and(|it| it > 0)
}

pub(crate) fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> nix::Result<()> {
    with_integer(container, SET_IOMMU, c_ulong::from(kind)).map(drop)
}

pub(crate) fn is_viable(group: BorrowedFd<'_>) -> nix::Result<bool> {
    let mut status =
        vfio::vfio_group_status { argsz: size_of::<vfio::vfio_group_status>(), flags: 0 };
    // SAFETY: the structure is that of the ioctl and points nowhere.
    unsafe { with(group, GROUP_GET_STATUS, &mut status) }?;
    Ok(status.flags & vfio::VFIO_GROUP_FLAGS_VIABLE != 0)
}

pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> nix::Result<()> {
    let mut fd: c_int = container.as_raw_fd();
    // SAFETY: the ioctl reads one integer.
    unsafe { with(group, GROUP_SET_CONTAINER, &mut fd) }.map(drop)
}

pub(crate) fn device_of_group(group: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the ioctl reads a string that ends with a zero byte.
    let raw = unsafe { nix::libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) };
    let raw = Errno::result(raw)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // The kernel makes it open across an exec in some releases.
    nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    Ok(fd)
}

/// Bytes of an answer with capabilities that are taken at most.
const MAX_ANSWER: u32 = 64 << 10;

/// Calls an ioctl whose answer has capabilities behind its fixed part, in a buffer that grows to the
/// size that the kernel asks for.
///
/// # Safety
/// `T` is the structure of that ioctl; it begins with its size, as 32 bits, and points nowhere.
unsafe fn with_capabilities<T: Copy>(
    fd: BorrowedFd<'_>,
    number: c_ulong,
    mut fixed: T,
    set_size: impl Fn(&mut T, u32),
    size: impl Fn(&T) -> u32,
) -> nix::Result<(T, Vec<u8>)> {
    let bytes = std::mem::size_of::<T>();
    let mut wanted = size_of::<T>();
    loop {
        set_size(&mut fixed, wanted);
        let length = usize::try_from(wanted).map_err(|_| Errno::EMSGSIZE)?;
        // Of 64-bit words, for the alignment of any of these structures.
        let mut buffer = vec![0u64; length.div_ceil(8)];
        // SAFETY: the buffer has at least the structure's size, and its alignment.
        unsafe { buffer.as_mut_ptr().cast::<T>().write(fixed) };
        // SAFETY: the buffer has the size that its first word says, and the caller's promise.
        let called = unsafe {
            nix::libc::ioctl(fd.as_raw_fd(), number, buffer.as_mut_ptr().cast::<c_void>())
        };
        Errno::result(called)?;
        // SAFETY: as above; the structures are made of integers, for which any bytes are a value.
        let answer = unsafe { buffer.as_ptr().cast::<T>().read() };
        let asked = size(&answer);
        if asked > wanted && asked <= MAX_ANSWER {
            wanted = asked;
            continue;
        }
        let mut all: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        all.truncate(length.max(bytes));
        return Ok((answer, all));
    }
}

pub(crate) fn region_info(
    device: BorrowedFd<'_>,
    index: u32,
) -> nix::Result<(vfio::vfio_region_info, Vec<u8>)> {
    let info = vfio::vfio_region_info { index, ..Default::default() };
    // SAFETY: the structure is that of the ioctl.
    unsafe {
        with_capabilities(device, DEVICE_GET_REGION_INFO, info, |it, n| it.argsz = n, |it| it.argsz)
    }
}

pub(crate) fn iommu_info(
    container: BorrowedFd<'_>,
) -> nix::Result<(vfio::vfio_iommu_type1_info, Vec<u8>)> {
    let info = vfio::vfio_iommu_type1_info::default();
    // SAFETY: the structure is that of the ioctl.
    unsafe {
        with_capabilities(container, IOMMU_GET_INFO, info, |it, n| it.argsz = n, |it| it.argsz)
    }
}

pub(crate) fn irq_count(device: BorrowedFd<'_>, index: u32) -> nix::Result<u32> {
    let argsz = size_of::<vfio::vfio_irq_info>();
    let mut info = vfio::vfio_irq_info { argsz, index, ..Default::default() };
    // SAFETY: the structure is that of the ioctl and points nowhere.
    unsafe { with(device, DEVICE_GET_IRQ_INFO, &mut info) }?;
    Ok(info.count)
}

/// Makes the vectors of an interrupt, from 0 on, signal these descriptors.
pub(crate) fn set_irqs(
    device: BorrowedFd<'_>,
    index: u32,
    eventfds: &[BorrowedFd<'_>],
) -> nix::Result<()> {
    const HEADER_WORDS: u32 = 5;
    let count = u32::try_from(eventfds.len()).map_err(|_| Errno::EINVAL)?;
    let words = HEADER_WORDS.checked_add(count).ok_or(Errno::EINVAL)?;
    let argsz = words.checked_mul(4).ok_or(Errno::EINVAL)?;
    let flags = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut set = vec![argsz, flags, index, 0, count];
    set.extend(eventfds.iter().map(|fd| u32::from_ne_bytes(fd.as_raw_fd().to_ne_bytes())));
    // SAFETY: the words are the structure and its descriptors, as many bytes as the first word says.
    let called = unsafe {
        nix::libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, set.as_mut_ptr().cast::<c_void>())
    };
    Errno::result(called).map(drop)
}

pub(crate) fn reset(device: BorrowedFd<'_>) -> nix::Result<()> {
    with_integer(device, DEVICE_RESET, 0).map(drop)
}

/// A range of this process's memory, for the kernel to pin.
///
/// The kernel looks at the addresses itself and refuses those that are not there, so naming wrong
/// ones is no danger to it; a registration means that the card may then read and write the
/// memory behind Rust's back, and users of shared memory reckon with that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub address: u64,
    pub length: u64,
    pub iova: u64,
    pub writable: bool,
}

pub(crate) fn type1_map(container: BorrowedFd<'_>, memory: Memory) -> nix::Result<()> {
    let write = if memory.writable { vfio::VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
    let mut map = vfio::vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio::vfio_iommu_type1_dma_map>(),
        flags: vfio::VFIO_DMA_MAP_FLAG_READ | write,
        vaddr: memory.address,
        iova: memory.iova,
        size: memory.length,
    };
    // SAFETY: the structure is that of the ioctl; for the memory it names see `Memory`.
    unsafe { with(container, IOMMU_MAP_DMA, &mut map) }.map(drop)
}

/// Unmaps all mappings in a range; bytes unmapped.
pub(crate) fn type1_unmap(container: BorrowedFd<'_>, iova: u64, size: u64) -> nix::Result<u64> {
    let argsz = size_of::<vfio::vfio_iommu_type1_dma_unmap>();
    let mut unmap = vfio::vfio_iommu_type1_dma_unmap { argsz, iova, size, ..Default::default() };
    // SAFETY: the structure is that of the ioctl, and without flags the kernel uses only that.
    unsafe { with(container, IOMMU_UNMAP_DMA, &mut unmap) }?;
    Ok(unmap.size)
}

pub(crate) fn bind_iommufd(device: BorrowedFd<'_>, iommu: BorrowedFd<'_>) -> nix::Result<()> {
    let argsz = size_of::<vfio::vfio_device_bind_iommufd>();
    let iommufd = iommu.as_raw_fd();
    let mut bind = vfio::vfio_device_bind_iommufd { argsz, iommufd, ..Default::default() };
    // SAFETY: the structure is that of the ioctl and points nowhere.
    unsafe { with(device, DEVICE_BIND_IOMMUFD, &mut bind) }.map(drop)
}

pub(crate) fn attach(device: BorrowedFd<'_>, ioas: u32) -> nix::Result<()> {
    // The structure grew a field for PASIDs, which older kernels do not take; its first three words
    // are all that is wanted here.
    let mut words: [u32; 3] = [12, 0, ioas];
    // SAFETY: the kernel takes the structure by the size in its first word.
    unsafe { with(device, DEVICE_ATTACH_IOMMUFD_PT, &mut words) }.map(drop)
}

pub(crate) fn alloc_ioas(iommu: BorrowedFd<'_>) -> nix::Result<u32> {
    let size = size_of::<iommufd::iommu_ioas_alloc>();
    let mut alloc = iommufd::iommu_ioas_alloc { size, ..Default::default() };
    // SAFETY: the structure is that of the ioctl and points nowhere.
    unsafe { with(iommu, IOAS_ALLOC, &mut alloc) }?;
    Ok(alloc.out_ioas_id)
}

/// The ranges, first and last address, that an I/O address space may map.
pub(crate) fn ioas_ranges(iommu: BorrowedFd<'_>, ioas_id: u32) -> nix::Result<Vec<(u64, u64)>> {
    const MAX_RANGES: usize = 1024;
    let mut room = 16usize;
    loop {
        let mut ranges = vec![iommufd::iommu_iova_range::default(); room];
        let mut query = iommufd::iommu_ioas_iova_ranges {
            size: size_of::<iommufd::iommu_ioas_iova_ranges>(),
            ioas_id,
            num_iovas: u32::try_from(room).map_err(|_| Errno::EMSGSIZE)?,
            allowed_iovas: ranges.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the structure is that of the ioctl, and points to `num_iovas` ranges.
        let called = unsafe { with(iommu, IOAS_IOVA_RANGES, &mut query) };
        let found = usize::try_from(query.num_iovas).map_err(|_| Errno::EMSGSIZE)?;
        match called {
            Err(Errno::EMSGSIZE) if found > room && found <= MAX_RANGES => room = found,
            Err(errno) => return Err(errno),
            Ok(_) => {
                return Ok(ranges
                    .iter()
                    .take(found)
                    .map(|range| (range.start, range.last))
                    .collect());
            }
        }
    }
}

pub(crate) fn ioas_map(iommu: BorrowedFd<'_>, ioas_id: u32, memory: Memory) -> nix::Result<()> {
    let write =
        if memory.writable { iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE } else { 0 };
    let mut map = iommufd::iommu_ioas_map {
        size: size_of::<iommufd::iommu_ioas_map>(),
        flags: iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA
            | iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE
            | write,
        ioas_id,
        user_va: memory.address,
        length: memory.length,
        iova: memory.iova,
        ..Default::default()
    };
    // SAFETY: the structure is that of the ioctl; for the memory it names see `Memory`.
    unsafe { with(iommu, IOAS_MAP, &mut map) }.map(drop)
}

/// Unmaps all mappings in a range; bytes unmapped.
pub(crate) fn ioas_unmap(
    iommu: BorrowedFd<'_>,
    ioas_id: u32,
    iova: u64,
    length: u64,
) -> nix::Result<u64> {
    let size = size_of::<iommufd::iommu_ioas_unmap>();
    let mut unmap = iommufd::iommu_ioas_unmap { size, ioas_id, iova, length };
    // SAFETY: the structure is that of the ioctl and points nowhere.
    match unsafe { with(iommu, IOAS_UNMAP, &mut unmap) } {
        Ok(_) => Ok(unmap.length),
        // Nothing is mapped there.
        Err(Errno::ENOENT) => Ok(0),
        Err(errno) => Err(errno),
    }
}
