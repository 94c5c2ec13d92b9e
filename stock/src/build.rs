//! The sources of which a card was built: there is no published bitstream, and commits have mended faults of the
//! shell.

/// The faults of the shell in front of the stack that were mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// Each look-up of a window reads that of the QP, and no WRITE leaves without the command that selects its payload.
    #[default]
    Mended,
    /// Neither (STOCK-41, STOCK-42).
    Old,
}
