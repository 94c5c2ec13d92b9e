//! One module per target.

pub mod answers;
pub mod arguments;
pub mod client;
pub mod cm;
pub mod connections;
pub mod datagrams;
pub mod differential;
pub mod engine;
pub mod frame;
pub mod function;
pub mod image;
pub mod mad;
pub mod messages;
pub mod metrics;
pub mod modules;
pub mod multicast;
pub mod netlink;
pub mod rc;
pub mod sealed;
pub mod services;
pub mod shared;
pub mod slots;
pub mod stock;
