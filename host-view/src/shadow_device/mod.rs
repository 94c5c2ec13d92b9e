//! The kernel's devices for a card: a network device, and on it an RDMA device of rdma_rxe's.
//!
//! The network device is a TAP whose other end is the card's port; it has the
//! card's Ethernet address and, at first, its IPv4 address. The RDMA device has the card's name, so
//! that libibverbs finds it and gives it to our provider; rxe itself carries nothing but connection
//! management, by its QP 1. Both go with the TAP's descriptor.
//!
//! The GID table is the kernel's, which follows the addresses of the network device: it is read again
//! when the kernel tells of changes, and written to the card's engines. Entries of other devices on
//! top of it, such as VLANs, are not the card's: it sends and receives without a tag. At some news the
//! kernel takes every entry out and puts it in again, so an entry is gone only where two readings in a
//! row do not have it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostmem::Tap;
use hostmem::netdev::mac_text;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::error::Error;

mod cable;
pub mod libibverbs;
mod netlink;
mod refusal;
mod ways;

pub use cable::keep_apart;
use netlink::{Heard, Rdma};
pub use netlink::{News, Routes};
use refusal::{no_link, no_rdma, no_tap};
pub use ways::Asked;

/// The MTU of the network devices: a path MTU of 4096 and every header fit.
pub const MTU: u32 = 4200;

// IPv6, UDP, BTH, RETH, immediate data and ICRC.
const _: () = assert!(MTU >= 4096 + 40 + 8 + 12 + 16 + 4 + 4);

/// Where the kernel shows its RDMA devices.
const INFINIBAND: &str = "/sys/class/infiniband";

/// After news the kernel's table may still be changing: it is read again this long later.
const LATER: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// How long devices of a balboad that was killed may take to go, which the kernel does by and by.
const FORMER: Duration = Duration::from_secs(5);

/// An entry of a GID table; all zeros where there is none.
pub type Gid = [u8; 16];

const NO_GID: Gid = [0; 16];

/// The addresses that a card's network device has at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddresses {
    /// The Ethernet address.
    pub mac: [u8; 6],
    /// The IPv4 address.
    pub ip: Ipv4Addr,
    /// Bits of its network's prefix.
    pub prefix: u8,
}

/// The kernel's devices of all cards.
#[derive(Debug)]
pub struct ShadowDevices {
    devices: Vec<Device>,
    news: News,
    routes: Routes,
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
    /// The card's Ethernet address.
    mac: [u8; 6],
    tap: Arc<Tap>,
    /// The kernel's GID table as it was last read.
    read: Vec<Gid>,
    /// The reason why it does not show the card.
    trouble: Option<String>,
}

impl ShadowDevices {
    /// Makes the devices of the first cards, one for each address.
    ///
    /// # Errors
    /// [`Error::Shadow`] with the missing condition and the mend.
    pub fn create(addresses: &[PortAddresses]) -> Result<Self, Error> {
        let routes = Routes::open().map_err(Error::os("netlink socket"))?;
        // Before the devices are, so that no news of them is missed.
        let news = News::open().map_err(Error::os("netlink socket"))?;
        let mut taps = Vec::new();
        for (card, _) in (0u32..).zip(addresses) {
            let name = format!("balboa{card}");
            let is_former = |error: &hostmem::Error| error.errno() == Some(Errno::EBUSY);
            let tap = outwait(is_former, || Tap::create(&name));
            taps.push(Arc::new(tap.map_err(|error| no_tap(&name, &error))?));
        }
        let rdma = Rdma::open().map_err(no_rdma)?;
        let mut devices = Vec::new();
        for ((card, address), tap) in (0u32..).zip(addresses).zip(taps) {
            devices.push(Device::create(card, *address, tap, &routes, &rdma)?);
        }
        if let Some(trouble) = libibverbs::claimant().trouble() {
            log::warn!("{trouble}");
        }
        Ok(Self { devices, news, routes, rdma, due: Vec::new() })
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

    /// Why programs do not find a card, or do not get our provider for it.
    #[must_use]
    pub fn trouble_of(&self, card: u32) -> Option<String> {
        let device = self.devices.iter().find(|device| device.card == card)?;
        device.trouble.clone().or_else(|| libibverbs::claimant().trouble())
    }

    /// How long it is until [`Self::follow`] is due; `None` while nothing is.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.due.last().map(|due| due.saturating_duration_since(now))
    }

