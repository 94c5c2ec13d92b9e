//! Whether a range of a client's memory is there, as its memory map says.
//!
//! A kernel driver would find out by pinning. The software card reaches the memory when a message
//! does, much later, so that a registration of memory that is not there would pass unseen.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::error::Error;

/// Checks that every byte of a range is mapped, readable, and writable where `writable` says.
///
/// Where the map cannot be read the check is left out: the card finds out in its time.
///
/// # Errors
/// [`Error::Fault`] with the first address that is not as it should be.
pub fn check(pid: i32, address: u64, length: u64, writable: bool) -> Result<(), Error> {
    match File::open(format!("/proc/{pid}/maps")) {
        Ok(file) => check_lines(BufReader::new(file), address, length, writable),
        Err(error) => {
            log::debug!("the memory map of process {pid} cannot be read: {error}");
            Ok(())
        }
    }
}

fn check_lines(
    lines: impl BufRead,
    address: u64,
    length: u64,
    writable: bool,
) -> Result<(), Error> {
    let fault =
        |at: u64, why: &str| Error::Fault { address, length, why: format!("{why} at {at:#x}") };
    let end = address.saturating_add(length);
    let mut next = address;
    for line in lines.lines() {
        if next >= end {
            return Ok(());
        }
        let Ok(line) = line else { break };
        let Some((start, stop, rights)) = parse(&line) else { continue };
        if stop <= next {
            continue;
        }
        if start > next {
            return Err(fault(next, "nothing is mapped"));
        }
        if !rights.starts_with('r') {
            return Err(fault(next, "the memory cannot be read"));
        }
        if writable && rights.as_bytes().get(1) != Some(&b'w') {
            return Err(fault(next, "local write was asked for, and the memory is read-only"));
        }
        next = stop;
    }
    if next < end { Err(fault(next, "nothing is mapped")) } else { Ok(()) }
}

/// Start, end and rights of a line of `/proc/PID/maps`.
fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, stop) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let stop = u64::from_str_radix(stop, 16).ok()?;
    Some((start, stop, rest.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 00:00 0   /bin/x
3000-5000 rw-p 00000000 00:00 0
5000-6000 ---p 00000000 00:00 0
8000-9000 rw-s 00000000 00:01 5   /memfd:a b (deleted)
";

    fn check(address: u64, length: u64, writable: bool) -> Result<(), String> {
        check_lines(MAPS.as_bytes(), address, length, writable).map_err(|e| e.to_string())
    }

    #[test]
    fn a_range_may_span_neighbours_but_no_hole() {
        check(0x1000, 0x4000, false).unwrap();
        check(0x2fff, 2, false).unwrap();
        check(0x8000, 0x1000, true).unwrap();
        assert!(check(0x8000, 0x1001, true).unwrap_err().contains("nothing is mapped at 0x9000"));
        assert!(check(0x6000, 1, false).unwrap_err().contains("nothing is mapped at 0x6000"));
        assert!(check(0, 1, false).is_err());
        assert!(check(u64::MAX - 1, 1, false).is_err());
    }

    #[test]
    fn rights_are_checked() {
        assert!(check(0x2fff, 2, true).unwrap_err().contains("read-only at 0x2fff"));
        assert!(check(0x4000, 0x1001, false).unwrap_err().contains("cannot be read at 0x5000"));
    }

    #[test]
    fn the_own_stack_is_there_and_page_zero_is_not() {
        let pid = nix::unistd::getpid().as_raw();
        let word = 0u64;
        super::check(pid, &raw const word as u64, 8, true).unwrap();
        assert!(super::check(pid, 0, 8, false).is_err());
    }
}
