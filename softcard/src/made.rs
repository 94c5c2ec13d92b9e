//! A frame being made.

use std::ops::Range;

use roce::{Qpn, Transmit};

use crate::port::Frame;

/// A frame being made, whose header is written.
pub(crate) struct Made {
    /// Bytes of the header.
    pub(crate) header: usize,
    /// The QP that sends it, if one does.
    pub(crate) qpn: Option<Qpn>,
    /// The payload behind the header.
    pub(crate) payload: Option<roce::FramePayload>,
    /// It does already.
    pub(crate) is_whole: bool,
    pub(crate) needs_icrc: bool,
    /// The number of the frame among those of the card's stack.
    pub(crate) attempt: u64,
}

impl Made {
    /// Writes the header; `None` where the frame is too small.
    #[inline]
    pub(crate) fn new(transmit: &Transmit, attempt: u64, frame: &mut Frame) -> Option<Self> {
        let header = transmit.header.as_slice();
        let fits = frame.set_len(transmit.frame_length());
        match frame.as_mut_slice().get_mut(..header.len()) {
            Some(place) if fits => place.copy_from_slice(header),
            _ => return None,
        }
        let (qpn, payload, needs_icrc) = (transmit.qpn, transmit.payload, transmit.needs_icrc);
        Some(Self { header: header.len(), qpn, payload, is_whole: false, needs_icrc, attempt })
    }

    /// Where its payload is in its frame.
    pub(crate) fn body(&self) -> Range<usize> {
        let bytes = self.payload.map_or(0, |payload| payload.length as usize);
        self.header..self.header.saturating_add(bytes)
    }

    /// Takes note that its payload is in its frame, before the pad and the room for the ICRC.
    pub(crate) fn complete(&mut self, frame: &mut Frame) {
        let behind = self.body().end;
        frame.as_mut_slice().get_mut(behind..).unwrap_or_default().fill(0);
        self.is_whole = true;
    }
}
