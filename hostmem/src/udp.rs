//! UDP sockets that send and receive many datagrams by one system call.
//!
//! A datagram leaves whole or not at all ("don't fragment" is set, and a router's message about a route's MTU has
//! no effect, because any host can forge it), and with the type of service, the time to live and the source address
//! that it is given. One message may be cut into segments, each of them a datagram (`UDP_SEGMENT`); arriving ones
//! may come together (`UDP_GRO`).

use std::io::IoSlice;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{SockaddrLike as _, SockaddrStorage, getsockname};

use crate::netdev::set_option;
use crate::{Error, Result};

/// The most messages that one call sends.
pub const MOST_SENT: usize = 32;
/// The most segments that every kernel makes of one message (`UDP_MAX_SEGMENTS` before Linux 6.9).
pub const MOST_SEGMENTS: usize = 64;
/// The most bytes of one message: the payload of an IPv4 datagram.
pub const MOST_BYTES: usize = 65_507;
/// The most messages that one call receives.
pub const MOST_RECEIVED: usize = 16;
/// Room for one of them.
const RECEIVE_BYTES: usize = 64 << 10;
/// Bytes of room for the control messages beside a message.
const CONTROL_BYTES: usize = 160;

/// That room, aligned as the kernel's headers are.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A UDP socket of the machine's own network.
#[derive(Debug)]
pub struct UdpSocket {
    socket: OwnedFd,
    local: SocketAddr,
    segments: bool,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// The machine's address that sends it, of the same kind.
    pub from: IpAddr,
    /// The device of a link-local source; 0 where the route decides.
    pub device: u32,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Bytes of each datagram but the last, which may be shorter; `None` for one datagram.
    pub segment: Option<u16>,
    /// The parts of the datagram.
    pub parts: &'a [IoSlice<'a>],
}

/// One or several datagrams that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Bytes of each datagram but the last, which may be shorter.
    pub segment: usize,
    /// Datagrams that this socket has lost for want of room, in all.
    pub lost: Option<u32>,
    /// The datagrams, one behind the other.
    pub bytes: &'a [u8],
}

/// Room for the datagrams that one call receives.
pub struct ReceiveRoom {
    buffers: Vec<Box<[u8]>>,
    controls: Vec<Control>,
    senders: Vec<libc::sockaddr_storage>,
    headers: Vec<Received>,
}

/// The kernel's report of a message.
#[derive(Clone, Copy, Default)]
struct Received {
    length: usize,
    sender_length: libc::socklen_t,
    control_length: usize,
    cut: bool,
}

impl std::fmt::Debug for ReceiveRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveRoom").field("messages", &self.headers.len()).finish()
    }
}

impl Default for ReceiveRoom {
    fn default() -> Self {
        Self {
            buffers: (0..MOST_RECEIVED).map(|_| vec![0; RECEIVE_BYTES].into()).collect(),
            controls: vec![Control([0; CONTROL_BYTES]); MOST_RECEIVED],
            senders: vec![no_sender(); MOST_RECEIVED],
            headers: Vec::with_capacity(MOST_RECEIVED),
        }
    }
}

/// No address.
fn no_sender() -> libc::sockaddr_storage {
    // SAFETY: the structure consists of integers, of which all bits zero is a value.
    unsafe { std::mem::zeroed() }
}

