//! Answers of `ibv_query_qp` about a queue pair: each attribute as it was set, in each state.

use anyhow::{Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, Options, Side};
use super::transfer;
use crate::ffi::{Library, Qp, Service, TO_INIT, TO_RTR, TO_RTS, blank, gid_bytes};

/// Every attribute has a value of its own, which no other field has by chance.
const ACCESS: v::ibv_access_flags = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_READ;

/// All that there is to be told, as plain numbers, each with its name.
type Told = Vec<(&'static str, u64)>;

/// Queries a QP with acknowledgements.
///
/// # Errors
/// At the first attribute that is told otherwise than it was set.
pub fn reliable(options: &Options) -> Result<()> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(4096))?;
    let (qp, gid_index) = (&link.left.qp, options.gid_index);
    let dgid = link.right.context.gid(gid_index)?;

    is_told_as_made(&link.left)?;

    // In RESET only the state is defined.
    qp.to(v::IBV_QPS_RESET)?;
    let state = qp.query()?.qp_state;
    ensure!(state == v::IBV_QPS_RESET, "RESET is told as {state}");
    let mut expected = told(&v::ibv_qp_attr { cap: qp.capabilities, ..blank() });
    set(&mut expected, &[("port_num", 1), ("ah_attr.port_num", 1)]);
    // It may be changed to INIT again, as before or otherwise. Only peers' rights are a QP's.
    let other = v::IBV_ACCESS_REMOTE_WRITE;
    for access in [ACCESS, ACCESS, other, ACCESS, other, other, ACCESS] {
        qp.modify(TO_INIT, |attr| {
            attr.qp_state = v::IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = access;
        })?;
        let peers = access & !v::IBV_ACCESS_LOCAL_WRITE;
        set(&mut expected, &[("qp_access_flags", peers.into())]);
        is_told(qp, "INIT", &expected, v::IBV_QPS_INIT)?;
    }

    qp.modify(TO_RTR, |attr| {
        attr.qp_state = v::IBV_QPS_RTR;
        attr.path_mtu = v::IBV_MTU_2048;
        attr.dest_qp_num = 0x12_3457;
        attr.rq_psn = 0xab_cdef;
        attr.max_dest_rd_atomic = 3;
        attr.min_rnr_timer = 21;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        (attr.ah_attr.sl, attr.ah_attr.static_rate) = (5, 16);
        let grh = &mut attr.ah_attr.grh;
        grh.dgid = v::ibv_gid { raw: dgid };
        grh.sgid_index = gid_index;
        (grh.hop_limit, grh.traffic_class, grh.flow_label) = (17, 0x28, 0x1_2345);
    })?;
    let (high, low) = halves(dgid);
    set(
        &mut expected,
        &[
            ("path_mtu", v::IBV_MTU_2048.into()),
            ("dest_qp_num", 0x12_3457),
            ("rq_psn", 0xab_cdef),
            ("max_dest_rd_atomic", 3),
            ("min_rnr_timer", 21),
            ("ah_attr.is_global", 1),
            ("ah_attr.sl", 5),
            ("ah_attr.static_rate", 16),
            ("grh.dgid, first half", high),
            ("grh.dgid, second half", low),
            ("grh.sgid_index", gid_index.into()),
            ("grh.hop_limit", 17),
            ("grh.traffic_class", 0x28),
            ("grh.flow_label", 0x1_2345),
        ],
    );
    is_told(qp, "RTR", &expected, v::IBV_QPS_RTR)?;

    qp.modify(TO_RTS, |attr| {
        attr.qp_state = v::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (19, 5, 6);
        (attr.sq_psn, attr.max_rd_atomic) = (0xfe_dcba, 2);
    })?;
    let numbers = [("timeout", 19), ("retry_cnt", 5), ("rnr_retry", 6), ("max_rd_atomic", 2)];
    set(&mut expected, &numbers);
    set(&mut expected, &[("sq_psn", 0xfe_dcba)]);
    is_told(qp, "RTS", &expected, v::IBV_QPS_RTS)?;
    qp.to(v::IBV_QPS_ERR)?;
    is_told(qp, "ERR", &expected, v::IBV_QPS_ERR)?;
    Ok(())
}

