//! The states of a connection or resolution, and the steps from each: as data.
//!
//! [`TABLE`] has all steps; a message without a step is dropped, and a call without one refused. `docs/cm.md` shows
//! the same table, and a test holds them against each other.

/// The state of a connection or resolution (specification, section 12.9.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// A REQ was sent, and is repeated until it is answered.
    ReqSent,
    /// The peer has the REQ, and asked for time.
    RepWait,
    /// A REP was received; the owner has to say whether it is ready.
    RepReceived,
    /// A REQ was received; the owner has to accept or reject it.
    ReqReceived,
    /// A REP was sent, and is repeated until it is answered.
    RepSent,
    /// The peer has the REP, and asked for time.
    RtuWait,
    /// Both sides are ready.
    Established,
    /// A DREQ was sent, and is repeated until it is answered.
    DreqSent,
    /// A DREQ was received; the owner has to say that it is done.
    DreqReceived,
    /// The connection is gone, and packets of it may still be under way.
    TimeWait,
    /// The last word was said; it is repeated to a peer that asks again.
    Answered,
    /// A SIDR_REQ was sent, and is repeated until it is answered.
    SidrReqSent,
    /// A SIDR_REQ was received; the owner has to answer.
    SidrReqReceived,
    /// Nothing is left but the owner's identifier.
    Ended,
}

/// An event of a connection or resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Input {
    // Calls of the owner's.
    Accept,
    Ready,
    Reject,
    Disconnect,
    /// The queue pair has received something: the RTU was lost, or is late.
    CommunicationEstablished,
    Answer,
    Destroy,
    // Messages.
    Req,
    MraOfReq,
    MraOfRep,
    Rej,
    Rep,
    Rtu,
    Dreq,
    Drep,
    SidrReq,
    SidrRep,
    /// Another connection of the peer's has the queue pair.
    Stale,
    // Time.
    /// No answer came in time, and there are repetitions left.
    Timeout,
    /// No answer came in time, or the time of the state is over.
    Expired,
}

/// The actions of a step, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Act {
    /// Sends the message that was prepared for this step, and keeps it as the last word.
    Send,
    /// Sends the last word again.
    Repeat,
    /// Answers that the owner needs time.
    Mra,
    /// Refuses the received message as one of a connection that is gone.
    RefuseStale,
    /// Answers a DREQ: by the last word if that is a DREP, or else by a new one.
    Drep,
    /// Waits for an answer, with all repetitions.
    Wait,
    /// Waits for an answer, with one repetition less.
    WaitAgain,
    /// Waits as long as the peer asked for.
    WaitLonger,
    /// Waits for nothing.
    Rest,
    /// Waits until no packet of the connection can be under way.
    WaitForPackets,
    /// Keeps the last word for some time.
    KeepLastWord,
    /// The listener has one request less to decide.
    Decided,
    /// Tells the owner.
    Tell,
}

/// One step: in one of these states, when this happens, do this and go there.
#[derive(Debug)]
pub(crate) struct Row {
    pub from: &'static [State],
    pub on: Input,
    pub does: &'static [Act],
    pub to: State,
}

const fn row(from: &'static [State], on: Input, does: &'static [Act], to: State) -> Row {
    Row { from, on, does, to }
}

use Act::{
    Decided, KeepLastWord, Mra, RefuseStale, Repeat, Rest, Send, Tell, Wait, WaitAgain,
    WaitForPackets, WaitLonger,
};
use State::{
    Answered, DreqReceived, DreqSent, Ended, Established, RepReceived, RepSent, RepWait,
    ReqReceived, ReqSent, RtuWait, SidrReqReceived, SidrReqSent, TimeWait,
};

