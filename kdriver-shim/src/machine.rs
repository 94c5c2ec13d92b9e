//! Cards on the machine's own network: their addresses and their links are those of its devices, as they come and go.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use card_driver::address::PortAddress;
use card_driver::soft::SoftCard;
use host_view::shadow_device::{Asked, Gid, News, Routes};
use nix::net::if_::if_nametoindex;
use softcard::port::udp::machine::{self, MachineDevice, ROCE_UDP_PORT};
use softcard::{Link, UdpLink};

/// How long after news the machine is looked at: more may come with them.
const LATER: Duration = Duration::from_millis(20);
/// And how many times as long as the last look took: a router's routes are many, and change always.
const LATER_BY_LOOK: u32 = 20;
/// How often the machine is looked at where the kernel tells no news.
const UNTOLD: Duration = Duration::from_secs(1);

const NO_GID: Gid = [0; 16];

/// The cards of a balboad that stand on the machine's own network.
#[derive(Debug)]
pub struct OnMachine {
    cards: Vec<Standing>,
    /// `None` where the kernel tells none.
    news: Option<News>,
    /// When the machine is to be looked at again.
    due: Option<Instant>,
    /// How long the last look took.
    look: Duration,
}

/// A card, and the device that it stands on.
#[derive(Clone, Debug)]
struct Standing {
    card: u32,
    link: UdpLink,
    /// The device as it was found last; `None` while there is none.
    device: Option<MachineDevice>,
    /// Bytes that each route by the device carries in one packet, as found last.
    least: u32,
}

/// A card's present share of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// The card.
    pub card: u32,
    /// Its GID table.
    pub gids: Vec<Gid>,
    /// Whether its device is up.
    pub is_up: bool,
    /// The code of the largest path MTU that each route by its device carries.
    pub mtu: u8,
}

impl OnMachine {
    /// Finds the machine's devices for cards on the machine's own network; `None` without such cards.
    ///
    /// # Errors
    /// A sentence, where one cannot.
    pub fn find(cards: &[SoftCard]) -> Result<Option<Self>, String> {
        if !cards.iter().any(|card| matches!(card.link, Link::Udp(..))) {
            return Ok(None);
        }
        // Before the machine is looked at, so that nothing is missed.
        let news = News::with_routes();
        let news = news.inspect_err(|errno| {
            log::warn!("news of the machine's network: {errno}; it is looked at every second");
        });
        let mut standing = Vec::new();
        for (number, card) in (0_u32..).zip(cards) {
            let Link::Udp(link, _) = &card.link else { continue };
            let device = machine::find(link).map_err(|why| format!("--port {link}: {why}"))?;
            if let Some((other, ip)) = taken(&standing, &device) {
                return Err(format!(
                    "--port {link}: cards {other} and {number} both are to stand on {ip} of {}; an address is one card's, so write another device or address for one of them",
                    device.name
                ));
            }
            let addresses: Vec<String> =
                device.addresses.iter().map(|it| it.ip.to_string()).collect();
            let least = least_mtu(&device);
            log::info!(
                "balboa{number}: on {} with {}; path MTU {}",
                device.name,
                addresses.join(", "),
                machine::path_mtu(least, 0).map_or(0, |mtu| mtu.bytes())
            );
            // The way to the world is asked for once: routes come and go without news.
            let link = match link {
                UdpLink::DefaultRoute => UdpLink::Device(device.name.clone()),
                other => other.clone(),
            };
            standing.push(Standing { card: number, link, device: Some(device), least });
        }
        let news = news.ok();
        let due = news.is_none().then(Instant::now);
        Ok(Some(Self { cards: standing, news, due, look: Duration::ZERO }))
    }

    /// The IPv4 address that a card has, or one made of its IPv6 address, of which its Ethernet address is made.
    #[must_use]
    pub fn address(&self, card: u32) -> Option<PortAddress> {
        let standing = self.cards.iter().find(|it| it.card == card)?;
        let addresses = &standing.device.as_ref()?.addresses;
        let ipv4 = addresses.iter().find_map(|it| match it.ip {
            IpAddr::V4(ip) => Some(PortAddress { ip, prefix: it.prefix }),
            IpAddr::V6(_) => None,
        });
        let of_ipv6 = || {
            let ips = addresses.iter().filter_map(|it| match it.ip {
                IpAddr::V6(ip) => Some(ip),
                IpAddr::V4(_) => None,
            });
            // Another link may have the same link-local one.
            let ip = ips.min_by_key(Ipv6Addr::is_unicast_link_local)?;
            Some(PortAddress { ip: made_of(ip), prefix: 32 })
        };
        ipv4.or_else(of_ipv6)
    }

