//! The card as a PCIe device: a vfio-user server.
//!
//! A client, QEMU's `vfio-user-pci` or any other, connects to a Unix socket and finds a PCI
//! function: configuration space, BARs, MSI-X, DMA to memory it maps, reset. One client is served
//! at a time; when it leaves, softcard unmaps its memory, resets the card, and lets the next one connect.
//!
//! | module | content |
//! |---|---|
//! | `wire` | messages as bytes |
//! | `config_space` | the configuration space |
//! | `irqs` | interrupts |
//! | `maps` | the client's memory on the bus |
//! | `doorbells` | the doorbell pages that clients map |
//! | `session` | the meaning of messages |
//! | `channel` | messages over the socket |
//! | `link` | the client: its messages, its memory, and where both meet |
//! | `access` | accesses to registers |
//! | `joined` | stores that come in parts, if the user asks for it |
//! | `listener` | the socket that clients connect to |
//! | `server` | the loop |
//!
//! The client is trusted with nothing but its own card. It may send anything at any time: softcard
//! refuses senseless messages with an error reply, and ends the connection at a senseless stream.

mod access;
mod channel;
mod config_space;
mod doorbells;
mod irqs;
mod joined;
mod link;
mod listener;
mod maps;
mod server;
mod session;
mod wire;

pub use server::{ServeConfig, Server};
