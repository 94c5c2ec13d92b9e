//! Connections of a program's own queue pairs by librdmacm.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::rc::Rc;

use anyhow::{Context as _, Result};
use verbs_sys::current::verbs as v;

use crate::ffi::{CmEventType, Context, EventChannel, Identifier, Qp};

/// Requests that wait at a time.
const BACKLOG: i32 = 64;

/// Connections of librdmacm's.
pub struct Managed {
    channel: Rc<EventChannel>,
    /// Where the side that sends asks from, and where the other listens.
    addresses: [SocketAddrV4; 2],
    listener: Identifier,
    /// Pairs of identifiers: the side that asked, and the one that was asked.
    pairs: Vec<[Identifier; 2]>,
}

impl Managed {
    /// Listens at a port of the address that the second device has at an index.
    ///
    /// # Errors
    /// When there is no librdmacm, or the port is taken.
    pub fn new(devices: [&Context; 2], gid_index: u8, port: u16) -> Result<Self> {
        let channel = EventChannel::open()?;
        let [from, to] = devices.map(|device| address(device, gid_index));
        let addresses = [SocketAddrV4::new(from?, 0), SocketAddrV4::new(to?, port)];
        let listener = Identifier::new(&channel)?;
        listener.listen(addresses[1], BACKLOG)?;
        Ok(Self { channel, addresses, listener, pairs: Vec::new() })
    }

    /// Connects two queue pairs, one of either device, which are new.
    ///
    /// # Errors
    /// When the connection manager says anything else than that it goes well.
    pub fn connect(&mut self, [asks, asked]: [&Qp; 2]) -> Result<()> {
        let own = Identifier::new(&self.channel)?;
        let [from, to] = self.addresses;
        own.resolve(from, to)?;
        own.bring(asks, v::IBV_QPS_INIT)?;
        own.connect(asks)?;
        let theirs = self.listener.request()?;
        for state in [v::IBV_QPS_INIT, v::IBV_QPS_RTR, v::IBV_QPS_RTS] {
            theirs.bring(asked, state)?;
        }
        theirs.accept(asked)?;
        own.told(CmEventType::Response)?;
        own.bring(asks, v::IBV_QPS_RTR)?;
        own.bring(asks, v::IBV_QPS_RTS)?;
        own.establish()?;
        theirs.told(CmEventType::Established)?;
        self.pairs.push([own, theirs]);
        Ok(())
    }

    /// Ends all connections: half of them by the side that asked, half by the other.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn part(&mut self) -> Result<()> {
        for (number, [own, theirs]) in self.pairs.drain(..).enumerate() {
            let [first, second] = if number % 2 == 0 { [&own, &theirs] } else { [&theirs, &own] };
            first.disconnect()?;
            second.told(CmEventType::Disconnected)?;
            second.disconnect()?;
            first.told(CmEventType::Disconnected)?;
        }
        Ok(())
    }
}

/// The address of IPv4 that a device has at an index.
///
/// # Errors
/// When it has another there, or none.
pub fn address(device: &Context, gid_index: u8) -> Result<Ipv4Addr> {
    let gid = Ipv6Addr::from(device.gid(gid_index)?);
    gid.to_ipv4_mapped().context("the GID is no address of IPv4")
}
