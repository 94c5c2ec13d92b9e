//! Facts in a program's or a library's file about itself. Nothing is taken on trust: malformed parts are
//! ignored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Type of the program header that names the dynamic loader.
const PT_INTERP: u32 = 3;
/// Offsets of the fields that are read of an ELF file of 64 bits, and of each of its program headers.
const CLASS_64: (usize, u8) = (4, 2);
const HEADERS: usize = 32;
const HEADER_BYTES: usize = 54;
const HEADER_COUNT: usize = 56;
const SEGMENT_OFFSET: usize = 8;
const SEGMENT_BYTES: usize = 32;

/// The dynamic loader that a program asks for; none for a script, or a statically linked program.
pub fn loader(file: &[u8]) -> Option<PathBuf> {
    if !file.starts_with(b"\x7fELF") || file.get(CLASS_64.0) != Some(&CLASS_64.1) {
        return None;
    }
    let first = usize::try_from(u64_at(file, HEADERS)?).ok()?;
    let (bytes, count) = (u16_at(file, HEADER_BYTES)?, u16_at(file, HEADER_COUNT)?);
    let headers = file.get(first..)?.chunks_exact(usize::from(bytes.max(1)));
    let mut headers = headers.take(count.into());
    let header = headers.find(|header| header.starts_with(&PT_INTERP.to_ne_bytes()))?;
    let at = usize::try_from(u64_at(header, SEGMENT_OFFSET)?).ok()?;
    let length = usize::try_from(u64_at(header, SEGMENT_BYTES)?).ok()?;
    let name = file.get(at..)?.get(..length)?.split(|&byte| byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// The name of the version that libibverbs' private symbols have, without its number.
const PRIVATE: &[u8] = b"\0IBVERBS_PRIVATE_";

/// The number of libibverbs' private interface, by the version that the library defines for it.
pub fn private_abi(library: &[u8]) -> Option<u32> {
    let at = library.windows(PRIVATE.len()).position(|bytes| bytes == PRIVATE)?;
    let number = library.get(at..)?.get(PRIVATE.len()..)?.split(|&byte| byte == 0).next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader_and_a_script_none() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = loader(&this).unwrap();
        assert!(loader.to_string_lossy().contains("/ld-linux-"), "{}", loader.display());
        assert_eq!(super::loader(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn a_file_that_was_cut_says_nothing_and_breaks_nothing() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in 0..0x400 {
            let _ = loader(&this[..length]);
        }
        for at in 0..64 {
            let mut spoilt = this[..0x1000].to_vec();
            spoilt[at] ^= 0xff;
            let _ = loader(&spoilt);
        }
    }

    #[test]
    fn the_private_interface_is_the_version_that_is_defined() {
        assert_eq!(private_abi(b"\0IBVERBS_1.14\0IBVERBS_PRIVATE_34\0libc.so.6\0"), Some(34));
        assert_eq!(private_abi(b"\0IBVERBS_PRIVATE_65"), Some(65));
        assert_eq!(private_abi(b"\0IBVERBS_PRIVATE_x\0"), None);
        assert_eq!(private_abi(b"\0IBVERBS_1.14\0"), None);
    }
}
