//! An address space of a vFPGA: its QP, and the requests that are out of it.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::{Attributes, QpState};
use tunnel::Names;

use crate::param::{PACKET, READ_POST, READS_OF_QP, WINDOW, WRITE_POST};

/// The one kind of request that a QP makes: WRITEs of its peer and its own READs would meet in one cursor of the card's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Write,
    Read,
}

/// A post that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// Packets of a WRITE; one request of a READ.
    pub(crate) requests: u8,
    /// Packets of a WRITE, or of a READ's response.
    pub(crate) packets: u8,
    /// It is the last one of a message.
    pub(crate) ends: bool,
}

/// A message that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) remote: u64,
    pub(crate) length: u32,
    pub(crate) posted: u32,
    /// It goes no further, for this reason.
    pub(crate) failed: Option<Status>,
    /// Of the tunnel: where the bytes lie.
    pub(crate) staged: Option<u64>,
}

/// How far a QP has come that meets a peer of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Pages of its address space may lead to the spare page.
    Connected,
    /// The card is being told to ask for them anew.
    Surfacing,
    /// It takes its peer's packets.
    Open,
}

/// A queue pair.
#[derive(Debug, Default)]
pub(crate) struct Qp {
    pub(crate) attributes: Attributes,
    pub(crate) kind: Option<RequestKind>,
    /// Oldest first.
    pub(crate) messages: VecDeque<Queued>,
    /// Those of them, from the oldest on, that are posted whole.
    pub(crate) whole: usize,
    /// The number of the next message.
    pub(crate) next: u64,
    /// No post before this time.
    pub(crate) settled: u64,
    /// A request of it was answered: the way to the peer is known, and back.
    pub(crate) proven: bool,
    /// The counters of local reads and writes when it was connected.
    pub(crate) before: u64,
    /// Its peer is an RNIC, which looks at keys and takes a WRITE packet by packet.
    pub(crate) to_rnic: bool,
    /// The key that the card names to such a peer: one for all requests.
    pub(crate) rkey: Option<u32>,
    /// It goes through the tunnel.
    pub(crate) tunnel: Option<Names>,
    /// Whether it takes its peer's packets, if the peer is a QP of this process's.
    pub(crate) meeting: Option<Meeting>,
    /// In SQD: that all messages are complete that were begun is to be told.
    pub(crate) tells_drained: bool,
}

impl Qp {
    /// Bytes of the next post at most, with so many requests out, and so much of the windows taken before; 0 where there is
    /// to be none.
    pub(crate) fn post_bytes(&self, alone: bool, requests: u8, kept: [u8; 2]) -> u32 {
        let is_read = self.kind == Some(RequestKind::Read);
        // A peer keeps places for so many READs.
        let reads = READS_OF_QP.min(self.attributes.max_rd_atomic);
        let [writes_kept, reads_kept] = kept;
        let left = match is_read {
            true => reads.min(WINDOW.saturating_sub(reads_kept)),
            false => WINDOW.saturating_sub(writes_kept),
        };
        let left = left.saturating_sub(requests);
        if left == 0 {
            return 0;
        }
        match (alone, is_read) {
            (true, _) => PACKET,
            (_, true) => READ_POST,
            // The first of several packets names its own length for the message's (STOCK-11), which an RNIC refuses.
            _ if self.to_rnic => PACKET,
            _ => PACKET.saturating_mul(left.into()).min(WRITE_POST),
        }
    }

    /// Whether messages that were begun are not complete, in SQD.
    pub(crate) fn is_draining(&self) -> bool {
        let has_begun = self.messages.front().is_some_and(|message| message.posted > 0);
        self.attributes.state == QpState::Sqd && has_begun
    }

    /// Whether the message to post next was not begun and is not to be, in SQD.
    pub(crate) fn holds_back(&mut self) -> bool {
        let drains = self.attributes.state == QpState::Sqd && self.tunnel.is_none();
        drains && self.current().is_some_and(|(_, message)| message.posted == 0)
    }

    /// The message to post next: its number and itself.
    pub(crate) fn current(&mut self) -> Option<(u64, &mut Queued)> {
        let first = self.next.wrapping_sub(self.messages.len() as u64);
        let number = first.wrapping_add(self.whole as u64);
        self.messages.get_mut(self.whole).map(|message| (number, message))
    }
}

/// An address space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) qp: Option<Qp>,
    /// Kind of the outstanding posts.
    pub(crate) kind: Option<RequestKind>,
    /// Oldest first.
    pub(crate) out: VecDeque<Out>,
    /// Requests of all of them.
    pub(crate) requests: u8,
    /// Packets of all of them.
    pub(crate) packets: u8,
    /// The counter of their ends, when it was last looked at.
    pub(crate) seen: u32,
    /// When there was progress.
    pub(crate) progress: u64,
    /// Posts so far, for the places of inline payload.
    pub(crate) posts: u8,
    /// The outstanding posts will not end; until the reset no QP gets the space.
    pub(crate) lost: Option<Status>,
    /// Its pages lead into the sink, and nothing is posted.
    pub(crate) closed: bool,
    /// Its QP was told.
    pub(crate) buried: bool,
    /// Lost, and no longer repeated by the card: other cards of this process know that none of its packets is on its
    /// way.
    pub(crate) rested: bool,
    /// Packets in the windows of WRITEs and READs from before the card's reset.
    pub(crate) kept: [u8; 2],
    /// When it became free, as a number; the longest free one is taken first.
    pub(crate) freed: u64,
}

impl Space {
    /// Takes note of a post that reaches up to `behind` in the message whose turn it is.
    pub(crate) fn note_post(&mut self, now: u64, behind: u32, post: Out) {
        if let Some(qp) = &mut self.qp {
            if let Some((_, message)) = qp.current() {
                message.posted = behind;
            }
            if post.ends {
                qp.whole = qp.whole.saturating_add(1);
            }
        }
        if self.out.is_empty() {
            self.progress = now;
        }
        self.requests = self.requests.saturating_add(post.requests);
        self.packets = self.packets.saturating_add(post.packets);
        self.posts = self.posts.wrapping_add(1);
        self.out.push_back(post);
    }

    /// Fails a QP the ends of whose posts cannot be told from other ends.
    pub(crate) fn give_up_count(&mut self, qpn: u32) {
        log::warn!(
            "QP {qpn}: {}",
            match self.kind {
                Some(RequestKind::Read) =>
                    "its peer WRITEs to it while it READs, which a published card does not keep apart; without the tunnel each direction wants a QP of its own",
                _ =>
                    "more was acknowledged than it has sent: packets were lost, and answered twice",
            }
        );
        self.lost = Some(Status::BadResponse);
    }

    /// Packets that the windows would keep behind a reset now.
    pub(crate) fn kept_after(&self) -> [u8; 2] {
        let [mut writes, mut reads] = self.kept;
        match self.kind {
            Some(RequestKind::Write) => writes = writes.saturating_add(self.requests).min(WINDOW),
            Some(RequestKind::Read) => reads = reads.saturating_add(self.requests).min(WINDOW),
            None => {}
        }
        [writes, reads]
    }

    pub(crate) fn is_free(&self) -> bool {
        // A QP with a full window would block all others.
        let is_full = self.kept.iter().any(|kept| *kept >= WINDOW);
        !is_full && self.qp.is_none() && self.out.is_empty() && self.lost.is_none()
    }
}
