//! Messages with machine code in them, this program's own, which a service is to find, and messages without.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::inspected::{ENDS, packet, refuses, whole};
use super::link::{ConnectedSides, Options};
use super::port::run;

/// English, of which nothing looks like machine code.
const ENGLISH: &[u8] = include_bytes!("../../../LICENSE-APACHE");
/// More words than any message has: none is refused, and all that are found are counted.
const NONE: &str = "65535";
/// Bytes of machine code; the middle packet of a message begins with them.
const CODE: usize = 256;

/// A number in an ELF file, little-endian.
fn number<const N: usize>(image: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; N] = image.get(at..)?.first_chunk().copied()?;
    let digits = bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte));
    Some(digits)
}

/// The section `.text` of a program, which is an ELF file of 64 bits.
fn machine_code(image: &[u8]) -> Option<&[u8]> {
    let (table, size) = (number::<8>(image, 40)?, number::<2>(image, 58)?);
    let (count, names) = (number::<2>(image, 60)?, number::<2>(image, 62)?);
    let names = number::<8>(image, table + names * size + 24)?;
    let section = (0..count).map(|section| table + section * size).find(|section| {
        let name = number::<4>(image, *section).map(|name| names + name);
        name.and_then(|name| image.get(name..)).is_some_and(|it| it.starts_with(b".text\0"))
    })?;
    let (at, length) = (number::<8>(image, section + 24)?, number::<8>(image, section + 32)?);
    image.get(at..at + length)
}

/// A message of three packets and a bit: English, with these bytes at the beginning of the second.
fn message(mtu: v::ibv_mtu, bytes: &[u8]) -> Vec<u8> {
    let mut message: Vec<u8> = ENGLISH.iter().copied().cycle().take(3 * packet(mtu) + 7).collect();
    message[packet(mtu)..][..bytes.len()].copy_from_slice(bytes);
    message
}

/// Moves messages with and without machine code, with the service attached by the `balboa` at that path to refuse it and
/// to count it, and to nothing; answers how many. On a bad cable a sender may not hear of its refusal.
///
/// # Errors
/// At the first message that does not end as it should.
pub fn all(options: &Options, balboa: &Path, bad_cable: bool) -> Result<usize> {
    let image = fs::read("/proc/self/exe")?;
    let code = machine_code(&image).context("this program has no section .text")?;
    let code = code.get(code.len() / 2..).and_then(|code| code.get(..CODE));
    let code = code.context("this program has no machine code")?;
    let ends = options.peer_addresses()?;
    let service = |words: &[&str]| run(balboa, &[&["service"], words].concat());
    let messages = |mtu| [message(mtu, &[]), message(mtu, code)];
    let mut count = refuses(options, balboa, bad_cable, &["classifier"], messages)?;

    for (device, peer) in &ends {
        service(&["attach", device, "classifier", "--words", NONE, "--peer", peer])?;
    }
    let mtu = v::IBV_MTU_1024;
    let counted = ConnectedSides::new(options, mtu, message(mtu, &[]).len())?;
    let mut pass = |of: &str| -> Result<()> {
        for (operation, _) in ENDS {
            whole(&counted, operation, &message(mtu, code)).context(of.to_owned())?;
            count += 1;
        }
        Ok(())
    };
    pass("counted")?;
    for (device, peer) in &ends {
        let shown = service(&["stats", device])?;
        ensure!(shown.contains("matches ") && !shown.contains("refused_packets"), "{shown}");
        service(&["detach", device, "--peer", peer])?;
    }
    pass("detached")?;
    Ok(count)
}