impl UdpSocket {
    /// Binds a socket to an address and a port, or to any port that is free (0), with as many bytes of room for
    /// arrivals as the kernel grants of those asked for. A multicast group may be many sockets'. Datagrams of one
    /// sender arrive `together`, in one message, where the kernel can do that.
    ///
    /// # Errors
    /// [`Error::Os`]: EADDRINUSE where another has the port, EADDRNOTAVAIL where the address is none of the
    /// machine's, EACCES for a port below 1024, EAFNOSUPPORT where the machine has no such addresses.
    pub fn bind(at: SocketAddr, room: usize, together: bool) -> Result<Self> {
        let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three integers.
        let raw = unsafe { libc::socket(family, kind, 0) };
        let raw = Errno::result(raw).map_err(Error::os("socket"))?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        let set = |level, option, value: libc::c_int, call| {
            set_option(&socket, level, option, &value).map_err(Error::os(call))
        };
        if at.is_ipv4() {
            let probe = libc::IP_PMTUDISC_PROBE;
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe, "IP_MTU_DISCOVER")?;
            set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1, "IP_RECVTOS")?;
            set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1, "IP_RECVTTL")?;
            // Only the groups that this socket has joined itself, not those of all sockets of the machine.
            set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL")?;
        } else {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1, "IPV6_V6ONLY")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe, "IPV6_MTU_DISCOVER")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1, "IPV6_RECVHOPLIMIT")?;
            // RoCE v2 frames of some cards have no UDP checksum, which the invariant CRC makes up for.
            set(libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX")?;
        }
        if at.ip().is_multicast() {
            set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1, "SO_REUSEADDR")?;
        }
        let wanted = libc::c_int::try_from(room).unwrap_or(libc::c_int::MAX);
        set(libc::SOL_SOCKET, libc::SO_RCVBUF, wanted, "SO_RCVBUF")?;
        set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1, "SO_RXQ_OVFL")?;
        // Of no account where the kernel is older than Linux 5.0: datagrams come one by one.
        let _ = set_option(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, &libc::c_int::from(together));
        // Linux 4.18; 0 is no size, and leaves the socket as it is.
        let segments = set_option(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, &0).is_ok();

        let address = SockaddrStorage::from(at);
        nix::sys::socket::bind(socket.as_raw_fd(), &address).map_err(Error::os("bind"))?;
        let local =
            getsockname::<SockaddrStorage>(socket.as_raw_fd()).map_err(Error::os("getsockname"))?;
        let local = socket_address(&local).unwrap_or(at);
        Ok(Self { socket, local, segments })
    }

    /// The address to which it is bound.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether the kernel cuts messages into segments.
    #[must_use]
    pub fn can_segment(&self) -> bool {
        self.segments
    }

    /// Bytes of room for arrivals, as the kernel counts them: with its own data beside each datagram.
    #[must_use]
    pub fn receive_room(&self) -> usize {
        nix::sys::socket::getsockopt(&self.socket, nix::sys::socket::sockopt::RcvBuf).unwrap_or(0)
    }

    /// Joins a multicast group by a device, as long as the socket is open.
    ///
    /// # Errors
    /// ENODEV where there is no such device, ENOBUFS beyond `net.ipv4.igmp_max_memberships`, EADDRINUSE for a group
    /// that it hears already.
    pub fn join_group(&self, group: IpAddr, device: u32) -> Result<(), Errno> {
        match group {
            IpAddr::V4(group) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: in_addr(group),
                    imr_address: in_addr(Ipv4Addr::UNSPECIFIED),
                    imr_ifindex: libc::c_int::try_from(device).map_err(|_| Errno::ENODEV)?,
                };
                set_option(&self.socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
            }
            IpAddr::V6(group) => {
                let ipv6mr_multiaddr = in6_addr(group);
                let request = libc::ipv6_mreq { ipv6mr_multiaddr, ipv6mr_interface: device };
                set_option(&self.socket, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
            }
        }
    }

    /// Sends messages, [`MOST_SENT`] at most, without waiting; how many were taken. `Err` says why the first was not.
    ///
    /// # Errors
    /// EAGAIN or ENOBUFS where there is no room now, EMSGSIZE for a message longer than the route takes, EIO where the
    /// route cannot segment, EINVAL for a source that is none of the machine's, ENETUNREACH and EHOSTUNREACH, EPERM
    /// where a filter refuses it.
    pub fn send(&self, messages: &[Outgoing<'_>]) -> Result<usize, Errno> {
        // Room for as many as there may be, of which only those that are sent are written.
        let mut addresses = [const { MaybeUninit::<SockaddrStorage>::uninit() }; MOST_SENT];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; MOST_SENT];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MOST_SENT];
        let count = messages.len().min(MOST_SENT);
        let places = headers.iter_mut().zip(&mut addresses).zip(&mut controls);
        for (message, ((header, address), control)) in messages.iter().zip(places) {
            let address = address.write(SockaddrStorage::from(message.to));
            let control = control.write(Control([0; CONTROL_BYTES]));
            // SAFETY: the structure consists of integers and pointers, of which all bits zero is a value.
            let header = &mut header.write(unsafe { std::mem::zeroed() }).msg_hdr;
            header.msg_name = address.as_ptr().cast_mut().cast();
            header.msg_namelen = address.len();
            header.msg_iov = message.parts.as_ptr().cast_mut().cast();
            // The type differs between C libraries.
            header.msg_iovlen = message.parts.len() as _;
            // Written first: a later borrow of it would invalidate pointers into it.
            header.msg_controllen = write_control(control, message) as _;
            header.msg_control = control.0.as_mut_ptr().cast();
        }
        loop {
            // SAFETY: `count` headers were filled, whose pointers lead to addresses, control data and parts that
            // outlive the call; it reads them and writes only the lengths in the headers. An IoSlice has the layout of
            // an iovec.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    headers.as_mut_ptr().cast(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            match Errno::result(sent) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
                Ok(sent) => return Ok(usize::try_from(sent).unwrap_or(0)),
            }
        }
    }

    /// Takes datagrams that have arrived, without waiting; returns the number of messages.
    ///
    /// # Errors
    /// EAGAIN where there is nothing; others that a router has left at the socket.
    pub fn receive(&self, room: &mut ReceiveRoom) -> Result<usize, Errno> {
        room.headers.clear();
        // SAFETY: the structure consists of integers and pointers, of which all bits zero is a value.
        let mut headers: [libc::mmsghdr; MOST_RECEIVED] = unsafe { std::mem::zeroed() };
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_RECEIVED];
        let places = room.buffers.iter_mut().zip(&mut room.controls).zip(&mut room.senders);
        for ((header, part), ((buffer, control), sender)) in
            headers.iter_mut().zip(&mut parts).zip(places)
        {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = buffer.len();
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut *sender).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
        }
        // SAFETY: all headers were filled, with as many buffers, senders and control data as there are headers, which
        // outlive the call and are of the lengths that the headers say.
        let got = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                MOST_RECEIVED as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let got = usize::try_from(Errno::result(got)?).unwrap_or(0);
        room.headers.extend(headers.iter().take(got).map(|header| Received {
            length: header.msg_len as usize,
            sender_length: header.msg_hdr.msg_namelen,
            control_length: header.msg_hdr.msg_controllen,
            cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }));
        Ok(got)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ReceiveRoom {
    /// The messages received last, without those of which a part is missing.
    pub fn messages(&self) -> impl Iterator<Item = Incoming<'_>> {
        let places = self.buffers.iter().zip(&self.controls).zip(&self.senders);
        self.headers.iter().zip(places).filter_map(|(header, ((buffer, control), sender))| {
            let bytes = buffer.get(..header.length).filter(|_| !header.cut)?;
            let length = header.sender_length.min(size_of_val(sender) as libc::socklen_t);
            // SAFETY: the structure is a whole sockaddr_storage, of which the kernel wrote `length` bytes and the rest
            // was initialised.
            let from =
                unsafe { SockaddrStorage::from_raw((&raw const *sender).cast(), Some(length)) };
            let from = socket_address(&from?)?;
            let mut message =
                Incoming { from, tos: 0, ttl: 0, segment: bytes.len(), lost: None, bytes };
            read_control(control, header.control_length, &mut message);
            Some(message)
        })
    }
}

