//! Requests to the kernel by netlink: links, addresses, RDMA devices.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::message::{Message, ReceivedNews, attributes, messages, text, u32_at};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const RTM_NEWLINK: u16 = 16;
/// Bytes of an ifinfomsg, before a link's attributes.
const LINK_BODY: usize = 16;
const RTM_NEWADDR: u16 = 20;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
/// Changes of links, of IPv4 and of IPv6 addresses.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// Changes of IPv4 and of IPv6 routes.
const ROUTES: u32 = 0x40 | 0x400;

/// `RDMA_NL_NLDEV`, as it stands in a message's kind.
const NLDEV: u16 = 5 << 10;
const NLDEV_GET: u16 = NLDEV | 1;
const NLDEV_SET: u16 = NLDEV | 2;
const NLDEV_NEWLINK: u16 = NLDEV | 3;
const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_NDEV_NAME: u16 = 51;
const ATTR_LINK_TYPE: u16 = 65;

/// How long the kernel may take to answer: it may have to load a module first.
const PATIENCE_SECONDS: i64 = 30;
/// Room for a datagram of the kernel's.
const ROOM: usize = 64 << 10;
/// Datagrams that one request may be answered by.
const MOST_DATAGRAMS: usize = 1024;

/// A netlink socket.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    sequence: Cell<u32>,
}

impl Socket {
    fn open(protocol: SockProtocol, groups: u32) -> Result<Self, Errno> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
        Ok(Self { fd, sequence: Cell::new(0) })
    }

    /// Asks for something; hands each answer to `each`, kind and body.
    fn ask(
        &self,
        kind: u16,
        flags: u16,
        body: &[u8],
        fill: impl FnOnce(Message) -> Message,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), Errno> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let message = Message::new(kind, flags | NLM_F_REQUEST | NLM_F_ACK, sequence, body);
        send(self.fd.as_raw_fd(), &fill(message).finish(), MsgFlags::empty())?;
        let mut room = vec![0; ROOM];
        for _ in 0..MOST_DATAGRAMS {
            let (length, from) = recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), &mut room)?;
            // Other processes may write to us, too.
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            let ours = messages(room.get(..length).unwrap_or_default());
            for answer in ours.filter(|answer| answer.sequence == sequence) {
                match answer.kind {
                    NLMSG_ERROR | NLMSG_DONE => {
                        // The end of a list comes without a number where all went well.
                        let code = u32_at(answer.body, 0).unwrap_or(0).to_ne_bytes();
                        return match i32::from_ne_bytes(code) {
                            0 => Ok(()),
                            code => Err(Errno::from_raw(code.saturating_neg())),
                        };
                    }
                    kind => each(kind, answer.body),
                }
            }
        }
        Err(Errno::EPROTO)
    }
}

/// The kernel's links, addresses and routes.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

impl Routes {
    /// Opens the way to them.
    ///
    /// # Errors
    /// Where the kernel has none.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRoute, 0)? })
    }

    /// Asks for something; hands each answer to `each`, kind and body.
    pub(super) fn ask(
        &self,
        kind: u16,
        flags: u16,
        body: &[u8],
        fill: impl FnOnce(Message) -> Message,
        each: impl FnMut(u16, &[u8]),
    ) -> Result<(), Errno> {
        self.socket.ask(kind, flags, body, fill, each)
    }

    /// Gives a link its Ethernet address and its MTU, and sets it up.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_NET_ADMIN.
    pub fn set_up(&self, index: u32, mac: [u8; 6], mtu: u32) -> Result<(), Errno> {
        // ifinfomsg: family, pad, type (u16), index, flags, which of these to change.
        let body: Vec<u8> =
            [0, index, IFF_UP, IFF_UP].into_iter().flat_map(u32::to_ne_bytes).collect();
        let fill =
            |message: Message| message.with(IFLA_ADDRESS, &mac).with(IFLA_MTU, &mtu.to_ne_bytes());
        self.socket.ask(RTM_NEWLINK, 0, &body, fill, |_, _| {})
    }

    /// Gives a link another Ethernet address.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_NET_ADMIN.
    pub fn set_address(&self, index: u32, mac: [u8; 6]) -> Result<(), Errno> {
        let body: Vec<u8> = [0, index, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        self.socket.ask(RTM_NEWLINK, 0, &body, |it| it.with(IFLA_ADDRESS, &mac), |_, _| {})
    }

    /// Gives a link an IPv4 address.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_NET_ADMIN.
    pub fn add_address(&self, index: u32, ip: Ipv4Addr, prefix: u8) -> Result<(), Errno> {
        // ifaddrmsg: family, prefix length, flags, scope, index.
        let mut body = vec![AF_INET, prefix, 0, 0];
        body.extend(index.to_ne_bytes());
        let octets = ip.octets();
        let fill = |message: Message| message.with(IFA_LOCAL, &octets).with(IFA_ADDRESS, &octets);
        self.socket.ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body, fill, |_, _| {})
    }
}