/// Every step.
pub(crate) const TABLE: &[Row] = &[
    // The side that asks. CM-23 to CM-28
    row(&[ReqSent], Input::MraOfReq, &[WaitLonger], RepWait),
    row(&[ReqSent, RepWait], Input::Rep, &[Rest, Tell], RepReceived),
    row(&[ReqSent, RepWait], Input::Rej, &[Rest, Tell], Ended),
    row(&[ReqSent, RepWait], Input::Timeout, &[Repeat, WaitAgain], ReqSent),
    row(&[ReqSent, RepWait], Input::Expired, &[Send, Tell], Ended),
    row(&[ReqSent, RepWait], Input::Destroy, &[Send, Rest], Ended),
    row(&[RepReceived], Input::Rep, &[Mra], RepReceived),
    row(&[RepReceived], Input::Ready, &[Send], Established),
    row(&[RepReceived], Input::Reject, &[Send, KeepLastWord], Answered),
    row(&[RepReceived], Input::Destroy, &[Send, KeepLastWord], Answered),
    row(&[RepReceived], Input::Rej, &[WaitForPackets, Tell], TimeWait),
    row(&[RepReceived], Input::Stale, &[WaitForPackets, Tell], TimeWait),
    row(&[Established], Input::Rep, &[Repeat], Established),
    // The side that is asked. CM-30 to CM-34
    row(&[ReqReceived], Input::Req, &[Mra], ReqReceived),
    row(&[ReqReceived], Input::Accept, &[Decided, Send, Wait], RepSent),
    row(&[ReqReceived], Input::Reject, &[Decided, Send, KeepLastWord], Answered),
    row(&[ReqReceived], Input::Destroy, &[Decided, Send, KeepLastWord], Answered),
    row(&[ReqReceived], Input::Rej, &[Tell], Ended),
    row(&[ReqReceived], Input::Stale, &[Tell], Ended),
    row(&[RepSent], Input::Req, &[Repeat], RepSent),
    row(&[RepSent], Input::MraOfRep, &[WaitLonger], RtuWait),
    row(&[RepSent, RtuWait], Input::Rtu, &[Rest, Tell], Established),
    row(&[RepSent, RtuWait], Input::CommunicationEstablished, &[Rest, Tell], Established),
    row(&[RepSent, RtuWait], Input::Timeout, &[Repeat, WaitAgain], RepSent),
    row(&[RepSent, RtuWait], Input::Expired, &[Send, WaitForPackets, Tell], TimeWait),
    row(&[RepSent, RtuWait], Input::Reject, &[Send, KeepLastWord], Answered),
    row(&[RepSent, RtuWait], Input::Destroy, &[Send, KeepLastWord], Answered),
    row(&[RepSent, RtuWait], Input::Rej, &[WaitForPackets, Tell], TimeWait),
    row(&[RepSent, RtuWait], Input::Stale, &[WaitForPackets, Tell], TimeWait),
    // The end. CM-36 to CM-40
    row(&[Established], Input::Disconnect, &[Send, Wait], DreqSent),
    row(&[Established], Input::Destroy, &[Send, Wait], DreqSent),
    row(&[Established], Input::Stale, &[Send, Wait], DreqSent),
    row(&[Established], Input::Rej, &[WaitForPackets, Tell], TimeWait),
    row(&[RepReceived, RepSent, RtuWait, Established], Input::Dreq, &[Rest, Tell], DreqReceived),
    row(&[DreqReceived], Input::Disconnect, &[Send, WaitForPackets], TimeWait),
    row(&[DreqReceived], Input::Destroy, &[Send, WaitForPackets], TimeWait),
    row(&[DreqSent], Input::Drep, &[WaitForPackets, Tell], TimeWait),
    row(&[DreqSent], Input::Rej, &[WaitForPackets, Tell], TimeWait),
    row(&[DreqSent], Input::Dreq, &[Act::Drep, WaitForPackets, Tell], TimeWait),
    row(&[DreqSent], Input::Timeout, &[Repeat, WaitAgain], DreqSent),
    row(&[DreqSent], Input::Expired, &[WaitForPackets, Tell], TimeWait),
    row(&[DreqSent], Input::Destroy, &[], DreqSent),
    row(&[TimeWait], Input::Dreq, &[Act::Drep], TimeWait),
    row(&[TimeWait], Input::Req, &[RefuseStale], TimeWait),
    row(&[TimeWait], Input::Destroy, &[], TimeWait),
    row(&[TimeWait], Input::Expired, &[Tell], Ended),
    row(&[Answered], Input::Req, &[Repeat], Answered),
    row(&[Answered], Input::Rep, &[Repeat], Answered),
    row(&[Answered], Input::Rtu, &[Repeat], Answered),
    row(&[Answered], Input::SidrReq, &[Repeat], Answered),
    row(&[Answered], Input::Dreq, &[Act::Drep], Answered),
    row(&[Answered], Input::Destroy, &[], Answered),
    row(&[Answered], Input::Expired, &[], Ended),
    row(&[Ended], Input::Dreq, &[Act::Drep], Ended),
    row(&[Ended], Input::Destroy, &[], Ended),
    // Resolution. CM-44 to CM-46
    row(&[SidrReqSent], Input::SidrRep, &[Rest, Tell], Ended),
    row(&[SidrReqSent], Input::Timeout, &[Repeat, WaitAgain], SidrReqSent),
    row(&[SidrReqSent], Input::Expired, &[Tell], Ended),
    row(&[SidrReqSent], Input::Destroy, &[Rest], Ended),
    row(&[SidrReqReceived], Input::Answer, &[Decided, Send, KeepLastWord], Answered),
    row(&[SidrReqReceived], Input::Destroy, &[Decided, Send, KeepLastWord], Answered),
];

