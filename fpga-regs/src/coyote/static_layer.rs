//! BAR0, the static layer: 32-bit registers, byte offset = number × 4.

/// Register 0, read only: the static layer's build constant, [`PROBE_VALUE`] unless the build changed it.
pub const PROBE: u64 = 0x00;
/// What [`PROBE`] and the shell's probe read in an unchanged build.
pub const PROBE_VALUE: u32 = 0x000f_f1ce;
/// Register 7, read/write: clocks to wait at the end of start-up.
pub const PR_EOST: u64 = 0x1c;
/// Reset value of [`PR_EOST`].
pub const PR_EOST_DEFAULT: u32 = 1_000_000;
/// Register 8, write only: bit 0 is the active-low reset of the shell.
///
/// A reset pulse is a write of 0, a write of 1 and a wait of at least 10 µs.
pub const PR_EOST_RESET: u64 = 0x20;
/// Microseconds to wait behind a reset pulse.
pub const RESET_SETTLE_MICROS: u64 = 10;
