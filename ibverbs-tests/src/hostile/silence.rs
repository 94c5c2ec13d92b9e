//! Peers that there are not.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::{Opened, stay};
use crate::data::link::ACCESS;
use crate::ffi::{Peer, Qp};
use crate::mortal::say;

/// The first address that no host has.
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);

/// Makes QPs ready to receive from addresses that do not answer, each from one of its own; `first` tells
/// from the how-manieth on, so that several programs have different ones. Says of how many, of `qps` or
/// fewer where the device gives no more: `silent N`.
///
/// # Errors
/// When the device refuses the first of them.
pub fn silent(qps: u32, first: u32) -> Result<()> {
    let place = Opened::open("balboa0", 16)?;
    let make = |number: u32| -> Result<Qp> {
        let address = Ipv4Addr::from(u32::from(NOBODY) + number);
        let qp = place.qp(1)?;
        qp.init(ACCESS)?;
        qp.receive_from(&Peer { gid: address.to_ipv6_mapped().octets(), ..place.peer(1) })?;
        Ok(qp)
    };
    let mut kept = vec![make(first)?];
    // When balboad refuses another one, it has all that it can have.
    kept.extend((first + 1..first + qps).map_while(|number| make(number).ok()));
    say(&format!("silent {}", kept.len()));
    stay()
}
