//! Of which sources a card was built: nobody publishes a bitstream, and faults of the shell were mended on the way.

/// What of the shell in front of the stack was mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// Each look-up of a window reads that of the QP, and no WRITE leaves without what selects its payload.
    #[default]
    Mended,
    /// Neither (STOCK-41, STOCK-42).
    Old,
}
