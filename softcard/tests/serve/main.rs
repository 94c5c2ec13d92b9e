//! A card served over vfio-user, as its clients see it.

mod foreign_client;
mod support;
