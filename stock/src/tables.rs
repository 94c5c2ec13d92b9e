//! The state that the stack keeps of each QP.

use crate::param::QPS;

/// Sequence numbers; the *local* one is the next one expected of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    /// Expected of the peer, and the first one that was.
    pub(crate) expected: u32,
    pub(crate) first_expected: u32,
    /// Of the next own request, of the oldest that is not answered, and of the first one.
    pub(crate) next: u32,
    pub(crate) unanswered: u32,
    pub(crate) first: u32,
    /// A NAK may be sent.
    pub(crate) may_refuse: bool,
}

/// The cursor, with its message's data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    /// Packets of requests taken.
    pub(crate) msn: u32,
    /// Where the next payload goes that says not where.
    pub(crate) vaddr: u64,
    /// The READ response's end is counted.
    pub(crate) last: bool,
    /// The peer's key, of the context.
    pub(crate) rkey: u32,
}

/// The peer of a QP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionEntry {
    pub(crate) qpn: u32,
    pub(crate) ipv4: u32,
    pub(crate) udp_port: u16,
}

/// The entry of one QP in all tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) state: State,
    pub(crate) message: Message,
    pub(crate) connection: ConnectionEntry,
}

/// The tables.
#[derive(Debug)]
pub(crate) struct Tables {
    entries: Vec<Entry>,
    nobody: Entry,
}

impl Default for Tables {
    fn default() -> Self {
        Self { entries: vec![Entry::default(); QPS as usize], nobody: Entry::default() }
    }
}

impl Tables {
    /// The entry that a number leads to, even if it is another QP's.
    // STOCK-28
    pub(crate) fn of(&mut self, qpn: u32) -> &mut Entry {
        self.entries.get_mut((qpn % QPS) as usize).unwrap_or(&mut self.nobody)
    }

    /// Takes a context: sequence numbers and key, but nothing else of the QP, start anew.
    // STOCK-22
    pub(crate) fn set_context(&mut self, qpn: u32, local: u32, remote: u32, rkey: u32) {
        let entry = self.of(qpn);
        entry.state = State {
            expected: local,
            first_expected: local,
            next: remote,
            unanswered: remote,
            first: remote,
            may_refuse: true,
        };
        entry.message = Message { rkey, ..Message::default() };
    }
}

/// A sequence number that is `more` further.
pub(crate) const fn advance(psn: u32, more: u32) -> u32 {
    psn.wrapping_add(more) & 0xff_ffff
}

impl State {
    /// Whether a response is to a request that is out.
    pub(crate) fn is_out(&self, psn: u32) -> bool {
        let (old, newest) = (self.unanswered, self.newest());
        old <= psn && psn <= newest || (old <= psn || psn <= newest) && newest < old
    }

    /// The sequence number of the newest request.
    pub(crate) const fn newest(&self) -> u32 {
        advance(self.next, 0xff_ffff)
    }

    /// Whether a packet that is not expected is one of before, as far as the stack can tell.
    // STOCK-14
    pub(crate) const fn is_old(psn: u32, first: u32, expected: u32) -> bool {
        first < expected && psn < expected && psn >= first
            || first > expected && (psn < expected || psn >= first)
    }
}
