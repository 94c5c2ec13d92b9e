//! Frames: buffers that change hands, and the pool they come from.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use roce::Kept;
use roce::wire::{ethernet, icrc};

/// Bytes of the largest frame: 4096 of payload, every header, pad and ICRC.
pub const FRAME_CAPACITY: usize = 4352;

/// Bytes of the shortest frame: an Ethernet header.
pub const MIN_FRAME: usize = ethernet::LENGTH;

/// An Ethernet frame without its check sequence, handed over by ownership.
///
/// The default is none: it stands in the place of a frame that another owner has.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The bytes: [`FRAME_CAPACITY`], or none.
    bytes: Box<[u8]>,
    length: usize,
    /// Whether its invariant CRC was written or checked here, and no other program could change it since.
    sealed: bool,
    /// The mark that the stack keeps while it waits to be taken.
    kept: Kept,
    /// Its card has sent it to itself, and no port carried it.
    looped: bool,
    /// A sealing step encloses its invariant CRC, which covers another header than it has now.
    enclosed: bool,
}

impl Frame {
    fn new() -> Self {
        let bytes = vec![0; FRAME_CAPACITY].into();
        Self {
            bytes,
            length: 0,
            sealed: false,
            kept: Kept::default(),
            looped: false,
            enclosed: false,
        }
    }

    /// Whether there is one.
    fn is_some(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// A frame of these bytes; `None` when they are more than a frame holds.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut frame = Self::new();
        if !frame.set_len(bytes.len()) {
            return None;
        }
        frame.as_mut_slice().copy_from_slice(bytes);
        Some(frame)
    }

    /// The frame's bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The frame's bytes, to be written.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.sealed = false;
        self.bytes.get_mut(..self.length).unwrap_or_default()
    }

    /// The whole buffer, to be received into; set the length afterwards.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.sealed = false;
        &mut self.bytes
    }

    /// Sets the length; `false`, and nothing is changed, when it is beyond the capacity.
    ///
    /// Bytes that become part of the frame keep the buffer's former content.
    pub fn set_len(&mut self, length: usize) -> bool {
        let fits = length <= self.bytes.len();
        if fits {
            self.length = length;
            self.sealed = false;
            self.kept = Kept::default();
            self.looped = false;
            self.enclosed = false;
        }
        fits
    }

    /// Notes that its card sends it to itself. It is so until the buffer holds another frame.
    pub(crate) fn loop_back(&mut self) {
        self.looped = true;
    }

    /// Notes that a sealing step encloses it. It is so until the buffer holds another frame.
    pub(crate) fn enclose(&mut self) {
        self.enclosed = true;
    }

    /// Whether a sealing step encloses it.
    pub(crate) fn is_enclosed(&self) -> bool {
        self.enclosed
    }

    /// Takes a sealing step's trailer off its end; `false`, and nothing is changed, where it is not as long.
    pub(crate) fn shorten(&mut self, length: usize) -> bool {
        let fits = length <= self.length;
        if fits {
            self.length = length;
            self.sealed = false;
            self.enclosed = false;
        }
        fits
    }

    /// Notes that its invariant CRC was found right.
    pub(crate) fn vouch(&mut self) {
        self.sealed = true;
    }

    /// A frame of these bytes that is vouched for, with any invariant CRC.
    #[cfg(test)]
    pub(crate) fn vouched_for(bytes: &[u8]) -> Option<Self> {
        Some(Self { sealed: true, ..Self::from_bytes(bytes)? })
    }

    /// Writes the invariant CRC into the last four bytes of a RoCE frame.
    pub fn seal(&mut self) {
        // Only a header that is not the stack's could make this fail.
        self.sealed = icrc::append(self.as_mut_slice()).is_ok();
    }
}

impl roce::ReceivedFrame for Frame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    /// True of a frame that was sealed in this process and handed on as it was.
    #[inline]
    fn is_vouched_for(&self) -> bool {
        self.sealed
    }

    fn is_looped(&self) -> bool {
        self.looped
    }

    #[inline]
    fn kept(&self) -> Kept {
        self.kept
    }

    fn keep(&mut self, kept: Kept) {
        self.kept = kept;
    }
}

/// Frames kept for reuse by everything that a thread runs: a clone is the same pool.
///
/// Frames come from one card's side of a cable and are given back at the other, so only a pool for
/// both ends goes on without making new ones when the traffic is one-way.
#[derive(Clone, Debug)]
pub struct FramePool {
    shared: Rc<RefCell<Spare>>,
}

#[derive(Debug)]
struct Spare {
    frames: Vec<Frame>,
    limit: usize,
    made: u64,
}

