//! vfio-user messages as bytes: headers, requests, replies.
//!
//! Source: the vfio-user protocol specification, version 0.1; numbers and layouts that it takes
//! over from `linux/vfio.h` are named as there. All fields are little-endian. Parsing never panics
//! and copies the bytes that it keeps; the session interprets requests.

use nix::errno::Errno;

/// Bytes of the header that every message begins with.
pub(crate) const HEADER_BYTES: usize = 16;
/// Most bytes of data one message carries, here and unless the client says less.
pub(crate) const MAX_DATA: u32 = 1 << 20;
/// Most bytes of a message: the largest fixed part is far smaller than a page.
pub(crate) const MAX_MESSAGE: usize = MAX_DATA as usize + 4096;

/// Commands.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const DEVICE_RESET: u16 = 13;
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
}

/// Header flags: bits 3 to 0 are the type.
const TYPE: u32 = 0xf;
const TYPE_COMMAND: u32 = 0;
const TYPE_REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A command; whether its sender wants no reply.
    Command { no_reply: bool },
    /// A reply; whether it reports an error.
    Reply { error: bool },
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    pub(crate) kind: MessageKind,
    /// Bytes behind the header.
    pub(crate) payload: usize,
}

/// Why a byte stream makes no sense any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a message of {0} bytes: the header alone has 16, and {MAX_MESSAGE} are the limit")]
    Size(u32),
    #[error("a message of type {0}, which is neither command (0) nor reply (1)")]
    Type(u32),
}

impl Header {
    pub(crate) fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(&bytes);
        let missing = Malformed::Size(0);
        let id = fields.u16().ok_or(missing)?;
        let command = fields.u16().ok_or(missing)?;
        let size = fields.u32().ok_or(missing)?;
        let flags = fields.u32().ok_or(missing)?;
        let payload = usize::try_from(size)
            .ok()
            .filter(|size| *size <= MAX_MESSAGE)
            .and_then(|size| size.checked_sub(HEADER_BYTES))
            .ok_or(Malformed::Size(size))?;
        let kind = match flags & TYPE {
            TYPE_COMMAND => MessageKind::Command { no_reply: flags & NO_REPLY != 0 },
            TYPE_REPLY => MessageKind::Reply { error: flags & ERROR != 0 },
            other => return Err(Malformed::Type(other)),
        };
        Ok(Self { id, command, kind, payload })
    }
}

