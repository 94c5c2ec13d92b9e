//! Frames: buffers that change hands, and the pool they come from.

/// Bytes of the largest frame: 4096 of payload, every header, pad and ICRC.
pub const FRAME_CAPACITY: usize = 4352;

/// An Ethernet frame without its check sequence, handed over by ownership.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Box<[u8; FRAME_CAPACITY]>,
    length: usize,
}

impl Frame {
    fn new() -> Self {
        Self { bytes: Box::new([0; FRAME_CAPACITY]), length: 0 }
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
        self.bytes.get_mut(..self.length).unwrap_or_default()
    }

    /// The whole buffer, to be received into; set the length afterwards.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut *self.bytes
    }

    /// Sets the length; `false`, and nothing is changed, when it is beyond the capacity.
    ///
    /// Bytes that become part of the frame are what the buffer held before.
    pub fn set_len(&mut self, length: usize) -> bool {
        let fits = length <= FRAME_CAPACITY;
        if fits {
            self.length = length;
        }
        fits
    }
}

/// Frames kept for reuse.
#[derive(Debug)]
pub struct FramePool {
    frames: Vec<Frame>,
    limit: usize,
}

impl FramePool {
    /// A pool that keeps up to `limit` frames.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { frames: Vec::new(), limit }
    }

    /// A frame with any contents.
    pub fn take(&mut self) -> Frame {
        self.frames.pop().unwrap_or_else(Frame::new)
    }

    /// Gives a frame back.
    pub fn put(&mut self, frame: Frame) {
        if self.frames.len() < self.limit {
            self.frames.push(frame);
        }
    }
}
