//! The kernel's user interface of RDMA CM, version 4: where the fields of its commands and answers lie.
//!
//! A command is hostile bytes, which the receiver has copied once. Only this module parses them, into checked
//! values; the provider follows a command's pointers.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use fpga_regs::engine::qp::QpType;
use nix::errno::Errno;
use shim_abi::rdma_cm::EVENT_LEAST;
pub use shim_abi::rdma_cm::{HEADER, event, number};

/// Bytes that a command has for private data; how many of them count, it says.
const PRIVATE_DATA: usize = 256;

/// Numbers of port spaces.
pub mod space {
    #![allow(missing_docs, reason = "the interface's names")]
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// Levels and names of options.
pub mod option {
    #![allow(missing_docs, reason = "the interface's names")]
    pub const LEVEL_ID: u32 = 0;
    pub const LEVEL_IB: u32 = 1;
    pub const ID_TOS: u32 = 0;
    pub const ID_REUSEADDR: u32 = 1;
    pub const ID_AFONLY: u32 = 2;
    pub const ID_ACK_TIMEOUT: u32 = 3;
    pub const IB_PATH: u32 = 1;
}

/// The subjects of QUERY.
pub mod query {
    #![allow(missing_docs, reason = "the interface's names")]
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
}

/// Address families, with the sizes of their socket addresses.
mod family {
    pub(super) const INET: (u16, usize) = (2, 16);
    pub(super) const INET6: (u16, usize) = (10, 28);
    pub(super) const IB: (u16, usize) = (27, 48);
}

/// Lengths of answers, and which of them older programs do without the end of.
pub mod length {
    #![allow(missing_docs, reason = "the command's name")]
    pub const ID: usize = 4;
    pub const EVENTS_REPORTED: usize = 4;
    pub const QUERY_ROUTE: usize = 208;
    pub const QUERY_ROUTE_LEAST: usize = 200;
    pub const QUERY_ADDR: usize = 280;
    pub const QUERY_ADDR_LEAST: usize = 272;
    pub const QUERY_PATH: usize = 8;
    pub const PATH: usize = 72;
    pub const QP_ATTR: usize = 144;
    pub const EVENT: usize = 336;
}

/// The flags of the only path: of management, primary, both ways.
pub const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

/// A socket address as a program gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// None.
    None,
    /// One of IP.
    Ip(SocketAddr),
    /// One of InfiniBand's own, which is not offered.
    Infiniband,
    /// A family of none of RDMA CM's networks.
    Other,
}

impl Address {
    /// Reads one; `None` where the bytes are fewer than its family's.
    fn load(bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let number = fields.u16(0)?;
        let port = fields.array(2).map(u16::from_be_bytes);
        Some(match number {
            0 => Self::None,
            _ if number == family::INET.0 => {
                let ip = fields.array::<4>(4)?;
                Self::Ip(SocketAddrV4::new(ip.into(), port?).into())
            }
            _ if number == family::INET6.0 => {
                let flow = fields.array(4).map(u32::from_be_bytes)?;
                let (ip, scope) = (fields.array::<16>(8)?, fields.u32(24)?);
                Self::Ip(SocketAddrV6::new(ip.into(), port?, flow, scope).into())
            }
            _ if number == family::IB.0 => Self::Infiniband,
            _ => Self::Other,
        })
    }

    /// The size of its family's socket addresses; 0 where it has none.
    fn size(self) -> usize {
        match self {
            Self::Ip(SocketAddr::V4(_)) => family::INET.1,
            Self::Ip(SocketAddr::V6(_)) => family::INET6.1,
            Self::Infiniband => family::IB.1,
            Self::None | Self::Other => 0,
        }
    }
}

/// The bytes of an address, and how many they are.
#[must_use]
pub fn store(address: SocketAddr) -> ([u8; 28], u16) {
    let (number, size) = match address {
        SocketAddr::V4(_) => family::INET,
        SocketAddr::V6(_) => family::INET6,
    };
    let mut answer = Output::new(28);
    answer.put(0, &number.to_ne_bytes());
    answer.put(2, &address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => answer.put(4, &address.ip().octets()),
        SocketAddr::V6(address) => {
            answer.put(4, &address.flowinfo().to_be_bytes());
            answer.put(8, &address.ip().octets());
            answer.put(24, &address.scope_id().to_ne_bytes());
        }
    }
    (answer.0.try_into().unwrap_or([0; 28]), u16::try_from(size).unwrap_or(0))
}

