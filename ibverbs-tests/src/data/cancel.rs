//! Threads that are cancelled where they wait for events leave nothing taken behind.

use anyhow::{Context as _, Result};

use crate::ffi::{Channel, Context, Cq, EventChannel, Library, When};

/// How often each is cancelled.
const ROUNDS: usize = 20;

/// Cancels threads that wait for events of each kind; answers how many.
///
/// # Errors
/// When one does not end, or takes something along.
pub fn all(device: &str) -> Result<usize> {
    let context = Context::open(Library::open()?, device)?;
    let channel = Channel::new(&context)?;
    let connections = EventChannel::open()?;
    let mut count = 0;
    for _ in 0..ROUNDS {
        for when in [When::Before, When::Waiting] {
            let cq = Cq::new(&context, 1, Some(&channel))?;
            channel.cancel(when).context("ibv_get_cq_event")?;
            // It looks for unread records of its own.
            drop(cq);
            context.cancel(when).context("ibv_get_async_event")?;
            connections.cancel(when).context("rdma_get_cm_event")?;
            connections.has_none()?;
            count += 3;
        }
    }
    Ok(count)
}
