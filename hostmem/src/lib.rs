//! Shared memory, doorbells, descriptors and other processes' memory, with every barrier named.
//!
//! This crate holds the `unsafe` that memory shared between processes needs, so that its users need none. Another
//! process, friendly or hostile, may change mapped memory at any time: shared memory is therefore only ever touched
//! by atomic loads and stores of whole words, and no reference to plain data in it is ever made. A reader of a word
//! that a peer can write must copy it once, check the copy and use the copy.
//!
//! | module | content |
//! |---|---|
//! | [`barrier`] | the fences, by name |
//! | [`memfd`] | sealed memory files |
//! | [`mapping`] | mappings of them, and detection of a fork |
//! | [`mmio`] | a device's registers |
//! | [`ring`] | rings of 64-byte blocks, doorbell records, doorbell pages |
//! | [`thread_page`] | the layout of the page of a card's thread |
//! | [`wake`] | waking a sleeping card, without losing a wake-up |
//! | [`dma`] | the memory that a card reaches by DMA |
//! | [`liveness`] | seeing that another process has died |
//! | [`turn`] | a lock whose holder may rest, while others change its value |
//! | [`hand_over`] | leaving the core to others when polls find nothing |
//! | [`takeover`] | taking over from a thread that a call keeps |
//! | [`process`] | other processes: their memory, their credentials, their end |
//! | [`fdpass`] | messages that carry file descriptors |
//! | [`eventfd`] | event counters |
//! | [`netdev`] | Ethernet frames to and from network devices of the kernel |
//! | [`udp`] | datagrams of the machine's own network, many by one call |
//! | [`signal`] | signals that were ignored when this process began |
//! | [`heap`] | freed memory, back to the kernel |
//! | [`foreign`] | descriptors from a peer that is not trusted |
//! | [`seccomp`] | filters of system calls, and calls that a supervisor answers |
//!
//! Linux only, x86-64 and aarch64 only: the orderings are argued for these two.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_endian = "little"
)))]
compile_error!("hostmem is written for little-endian Linux on x86-64 and aarch64");

pub mod address;
pub mod barrier;
pub mod borrowable;
pub mod dma;
mod error;
pub mod eventfd;
pub mod fdpass;
pub mod foreign;
pub mod hand_over;
pub mod heap;
pub mod liveness;
mod lost;
pub mod mapping;
pub mod masked;
pub mod memfd;
pub mod mmio;
pub mod mutex;
pub mod netdev;
mod patience;
pub mod process;
pub mod ring;
pub mod seccomp;
pub mod signal;
pub mod takeover;
pub mod thread_page;
pub mod turn;
pub mod udp;
pub mod wake;
pub mod word;

pub use borrowable::{Borrowable, Borrowed};
pub use dma::DmaMemory;
pub use error::{Errno, Error, Result};
pub use eventfd::EventFd;
pub use foreign::{FileId, ForeignEventFd};
pub use hand_over::HandOver;
pub use liveness::{Lifeline, Liveness};
pub use mapping::{Access, ForkCanary, SharedMapping};
pub use masked::{Lender, Lent, MaskedTable};
pub use mmio::Mmio;
pub use mutex::{FutexGuard, FutexMutex, Waiters};
pub use netdev::{PacketSocket, Tap};
pub use patience::{Account, Patience};
pub use process::{PidFd, RemoteProcess, RemoteRange};
pub use ring::{Block, BlockRing, DoorbellPage, DoorbellSlot, Record, RingBlock, WrittenBlock};
pub use takeover::{Holder, Sight, Watcher};
pub use turn::{Change, Turn, TurnGuard};
pub use udp::UdpSocket;
pub use wake::{AsleepWord, WakeFor, Waker};
pub use word::SharedWord;

/// Bytes in the small page that doorbell pages and shared words are laid out in.
pub const PAGE_BYTES: usize = 4096;
