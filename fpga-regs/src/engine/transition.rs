//! The state changes of a QP, by transport, and the attributes of each.
//!
//! The one table that program's side, driver, engine and stack share, and the one check against it.
//! Each of them checks the ranges of values itself.

use core::fmt;

use super::admin::AdminStatus;
use super::qp::{AttributeMask, Attributes, QpState, QpType};
use super::window::Capabilities;
use crate::Describe as _;

/// A change of state, or of attributes in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// State it leads from.
    pub from: QpState,
    /// State it leads to.
    pub to: QpState,
    /// Attributes that must come.
    pub required: AttributeMask,
    /// Attributes that may come besides, [`ALWAYS`] apart.
    pub optional: AttributeMask,
}

/// Attributes that every transition takes.
pub const ALWAYS: AttributeMask = AttributeMask::STATE.union(AttributeMask::CURRENT_STATE);

/// Every transition of a transport; a queue pair refuses all others.
///
/// Source: InfiniBand specification, volume 1, modify queue pair, and `ibv_modify_qp(3)`.
#[must_use]
pub const fn transitions(kind: QpType) -> &'static [Transition] {
    match kind {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud | QpType::Gsi => UD,
        QpType::XrcSend => XRC_SEND,
        QpType::XrcReceive => XRC_RECEIVE,
        _ => &[],
    }
}

use AttributeMask as M;
use QpState as S;

const NOTHING: M = M::empty();
const PLACE: M = M::PKEY_INDEX.union(M::PORT);
const RETRIES: M = M::TIMEOUT.union(M::RETRY_COUNT).union(M::RNR_RETRY);
const RC_LIVE: M = M::ACCESS.union(M::MIN_RNR_TIMER);
const RC_RECEIVE: M = M::AV
    .union(M::PATH_MTU)
    .union(M::DEST_QPN)
    .union(M::RQ_PSN)
    .union(M::MAX_DEST_RD_ATOMIC)
    .union(M::MIN_RNR_TIMER);
const RC_SEND: M = RETRIES.union(M::SQ_PSN).union(M::MAX_RD_ATOMIC);
const RC_DRAINED: M = RC_LIVE
    .union(PLACE)
    .union(M::AV)
    .union(RETRIES)
    .union(M::MAX_RD_ATOMIC)
    .union(M::MAX_DEST_RD_ATOMIC);

const RC: &[Transition] = &[
    row(S::Reset, S::Reset, NOTHING, NOTHING),
    row(S::Reset, S::Init, PLACE.union(M::ACCESS), NOTHING),
    row(S::Reset, S::Err, NOTHING, NOTHING),
    row(S::Init, S::Reset, NOTHING, NOTHING),
    row(S::Init, S::Init, NOTHING, PLACE.union(M::ACCESS)),
    row(S::Init, S::Rtr, RC_RECEIVE, M::ACCESS.union(M::PKEY_INDEX)),
    row(S::Init, S::Err, NOTHING, NOTHING),
    row(S::Rtr, S::Reset, NOTHING, NOTHING),
    row(S::Rtr, S::Rts, RC_SEND, RC_LIVE),
    row(S::Rtr, S::Err, NOTHING, NOTHING),
    row(S::Rts, S::Reset, NOTHING, NOTHING),
    row(S::Rts, S::Rts, NOTHING, RC_LIVE),
    row(S::Rts, S::Sqd, NOTHING, M::EN_SQD_ASYNC_NOTIFY),
    row(S::Rts, S::Err, NOTHING, NOTHING),
    row(S::Sqd, S::Reset, NOTHING, NOTHING),
    row(S::Sqd, S::Rts, NOTHING, RC_LIVE),
    row(S::Sqd, S::Sqd, NOTHING, RC_DRAINED),
    row(S::Sqd, S::Err, NOTHING, NOTHING),
    row(S::Err, S::Reset, NOTHING, NOTHING),
    row(S::Err, S::Err, NOTHING, NOTHING),
];

