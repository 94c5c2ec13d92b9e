//! RoCE v2 Reliable Connection without I/O, clock or threads

#![forbid(unsafe_code)]
