//! QP attributes between `ibv_qp_attr` and the card's form.

use crate::abi::verbs::{self as ibv, ibv_qp_attr, ibv_qp_rate_limit_attr};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType, static_rate_megabits};
use fpga_regs::engine::transition;
use fpga_regs::engine::window::Capabilities;
use shim_abi::Limits;

use crate::error::{Result, invalid, unsupported};
use crate::ffi::types;
use crate::limits::{PORT, PORT_MEGABITS};

use AttributeMask as M;

/// `ibv_qp_attr_mask` bits this provider knows but the card does not offer.
const NOT_OFFERED: AttributeMask =
    AttributeMask::ALT_PATH.union(AttributeMask::PATH_MIG_STATE).union(AttributeMask::CAP);
/// Rights of remote peers that a QP can give.
const QP_ACCESS: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
/// `IB_ACCESS_FLUSH_GLOBAL` and `IB_ACCESS_FLUSH_PERSISTENT` (include/rdma/ib_verbs.h), which this
/// release of libibverbs has no names for: from Linux 6.2 on, connection management gives them to a QP
/// together with `IBV_ACCESS_REMOTE_READ`, if the kernel's device knows FLUSH. It is rxe's, not ours.
const FLUSH: u32 = 1 << 8 | 1 << 9;
/// Every access flag that verbs knows; those that mean nothing on a QP are left out silently.
const KNOWN_ACCESS: u32 = 0xff | FLUSH | 0x3ff0_0000;
const MAX_24_BITS: u32 = 0xff_ffff;

/// The attributes that programs name for one side of XRC and only the other side has: uverbs drops them silently.
/// Source: Linux, drivers/infiniband/core/uverbs_cmd.c, `modify_qp_mask`.
fn unheard(kind: QpType) -> AttributeMask {
    match kind {
        QpType::XrcSend => AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER,
        QpType::XrcReceive => {
            AttributeMask::MAX_RD_ATOMIC | AttributeMask::RETRY_COUNT | AttributeMask::RNR_RETRY
        }
        _ => AttributeMask::empty(),
    }
}

/// The attributes that a modify carries, checked as far as this side can: the card checks the rest.
///
/// `from` is the state the QP is in as far as this side knows; a program may know better, and says so
/// by `cur_qp_state`.
pub(crate) fn to_card(
    attr: &ibv_qp_attr,
    attr_mask: i32,
    (kind, from): (QpType, QpState),
    limits: &Limits,
) -> Result<Attributes> {
    let bits = attr_mask as u32;
    let mask = AttributeMask::from_bits_truncate(bits);
    let offered = Capabilities::from_bits_retain(limits.capabilities);
    if mask.intersects(NOT_OFFERED) {
        return Err(unsupported!(
            "alternate paths and queue sizes of a QP cannot be changed (mask {bits:#x})"
        ));
    }
    if mask.contains(M::RATE_LIMIT) && !offered.contains(Capabilities::RATE_LIMIT) {
        return Err(unsupported!("this card does not limit the rate of QPs (mask {bits:#x})"));
    }
    if mask.bits() != bits {
        return Err(invalid!("the attribute mask {bits:#x} has unknown bits"));
    }
    let state = |value: u32| match u8::try_from(value) {
        Ok(value) if value <= QpState::Err.0 => Ok(QpState(value)),
        _ => Err(invalid!("{value} is no state of a QP")),
    };
    let mask = mask.difference(unheard(kind));
    let has = |bit| mask.contains(bit);
    let from = if has(AttributeMask::CURRENT_STATE) { state(attr.cur_qp_state)? } else { from };
    let to = if has(AttributeMask::STATE) { state(attr.qp_state)? } else { from };
    let change = Attributes { mask, state: to, current_state: from, ..Attributes::default() };
    transition::check(kind, from, &change, offered).map_err(|refused| invalid!("{refused}"))?;
    check_values(attr, mask, limits)?;
    // Fields that the mask does not name need not be initialised.
    let mut card = Attributes {
        sqd_notify: named(has(M::EN_SQD_ASYNC_NOTIFY), u8::from(attr.en_sqd_async_notify != 0)),
        path_mtu: named(has(M::PATH_MTU), attr.path_mtu as u8),
        access: named(has(M::ACCESS), attr.qp_access_flags & QP_ACCESS.bits()),
        pkey_index: named(has(M::PKEY_INDEX), attr.pkey_index),
        port: named(has(M::PORT), attr.port_num),
        timeout: named(has(M::TIMEOUT), attr.timeout),
        dest_qpn: named(has(M::DEST_QPN), attr.dest_qp_num),
        rq_psn: named(has(M::RQ_PSN), attr.rq_psn & MAX_24_BITS),
        sq_psn: named(has(M::SQ_PSN), attr.sq_psn & MAX_24_BITS),
        qkey: named(has(M::QKEY), attr.qkey),
        max_rd_atomic: named(has(M::MAX_RD_ATOMIC), attr.max_rd_atomic),
        max_dest_rd_atomic: named(has(M::MAX_DEST_RD_ATOMIC), attr.max_dest_rd_atomic),
        min_rnr_timer: named(has(M::MIN_RNR_TIMER), attr.min_rnr_timer),
        retry_count: named(has(M::RETRY_COUNT), attr.retry_cnt),
        rnr_retry: named(has(M::RNR_RETRY), attr.rnr_retry),
        rate_limit: named(has(M::RATE_LIMIT), attr.rate_limit),
        ..change
    };
    if has(AttributeMask::AV) {
        let route = &attr.ah_attr.grh;
        card.sgid_index = route.sgid_index;
        card.hop_limit = route.hop_limit;
        card.traffic_class = route.traffic_class;
        card.sl = attr.ah_attr.sl;
        card.static_rate = attr.ah_attr.static_rate;
        card.flow_label = route.flow_label & 0xf_ffff;
        card.dgid = types::gid_bytes(&route.dgid);
    }
    Ok(card)
}

