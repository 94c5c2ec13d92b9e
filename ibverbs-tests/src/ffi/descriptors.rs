//! Descriptors that the provider keeps to itself.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// Copies of this process's descriptors of a device node, in the order in which they were opened.
///
/// # Errors
/// When they cannot be listed or copied.
pub fn descriptors_of(node: &Path) -> io::Result<Vec<OwnedFd>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number = entry.file_name().to_string_lossy().parse::<RawFd>();
        let target = fs::read_link(entry.path());
        if let (Ok(number), true) = (number, target.is_ok_and(|it| it == node)) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    let copy = |number: RawFd| {
        // SAFETY: it was listed a moment ago; the library that opened it keeps it as long as the device is open,
        // and it is borrowed for this one call only.
        unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
    };
    numbers.into_iter().map(copy).collect()
}
