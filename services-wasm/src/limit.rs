//! Every limit of modules, in one place; `services::limit` has those of all services.

/// Bytes of a module.
pub const MODULE: usize = 48 << 10;
/// Pages of a module's memory, of 64 KiB each; it does not grow. A call begins with a new memory, whose bytes it pays for.
pub const PAGES: u64 = 4;
/// Entries of its tables, together.
pub const TABLE: usize = 1024;
/// Calls inside each other.
pub const DEPTH: usize = 64;
/// Bytes of their values.
pub const VALUES: usize = 64 << 10;
/// Instructions for a unit of work.
pub const FUEL_FOR_UNIT: u64 = 4;
/// Instructions for each of the calls that ask a module for its description.
pub const FUEL_TO_LOAD: u64 = 1 << 16;
