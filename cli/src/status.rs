//! `balboa status`: the state of a balboad.

use std::time::Duration;

use nix::unistd::geteuid;

use crate::args;
use crate::client::Client;

/// Prints the state.
///
/// # Errors
/// When there is no balboad, or its answer cannot be shown.
pub fn status(arguments: &args::Status) -> anyhow::Result<()> {
    let dir = shim_abi::state_dir(arguments.state_dir.as_deref(), geteuid().as_raw());
    let text = Client::connect(&dir, Duration::ZERO)?.status()?;
    println!("{text}");
    Ok(())
}