    /// The name of the device that a card stands on.
    #[must_use]
    pub fn device_of(&self, card: u32) -> Option<&str> {
        let standing = self.cards.iter().find(|it| it.card == card)?;
        standing.device.as_ref().map(|device| device.name.as_str())
    }

    /// The news that wake the server, where the kernel tells any.
    #[must_use]
    pub fn news(&self) -> Option<&News> {
        self.news.as_ref()
    }

    /// The time until the next look at the machine; `None` while nothing is new.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Hears news, and looks at the machine if it is time.
    pub fn follow(&mut self, now: Instant) {
        let is_told = self.news.as_ref().is_some_and(News::hear_any);
        if is_told && self.due.is_none() {
            let later = self.look.saturating_mul(LATER_BY_LOOK).max(LATER);
            self.due = now.checked_add(later);
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let began = Instant::now();
        for it in &mut self.cards {
            let found = machine::find(&it.link);
            let device = match (&it.device, found) {
                (Some(_), Err(why)) => {
                    log::warn!("balboa{}: {}: {why}", it.card, it.link);
                    None
                }
                (Some(before), Ok(device)) if before.index != device.index => {
                    // It went and is back since the last look: the card learns of the one, and next time of the other.
                    log::warn!("balboa{}: {} is another device now", it.card, device.name);
                    self.due = now.checked_add(LATER);
                    None
                }
                (None, Ok(device)) => {
                    log::info!("balboa{}: {} is back", it.card, device.name);
                    Some(device)
                }
                (_, found) => found.ok(),
            };
            if let Some(device) = &device {
                let before = std::mem::replace(&mut it.least, least_mtu(device));
                let [before, now] = [before, it.least].map(|least| machine::path_mtu(least, 0));
                if before != now {
                    let (name, now) = (&device.name, now.map_or(0, |mtu| mtu.bytes()));
                    log::info!(
                        "balboa{}: each route by {name} carries a path MTU of {now}",
                        it.card
                    );
                }
            }
            it.device = device;
        }
        self.look = began.elapsed();
        if self.news.is_none() && self.due.is_none() {
            self.due = now.checked_add(UNTOLD);
        }
    }

    /// The share of the machine for a card that has these GIDs: remaining addresses keep their places, new ones take
    /// free ones.
    #[must_use]
    pub fn now(&self, card: u32, current: &[Gid]) -> Option<Now> {
        let standing = self.cards.iter().find(|it| it.card == card)?;
        let device = standing.device.as_ref();
        let wanted: Vec<Gid> =
            device.iter().flat_map(|it| &it.addresses).map(|it| gid_of(it.ip)).collect();
        let is_up = device.is_some_and(|device| device.is_up);
        let mtu = code_of(standing.least);
        Some(Now { card, gids: table(&wanted, current), is_up, mtu })
    }
}

/// The code of the largest path MTU that the machine's route from one of its addresses to another address carries, as its
/// administrator made the route; `None` where it does not leave the machine, or there is none.
#[must_use]
pub fn mtu_between(device: &str, from: IpAddr, to: IpAddr) -> Option<u8> {
    let is_of_link = [from, to].into_iter().any(|ip| match ip {
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
        IpAddr::V4(ip) => ip.is_multicast(),
    });
    let device = if is_of_link { Some(if_nametoindex(device).ok()?) } else { None };
    let [from, to] = [from, to].map(|ip| ip.to_canonical());
    let asked = Asked { from, to, port: ROCE_UDP_PORT, device };
    let mtu = Routes::open().and_then(|routes| routes.mtu_of(&asked)).ok()??;
    Some(code_of(mtu))
}

/// Bytes that a device takes in one packet, or a route by it that was given less.
fn least_mtu(device: &MachineDevice) -> u32 {
    let routes = Routes::open().and_then(|routes| routes.least_mtu_by(device.index));
    let least = routes.unwrap_or_else(|errno| {
        log::debug!("{}: its routes: {errno}", device.name);
        None
    });
    least.map_or(device.mtu, |least| least.min(device.mtu))
}

/// The code of the largest path MTU that an MTU carries; the smallest of all is always tried.
fn code_of(mtu: u32) -> u8 {
    machine::path_mtu(mtu, 0).map_or(1, |mtu| mtu.code())
}

/// Refuses options that exclude cards on the machine's own network.
///
/// # Errors
/// A sentence.
pub fn check(
    cards: &[SoftCard],
    shadow: bool,
    addressed: impl Fn(u32) -> bool,
) -> Result<(), String> {
    let links = (0_u32..).zip(cards).filter_map(|(number, card)| match &card.link {
        Link::Udp(link, _) => Some((number, link)),
        _ => None,
    });
    let links: Vec<_> = links.collect();
    for (at, (number, link)) in links.iter().enumerate() {
        if shadow {
            return Err(format!(
                "--shadow: card {number} stands on the machine's own network ({link}), which the kernel shows already; leave --shadow out"
            ));
        }
        if addressed(*number) {
            return Err(format!(
                "--ip: card {number} has the addresses of the machine ({link}); leave --ip out"
            ));
        }
        if let Some((other, _)) = links.iter().take(at).find(|(_, before)| before == link) {
            return Err(format!(
                "cards {other} and {number} both are to stand on {link}; an address is one card's, so write another device or address for one of them"
            ));
        }
    }
    Ok(())
}

/// An address that another card stands on already, and which card that is.
fn taken(standing: &[Standing], device: &MachineDevice) -> Option<(u32, IpAddr)> {
    let has = |ip: IpAddr| {
        let of = |it: &&Standing| {
            it.device.iter().flat_map(|device| &device.addresses).any(|it| it.ip == ip)
        };
        standing.iter().find(of).map(|it| (it.card, ip))
    };
    device.addresses.iter().find_map(|it| has(it.ip))
}

/// The number in place of an IPv6 address where a card needs an IPv4 one, of which its Ethernet address and GUID are
/// made: all bits of it count (FNV-1a), and it is in 240.0.0.0/4, which has no hosts.
fn made_of(ip: Ipv6Addr) -> Ipv4Addr {
    let step = |hash: u32, octet: u8| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193);
    let hash = ip.octets().into_iter().fold(0x811c_9dc5, step);
    Ipv4Addr::from_bits(hash | 0xf000_0000)
}

fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn table(wanted: &[Gid], current: &[Gid]) -> Vec<Gid> {
    let mut table: Vec<Gid> =
        current.iter().map(|gid| if wanted.contains(gid) { *gid } else { NO_GID }).collect();
    for gid in wanted {
        if table.contains(gid) {
            continue;
        }
        match table.iter_mut().find(|entry| **entry == NO_GID) {
            Some(entry) => *entry = *gid,
            None => break,
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids(texts: &[&str]) -> Vec<Gid> {
        texts
            .iter()
            .map(|text| if text.is_empty() { NO_GID } else { gid_of(text.parse().unwrap()) })
            .collect()
    }

    #[test]
    fn an_address_that_stays_has_its_place() {
        let first = table(
            &gids(&["fe80::1", "10.0.0.1", "2001:db8::1"]),
            &gids(&["fe80::9", "10.77.0.1", "", ""]),
        );
        assert_eq!(first, gids(&["fe80::1", "10.0.0.1", "2001:db8::1", ""]));
        let then = table(&gids(&["fe80::1", "10.0.0.2", "2001:db8::1"]), &first);
        assert_eq!(then, gids(&["fe80::1", "10.0.0.2", "2001:db8::1", ""]));
        assert_eq!(table(&[], &first), vec![NO_GID; 4]);
        let many = gids(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]);
        assert_eq!(table(&many, &[NO_GID; 4]), many[..4], "the first win");
    }

    /// A device with these addresses.
    fn device(ips: &[&str]) -> MachineDevice {
        let address = |ip: &&str| machine::MachineAddress { ip: ip.parse().unwrap(), prefix: 64 };
        let addresses = ips.iter().map(address).collect();
        MachineDevice { name: "eth1".into(), index: 2, is_up: true, mtu: 1500, addresses }
    }

    fn standing(card: u32, ips: &[&str]) -> Standing {
        let link = UdpLink::Device("eth1".into());
        Standing { card, link, device: Some(device(ips)), least: 1500 }
    }

    #[test]
    fn one_address_is_one_cards() {
        let first = [standing(0, &["fe80::1", "10.0.0.1", "10.0.0.2"])];
        assert_eq!(taken(&first, &device(&["10.0.0.3"])), None);
        let found = taken(&first, &device(&["10.0.0.3", "10.0.0.2"]));
        assert_eq!(found, Some((0, "10.0.0.2".parse().unwrap())));
    }

    #[test]
    fn cards_with_ipv6_alone_are_other_cards_by_all_of_their_address() {
        let on = |ips: &[&str]| OnMachine {
            cards: vec![standing(0, ips)],
            news: None,
            due: None,
            look: Duration::ZERO,
        };
        let of = |ips: &[&str]| on(ips).address(0).unwrap();
        let [one, other] = [["fe80::1", "2001:db8::1"], ["fe80::1", "2001:db8:1::1"]];
        assert_ne!(of(&one).mac(), of(&other).mac(), "they end alike");
        assert_eq!(of(&one), of(&["2001:db8::1"]), "a link-local one is of many links");
        assert_ne!(of(&["fe80::1"]), of(&["fe80::2"]));
        assert!(of(&one).ip.octets()[0] >= 240);
        assert_eq!(of(&["fe80::1", "10.1.2.3"]).ip, Ipv4Addr::new(10, 1, 2, 3));
    }

    #[test]
    fn a_device_that_went_and_is_back_between_two_looks_was_gone() {
        let (link, now) = (UdpLink::Device("lo".into()), Instant::now());
        let found = machine::find(&link).unwrap();
        let device = Some(MachineDevice { index: found.index + 1, ..found.clone() });
        let cards = vec![Standing { card: 0, link, device, least: 1500 }];
        let (news, look) = (News::open().ok(), Duration::ZERO);
        let mut machine = OnMachine { cards, news, due: Some(now), look };
        machine.follow(now);
        let gone = machine.now(0, &[NO_GID]).unwrap();
        assert_eq!((gone.gids, gone.is_up), (vec![NO_GID], false));
        machine.follow(now + LATER);
        assert_eq!(machine.now(0, &[NO_GID]).unwrap().mtu, 5, "as long as any");
        assert_eq!(machine.cards[0].device, Some(found));
    }

    #[test]
    fn where_no_news_are_told_the_machine_is_looked_at_every_second() {
        let now = Instant::now();
        let (link, device) = (UdpLink::Device("lo".into()), None);
        let cards = vec![Standing { card: 0, link, device, least: 1500 }];
        let look = Duration::ZERO;
        let mut machine = OnMachine { cards, news: None, due: Some(now), look };
        machine.follow(now);
        assert!(machine.now(0, &[NO_GID]).unwrap().is_up, "it is there");
        machine.cards[0].device = None;
        machine.follow(now + UNTOLD / 2);
        assert!(!machine.now(0, &[NO_GID]).unwrap().is_up);
        assert_eq!(machine.patience(now), Some(UNTOLD));
        machine.follow(now + UNTOLD);
        assert!(machine.now(0, &[NO_GID]).unwrap().is_up);
        assert_eq!(machine.patience(now), Some(2 * UNTOLD));
    }

    #[test]
    fn what_contradicts_the_machines_addresses_is_refused() {
        let card = |link: &str| SoftCard { link: link.parse().unwrap(), ..SoftCard::default() };
        let refused = |cards: &[SoftCard], shadow, ip: Option<u32>| {
            check(cards, shadow, |card| ip == Some(card)).unwrap_err()
        };
        let one = [card("udp:lo")];
        assert!(check(&one, false, |_| false).is_ok());
        assert!(refused(&one, true, None).contains("leave --shadow out"));
        assert!(refused(&one, false, Some(0)).contains("leave --ip out"));
        assert!(refused(&[card("udp"), card("udp")], false, None).contains("one card's"));
        assert!(check(&[card("udp:127.0.0.1"), card("udp:127.0.0.2")], false, |_| false).is_ok());
    }
}
