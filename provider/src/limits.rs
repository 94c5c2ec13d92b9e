//! The limits of a device, and the sizes of its queues.

use crate::abi::verbs::{
    self as ibv, ibv_device_attr, ibv_packet_pacing_caps, ibv_port_attr, ibv_qp_cap,
};
use fpga_regs::BLOCK_BYTES;
use fpga_regs::coyote::pci;
use fpga_regs::engine::window::{Capabilities, VERSION_MAJOR};
use fpga_regs::engine::wqe::{
    RECEIVE_PAYLOAD_OFFSET, SEND_PAYLOAD_OFFSET, SGE_BYTES, receive_stride_blocks,
    send_blocks_for_inline, send_blocks_for_sges,
};
use shim_abi::{ContextInfo, Limits, PortInfo};

use crate::error::{Result, invalid};
use crate::ffi::types::zeroed;

/// The one port of a card.
pub(crate) const PORT: u32 = 1;
/// The clock by which completions are stamped, in kHz: it counts nanoseconds.
pub(crate) const CORE_CLOCK_KHZ: u64 = 1_000_000;
/// Pages the memory of a region may be made of: any from 4 KiB up.
const PAGE_SIZES: u64 = !0xfff;
/// log2 of the time, in units of 4.096 µs, within which a card acknowledges: 268 ms.
const ACK_DELAY: u8 = 16;

/// How large the queues of a QP are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueSizes {
    /// log2 of the blocks of the send ring.
    pub log2_sq_blocks: u8,
    /// The receive queue.
    pub receive: ReceiveSizes,
}

/// How large a receive queue is, a QP's own or a shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveSizes {
    /// log2 of the entries of the ring.
    pub log2_entries: u8,
    /// log2 of the blocks of an entry.
    pub log2_stride: u8,
    /// Requests that are outstanding at a time, at most.
    pub max_wr: u32,
    /// Elements of a request, at most.
    pub max_sge: u32,
}

fn check(what: &str, value: u32, most: u64) -> Result<()> {
    if u64::from(value) > most {
        return Err(invalid!("{what} {value} was asked for; this device has at most {most}"));
    }
    Ok(())
}

/// The log2 of the smallest power of two that is not below `value`.
fn log2_up(value: u64) -> u8 {
    value.max(1).checked_next_power_of_two().map_or(64, u64::ilog2) as u8
}

fn power(log2: u8) -> u64 {
    1u64.checked_shl(u32::from(log2)).unwrap_or(u64::MAX)
}

/// Bytes behind the header of a WQE of so many blocks.
fn room(blocks: usize, header: usize) -> usize {
    blocks.saturating_mul(BLOCK_BYTES).saturating_sub(header)
}

fn elements(bytes: usize, most: u8) -> u32 {
    bytes.checked_div(SGE_BYTES).map_or(0, |n| n.min(usize::from(most))) as u32
}

/// The sizes of the queues for a program's request, and the granted capabilities, which are never less.
pub(crate) fn queue_sizes(limits: &Limits, asked: &ibv_qp_cap) -> Result<(QueueSizes, ibv_qp_cap)> {
    check("a QP with max_send_sge", asked.max_send_sge, limits.max_sge.into())?;
    check("a QP with max_inline_data", asked.max_inline_data, limits.max_inline.into())?;

    let blocks = send_blocks_for_sges(asked.max_send_sge as usize)
        .max(send_blocks_for_inline(asked.max_inline_data as usize));
    let log2_sq_blocks = log2_up(u64::from(asked.max_send_wr).saturating_mul(blocks as u64));
    let most = power(limits.log2_sq_blocks).checked_div(blocks as u64).unwrap_or(0);
    check("a QP with max_send_wr", asked.max_send_wr, most.min(max_qp_wr(limits)))?;
    // At least one request of that size fits into a queue of any size.
    let log2_sq_blocks = log2_sq_blocks.max(log2_up(blocks as u64));

    let receive = receive_sizes(limits, asked.max_recv_wr, asked.max_recv_sge)?;
    let sizes = QueueSizes { log2_sq_blocks, receive };
    let send_room = room(blocks, SEND_PAYLOAD_OFFSET);
    let granted = ibv_qp_cap {
        max_send_wr: power(log2_sq_blocks).checked_div(blocks as u64).unwrap_or(0) as u32,
        max_recv_wr: receive.max_wr,
        max_send_sge: elements(send_room, limits.max_sge),
        max_recv_sge: receive.max_sge,
        max_inline_data: send_room.min(usize::from(limits.max_inline)) as u32,
    };
    Ok((sizes, granted))
}

