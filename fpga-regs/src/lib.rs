//! The contract between the card and its drivers: register offsets, entry formats, codes.
//!
//! Two parts. [`coyote`] is the published Coyote shell as far as bring-up touches it. [`engine`] is
//! the verbs queue engine (VQE), contract version 1, which sits in a vFPGA's user CSR window and
//! gives the card rings, completions, receive queues and keys.
//!
//! All fields are little-endian. Reserved fields are written as zero and ignored when read. Numbers
//! that come from the card are open enums: an unknown code is a value like any other.
//!
//! The crate does no I/O and holds no state; software card, driver, provider and gateware authors
//! share it as their single source of truth.
//!
//! # A whole exchange
//!
//! A program posts a WRITE and polls its completion. Both sides' rings are memory; here one function plays the
//! engine.
//!
//! ```
//! use fpga_regs::Block;
//! use fpga_regs::engine::cqe::{Cqe, Opcode, Status, expected_phase};
//! use fpga_regs::engine::doorbell::{ProducerRecord, QueueKind, slot, slot_value};
//! use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge, sge_at};
//!
//! const QPN: u32 = 0x0a_1b2c;
//! const GENERATION: u8 = 0x5e;
//!
//! /// Reads the entry at the ring's beginning, and answers with its completion.
//! fn engine(ring: &[Block], record: &[Block; 1]) -> [Block; 1] {
//!     assert_eq!(ProducerRecord::decode(record).producer, 1);
//!     let entry = SendHeader::decode(&[ring[0]]);
//!     assert_eq!(entry.opcode, SendOpcode::Write);
//!     let from = sge_at(ring, 32).expect("an entry has room for an element");
//!     assert_eq!((from.length, entry.remote_address), (4096, 0x7fa0_1122_3000));
//!     Cqe {
//!         qpn: QPN,
//!         byte_count: from.length,
//!         opcode: Opcode::Write,
//!         status: Status::Success,
//!         generation: GENERATION,
//!         phase: expected_phase(0, 8).into(),
//!         ..Cqe::default()
//!     }
//!     .encode()
//! }
//!
//! let header = SendHeader {
//!     opcode: SendOpcode::Write, flags: SendFlags::SIGNALED, num_sge: 1, blocks: 1, inline_length: 0,
//!     immediate: 0, remote_srqn: 0, remote_address: 0x7fa0_1122_3000, rkey: 0x9876_54aa,
//! };
//! let mut ring = header.encode();
//! let memory = Sge { address: 0x7f12_3400_0040, length: 4096, lkey: 0x1234_5678 };
//! ring[0][4..6].copy_from_slice(&memory.encode());
//! let record = ProducerRecord { producer: 1 }.encode();
//! // The store that rings: a value at one of 512 slots of the doorbell page.
//! let _doorbell = (slot(QueueKind::Send, QPN), slot_value(QPN, GENERATION, 1));
//! let completion = Cqe::decode(&engine(&ring, &record));
//! assert_eq!(completion.phase, u8::from(expected_phase(0, 8)));
//! assert_eq!((completion.qpn, completion.status), (QPN, Status::Success));
//! ```

#![forbid(unsafe_code)]

#[macro_use]
mod layout;
#[macro_use]
mod registers;
pub mod coyote;
pub mod engine;
pub mod port;

pub use layout::{BLOCK_BYTES, Block, Code, Codes, Constant, Describe, Field, Layout, Wire};
pub use registers::{
    Access, Array, BitField, Moved, Place, Register, RegisterBlock, RegisterView, View, Word,
};
