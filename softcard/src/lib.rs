//! The software card: BAR decode, queue engine over RoCE v2, ports and cables

#![forbid(unsafe_code)]
