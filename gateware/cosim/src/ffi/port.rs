//! The records of port N in the C side.

/// What a transport drives at port N in a cycle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are wires of port N, by their names there")]
pub struct PortIn {
    pub command_done: [u8; 136],
    pub room: [u8; 12],
    pub check: [u8; 24],
    pub claim: [u8; 12],
    pub fetch: [u8; 28],
    pub place: [u8; 28],
    pub place_beat: [u8; 68],
    pub report: [u8; 16],
    pub command_ready: u8,
    pub command_done_valid: u8,
    pub submit_ready: u8,
    pub room_valid: u8,
    pub check_valid: u8,
    pub checked_ready: u8,
    pub claim_valid: u8,
    pub claimed_ready: u8,
    pub fetch_valid: u8,
    pub fetched_ready: u8,
    pub fetched_beat_ready: u8,
    pub place_valid: u8,
    pub place_beat_valid: u8,
    pub placed_ready: u8,
    pub report_valid: u8,
    pub transport_quiet: u8,
}

/// What the logic drives there in the same cycle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are wires of port N, by their names there")]
pub struct PortOut {
    pub command: [u8; 144],
    pub submit: [u8; 28],
    pub checked: [u8; 12],
    pub claimed: [u8; 12],
    pub fetched: [u8; 12],
    pub fetched_beat: [u8; 68],
    pub placed: [u8; 12],
    pub command_valid: u8,
    pub command_done_ready: u8,
    pub submit_valid: u8,
    pub room_ready: u8,
    pub check_ready: u8,
    pub checked_valid: u8,
    pub claim_ready: u8,
    pub claimed_valid: u8,
    pub fetch_ready: u8,
    pub fetched_valid: u8,
    pub fetched_beat_valid: u8,
    pub place_ready: u8,
    pub place_beat_ready: u8,
    pub placed_valid: u8,
    pub report_ready: u8,
    pub stop: u8,
    pub engine_quiet: u8,
}

const _: () = assert!(size_of::<PortIn>() == 340 && size_of::<PortOut>() == 305);

impl Default for PortIn {
    /// Everything is 0.
    fn default() -> Self {
        Self {
            command_done: [0; 136],
            room: [0; 12],
            check: [0; 24],
            claim: [0; 12],
            fetch: [0; 28],
            place: [0; 28],
            place_beat: [0; 68],
            report: [0; 16],
            command_ready: 0,
            command_done_valid: 0,
            submit_ready: 0,
            room_valid: 0,
            check_valid: 0,
            checked_ready: 0,
            claim_valid: 0,
            claimed_ready: 0,
            fetch_valid: 0,
            fetched_ready: 0,
            fetched_beat_ready: 0,
            place_valid: 0,
            place_beat_valid: 0,
            placed_ready: 0,
            report_valid: 0,
            transport_quiet: 0,
        }
    }
}

impl Default for PortOut {
    /// Everything is 0.
    fn default() -> Self {
        Self {
            command: [0; 144],
            submit: [0; 28],
            checked: [0; 12],
            claimed: [0; 12],
            fetched: [0; 12],
            fetched_beat: [0; 68],
            placed: [0; 12],
            command_valid: 0,
            command_done_ready: 0,
            submit_valid: 0,
            room_ready: 0,
            check_ready: 0,
            checked_valid: 0,
            claim_ready: 0,
            claimed_valid: 0,
            fetch_ready: 0,
            fetched_valid: 0,
            fetched_beat_valid: 0,
            place_ready: 0,
            place_beat_ready: 0,
            placed_valid: 0,
            report_ready: 0,
            stop: 0,
            engine_quiet: 0,
        }
    }
}
