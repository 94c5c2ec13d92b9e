//! The windows: how many packets of a QP may be out.

use crate::build::Build;
use crate::param::WINDOW;

/// A window of one kind, of one QP: two numbers of four bits, and whether it is full when they are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    head: u8,
    tail: u8,
    issued: bool,
}

/// The windows of all QPs, of both kinds. The shell's reset leaves them as they are: programming clears them.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    windows: [Vec<Window>; 2],
    build: Build,
}

const fn next(number: u8) -> u8 {
    number.wrapping_add(1) % WINDOW
}

impl Flow {
    /// Those of a card that was just programmed.
    pub(crate) fn new(build: Build) -> Self {
        let all = || vec![Window::default(); 1 << 10];
        Self { windows: [all(), all()], build }
    }

    fn entry(&mut self, read: bool, qpn: u32) -> Option<&mut Window> {
        let [requests, reads] = &mut self.windows;
        let windows = if read { reads } else { requests };
        windows.get_mut((qpn & 0x3ff) as usize)
    }

    /// The window that a look-up reads.
    // STOCK-41
    fn look_up(&mut self, read: bool, qpn: u32) -> Option<Window> {
        match self.build {
            Build::Mended => self.entry(read, qpn).copied(),
            Build::Old => self.entry(false, 0).copied(),
        }
    }

    /// Takes a slot of a window, and answers with its number; `None` where it is full.
    // STOCK-8
    pub(crate) fn admit(&mut self, read: bool, qpn: u32) -> Option<u8> {
        let mut window = self.look_up(read, qpn)?;
        if window.issued && window.head == window.tail {
            return None;
        }
        let slot = window.head;
        (window.head, window.issued) = (next(window.head), true);
        *self.entry(read, qpn)? = window;
        Some(slot)
    }

    /// Frees one slot for one answer, to any request.
    // STOCK-9
    pub(crate) fn answered(&mut self, read: bool, qpn: u32) {
        let Some(mut window) = self.look_up(read, qpn) else { return };
        window.tail = next(window.tail);
        if window.head == window.tail {
            window.issued = false;
        }
        if let Some(entry) = self.entry(read, qpn) {
            *entry = window;
        }
    }
}
