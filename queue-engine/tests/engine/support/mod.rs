//! The support of the tests: a device, its memory, transports, a driver and its clients.

pub mod bench;
pub mod client;
pub mod device;
pub mod manual;
pub mod memory;
pub mod random;
pub mod stock;
pub mod wqe;
