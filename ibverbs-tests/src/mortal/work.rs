//! Work without end, whose every byte is looked at.

use std::path::Path;

use anyhow::Result;

use super::{CARD_DIED, STOPPED, is_dead, is_wanted, linked, say};
use crate::data::link::ConnectedSides;
use crate::data::transfer::{self, Transfer};
use crate::ffi::{Context, Library, Operation};

/// Bytes of the largest message.
const LARGEST: usize = 32 << 10;

/// Moves messages between two QPs of this process until `stop` is there or the card dies; says
/// `running`.
///
/// # Errors
/// When a byte, a completion or a call is wrong.
pub fn transfers(stop: &Path) -> Result<u8> {
    let link = linked(false, transfer::room(LARGEST))?;
    say("running");
    let mut seed = 0;
    while is_wanted(stop) {
        seed += 1;
        if let Err(error) = transfer(seed).run(&link) {
            // The death of the card is the one excuse.
            return is_dead(&link.left).map(|()| CARD_DIED).map_err(|_| error);
        }
    }
    Ok(STOPPED)
}

fn transfer(seed: u64) -> Transfer {
    let turn = seed as usize;
    Transfer {
        operation: Operation::ALL[turn % Operation::ALL.len()],
        size: turn.wrapping_mul(7919) % LARGEST,
        gather: 1 + turn % 3,
        scatter: 1 + turn % 4,
        offset: turn % 64,
        inline: false,
        seed,
    }
}

/// Makes and destroys everything there is until `stop` is there or the card dies; says `running`.
///
/// # Errors
/// When a call fails while the card lives.
pub fn churn(stop: &Path) -> Result<u8> {
    let library = Library::open()?;
    let mut said = false;
    while is_wanted(stop) {
        let round = || -> Result<()> {
            let link: ConnectedSides = linked(true, 1 << 16)?;
            drop(link);
            Ok(())
        };
        if let Err(error) = round() {
            let gone = Context::open(library, "balboa0").is_err();
            return if gone { Ok(CARD_DIED) } else { Err(error) };
        }
        if !said {
            said = true;
            say("running");
        }
    }
    Ok(STOPPED)
}
