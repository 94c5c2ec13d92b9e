//! Memory regions: which registrations are accepted, before balboad is asked.

use crate::abi::verbs as ibv;
use fpga_regs::engine::key::Access;

use crate::error::{Result, invalid, unsupported};

/// A registration that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which work requests name the first byte.
    pub hca_va: u64,
    /// The rights, of [`Access`].
    pub access: Access,
}

/// Rights of which the card makes use.
const MANDATORY: u32 = ibv::IBV_ACCESS_LOCAL_WRITE
    | ibv::IBV_ACCESS_REMOTE_WRITE
    | ibv::IBV_ACCESS_REMOTE_READ
    | ibv::IBV_ACCESS_REMOTE_ATOMIC
    | ibv::IBV_ACCESS_MW_BIND
    | ibv::IBV_ACCESS_ZERO_BASED;
/// Flags a provider may ignore: bits 20 to 29, and that the memory is of huge pages, for it may be of any.
const IGNORED: u32 = 0x3ff0_0000 | ibv::IBV_ACCESS_HUGETLB;

impl Registration {
    /// Checks a registration as `ibv_reg_mr_iova2` hands it on.
    pub(crate) fn new(address: u64, length: u64, hca_va: u64, access: u32) -> Result<Self> {
        if access & ibv::IBV_ACCESS_ON_DEMAND != 0 {
            return Err(unsupported!(
                "on-demand paging is not offered (access {access:#x}): memory stays where it is"
            ));
        }
        if access & !(MANDATORY | IGNORED) != 0 {
            return Err(invalid!("the access flags {access:#x} have unknown bits"));
        }
        let access = Access::from_bits_truncate(access);
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(invalid!("remote writes and atomics need IBV_ACCESS_LOCAL_WRITE as well"));
        }
        let end = address.checked_add(length).filter(|_| length > 0);
        let hca_va = if access.contains(Access::ZERO_BASED) { 0 } else { hca_va };
        if end.is_none() || hca_va.checked_add(length).is_none() {
            return Err(invalid!("{length} bytes at {address:#x} are no range of memory"));
        }
        Ok(Self { address, length, hca_va, access })
    }

    /// The registration that a change of this one requests.
    ///
    /// `memory` replaces the first byte and the length, if the program names them; `access` replaces the
    /// rights.
    pub(crate) fn changed(&self, memory: Option<(u64, u64)>, access: Option<u32>) -> Result<Self> {
        let (address, length) = memory.unwrap_or((self.address, self.length));
        // The address names the first byte of other memory, and that of a region that no longer counts
        // from 0.
        let counts = self.access.contains(Access::ZERO_BASED);
        let hca_va = if memory.is_some() || counts { address } else { self.hca_va };
        Self::new(address, length, hca_va, access.unwrap_or(self.access.bits()))
    }

    /// Whether both are of the same memory, by the same names.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        (self.address, self.length, self.hca_va) == (other.address, other.length, other.hca_va)
    }

    /// Whether the card may write to the memory, so that it must be writable.
    pub(crate) fn is_written(&self) -> bool {
        self.access.intersects(
            Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::WINDOW_BIND,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(address: u64, length: u64, access: u32) -> Option<i32> {
        Registration::new(address, length, address, access).err().map(|error| error.errno())
    }

    #[test]
    fn remote_writes_without_local_write_are_refused() {
        for access in [ibv::IBV_ACCESS_REMOTE_WRITE, ibv::IBV_ACCESS_REMOTE_ATOMIC] {
            assert_eq!(errno(0x1000, 8, access), Some(libc::EINVAL));
            assert_eq!(errno(0x1000, 8, access | ibv::IBV_ACCESS_LOCAL_WRITE), None);
        }
        assert_eq!(errno(0x1000, 8, ibv::IBV_ACCESS_REMOTE_READ), None);
    }

    #[test]
    fn unknown_flags_are_refused_but_those_of_the_optional_range() {
        assert_eq!(errno(0x1000, 8, ibv::IBV_ACCESS_HUGETLB), None);
        assert_eq!(errno(0x1000, 8, 1 << 8), Some(libc::EINVAL));
        assert_eq!(errno(0x1000, 8, 1 << 30), Some(libc::EINVAL));
        assert_eq!(errno(0x1000, 8, ibv::IBV_ACCESS_ON_DEMAND), Some(libc::EOPNOTSUPP));
        for bit in 20..30 {
            assert_eq!(errno(0x1000, 8, 1 << bit), None, "bit {bit}");
        }
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        assert_eq!(errno(0x1000, 0, 0), Some(libc::EINVAL));
        assert_eq!(errno(u64::MAX, 2, 0), Some(libc::EINVAL));
        let beyond = Registration::new(0x1000, 16, u64::MAX - 7, 0);
        assert_eq!(beyond.err().map(|error| error.errno()), Some(libc::EINVAL));
    }

    #[test]
    fn a_change_keeps_what_is_not_asked_for() {
        let (write, zero) = (ibv::IBV_ACCESS_LOCAL_WRITE, ibv::IBV_ACCESS_ZERO_BASED);
        let before = Registration::new(0x5000, 64, 0x7_0000_0000, write).unwrap();
        assert_eq!(before.changed(None, None).unwrap(), before);
        let read = before.changed(None, Some(0)).unwrap();
        assert!(read.is_same_memory(&before) && !read.is_written());
        let moved = before.changed(Some((0x9000, 128)), None).unwrap();
        assert_eq!(moved, Registration::new(0x9000, 128, 0x9000, write).unwrap());
        let counts = before.changed(None, Some(zero)).unwrap();
        assert_eq!(counts.hca_va, 0);
        assert_eq!(counts.changed(None, Some(write)).unwrap().hca_va, 0x5000);
        let errno = |changed: Result<Registration>| changed.err().map(|error| error.errno());
        assert_eq!(errno(before.changed(Some((0x9000, 0)), None)), Some(libc::EINVAL));
        let remote = Some(ibv::IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(errno(before.changed(None, remote)), Some(libc::EINVAL));
    }

    #[test]
    fn a_zero_based_region_counts_from_its_first_byte() {
        let zero = Registration::new(0x5000, 64, 0x5000, ibv::IBV_ACCESS_ZERO_BASED).unwrap();
        assert_eq!(zero.hca_va, 0);
        let moved = Registration::new(0x5000, 64, 0x7_0000_0000, 0).unwrap();
        assert_eq!(
            (moved.address, moved.hca_va, moved.is_written()),
            (0x5000, 0x7_0000_0000, false)
        );
    }
}
