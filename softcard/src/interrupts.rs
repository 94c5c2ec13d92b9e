//! The way of a card's interrupts to its driver.

/// Where the card's interrupts go.
pub(crate) trait Interrupts {
    /// Signals an MSI-X vector, if there is one of that number.
    fn signal(&self, vector: usize);
}
