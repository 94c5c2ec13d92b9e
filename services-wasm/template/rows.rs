//! A service in WebAssembly: rows of integers become features, normalised and hashed.
//!
//! A row is 48 integers of 32 bits. The first 16 are dense: each becomes the number of standard deviations that it lies
//! from the mean. The other 32 are names: each becomes one of 8192 buckets by a hash. Features are 32-bit
//! floating-point numbers in the place of the integers.
//!
//! `docs/services-wasm.md` tells how this file is built, and what each function is for. To make a service of yours,
//! change the part at the end.

#![no_std]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

/// A packet during a call, in words of 32 bits. Atomic, since safe Rust has no other memory that two functions may
/// change; without threads that costs nothing.
static ROOM: [AtomicU32; 16 + 1024 + 1024] = {
    // A constant, as an array of it is made.
    #[allow(clippy::declare_interior_mutable_const)]
    const ZERO: AtomicU32 = AtomicU32::new(0);
    [ZERO; 16 + 1024 + 1024]
};

/// The words of the payload's offset in its message, of its length, and of its beginning.
const OFFSET: usize = 2;
const LENGTH: usize = 4;
const PAYLOAD: usize = 16 + 1024;

#[repr(C)]
pub struct About {
    name: [u8; 16],
    summary: [u8; 80],
    operations: u32,
    takes: u32,
    gives: u32,
    flags: u32,
    check_state: u32,
    act_state: u32,
    work: u32,
    reserved: u32,
}

/// A text, with zeros behind it.
const fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut filled = [0; N];
    let mut place = 0;
    while place < text.len() {
        filled[place] = text.as_bytes()[place];
        place += 1;
    }
    filled
}

#[no_mangle]
pub extern "C" fn balboa_interface() -> i32 {
    1
}

#[no_mangle]
pub extern "C" fn balboa_about() -> *const About {
    &ABOUT
}

#[no_mangle]
pub extern "C" fn balboa_room() -> *const AtomicU32 {
    ROOM.as_ptr()
}

// From here on it is the service.

const WRITES: u32 = 2;
const READS: u32 = 4;
const INT32_ROWS: u32 = 1;
const FLOAT32_ROWS: u32 = 2;
const REWRITES: u32 = 1;

static ABOUT: About = About {
    name: text("rows"),
    summary: text("rows of 48 integers become features: 16 are normalised, 32 hashed"),
    operations: WRITES | READS,
    takes: INT32_ROWS,
    gives: FLOAT32_ROWS,
    flags: REWRITES,
    check_state: 0,
    act_state: 0,
    work: 8192,
    reserved: 0,
};

const ROW: u32 = 48;
const DENSE: u32 = 16;
/// Of integers that are equally frequent from 0 to 9999.
const MEAN: f32 = 4999.5;
const DEVIATION: f32 = 2886.75;
/// Knuth's multiplier, 2^32 divided by the golden ratio; the product's highest 13 bits are the bucket.
const MULTIPLIER: u32 = 0x9e37_79b1;
const BUCKET_BITS: u32 = 13;

fn feature(column: u32, value: u32) -> f32 {
    if column < DENSE {
        (value as i32 as f32 - MEAN) / DEVIATION
    } else {
        (value.wrapping_mul(MULTIPLIER) >> (32 - BUCKET_BITS)) as f32
    }
}

/// Acts on an accepted packet. A message is rows from its first byte on, and packets other than its last end with whole
/// columns, so the offset tells the column.
#[no_mangle]
pub extern "C" fn balboa_act() {
    let columns = ROOM[LENGTH].load(Relaxed) / 4;
    let offset =
        u64::from(ROOM[OFFSET + 1].load(Relaxed)) << 32 | u64::from(ROOM[OFFSET].load(Relaxed));
    let mut column = (offset / 4 % u64::from(ROW)) as u32;
    for word in &ROOM[PAYLOAD..PAYLOAD + columns as usize] {
        word.store(feature(column, word.load(Relaxed)).to_bits(), Relaxed);
        column = if column + 1 == ROW { 0 } else { column + 1 };
    }
}
