//! Messages of the kernel's RDMA ioctl, as libibverbs sends them to a device's command descriptor.
//!
//! A plug-in without a kernel driver answers a few of them itself: completion channels (a write
//! command wrapped into an ioctl), GID queries and the asynchronous event descriptor. All fields
//! are in the machine's byte order unless said otherwise. Source: the kernel's user-space ABI
//! (`rdma/rdma_user_ioctl_cmds.h`, `rdma/ib_user_ioctl_cmds.h`, `rdma/ib_user_ioctl_verbs.h`,
//! `rdma/ib_user_verbs.h`).

use std::mem::{offset_of, size_of};

/// Header of an RDMA ioctl; `num_attrs` attributes ([`ib_uverbs_attr`]) follow it in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_ioctl_hdr {
    /// Bytes of header and attributes.
    pub length: u16,
    /// Object the method belongs to (`UVERBS_OBJECT_*`).
    pub object_id: u16,
    /// Method (`UVERBS_METHOD_*`), numbered within its object.
    pub method_id: u16,
    /// Number of attributes.
    pub num_attrs: u16,
    /// Zero.
    pub reserved1: u64,
    /// Driver the sender takes the device for (`RDMA_DRIVER_*`).
    pub driver_id: u32,
    /// Zero.
    pub reserved2: u32,
}

/// One attribute of an RDMA ioctl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_attr {
    /// Attribute number (`UVERBS_ATTR_*`), numbered within its method.
    pub attr_id: u16,
    /// Bytes of the data.
    pub len: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    /// Element of an enumerated attribute in the first byte; zero otherwise.
    pub attr_data: u16,
    /// Input of up to 8 bytes itself, otherwise the address of input or output; for descriptors
    /// the descriptor, sign-extended.
    pub data: u64,
}

/// One GID table entry, as GID queries return it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_gid_entry {
    /// The 16 bytes of the GID in network order, as two words in memory.
    pub gid: [u64; 2],
    /// Index in the port's GID table.
    pub gid_index: u32,
    /// Port, from 1.
    pub port_num: u32,
    /// `IB_UVERBS_GID_TYPE_*`.
    pub gid_type: u32,
    /// Interface index of the network device, 0 if there is none.
    pub netdev_ifindex: u32,
}

/// Request of the write command that makes a completion channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_create_comp_channel {
    /// Address of the response in the write form of the command; unused in the ioctl form.
    pub response: u64,
}

/// Response of the write command that makes a completion channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_create_comp_channel_resp {
    /// The new descriptor.
    pub fd: u32,
}

/// Record read from the asynchronous event descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_async_event_desc {
    /// Port number, or the object's address in the process (CQ, QP, SRQ, WQ).
    pub element: u64,
    /// `IBV_EVENT_*`.
    pub event_type: u32,
    /// Zero.
    pub reserved: u32,
}

/// Record read from a completion channel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_uverbs_comp_event_desc {
    /// Address of the `ibv_cq` in the process.
    pub cq_handle: u64,
}

/// The request number of the RDMA ioctl: read and write, type 0x1b, number 1, a header's size.
pub const RDMA_VERBS_IOCTL: u64 =
    (3 << 30) | ((size_of::<ib_uverbs_ioctl_hdr>() as u64) << 16) | (0x1b << 8) | 1;

/// Attribute flag: the receiver must know the attribute or refuse the call.
pub const UVERBS_ATTR_F_MANDATORY: u16 = 1 << 0;
/// Attribute flag, set by the receiver: the output was written.
pub const UVERBS_ATTR_F_VALID_OUTPUT: u16 = 1 << 1;

/// Longest input, in bytes, that lies in the attribute itself.
pub const UVERBS_ATTR_INLINE_BYTES: u16 = 8;

/// Object: the device itself.
pub const UVERBS_OBJECT_DEVICE: u16 = 0;
/// Object: the descriptor of asynchronous events.
pub const UVERBS_OBJECT_ASYNC_EVENT: u16 = 16;

