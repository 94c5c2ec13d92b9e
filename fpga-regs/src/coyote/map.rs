//! The two register maps of the shell.

/// One of the two published register maps.
///
/// Nothing on the card tells: the choice belongs to the bitstream and comes with its manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Map {
    /// Before the Versal merge of 2026: registers 6 to 9 are RDMA, TCP, datapath set, datapath clear.
    Before2026,
    /// Since then: register 6 is the shell's reconfiguration flag and the others moved up by one.
    #[default]
    Since2026,
}
