//! What the kernel shows of a card: a network device, and on it an RDMA device of rdma_rxe's.
//!
//! The network device is a TAP whose other end is the card's port (see [`softcard`]); it has the
//! card's Ethernet address and, at first, its IPv4 address. The RDMA device has the card's name, so
//! that libibverbs finds it and gives it to our provider; rxe itself carries nothing but connection
//! management, by its QP 1. Both go with the TAP's descriptor.
//!
//! The GID table is the kernel's, which follows the addresses of the network device: it is read again
//! when the kernel tells of changes, and written to the card's engines.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostmem::Tap;
use nix::net::if_::if_nametoindex;

use crate::address::PortAddress;
use crate::cards::Card;
use crate::error::Error;

mod cable;
pub mod libibverbs;
mod message;
mod netlink;
mod refusal;

pub use cable::keep_apart;
use netlink::{News, Rdma, Routes};
use refusal::{no_link, no_rdma, no_tap};

/// The MTU of the network devices: a path MTU of 4096 and every header fit, and so do the card's
/// frames ([`softcard::port::FRAME_CAPACITY`]).
pub const MTU: u32 = 4200;

const _: () = {
    // IPv6, UDP, BTH, RETH, immediate data and ICRC; Ethernet with a tag.
    assert!(MTU >= 4096 + 40 + 8 + 12 + 16 + 4 + 4);
    assert!((MTU as usize) + 18 < softcard::port::FRAME_CAPACITY);
};

/// After news the kernel's table may still be changing: it is read again this long later.
const LATER: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// The kernel's devices of all cards.
#[derive(Debug)]
pub struct ShadowDevices {
    devices: Vec<Device>,
    news: News,
    rdma: Rdma,
    /// When the tables are to be read again, the earliest last.
    due: Vec<Instant>,
}

#[derive(Debug)]
struct Device {
    card: u32,
    /// Name of the network device and of the RDMA device: the card's.
    name: String,
    /// Number of the network device.
    link: u32,
    /// Number of the RDMA device.
    rdma: u32,
    tap: Arc<Tap>,
}

impl ShadowDevices {
    /// Makes the devices of the first cards, one for each address.
    ///
    /// # Errors
    /// [`Error::Shadow`] with what is missing and what to do.
    pub fn create(addresses: &[PortAddress]) -> Result<Self, Error> {
        let routes = Routes::open().map_err(Error::os("netlink socket"))?;
        // Before the devices are, so that no news of them is missed.
        let news = News::open().map_err(Error::os("netlink socket"))?;
        let mut taps = Vec::new();
        for (card, _) in (0u32..).zip(addresses) {
            let name = format!("balboa{card}");
            taps.push(Arc::new(Tap::create(&name).map_err(|error| no_tap(&name, &error))?));
        }
        let rdma = Rdma::open().map_err(no_rdma)?;
        let mut devices = Vec::new();
        for ((card, address), tap) in (0u32..).zip(addresses).zip(taps) {
            devices.push(Device::create(card, *address, tap, &routes, &rdma)?);
        }
        if let Some(trouble) = libibverbs::claimant().trouble() {
            log::warn!("{trouble}");
        }
        Ok(Self { devices, news, rdma, due: Vec::new() })
    }

    /// The other ends of the network devices, in the order of the cards.
    #[must_use]
    pub fn taps(&self) -> Vec<Arc<Tap>> {
        self.devices.iter().map(|device| Arc::clone(&device.tap)).collect()
    }

    /// Names of a card's network device and RDMA device, which are one; `None` for a card without.
    #[must_use]
    pub fn name_of(&self, card: u32) -> Option<&str> {
        let device = self.devices.iter().find(|device| device.card == card)?;
        Some(&device.name)
    }