/// `UDP_NO_CHECK6_RX` of linux/udp.h, which the libc crate lacks.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    address.as_sockaddr_in6().map(|it| std::net::SocketAddrV6::from(*it).into())
}

fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

fn in6_addr(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr { s6_addr: address.octets() }
}

/// Writes the control messages of a message; their bytes.
fn write_control(control: &mut Control, message: &Outgoing<'_>) -> usize {
    let mut writer = Writer { control, length: 0 };
    let (tos, ttl) = (libc::c_int::from(message.tos), libc::c_int::from(message.ttl));
    match message.from {
        IpAddr::V4(from) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: libc::c_int::try_from(message.device).unwrap_or(0),
                ipi_spec_dst: in_addr(from),
                ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
            };
            writer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            writer.put(libc::IPPROTO_IP, libc::IP_TOS, tos);
            writer.put(libc::IPPROTO_IP, libc::IP_TTL, ttl);
        }
        IpAddr::V6(from) => {
            let info =
                libc::in6_pktinfo { ipi6_addr: in6_addr(from), ipi6_ifindex: message.device };
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos);
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, ttl);
        }
    }
    if let Some(segment) = message.segment {
        writer.put(libc::IPPROTO_UDP, libc::UDP_SEGMENT, segment);
    }
    writer.length
}

/// Bytes of a control message's header, and the alignment of its parts.
const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGNMENT: usize = size_of::<u64>();

struct Writer<'a> {
    control: &'a mut Control,
    length: usize,
}

impl Writer<'_> {
    /// Adds a control message; one that does not fit is left out, which no caller's do.
    fn put<T>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        let end = self.length + (HEADER + size_of::<T>()).next_multiple_of(ALIGNMENT);
        if end > size_of::<Control>() {
            return;
        }
        // SAFETY: of an integer structure all bits zero is a value.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = (HEADER + size_of::<T>()) as _;
        (header.cmsg_level, header.cmsg_type) = (level, kind);
        let base = self.control.0.as_mut_ptr();
        // SAFETY: `end` is within the control data, which is aligned to eight bytes, as are `length` and the header's
        // size; both values are plain integers.
        unsafe {
            let place = base.add(self.length);
            place.cast::<libc::cmsghdr>().write(header);
            place.add(HEADER).cast::<T>().write_unaligned(value);
        }
        self.length = end;
    }
}

/// Reads the control messages of a message.
fn read_control(control: &Control, length: usize, message: &mut Incoming<'_>) {
    let mut rest = control.0.get(..length).unwrap_or_default();
    while let Some((level, kind, value, next)) = next_control(rest) {
        let number = || value.first_chunk().map(|chunk| libc::c_int::from_ne_bytes(*chunk));
        let octet = || number().map_or_else(|| value.first().copied(), |it| u8::try_from(it).ok());
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                message.tos = octet().unwrap_or(0);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                message.ttl = octet().unwrap_or(0);
            }
            (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                let segment = number().and_then(|it| usize::try_from(it).ok());
                message.segment = segment.filter(|it| *it > 0).unwrap_or(message.segment);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                message.lost = number().map(|it| u32::from_ne_bytes(it.to_ne_bytes()));
            }
            _ => {}
        }
        rest = next;
    }
}