/// The change to a rate, of a QP in that state as far as this side knows.
pub(crate) fn to_limit(
    attr: &ibv_qp_rate_limit_attr,
    of: (QpType, QpState),
    limits: &Limits,
) -> Result<Attributes> {
    if attr.comp_mask != 0 {
        return Err(invalid!("the attributes of a rate have unknown bits, {:#x}", attr.comp_mask));
    }
    let ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, .. } = *attr;
    let rate = ibv_qp_attr { rate_limit, ..types::zeroed() };
    let change = to_card(&rate, ibv::IBV_QP_RATE_LIMIT as i32, of, limits)?;
    if rate_limit == 0 && (max_burst_sz, typical_pkt_sz) != (0, 0) {
        return Err(invalid!("max_burst_sz and typical_pkt_sz need a rate_limit"));
    }
    if max_burst_sz != 0 && u32::from(typical_pkt_sz) > max_burst_sz {
        return Err(invalid!(
            "a typical packet of {typical_pkt_sz} bytes is longer than max_burst_sz {max_burst_sz}"
        ));
    }
    Ok(Attributes { max_burst: max_burst_sz, typical_packet: typical_pkt_sz, ..change })
}

/// Refuses codes of `ibv_rate` that are none, and rates below the port's on a card that keeps to none.
pub(crate) fn check_static_rate(code: u8, limits: &Limits) -> Result<()> {
    let Some(megabits) = static_rate_megabits(code) else {
        return Err(invalid!("static_rate {code} is none of ibv_rate"));
    };
    let offered = Capabilities::from_bits_retain(limits.capabilities);
    if offered.contains(Capabilities::RATE_LIMIT) || megabits == 0 || megabits >= PORT_MEGABITS {
        return Ok(());
    }
    Err(unsupported!(
        "this card does not limit the rate of paths: static_rate {code} is {megabits} Mb/s, 0 is the port's"
    ))
}

/// A value that the mask names, and else none.
fn named<T: Default>(is_named: bool, value: T) -> T {
    if is_named { value } else { T::default() }
}

