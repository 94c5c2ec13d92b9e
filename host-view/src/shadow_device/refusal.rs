//! Reasons for which the kernel cannot show a card, and the mends.

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use crate::error::Error;

/// UDP port 4791, as `/proc/net/udp` writes a local port.
const ROCE_PORT: &str = ":12B7";

fn refuse(why: String) -> Error {
    Error::Shadow(why)
}

/// No network device.
pub(super) fn no_tap(name: &str, error: &hostmem::Error) -> Error {
    refuse(match error.errno() {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => format!(
            "the kernel has no TAP devices (there is no {}): modprobe tun",
            hostmem::netdev::TUN_DEVICE
        ),
        Some(Errno::EPERM | Errno::EACCES) => format!(
            "this process may not make the network device {name}: run balboad as root, or with CAP_NET_ADMIN and access to {}",
            hostmem::netdev::TUN_DEVICE
        ),
        Some(Errno::EBUSY | Errno::EEXIST | Errno::EINVAL) => format!(
            "there is a network device {name} already: stop the balboad that made it, or take it away (ip link delete {name})"
        ),
        _ => format!("the network device {name} cannot be made: {error}"),
    })
}

/// No addresses for the network device.
pub(super) fn no_link(name: &str, errno: Errno) -> Error {
    refuse(match errno {
        Errno::EPERM => format!(
            "this process may not set up the network device {name}: run balboad as root, or with CAP_NET_ADMIN"
        ),
        errno => format!("the network device {name} cannot be set up: {errno}"),
    })
}

/// No RDMA at all.
pub(super) fn no_rdma(errno: Errno) -> Error {
    refuse(match errno {
        Errno::EPROTONOSUPPORT => no_support().into(),
        errno => format!("the kernel's RDMA support cannot be reached: {errno}"),
    })
}

/// No device of rxe's.
pub(super) fn no_rxe(name: &str, errno: Errno) -> Error {
    let loaded = Path::new("/sys/module/rdma_rxe").exists();
    let tables = ["/proc/net/udp", "/proc/net/udp6"];
    let tables: String = tables.iter().filter_map(|it| fs::read_to_string(it).ok()).collect();
    refuse(why_no_rxe(name, errno, loaded, &tables))
}

fn why_no_rxe(name: &str, errno: Errno, loaded: bool, udp_tables: &str) -> String {
    let taken = udp_tables.lines().any(binds_roce);
    match errno {
        Errno::EADDRINUSE => port_taken(),
        Errno::EINVAL if !loaded && taken => port_taken(),
        Errno::EINVAL if !loaded => no_support().into(),
        Errno::EPERM => format!(
            "this process may not make the RDMA device {name}: run balboad as root, or with CAP_NET_ADMIN"
        ),
        Errno::EEXIST | Errno::ENFILE => format!(
            "there is an RDMA device {name} already: stop the balboad that made it, or take it away (rdma link delete {name})"
        ),
        errno => format!("rdma_rxe makes no RDMA device {name}: {errno}; dmesg may tell why"),
    }
}

fn port_taken() -> String {
    "UDP port 4791 is taken by another program, and rdma_rxe cannot be loaded without it: end that program (ss -ulnp 'sport = 4791' names it), then modprobe rdma_rxe".into()
}

fn no_support() -> &'static str {
    "the kernel has no rdma_rxe: modprobe rdma_rxe, or take a kernel that has it (Debian's linux-image-amd64; the cloud kernels have not); without --shadow, balboa run needs none"
}

/// Whether a line of `/proc/net/udp` is of a socket on the RoCE port.
fn binds_roce(line: &str) -> bool {
    line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(ROCE_PORT))
}

/// The device was made and is not there.
pub(super) fn vanished(name: &str) -> Error {
    refuse(format!(
        "the RDMA device {name} was made and is gone: something renamed or removed it at once; look into udev's rules for infiniband"
    ))
}

/// The device was there and is not any more.
pub(super) fn gone(name: &str) -> String {
    format!(
        "the kernel shows the RDMA device {name} no more, and programs do not find the card: it, or the network device under it, was deleted or moved to another network namespace; restart balboad"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: &str =
        "  sl  local_address rem_address   st\n  12: 00000000:12B7 00000000:0000 07\n";

    #[test]
    fn each_refusal_of_the_kernel_has_its_sentence() {
        let why = |errno, loaded, tables| why_no_rxe("balboa0", errno, loaded, tables);
        assert!(why(Errno::EINVAL, false, "").contains("the kernel has no rdma_rxe"));
        assert!(why(Errno::EINVAL, false, TAKEN).contains("UDP port 4791 is taken"));
        assert!(why(Errno::EADDRINUSE, true, "").contains("UDP port 4791 is taken"));
        // Once it is loaded, the port is rxe's own.
        assert!(why(Errno::EINVAL, true, TAKEN).contains("dmesg"));
        assert!(why(Errno::EPERM, true, "").contains("CAP_NET_ADMIN"));
        for taken in [Errno::EEXIST, Errno::ENFILE] {
            assert!(why(taken, true, "").contains("rdma link delete balboa0"));
        }
    }

    #[test]
    fn only_the_local_port_counts() {
        assert!(binds_roce("  12: 00000000:12B7 00000000:0000 07"));
        assert!(!binds_roce("  12: 00000000:0035 00000000:12B7 07"));
        assert!(!binds_roce("12B7"));
        assert!(!binds_roce(""));
    }
}
