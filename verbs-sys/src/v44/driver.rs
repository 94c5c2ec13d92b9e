//! What libibverbs and a provider plug-in exchange: private ABI 34, as of rdma-core 44.0.
//!
//! Debian installs no header for it; this is written after the interface itself, and its layout is
//! asserted below. libibverbs allocates [`verbs_sysfs_dev`], the plug-in everything else, with a
//! structure of its own around it where it needs one.
//!
//! A plug-in registers from an ELF constructor with
//! `verbs_register_driver_34(ops: *const verbs_device_ops)`. Its `alloc_context` calls
//! `_verbs_init_and_alloc_context(device: *mut ibv_device, cmd_fd: c_int, alloc_size: usize,
//! context_offset: *mut verbs_context, driver_id: u32) -> *mut c_void` (where `context_offset` is
//! the offset of the `verbs_context` in the plug-in's structure, passed as a pointer) and
//! `verbs_set_ops(context: *mut verbs_context, ops: *const verbs_context_ops)`, and `free_context`
//! calls `verbs_uninit_context(context: *mut verbs_context)`.

#![expect(non_camel_case_types, reason = "the names are the C interface's")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use super::verbs::*;

/// Private ABI number: the suffix of the register function and of the plug-in's file name.
pub const IBVERBS_PABI_VERSION: u32 = 34;

/// Node of a doubly linked list of libibverbs.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct list_node {
    /// Next node; itself in an empty list.
    pub next: *mut list_node,
    /// Previous node; itself in an empty list.
    pub prev: *mut list_node,
}

/// What a match entry compares: the end of a match table.
pub const VERBS_MATCH_SENTINEL: u8 = 0;
/// What a match entry compares: PCI vendor and device.
pub const VERBS_MATCH_PCI: u8 = 1;
/// What a match entry compares: a pattern of the device's modalias or of its name.
pub const VERBS_MATCH_MODALIAS: u8 = 2;
/// What a match entry compares: the kernel driver's number.
pub const VERBS_MATCH_DRIVER_ID: u8 = 3;

/// One entry of a plug-in's match table, which ends with [`VERBS_MATCH_SENTINEL`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_match_ent {
    /// The plug-in's own.
    pub driver_data: *mut c_void,
    /// What to compare with, by `kind`.
    pub u: verbs_match_ent_u,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// `VERBS_MATCH_*`.
    pub kind: u8,
}

/// What a match entry compares a device with.
#[repr(C)]
#[derive(Clone, Copy)]
pub union verbs_match_ent_u {
    /// Zero-terminated file name pattern; a device's name matches as `rdma_device:*N` and the name.
    pub modalias: *const c_char,
    /// `RDMA_DRIVER_*`.
    pub driver_id: u64,
}

/// Flag of [`verbs_sysfs_dev`]: the modalias was read.
pub const VSYSFS_READ_MODALIAS: c_uint = 1 << 0;
/// Flag of [`verbs_sysfs_dev`]: the node GUID was read, or was set by the plug-in.
pub const VSYSFS_READ_NODE_GUID: c_uint = 1 << 1;

/// A device that libibverbs has found; `alloc_device` may fill in what sysfs does not have.
#[repr(C)]
pub struct verbs_sysfs_dev {
    /// Link in libibverbs' list.
    pub entry: list_node,
    /// The plug-in's own.
    pub provider_data: *mut c_void,
    /// Entry of the match table that fitted; null if `match_device` decided.
    pub match_: *const verbs_match_ent,
    /// `VSYSFS_READ_*`.
    pub flags: c_uint,
    /// Name of the character device, `uverbsN`.
    pub sysfs_name: [c_char; IBV_SYSFS_NAME_MAX as usize],
    /// Its device number.
    pub sysfs_cdev: libc::dev_t,
    /// Name of the RDMA device.
    pub ibdev_name: [c_char; IBV_SYSFS_NAME_MAX as usize],
    /// Its directory in sysfs.
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX as usize],
    /// Its modalias.
    pub modalias: [c_char; 512],
    /// Its node GUID, in network order.
    pub node_guid: u64,
    /// `RDMA_DRIVER_*`.
    pub driver_id: u32,
    /// `IBV_NODE_*`.
    pub node_type: ibv_node_type,
    /// Index the kernel gave it, -1 if none.
    pub ibdev_idx: c_int,
    /// Number of ports, 0 if not known.
    pub num_ports: u32,
    /// ABI number of its character device.
    pub abi_ver: u32,
    /// Time its directory was made, by which libibverbs tells devices of one name apart.
    pub time_created: libc::timespec,
}