fn check_values(attr: &ibv_qp_attr, mask: AttributeMask, limits: &Limits) -> Result<()> {
    let check = |bit: M, what: &str, value: u32, low: u32, high: u32| {
        if mask.contains(bit) && !(low..=high).contains(&value) {
            return Err(invalid!("{what} {value} is not between {low} and {high}"));
        }
        Ok(())
    };
    check(M::PORT, "port", attr.port_num.into(), PORT, PORT)?;
    check(M::PKEY_INDEX, "P_Key index", attr.pkey_index.into(), 0, 0)?;
    check(M::PATH_MTU, "path MTU code", attr.path_mtu, ibv::IBV_MTU_256, ibv::IBV_MTU_4096)?;
    check(M::TIMEOUT, "timeout", attr.timeout.into(), 0, 31)?;
    check(M::RETRY_COUNT, "retry count", attr.retry_cnt.into(), 0, 7)?;
    check(M::RNR_RETRY, "RNR retry count", attr.rnr_retry.into(), 0, 7)?;
    check(M::MIN_RNR_TIMER, "RNR timer", attr.min_rnr_timer.into(), 0, 31)?;
    check(M::DEST_QPN, "destination QP number", attr.dest_qp_num, 0, MAX_24_BITS)?;
    let (initiates, answers) = (limits.max_init_rd_atomic.into(), limits.max_rd_atomic.into());
    check(M::MAX_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), 0, initiates)?;
    check(M::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), 0, answers)?;
    if mask.contains(M::RATE_LIMIT) && attr.rate_limit != 0 {
        let (least, most) = (limits.least_rate, limits.most_rate);
        check(M::RATE_LIMIT, "rate_limit in kb/s", attr.rate_limit, least, most)?;
    }
    if mask.contains(M::ACCESS) && attr.qp_access_flags & !KNOWN_ACCESS != 0 {
        return Err(invalid!("access flags {:#x} have unknown bits", attr.qp_access_flags));
    }
    if mask.contains(M::AV) {
        let path = &attr.ah_attr;
        if path.is_global == 0 {
            return Err(invalid!(
                "on RoCE a path needs a global route: set ah_attr.is_global and grh"
            ));
        }
        // Programs that leave a path's port at 0 mean the QP's.
        check(M::AV, "port of the path", path.port_num.into(), 0, PORT)?;
        check_static_rate(path.static_rate, limits)?;
    }
    Ok(())
}

/// The card's answer to a query as verbs shows it.
pub(crate) fn from_card(card: &Attributes, cap: ibv::ibv_qp_cap) -> ibv_qp_attr {
    let mut attr: ibv_qp_attr = types::zeroed();
    attr.qp_state = card.state.0.into();
    attr.cur_qp_state = card.state.0.into();
    attr.path_mtu = card.path_mtu.into();
    attr.path_mig_state = ibv::IBV_MIG_MIGRATED;
    attr.qkey = card.qkey;
    attr.rq_psn = card.rq_psn;
    attr.sq_psn = card.sq_psn;
    attr.dest_qp_num = card.dest_qpn;
    attr.qp_access_flags = card.access;
    attr.cap = cap;
    attr.pkey_index = card.pkey_index;
    attr.en_sqd_async_notify = card.sqd_notify;
    attr.sq_draining = card.sq_draining;
    attr.max_rd_atomic = card.max_rd_atomic;
    attr.max_dest_rd_atomic = card.max_dest_rd_atomic;
    attr.min_rnr_timer = card.min_rnr_timer;
    attr.port_num = card.port;
    attr.timeout = card.timeout;
    attr.retry_cnt = card.retry_count;
    attr.rnr_retry = card.rnr_retry;
    attr.rate_limit = card.rate_limit;
    let path = &mut attr.ah_attr;
    path.is_global = u8::from(card.dgid != [0; 16]);
    path.sl = card.sl;
    path.static_rate = card.static_rate;
    path.port_num = card.port;
    path.grh.dgid.raw = card.dgid;
    path.grh.flow_label = card.flow_label;
    path.grh.sgid_index = card.sgid_index;
    path.grh.hop_limit = card.hop_limit;
    path.grh.traffic_class = card.traffic_class;
    attr
}

#[cfg(test)]
mod tests {
    use fpga_regs::Describe as _;

    use super::*;
    use crate::limits::tests::limits;

    const TO_INIT: u32 =
        ibv::IBV_QP_STATE | ibv::IBV_QP_PKEY_INDEX | ibv::IBV_QP_PORT | ibv::IBV_QP_ACCESS_FLAGS;
    const TO_RTR: u32 = ibv::IBV_QP_STATE
        | ibv::IBV_QP_AV
        | ibv::IBV_QP_PATH_MTU
        | ibv::IBV_QP_DEST_QPN
        | ibv::IBV_QP_RQ_PSN
        | ibv::IBV_QP_MAX_DEST_RD_ATOMIC
        | ibv::IBV_QP_MIN_RNR_TIMER;

    fn init() -> ibv_qp_attr {
        let mut attr: ibv_qp_attr = types::zeroed();
        attr.qp_state = ibv::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = ibv::IBV_ACCESS_REMOTE_WRITE | ibv::IBV_ACCESS_LOCAL_WRITE;
        attr
    }

    fn rtr() -> ibv_qp_attr {
        let mut attr = init();
        attr.qp_state = ibv::IBV_QPS_RTR;
        attr.path_mtu = ibv::IBV_MTU_1024;
        attr.dest_qp_num = 0x12_3456;
        attr.rq_psn = 0x1ff_ffff;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.sl = 3;
        attr.ah_attr.static_rate = 3;
        attr.ah_attr.grh.dgid.raw = [7; 16];
        attr.ah_attr.grh.sgid_index = 1;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.grh.flow_label = 0xabcde;
        attr
    }