/// Checks the attributes with which a QP was made.
fn is_told_as_made(side: &Side) -> Result<()> {
    let made = side.qp.made_as()?;
    let queues = [made.send_cq as usize, made.recv_cq as usize, made.srq as usize];
    ensure!(queues == [side.send_cq.element(), side.receive_cq.element(), 0], "{queues:x?}");
    let kinds = (made.qp_type, made.sq_sig_all);
    ensure!(kinds == (v::IBV_QPT_RC, 0), "type and sq_sig_all are told as {kinds:?}");
    let (cap, granted) = (sizes(&made.cap), sizes(&side.qp.capabilities));
    ensure!(cap == granted, "sizes are told as {cap:?}, and {granted:?} were granted");
    Ok(())
}

/// The same of a QP without acknowledgements, which has no attributes of those.
///
/// # Errors
/// At the first attribute that is told otherwise than it was set.
pub fn unreliable(options: &Options) -> Result<()> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(4096))?;
    let (qp, gid_index) = (&link.left.qp, options.gid_index);
    let dgid = link.right.context.gid(gid_index)?;
    qp.to(v::IBV_QPS_RESET)?;
    qp.init(v::IBV_ACCESS_REMOTE_WRITE)?;
    qp.modify(TO_RTR, |attr| {
        attr.qp_state = v::IBV_QPS_RTR;
        (attr.path_mtu, attr.dest_qp_num, attr.rq_psn) = (v::IBV_MTU_512, 0x65_4321, 0x12_3456);
        (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.sl) = (1, 1, 6);
        let grh = &mut attr.ah_attr.grh;
        (grh.dgid, grh.sgid_index) = (v::ibv_gid { raw: dgid }, gid_index);
        (grh.hop_limit, grh.traffic_class, grh.flow_label) = (3, 0x64, 0xf_edcb);
    })?;
    qp.modify(TO_RTS, |attr| (attr.qp_state, attr.sq_psn) = (v::IBV_QPS_RTS, 0xab_0123))?;
    let mut expected = told(&v::ibv_qp_attr { cap: qp.capabilities, ..blank() });
    let (high, low) = halves(dgid);
    set(
        &mut expected,
        &[
            ("port_num", 1),
            ("qp_access_flags", v::IBV_ACCESS_REMOTE_WRITE.into()),
            ("path_mtu", v::IBV_MTU_512.into()),
            ("dest_qp_num", 0x65_4321),
            ("rq_psn", 0x12_3456),
            ("sq_psn", 0xab_0123),
            ("ah_attr.is_global", 1),
            ("ah_attr.port_num", 1),
            ("ah_attr.sl", 6),
            ("grh.dgid, first half", high),
            ("grh.dgid, second half", low),
            ("grh.sgid_index", gid_index.into()),
            ("grh.hop_limit", 3),
            ("grh.traffic_class", 0x64),
            ("grh.flow_label", 0xf_edcb),
        ],
    );
    is_told(qp, "RTS", &expected, v::IBV_QPS_RTS)?;
    qp.to(v::IBV_QPS_SQD)?;
    is_told(qp, "SQD", &expected, v::IBV_QPS_SQD)
}

/// The same of a QP of datagrams, which has no peer.
///
/// # Errors
/// At the first attribute that is told otherwise than it was set.
pub fn datagrams(options: &Options) -> Result<()> {
    let side = Side::new(Library::open()?, options, 0, transfer::room(4096))?;
    let cqs = [&side.send_cq, &side.receive_cq];
    let qp = Qp::of(Service::Datagram, &side.pd, cqs, side.qp.capabilities)?;
    qp.to_datagrams(0x7654_3210, 0xcd_ef01)?;
    let mut expected = told(&v::ibv_qp_attr { cap: qp.capabilities, ..blank() });
    let mut numbers =
        [("port_num", 1), ("ah_attr.port_num", 1), ("qkey", 0x7654_3210), ("sq_psn", 0xcd_ef01)];
    set(&mut expected, &numbers);
    is_told(&qp, "RTS", &expected, v::IBV_QPS_RTS)?;
    qp.to(v::IBV_QPS_SQD)?;
    qp.modify(v::IBV_QP_STATE | v::IBV_QP_QKEY, |attr| {
        (attr.qp_state, attr.qkey) = (v::IBV_QPS_SQD, 0x0123_4567);
    })?;
    numbers[2].1 = 0x0123_4567;
    set(&mut expected, &numbers);
    is_told(&qp, "SQD", &expected, v::IBV_QPS_SQD)?;
    qp.to(v::IBV_QPS_ERR)?;
    is_told(&qp, "ERR", &expected, v::IBV_QPS_ERR)
}

