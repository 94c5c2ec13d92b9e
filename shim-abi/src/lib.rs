//! The messages between the provider and balboad

#![forbid(unsafe_code)]