/// The size of the receive queue for a program's request, a QP's own or a shared one: never less.
pub(crate) fn receive_sizes(limits: &Limits, max_wr: u32, max_sge: u32) -> Result<ReceiveSizes> {
    check("a receive queue with max_sge", max_sge, limits.max_sge.into())?;
    check("a receive queue with max_wr", max_wr, power(limits.log2_rq_entries))?;
    let stride = receive_stride_blocks(max_sge as usize);
    let log2_entries = log2_up(max_wr.into());
    Ok(ReceiveSizes {
        log2_entries,
        log2_stride: log2_up(stride as u64),
        max_wr: power(log2_entries) as u32,
        max_sge: elements(room(stride, RECEIVE_PAYLOAD_OFFSET), limits.max_sge),
    })
}

/// log2 of the entries of a completion queue for `cqe` completions.
pub(crate) fn cq_size(limits: &Limits, cqe: u32) -> Result<u8> {
    let most = power(limits.log2_cq_entries);
    if !(1..=most).contains(&u64::from(cqe)) {
        return Err(invalid!("a CQ of {cqe} entries was asked for; this device makes 1 to {most}"));
    }
    Ok(log2_up(cqe.into()))
}

/// The work requests that a queue of a QP may be asked to hold, if they are of the smallest.
fn max_qp_wr(limits: &Limits) -> u64 {
    power(limits.log2_sq_blocks).min(power(limits.log2_rq_entries))
}

fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// The device's attributes. Features that the card does not offer are 0.
///
/// `max_qp_wr` counts the smallest work requests (two elements or 32 inline bytes): larger ones
/// take more blocks of the same ring.
pub(crate) fn device_attributes(info: &ContextInfo) -> ibv_device_attr {
    let (limits, card) = (&info.limits, &info.card);
    let capabilities = Capabilities::from_bits_retain(limits.capabilities);
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().take(63).zip(card.firmware.bytes()) {
        *to = from as _;
    }
    let guid = card.node_guid.to_be();
    let rnr = capabilities.contains(Capabilities::RNR);
    let srq = capabilities.contains(Capabilities::SRQ);
    let datagrams = capabilities.contains(Capabilities::UD);
    let multicast = capabilities.contains(Capabilities::MULTICAST);
    let windows = capabilities.contains(Capabilities::MEMORY_WINDOW);
    let invalidates = capabilities.contains(Capabilities::INVALIDATE);
    let xrc = capabilities.contains(Capabilities::XRC);
    // A window of type 2 is its protection domain's and its QP's.
    let window_flags = ibv::IBV_DEVICE_MEM_WINDOW | ibv::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let atomic = capabilities.contains(Capabilities::ATOMIC);
    let reads = u32::from(limits.max_rd_atomic);
    ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.max_mr_bytes,
        page_size_cap: PAGE_SIZES,
        vendor_id: pci::VENDOR_ID.into(),
        vendor_part_id: pci::DEVICE_ID.into(),
        hw_ver: VERSION_MAJOR.into(),
        max_qp: int(limits.qps),
        max_qp_wr: int(max_qp_wr(limits)),
        device_cap_flags: ibv::IBV_DEVICE_CURR_QP_STATE_MOD
            | ibv::IBV_DEVICE_PORT_ACTIVE_EVENT
            | ibv::IBV_DEVICE_SYS_IMAGE_GUID
            | if rnr { ibv::IBV_DEVICE_RC_RNR_NAK_GEN } else { 0 }
            | if windows { window_flags } else { 0 }
            | if xrc { ibv::IBV_DEVICE_XRC } else { 0 }
            | if invalidates { ibv::IBV_DEVICE_MEM_MGT_EXTENSIONS } else { 0 },
        max_sge: limits.max_sge.into(),
        max_sge_rd: limits.max_sge.into(),
        max_cq: int(limits.cqs),
        max_cqe: int(power(limits.log2_cq_entries)),
        max_mr: int(limits.mrs),
        max_pd: int(limits.pds),
        max_qp_rd_atom: limits.max_rd_atomic.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(reads.saturating_mul(limits.qps)),
        max_qp_init_rd_atom: limits.max_init_rd_atomic.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: if atomic { ibv::IBV_ATOMIC_HCA } else { ibv::IBV_ATOMIC_NONE },
        max_ee: 0,
        max_rdd: 0,
        max_mw: if windows { int(limits.mws) } else { 0 },
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: if multicast { int(limits.groups) } else { 0 },
        max_mcast_qp_attach: if multicast { int(limits.qps_per_group) } else { 0 },
        max_total_mcast_qp_attach: if multicast { int(limits.memberships) } else { 0 },
        max_ah: if datagrams { int(limits.ahs) } else { 0 },
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: if srq { int(limits.rqs) } else { 0 },
        max_srq_wr: if srq { int(power(limits.log2_rq_entries)) } else { 0 },
        max_srq_sge: if srq { limits.max_sge.into() } else { 0 },
        max_pkeys: int(card.port.pkeys.len()) as u16,
        local_ca_ack_delay: ACK_DELAY,
        phys_port_cnt: PORT as u8,
    }
}

