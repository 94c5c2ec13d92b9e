//! The fences, by name, each with the accesses that it orders, its partners, and its cost.
//!
//! Two kinds of partner look at a ring, and the memory model of the language speaks of one only:
//!
//! * **Another thread or process** (the software card, balboad's relay). Acquire loads and release
//!   stores of the words themselves order everything; [`crate::ring`] and [`crate::mapping`] use
//!   those, and nothing here is needed, but for [`store_then_load`] in the sleep protocol.
//! * **A device** that reads and writes host memory over PCIe. It takes no part in the memory
//!   model: the order is between the processor's accesses as they reach the coherence domain and
//!   the reads and writes the device makes. On aarch64 a compiler's instructions for acquire and release
//!   (`ldar`, `stlr`, `dmb ish…`) order accesses among processors, the inner shareable domain; a device
//!   is in the outer one. [`publish_to_device`] and [`observe_from_device`] are release and acquire
//!   towards a device. They stand beside the atomic accesses and not in their place, so that code
//!   built on both is right for either partner.
//!
//! A client does not know whether a device or a process is behind a ring. So the accessors have the fences in them:
//!
//! | access | fence |
//! |---|---|
//! | an entry that a card wrote: [`RingBlock::written`](crate::RingBlock::written) | [`observe_from_device`] behind the last word, where it says so |
//! | a doorbell record: [`Record::store_release_u32`](crate::Record::store_release_u32) | [`publish_to_device`] before it; a card may look at a record without being rung |
//! | a doorbell: [`DoorbellPage::ring`](crate::DoorbellPage::ring) | [`publish_to_device`] before it |
//! | a register: [`Mmio`](crate::Mmio) | [`publish_to_device`] before a write, [`observe_from_device`] behind a read |
//!
//! All of them order *ordinary cacheable memory*. A program that filled its buffer with
//! non-temporal stores, or through a write-combining mapping, owes an `sfence` (x86-64) of its own
//! before it posts, as with every verbs provider.
//!
//! | fence | orders | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`publish_to_device`] | earlier loads and stores before later stores | none (both stay in order) | `dmb osh` |
//! | [`observe_from_device`] | earlier loads before later loads and stores | none (both stay in order) | `dmb oshld` |
//! | [`store_then_load`] | earlier stores before later loads | `mfence` or a locked operation | `dmb ish` |
//! | [`store_then_load_everywhere`] | the same, in all threads of the process | by the kernel | by the kernel |

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Orders every earlier load and store of memory before every later store, as a device sees them.
///
/// Belongs between filling a work-queue entry and storing the doorbell record that announces it, and
/// between that and the doorbell: a device that has seen the later one reads the earlier
/// writes. On x86-64 the processor keeps that order, and only the compiler is held.
#[inline(always)]
pub fn publish_to_device() {
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only orders accesses; it touches neither registers nor memory. The
    // compiler, which cannot know that, moves no access over it.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
}

/// Orders every earlier load before every later load and store, for memory that a device writes.
///
/// Belongs between the load that found a completion entry's phase turned and the loads of the rest
/// of the entry and of the payload: the device's writes before that of the phase are then seen.
/// On x86-64 the processor keeps that order, and only the compiler is held; on aarch64 later loads
/// could otherwise have been performed early.
#[inline(always)]
pub fn observe_from_device() {
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `publish_to_device`.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Orders every earlier store before every later load, between threads: the full fence.
///
/// The one order that neither processor keeps by itself, and that no pair of acquire and release
/// gives: both sides of the sleep protocol ([`crate::wake`]) store one word and then look at the
/// other's. If both have this fence in between, at least one of them sees the other's store.
#[inline(always)]
pub fn store_then_load() {
    fence(Ordering::SeqCst);
}

/// The barrier [`store_then_load`] for two sides of which one has to be quick: this one orders its own accesses, and
/// those of every other thread of the process, at any point of its work. Between its store and its load that one then
/// needs [`compiler_fence`](std::sync::atomic::compiler_fence) alone.
///
/// It costs microseconds, or 10 ms where the kernel offers no membarrier(2).
pub fn store_then_load_everywhere() {
    store_then_load();
    if !fence_of_all::put() {
        std::thread::sleep(STORED);
    }
}

/// No processor keeps a store from the others for so long.
pub(crate) const STORED: Duration = Duration::from_millis(10);

/// membarrier(2): a full fence in every thread of the process that runs.
pub(crate) mod fence_of_all {
    use std::sync::OnceLock;

    fn membarrier(command: libc::c_int) -> libc::c_long {
        // SAFETY: the call takes numbers only, and changes no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    /// Whether the kernel offers it.
    pub(crate) fn is_offered() -> bool {
        static OFFERED: OnceLock<bool> = OnceLock::new();
        *OFFERED.get_or_init(|| {
            let offered = membarrier(libc::MEMBARRIER_CMD_QUERY);
            let needed = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED
                | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
            offered > 0 && offered & libc::c_long::from(needed) == libc::c_long::from(needed)
        })
    }

    /// Puts one; `false` where that cannot be.
    pub(crate) fn put() -> bool {
        // A process registers first, which takes longer, so the first that needs one does it.
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0
            || (membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
                && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
    }
}
