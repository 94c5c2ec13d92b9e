//! Ethernet frames to and from network devices of the kernel.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::{Error, Result};

/// The file by which network devices are made with a program at the other end.
pub const TUN_DEVICE: &str = "/dev/net/tun";
/// The kernel's `_IOW('T', 226, int)` (linux/if_tun.h), which the libc crate lacks.
const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2;

/// A MAC address as people write it.
#[must_use]
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// The other end of a network device of the kernel's, as long as it is open: a TAP.
///
/// Reads give the frames that the kernel sends by the device, one Ethernet frame at a time, and the device
/// receives written frames. The device goes with the last descriptor.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes the device, which must not be there.
    ///
    /// # Errors
    /// [`Error::Os`]: EACCES, EPERM or ENOENT where this process may not, EBUSY where a device has
    /// the name, EINVAL for an impossible name.
    pub fn create(name: &str) -> Result<Self> {
        let mut request = named(name)?;
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(TUN_DEVICE);
        let file = opened.map_err(|error| Error::Os {
            call: "open of /dev/net/tun",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        })?;
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
        // SAFETY: the request outlives the call, which reads and writes a structure of its type.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        Errno::result(made).map_err(Error::os("TUNSETIFF"))?;
        Ok(Self { file })
    }

    /// Says whether the device's cable is there, as `ip link` shows it.
    ///
    /// # Errors
    /// [`Error::Os`]: EINVAL of kernels before 4.20, which do not know of it.
    pub fn set_carrier(&self, up: bool) -> Result<()> {
        let carrier = libc::c_int::from(up);
        // SAFETY: the number outlives the call, which reads an int.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER, &raw const carrier) };
        Errno::result(done).map(drop).map_err(Error::os("TUNSETCARRIER"))
    }

    /// Takes a frame that the kernel sends; its length, or `None` when there is none.
    ///
    /// A frame longer than the room is cut.
    pub fn receive(&self, room: &mut [u8]) -> Option<usize> {
        loop {
            match (&self.file).read(room) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.ok().filter(|length| *length > 0),
            }
        }
    }

    /// Lets the device receive a frame; false where it does not, such as while it is down.
    pub fn send(&self, frame: &[u8]) -> bool {
        loop {
            match (&self.file).write(frame) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.is_ok(),
            }
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Bytes of frames that wait in a packet socket, as the kernel counts them: with its data about
/// each. The kernel's default for all sockets, some 30 of the longest frames, is less than a burst to a card,
/// and frames without room are lost.
const WAITING_BYTES: libc::c_int = 32 << 20;

/// A packet socket on a network device: every frame that arrives there, whomever it is for, and
/// frames to be sent as they are.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens a device that is there.
    ///
    /// # Errors
    /// [`Error::Os`]: EPERM without CAP_NET_RAW, ENODEV where there is no such device.
    pub fn open(device: &str) -> Result<Self> {
        // Nothing arrives before it is bound to one device.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three integers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        let raw = Errno::result(raw).map_err(Error::os("packet socket"))?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        let index = nix::net::if_::if_nametoindex(device).map_err(Error::os("if_nametoindex"))?;
        let index = libc::c_int::try_from(index)
            .map_err(|_| Error::Os { call: "if_nametoindex", errno: Errno::ENODEV })?;

        // Beyond the limit for everybody, if this process may administer the network; else up to it.
        let force = set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &WAITING_BYTES);
        force
            .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &WAITING_BYTES))
            .map_err(Error::os("SO_RCVBUF"))?;
        let ignore: libc::c_int = 1;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &ignore)
            .map_err(Error::os("PACKET_IGNORE_OUTGOING"))?;
        let all = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)
            .map_err(Error::os("PACKET_ADD_MEMBERSHIP"))?;

        // A failure for want of privileges does not matter: only connections of the host's network stack are
        // merged, which shares a card's port only if balboad may administer the network.
        let _ = one_by_one(&socket, device);

        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as libc::c_ushort,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address outlives the call, which reads `length` bytes of it.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        Errno::result(bound).map_err(Error::os("bind of a packet socket"))?;
        Ok(Self { socket })
    }

    /// Takes a frame that has arrived; returns the length of the frame, which may be more than the bytes copied.
    ///
    /// # Errors
    /// EAGAIN when there is none, ENETDOWN once after the device went down.
    pub fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        recv(self.socket.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)
    }

    /// How many frames found no room here since this was last asked.
    pub fn lost(&self) -> u32 {
        let mut told = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: both outlive the call, which writes at most `length` bytes of a structure of integers.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut told).cast(),
                &raw mut length,
            )
        };
        if got == 0 { told.tp_drops } else { 0 }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// EAGAIN or ENOBUFS when there is no room for it now, EMSGSIZE when it is longer than the
    /// device takes, ENETDOWN or ENXIO when the device is down or gone.
    pub fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT).map(drop)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A command of ethtool's and its value, as `SIOCETHTOOL` takes them (linux/ethtool.h).
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// Makes a device hand on every frame as it arrived: the kernel and some devices make one frame of
/// several of a TCP connection, which is longer than any that could be handed on.
fn one_by_one(socket: &OwnedFd, device: &str) -> Result<()> {
    ethtool(socket, device, ETHTOOL_SGRO, 0)?;
    let flags = ethtool(socket, device, ETHTOOL_GFLAGS, 0)?;
    if flags & ETH_FLAG_LRO != 0 {
        ethtool(socket, device, ETHTOOL_SFLAGS, flags & !ETH_FLAG_LRO)?;
    }
    Ok(())
}