const UC_RECEIVE: M = M::AV.union(M::PATH_MTU).union(M::DEST_QPN).union(M::RQ_PSN);
const UC_PLACE: M = M::ACCESS.union(M::PKEY_INDEX);

const UC: &[Transition] = &[
    row(S::Reset, S::Reset, NOTHING, NOTHING),
    row(S::Reset, S::Init, PLACE.union(M::ACCESS), NOTHING),
    row(S::Reset, S::Err, NOTHING, NOTHING),
    row(S::Init, S::Reset, NOTHING, NOTHING),
    row(S::Init, S::Init, NOTHING, PLACE.union(M::ACCESS)),
    row(S::Init, S::Rtr, UC_RECEIVE, UC_PLACE),
    row(S::Init, S::Err, NOTHING, NOTHING),
    row(S::Rtr, S::Reset, NOTHING, NOTHING),
    row(S::Rtr, S::Rts, M::SQ_PSN, M::ACCESS),
    row(S::Rtr, S::Err, NOTHING, NOTHING),
    row(S::Rts, S::Reset, NOTHING, NOTHING),
    row(S::Rts, S::Rts, NOTHING, M::ACCESS),
    row(S::Rts, S::Sqd, NOTHING, M::EN_SQD_ASYNC_NOTIFY),
    row(S::Rts, S::Err, NOTHING, NOTHING),
    row(S::Sqd, S::Reset, NOTHING, NOTHING),
    row(S::Sqd, S::Rts, NOTHING, M::ACCESS),
    row(S::Sqd, S::Sqd, NOTHING, UC_PLACE.union(M::AV)),
    row(S::Sqd, S::Err, NOTHING, NOTHING),
    row(S::Sqe, S::Reset, NOTHING, NOTHING),
    row(S::Sqe, S::Rts, NOTHING, M::ACCESS),
    row(S::Sqe, S::Err, NOTHING, NOTHING),
    row(S::Err, S::Reset, NOTHING, NOTHING),
    row(S::Err, S::Err, NOTHING, NOTHING),
];

const UD_PLACE: M = M::PKEY_INDEX.union(M::QKEY);

const UD: &[Transition] = &[
    row(S::Reset, S::Reset, NOTHING, NOTHING),
    row(S::Reset, S::Init, PLACE.union(M::QKEY), NOTHING),
    row(S::Reset, S::Err, NOTHING, NOTHING),
    row(S::Init, S::Reset, NOTHING, NOTHING),
    row(S::Init, S::Init, NOTHING, PLACE.union(M::QKEY)),
    row(S::Init, S::Rtr, NOTHING, UD_PLACE),
    row(S::Init, S::Err, NOTHING, NOTHING),
    row(S::Rtr, S::Reset, NOTHING, NOTHING),
    row(S::Rtr, S::Rts, M::SQ_PSN, M::QKEY),
    row(S::Rtr, S::Err, NOTHING, NOTHING),
    row(S::Rts, S::Reset, NOTHING, NOTHING),
    row(S::Rts, S::Rts, NOTHING, M::QKEY),
    row(S::Rts, S::Sqd, NOTHING, M::EN_SQD_ASYNC_NOTIFY),
    row(S::Rts, S::Err, NOTHING, NOTHING),
    row(S::Sqd, S::Reset, NOTHING, NOTHING),
    row(S::Sqd, S::Rts, NOTHING, M::QKEY),
    row(S::Sqd, S::Sqd, NOTHING, UD_PLACE),
    row(S::Sqd, S::Err, NOTHING, NOTHING),
    row(S::Sqe, S::Reset, NOTHING, NOTHING),
    row(S::Sqe, S::Rts, NOTHING, M::QKEY),
    row(S::Sqe, S::Err, NOTHING, NOTHING),
    row(S::Err, S::Reset, NOTHING, NOTHING),
    row(S::Err, S::Err, NOTHING, NOTHING),
];