    #[test]
    fn a_side_of_xrc_may_be_told_what_only_the_other_one_has() {
        let change = |kind, from| to_card(&rtr(), TO_RTR as i32, (kind, from), &limits());
        let receives = AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER;
        let send = change(QpType::XrcSend, QpState::Init).unwrap().mask;
        let receive = change(QpType::XrcReceive, QpState::Init).unwrap().mask;
        assert_eq!((send.intersects(receives), receive - receives), (false, send));
    }

    fn convert(attr: &ibv_qp_attr, mask: u32, from: QpState) -> Result<Attributes, i32> {
        to_card(attr, mask as i32, (QpType::Rc, from), &limits()).map_err(|error| error.errno())
    }

    #[test]
    fn the_way_to_rtr_arrives_at_the_card_as_the_program_wrote_it() {
        let card = convert(&init(), TO_INIT, QpState::Reset).unwrap();
        assert_eq!((card.state, card.port, card.mask.bits()), (QpState::Init, 1, TO_INIT));
        assert_eq!(card.access, ibv::IBV_ACCESS_REMOTE_WRITE);
        let card = convert(&rtr(), TO_RTR, QpState::Init).unwrap();
        assert_eq!((card.dest_qpn, card.rq_psn), (0x12_3456, 0xff_ffff));
        assert_eq!((card.dgid, card.sgid_index, card.hop_limit), ([7; 16], 1, 64));
        assert_eq!((card.flow_label, card.sl, card.static_rate), (0xabcde, 3, 3));
    }

    #[test]
    fn what_the_card_answers_is_what_was_set() {
        let card = convert(&rtr(), TO_RTR, QpState::Init).unwrap();
        let attr = from_card(&card, types::zeroed());
        assert_eq!(attr.qp_state, ibv::IBV_QPS_RTR);
        assert_eq!(types::gid_bytes(&attr.ah_attr.grh.dgid), [7; 16]);
        let again = to_card(&attr, TO_RTR as i32, (QpType::Rc, QpState::Init), &limits()).unwrap();
        assert_eq!(again, card);
    }

    #[test]
    fn illegal_transitions_and_attribute_sets_are_refused() {
        assert_eq!(convert(&init(), TO_INIT, QpState::Rts).err(), Some(libc::EINVAL));
        let without_port = TO_INIT & !ibv::IBV_QP_PORT;
        assert_eq!(convert(&init(), without_port, QpState::Reset).err(), Some(libc::EINVAL));
        let with_psn = TO_INIT | ibv::IBV_QP_SQ_PSN;
        assert_eq!(convert(&init(), with_psn, QpState::Reset).err(), Some(libc::EINVAL));
        assert_eq!(convert(&init(), 1 << 30, QpState::Reset).err(), Some(libc::EINVAL));
        for bit in [ibv::IBV_QP_ALT_PATH, ibv::IBV_QP_CAP] {
            let refused = convert(&init(), TO_INIT | bit, QpState::Reset).err();
            assert_eq!(refused, Some(libc::EOPNOTSUPP));
        }
    }

    /// Everything the table speaks of, each with a value that is in range.
    fn sound(change: &Attributes) -> ibv_qp_attr {
        ibv_qp_attr {
            qp_state: change.state.0.into(),
            cur_qp_state: change.current_state.0.into(),
            ..rtr()
        }
    }

    #[test]
    fn every_change_is_judged_as_the_table_judges_it() {
        let offered = Capabilities::from_bits_retain(limits().capabilities);
        let states = QpState::CODES.unwrap().values.iter().map(|it| QpState::from_raw(it.value));
        for from in states {
            for change in transition::changes(QpType::Rc, from) {
                let mask = change.mask.bits();
                let expected = match transition::check(QpType::Rc, from, &change, offered) {
                    _ if mask & NOT_OFFERED.bits() != 0 => Some(libc::EOPNOTSUPP),
                    Err(_) => Some(libc::EINVAL),
                    Ok(_) => None,
                };
                let done = convert(&sound(&change), mask, from);
                assert_eq!(done.err(), expected, "{from:?}: {change:?}");
            }
        }
    }

    #[test]
    fn the_state_a_program_names_counts_and_not_what_this_side_knew() {
        let mut attr = init();
        attr.cur_qp_state = ibv::IBV_QPS_RESET;
        let named = TO_INIT | ibv::IBV_QP_CUR_STATE;
        assert_eq!(convert(&attr, TO_INIT, QpState::Rts).err(), Some(libc::EINVAL));
        let card = convert(&attr, named, QpState::Rts).unwrap();
        assert_eq!((card.current_state, card.state), (QpState::Reset, QpState::Init));
        attr.cur_qp_state = ibv::IBV_QPS_RTR;
        assert_eq!(convert(&attr, named, QpState::Reset).err(), Some(libc::EINVAL));
    }

