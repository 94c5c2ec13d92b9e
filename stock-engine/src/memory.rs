//! The memory of the tunnel's rings and slots.

use tunnel::Host;

use crate::posts::Locate;

/// Memory of rings, and of the messages in their slots.
pub trait Memory: Locate + Host {
    /// The word that says which slot stands at a place of an address space's ring.
    fn sequence(&self, ctid: u8, place: usize) -> u64;

    /// Copies a slot's place.
    fn slot(&self, ctid: u8, place: usize, into: &mut [u8]);

    /// Puts the bytes of a slot where the card takes them from; how it is to address them.
    fn stage(&mut self, ctid: u8, number: u8, slot: &[u8]) -> u64;

    /// Puts the bytes of a slot into the ring of a QP of the card's.
    fn deliver(&mut self, qpn: u32, place: usize, slot: &[u8]);

    /// Empties the ring of an address space.
    fn clear(&mut self, ctid: u8);

    /// Ends all windows of an address space; whether nothing is on its way through any of them any more.
    fn end_windows(&mut self, ctid: u8) -> bool;
}