// A sender along XRC receives nothing, and the other way round; the rest is as with Reliable Connection.
// Source: Linux, drivers/infiniband/core/verbs.c, which states may follow for IB_QPT_XRC_INI and IB_QPT_XRC_TGT.
const XRC_SEND: &[Transition] = &[
    row(S::Reset, S::Reset, NOTHING, NOTHING),
    row(S::Reset, S::Init, PLACE.union(M::ACCESS), NOTHING),
    row(S::Reset, S::Err, NOTHING, NOTHING),
    row(S::Init, S::Reset, NOTHING, NOTHING),
    row(S::Init, S::Init, NOTHING, PLACE.union(M::ACCESS)),
    row(S::Init, S::Rtr, UC_RECEIVE, UC_PLACE),
    row(S::Init, S::Err, NOTHING, NOTHING),
    row(S::Rtr, S::Reset, NOTHING, NOTHING),
    row(S::Rtr, S::Rts, RC_SEND, M::ACCESS),
    row(S::Rtr, S::Err, NOTHING, NOTHING),
    row(S::Rts, S::Reset, NOTHING, NOTHING),
    row(S::Rts, S::Rts, NOTHING, M::ACCESS),
    row(S::Rts, S::Sqd, NOTHING, M::EN_SQD_ASYNC_NOTIFY),
    row(S::Rts, S::Err, NOTHING, NOTHING),
    row(S::Sqd, S::Reset, NOTHING, NOTHING),
    row(S::Sqd, S::Rts, NOTHING, M::ACCESS),
    row(S::Sqd, S::Sqd, NOTHING, XRC_DRAINED.union(RETRIES).union(M::MAX_RD_ATOMIC)),
    row(S::Sqd, S::Err, NOTHING, NOTHING),
    row(S::Err, S::Reset, NOTHING, NOTHING),
    row(S::Err, S::Err, NOTHING, NOTHING),
];

const XRC_DRAINED: M = M::ACCESS.union(PLACE).union(M::AV);

const XRC_RECEIVE: &[Transition] = &[
    row(S::Reset, S::Reset, NOTHING, NOTHING),
    row(S::Reset, S::Init, PLACE.union(M::ACCESS), NOTHING),
    row(S::Reset, S::Err, NOTHING, NOTHING),
    row(S::Init, S::Reset, NOTHING, NOTHING),
    row(S::Init, S::Init, NOTHING, PLACE.union(M::ACCESS)),
    row(S::Init, S::Rtr, RC_RECEIVE, UC_PLACE),
    row(S::Init, S::Err, NOTHING, NOTHING),
    row(S::Rtr, S::Reset, NOTHING, NOTHING),
    row(S::Rtr, S::Rts, M::TIMEOUT.union(M::SQ_PSN), RC_LIVE),
    row(S::Rtr, S::Err, NOTHING, NOTHING),
    row(S::Rts, S::Reset, NOTHING, NOTHING),
    row(S::Rts, S::Rts, NOTHING, RC_LIVE),
    row(S::Rts, S::Sqd, NOTHING, M::EN_SQD_ASYNC_NOTIFY),
    row(S::Rts, S::Err, NOTHING, NOTHING),
    row(S::Sqd, S::Reset, NOTHING, NOTHING),
    row(S::Sqd, S::Rts, NOTHING, RC_LIVE),
    row(
        S::Sqd,
        S::Sqd,
        NOTHING,
        XRC_DRAINED.union(RC_LIVE).union(M::TIMEOUT).union(M::MAX_DEST_RD_ATOMIC),
    ),
    row(S::Sqd, S::Err, NOTHING, NOTHING),
    row(S::Err, S::Reset, NOTHING, NOTHING),
    row(S::Err, S::Err, NOTHING, NOTHING),
];

const fn row(from: QpState, to: QpState, required: M, optional: M) -> Transition {
    Transition { from, to, required, optional }
}

/// The transition of a transport from one state to another, or `None` where there is none.
#[must_use]
pub fn transition(kind: QpType, from: QpState, to: QpState) -> Option<&'static Transition> {
    transitions(kind).iter().find(|row| (row.from, row.to) == (from, to))
}