    /// The changes for the cards' GID tables, if the kernel's changed or may have: for each such
    /// card its whole table. The cards come by their numbers, each with the table that it has.
    pub fn follow<'a>(
        &mut self,
        cards: impl IntoIterator<Item = (u32, &'a [Gid])>,
        now: Instant,
    ) -> Vec<(u32, Vec<Gid>)> {
        let links: Vec<u32> = self.devices.iter().map(|device| device.link).collect();
        let Heard { about, macs } = self.news.hear(&links);
        for (link, mac) in macs {
            if let Some(device) = self.devices.iter().find(|device| device.link == link) {
                device.keep_address(mac, &self.routes);
            }
        }
        if about {
            self.due = LATER.iter().rev().filter_map(|later| now.checked_add(*later)).collect();
        } else if self.due.last().is_none_or(|due| *due > now) {
            return Vec::new();
        }
        self.due.retain(|due| *due > now);
        self.refresh(cards, now)
    }

    /// Refreshes even if the kernel's tables have not changed, otherwise as [`Self::follow`].
    pub fn refresh<'a>(
        &mut self,
        cards: impl IntoIterator<Item = (u32, &'a [Gid])>,
        now: Instant,
    ) -> Vec<(u32, Vec<Gid>)> {
        let mut changes = Vec::new();
        let mut in_doubt = false;
        for (card, current) in cards {
            let Some(device) = self.devices.iter_mut().find(|device| device.card == card) else {
                continue;
            };
            let gids = device.gids(&self.rdma, current.len());
            device.note(gids.as_ref().err());
            let Ok(gids) = gids else { continue };
            let settled = settled(&gids, &device.read, current);
            in_doubt |= settled != gids;
            device.read = gids;
            if settled != current {
                changes.push((card, settled));
            }
        }
        if let Some(soon) = now.checked_add(LATER[0]).filter(|_| in_doubt) {
            self.due.push(soon);
            self.due.sort_unstable_by(|a, b| b.cmp(a));
        }
        changes
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
        address: PortAddresses,
        tap: Arc<Tap>,
        routes: &Routes,
        rdma: &Rdma,
    ) -> Result<Self, Error> {
        let name = format!("balboa{card}");
        let link = if_nametoindex(name.as_str()).map_err(Error::os("if_nametoindex"))?;
        let refused = |errno| no_link(&name, errno);
        routes.set_up(link, address.mac, MTU).map_err(refused)?;
        routes.add_address(link, address.ip, address.prefix).map_err(refused)?;
        let is_former = |errno: &Errno| matches!(errno, Errno::EEXIST | Errno::ENFILE);
        outwait(is_former, || rdma.add_rxe(&name, &name))
            .map_err(|errno| refusal::no_rxe(&name, errno))?;
        let all = rdma.devices().map_err(Error::os("list of RDMA devices"))?;
        let found = all.into_iter().find(|(_, other)| *other == name);
        let (rdma, _) = found.ok_or_else(|| refusal::vanished(&name))?;
        log::info!("{name}: network device {name}, RDMA device {name} of rdma_rxe");
        let (mac, read) = (address.mac, Vec::new());
        Ok(Self { card, name, link, rdma, mac, tap, read, trouble: None })
    }

    /// The first entries of the kernel's GID table.
    fn gids(&self, rdma: &Rdma, entries: usize) -> Result<Vec<Gid>, String> {
        self.keep_name(rdma);
        let directory = Path::new(INFINIBAND).join(&self.name);
        if !directory.exists() {
            return Err(refusal::gone(&self.name));
        }
        let is_own = |name: &str| if_nametoindex(name) == Ok(self.link);
        table(&directory.join("ports/1"), entries, is_own)
    }

    /// Takes note of a fault; logs it when it is new.
    fn note(&mut self, trouble: Option<&String>) {
        if let Some(why) = trouble.filter(|why| self.trouble.as_ref() != Some(*why)) {
            log::error!("{}: {why}", self.name);
        }
        self.trouble = trouble.cloned();
    }

    /// Gives the network device its Ethernet address back: the card answers to no other.
    fn keep_address(&self, mac: [u8; 6], routes: &Routes) {
        if mac == self.mac {
            return;
        }
        let [now, own] = [mac, self.mac].map(mac_text);
        match routes.set_address(self.link, self.mac) {
            Ok(()) => log::warn!(
                "{}: had been given the Ethernet address {now}, which the card has not, and has {own} again",
                self.name
            ),
            Err(errno) => log::error!(
                "{}: has the Ethernet address {now} and hears nothing, for the card's is {own}, which it cannot have: {errno}",
                self.name
            ),
        }
    }

    /// Gives the device its name back: udev's rules for RDMA devices rename unknown ones.
    fn keep_name(&self, rdma: &Rdma) {
        if Path::new(INFINIBAND).join(&self.name).exists() {
            return;
        }
        match rdma.rename(self.rdma, &self.name) {
            Ok(()) => {
                log::info!("{}: had been given another name, and has its own again", self.name)
            }
            // It is gone.
            Err(Errno::ENODEV | Errno::EINVAL) => {}
            Err(errno) => {
                log::error!("{}: has another name, and cannot have its own: {errno}", self.name)
            }
        }
    }
}

