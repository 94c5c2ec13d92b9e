//! The fences, by name: what each orders, between whom, and what it costs.
//!
//! Two kinds of partner look at a ring, and the memory model of the language speaks of one only:
//!
//! * **Another thread or process** (the software card, balboad's relay). Acquire loads and release
//!   stores of the words themselves order everything; [`crate::ring`] and [`crate::mapping`] use
//!   those, and nothing here is needed, but for [`store_then_load`] in the sleep protocol.
//! * **A device** that reads and writes host memory over PCIe. It takes no part in the memory
//!   model: the order is between the processor's accesses as they reach the coherence domain and
//!   the reads and writes the device makes. [`publish_to_device`] and [`observe_from_device`] give
//!   that order. Both also act as language fences, so that code built on them is right for either
//!   partner.
//!
//! All of them order *ordinary cacheable memory*. A program that filled its buffer with
//! non-temporal stores, or through a write-combining mapping, owes an `sfence` (x86-64) of its own
//! before it posts, as with every verbs provider.
//!
//! | fence | orders | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`publish_to_device`] | earlier stores before later stores | none (total store order) | `dsb st` |
//! | [`observe_from_device`] | earlier loads before later loads | none (loads stay in order) | `dsb ld` |
//! | [`store_then_load`] | earlier stores before later loads | `mfence` or a locked operation | `dmb ish` |

use std::sync::atomic::{Ordering, fence};

/// Orders every earlier store to memory before every later store, as a device sees them.
///
/// Belongs between filling a work-queue entry or a doorbell record and the doorbell store that
/// makes a device fetch it: a device that has seen the doorbell then reads what was written
/// before. On x86-64 stores become visible in program order, so only the compiler is held; on
/// aarch64 the barrier waits until the stores have reached the domain that devices snoop.
#[inline(always)]
pub fn publish_to_device() {
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only waits for stores; it touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// Orders every earlier load before every later load, as to what a device wrote.
///
/// Belongs between the load that found a completion entry's phase turned and the loads of the rest
/// of the entry and of the payload: what the device wrote before it wrote the phase is then seen.
/// On x86-64 loads of cacheable memory are performed in program order, so only the compiler is
/// held; on aarch64 later loads could otherwise have been performed early.
#[inline(always)]
pub fn observe_from_device() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only waits for loads; it touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dsb ld", options(nostack, preserves_flags));
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
