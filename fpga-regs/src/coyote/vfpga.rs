//! A vFPGA's control window in BAR4: where its user CSRs lie and how its interrupt is cleared.

/// vFPGAs a shell can have; the fifteenth vector and number belong to reconfiguration.
pub const MAX_VFPGAS: u64 = 15;
/// Byte offset in BAR4 of the control window of vFPGA 0.
pub const CONTROL_WINDOW_BASE: u64 = 0x0010_0000;
/// Bytes from one control window to the next.
pub const CONTROL_WINDOW_STRIDE: u64 = 0x4_0000;
/// In a control window: 64 KiB of user CSRs, where the verbs queue engine lives.
pub const USER_CSR_OFFSET: u64 = 0x2_0000;
/// In a control window: 64 KiB of plain `cnfg` registers.
pub const CNFG_OFFSET: u64 = 0x3_0000;

/// Byte offset in BAR4 of the user CSR window of a vFPGA.
#[must_use]
pub const fn user_csr(vfpga: u64) -> u64 {
    CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + USER_CSR_OFFSET
}

/// Byte offset in BAR4 of the plain `cnfg` registers of a vFPGA.
#[must_use]
pub const fn cnfg(vfpga: u64) -> u64 {
    CONTROL_WINDOW_BASE + vfpga * CONTROL_WINDOW_STRIDE + CNFG_OFFSET
}

/// In `cnfg`: interrupt status. Write bit 0 to clear the pending event; read [31:16] event kind.
pub const ISR: u64 = 0x20;
/// [`ISR`], write: clear the pending event.
pub const ISR_CLEAR_PENDING: u64 = 1;
/// [`ISR`], read: the event kind of a user notification, the one the queue engine raises.
pub const ISR_KIND_NOTIFY: u64 = 4;
