//! Tests of mappings and of fork detection.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SIGSEGV, SigHandler, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, ftruncate};

use super::*;
use crate::memfd;

/// Runs `child` in a forked child and returns its exit code.
pub(crate) fn exit_code_of_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only code that takes no lock another thread could have held.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = child();
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("child did not exit: {other:?}"),
        },
    }
}

fn mapping(bytes: usize) -> SharedMapping {
    let fd = memfd::create("test", bytes).unwrap();
    SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap()
}

#[test]
fn words_are_little_endian_and_shared_between_mappings() {
    let fd = memfd::create("test", 8192).unwrap();
    let one = SharedMapping::new(fd.as_fd(), 0, 8192, Access::ReadWrite).unwrap();
    let two = SharedMapping::new(fd.as_fd(), 4096, 4096, Access::ReadOnly).unwrap();
    one.store_release_u64(4096, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(two.load_acquire_u64(0).unwrap(), 0x0102_0304_0506_0708);
    assert_eq!(two.load_relaxed_u32(4).unwrap(), 0x0102_0304);
    let mut bytes = [0; 8];
    two.read_bytes(0, &mut bytes).unwrap();
    assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
    one.store_relaxed_u32(4096, 5).unwrap();
    one.store_relaxed_u64(4104, 6).unwrap();
    assert_eq!((two.load_acquire_u32(0).unwrap(), two.load_relaxed_u64(8).unwrap()), (5, 6));
}

#[test]
fn accesses_outside_or_across_alignment_are_refused() {
    let mapping = mapping(4096);
    assert!(matches!(mapping.load_relaxed_u64(4096), Err(Error::OutOfRange { .. })));
    assert!(matches!(mapping.load_relaxed_u32(usize::MAX - 3), Err(Error::OutOfRange { .. })));
    assert!(matches!(mapping.load_acquire_u64(4), Err(Error::Misaligned { .. })));
    assert!(matches!(mapping.store_release_u32(2, 0), Err(Error::Misaligned { .. })));
    assert!(matches!(mapping.read_bytes(4095, &mut [0; 2]), Err(Error::OutOfRange { .. })));
    assert!(matches!(mapping.write_bytes(usize::MAX, &[0; 2]), Err(Error::OutOfRange { .. })));
    mapping.read_bytes(4096, &mut []).unwrap();
}

#[test]
fn a_read_only_mapping_refuses_stores() {
    let fd = memfd::create("test", 4096).unwrap();
    let mapping = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
    assert!(matches!(mapping.store_release_u32(0, 1), Err(Error::ReadOnly { .. })));
    assert!(matches!(mapping.write_bytes(0, &[1]), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_file_that_can_shrink_or_is_too_small_is_refused() {
    let loose = memfd_create("loose", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&loose, 8192).unwrap();
    let refused = SharedMapping::new(loose.as_fd(), 0, 4096, Access::ReadWrite).unwrap_err();
    assert!(matches!(refused, Error::Unsealed { seals: 0 }));

    let unsealable = std::fs::File::open("/proc/self/exe").unwrap();
    let refused = SharedMapping::new(unsealable.as_fd(), 0, 4096, Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, Error::Unsealed { .. }));

    let fd = memfd::create("small", 4096).unwrap();
    for (offset, bytes) in [(0, 4097), (4096, 1), (1 << 63, 4096), (u64::MAX - 4095, 4096)] {
        let refused = SharedMapping::new(fd.as_fd(), offset, bytes, Access::ReadOnly).unwrap_err();
        assert!(matches!(refused, Error::FileTooSmall { .. }), "{offset} {bytes}: {refused}");
    }
    let refused = SharedMapping::new(fd.as_fd(), 100, 8, Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, Error::Misaligned { .. }));
    let refused = SharedMapping::new(fd.as_fd(), 0, 0, Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, Error::BadSize { .. }));
}

#[test]
fn byte_copies_are_right_at_every_alignment_and_length() {
    let mapping = mapping(4096);
    for offset in 0..17 {
        for bytes in 0..40 {
            mapping.write_bytes(0, &[0xee; 128]).unwrap();
            let data: Vec<u8> = (0..bytes).map(|n| n as u8 + 1).collect();
            mapping.write_bytes(offset, &data).unwrap();
            let mut whole = [0; 128];
            mapping.read_bytes(0, &mut whole).unwrap();
            assert_eq!(&whole[offset..offset + bytes], &data[..], "at {offset}, {bytes} bytes");
            assert!(whole[..offset].iter().chain(&whole[offset + bytes..]).all(|&b| b == 0xee));
            let mut back = vec![0; bytes];
            mapping.read_bytes(offset, &mut back).unwrap();
            assert_eq!(back, data);
        }
    }
}

#[test]
fn release_and_acquire_hand_data_between_threads() {
    let mapping = Arc::new(mapping(4096));
    let writer = Arc::clone(&mapping);
    let thread = std::thread::spawn(move || {
        for round in 1..=1000u64 {
            writer.store_relaxed_u64(8, round * 3).unwrap();
            writer.store_release_u64(0, round).unwrap();
        }
    });
    let mut seen = 0;
    while seen < 1000 {
        seen = mapping.load_acquire_u64(0).unwrap();
        assert!(mapping.load_relaxed_u64(8).unwrap() >= seen * 3);
        std::thread::yield_now();
    }
    thread.join().unwrap();
}

#[test]
fn the_canary_dies_in_a_forked_child_only() {
    let canary = ForkCanary::new().unwrap();
    assert!(canary.alive());
    let grandchild_too = || i32::from(!canary.alive());
    let code =
        exit_code_of_child(|| i32::from(!canary.alive()) + 2 * exit_code_of_child(grandchild_too));
    assert_eq!(code, 3);
    assert!(canary.alive());
}

#[test]
fn a_marked_canary_lives_and_its_mark_is_not_seen_in_a_forked_child() {
    let canary = ForkCanary::new().unwrap();
    assert!(canary.is_unmarked() && !canary.is_marked());
    canary.mark();
    assert!(canary.alive() && !canary.is_unmarked() && canary.is_marked());
    let code = exit_code_of_child(|| {
        canary.mark();
        i32::from(canary.alive()) + 2 * i32::from(canary.is_unmarked())
    });
    assert_eq!(code, 0);
}

#[test]
fn a_child_neither_owns_nor_unmaps_what_its_parent_mapped() {
    let inherited = mapping(4096);
    let address = inherited.address();
    let code = exit_code_of_child(|| {
        if inherited.is_ours() {
            return 1;
        }
        // Put something of the child's own where the parent's mapping was.
        // SAFETY: the parent's mapping was not inherited, so the address is free.
        let own = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if own as usize != address {
            return 2;
        }
        drop(inherited);
        // SAFETY: the page is the child's own; were it unmapped, the child would die here.
        unsafe { own.cast::<u64>().write_volatile(7) };
        let fresh = mapping(4096);
        i32::from(!fresh.is_ours()) * 3
    });
    assert_eq!(code, 0);
}

#[test]
fn touching_a_mapping_that_was_not_inherited_faults() {
    let inherited = mapping(4096);
    // SAFETY: the child only makes a system call and loads one word.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // Loom's coroutines leave the process a handler, which panics at addresses that are none of theirs.
            // SAFETY: the default takes the place of a handler that nothing of the child's needs.
            let _ = unsafe { signal(SIGSEGV, SigHandler::SigDfl) };
            let value = inherited.load_relaxed_u32(0).unwrap_or(9);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(value as i32) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).unwrap();
            assert!(matches!(status, WaitStatus::Signaled(_, SIGSEGV, _)));
        }
    }
}