    #[test]
    fn rights_that_only_connection_management_knows_are_left_out() {
        let mut attr = init();
        attr.qp_access_flags |= 1 << 8 | 1 << 9;
        let (with, without) = (
            convert(&attr, TO_INIT, QpState::Reset).unwrap(),
            convert(&init(), TO_INIT, QpState::Reset).unwrap(),
        );
        assert_eq!(with.access, without.access);
        attr.qp_access_flags |= 1 << 10;
        assert_eq!(convert(&attr, TO_INIT, QpState::Reset).err(), Some(libc::EINVAL));
    }

    fn rate(rate_limit: u32) -> ibv_qp_rate_limit_attr {
        ibv_qp_rate_limit_attr { rate_limit, max_burst_sz: 0, typical_pkt_sz: 0, comp_mask: 0 }
    }

    #[test]
    fn a_rate_arrives_at_the_card_and_one_out_of_range_does_not() {
        let rts = (QpType::Rc, QpState::Rts);
        let limit = |attr: ibv_qp_rate_limit_attr| {
            to_limit(&attr, rts, &limits()).map_err(|error| error.errno())
        };
        let all = rate(1_000);
        let all = ibv_qp_rate_limit_attr { max_burst_sz: 9_000, typical_pkt_sz: 1_500, ..all };
        let card = limit(all).unwrap();
        assert_eq!((card.mask, card.state), (M::RATE_LIMIT, QpState::Rts));
        assert_eq!((card.rate_limit, card.max_burst, card.typical_packet), (1_000, 9_000, 1_500));
        assert_eq!(from_card(&card, types::zeroed()).rate_limit, 1_000);
        assert_eq!(limit(rate(0)).unwrap().rate_limit, 0);
        for wrong in [
            ibv_qp_rate_limit_attr { rate_limit: 0, ..all },
            ibv_qp_rate_limit_attr { rate_limit: 999, ..all },
            ibv_qp_rate_limit_attr { rate_limit: 100_000_001, ..all },
            ibv_qp_rate_limit_attr { max_burst_sz: 1_499, ..all },
            ibv_qp_rate_limit_attr { comp_mask: 1, ..all },
        ] {
            assert_eq!(limit(wrong).err(), Some(libc::EINVAL));
        }
        let refused = |kind, from| to_limit(&all, (kind, from), &limits()).unwrap_err().errno();
        assert_eq!(refused(QpType::Rc, QpState::Rtr), libc::EINVAL);
        assert_eq!(refused(QpType::XrcReceive, QpState::Rts), libc::EINVAL);
    }

    #[test]
    fn a_card_that_keeps_to_no_rates_says_so() {
        let limits = Limits { capabilities: Capabilities::RC.bits(), ..limits() };
        let refused = to_limit(&rate(1_000), (QpType::Rc, QpState::Rts), &limits).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP);
        let errno = |code| check_static_rate(code, &limits).err().map(|refused| refused.errno());
        // 10 Gb/s are less than the port's, 100 and 200 are not.
        let refused = [Some(libc::EOPNOTSUPP), None, None, None, Some(libc::EINVAL)];
        assert_eq!([3, 0, 16, 17, 1].map(errno), refused);
    }

    #[test]
    fn a_path_without_a_global_route_is_refused() {
        let mut attr = rtr();
        attr.ah_attr.is_global = 0;
        assert_eq!(convert(&attr, TO_RTR, QpState::Init).err(), Some(libc::EINVAL));
    }

    #[test]
    fn values_out_of_range_are_refused_one_by_one() {
        let spoil: [fn(&mut ibv_qp_attr); 9] = [
            |a| a.qp_state = 7,
            |a| a.path_mtu = 0,
            |a| a.path_mtu = 6,
            |a| a.dest_qp_num = 1 << 24,
            |a| a.max_dest_rd_atomic = 17,
            |a| a.min_rnr_timer = 32,
            |a| a.ah_attr.port_num = 2,
            |a| a.ah_attr.static_rate = 25,
            |a| a.qp_state = u32::MAX,
        ];
        for (i, spoil) in spoil.iter().enumerate() {
            let mut attr = rtr();
            spoil(&mut attr);
            assert_eq!(convert(&attr, TO_RTR, QpState::Init).err(), Some(libc::EINVAL), "case {i}");
        }
    }
}