/// Attributes that a transition also takes of an engine with capabilities that not every engine has: the rate of a QP
/// that sends requests, from RTR on.
#[must_use]
pub fn further(kind: QpType, from: QpState, to: QpState, capabilities: Capabilities) -> M {
    let sends = kind != QpType::XrcReceive && kind != QpType::Gsi;
    let ways = [(S::Rtr, S::Rts), (S::Rts, S::Rts), (S::Sqd, S::Rts), (S::Sqd, S::Sqd)];
    match capabilities.contains(Capabilities::RATE_LIMIT) && sends && ways.contains(&(from, to)) {
        true => M::RATE_LIMIT,
        false => NOTHING,
    }
}

/// Why a change of a QP is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `CURRENT_STATE` names another state than the QP's.
    OtherState {
        /// State the QP is in.
        from: QpState,
        /// State the caller believes it is in.
        named: QpState,
    },
    /// The transport has no such transition.
    NoTransition {
        /// State the QP is in.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// Required attributes did not come.
    Missing {
        /// State the QP is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Those attributes.
        attributes: AttributeMask,
    },
    /// Attributes came that the transition does not take.
    Surplus {
        /// State the QP is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Those attributes.
        attributes: AttributeMask,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OtherState { from, named } => {
                write!(f, "the QP is in {from:?}, not in {named:?}")
            }
            Self::NoTransition { from, to } => {
                write!(f, "the QP is in {from:?}, and no way leads from there to {to:?}")
            }
            Self::Missing { from, to, attributes } => {
                write!(f, "{from:?} to {to:?} also needs {}", attributes.names())
            }
            Self::Surplus { from, to, attributes } => {
                write!(f, "{from:?} to {to:?} does not take {}", attributes.names())
            }
        }
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for AdminStatus {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::OtherState { .. } | Refused::NoTransition { .. } => Self::BadState,
            Refused::Missing { .. } | Refused::Surplus { .. } => Self::Invalid,
        }
    }
}

/// Checks which attributes a change of a QP in `from` names, of an engine with these capabilities, and returns the state
/// it leads to: `from`, where it names none.
///
/// # Errors
/// [`Refused`], the first thing that is wrong.
pub fn check(
    kind: QpType,
    from: QpState,
    change: &Attributes,
    capabilities: Capabilities,
) -> Result<QpState, Refused> {
    let given = change.mask;
    if given.contains(M::CURRENT_STATE) && change.current_state != from {
        return Err(Refused::OtherState { from, named: change.current_state });
    }
    let to = if given.contains(M::STATE) { change.state } else { from };
    let row = transition(kind, from, to).ok_or(Refused::NoTransition { from, to })?;
    let missing = row.required.difference(given);
    if !missing.is_empty() {
        return Err(Refused::Missing { from, to, attributes: missing });
    }
    let further = further(kind, from, to, capabilities);
    let surplus = given.difference(row.required | row.optional | ALWAYS | further);
    if !surplus.is_empty() {
        return Err(Refused::Surplus { from, to, attributes: surplus });
    }
    Ok(to)
}