/// What a plug-in registers.
#[repr(C)]
pub struct verbs_device_ops {
    /// Name of the plug-in.
    pub name: *const c_char,
    /// Lowest ABI number of a character device it handles.
    pub match_min_abi_version: u32,
    /// Highest ABI number of a character device it handles.
    pub match_max_abi_version: u32,
    /// Devices it claims; null if `match_device` decides alone.
    pub match_table: *const verbs_match_ent,
    /// For static linking; null.
    pub static_providers: *mut *const verbs_device_ops,
    /// Whether it claims a device.
    pub match_device: Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> bool>,
    /// Opens a device; `cmd_fd` becomes the context's.
    pub alloc_context: Option<
        unsafe extern "C" fn(
            device: *mut ibv_device,
            cmd_fd: c_int,
            private_data: *mut c_void,
        ) -> *mut verbs_context,
    >,
    /// Opens a device by another process's descriptor.
    pub import_context:
        Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context>,
    /// Makes the device for a match.
    pub alloc_device:
        Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> *mut verbs_device>,
    /// Frees the device.
    pub uninit_device: Option<unsafe extern "C" fn(device: *mut verbs_device)>,
}

/// Bit of `verbs_device::core_support`: optional access flags need not be taken off.
pub const IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1 << 0;

/// A plug-in's device.
#[repr(C)]
pub struct verbs_device {
    /// What programs see; filled in by libibverbs.
    pub device: ibv_device,
    /// The plug-in's operations; filled in by libibverbs.
    pub ops: *const verbs_device_ops,
    /// Atomic reference count of libibverbs.
    pub refcount: c_int,
    /// Link in libibverbs' list.
    pub entry: list_node,
    /// What was found; filled in by libibverbs.
    pub sysfs: *mut verbs_sysfs_dev,
    /// `IB_UVERBS_CORE_SUPPORT_*`.
    pub core_support: u64,
}

/// Kind of a memory region: an ordinary one.
pub const IBV_MR_TYPE_MR: ibv_mr_type = 0;
/// Kind of a memory region: one that swallows what is written and reads as zero.
pub const IBV_MR_TYPE_NULL_MR: ibv_mr_type = 1;
/// Kind of a memory region: one of another process.
pub const IBV_MR_TYPE_IMPORTED_MR: ibv_mr_type = 2;
/// Kind of a memory region: one of a dma-buf.
pub const IBV_MR_TYPE_DMABUF_MR: ibv_mr_type = 3;

/// Kind of a memory region (`IBV_MR_TYPE_*`).
pub type ibv_mr_type = c_uint;

/// A plug-in's memory region.
#[repr(C)]
pub struct verbs_mr {
    /// What programs see.
    pub ibv_mr: ibv_mr,
    /// `IBV_MR_TYPE_*`; the plug-in sets it.
    pub mr_type: ibv_mr_type,
    /// Access flags (`IBV_ACCESS_*`); the plug-in sets them, and libibverbs looks at them when the
    /// region is deregistered.
    pub access: c_int,
}

/// A plug-in's XRC domain.
#[repr(C)]
pub struct verbs_xrcd {
    /// What programs see.
    pub xrcd: ibv_xrcd,
    /// Valid fields: bit 0 handle.
    pub comp_mask: u32,
    /// The kernel's handle.
    pub handle: u32,
}