/// The bytes of InfiniBand's socket address that names a GID and a service.
#[must_use]
pub fn store_infiniband(gid: [u8; 16], service: u64, pkey: u16) -> ([u8; 48], u16) {
    let mut answer = Output::new(48);
    answer.put(0, &family::IB.0.to_ne_bytes());
    answer.put(2, &pkey.to_be_bytes());
    answer.put(8, &gid);
    answer.put(24, &service.to_be_bytes());
    (answer.0.try_into().unwrap_or([0; 48]), u16::try_from(family::IB.1).unwrap_or(0))
}

/// The GID that an IP address is.
#[must_use]
pub fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A program's parameters for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// Its queue pair.
    pub qpn: u32,
    /// The program's own bytes for the peer.
    pub private_data: &'a [u8],
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it has under way.
    pub initiator_depth: u8,
    /// Whether it has end-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the interface's names")]
pub enum Command<'a> {
    CreateId {
        uid: u64,
        space: u16,
        kind: QpType,
    },
    DestroyId {
        id: u32,
    },
    Bind {
        id: u32,
        address: Address,
    },
    ResolveAddr {
        id: u32,
        source: Address,
        destination: Address,
        timeout_ms: u32,
    },
    ResolveRoute {
        id: u32,
    },
    QueryRoute {
        id: u32,
    },
    Query {
        id: u32,
        what: u32,
    },
    Connect {
        id: u32,
        param: ConnParam<'a>,
    },
    Listen {
        id: u32,
        backlog: u32,
    },
    /// `param` of the side that is asked; the side that asks says by none that it is ready.
    Accept {
        id: u32,
        uid: u64,
        param: Option<ConnParam<'a>>,
    },
    Reject {
        id: u32,
        reason: u8,
        private_data: &'a [u8],
    },
    Disconnect {
        id: u32,
    },
    InitQpAttr {
        id: u32,
        state: u32,
    },
    GetEvent,
    SetOption {
        id: u32,
        level: u32,
        name: u32,
        value: &'a [u8],
    },
    Notify {
        id: u32,
        event: u32,
    },
    Join {
        id: u32,
        uid: u64,
        group: Address,
    },
    Leave {
        join: u32,
    },
    MigrateId {
        id: u32,
    },
    WriteEvent {
        id: u32,
        event: u32,
        status: u32,
        argument: u64,
    },
}

impl Command<'_> {
    /// Whether unread events end with the object that it ends, or moves.
    #[must_use]
    pub fn ends_events(&self) -> bool {
        matches!(self, Self::DestroyId { .. } | Self::Leave { .. } | Self::MigrateId { .. })
    }

    /// The identifier that it may change, where it does more than ask.
    #[must_use]
    pub fn changes(&self) -> Option<u32> {
        match *self {
            Self::CreateId { .. }
            | Self::GetEvent
            | Self::InitQpAttr { .. }
            | Self::Leave { .. }
            | Self::Query { .. }
            | Self::QueryRoute { .. } => None,
            Self::DestroyId { id }
            | Self::Bind { id, .. }
            | Self::ResolveAddr { id, .. }
            | Self::ResolveRoute { id }
            | Self::Connect { id, .. }
            | Self::Listen { id, .. }
            | Self::Accept { id, .. }
            | Self::Reject { id, .. }
            | Self::Disconnect { id }
            | Self::SetOption { id, .. }
            | Self::Notify { id, .. }
            | Self::Join { id, .. }
            | Self::MigrateId { id }
            | Self::WriteEvent { id, .. } => Some(id),
        }
    }
}

