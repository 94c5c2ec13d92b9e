//! The windows: how many packets of a QP may be out.

use crate::param::WINDOW;

/// A window of one kind, of one QP: two numbers of four bits, and whether it is full when they are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    head: u8,
    tail: u8,
    issued: bool,
}

/// The windows of all QPs, of both kinds; nothing but a reset takes them back.
#[derive(Debug)]
pub(crate) struct Flow {
    windows: [Vec<Window>; 2],
}

impl Default for Flow {
    fn default() -> Self {
        let all = || vec![Window::default(); 1 << 10];
        Self { windows: [all(), all()] }
    }
}

const fn next(number: u8) -> u8 {
    number.wrapping_add(1) % WINDOW
}

impl Flow {
    fn window(&mut self, read: bool, qpn: u32) -> Option<&mut Window> {
        let [requests, reads] = &mut self.windows;
        let windows = if read { reads } else { requests };
        windows.get_mut((qpn & 0x3ff) as usize)
    }

    /// Takes a slot of a window, and answers with its number; `None` where it is full.
    // STOCK-8
    pub(crate) fn admit(&mut self, read: bool, qpn: u32) -> Option<u8> {
        let window = self.window(read, qpn)?;
        if window.issued && window.head == window.tail {
            return None;
        }
        let slot = window.head;
        (window.head, window.issued) = (next(window.head), true);
        Some(slot)
    }

    /// Frees one slot for one answer, whatever it answers.
    // STOCK-9
    pub(crate) fn answered(&mut self, read: bool, qpn: u32) {
        if let Some(window) = self.window(read, qpn) {
            window.tail = next(window.tail);
            if window.head == window.tail {
                window.issued = false;
            }
        }
    }
}
