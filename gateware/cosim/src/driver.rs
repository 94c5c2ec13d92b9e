//! The project's own driver on a software card whose logic is RTL: it gives the engine a seed, and tells it of a page fault
//! before it refuses that.

use std::error::Error;
use std::sync::Arc;

use bitstreams::Manifest;
use card_driver::address::PortAddress;
use card_driver::backend::CardBackend;
use card_driver::bringup::bring_up;
use card_driver::device::Device;
use card_driver::soft::{self, SoftCard};
use fpga_regs::engine::admin::{AdminStatus, CreateCq};
use softcard::Image;

/// An address where no card has memory.
const NOWHERE: u64 = 3 << 42;
/// A ring out of reach.
const CQ: CreateCq = CreateCq { ring: NOWHERE, log2_entries: 2, page: 1, vector: 0 };
/// How often it is tried.
const TIMES: u64 = 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Makes queues in memory that is not there, on a card of an image: each is refused, and the engine goes on. The number of
/// page faults that were refused.
///
/// # Errors
/// Where the engine waits for what was refused, or the card does not come up.
pub fn drive(image: Image) -> Result<u64> {
    let cards = [SoftCard { image, ..SoftCard::default() }];
    let (runtime, cards) = soft::start(&cards, &[], None, Vec::new(), 0)?;
    let card = cards.into_iter().next().ok_or("no card")?;
    let manifest = Manifest { name: "simulated".into(), ..Manifest::default() };
    let backend: Arc<dyn CardBackend> = Arc::new(card);
    let device = bring_up(0, backend, PortAddress::default_of(0), &manifest)?;
    let refused = refuse(device);
    runtime.shutdown();
    refused
}

fn refuse(mut device: Device) -> Result<u64> {
    let window = device.windows.first_mut().ok_or("no engine")?;
    for _ in 0..TIMES {
        match window.engine.create_cq(&CQ) {
            Err(card_driver::Error::Refused { status: AdminStatus::BadAddress, .. }) => {}
            other => return Err(format!("a queue out of reach: {other:?}").into()),
        }
    }
    // It is well, and its commands are answered.
    window.engine.query_port()?;
    let counts = device.shell.counts();
    match counts.refused >= TIMES && window.engine.death().is_none() {
        true => Ok(counts.refused),
        false => Err(format!("faults of {TIMES} queues out of reach: {counts:?}").into()),
    }
}