/// The messages that came of some links.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Whether there was anything.
    pub about: bool,
    /// The Ethernet addresses that links were said to have, the latest last.
    pub macs: Vec<(u32, [u8; 6])>,
}

impl Heard {
    /// Takes note of a message, if it is about one of these links.
    fn note(&mut self, message: ReceivedNews<'_>, indexes: &[u32]) {
        // In ifinfomsg and in ifaddrmsg the index stands at the same place.
        let Some(index) = u32_at(message.body, 4).filter(|index| indexes.contains(index)) else {
            return;
        };
        self.about = true;
        if message.kind != RTM_NEWLINK {
            return;
        }
        let mut address = attributes(message.body, LINK_BODY).filter(|(it, _)| *it == IFLA_ADDRESS);
        if let Some(Ok(mac)) = address.next().map(|(_, value)| value.try_into()) {
            self.macs.retain(|(other, _)| *other != index);
            self.macs.push((index, mac));
        }
    }
}

/// News of links and addresses.
#[derive(Debug)]
pub struct News {
    socket: Socket,
}

impl News {
    /// Begins to listen.
    ///
    /// # Errors
    /// Where the kernel tells none.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRoute, GROUPS)? })
    }

    /// Begins to listen to news of routes, too, for [`News::hear_any`] alone.
    ///
    /// # Errors
    /// Where the kernel tells none.
    pub fn with_routes() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRoute, GROUPS | ROUTES)? })
    }

    /// Hears all that came, without waiting; whether there was anything.
    pub fn hear_any(&self) -> bool {
        let mut room = vec![0; ROOM];
        let mut any = false;
        loop {
            match recvfrom_now(&self.socket.fd, &mut room) {
                Ok((_, sender)) => any |= sender == 0,
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }

    /// Hears all that came about some links, without waiting.
    pub fn hear(&self, indexes: &[u32]) -> Heard {
        let mut heard = Heard::default();
        let mut room = vec![0; ROOM];
        loop {
            match recvfrom_now(&self.socket.fd, &mut room) {
                Ok((length, 0)) => {
                    for message in messages(room.get(..length).unwrap_or_default()) {
                        heard.note(message, indexes);
                    }
                }
                Ok(_) | Err(Errno::EINTR) => {}
                // More came than there was room for: it may have been about anything.
                Err(Errno::ENOBUFS) => heard.about = true,
                Err(_) => return heard,
            }
        }
    }
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

/// A datagram that is there already: its length and its sender.
fn recvfrom_now(fd: &OwnedFd, room: &mut [u8]) -> Result<(usize, u32), Errno> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Err(Errno::EAGAIN);
    }
    let (length, from) = recvfrom::<NetlinkAddr>(fd.as_raw_fd(), room)?;
    Ok((length, from.map_or(u32::MAX, |from| from.pid())))
}