/// Every change of a QP in `from` that the tests of a user of [`check`] try: to each state, and to none, with its
/// required attributes, with each of these missing, and with each further one.
pub fn changes(kind: QpType, from: QpState) -> impl Iterator<Item = Attributes> {
    let states = QpState::CODES.into_iter().flat_map(|codes| codes.values);
    let states = states.map(|code| (M::STATE, QpState::from_raw(code.value)));
    states.chain([(NOTHING, from)]).flat_map(move |(named, state)| {
        let required = transition(kind, from, state).map_or(NOTHING, |row| row.required);
        // An attribute that is required is left out once, any other is added once.
        let bits = (0..32).map(|bit| M::from_bits_retain(1 << bit)).filter(|bit| *bit != M::STATE);
        bits.map(move |bit| required ^ bit).chain([required]).map(move |attributes| Attributes {
            mask: named | attributes,
            state,
            current_state: from,
            ..Attributes::default()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];

    fn table(kind: QpType) -> String {
        let mut table = String::new();
        for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
            let line = match transition(kind, from, to) {
                None => format!("{from:?} > {to:?}: refused\n"),
                Some(row) => format!(
                    "{from:?} > {to:?}: needs [{}], allows [{}]\n",
                    row.required.names(),
                    row.optional.names()
                ),
            };
            table.push_str(&line);
        }
        table
    }

    const RC_TABLE: &str = "\
Reset > Reset: needs [], allows []
Reset > Init: needs [ACCESS, PKEY_INDEX, PORT], allows []
Reset > Rtr: refused
Reset > Rts: refused
Reset > Sqd: refused
Reset > Sqe: refused
Reset > Err: needs [], allows []
Init > Reset: needs [], allows []
Init > Init: needs [], allows [ACCESS, PKEY_INDEX, PORT]
Init > Rtr: needs [AV, PATH_MTU, RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN], \
allows [ACCESS, PKEY_INDEX]
Init > Rts: refused
Init > Sqd: refused
Init > Sqe: refused
Init > Err: needs [], allows []
Rtr > Reset: needs [], allows []
Rtr > Init: refused
Rtr > Rtr: refused
Rtr > Rts: needs [TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC, SQ_PSN], \
allows [ACCESS, MIN_RNR_TIMER]
Rtr > Sqd: refused
Rtr > Sqe: refused
Rtr > Err: needs [], allows []
Rts > Reset: needs [], allows []
Rts > Init: refused
Rts > Rtr: refused
Rts > Rts: needs [], allows [ACCESS, MIN_RNR_TIMER]
Rts > Sqd: needs [], allows [EN_SQD_ASYNC_NOTIFY]
Rts > Sqe: refused
Rts > Err: needs [], allows []
Sqd > Reset: needs [], allows []
Sqd > Init: refused
Sqd > Rtr: refused
Sqd > Rts: needs [], allows [ACCESS, MIN_RNR_TIMER]
Sqd > Sqd: needs [], allows [ACCESS, PKEY_INDEX, PORT, AV, TIMEOUT, RETRY_COUNT, RNR_RETRY, \
MAX_RD_ATOMIC, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC]
Sqd > Sqe: refused
Sqd > Err: needs [], allows []
Sqe > Reset: refused
Sqe > Init: refused
Sqe > Rtr: refused
Sqe > Rts: refused
Sqe > Sqd: refused
Sqe > Sqe: refused
Sqe > Err: refused
Err > Reset: needs [], allows []
Err > Init: refused
Err > Rtr: refused
Err > Rts: refused
Err > Sqd: refused
Err > Sqe: refused
Err > Err: needs [], allows []
";

    const UC_TABLE: &str = "\
Reset > Reset: needs [], allows []
Reset > Init: needs [ACCESS, PKEY_INDEX, PORT], allows []
Reset > Rtr: refused
Reset > Rts: refused
Reset > Sqd: refused
Reset > Sqe: refused
Reset > Err: needs [], allows []
Init > Reset: needs [], allows []
Init > Init: needs [], allows [ACCESS, PKEY_INDEX, PORT]
Init > Rtr: needs [AV, PATH_MTU, RQ_PSN, DEST_QPN], allows [ACCESS, PKEY_INDEX]
Init > Rts: refused
Init > Sqd: refused
Init > Sqe: refused
Init > Err: needs [], allows []
Rtr > Reset: needs [], allows []
Rtr > Init: refused
Rtr > Rtr: refused
Rtr > Rts: needs [SQ_PSN], allows [ACCESS]
Rtr > Sqd: refused
Rtr > Sqe: refused
Rtr > Err: needs [], allows []
Rts > Reset: needs [], allows []
Rts > Init: refused
Rts > Rtr: refused
Rts > Rts: needs [], allows [ACCESS]
Rts > Sqd: needs [], allows [EN_SQD_ASYNC_NOTIFY]
Rts > Sqe: refused
Rts > Err: needs [], allows []
Sqd > Reset: needs [], allows []
Sqd > Init: refused
Sqd > Rtr: refused
Sqd > Rts: needs [], allows [ACCESS]
Sqd > Sqd: needs [], allows [ACCESS, PKEY_INDEX, AV]
Sqd > Sqe: refused
Sqd > Err: needs [], allows []
Sqe > Reset: needs [], allows []
Sqe > Init: refused
Sqe > Rtr: refused
Sqe > Rts: needs [], allows [ACCESS]
Sqe > Sqd: refused
Sqe > Sqe: refused
Sqe > Err: needs [], allows []
Err > Reset: needs [], allows []
Err > Init: refused
Err > Rtr: refused
Err > Rts: refused
Err > Sqd: refused
Err > Sqe: refused
Err > Err: needs [], allows []
";

    const UD_TABLE: &str = "\
Reset > Reset: needs [], allows []
Reset > Init: needs [PKEY_INDEX, PORT, QKEY], allows []
Reset > Rtr: refused
Reset > Rts: refused
Reset > Sqd: refused
Reset > Sqe: refused
Reset > Err: needs [], allows []
Init > Reset: needs [], allows []
Init > Init: needs [], allows [PKEY_INDEX, PORT, QKEY]
Init > Rtr: needs [], allows [PKEY_INDEX, QKEY]
Init > Rts: refused
Init > Sqd: refused
Init > Sqe: refused
Init > Err: needs [], allows []
Rtr > Reset: needs [], allows []
Rtr > Init: refused
Rtr > Rtr: refused
Rtr > Rts: needs [SQ_PSN], allows [QKEY]
Rtr > Sqd: refused
Rtr > Sqe: refused
Rtr > Err: needs [], allows []
Rts > Reset: needs [], allows []
Rts > Init: refused
Rts > Rtr: refused
Rts > Rts: needs [], allows [QKEY]
Rts > Sqd: needs [], allows [EN_SQD_ASYNC_NOTIFY]
Rts > Sqe: refused
Rts > Err: needs [], allows []
Sqd > Reset: needs [], allows []
Sqd > Init: refused
Sqd > Rtr: refused
Sqd > Rts: needs [], allows [QKEY]
Sqd > Sqd: needs [], allows [PKEY_INDEX, QKEY]
Sqd > Sqe: refused
Sqd > Err: needs [], allows []
Sqe > Reset: needs [], allows []
Sqe > Init: refused
Sqe > Rtr: refused
Sqe > Rts: needs [], allows [QKEY]
Sqe > Sqd: refused
Sqe > Sqe: refused
Sqe > Err: needs [], allows []
Err > Reset: needs [], allows []
Err > Init: refused
Err > Rtr: refused
Err > Rts: refused
Err > Sqd: refused
Err > Sqe: refused
Err > Err: needs [], allows []
";

    #[test]
    fn the_whole_tables_are_as_written_here() {
        assert_eq!(table(QpType::Rc), RC_TABLE);
        assert_eq!(table(QpType::Uc), UC_TABLE);
        assert_eq!(table(QpType::Ud), UD_TABLE);
    }

    #[test]
    fn xrc_has_the_ways_of_a_reliable_connection_with_the_attributes_of_its_side() {
        for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
            let rows = [QpType::Rc, QpType::XrcSend, QpType::XrcReceive];
            let [reliable, send, receive] = rows.map(|kind| transition(kind, from, to));
            let (Some(reliable), Some(send), Some(receive)) = (reliable, send, receive) else {
                assert_eq!((reliable, send, receive), (None, None, None), "{from:?} to {to:?}");
                continue;
            };
            assert_eq!(reliable.required, send.required | receive.required, "{from:?} to {to:?}");
            assert_eq!(reliable.optional, send.optional | receive.optional, "{from:?} to {to:?}");
        }
        let (to, rts) = (S::Rtr, S::Rts);
        let receives = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let needs = |kind, from, to| transition(kind, from, to).unwrap().required;
        assert_eq!(needs(QpType::XrcSend, S::Init, to), RC_RECEIVE - receives);
        assert_eq!(needs(QpType::XrcReceive, S::Init, to), RC_RECEIVE);
        assert_eq!(needs(QpType::XrcSend, to, rts), RC_SEND);
        assert_eq!(needs(QpType::XrcReceive, to, rts), M::TIMEOUT | M::SQ_PSN);
    }

    #[test]
    fn no_transition_is_listed_twice() {
        let kinds = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcReceive];
        let kinds = kinds.map(transitions);
        for (rows, (index, row)) in
            kinds.iter().flat_map(|rows| rows.iter().enumerate().map(move |row| (rows, row)))
        {
            let first = rows.iter().position(|one| (one.from, one.to) == (row.from, row.to));
            assert_eq!(first, Some(index), "{row:?}");
            assert!(!row.required.intersects(row.optional | ALWAYS), "{row:?}");
            assert!(!row.optional.intersects(ALWAYS), "{row:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_change_is_named() {
        let change = |mask, state| Attributes { mask, state, ..Attributes::default() };
        let check = |from, change| check(QpType::Rc, from, &change, Capabilities::empty());
        let (from, to) = (S::Init, S::Rtr);
        assert_eq!(
            check(S::Reset, change(M::STATE, to)),
            Err(Refused::NoTransition { from: S::Reset, to })
        );
        let given = M::STATE | RC_RECEIVE;
        assert_eq!(check(from, change(given, to)), Ok(to));
        let attributes = M::AV;
        assert_eq!(
            check(from, change(given - attributes, to)),
            Err(Refused::Missing { from, to, attributes })
        );
        let attributes = M::CAP | M::QKEY;
        assert_eq!(
            check(from, change(given | attributes, to)),
            Err(Refused::Surplus { from, to, attributes })
        );
        let named = S::Reset;
        assert_eq!(
            check(from, change(given | M::CURRENT_STATE, to)),
            Err(Refused::OtherState { from, named })
        );
        // Without a state it stays where it is.
        assert_eq!(check(from, change(M::ACCESS, to)), Ok(from));
    }

    #[test]
    fn a_rate_is_taken_of_queue_pairs_that_send_where_the_engine_offers_it() {
        let change = |mask| Attributes { mask, state: S::Rts, ..Attributes::default() };
        let (alone, offered) = (change(M::RATE_LIMIT), Capabilities::RATE_LIMIT);
        let way = change(M::STATE | RC_SEND | M::RATE_LIMIT);
        assert_eq!(check(QpType::Rc, S::Rtr, &way, offered), Ok(S::Rts));
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
            for from in [S::Rts, S::Sqd] {
                assert_eq!(check(kind, from, &alone, offered), Ok(from));
                let refused = check(kind, from, &alone, Capabilities::all() - offered);
                let attributes = M::RATE_LIMIT;
                assert_eq!(refused, Err(Refused::Surplus { from, to: from, attributes }));
            }
            for from in [S::Reset, S::Init, S::Rtr, S::Sqe, S::Err] {
                assert!(check(kind, from, &alone, offered).is_err());
            }
        }
        for kind in [QpType::XrcReceive, QpType::Gsi] {
            assert!(check(kind, S::Rts, &alone, offered).is_err());
        }
    }

    #[test]
    fn attributes_without_a_name_are_told_by_their_bits() {
        let change = Attributes { mask: M::from_bits_retain(1 << 30), ..Attributes::default() };
        let refused = check(QpType::Rc, S::Reset, &change, Capabilities::all()).unwrap_err();
        assert_eq!(refused.to_string(), "Reset to Reset does not take 0x40000000");
    }

    #[test]
    fn the_changes_to_try_leave_out_and_add_each_attribute() {
        let masks: Vec<M> = changes(QpType::Rc, S::Init)
            .filter(|change| (change.state, change.mask & M::STATE) == (S::Rtr, M::STATE))
            .map(|change| change.mask - M::STATE)
            .collect();
        for bit in M::all().iter().filter(|bit| *bit != M::STATE) {
            let changed =
                if RC_RECEIVE.contains(bit) { RC_RECEIVE - bit } else { RC_RECEIVE | bit };
            assert!(masks.contains(&changed), "{bit:?}");
        }
        assert!(masks.contains(&RC_RECEIVE));
    }
}
