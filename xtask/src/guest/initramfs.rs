//! The initial file system: a busybox, the modules, and a script that enters the host's root.

use std::fs;
use std::path::Path;

use anyhow::Result;
use harness::setting::SHARES;

use super::linux::{AT_BOOT, Module};

/// The first script of the kernel.
///
/// The host's root is read-only: files that a program writes go to memory. The real root is switched
/// to rather than chrooted into, where the kernel would refuse user namespaces.
const INIT: &str = r#"#!/bin/busybox sh
set -e
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
load() { [ ! -e "/modules/$1.ko" ] || insmod "/modules/$1.ko"; }
for module in $(cat /modules/at-boot); do load "$module"; done
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro" "$1" "$2"; }
# Behind an IOMMU whose driver was loaded just now the share comes a little later.
tries=0
until share hostroot /host; do tries=$((tries + 1)); [ $tries -lt 50 ]; sleep 0.1; done
for place in tmp run var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "/host/$place"; done
chmod 755 /host/run
mkdir -p /host/run/lock /host/SHARES/modules
cp /modules/* /host/SHARES/modules/
for tag in built job; do mkdir "/host/SHARES/$tag"; share "$tag" "/host/SHARES/$tag"; done
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for place in dev proc sys; do mount --move "/$place" "/host/$place"; done
exec switch_root /host /bin/sh SHARES/job/job.sh
"#;

/// Makes the archive from a busybox and modules, each after those it depends on.
///
/// # Errors
/// When the busybox cannot be read.
pub fn archive(busybox: &Path, modules: &[Module]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "proc", "sys", "host", "modules"] {
        archive.directory(directory);
    }
    archive.file("init", 0o755, INIT.replace("SHARES", SHARES).as_bytes());
    archive.file("bin/busybox", 0o755, &fs::read(busybox)?);
    let mut needs = String::new();
    for module in modules {
        archive.file(&format!("modules/{}.ko", module.name), 0o644, &module.content);
        needs.push_str(&format!("{}: {}\n", module.name, module.needs.join(" ")));
    }
    archive.file("modules/needs", 0o644, needs.as_bytes());
    archive.file("modules/at-boot", 0o644, at_boot(modules).as_bytes());
    Ok(archive.end())
}

/// The first modules of the order, up to the last that is loaded at boot.
fn at_boot(modules: &[Module]) -> String {
    let last = modules.iter().rposition(|module| AT_BOOT.contains(&module.name.as_str()));
    let first = modules.iter().take(last.map_or(0, |last| last + 1));
    first.flat_map(|module| [module.name.as_str(), "\n"]).collect()
}

/// An archive in the "newc" format of cpio, the one the kernel unpacks.
///
/// A header of 110 characters, all numbers of it as eight hexadecimal digits; name and content are
/// padded to four bytes. (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`.)
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    const DIRECTORY: u32 = 0o040_000;
    const FILE: u32 = 0o100_000;

    fn directory(&mut self, name: &str) {
        self.entry(name, Self::DIRECTORY | 0o755, &[]);
    }

    fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, Self::FILE | mode, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode & Self::DIRECTORY == 0 { 1 } else { 2 };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // Inode, mode, uid, gid, links, time, size, two device numbers, name's size, checksum.
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_of_110_characters_and_is_padded() {
        let mut archive = Archive::default();
        archive.file("ab", 0o644, b"hello");
        let bytes = archive.end();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701" as &[u8]));
        // Size and the name's size are the seventh and the twelfth number.
        assert_eq!(bytes.get(6 + 6 * 8..6 + 7 * 8), Some(b"00000005" as &[u8]));
        assert_eq!(bytes.get(6 + 11 * 8..6 + 12 * 8), Some(b"00000003" as &[u8]));
        // 110 + 3 is padded to 116, 116 + 5 to 124.
        assert_eq!(bytes.get(110..113), Some(b"ab\0" as &[u8]));
        assert_eq!(bytes.get(116..121), Some(b"hello" as &[u8]));
        assert_eq!(bytes.get(124..130), Some(b"070701" as &[u8]));
        assert_eq!(bytes.get(124 + 110..124 + 121), Some(b"TRAILER!!!\0" as &[u8]));
    }

    #[test]
    fn the_modules_of_the_boot_come_with_what_they_depend_on() {
        let modules = ["virtio", "virtio_pci", "netfs", "9p", "vfio"];
        let modules = modules.map(|name| Module {
            name: name.to_owned(),
            needs: Vec::new(),
            content: Vec::new(),
        });
        assert_eq!(at_boot(&modules), "virtio\nvirtio_pci\nnetfs\n9p\n");
    }
}
