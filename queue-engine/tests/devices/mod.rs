//! Devices that the tests of a queue engine run over.

pub mod distant;
pub mod rust;