impl FramePool {
    /// A pool that keeps up to `limit` frames, and has none at first.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { shared: Rc::new(RefCell::new(Spare { frames: Vec::new(), limit, made: 0 })) }
    }

    /// A frame with any contents and any length; a new one when none is kept.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Frame {
        let mut kept = self.shared.borrow_mut();
        kept.frames.pop().unwrap_or_else(|| {
            kept.made = kept.made.saturating_add(1);
            Frame::new()
        })
    }

    /// A frame with the same bytes.
    #[must_use]
    pub fn copy_of(&self, frame: &Frame) -> Frame {
        let mut copy = self.take();
        copy.set_len(frame.length);
        copy.as_mut_slice().copy_from_slice(frame.as_slice());
        copy.enclosed = frame.enclosed;
        copy
    }

    /// A frame with the same bytes, for those of a multicast group that have not taken the first.
    #[must_use]
    pub(crate) fn copy_for_others(&self, frame: &Frame) -> Frame {
        Frame { kept: frame.kept, looped: frame.looped, ..self.copy_of(frame) }
    }

    /// Gives frames back, as [`FramePool::put`] does.
    pub fn put_all(&self, frames: &mut VecDeque<Frame>) {
        let mut kept = self.shared.borrow_mut();
        let room = kept.limit.saturating_sub(kept.frames.len()).min(frames.len());
        kept.frames.extend(frames.drain(..room).filter(Frame::is_some));
        frames.clear();
    }

    /// Gives a frame back, whichever pool it came from; beyond the limit it is freed.
    #[inline]
    pub fn put(&self, frame: Frame) {
        let mut kept = self.shared.borrow_mut();
        if frame.is_some() && kept.frames.len() < kept.limit {
            kept.frames.push(frame);
        }
    }

    /// Frames kept now.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.shared.borrow().frames.len()
    }

    /// Frames that had to be made because none was kept.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.shared.borrow().made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_up_to_its_capacity() {
        assert!(Frame::from_bytes(&[1; FRAME_CAPACITY + 1]).is_none());
        let mut frame = Frame::from_bytes(&[1; FRAME_CAPACITY]).unwrap();
        assert!(!frame.set_len(FRAME_CAPACITY + 1));
        assert_eq!(frame.as_slice(), [1; FRAME_CAPACITY]);
        assert!(frame.set_len(2));
        frame.as_mut_slice().fill(3);
        assert!(frame.set_len(3));
        assert_eq!(frame.as_slice(), [3, 3, 1]);
        assert_eq!(frame.buffer_mut().len(), FRAME_CAPACITY);
    }

    #[test]
    fn a_sealed_frame_is_vouched_for_until_somebody_could_have_changed_it() {
        use roce::ReceivedFrame as _;
        // An IPv4 header with the length of UDP header, transport header and CRC.
        let mut bytes = [0; 14 + 20 + 8 + 12 + 4];
        bytes[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 44]);
        let frame = Frame::from_bytes(&bytes).unwrap();
        assert!(!frame.is_vouched_for(), "it was not sealed");
        let mut sealed = frame.clone();
        sealed.seal();
        assert!(sealed.is_vouched_for());
        let mut same = Frame::from_bytes(sealed.as_slice()).unwrap();
        assert!(!same.is_vouched_for() && icrc::check(same.bytes_mut()), "the CRC is right");
        let touches: [fn(&mut Frame); 4] = [
            |frame| frame.as_mut_slice()[20] ^= 1,
            |frame| frame.bytes_mut()[20] ^= 1,
            |frame| frame.buffer_mut()[50] ^= 1,
            |frame| assert!(frame.set_len(57)),
        ];
        for touch in touches {
            let mut touched = sealed.clone();
            touch(&mut touched);
            assert!(!touched.is_vouched_for() && !icrc::check(touched.bytes_mut()));
        }
        assert!(!FramePool::new(1).copy_of(&sealed).is_vouched_for());
        // Frames of other protocols cannot be sealed.
        let mut other = Frame::from_bytes(&[0; 60]).unwrap();
        other.seal();
        assert!(!other.is_vouched_for());
    }

    #[test]
    fn what_a_card_sends_to_itself_is_that_until_the_buffer_holds_another_frame() {
        use roce::ReceivedFrame as _;
        let pool = FramePool::new(2);
        let mut frame = Frame::from_bytes(&[1; 60]).unwrap();
        assert!(!frame.is_looped());
        frame.loop_back();
        assert!(frame.is_looped() && pool.copy_for_others(&frame).is_looped());
        assert!(!pool.copy_of(&frame).is_looped());
        pool.put(frame);
        let mut other = pool.take();
        assert!(other.set_len(60) && !other.is_looped());
    }

    #[test]
    fn a_pool_reuses_what_is_given_back_up_to_its_limit() {
        let pool = FramePool::new(2);
        let frames: Vec<Frame> = (0..3).map(|_| pool.take()).collect();
        assert_eq!((pool.made(), pool.kept()), (3, 0));
        for frame in frames {
            pool.put(frame);
        }
        assert_eq!(pool.kept(), 2);
        let handle = pool.clone();
        let _taken = handle.take();
        assert_eq!((pool.made(), pool.kept()), (3, 1));
        let mut frames: VecDeque<Frame> = (0..3).map(|_| Frame::new()).collect();
        pool.put_all(&mut frames);
        assert_eq!((frames.len(), pool.kept()), (0, 2));
    }

    #[test]
    fn a_copy_has_the_same_bytes_whatever_its_buffer_held() {
        let pool = FramePool::new(2);
        pool.put(Frame::from_bytes(&[9; FRAME_CAPACITY]).unwrap());
        let copy = pool.copy_of(&Frame::from_bytes(&[1; 60]).unwrap());
        assert_eq!((copy.as_slice(), pool.made()), (&[1; 60][..], 0));
    }
}