/// Reads a command, and how long its answer may be.
///
/// # Errors
/// The kernel's: EINVAL where it is not whole or has values that nothing has, ENOSPC where its answer has no
/// room, ENOSYS where nothing does it any more.
pub fn parse(bytes: &[u8]) -> Result<(Command<'_>, usize), Errno> {
    let header = Fields(bytes);
    let (number, length) = (header.u32(0), header.u16(4).map(usize::from));
    let (Some(number), Some(length), Some(out)) = (number, length, header.u16(6)) else {
        return Err(Errno::EINVAL);
    };
    // Newer commands are numbers that the kernels before them did not have either.
    if number > number::WRITE_CM_EVENT {
        return Err(Errno::EINVAL);
    }
    let body = bytes.get(HEADER..).unwrap_or_default();
    let (body, behind) = body.split_at_checked(length).ok_or(Errno::EINVAL)?;
    if number == number::GET_OPTION {
        return Err(Errno::ENOSYS);
    }
    let out = usize::from(out);
    if out < least_answer(number) {
        return Err(Errno::ENOSPC);
    }
    Ok((body_of(number, Fields(body), behind).ok_or(Errno::EINVAL)?, out))
}

/// The shortest answer of a command that is taken.
fn least_answer(number: u32) -> usize {
    match number {
        number::CREATE_ID | number::JOIN_IP_MCAST | number::JOIN_MCAST => length::ID,
        number::DESTROY_ID | number::LEAVE_MCAST | number::MIGRATE_ID => length::EVENTS_REPORTED,
        number::QUERY_ROUTE => length::QUERY_ROUTE_LEAST,
        number::INIT_QP_ATTR => length::QP_ATTR,
        number::GET_EVENT => EVENT_LEAST,
        _ => 0,
    }
}

/// The command of a number and a body; `None` where the body is too short, or contradicts itself.
fn body_of<'a>(number: u32, body: Fields<'a>, behind: &'a [u8]) -> Option<Command<'a>> {
    Some(match number {
        number::CREATE_ID => {
            body.has(24)?;
            let kind = QpType(body.u8(18)?);
            Command::CreateId { uid: body.u64(0)?, space: body.u16(16)?, kind }
        }
        number::DESTROY_ID => Command::DestroyId { id: body.u32(8)? },
        number::BIND_IP => Command::Bind { id: body.u32(36)?, address: body.small_address(8)? },
        number::BIND => {
            let size = body.u16(4).filter(|_| body.u16(6) == Some(0))?;
            Command::Bind { id: body.u32(0)?, address: body.sized_address(8, size)? }
        }
        number::RESOLVE_IP => Command::ResolveAddr {
            source: body.source_address(0)?,
            destination: body.small_address(28)?,
            id: body.u32(56)?,
            timeout_ms: body.u32(60)?,
        },
        number::RESOLVE_ADDR => resolve_addr(body)?,
        number::RESOLVE_ROUTE => Command::ResolveRoute { id: body.u32(0)? },
        number::QUERY_ROUTE => Command::QueryRoute { id: body.u32(8)? },
        number::QUERY => Command::Query { id: body.u32(8)?, what: body.u32(12)? },
        number::CONNECT => {
            Command::Connect { id: body.u32(272)?, param: body.within(280)?.conn_param(0)?? }
        }
        number::LISTEN => Command::Listen { id: body.u32(0)?, backlog: body.u32(4)? },
        number::ACCEPT => Command::Accept {
            uid: body.u64(0)?,
            param: body.within(288)?.conn_param(8)?,
            id: body.u32(280)?,
        },
        number::REJECT => Command::Reject {
            id: body.u32(0)?,
            reason: body.u8(5)?,
            private_data: body.private_data(8, body.u8(4)?)?,
        },
        number::DISCONNECT => Command::Disconnect { id: body.u32(0)? },
        number::INIT_QP_ATTR => Command::InitQpAttr { id: body.u32(8)?, state: body.u32(12)? },
        number::GET_EVENT => Command::GetEvent,
        number::SET_OPTION => Command::SetOption {
            id: body.u32(8)?,
            level: body.u32(12)?,
            name: body.u32(16)?,
            value: {
                let length = usize::try_from(body.u32(20)?).ok()?;
                Some(behind).filter(|value| value.len() == length)?
            },
        },
        number::NOTIFY => Command::Notify { id: body.u32(0)?, event: body.u32(4)? },
        number::JOIN_IP_MCAST => {
            let group = body.small_address(16)?;
            Command::Join { uid: body.u64(8)?, id: body.u32(44)?, group }
        }
        number::JOIN_MCAST => {
            // An identifier that only sends joins as others do: a card sends to groups that it is not in.
            let (size, flags) = (body.u16(20)?, body.u16(22)?);
            let group = body.sized_address(24, size).filter(|_| flags <= 1)?;
            Command::Join { uid: body.u64(8)?, id: body.u32(16)?, group }
        }
        number::LEAVE_MCAST => Command::Leave { join: body.u32(8)? },
        number::MIGRATE_ID => Command::MigrateId { id: body.u32(8)? },
        number::WRITE_CM_EVENT => Command::WriteEvent {
            id: body.u32(0)?,
            event: body.u32(8)?,
            status: body.u32(12)?,
            argument: body.u64(16)?,
        },
        _ => return None,
    })
}