/// The rates that QPs can be held to, and the types of those QPs; all 0 where they cannot.
pub(crate) fn pacing(limits: &Limits) -> ibv_packet_pacing_caps {
    let capabilities = Capabilities::from_bits_retain(limits.capabilities);
    let kinds = [
        (Capabilities::RC, ibv::IBV_QPT_RC),
        (Capabilities::UC, ibv::IBV_QPT_UC),
        (Capabilities::UD, ibv::IBV_QPT_UD),
        (Capabilities::XRC, ibv::IBV_QPT_XRC_SEND),
    ];
    if !capabilities.contains(Capabilities::RATE_LIMIT) {
        return ibv_packet_pacing_caps {
            qp_rate_limit_min: 0,
            qp_rate_limit_max: 0,
            supported_qpts: 0,
        };
    }
    let offered = kinds.iter().filter(|(needed, _)| capabilities.contains(*needed));
    ibv_packet_pacing_caps {
        qp_rate_limit_min: limits.least_rate,
        qp_rate_limit_max: limits.most_rate,
        supported_qpts: offered.fold(0, |bits, (_, kind)| bits | 1_u32.wrapping_shl(*kind)),
    }
}

/// Physical states of a port (InfiniBand specification, PortInfo).
const PHYSICAL_DISABLED: u8 = 3;
const PHYSICAL_LINK_UP: u8 = 5;
/// Four lanes of 25 Gb/s: the card's 100GBASE-R port.
const WIDTH_4X: u8 = 2;
const SPEED_25G: u8 = 32;
/// Their rate together.
pub(crate) const PORT_MEGABITS: u32 = 100_000;