/// The step of a state, if there is one.
pub(crate) fn step(state: State, input: Input) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.on == input && row.from.contains(&state))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const STATES: [State; 14] = [
        ReqSent,
        RepWait,
        RepReceived,
        ReqReceived,
        RepSent,
        RtuWait,
        Established,
        DreqSent,
        DreqReceived,
        TimeWait,
        Answered,
        SidrReqSent,
        SidrReqReceived,
        Ended,
    ];

    #[test]
    fn each_state_has_one_step_at_most_for_each_input() {
        let mut seen = BTreeSet::new();
        for row in TABLE {
            for state in row.from {
                assert!(seen.insert((*state, row.on)), "{state:?} {:?} twice", row.on);
            }
        }
    }

    /// CM-41.
    #[test]
    fn an_identifier_can_be_destroyed_in_every_state_and_then_ends_by_itself() {
        for state in STATES {
            let mut at = step(state, Input::Destroy).expect("every state can be left").to;
            let mut path = vec![at];
            while at != Ended {
                at = step(at, Input::Expired).expect("nothing waits without end").to;
                path.push(at);
                assert!(path.len() < 4, "{path:?}");
            }
        }
    }

    #[test]
    fn a_state_that_waits_has_a_timer_and_no_other_has() {
        let waits = [Wait, WaitAgain, WaitLonger, WaitForPackets, KeepLastWord];
        let timed = |state| step(state, Input::Expired).is_some();
        for row in TABLE {
            let sets = row.does.iter().any(|act| waits.contains(act));
            let stops = row.does.contains(&Rest) || row.on == Input::Expired;
            for from in row.from {
                match (timed(*from), timed(row.to)) {
                    (false, true) => assert!(sets, "{row:?} does not wait"),
                    (true, false) => assert!(stops, "{row:?} leaves a timer"),
                    (true, true) if *from != row.to => assert!(sets, "{row:?} keeps a timer"),
                    (true, true) => assert!(!stops || sets, "{row:?} stops waiting"),
                    (false, false) => assert!(!sets, "{row:?} waits for nothing"),
                }
                if row.on == Input::Timeout {
                    assert!(row.does.contains(&WaitAgain), "{row:?} repeats without end");
                }
            }
        }
    }

    /// The table of the page, as it has to be.
    fn page() -> String {
        let mut text = String::from("| in | on | does | then |\n|---|---|---|---|\n");
        let list = |names: Vec<String>| match names.as_slice() {
            [] => "–".to_owned(),
            names => names.join(", "),
        };
        for row in TABLE {
            let from = list(row.from.iter().map(|state| format!("{state:?}")).collect());
            let does = list(row.does.iter().map(|act| format!("{act:?}")).collect());
            let then = format!("{:?}", row.to);
            text += &format!("| {from} | {:?} | {does} | {then} |\n", row.on);
        }
        text
    }

    #[test]
    fn the_page_shows_this_table() {
        let document = std::fs::read_to_string("../docs/cm.md").unwrap();
        let page = page();
        assert!(document.contains(&page), "docs/cm.md should show this table:\n{page}");
    }
}
