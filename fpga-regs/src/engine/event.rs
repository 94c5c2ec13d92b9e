//! Events, which the engine tells the driver unasked.
//!
//! Entries of 64 bytes with a phase as in completions. Completion queues name the ring that their completions
//! are told in; everything else is told in the first. An event follows the completion entry it
//! speaks of, and the interrupt (a shell notification on the vFPGA's vector) follows the event. The
//! driver clears the shell's pending bit, drains the ring, and looks once more.

open_enum! {
    /// The kind of an event.
    pub struct EventType(u8) {
        /// An armed completion queue has a completion: `number` is the CQN, `data` the arm sequence.
        Completion = 1,
        /// Something happened to QP `number`: `code` is a [`QpEvent`].
        Qp = 2,
        /// Completion queue `number` overran and is lost.
        CqError = 3,
        /// Receive queue `number` fell below its limit.
        ReceiveLimit = 4,
        /// The port changed: `code` is 1 for up, 0 for down.
        Port = 5,
        /// The GID table changed.
        Gid = 6,
        /// The engine stopped: `code` says why.
        Fatal = 7,
    }
}

open_enum! {
    /// The event of a QP; the numbers are those of `ibv_event_type`.
    pub struct QpEvent(u8) {
        /// Memory of a peer's request went away, and no receive reports that: the QP is in ERR.
        Fatal = 1,
        /// The peer's request was invalid: the QP is in ERR.
        RequestError = 2,
        /// The peer's key, its bounds, rights or domain did not allow its access: the QP is in ERR.
        AccessError = 3,
        /// The first packet came while the QP was in RTR.
        CommunicationEstablished = 4,
        /// The send queue is drained (SQD).
        SqDrained = 5,
        /// The last receive WQE was taken after ERR (SRQ only).
        LastWqeReached = 16,
    }
}

layout! {
    /// An event.
    pub struct Event: 1 {
        /// The kind of the event.
        kind @ 0x00: EventType,
        /// More of it.
        code @ 0x01: u8,
        /// The object it happened to.
        number @ 0x04: u32,
        /// As the kind says.
        data @ 0x08: u64,
        /// Nanoseconds of the engine's clock.
        timestamp @ 0x10: u64,
        /// Bit 0: the phase.
        phase @ 0x3f: u8,
    }
}