/// The first control message: level, kind, value, and the bytes behind it.
fn next_control(bytes: &[u8]) -> Option<(libc::c_int, libc::c_int, &[u8], &[u8])> {
    let length = usize::from_ne_bytes(*bytes.first_chunk()?);
    let integer = |at: usize| {
        let chunk = bytes.get(at..)?.first_chunk()?;
        Some(libc::c_int::from_ne_bytes(*chunk))
    };
    let level = integer(size_of::<usize>())?;
    let kind = integer(size_of::<usize>() + size_of::<libc::c_int>())?;
    let value = bytes.get(HEADER..length)?;
    Some((level, kind, value, bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(ip: &str) -> UdpSocket {
        UdpSocket::bind(SocketAddr::new(ip.parse().unwrap(), 0), 1 << 20, true).unwrap()
    }

    /// Waits for messages that were sent on this machine, which arrive at once.
    fn received(socket: &UdpSocket, room: &mut ReceiveRoom) -> usize {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap();
        socket.receive(room).unwrap()
    }

    #[test]
    fn a_datagram_arrives_with_what_it_was_sent_with() {
        for ip in ["127.0.0.1", "::1"] {
            let (sender, receiver) = (socket(ip), socket(ip));
            let parts = [IoSlice::new(b"he"), IoSlice::new(b"llo")];
            let message = Outgoing {
                to: receiver.local(),
                from: ip.parse().unwrap(),
                device: 0,
                tos: 0x6a,
                ttl: 17,
                segment: None,
                parts: &parts,
            };
            assert_eq!(sender.send(&[message, message]), Ok(2));
            let mut room = ReceiveRoom::default();
            let mut seen = Vec::new();
            while seen.len() < 10 {
                received(&receiver, &mut room);
                for it in room.messages() {
                    assert_eq!(it.from, sender.local(), "{ip}");
                    assert_eq!((it.tos, it.ttl, it.segment), (0x6a, 17, 5), "{ip}");
                    seen.extend_from_slice(it.bytes);
                }
            }
            assert_eq!(seen, b"hellohello");
            assert_eq!(receiver.receive(&mut room), Err(Errno::EAGAIN));
            assert_eq!(room.messages().count(), 0);
        }
    }

    #[test]
    fn segments_are_datagrams() {
        let (sender, receiver) = (socket("127.0.0.1"), socket("127.0.0.1"));
        if !sender.can_segment() {
            return;
        }
        let bytes: Vec<u8> = (0..2500_u32).map(|it| it as u8).collect();
        let parts = [IoSlice::new(&bytes)];
        let message = Outgoing {
            to: receiver.local(),
            from: IpAddr::V4(Ipv4Addr::LOCALHOST),
            device: 0,
            tos: 0,
            ttl: 64,
            segment: Some(1000),
            parts: &parts,
        };
        assert_eq!(sender.send(&[message]), Ok(1));
        let mut room = ReceiveRoom::default();
        let mut lengths = Vec::new();
        let mut seen = Vec::new();
        while seen.len() < bytes.len() {
            received(&receiver, &mut room);
            for it in room.messages() {
                lengths.extend(it.bytes.chunks(it.segment).map(<[u8]>::len));
                seen.extend_from_slice(it.bytes);
            }
        }
        assert_eq!((lengths, seen), (vec![1000, 1000, 500], bytes));
    }

    #[test]
    fn a_port_that_somebody_has_is_refused() {
        let first = socket("127.0.0.1");
        let errno = UdpSocket::bind(first.local(), 0, true).err().and_then(|error| error.errno());
        assert_eq!(errno, Some(Errno::EADDRINUSE));
        let nowhere = "198.51.100.1:0".parse().unwrap();
        let errno = UdpSocket::bind(nowhere, 0, true).err().and_then(|error| error.errno());
        assert_eq!(errno, Some(Errno::EADDRNOTAVAIL));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_number() {
        let sender = socket("127.0.0.1");
        let bytes = vec![0; MOST_BYTES + 1];
        let parts = [IoSlice::new(&bytes)];
        let message = Outgoing {
            to: sender.local(),
            from: IpAddr::V4(Ipv4Addr::LOCALHOST),
            device: 0,
            tos: 0,
            ttl: 64,
            segment: None,
            parts: &parts,
        };
        assert_eq!(sender.send(&[message]), Err(Errno::EMSGSIZE));
    }
}