/// A plug-in's shared receive queue.
#[repr(C)]
pub struct verbs_srq {
    /// What programs see.
    pub srq: ibv_srq,
    /// `IBV_SRQT_*`.
    pub srq_type: ibv_srq_type,
    /// XRC domain.
    pub xrcd: *mut verbs_xrcd,
    /// Completion queue.
    pub cq: *mut ibv_cq,
    /// XRC SRQ number.
    pub srq_num: u32,
}

/// A plug-in's completion queue: the extended form begins with the plain one.
#[repr(C)]
pub union verbs_cq {
    /// Plain form.
    pub cq: ManuallyDrop<ibv_cq>,
    /// Extended form.
    pub cq_ex: ManuallyDrop<ibv_cq_ex>,
}

/// Bit of `verbs_qp::comp_mask`: the QP has an XRC domain.
pub const VERBS_QP_XRCD: u32 = 1 << 0;
/// Bit of `verbs_qp::comp_mask`: the extended form is filled in, and `ibv_qp_to_qp_ex` gives it.
pub const VERBS_QP_EX: u32 = 1 << 1;

/// A plug-in's queue pair.
#[repr(C)]
pub struct verbs_qp {
    /// What programs see.
    pub u: verbs_qp_u,
    /// `VERBS_QP_*`.
    pub comp_mask: u32,
    /// XRC domain.
    pub xrcd: *mut verbs_xrcd,
}

/// What programs see of a queue pair: the extended form begins with the plain one.
#[repr(C)]
pub union verbs_qp_u {
    /// Plain form.
    pub qp: ManuallyDrop<ibv_qp>,
    /// Extended form.
    pub qp_ex: ManuallyDrop<ibv_qp_ex>,
}

/// An operation whose arguments this project has no use for.
pub type UntypedOp = unsafe extern "C" fn();