/// A whole message: header, then payload.
fn message(id: u16, command: u16, flags: u32, error: u32, payload: &[&[u8]]) -> Vec<u8> {
    let parts = payload.iter().map(|part| part.len());
    let size = parts.fold(HEADER_BYTES, usize::saturating_add);
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(id.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend(u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(error.to_le_bytes());
    for part in payload {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The reply to a command: its payload, or an error.
pub(crate) fn reply(header: &Header, outcome: Result<&[u8], Errno>) -> Vec<u8> {
    match outcome {
        Ok(payload) => message(header.id, header.command, TYPE_REPLY, 0, &[payload]),
        Err(errno) => {
            let error = u32::try_from(errno as i32).unwrap_or(0);
            message(header.id, header.command, TYPE_REPLY | ERROR, error, &[])
        }
    }
}

/// A request of ours to the client: read its memory, or write it.
pub(crate) fn dma_request(id: u16, command: u16, address: u64, count: u64, data: &[u8]) -> Vec<u8> {
    let (address, count) = (address.to_le_bytes(), count.to_le_bytes());
    message(id, command, TYPE_COMMAND, 0, &[&address, &count, data])
}

/// The data of a reply to our request to read memory: exactly the bytes asked for.
pub(crate) fn dma_data(payload: &[u8], address: u64, count: u64) -> Option<&[u8]> {
    let mut fields = Fields(payload);
    let echoed = (fields.u64()?, fields.u64()?);
    let data = fields.0;
    (echoed == (address, count) && data.len() as u64 == count).then_some(data)
}

/// Little-endian fields, one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// A write to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionWrite {
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Version { major: u16, minor: u16, data: Vec<u8> },
    DmaMap { flags: u32, offset: u64, address: u64, size: u64 },
    DmaUnmap { argsz: u32, flags: u32, address: u64, size: u64 },
    DeviceGetInfo,
    DeviceGetRegionInfo { argsz: u32, index: u32 },
    DeviceGetIrqInfo { index: u32 },
    DeviceSetIrqs { flags: u32, index: u32, start: u32, count: u32, data: Vec<u8> },
    RegionRead { offset: u64, region: u32, count: u32 },
    RegionWrite(RegionWrite),
    DeviceReset,
    RegionWriteMulti(Vec<RegionWrite>),
}

/// Fixed bytes of replies, which a request's `argsz` must leave room for.
const DEVICE_INFO_BYTES: u32 = 16;
pub(crate) const REGION_INFO_BYTES: u32 = 32;
const IRQ_INFO_BYTES: u32 = 16;
const DMA_MAP_BYTES: u32 = 32;
const DMA_UNMAP_BYTES: u32 = 24;
const IRQ_SET_BYTES: u32 = 20;
/// Bytes of each write of `REGION_WRITE_MULTI`, of which the last eight are room for its data.
const MULTI_WRITE_BYTES: usize = 24;

impl Request {
    /// Parses the payload of a command.
    ///
    /// # Errors
    /// EINVAL for one that is cut short or contradicts itself, E2BIG for more data than a message
    /// may carry, ENOTSUP for a command that is not offered.
    pub(crate) fn parse(command: u16, payload: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields(payload);
        match command {
            command::REGION_READ => {
                let RegionAccess { offset, region, count } =
                    region_access(&mut fields).ok_or(Errno::EINVAL)?;
                if count > MAX_DATA {
                    return Err(Errno::E2BIG);
                }
                Ok(Self::RegionRead { offset, region, count })
            }
            command::REGION_WRITE => {
                let RegionAccess { offset, region, count } =
                    region_access(&mut fields).ok_or(Errno::EINVAL)?;
                if count > MAX_DATA {
                    return Err(Errno::E2BIG);
                }
                let data = fields.bytes(count as usize).ok_or(Errno::EINVAL)?.to_vec();
                Ok(Self::RegionWrite(RegionWrite { region, offset, data }))
            }
            command::REGION_WRITE_MULTI => {
                write_multi(&mut fields).map(Self::RegionWriteMulti).ok_or(Errno::EINVAL)
            }
            command::DEVICE_RESET => Ok(Self::DeviceReset),
            _ => Self::parse_set_up(command, &mut fields),
        }
    }

    /// A request of a device's set-up.
    fn parse_set_up(command: u16, fields: &mut Fields<'_>) -> Result<Self, Errno> {
        let parsed = match command {
            command::VERSION => version(fields),
            command::DMA_MAP => dma_map(fields),
            command::DMA_UNMAP => dma_unmap(fields),
            command::DEVICE_GET_INFO => {
                sized(fields, DEVICE_INFO_BYTES).map(|_| Self::DeviceGetInfo)
            }
            command::DEVICE_GET_REGION_INFO => sized(fields, REGION_INFO_BYTES)
                .and_then(|argsz| Some(Self::DeviceGetRegionInfo { argsz, index: index(fields)? })),
            command::DEVICE_GET_IRQ_INFO => sized(fields, IRQ_INFO_BYTES)
                .and_then(|_| Some(Self::DeviceGetIrqInfo { index: index(fields)? })),
            command::DEVICE_SET_IRQS => set_irqs(fields),
            // Among them DEVICE_GET_REGION_IO_FDS (6): no part of a region signals accesses.
            _ => return Err(Errno::ENOTSUP),
        };
        parsed.ok_or(Errno::EINVAL)
    }
}

/// `argsz`, if it leaves room for the fixed part.
fn sized(fields: &mut Fields<'_>, least: u32) -> Option<u32> {
    fields.u32().filter(|argsz| *argsz >= least)
}

/// The index behind `argsz` and `flags`.
fn index(fields: &mut Fields<'_>) -> Option<u32> {
    fields.u32()?;
    fields.u32()
}

/// Bytes of a region, as commands that read and write it name them.
struct RegionAccess {
    offset: u64,
    region: u32,
    count: u32,
}

fn region_access(fields: &mut Fields<'_>) -> Option<RegionAccess> {
    Some(RegionAccess { offset: fields.u64()?, region: fields.u32()?, count: fields.u32()? })
}

fn version(fields: &mut Fields<'_>) -> Option<Request> {
    let (major, minor) = (fields.u16()?, fields.u16()?);
    Some(Request::Version { major, minor, data: fields.0.to_vec() })
}

fn dma_map(fields: &mut Fields<'_>) -> Option<Request> {
    sized(fields, DMA_MAP_BYTES)?;
    let flags = fields.u32()?;
    let (offset, address, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
    Some(Request::DmaMap { flags, offset, address, size })
}

fn dma_unmap(fields: &mut Fields<'_>) -> Option<Request> {
    let argsz = sized(fields, DMA_UNMAP_BYTES)?;
    let flags = fields.u32()?;
    Some(Request::DmaUnmap { argsz, flags, address: fields.u64()?, size: fields.u64()? })
}

fn set_irqs(fields: &mut Fields<'_>) -> Option<Request> {
    sized(fields, IRQ_SET_BYTES)?;
    let (flags, index) = (fields.u32()?, fields.u32()?);
    let (start, count) = (fields.u32()?, fields.u32()?);
    Some(Request::DeviceSetIrqs { flags, index, start, count, data: fields.0.to_vec() })
}

fn write_multi(fields: &mut Fields<'_>) -> Option<Vec<RegionWrite>> {
    let count = usize::try_from(fields.u64()?).ok()?;
    let writes = fields.bytes(count.checked_mul(MULTI_WRITE_BYTES)?)?;
    let write = |bytes: &[u8]| {
        let mut fields = Fields(bytes);
        let RegionAccess { offset, region, count } = region_access(&mut fields)?;
        let data = fields.bytes(count as usize)?.to_vec();
        Some(RegionWrite { region, offset, data })
    };
    writes.chunks_exact(MULTI_WRITE_BYTES).map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: &[u8]) -> Result<Header, Malformed> {
        Header::parse(bytes[..HEADER_BYTES].try_into().unwrap())
    }

    #[test]
    fn a_reply_carries_the_commands_number_and_payload_or_error() {
        let command = Header {
            id: 0x1234,
            command: command::DMA_MAP,
            kind: MessageKind::Command { no_reply: false },
            payload: 0,
        };
        let bytes = reply(&command, Ok(&[1, 2, 3]));
        assert_eq!(bytes[..], [0x34, 0x12, 2, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        let parsed = header(&bytes).unwrap();
        assert_eq!((parsed.kind, parsed.payload), (MessageKind::Reply { error: false }, 3));
        let bytes = reply(&command, Err(Errno::EINVAL));
        assert_eq!(bytes[8..], [0x21, 0, 0, 0, 22, 0, 0, 0]);
        assert_eq!(header(&bytes).unwrap().kind, MessageKind::Reply { error: true });
    }

    #[test]
    fn headers_that_leave_the_stream_unreadable_are_told_apart() {
        let mut bytes = message(1, command::VERSION, 0x10, 0, &[]);
        assert_eq!(header(&bytes).unwrap().kind, MessageKind::Command { no_reply: true });
        bytes[8] = 2;
        assert_eq!(header(&bytes), Err(Malformed::Type(2)));
        for size in [0, 15, MAX_MESSAGE as u32 + 1, u32::MAX] {
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            assert_eq!(header(&bytes), Err(Malformed::Size(size)));
        }
    }

    #[test]
    fn every_request_cut_short_by_a_byte_is_refused() {
        let fixed = [
            (command::VERSION, 4),
            (command::DMA_MAP, 32),
            (command::DMA_UNMAP, 24),
            (command::DEVICE_GET_INFO, 4),
            (command::DEVICE_GET_REGION_INFO, 12),
            (command::DEVICE_GET_IRQ_INFO, 12),
            (command::DEVICE_SET_IRQS, 20),
            (command::REGION_READ, 16),
            (command::REGION_WRITE, 16),
            (command::REGION_WRITE_MULTI, 8),
        ];
        for (command, bytes) in fixed {
            let mut payload = vec![0; bytes];
            if !matches!(command, command::REGION_READ..=command::REGION_WRITE_MULTI) {
                payload[..4].copy_from_slice(&64u32.to_le_bytes());
            }
            assert!(Request::parse(command, &payload).is_ok(), "{command}");
            payload.pop();
            assert_eq!(Request::parse(command, &payload), Err(Errno::EINVAL), "{command}");
        }
    }

    #[test]
    fn room_that_is_too_small_for_a_reply_is_refused() {
        for (command, least) in [
            (command::DMA_MAP, 32),
            (command::DMA_UNMAP, 24),
            (command::DEVICE_GET_INFO, 16),
            (command::DEVICE_GET_REGION_INFO, 32),
            (command::DEVICE_GET_IRQ_INFO, 16),
            (command::DEVICE_SET_IRQS, 20),
        ] {
            let mut payload = [0; 64];
            payload[..4].copy_from_slice(&(least - 1u32).to_le_bytes());
            assert_eq!(Request::parse(command, &payload), Err(Errno::EINVAL), "{command}");
        }
    }

    #[test]
    fn data_is_exactly_as_long_as_its_count() {
        let access = |count: u32, data: &[u8]| {
            let mut payload = vec![0; 12];
            payload.extend(count.to_le_bytes());
            payload.extend(data);
            payload
        };
        let parsed = Request::parse(command::REGION_WRITE, &access(2, &[7, 8, 9]));
        let write = RegionWrite { region: 0, offset: 0, data: vec![7, 8] };
        assert_eq!(parsed, Ok(Request::RegionWrite(write)));
        let parse = |command, payload: &[u8]| Request::parse(command, payload);
        assert_eq!(parse(command::REGION_WRITE, &access(4, &[7, 8])), Err(Errno::EINVAL));
        let large = access(MAX_DATA + 1, &[]);
        assert_eq!(parse(command::REGION_WRITE, &large), Err(Errno::E2BIG));
        assert_eq!(parse(command::REGION_READ, &large), Err(Errno::E2BIG));
    }

    #[test]
    fn writes_of_more_than_eight_bytes_or_more_writes_than_there_are_bytes_are_refused() {
        let multi = |claimed: u64, counts: &[u32]| {
            let mut payload = claimed.to_le_bytes().to_vec();
            for count in counts {
                payload.extend([0; 12]);
                payload.extend(count.to_le_bytes());
                payload.extend([1, 2, 3, 4, 5, 6, 7, 8]);
            }
            Request::parse(command::REGION_WRITE_MULTI, &payload)
        };
        let Ok(Request::RegionWriteMulti(writes)) = multi(2, &[8, 1]) else { panic!() };
        assert_eq!(writes.iter().map(|write| write.data.len()).collect::<Vec<_>>(), [8, 1]);
        for refused in [multi(1, &[9]), multi(3, &[8, 1]), multi(u64::MAX, &[8])] {
            assert_eq!(refused, Err(Errno::EINVAL));
        }
    }

    #[test]
    fn unknown_commands_are_not_supported() {
        for command in [0, 6, 11, 12, 14, 16, 17, 18, 99, u16::MAX] {
            assert_eq!(Request::parse(command, &[0; 64]), Err(Errno::ENOTSUP));
        }
    }

    #[test]
    fn data_read_from_the_client_is_what_was_asked_for_or_nothing() {
        let request = dma_request(1, command::DMA_READ, 0x1000, 4, &[]);
        let mut answer = request[HEADER_BYTES..].to_vec();
        answer.extend([1, 2, 3, 4]);
        assert_eq!(dma_data(&answer, 0x1000, 4), Some(&[1, 2, 3, 4][..]));
        assert_eq!(dma_data(&answer, 0x2000, 4), None);
        assert_eq!(dma_data(&answer, 0x1000, 5), None);
        assert_eq!(dma_data(&answer[..19], 0x1000, 4), None);
        assert_eq!(dma_data(&[], 0x1000, 4), None);
    }
}
