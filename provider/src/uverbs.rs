//! Answers to libibverbs' calls on its command descriptor, in place of a kernel driver's.
//!
//! Three questions matter: a new completion channel, one GID, all GIDs. The probe that chooses
//! between the ioctl and the older write form of commands is answered as a kernel would.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hostmem::address::Addresses;
use shim_abi::PortInfo;
use verbs_sys::ioctl as uapi;

use crate::context::Context;
use crate::events::EventSource;
use crate::limits::PORT;

/// Bytes for libibverbs: where, and which. The place was given with at least that length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// Address in this process.
    pub address: u64,
    /// The bytes to write there.
    pub bytes: Vec<u8>,
}

/// The answer to one ioctl.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Bytes to write.
    Bytes(Vec<Output>),
    /// A new completion channel; the descriptor's number, a u32, goes to that address.
    Channel {
        /// Where the number goes.
        address: u64,
        /// The descriptor, which libibverbs owns from then on.
        fd: OwnedFd,
        /// balboad's number of the channel.
        number: u32,
        /// The source of its events.
        source: Arc<EventSource>,
    },
}

/// The attributes of one ioctl.
struct Attributes<'a>(&'a [uapi::ib_uverbs_attr]);

impl Attributes<'_> {
    fn get(&self, id: u16) -> Result<&uapi::ib_uverbs_attr, i32> {
        self.0.iter().find(|attr| attr.attr_id == id).ok_or(libc::EINVAL)
    }

    /// A number that stands in the attribute itself.
    fn number(&self, id: u16) -> Result<u64, i32> {
        let attr = self.get(id)?;
        match attr.len {
            8 => Ok(attr.data),
            4 => Ok(u64::from(attr.data as u32)),
            _ => Err(libc::EINVAL),
        }
    }

    /// No flags are defined.
    fn no_flags(&self, id: u16) -> Result<(), i32> {
        if self.number(id)? == 0 { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Room for an answer: address and bytes.
    fn output(&self, id: u16) -> Result<(u64, usize), i32> {
        let attr = self.get(id)?;
        Ok((attr.data, attr.len.into()))
    }
}

/// Answers an ioctl on a context's command descriptor, or fails with its errno.
pub(crate) fn answer(
    context: &Context,
    object: u16,
    method: u16,
    attrs: &[uapi::ib_uverbs_attr],
) -> Result<Answer, i32> {
    let attrs = Attributes(attrs);
    if object != uapi::UVERBS_OBJECT_DEVICE {
        return Err(libc::EOPNOTSUPP);
    }
    let port = || context.query_port().map_err(|error| crate::log::refused("query GID", &error));
    match method {
        uapi::UVERBS_METHOD_INVOKE_WRITE => invoke_write(context, &attrs),
        uapi::UVERBS_METHOD_QUERY_GID_ENTRY => gid_entry(&port()?, &attrs).map(Answer::Bytes),
        uapi::UVERBS_METHOD_QUERY_GID_TABLE => gid_table(&port()?, &attrs).map(Answer::Bytes),
        _ => Err(libc::EOPNOTSUPP),
    }
}

fn invoke_write(context: &Context, attrs: &Attributes<'_>) -> Result<Answer, i32> {
    let command = attrs.number(uapi::UVERBS_ATTR_WRITE_CMD)?;
    // The core's probe comes without room for an answer.
    let (address, room) = attrs.output(uapi::UVERBS_ATTR_CORE_OUT).map_err(|_| libc::ENOSPC)?;
    if command != u64::from(uapi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
        return Err(libc::EOPNOTSUPP);
    }
    if room < size_of::<uapi::ib_uverbs_create_comp_channel_resp>() {
        return Err(libc::ENOSPC);
    }
    let (fd, number, source) = context
        .create_channel()
        .map_err(|error| crate::log::refused("ibv_create_comp_channel", &error))?;
    Ok(Answer::Channel { address, fd, number, source })
}

fn is_empty(gid: &[u8; 16]) -> bool {
    *gid == [0; 16]
}

/// A GID table entry as the kernel lays it out (`ib_uverbs_gid_entry`), cut or padded to `room`.
fn entry_bytes(port: &PortInfo, index: usize, gid: &[u8; 16], room: usize) -> Vec<u8> {
    let tagged = port.vlans.get(index).is_some_and(|vlan| *vlan != 0);
    // As the file below `gid_attrs/ndevs` has it by name.
    let netdev = if tagged { 0 } else { Addresses::look().device_index(*gid) };
    let index = index as u32;
    let mut bytes = Vec::from(*gid);
    for word in [index, PORT, uapi::IB_UVERBS_GID_TYPE_ROCE_V2, netdev] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.resize(room, 0);
    bytes
}

fn gid_entry(port: &PortInfo, attrs: &Attributes<'_>) -> Result<Vec<Output>, i32> {
    attrs.no_flags(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS)?;
    if attrs.number(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_PORT)? != u64::from(PORT) {
        return Err(libc::EINVAL);
    }
    let index = attrs.number(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX)?;
    let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
    let gid = port.gids.get(index).ok_or(libc::EINVAL)?;
    if is_empty(gid) {
        return Err(libc::ENODATA);
    }
    let (address, room) = attrs.output(uapi::UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY)?;
    Ok(vec![Output { address, bytes: entry_bytes(port, index, gid, room) }])
}

fn gid_table(port: &PortInfo, attrs: &Attributes<'_>) -> Result<Vec<Output>, i32> {
    attrs.no_flags(uapi::UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)?;
    let entry = attrs.number(uapi::UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE)?;
    let entry =
        usize::try_from(entry).ok().filter(|n| (1..=4096).contains(n)).ok_or(libc::EINVAL)?;
    let (address, room) = attrs.output(uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES)?;
    let (count_address, count_room) =
        attrs.output(uapi::UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES)?;
    let mut bytes = Vec::new();
    let mut count = 0u64;
    for (index, gid) in port.gids.iter().enumerate().filter(|(_, gid)| !is_empty(gid)) {
        bytes.extend(entry_bytes(port, index, gid, entry));
        count = count.wrapping_add(1);
    }
    if bytes.len() > room || count_room < size_of::<u64>() {
        return Err(libc::EINVAL);
    }
    let count = Output { address: count_address, bytes: Vec::from(count.to_ne_bytes()) };
    Ok(vec![Output { address, bytes }, count])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(attr_id: u16, len: u16, data: u64) -> uapi::ib_uverbs_attr {
        uapi::ib_uverbs_attr { attr_id, len, data, ..Default::default() }
    }

    fn port() -> PortInfo {
        PortInfo {
            link_up: true,
            max_mtu: 5,
            active_mtu: 5,
            mac: [2; 6],
            gids: vec![[1; 16], [0; 16], [3; 16]],
            vlans: vec![0; 3],
            pkeys: vec![0xffff],
        }
    }

    fn entry_query(port: u64, index: u64, room: u16) -> [uapi::ib_uverbs_attr; 4] {
        [attr(0, 8, port), attr(1, 8, index), attr(2, 4, 0), attr(3, room, 0x4000)]
    }

    #[test]
    fn a_gid_entry_is_laid_out_as_the_kernel_does() {
        let outputs = gid_entry(&port(), &Attributes(&entry_query(1, 2, 32))).unwrap();
        let mut expected = vec![3; 16];
        for word in [2u32, 1, 2, 0] {
            expected.extend(word.to_ne_bytes());
        }
        assert_eq!(outputs, [Output { address: 0x4000, bytes: expected }]);
    }

    #[test]
    fn empty_slots_bad_ports_and_bad_indices_fail_as_in_the_kernel() {
        let errno = |port_number, index| {
            gid_entry(&port(), &Attributes(&entry_query(port_number, index, 32))).unwrap_err()
        };
        assert_eq!(errno(1, 1), libc::ENODATA);
        assert_eq!(errno(1, 3), libc::EINVAL);
        assert_eq!(errno(2, 0), libc::EINVAL);
        assert_eq!(errno(1, u64::MAX), libc::EINVAL);
        assert_eq!(gid_entry(&port(), &Attributes(&[])).unwrap_err(), libc::EINVAL);
    }

    #[test]
    fn the_gid_table_skips_empty_slots_and_refuses_too_small_an_array() {
        let query =
            |room| [attr(0, 8, 32), attr(1, 4, 0), attr(2, room, 0x4000), attr(3, 8, 0x8000)];
        let outputs = gid_table(&port(), &Attributes(&query(96))).unwrap();
        assert_eq!(outputs[0].bytes.len(), 64);
        assert_eq!(outputs[0].bytes[32..48], [3; 16]);
        assert_eq!(outputs[1], Output { address: 0x8000, bytes: Vec::from(2u64.to_ne_bytes()) });
        for room in [0, 32, 63] {
            let refused = gid_table(&port(), &Attributes(&query(room)));
            assert_eq!(refused.unwrap_err(), libc::EINVAL);
        }
    }
}