/// The verbs of a context, in alphabetical order; libibverbs copies those that are not null.
///
/// Those that return `c_int` return 0 or a positive error number, but for `poll_cq` (entries, or
/// negative); those that return a pointer return null and set `errno`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_context_ops {
    /// `ibv_advise_mr`.
    pub advise_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sge: u32,
        ) -> c_int,
    >,
    /// `ibv_alloc_dm`.
    pub alloc_dm: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm,
    >,
    /// `ibv_alloc_mw`.
    pub alloc_mw:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw>,
    /// `ibv_alloc_null_mr`.
    pub alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
    /// `ibv_alloc_parent_domain`.
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    /// `ibv_alloc_pd`.
    pub alloc_pd: Option<unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_pd>,
    /// `ibv_alloc_td`.
    pub alloc_td: Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td,
    >,
    /// Told of each asynchronous event that the program reads.
    pub async_event:
        Option<unsafe extern "C" fn(context: *mut ibv_context, event: *mut ibv_async_event)>,
    /// `ibv_attach_counters_point_flow`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub attach_counters_point_flow: Option<UntypedOp>,
    /// `ibv_attach_mcast`.
    pub attach_mcast:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int>,
    /// `ibv_bind_mw`.
    pub bind_mw: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int,
    >,
    /// `ibv_close_xrcd`.
    pub close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
    /// Told of each completion event that the program reads.
    pub cq_event: Option<unsafe extern "C" fn(cq: *mut ibv_cq)>,
    /// `ibv_create_ah`.
    pub create_ah:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah>,
    /// `ibv_create_counters`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub create_counters: Option<UntypedOp>,
    /// `ibv_create_cq`.
    pub create_cq: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            cqe: c_int,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq,
    >,
    /// `ibv_create_cq_ex`.
    pub create_cq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    /// `ibv_create_flow`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub create_flow: Option<UntypedOp>,
    /// `ibv_create_flow_action_esp`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub create_flow_action_esp: Option<UntypedOp>,
    /// `ibv_create_qp`.
    pub create_qp:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp>,
    /// `ibv_create_qp_ex`.
    pub create_qp_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    /// `ibv_create_rwq_ind_table`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub create_rwq_ind_table: Option<UntypedOp>,
    /// `ibv_create_srq`.
    pub create_srq:
        Option<unsafe extern "C" fn(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq>,
    /// `ibv_create_srq_ex`.
    pub create_srq_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    /// `ibv_create_wq`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub create_wq: Option<UntypedOp>,
    /// `ibv_dealloc_mw`.
    pub dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
    /// `ibv_dealloc_pd`.
    pub dealloc_pd: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> c_int>,
    /// `ibv_dealloc_td`.
    pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
    /// `ibv_dereg_mr`.
    pub dereg_mr: Option<unsafe extern "C" fn(mr: *mut verbs_mr) -> c_int>,
    /// `ibv_destroy_ah`.
    pub destroy_ah: Option<unsafe extern "C" fn(ah: *mut ibv_ah) -> c_int>,
    /// `ibv_destroy_counters`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub destroy_counters: Option<UntypedOp>,
    /// `ibv_destroy_cq`.
    pub destroy_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int>,
    /// `ibv_destroy_flow`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub destroy_flow: Option<UntypedOp>,
    /// `ibv_destroy_flow_action`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub destroy_flow_action: Option<UntypedOp>,
    /// `ibv_destroy_qp`.
    pub destroy_qp: Option<unsafe extern "C" fn(qp: *mut ibv_qp) -> c_int>,
    /// `ibv_destroy_rwq_ind_table`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub destroy_rwq_ind_table: Option<UntypedOp>,
    /// `ibv_destroy_srq`.
    pub destroy_srq: Option<unsafe extern "C" fn(srq: *mut ibv_srq) -> c_int>,
    /// `ibv_destroy_wq`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub destroy_wq: Option<UntypedOp>,
    /// `ibv_detach_mcast`.
    pub detach_mcast:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int>,
    /// Ends a context (`ibv_close_device`); must call `verbs_uninit_context`.
    pub free_context: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
    /// `ibv_free_dm`.
    pub free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
    /// `ibv_get_srq_num`.
    pub get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
    /// `ibv_import_dm`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub import_dm: Option<UntypedOp>,
    /// `ibv_import_mr`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub import_mr: Option<UntypedOp>,
    /// `ibv_import_pd`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub import_pd: Option<UntypedOp>,
    /// `ibv_modify_cq`.
    pub modify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
    /// `ibv_modify_flow_action_esp`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub modify_flow_action_esp: Option<UntypedOp>,
    /// `ibv_modify_qp`.
    pub modify_qp: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int,
    >,
    /// `ibv_modify_qp_rate_limit`.
    pub modify_qp_rate_limit:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int>,
    /// `ibv_modify_srq`.
    pub modify_srq: Option<
        unsafe extern "C" fn(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, attr_mask: c_int) -> c_int,
    >,
    /// `ibv_modify_wq`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub modify_wq: Option<UntypedOp>,
    /// `ibv_open_qp`.
    pub open_qp: Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
    >,
    /// `ibv_open_xrcd`.
    pub open_xrcd: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    /// `ibv_poll_cq`.
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
    /// `ibv_post_recv`.
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    /// `ibv_post_send`.
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    /// `ibv_post_srq_ops`.
    pub post_srq_ops: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            op: *mut ibv_ops_wr,
            bad_op: *mut *mut ibv_ops_wr,
        ) -> c_int,
    >,
    /// `ibv_post_srq_recv`.
    pub post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    /// `ibv_query_device_ex`, and `ibv_query_device` as well; writes no more than `attr_size` bytes.
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> c_int,
    >,
    /// `ibv_query_ece`.
    pub query_ece: Option<unsafe extern "C" fn(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int>,
    /// `ibv_query_port`.
    pub query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            attr: *mut ibv_port_attr,
        ) -> c_int,
    >,
    /// `ibv_query_qp`.
    pub query_qp: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> c_int,
    >,
    /// `ibv_query_qp_data_in_order`.
    pub query_qp_data_in_order:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int>,
    /// `ibv_query_rt_values_ex`.
    pub query_rt_values: Option<
        unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int,
    >,
    /// `ibv_query_srq`.
    pub query_srq:
        Option<unsafe extern "C" fn(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int>,
    /// `ibv_read_counters`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub read_counters: Option<UntypedOp>,
    /// `ibv_reg_dm_mr`.
    pub reg_dm_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: c_uint,
        ) -> *mut ibv_mr,
    >,
    /// `ibv_reg_dmabuf_mr`.
    pub reg_dmabuf_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: c_int,
            access: c_int,
        ) -> *mut ibv_mr,
    >,
    /// All forms of `ibv_reg_mr`; `hca_va` is the address that remote peers will use.
    pub reg_mr: Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            hca_va: u64,
            access: c_int,
        ) -> *mut ibv_mr,
    >,
    /// `ibv_req_notify_cq`.
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
    /// `ibv_rereg_mr`.
    pub rereg_mr: Option<
        unsafe extern "C" fn(
            mr: *mut verbs_mr,
            flags: c_int,
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            access: c_int,
        ) -> c_int,
    >,
    /// `ibv_resize_cq`.
    pub resize_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, cqe: c_int) -> c_int>,
    /// `ibv_set_ece`.
    pub set_ece: Option<unsafe extern "C" fn(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int>,
    /// `ibv_unimport_dm`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub unimport_dm: Option<UntypedOp>,
    /// `ibv_unimport_mr`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub unimport_mr: Option<UntypedOp>,
    /// `ibv_unimport_pd`, which this project leaves to libibverbs (it answers EOPNOTSUPP).
    pub unimport_pd: Option<UntypedOp>,
}

