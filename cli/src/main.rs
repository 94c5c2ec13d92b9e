//! balboa: run verbs programs on the card and look at it

#![forbid(unsafe_code)]

fn main() {}