/// The port's attributes.
pub(crate) fn port_attributes(port: &PortInfo, limits: &Limits) -> ibv_port_attr {
    let (state, phys_state) = if port.link_up {
        (ibv::IBV_PORT_ACTIVE, PHYSICAL_LINK_UP)
    } else {
        (ibv::IBV_PORT_DOWN, PHYSICAL_DISABLED)
    };
    ibv_port_attr {
        state,
        max_mtu: port.max_mtu.into(),
        active_mtu: port.active_mtu.into(),
        gid_tbl_len: int(port.gids.len()),
        port_cap_flags: ibv::IBV_PORT_CM_SUP | ibv::IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: limits.max_message,
        pkey_tbl_len: int(port.pkeys.len()) as u16,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_25G,
        phys_state,
        link_layer: ibv::IBV_LINK_LAYER_ETHERNET as u8,
        // Fields of InfiniBand, and those that only some releases have.
        ..zeroed()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Limits as a software card has them.
    pub(crate) fn limits() -> Limits {
        Limits {
            capabilities: Capabilities::RC.union(Capabilities::RATE_LIMIT).bits(),
            qps: 1024,
            rqs: 1024,
            cqs: 1024,
            mrs: 4096,
            pds: 1024,
            ahs: 1024,
            groups: 4096,
            qps_per_group: 64,
            memberships: 1024,
            mws: 1024,
            log2_cq_entries: 22,
            log2_sq_blocks: 16,
            log2_rq_entries: 15,
            max_sge: 16,
            max_inline: 288,
            max_rd_atomic: 16,
            max_init_rd_atomic: 16,
            max_message: 1 << 31,
            max_mr_bytes: 1 << 40,
            max_dm_bytes: 1 << 20,
            comp_vectors: 4,
            least_rate: 1_000,
            most_rate: 100_000_000,
        }
    }

    fn cap(wr: [u32; 2], sge: [u32; 2], inline: u32) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: wr[0],
            max_recv_wr: wr[1],
            max_send_sge: sge[0],
            max_recv_sge: sge[1],
            max_inline_data: inline,
        }
    }

    fn values(cap: &ibv_qp_cap) -> [u32; 5] {
        [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data]
    }

    #[test]
    fn a_program_gets_at_least_what_it_asked_for_and_the_rings_hold_it() {
        for send_wr in [0, 1, 3, 128, 1000, 13_107] {
            for recv_wr in [0, 1, 500, 32_768] {
                for sge in 0..=16 {
                    for inline in [0, 1, 32, 33, 220, 288] {
                        let asked = cap([send_wr, recv_wr], [sge, sge], inline);
                        let (sizes, granted) = queue_sizes(&limits(), &asked).unwrap();
                        for (got, wanted) in values(&granted).iter().zip(values(&asked)) {
                            assert!(
                                *got >= wanted,
                                "{:?} for {:?}",
                                values(&granted),
                                values(&asked)
                            );
                        }
                        let largest = send_blocks_for_sges(granted.max_send_sge as usize)
                            .max(send_blocks_for_inline(granted.max_inline_data as usize));
                        let taken = largest as u64 * u64::from(granted.max_send_wr);
                        assert!(taken <= 1 << sizes.log2_sq_blocks && granted.max_send_wr > 0);
                        let stride = receive_stride_blocks(granted.max_recv_sge as usize);
                        assert_eq!(stride, 1 << sizes.receive.log2_stride);
                        assert!(sizes.log2_sq_blocks <= limits().log2_sq_blocks);
                    }
                }
            }
        }
    }

    #[test]
    fn the_rates_of_queue_pairs_are_told_with_their_types() {
        let told = |capabilities: Capabilities| {
            let caps = pacing(&Limits { capabilities: capabilities.bits(), ..limits() });
            (caps.qp_rate_limit_min, caps.qp_rate_limit_max, caps.supported_qpts)
        };
        assert_eq!(
            told(Capabilities::all()),
            (1_000, 100_000_000, 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9)
        );
        let without = Capabilities::RATE_LIMIT | Capabilities::UC | Capabilities::XRC;
        assert_eq!(told(Capabilities::all() - without), (0, 0, 0));
        assert_eq!(told(Capabilities::RATE_LIMIT | Capabilities::RC).2, 1 << 2);
    }

    #[test]
    fn what_perftest_asks_for_by_default_takes_no_more_than_it_needs() {
        let (sizes, granted) = queue_sizes(&limits(), &cap([128, 1], [1, 1], 0)).unwrap();
        let receive = sizes.receive;
        assert_eq!((sizes.log2_sq_blocks, receive.log2_entries, receive.log2_stride), (7, 0, 0));
        assert_eq!(values(&granted), [128, 1, 2, 3, 32]);
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused_with_einval() {
        for asked in [
            cap([65_537, 1], [1, 1], 0),
            cap([13_108, 1], [16, 1], 0),
            cap([u32::MAX, 1], [1, 1], 0),
            cap([1, 32_769], [1, 1], 0),
            cap([1, u32::MAX], [1, 1], 0),
            cap([1, 1], [17, 1], 0),
            cap([1, 1], [1, 0xffff], 0),
            cap([1, 1], [1, 1], 289),
        ] {
            let error = queue_sizes(&limits(), &asked).err().map(|error| error.errno());
            assert_eq!(error, Some(libc::EINVAL), "{:?}", values(&asked));
        }
    }

    #[test]
    fn a_receive_queue_is_as_large_as_asked_for_or_refused_with_einval() {
        for (max_wr, max_sge) in [(0, 0), (1, 1), (500, 1), (32_768, 16)] {
            let sizes = receive_sizes(&limits(), max_wr, max_sge).unwrap();
            assert!(sizes.max_wr >= max_wr.max(1) && sizes.max_sge >= max_sge, "{sizes:?}");
            assert_eq!(sizes.max_wr, 1 << sizes.log2_entries);
        }
        for (max_wr, max_sge) in [(32_769, 1), (u32::MAX, 1), (1, 17), (1, u32::MAX)] {
            let error = receive_sizes(&limits(), max_wr, max_sge).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
        }
    }

    #[test]
    fn a_cq_has_between_one_and_the_largest_number_of_entries() {
        for (cqe, log2) in [(1, 0), (2, 1), (3, 2), (256_000, 18), (1 << 22, 22)] {
            assert_eq!(cq_size(&limits(), cqe).unwrap(), log2);
        }
        for cqe in [0, (1 << 22) + 1, u32::MAX] {
            assert_eq!(cq_size(&limits(), cqe).unwrap_err().errno(), libc::EINVAL);
        }
    }
}