/// The command that has an address resolved.
fn resolve_addr<'a>(body: Fields<'a>) -> Option<Command<'a>> {
    let (source, destination) = (16, 144);
    let (source_size, destination_size) = (body.u16(8)?, body.u16(10)?);
    Some(Command::ResolveAddr {
        id: body.u32(0).filter(|_| body.u32(12) == Some(0))?,
        timeout_ms: body.u32(4)?,
        source: match source_size {
            0 => body.source_address(source)?,
            size => body.sized_address(source, size)?,
        },
        destination: body.sized_address(destination, destination_size)?,
    })
}

/// Bytes with fields in them; one that is not there is `None`.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// Fails unless there are so many bytes.
    fn has(self, length: usize) -> Option<()> {
        (self.0.len() >= length).then_some(())
    }

    /// The fields themselves, if there are so many bytes.
    fn within(self, length: usize) -> Option<Self> {
        self.has(length).map(|()| self)
    }

    /// A network's address where there is room for IP's.
    fn small_address(self, at: usize) -> Option<Address> {
        let address = Address::load(self.0.get(at..at.checked_add(family::INET6.1)?)?)?;
        matches!(address, Address::Ip(_)).then_some(address)
    }

    /// The same, or none.
    fn source_address(self, at: usize) -> Option<Address> {
        match self.u16(at)? {
            0 => Some(Address::None),
            _ => self.small_address(at),
        }
    }

    /// A network's address of a size that is told beside it, where there is room for any.
    fn sized_address(self, at: usize, size: u16) -> Option<Address> {
        let address = Address::load(self.0.get(at..at.checked_add(128)?)?)?;
        (size > 0 && address.size() == usize::from(size)).then_some(address)
    }

    fn private_data(self, at: usize, length: u8) -> Option<&'a [u8]> {
        self.0.get(at..at.checked_add(PRIVATE_DATA)?)?.get(..usize::from(length))
    }

    /// The parameters at an offset; the outer `None` is for missing bytes, the inner one for parameters marked as not
    /// valid.
    fn conn_param(self, at: usize) -> Option<Option<ConnParam<'a>>> {
        let param = Self(self.0.get(at..at.checked_add(272)?)?);
        if param.u8(271)? == 0 {
            return Some(None);
        }
        Some(Some(ConnParam {
            qpn: param.u32(0)?,
            private_data: param.private_data(8, param.u8(264)?)?,
            srq: param.u8(265)? != 0,
            responder_resources: param.u8(266)?,
            initiator_depth: param.u8(267)?,
            flow_control: param.u8(268)? != 0,
            retry_count: param.u8(269)?,
            rnr_retry_count: param.u8(270)?,
        }))
    }
}

/// An answer that is written field by field.
#[derive(Debug)]
pub struct Output(Vec<u8>);

impl Output {
    /// Zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self(vec![0; length])
    }

    /// Writes a field, as far as it fits.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    /// The bytes, as many as there is room for.
    #[must_use]
    pub fn cut(mut self, most: usize) -> Vec<u8> {
        self.0.truncate(most);
        self.0
    }
}