fn is_told(qp: &Qp, when: &str, expected: &Told, state: v::ibv_qp_state) -> Result<()> {
    let mut expected = expected.clone();
    let path = ("path_mig_state", v::IBV_MIG_MIGRATED.into());
    set(&mut expected, &[("qp_state", state.into()), ("cur_qp_state", state.into()), path]);
    let found = told(&qp.query()?);
    for (expected, found) in expected.iter().zip(&found) {
        ensure!(found == expected, "in {when}: {found:?} is told, and should be {expected:?}");
    }
    Ok(())
}

fn set(told: &mut Told, values: &[(&str, u64)]) {
    for (name, value) in values {
        for field in told.iter_mut().filter(|field| field.0 == *name) {
            field.1 = *value;
        }
    }
}

fn sizes(cap: &v::ibv_qp_cap) -> [u32; 5] {
    [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data]
}

fn halves(gid: [u8; 16]) -> (u64, u64) {
    let number = u128::from_be_bytes(gid);
    ((number >> 64) as u64, number as u64)
}

fn told(attr: &v::ibv_qp_attr) -> Told {
    let (path, alternate) = (&attr.ah_attr, &attr.alt_ah_attr);
    let (high, low) = halves(gid_bytes(&path.grh.dgid));
    vec![
        ("qp_state", attr.qp_state.into()),
        ("cur_qp_state", attr.cur_qp_state.into()),
        ("path_mtu", attr.path_mtu.into()),
        ("path_mig_state", attr.path_mig_state.into()),
        ("qkey", attr.qkey.into()),
        ("rq_psn", attr.rq_psn.into()),
        ("sq_psn", attr.sq_psn.into()),
        ("dest_qp_num", attr.dest_qp_num.into()),
        ("qp_access_flags", attr.qp_access_flags.into()),
        ("cap.max_send_wr", attr.cap.max_send_wr.into()),
        ("cap.max_recv_wr", attr.cap.max_recv_wr.into()),
        ("cap.max_send_sge", attr.cap.max_send_sge.into()),
        ("cap.max_recv_sge", attr.cap.max_recv_sge.into()),
        ("cap.max_inline_data", attr.cap.max_inline_data.into()),
        ("ah_attr.is_global", path.is_global.into()),
        ("ah_attr.port_num", path.port_num.into()),
        ("ah_attr.sl", path.sl.into()),
        ("ah_attr.dlid", path.dlid.into()),
        ("ah_attr.static_rate", path.static_rate.into()),
        ("ah_attr.src_path_bits", path.src_path_bits.into()),
        ("grh.dgid, first half", high),
        ("grh.dgid, second half", low),
        ("grh.sgid_index", path.grh.sgid_index.into()),
        ("grh.hop_limit", path.grh.hop_limit.into()),
        ("grh.traffic_class", path.grh.traffic_class.into()),
        ("grh.flow_label", path.grh.flow_label.into()),
        ("alt_ah_attr.port_num", alternate.port_num.into()),
        ("pkey_index", attr.pkey_index.into()),
        ("alt_pkey_index", attr.alt_pkey_index.into()),
        ("en_sqd_async_notify", attr.en_sqd_async_notify.into()),
        ("sq_draining", attr.sq_draining.into()),
        ("max_rd_atomic", attr.max_rd_atomic.into()),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.into()),
        ("min_rnr_timer", attr.min_rnr_timer.into()),
        ("port_num", attr.port_num.into()),
        ("timeout", attr.timeout.into()),
        ("retry_cnt", attr.retry_cnt.into()),
        ("rnr_retry", attr.rnr_retry.into()),
        ("alt_port_num", attr.alt_port_num.into()),
        ("alt_timeout", attr.alt_timeout.into()),
        ("rate_limit", attr.rate_limit.into()),
    ]
}