/// Sets or reads a property of a device; its value.
fn ethtool(socket: &OwnedFd, device: &str, command: u32, value: u32) -> Result<u32> {
    let mut request = named(device)?;
    let mut value = EthtoolValue { command, value };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and the value that it points to outlive the call, which writes at
    // most the value.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    Errno::result(done).map_err(Error::os("SIOCETHTOOL"))?;
    Ok(value.value)
}

/// Whether the kernel merges segments that arrive at a network device (GRO).
///
/// # Errors
/// [`Error::Os`]: ENODEV where there is no such device.
pub fn takes_together(device: &str) -> Result<bool> {
    Ok(ethtool(&asking()?, device, ETHTOOL_GGRO, 0)? != 0)
}

/// A socket by which devices are asked.
fn asking() -> Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    let raw = Errno::result(raw).map_err(Error::os("socket"))?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Bytes that a network device of the kernel's takes in one packet, in this process's network namespace, of which sysfs
/// may show another.
///
/// # Errors
/// [`Error::Os`]: ENODEV where there is no such device.
pub fn mtu(device: &str) -> Result<u32> {
    let mut request = named(device)?;
    let socket = asking()?;
    // SAFETY: the request outlives the call, which reads its name and writes an integer in it.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    Errno::result(done).map_err(Error::os("SIOCGIFMTU"))?;
    // SAFETY: the call has written this field of the union, and of an integer every bit pattern is a value.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| Error::Os { call: "SIOCGIFMTU", errno: Errno::ERANGE })
}

/// A request about the device of a name.
fn named(name: &str) -> Result<libc::ifreq> {
    let invalid = Error::Os { call: "name of a network device", errno: Errno::EINVAL };
    // SAFETY: the structure is an array and a union of integers and arrays, of which all bits zero
    // is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero, the end of the name.
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(['\0', '%']) {
        return Err(invalid);
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

/// Sets an option of a socket to a value of the type that it has.
pub(crate) fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = (&raw const *value).cast();
    // SAFETY: the value outlives the call, which reads `length` bytes of it.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    Errno::result(set).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_kernel_would_complete_or_cut_is_refused() {
        for name in ["", "balboa%d", "a\0b", "sixteen-letters."] {
            let errno = Tap::create(name).err().and_then(|error| error.errno());
            assert_eq!(errno, Some(Errno::EINVAL), "{name:?}");
        }
        assert!(named("fifteen-letters").is_ok());
    }

    #[test]
    fn the_loopback_device_takes_long_packets() {
        assert_eq!(mtu("lo"), Ok(65_536));
        let errno = mtu("no-such-device").err().and_then(|error| error.errno());
        assert_eq!(errno, Some(Errno::ENODEV));
    }

    #[test]
    fn a_device_that_is_not_there_cannot_be_listened_to() {
        let errno = PacketSocket::open("no-such-device").err().and_then(|error| error.errno());
        // An ordinary user is told before that such sockets are not for them.
        assert!(matches!(errno, Some(Errno::ENODEV | Errno::EPERM)), "{errno:?}");
    }
}