/// Tries for a while, as long as the obstacle may go by itself.
fn outwait<T, E>(
    is_former: impl Fn(&E) -> bool,
    attempt: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_former(&error) && started.elapsed() < FORMER => {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// The first entries of a port's GID table in sysfs: those of its own network device, all zeros for
/// all others.
fn table(port: &Path, entries: usize, is_own: impl Fn(&str) -> bool) -> Result<Vec<Gid>, String> {
    let entry = |index: usize| {
        let path = port.join("gids").join(index.to_string());
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let gid = gid(&text).ok_or_else(|| format!("{}: {text:?} is no GID", path.display()))?;
        // There is none to be read where an entry is none, or is none any more.
        let device = fs::read_to_string(port.join("gid_attrs/ndevs").join(index.to_string()));
        Ok(if device.is_ok_and(|name| is_own(name.trim())) { gid } else { NO_GID })
    };
    (0..entries).map(entry).collect()
}

/// The new addresses of a card that has `current`, if the kernel's table was read to be `before` and
/// is `now`: an entry that has only just gone stays until the next reading.
fn settled(now: &[Gid], before: &[Gid], current: &[Gid]) -> Vec<Gid> {
    let entry = |(index, gid): (usize, &Gid)| {
        let was_gone = before.get(index) == Some(&NO_GID);
        if *gid != NO_GID || was_gone {
            *gid
        } else {
            current.get(index).copied().unwrap_or(NO_GID)
        }
    };
    now.iter().enumerate().map(entry).collect()
}

/// A GID as sysfs shows it.
fn gid(text: &str) -> Option<Gid> {
    let address: std::net::Ipv6Addr = text.trim().parse().ok()?;
    Some(address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_as_sysfs_writes_them() {
        let text = "0000:0000:0000:0000:0000:ffff:0a4d:0001\n";
        let ipv4 = Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped().octets();
        assert_eq!(gid(text), Some(ipv4));
        assert_eq!(gid("0000:0000:0000:0000:0000:0000:0000:0000\n"), Some([0; 16]));
        assert_eq!(gid("fe80"), None);
        assert_eq!(gid(""), None);
    }

    #[test]
    fn the_gids_of_a_vlan_are_not_the_cards() {
        let port = tempfile::tempdir().unwrap();
        for directory in ["gids", "gid_attrs/ndevs"] {
            fs::create_dir_all(port.path().join(directory)).unwrap();
        }
        let write = |name: &str, text: &str| fs::write(port.path().join(name), text).unwrap();
        let is_own = |name: &str| name == "balboa0";
        let [own, of_vlan] = ["fe80::1", "::ffff:10.5.0.1"];
        for (index, gid) in [own, of_vlan, "::", own].into_iter().enumerate() {
            write(&format!("gids/{index}"), &format!("{gid}\n"));
        }
        write("gid_attrs/ndevs/0", "balboa0\n");
        write("gid_attrs/ndevs/1", "balboa0.5\n");
        let own = gid(own).unwrap();
        // The last entry went while it was read.
        assert_eq!(table(port.path(), 4, is_own), Ok(vec![own, [0; 16], [0; 16], [0; 16]]));
        assert!(table(port.path(), 5, is_own).unwrap_err().contains("gids/4"));
        write("gids/0", "nonsense");
        assert!(table(port.path(), 4, is_own).unwrap_err().contains("is no GID"));
    }

    #[test]
    fn an_entry_is_gone_when_two_readings_do_not_have_it() {
        let [first, second, third] = [[1; 16], [2; 16], [3; 16]];
        let whole = [first, second, NO_GID];
        let gone = [first, NO_GID, NO_GID];
        assert_eq!(settled(&gone, &whole, &whole), whole, "it has only just gone");
        assert_eq!(settled(&gone, &gone, &whole), gone);
        assert_eq!(settled(&[NO_GID; 3], &[], &whole), whole, "the first reading");
        assert_eq!(settled(&whole, &[NO_GID; 3], &whole), whole, "it is there again");
        // Present entries count at once.
        assert_eq!(settled(&[first, third, second], &whole, &whole), [first, third, second]);
    }

    #[test]
    fn only_what_goes_by_itself_is_waited_for() {
        let tries = std::cell::Cell::new(0);
        let attempt = || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(Errno::EBUSY) } else { Ok(()) }
        };
        assert_eq!(outwait(|errno| *errno == Errno::EBUSY, attempt), Ok(()));
        assert_eq!(tries.replace(0), 3);
        assert_eq!(outwait(|errno| *errno == Errno::EEXIST, attempt), Err(Errno::EBUSY));
        assert_eq!(tries.get(), 1);
    }
}
