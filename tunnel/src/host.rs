//! The calls of an end to the engine whose transport it is, and to host memory.

use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Unreachable};

/// The engine, and memory of its programs.
pub trait Host {
    /// Whether a peer may do something to memory through a QP.
    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool;

    /// Takes the next receive of a QP.
    ///
    /// # Errors
    /// The reason why there is none.
    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError>;

    /// Copies bytes of a payload, from an offset on.
    ///
    /// # Errors
    /// [`Unreachable`]; the bytes are then anything.
    fn read(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable>;

    /// Copies bytes into a payload, from an offset on.
    ///
    /// # Errors
    /// [`Unreachable`]; some of them may be there.
    fn write(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable>;

    /// Executes an atomic on memory that a peer named, as one with those of all QPs of the card; the value before.
    ///
    /// # Errors
    /// [`Unreachable`]; nothing was written.
    fn atomic(
        &mut self,
        qpn: u32,
        rkey: u32,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Unreachable>;

    /// Opens a window of the QP's address space on bytes of a payload, from an offset on, for the card alone to read or to write: its
    /// first address. `None` where they do not lie in one piece, or there is no room for another window.
    fn open(&mut self, qpn: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64>;

    /// Ends a window, if it has not ended.
    fn close(&mut self, qpn: u32, window: u64);

    /// Whether a window has ended, and nothing is on its way through it any more.
    fn is_closed(&self, qpn: u32, window: u64) -> bool;
}
