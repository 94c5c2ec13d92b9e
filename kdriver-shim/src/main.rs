//! balboad: card bring-up, resources, clients, events

#![forbid(unsafe_code)]

fn main() {}
