//! The card as a PCIe device: a vfio-user server.
//!
//! A client, QEMU's `vfio-user-pci` or any other, connects to a Unix socket and finds a PCI
//! function: configuration space, BARs, MSI-X, DMA to memory it maps, reset. One client is served
//! at a time; when it goes, its memory is let go and the card is reset, and the next one may come.
//!
//! | module | what |
//! |---|---|
//! | `wire` | messages as bytes |
//! | `config_space` | the configuration space |
//! | `irqs` | interrupts |
//! | `maps` | the client's memory on the bus |
//! | `doorbells` | the doorbell pages that clients map |
//! | `session` | what messages mean |
//! | `channel` | messages over the socket |
//! | `link` | the client: its messages, its memory, and where both meet |
//! | `access` | accesses to registers |
//! | `joined` | stores that come in parts, where that is asked for |
//! | `listener` | the socket that clients connect to |
//! | `server` | the loop |
//!
//! The client is trusted with nothing but its own card. It may say anything at any time: what makes
//! no sense is refused with an error reply, and a stream that makes none ends the connection.

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