impl verbs_context_ops {
    /// No operation at all, to be filled by struct update.
    pub const NONE: Self = Self {
        advise_mr: None,
        alloc_dm: None,
        alloc_mw: None,
        alloc_null_mr: None,
        alloc_parent_domain: None,
        alloc_pd: None,
        alloc_td: None,
        async_event: None,
        attach_counters_point_flow: None,
        attach_mcast: None,
        bind_mw: None,
        close_xrcd: None,
        cq_event: None,
        create_ah: None,
        create_counters: None,
        create_cq: None,
        create_cq_ex: None,
        create_flow: None,
        create_flow_action_esp: None,
        create_qp: None,
        create_qp_ex: None,
        create_rwq_ind_table: None,
        create_srq: None,
        create_srq_ex: None,
        create_wq: None,
        dealloc_mw: None,
        dealloc_pd: None,
        dealloc_td: None,
        dereg_mr: None,
        destroy_ah: None,
        destroy_counters: None,
        destroy_cq: None,
        destroy_flow: None,
        destroy_flow_action: None,
        destroy_qp: None,
        destroy_rwq_ind_table: None,
        destroy_srq: None,
        destroy_wq: None,
        detach_mcast: None,
        free_context: None,
        free_dm: None,
        get_srq_num: None,
        import_dm: None,
        import_mr: None,
        import_pd: None,
        modify_cq: None,
        modify_flow_action_esp: None,
        modify_qp: None,
        modify_qp_rate_limit: None,
        modify_srq: None,
        modify_wq: None,
        open_qp: None,
        open_xrcd: None,
        poll_cq: None,
        post_recv: None,
        post_send: None,
        post_srq_ops: None,
        post_srq_recv: None,
        query_device_ex: None,
        query_ece: None,
        query_port: None,
        query_qp: None,
        query_qp_data_in_order: None,
        query_rt_values: None,
        query_srq: None,
        read_counters: None,
        reg_dm_mr: None,
        reg_dmabuf_mr: None,
        reg_mr: None,
        req_notify_cq: None,
        rereg_mr: None,
        resize_cq: None,
        set_ece: None,
        unimport_dm: None,
        unimport_mr: None,
        unimport_pd: None,
    };
}