/// Device method: a write command wrapped into an ioctl.
pub const UVERBS_METHOD_INVOKE_WRITE: u16 = 0;
/// Device method: handles of all objects of a kind.
pub const UVERBS_METHOD_INFO_HANDLES: u16 = 1;
/// Device method: port attributes.
pub const UVERBS_METHOD_QUERY_PORT: u16 = 2;
/// Device method: a new context.
pub const UVERBS_METHOD_GET_CONTEXT: u16 = 3;
/// Device method: attributes of an existing context.
pub const UVERBS_METHOD_QUERY_CONTEXT: u16 = 4;
/// Device method: all GIDs of all ports.
pub const UVERBS_METHOD_QUERY_GID_TABLE: u16 = 5;
/// Device method: one GID.
pub const UVERBS_METHOD_QUERY_GID_ENTRY: u16 = 6;
/// Asynchronous event method: a new descriptor.
pub const UVERBS_METHOD_ASYNC_EVENT_ALLOC: u16 = 0;

/// Attribute of every method: the driver's own input.
pub const UVERBS_ATTR_UHW_IN: u16 = 1 << 12;
/// Attribute of every method: the driver's own output.
pub const UVERBS_ATTR_UHW_OUT: u16 = UVERBS_ATTR_UHW_IN + 1;

/// Wrapped write command: input, without the write header.
pub const UVERBS_ATTR_CORE_IN: u16 = 0;
/// Wrapped write command: output.
pub const UVERBS_ATTR_CORE_OUT: u16 = 1;
/// Wrapped write command: its number (`IB_USER_VERBS_CMD_*`), 64 bits inline.
pub const UVERBS_ATTR_WRITE_CMD: u16 = 2;

/// GID table query: bytes of one entry in the caller's array, 64 bits inline.
pub const UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE: u16 = 0;
/// GID table query: flags, none defined, 32 bits inline.
pub const UVERBS_ATTR_QUERY_GID_TABLE_FLAGS: u16 = 1;
/// GID table query: the caller's array; its length is entry size times entries.
pub const UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES: u16 = 2;
/// GID table query: number of entries written, 64 bits.
pub const UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES: u16 = 3;

/// GID query: port from 1, 64 bits inline.
pub const UVERBS_ATTR_QUERY_GID_ENTRY_PORT: u16 = 0;
/// GID query: index in the port's table, 64 bits inline.
pub const UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX: u16 = 1;
/// GID query: flags, none defined, 32 bits inline.
pub const UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS: u16 = 2;
/// GID query: the entry.
pub const UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY: u16 = 3;

/// Asynchronous event descriptor: the new descriptor, by way of the attribute's data.
pub const UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE: u16 = 0;

/// Write command: a new completion channel.
pub const IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: u32 = 17;
/// Bit of a write command's number that marks the extended form.
pub const IB_USER_VERBS_CMD_FLAG_EXTENDED: u32 = 0x8000_0000;

/// GID type: InfiniBand.
pub const IB_UVERBS_GID_TYPE_IB: u32 = 0;
/// GID type: RoCE v1.
pub const IB_UVERBS_GID_TYPE_ROCE_V1: u32 = 1;
/// GID type: RoCE v2.
pub const IB_UVERBS_GID_TYPE_ROCE_V2: u32 = 2;

/// Bit of the kernel features that libibverbs finds: optional access flags need not be taken off.
pub const IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1 << 0;

/// Driver number: none of the kernel's.
pub const RDMA_DRIVER_UNKNOWN: u32 = 0;
/// Driver number: soft-RoCE, which stands behind a shadow device.
pub const RDMA_DRIVER_RXE: u32 = 14;

const _: () = {
    assert!(size_of::<ib_uverbs_ioctl_hdr>() == 24);
    assert!(offset_of!(ib_uverbs_ioctl_hdr, num_attrs) == 6);
    assert!(offset_of!(ib_uverbs_ioctl_hdr, reserved1) == 8);
    assert!(offset_of!(ib_uverbs_ioctl_hdr, driver_id) == 16);
    assert!(size_of::<ib_uverbs_attr>() == 16);
    assert!(offset_of!(ib_uverbs_attr, flags) == 4);
    assert!(offset_of!(ib_uverbs_attr, data) == 8);
    assert!(size_of::<ib_uverbs_gid_entry>() == 32);
    assert!(offset_of!(ib_uverbs_gid_entry, gid_index) == 16);
    assert!(offset_of!(ib_uverbs_gid_entry, netdev_ifindex) == 28);
    assert!(size_of::<ib_uverbs_create_comp_channel>() == 8);
    assert!(size_of::<ib_uverbs_create_comp_channel_resp>() == 4);
    assert!(size_of::<ib_uverbs_async_event_desc>() == 16);
    assert!(size_of::<ib_uverbs_comp_event_desc>() == 8);
    assert!(RDMA_VERBS_IOCTL == 0xc018_1b01);
};