/// The kernel's RDMA devices.
#[derive(Debug)]
pub struct Rdma {
    socket: Socket,
}

impl Rdma {
    /// Opens the way to them; the kernel loads its RDMA support for that.
    ///
    /// # Errors
    /// EPROTONOSUPPORT where the kernel has none.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRDMA, 0)? })
    }

    /// Makes an RDMA device of rxe's on a network device.
    ///
    /// # Errors
    /// The kernel's: EINVAL where it has no rxe, EPERM without CAP_NET_ADMIN, EEXIST where a device
    /// has the name.
    pub fn add_rxe(&self, name: &str, netdev: &str) -> Result<(), Errno> {
        let fill = |message: Message| {
            let named = message.with_text(ATTR_DEV_NAME, name).with_text(ATTR_LINK_TYPE, "rxe");
            named.with_text(ATTR_NDEV_NAME, netdev)
        };
        self.socket.ask(NLDEV_NEWLINK, 0, &[], fill, |_, _| {})
    }

    /// All devices, by their numbers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn devices(&self) -> Result<Vec<(u32, String)>, Errno> {
        let mut found = Vec::new();
        let each = |kind, body: &[u8]| {
            let of = |wanted| attributes(body, 0).find(|(it, _)| *it == wanted).map(|(_, it)| it);
            let index = of(ATTR_DEV_INDEX).and_then(|value| u32_at(value, 0));
            let name = of(ATTR_DEV_NAME).and_then(text);
            if let (NLDEV_GET, Some(index), Some(name)) = (kind, index, name) {
                found.push((index, name.to_owned()));
            }
        };
        self.socket.ask(NLDEV_GET, NLM_F_DUMP, &[], |message| message, each)?;
        Ok(found)
    }

    /// Gives a device another name.
    ///
    /// # Errors
    /// The kernel's: EEXIST where another has it.
    pub fn rename(&self, index: u32, name: &str) -> Result<(), Errno> {
        let fill = |message: Message| {
            message.with(ATTR_DEV_INDEX, &index.to_ne_bytes()).with_text(ATTR_DEV_NAME, name)
        };
        self.socket.ask(NLDEV_SET, 0, &[], fill, |_, _| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_and_refuses_with_its_number() {
        let routes = Routes::open().unwrap();
        let nowhere = Ipv4Addr::new(192, 0, 2, 1);
        let refused = routes.add_address(u32::MAX >> 1, nowhere, 24).unwrap_err();
        // An ordinary user is not told whether there is such a link.
        assert!(matches!(refused, Errno::ENODEV | Errno::EPERM), "{refused}");
        assert!(routes.set_up(u32::MAX >> 1, [2, 0, 0, 0, 0, 1], 1500).is_err());
    }

    #[test]
    fn nothing_is_news_where_nothing_happened() {
        let news = News::open().unwrap();
        assert_eq!(news.hear(&[u32::MAX >> 1]), Heard::default());
    }

    #[test]
    fn a_link_that_was_given_another_address_is_noticed() {
        let of = |kind, index: u32, attribute, value: &[u8]| {
            let body: Vec<u8> = [0, index, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
            Message::new(kind, 0, 0, &body).with(attribute, value).finish()
        };
        let [first, second] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let datagram = [
            of(RTM_NEWLINK, 7, IFLA_ADDRESS, &first),
            of(RTM_NEWLINK, 8, IFLA_ADDRESS, &first),
            of(RTM_NEWADDR, 9, IFLA_ADDRESS, &first),
            of(RTM_NEWLINK, 7, IFLA_ADDRESS, &second),
            of(RTM_NEWLINK, 7, IFLA_ADDRESS, &second[..5]),
            of(RTM_NEWLINK, 7, IFLA_MTU, &second),
        ]
        .concat();
        let mut heard = Heard::default();
        messages(&datagram).for_each(|message| heard.note(message, &[7, 9]));
        assert_eq!(heard, Heard { about: true, macs: vec![(7, second)] });
    }
}