// Sizes as computed from the headers of 44.0, for x86-64: mutexes have another size on aarch64.
#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::{offset_of, size_of};

    assert!(size_of::<verbs_context_ops>() == 608);
    assert!(size_of::<verbs_context>() == 648);
    assert!(offset_of!(verbs_context, context) == 320);
    assert!(size_of::<ibv_context>() == 328);
    assert!(offset_of!(ibv_context, cmd_fd) == 264);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(size_of::<ibv_qp_ex>() == 352);
    assert!(size_of::<verbs_qp>() == 368);
    assert!(offset_of!(verbs_qp, comp_mask) == 352);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<verbs_device_ops>() == 72);
    assert!(size_of::<verbs_sysfs_dev>() == 992);
    assert!(size_of::<verbs_device>() == 712);
    assert!(size_of::<ibv_device>() == 664);
    assert!(size_of::<ibv_cq>() == 128);
    assert!(size_of::<verbs_cq>() == 288);
    assert!(size_of::<verbs_srq>() == 160);
    assert!(size_of::<verbs_mr>() == 56);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_device_attr_ex>() == 400);
};

// Every field, as the C compiler places it with the headers of 44.0.
#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::{offset_of, size_of};

    assert!(size_of::<list_node>() == 16);
    assert!(offset_of!(list_node, next) == 0);
    assert!(offset_of!(list_node, prev) == 8);
    assert!(size_of::<verbs_match_ent>() == 24);
    assert!(offset_of!(verbs_match_ent, driver_data) == 0);
    assert!(offset_of!(verbs_match_ent, u) == 8);
    assert!(offset_of!(verbs_match_ent, vendor) == 16);
    assert!(offset_of!(verbs_match_ent, device) == 18);
    assert!(offset_of!(verbs_match_ent, kind) == 20);
    assert!(offset_of!(verbs_sysfs_dev, entry) == 0);
    assert!(offset_of!(verbs_sysfs_dev, provider_data) == 16);
    assert!(offset_of!(verbs_sysfs_dev, match_) == 24);
    assert!(offset_of!(verbs_sysfs_dev, flags) == 32);
    assert!(offset_of!(verbs_sysfs_dev, sysfs_name) == 36);
    assert!(offset_of!(verbs_sysfs_dev, sysfs_cdev) == 104);
    assert!(offset_of!(verbs_sysfs_dev, ibdev_name) == 112);
    assert!(offset_of!(verbs_sysfs_dev, ibdev_path) == 176);
    assert!(offset_of!(verbs_sysfs_dev, modalias) == 432);
    assert!(offset_of!(verbs_sysfs_dev, node_guid) == 944);
    assert!(offset_of!(verbs_sysfs_dev, driver_id) == 952);
    assert!(offset_of!(verbs_sysfs_dev, node_type) == 956);
    assert!(offset_of!(verbs_sysfs_dev, ibdev_idx) == 960);
    assert!(offset_of!(verbs_sysfs_dev, num_ports) == 964);
    assert!(offset_of!(verbs_sysfs_dev, abi_ver) == 968);
    assert!(offset_of!(verbs_sysfs_dev, time_created) == 976);
    assert!(offset_of!(verbs_device_ops, name) == 0);
    assert!(offset_of!(verbs_device_ops, match_min_abi_version) == 8);
    assert!(offset_of!(verbs_device_ops, match_max_abi_version) == 12);
    assert!(offset_of!(verbs_device_ops, match_table) == 16);
    assert!(offset_of!(verbs_device_ops, static_providers) == 24);
    assert!(offset_of!(verbs_device_ops, match_device) == 32);
    assert!(offset_of!(verbs_device_ops, alloc_context) == 40);
    assert!(offset_of!(verbs_device_ops, import_context) == 48);
    assert!(offset_of!(verbs_device_ops, alloc_device) == 56);
    assert!(offset_of!(verbs_device_ops, uninit_device) == 64);
    assert!(offset_of!(verbs_device, device) == 0);
    assert!(offset_of!(verbs_device, ops) == 664);
    assert!(offset_of!(verbs_device, refcount) == 672);
    assert!(offset_of!(verbs_device, entry) == 680);
    assert!(offset_of!(verbs_device, sysfs) == 696);
    assert!(offset_of!(verbs_device, core_support) == 704);
    assert!(offset_of!(verbs_mr, ibv_mr) == 0);
    assert!(offset_of!(verbs_mr, mr_type) == 48);
    assert!(offset_of!(verbs_mr, access) == 52);
    assert!(size_of::<verbs_xrcd>() == 16);
    assert!(offset_of!(verbs_xrcd, xrcd) == 0);
    assert!(offset_of!(verbs_xrcd, comp_mask) == 8);
    assert!(offset_of!(verbs_xrcd, handle) == 12);
    assert!(offset_of!(verbs_srq, srq) == 0);
    assert!(offset_of!(verbs_srq, srq_type) == 128);
    assert!(offset_of!(verbs_srq, xrcd) == 136);
    assert!(offset_of!(verbs_srq, cq) == 144);
    assert!(offset_of!(verbs_srq, srq_num) == 152);
    assert!(offset_of!(verbs_qp, xrcd) == 360);
    assert!(offset_of!(verbs_context_ops, advise_mr) == 0);
    assert!(offset_of!(verbs_context_ops, alloc_dm) == 8);
    assert!(offset_of!(verbs_context_ops, alloc_mw) == 16);
    assert!(offset_of!(verbs_context_ops, alloc_null_mr) == 24);
    assert!(offset_of!(verbs_context_ops, alloc_parent_domain) == 32);
    assert!(offset_of!(verbs_context_ops, alloc_pd) == 40);
    assert!(offset_of!(verbs_context_ops, alloc_td) == 48);
    assert!(offset_of!(verbs_context_ops, async_event) == 56);
    assert!(offset_of!(verbs_context_ops, attach_counters_point_flow) == 64);
    assert!(offset_of!(verbs_context_ops, attach_mcast) == 72);
    assert!(offset_of!(verbs_context_ops, bind_mw) == 80);
    assert!(offset_of!(verbs_context_ops, close_xrcd) == 88);
    assert!(offset_of!(verbs_context_ops, cq_event) == 96);
    assert!(offset_of!(verbs_context_ops, create_ah) == 104);
    assert!(offset_of!(verbs_context_ops, create_counters) == 112);
    assert!(offset_of!(verbs_context_ops, create_cq) == 120);
    assert!(offset_of!(verbs_context_ops, create_cq_ex) == 128);
    assert!(offset_of!(verbs_context_ops, create_flow) == 136);
    assert!(offset_of!(verbs_context_ops, create_flow_action_esp) == 144);
    assert!(offset_of!(verbs_context_ops, create_qp) == 152);
    assert!(offset_of!(verbs_context_ops, create_qp_ex) == 160);
    assert!(offset_of!(verbs_context_ops, create_rwq_ind_table) == 168);
    assert!(offset_of!(verbs_context_ops, create_srq) == 176);
    assert!(offset_of!(verbs_context_ops, create_srq_ex) == 184);
    assert!(offset_of!(verbs_context_ops, create_wq) == 192);
    assert!(offset_of!(verbs_context_ops, dealloc_mw) == 200);
    assert!(offset_of!(verbs_context_ops, dealloc_pd) == 208);
    assert!(offset_of!(verbs_context_ops, dealloc_td) == 216);
    assert!(offset_of!(verbs_context_ops, dereg_mr) == 224);
    assert!(offset_of!(verbs_context_ops, destroy_ah) == 232);
    assert!(offset_of!(verbs_context_ops, destroy_counters) == 240);
    assert!(offset_of!(verbs_context_ops, destroy_cq) == 248);
    assert!(offset_of!(verbs_context_ops, destroy_flow) == 256);
    assert!(offset_of!(verbs_context_ops, destroy_flow_action) == 264);
    assert!(offset_of!(verbs_context_ops, destroy_qp) == 272);
    assert!(offset_of!(verbs_context_ops, destroy_rwq_ind_table) == 280);
    assert!(offset_of!(verbs_context_ops, destroy_srq) == 288);
    assert!(offset_of!(verbs_context_ops, destroy_wq) == 296);
    assert!(offset_of!(verbs_context_ops, detach_mcast) == 304);
    assert!(offset_of!(verbs_context_ops, free_context) == 312);
    assert!(offset_of!(verbs_context_ops, free_dm) == 320);
    assert!(offset_of!(verbs_context_ops, get_srq_num) == 328);
    assert!(offset_of!(verbs_context_ops, import_dm) == 336);
    assert!(offset_of!(verbs_context_ops, import_mr) == 344);
    assert!(offset_of!(verbs_context_ops, import_pd) == 352);
    assert!(offset_of!(verbs_context_ops, modify_cq) == 360);
    assert!(offset_of!(verbs_context_ops, modify_flow_action_esp) == 368);
    assert!(offset_of!(verbs_context_ops, modify_qp) == 376);
    assert!(offset_of!(verbs_context_ops, modify_qp_rate_limit) == 384);
    assert!(offset_of!(verbs_context_ops, modify_srq) == 392);
    assert!(offset_of!(verbs_context_ops, modify_wq) == 400);
    assert!(offset_of!(verbs_context_ops, open_qp) == 408);
    assert!(offset_of!(verbs_context_ops, open_xrcd) == 416);
    assert!(offset_of!(verbs_context_ops, poll_cq) == 424);
    assert!(offset_of!(verbs_context_ops, post_recv) == 432);
    assert!(offset_of!(verbs_context_ops, post_send) == 440);
    assert!(offset_of!(verbs_context_ops, post_srq_ops) == 448);
    assert!(offset_of!(verbs_context_ops, post_srq_recv) == 456);
    assert!(offset_of!(verbs_context_ops, query_device_ex) == 464);
    assert!(offset_of!(verbs_context_ops, query_ece) == 472);
    assert!(offset_of!(verbs_context_ops, query_port) == 480);
    assert!(offset_of!(verbs_context_ops, query_qp) == 488);
    assert!(offset_of!(verbs_context_ops, query_qp_data_in_order) == 496);
    assert!(offset_of!(verbs_context_ops, query_rt_values) == 504);
    assert!(offset_of!(verbs_context_ops, query_srq) == 512);
    assert!(offset_of!(verbs_context_ops, read_counters) == 520);
    assert!(offset_of!(verbs_context_ops, reg_dm_mr) == 528);
    assert!(offset_of!(verbs_context_ops, reg_dmabuf_mr) == 536);
    assert!(offset_of!(verbs_context_ops, reg_mr) == 544);
    assert!(offset_of!(verbs_context_ops, req_notify_cq) == 552);
    assert!(offset_of!(verbs_context_ops, rereg_mr) == 560);
    assert!(offset_of!(verbs_context_ops, resize_cq) == 568);
    assert!(offset_of!(verbs_context_ops, set_ece) == 576);
    assert!(offset_of!(verbs_context_ops, unimport_dm) == 584);
    assert!(offset_of!(verbs_context_ops, unimport_mr) == 592);
    assert!(offset_of!(verbs_context_ops, unimport_pd) == 600);
};
