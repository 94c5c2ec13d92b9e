//! A card served over vfio-user, as its clients see it.

mod client;
mod driver;
mod faults;
mod foreign_client;
mod pcie;
mod posts;
mod protocol;
mod support;
mod transfer;
