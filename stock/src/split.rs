//! Posts become packets: the splitter of a vFPGA, in front of the windows.

use fpga_regs::coyote::vfpga::Stream;

use crate::bank::{Bank, Counted};
use crate::host::{Host, Reach, Space};
use crate::opcode;
use crate::param::{PMTU, READ_PIECE, READ_PIECES};
use crate::post::{Post, PostKind};
use crate::retransmit::RequestMemory;

/// A request of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) qpn: u32,
    pub(crate) opcode: u8,
    pub(crate) place: RequestMemory,
    pub(crate) payload: Vec<u8>,
}

impl Piece {
    pub(crate) fn is_read(&self) -> bool {
        self.opcode == opcode::READ_REQUEST
    }
}

/// A post that is being split.
#[derive(Clone, Copy, Debug)]
struct Current {
    post: Post,
    kind: PostKind,
    /// Bytes that have become packets.
    done: u32,
}

/// The splitter of a vFPGA's posts.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    current: Option<Current>,
    /// READ pieces whose data has not landed.
    reads_out: u8,
    /// Payload will never come: nothing follows.
    pub(crate) starves: bool,
}

/// The next output of the splitter.
pub(crate) enum Next {
    Piece(Piece),
    Nothing,
    /// A page is not there yet.
    Waits,
}

/// How a post goes on.
struct Cut {
    opcode: u8,
    length: u32,
    ends: bool,
}

impl Cut {
    /// Whether the packet ends a message, which one that is sent as it is need not do.
    fn is_countable(&self) -> bool {
        matches!(
            self.opcode,
            opcode::READ_REQUEST
                | opcode::WRITE_LAST
                | opcode::WRITE_ONLY
                | opcode::SEND_LAST
                | opcode::SEND_ONLY
        )
    }
}

impl Splitter {
    /// The data of a READ piece has landed.
    pub(crate) fn landed(&mut self) {
        self.reads_out = self.reads_out.saturating_sub(1);
    }

    /// The next packet of the vFPGA's posts.
    pub(crate) fn next(&mut self, vfpga: u8, bank: &mut Bank, host: &mut impl Host) -> Next {
        while !self.starves {
            if self.current.is_none() {
                let Some(post) = bank.queue.pop_front() else { return Next::Nothing };
                let kind = PostKind::of(post.first.command, post.second.command);
                // Posts with which the example's logic does nothing are gone.
                self.current = match kind {
                    Some(kind @ (PostKind::Read | PostKind::Write)) => {
                        Some(Current { post, kind, done: 0 })
                    }
                    _ => None,
                };
            }
            let Some(current) = self.current else { continue };
            let cut = match current.cut() {
                Some(cut) => cut,
                None => {
                    self.current = None;
                    continue;
                }
            };
            if cut.opcode == opcode::READ_REQUEST && current.kind == PostKind::Read {
                // STOCK-5
                if self.reads_out >= READ_PIECES {
                    return Next::Nothing;
                }
                self.reads_out = self.reads_out.saturating_add(1);
                return Next::Piece(self.take(vfpga, current, &cut, Vec::new()));
            }
            // STOCK-4
            let Some(mut payload) = current.payload(&cut) else {
                self.starves = true;
                break;
            };
            let local = current.post.first;
            let space = Space { vfpga, ctid: local.command.ctid };
            let vaddr = local.vaddr.wrapping_add(current.done.into());
            match host.read(space, vaddr, &mut payload) {
                Reach::Waits => return Next::Waits,
                Reach::Refused => {
                    self.starves = true;
                    break;
                }
                Reach::Done => {}
            }
            if cut.ends && local.command.last {
                bank.complete(space.ctid, Counted::LocalRead, host);
            }
            return Next::Piece(self.take(vfpga, current, &cut, payload));
        }
        Next::Nothing
    }

    /// Takes a packet off the post.
    fn take(&mut self, vfpga: u8, current: Current, cut: &Cut, payload: Vec<u8>) -> Piece {
        let Current { post, kind, done } = current;
        let (own, other) = match kind {
            PostKind::Read => (post.second, post.first),
            _ => (post.first, post.second),
        };
        let is_send = matches!(cut.opcode, opcode::SEND_FIRST..=opcode::SEND_ONLY);
        let remote = if is_send { 0 } else { other.vaddr.wrapping_add(done.into()) };
        let place = RequestMemory {
            local: own.tagged().wrapping_add(done.into()),
            remote,
            length: cut.length,
            last: cut.ends && other.command.last && cut.is_countable(),
            slot: 0,
        };
        self.current =
            (!cut.ends).then_some(Current { done: done.wrapping_add(cut.length), ..current });
        Piece { qpn: post.qpn(vfpga, kind), opcode: cut.opcode, place, payload }
    }
}

impl Current {
    /// The next packet; `None` for posts that the splitter cannot cut.
    // STOCK-7
    fn cut(&self) -> Option<Cut> {
        let command = match self.kind {
            PostKind::Read => self.post.first.command,
            _ => self.post.second.command,
        };
        let left = command.length.wrapping_sub(self.done);
        if self.kind == PostKind::Read {
            let length = left.min(READ_PIECE);
            return Some(Cut { opcode: opcode::READ_REQUEST, length, ends: length == left });
        }
        if command.raw {
            return Some(Cut { opcode: command.opcode, length: left, ends: true });
        }
        let [first, middle, last, only] = match command.opcode {
            1 => {
                [opcode::WRITE_FIRST, opcode::WRITE_MIDDLE, opcode::WRITE_LAST, opcode::WRITE_ONLY]
            }
            2 => [opcode::SEND_FIRST, opcode::SEND_MIDDLE, opcode::SEND_LAST, opcode::SEND_ONLY],
            _ => return None,
        };
        let length = left.min(PMTU);
        let ends = length == left;
        let opcode = match (self.done == 0, ends) {
            (true, true) => only,
            (true, false) => first,
            (false, false) => middle,
            (false, true) => last,
        };
        Some(Cut { opcode, length, ends })
    }

    /// A buffer for the payload of the next packet; `None` where the payload will never come, or never be whole.
    fn payload(&self, cut: &Cut) -> Option<Vec<u8>> {
        let (local, remote) = (self.post.first.command, self.post.second.command);
        if !opcode::is_sent_with_payload(cut.opcode) {
            return Some(Vec::new());
        }
        let is_whole = cut.length == PMTU || local.last;
        let comes = local.stream == Stream::Host
            && local.length == remote.length
            && (1..=PMTU).contains(&cut.length);
        (is_whole && comes).then(|| vec![0; cut.length as usize])
    }
}