    /// How long it is until [`Self::follow`] is due; `None` while nothing is.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.due.last().map(|due| due.saturating_duration_since(now))
    }

    /// Gives the cards what the kernel's GID tables have, if they changed or may have; the numbers
    /// of the cards whose tables changed.
    pub fn follow(&mut self, cards: &mut [Card], now: Instant) -> Vec<u32> {
        let links: Vec<u32> = self.devices.iter().map(|device| device.link).collect();
        if self.news.about(&links) {
            self.due = LATER.iter().rev().filter_map(|later| now.checked_add(*later)).collect();
        } else if self.due.last().is_none_or(|due| *due > now) {
            return Vec::new();
        }
        self.due.retain(|due| *due > now);
        self.refresh(cards)
    }

    /// Gives the cards what the kernel's GID tables have now.
    pub fn refresh(&self, cards: &mut [Card]) -> Vec<u32> {
        let mut changed = Vec::new();
        for device in &self.devices {
            let Some(card) = cards.iter_mut().find(|card| card.number == device.card) else {
                continue;
            };
            match device.gids(&self.rdma, card.gids.len()) {
                Ok(gids) => match card.set_gids(gids) {
                    Ok(true) => changed.push(card.number),
                    Ok(false) => {}
                    Err(error) => log::error!("{}: its addresses stay: {error}", device.name),
                },
                Err(why) => log::error!("{}: {why}; its addresses stay as they are", device.name),
            }
        }
        changed
    }
}

impl AsFd for ShadowDevices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

impl Device {
    fn create(
        card: u32,
        address: PortAddress,
        tap: Arc<Tap>,
        routes: &Routes,
        rdma: &Rdma,
    ) -> Result<Self, Error> {
        let name = format!("balboa{card}");
        let link = if_nametoindex(name.as_str()).map_err(Error::os("if_nametoindex"))?;
        let refused = |errno| no_link(&name, errno);
        routes.set_up(link, address.mac(), MTU).map_err(refused)?;
        routes.add_address(link, address.ip, address.prefix).map_err(refused)?;
        rdma.add_rxe(&name, &name).map_err(|errno| refusal::no_rxe(&name, errno))?;
        let all = rdma.devices().map_err(Error::os("list of RDMA devices"))?;
        let found = all.into_iter().find(|(_, other)| *other == name);
        let (rdma, _) = found.ok_or_else(|| refusal::vanished(&name))?;
        log::info!("{name}: network device {name}, RDMA device {name} of rdma_rxe");
        Ok(Self { card, name, link, rdma, tap })
    }

    /// The first entries of the kernel's GID table.
    fn gids(&self, rdma: &Rdma, entries: usize) -> Result<Vec<[u8; 16]>, String> {
        self.keep_name(rdma);
        let port = Path::new("/sys/class/infiniband").join(&self.name).join("ports/1/gids");
        let read = |index: usize| {
            let path = port.join(index.to_string());
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            gid(&text).ok_or_else(|| format!("{}: {text:?} is no GID", path.display()))
        };
        (0..entries).map(read).collect()
    }

    /// Gives the device its name back: udev's rules for RDMA devices rename what they do not know.
    fn keep_name(&self, rdma: &Rdma) {
        if Path::new("/sys/class/infiniband").join(&self.name).exists() {
            return;
        }
        match rdma.rename(self.rdma, &self.name) {
            Ok(()) => {
                log::info!("{}: had been given another name, and has its own again", self.name)
            }
            Err(errno) => {
                log::error!("{}: has another name, and cannot have its own: {errno}", self.name)
            }
        }
    }
}

/// A GID as sysfs shows it; all zeros where there is none.
fn gid(text: &str) -> Option<[u8; 16]> {
    let address: std::net::Ipv6Addr = text.trim().parse().ok()?;
    Some(address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_as_sysfs_writes_them() {
        let text = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n";
        assert_eq!(gid(text).map(crate::address::gid_text).as_deref(), Some("::ffff:10.77.0.1"));
        assert_eq!(gid("0000:0000:0000:0000:0000:0000:0000:0000\n"), Some([0; 16]));
        assert_eq!(gid("fe80"), None);
        assert_eq!(gid(""), None);
    }
}
