//! Features that cards do not offer: each verb and each flag is refused with EOPNOTSUPP, or the errno of its manual
//! page, and a line in the log says why.

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::arguments::{self, Row, Scene};
use super::link::{ACCESS, Options};
use crate::ffi::{
    Cq, CqWishes, Dm, ListEnd, NOT_OFFERED, Operation, Qp, QpWishes, Send, Srq, attempt,
};

const EINVAL: i32 = libc::EINVAL;
const EOPNOTSUPP: i32 = libc::EOPNOTSUPP;

/// Tries all of them; tells of each call before it is made, and answers how many there were.
///
/// # Errors
/// At the first that is not refused as it should be.
pub fn all(options: &Options, tell: impl Fn(&str, &str)) -> Result<usize> {
    let scene = Scene::new(options)?;
    // libibverbs itself refuses calls for which no options are set.
    let known = arguments::all_rows().filter(|(_, argument, errno, _)| {
        *errno == EOPNOTSUPP && *argument != arguments::NOBODYS_OPTIONS
    });
    let mut count = 0;
    for (call, argument, errno, attempt) in known.chain(FLAGS) {
        tell(call, argument);
        arguments::check(attempt(&scene), *errno).with_context(|| format!("{call}: {argument}"))?;
        count += 1;
    }
    let side = &scene.link.left;
    let srq = Srq::new(&side.pd, 4, 1)?;
    for (call, attempt) in NOT_OFFERED {
        tell(call, "whatever");
        let failed = attempt(&side.pd, &side.qp, &srq).err().context("it is taken");
        let failed = failed.with_context(|| (*call).to_owned())?;
        ensure!(failed.errno == EOPNOTSUPP, "{failed}");
        count += 1;
    }
    Ok(count)
}

/// Makes an extended completion queue.
fn cq(scene: &Scene, wishes: CqWishes<'_>) -> Result<()> {
    Cq::extended(&scene.link.left.context, 4, None, wishes).map(drop)
}

/// One that tells so much more of a completion.
fn telling(scene: &Scene, flag: v::ibv_create_cq_wc_flags) -> Result<()> {
    cq(scene, CqWishes { wc_flags: flag.into(), ..CqWishes::default() })
}

/// Flags that no other table has.
const FLAGS: &[Row] = &[
    ("ibv_create_cq_ex", "the VLAN of a completion", EOPNOTSUPP, |s| {
        telling(s, v::IBV_WC_EX_WITH_CVLAN)
    }),
    ("ibv_create_cq_ex", "the flow's tag of a completion", EOPNOTSUPP, |s| {
        telling(s, v::IBV_WC_EX_WITH_FLOW_TAG)
    }),
    ("ibv_create_cq_ex", "a matched tag", EOPNOTSUPP, |s| telling(s, v::IBV_WC_EX_WITH_TM_INFO)),
    ("ibv_create_cq_ex", "the time of day of a completion", EOPNOTSUPP, |s| {
        telling(s, v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    }),
    ("ibv_create_cq_ex", "an overrun that is no error", EOPNOTSUPP, |s| {
        let comp_mask = v::IBV_CQ_INIT_ATTR_MASK_FLAGS;
        let flags = v::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        cq(s, CqWishes { comp_mask, flags, ..CqWishes::default() })
    }),
    ("ibv_alloc_parent_domain", "memory that a confidential guest's host sees", EOPNOTSUPP, |s| {
        let side = &s.link.left;
        attempt::alloc_parent_domain(&side.context, Some(&side.pd), 1 << 2)
    }),
    ("ibv_create_srq_ex", "a queue of tags", EOPNOTSUPP, |s| {
        attempt::create_srq_ex(&s.link.left.pd, v::IBV_SRQT_TM)
    }),
    ("ibv_rereg_mr", "device memory", EOPNOTSUPP, |s| {
        let side = &s.link.left;
        let access = ACCESS | v::IBV_ACCESS_ZERO_BASED;
        let region = Dm::new(&side.context, 64, 0)?.register(&side.pd, (0, 64), access)?;
        Ok(region.rereg(v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_ZERO_BASED)?)
    }),
    ("ibv_bind_mw", "addresses from 0 on", EINVAL, |s| {
        s.bind([&s.link.left.pd; 3], v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_ZERO_BASED)
    }),
    ("ibv_post_send", "a checksum of IP", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| request.flags = v::IBV_SEND_IP_CSUM)
    }),
    ("ibv_wr_complete", "a checksum of IP", EINVAL, |s| {
        let (side, right) = (&s.link.left, &s.link.right.region);
        let cqs = [&side.send_cq, &side.receive_cq];
        let qp = Qp::extended(&side.pd, cqs, arguments::capabilities(), QpWishes::default())?;
        s.bring(&qp, v::IBV_QPT_RC, v::IBV_QPS_RTS)?;
        let (operation, remote) = (Operation::Write, (right.address(), right.rkey()));
        let (pieces, flags) = (vec![side.region.piece(0, 8)], v::IBV_SEND_IP_CSUM);
        let request = Send { wr_id: 0, operation, pieces, remote, immediate: 0, flags };
        Ok(qp.build(&[request], ListEnd::Complete)?)
    }),
];
