//! Project tasks: demo, test, bindings

#![forbid(unsafe_code)]

fn main() {}
