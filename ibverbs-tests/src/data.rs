//! Checks that data arrives: every byte where it belongs, and no byte beside it.

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use crate::ffi::{Operation, Service};

pub mod apart;
pub mod arguments;
mod batch;
pub mod cancel;
pub mod classified;
pub mod counter;
pub mod device_memory;
pub mod errors;
pub mod extended;
pub mod flows;
pub mod grants;
pub mod handles;
pub mod inspected;
mod line;
pub mod link;
pub mod managed;
pub mod many;
pub mod memory;
mod moving;
pub mod multicast;
pub mod nccl;
pub mod null;
pub mod port;
pub mod published;
mod queries;
pub mod races;
pub mod rates;
pub mod reach;
pub mod refusals;
pub mod rereg;
pub mod resize;
pub mod rows;
pub mod shared;
pub mod states;
pub mod strays;
pub mod tended;
pub mod their_stack;
pub mod training;
pub mod transfer;
pub mod vectors;
pub mod xrc;

use link::{ConnectedSides, Options};
use transfer::Transfer;

/// Path MTUs as `ibv_mtu`, 256 to 4096 bytes.
pub const MTUS: [v::ibv_mtu; 5] =
    [v::IBV_MTU_256, v::IBV_MTU_512, v::IBV_MTU_1024, v::IBV_MTU_2048, v::IBV_MTU_4096];

/// Sizes around everything that could be a bound: SGE counts, inline limits, MTUs, 64 KiB.
const SIZES: [usize; 34] = [
    0, 1, 2, 3, 4, 7, 15, 16, 17, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025,
    2047, 2048, 2049, 4095, 4096, 4097, 8191, 12_289, 65_535, 65_537, 1_048_575, 1_048_576,
];
/// Numbers of SGEs.
const PIECES: [usize; 5] = [1, 2, 3, 7, 16];
/// Where the first piece starts in its page.
const OFFSETS: [usize; 7] = [0, 1, 3, 8, 63, 2047, 4095];
/// Every operation with every size at every path MTU, with the other properties in turn so that
/// each meets each; answers the number of transfers. Of no given sizes it takes its own.
///
/// # Errors
/// At the first transfer that goes wrong, with its properties.
pub fn sweep(options: &Options, sizes: &[usize]) -> Result<usize> {
    let sizes = if sizes.is_empty() { &SIZES } else { sizes };
    let largest = sizes.iter().copied().max().unwrap_or_default();
    let mut count = 0;
    for (mtu_index, mtu) in MTUS.into_iter().enumerate() {
        let link = ConnectedSides::new(options, mtu, transfer::room(largest))?;
        for (operation_index, operation) in Operation::ALL.into_iter().enumerate() {
            // On an unreliable connection only a receive tells that the bytes are there.
            if options.service != Service::Reliable
                && matches!(operation, Operation::Write | Operation::Read)
            {
                continue;
            }
            for (size_index, size) in sizes.iter().copied().enumerate() {
                let turn = size_index + mtu_index + 2 * operation_index;
                let fits = size <= link.max_inline() && operation != Operation::Read;
                let transfer = Transfer {
                    operation,
                    size,
                    gather: PIECES[turn % PIECES.len()],
                    scatter: PIECES[(turn / 2 + 1) % PIECES.len()],
                    offset: OFFSETS[turn % OFFSETS.len()],
                    inline: fits && turn % 2 == 0,
                    seed: count as u64 + 1,
                };
                transfer.run(&link).with_context(|| format!("{transfer:?} at ibv_mtu {mtu}"))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// One long message of `size` bytes at a path MTU.
///
/// # Errors
/// When it goes wrong.
pub fn huge(options: &Options, operation: Operation, size: usize, mtu: v::ibv_mtu) -> Result<()> {
    let link = ConnectedSides::new(options, mtu, transfer::room(size))?;
    let transfer =
        Transfer { operation, size, gather: 3, scatter: 2, offset: 1, inline: false, seed: 7 };
    transfer.run(&link).with_context(|| format!("{transfer:?} at ibv_mtu {mtu}"))
}

/// Lists of work requests of which only the last is signalled.
///
/// # Errors
/// When one of them goes wrong.
pub fn lists(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(1 << 20))?;
    let mut count = 0;
    for operation in Operation::ALL {
        for length in [1, 2, 5, 16] {
            let transfers: Vec<Transfer> = (0..length)
                .map(|index| Transfer {
                    operation,
                    size: 1000 + 37 * index,
                    gather: 1 + index % 3,
                    scatter: 1 + index % 2,
                    offset: 4096 * index,
                    inline: false,
                    seed: index as u64,
                })
                .collect();
            transfer::run_list(&link, &transfers)
                .with_context(|| format!("a list of {length} {operation:?}"))?;
            count += length;
        }
    }
    ensure!(count > 0);
    Ok(count)
}
