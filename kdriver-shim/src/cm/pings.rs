//! Hosts that answer `balboa ping`: a card looks for the address on its link, and the connection manager that it finds
//! there is asked once.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant as Clock};

use card_driver::gsi::GsiAddress;
use cm::presence::Presence;
use cm::wire::SidrStatus;
use cm::{Address, EventKind, Id, Instant, Owner, Path, Route, param};
use shim_abi::{Pinged, Who};

use super::network::{self, Local, Network};
use super::search::after;
use super::{ConnectionManager, owner, party, refused, refused_by};
use crate::error::Error;
use crate::process::ClientId;
use nix::errno::Errno;

/// Questions at a time, of all tools.
const MOST: usize = 64;
/// When the card is asked for the second time whether it has found the address; from then on each time takes twice as
/// long, for each is a command that others wait behind.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);
/// How long it looks for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The code of how long a peer may take to answer, beside the way there and back: 0.5 s.
const RESPONSE_TIMEOUT: u8 = 17;

/// The questions, by their clients, and the answers that were not given yet.
#[derive(Debug, Default)]
pub struct Pings {
    asked: BTreeMap<ClientId, Ping>,
    answered: VecDeque<(ClientId, Pinged)>,
}

#[derive(Debug)]
struct Ping {
    local: Local,
    path: Path,
    stage: PingStage,
}

#[derive(Debug)]
enum PingStage {
    /// The card looks for the address.
    Looked { at: Instant, interval: Duration, until: Instant },
    /// The connection manager there was asked.
    Asked { id: Id, since: Clock },
}

impl ConnectionManager {
    /// Sets the description that other balboads get when they ask.
    pub fn set_presence(&mut self, version: &str, flags: u8) {
        self.manager.set_presence(version, flags);
    }

    /// Asks for a tool which host has an address, by a card or by the one in whose network it is. The answer is one of
    /// [`Self::pinged`].
    ///
    /// # Errors
    /// Where no card can ask there, or too much is asked.
    pub fn ping(
        &mut self,
        network: &mut dyn Network,
        client: ClientId,
        card: Option<u32>,
        gid: [u8; 16],
    ) -> Result<(), Error> {
        if self.pings.asked.len() >= MOST {
            return Err(refused(
                Errno::EAGAIN,
                format!("{MOST} others ask at the moment; try again later"),
            ));
        }
        let remote = Address::untagged(gid.into());
        let ip = remote.ip();
        // A card may stand on the machine's own loopback network.
        let addresses = network.addresses();
        let is_near = ip.is_loopback() && !addresses.iter().any(|it| it.address.ip().is_loopback());
        if ip.is_unspecified() || is_near || ip.is_multicast() {
            return Err(refused(Errno::EINVAL, format!("{ip} is the address of no card")));
        }
        let local = source(&addresses, card, ip)?;
        let mtu = network.port(local.card).map_or(1, |port| port.mtu);
        let remote = Address { vlan: local.address.vlan, ..remote };
        let route = Route::between(local.card, local.address, remote);
        let now = self.now();
        let (interval, until) = (FIRST_INTERVAL, after(now, PATIENCE));
        let stage = PingStage::Looked { at: now, interval, until };
        let ping = Ping { local, path: Path::along(route, mtu, 0), stage };
        self.look_for_peer(network, now, client, ping);
        self.flush(network);
        Ok(())
    }

    /// An answered question, and its client.
    pub fn pinged(&mut self) -> Option<(ClientId, Pinged)> {
        self.pings.answered.pop_front()
    }

    /// When the next question goes on.
    pub(super) fn next_ping(&self) -> Option<Instant> {
        let due = |ping: &Ping| match ping.stage {
            PingStage::Looked { at, .. } => Some(at),
            PingStage::Asked { .. } => None,
        };
        self.pings.asked.values().filter_map(due).min()
    }

    /// Goes on with questions whose time it is.
    pub(super) fn go_on_pinging(&mut self, network: &mut dyn Network, now: Instant) {
        if self.next_ping().is_none_or(|at| at > now) {
            return;
        }
        let due = |(client, ping): (&ClientId, &Ping)| match ping.stage {
            PingStage::Looked { at, .. } if at <= now => Some(*client),
            _ => None,
        };
        let due: Vec<_> = self.pings.asked.iter().filter_map(due).collect();
        for client in due {
            if let Some(ping) = self.pings.asked.remove(&client) {
                self.look_for_peer(network, now, client, ping);
            }
        }
        self.flush(network);
    }

    fn look_for_peer(
        &mut self,
        network: &dyn Network,
        now: Instant,
        client: ClientId,
        mut ping: Ping,
    ) {
        let PingStage::Looked { interval, until, .. } = ping.stage else { return };
        if is_found(network, client, &ping) {
            let asked = self.manager.ask_presence(now, owner(client), ping.path, RESPONSE_TIMEOUT);
            match asked {
                Ok(id) => ping.stage = PingStage::Asked { id, since: Clock::now() },
                Err(error) => {
                    log::debug!("nobody is asked who is there: {}", refused_by(error));
                    return self.answer_ping(client, &ping, Who::Silent, Duration::ZERO);
                }
            }
        } else if now >= until {
            return self.answer_ping(client, &ping, Who::Nobody, Duration::ZERO);
        } else {
            let at = after(now, interval).min(until);
            ping.stage = PingStage::Looked { at, interval: interval.saturating_mul(2), until };
        }
        self.pings.asked.insert(client, ping);
    }

    /// Takes the manager's event of a question; whether it is one's.
    pub(super) fn hear_ping(&mut self, by: Owner, id: Id, kind: &EventKind) -> bool {
        let client = ClientId(by.0);
        let of = |ping: &mut Ping| match ping.stage {
            PingStage::Asked { id: asked, since } => (asked == id).then_some(since),
            PingStage::Looked { .. } => None,
        };
        let Some(since) = self.pings.asked.get_mut(&client).and_then(of) else { return false };
        let Some(ping) = self.pings.asked.remove(&client) else { return false };
        let who = match kind {
            EventKind::Resolved(it) => match Presence::parse(&it.private_data) {
                Some(Presence { version, mtu, flags }) if it.status == SidrStatus::VALID => {
                    Who::Balboad { version, mtu, flags }
                }
                _ => Who::Other { status: it.status.0 },
            },
            _ => Who::Silent,
        };
        let _ = self.manager.destroy(self.now(), id);
        self.answer_ping(client, &ping, who, since.elapsed());
        true
    }

    fn answer_ping(&mut self, client: ClientId, ping: &Ping, who: Who, after: Duration) {
        let nanoseconds = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let Local { card, address, .. } = ping.local;
        let pinged = Pinged { card, source: address.gid.octets(), who, nanoseconds };
        self.pings.answered.push_back((client, pinged));
    }

    /// Forgets the question of a client.
    pub(super) fn end_ping(&mut self, client: ClientId) {
        if let Some(Ping { stage: PingStage::Asked { id, .. }, .. }) =
            self.pings.asked.remove(&client)
        {
            let _ = self.manager.destroy(self.now(), id);
        }
        self.pings.answered.retain(|(asker, _)| *asker != client);
    }
}

/// The address to ask from.
fn source(addresses: &[Local], card: Option<u32>, to: std::net::IpAddr) -> Result<Local, Error> {
    let own = |local: &&Local| card.is_none_or(|card| local.card == card);
    let addresses: Vec<Local> = addresses.iter().filter(own).copied().collect();
    if addresses.is_empty() {
        return Err(refused(
            Errno::ENODEV,
            match card {
                Some(card) => format!(
                    "there is no balboa{card} with a connection manager here; that of a card which the kernel shows (--shadow) is the kernel's"
                ),
                None => "no card here has a connection manager; that of cards which the kernel shows (--shadow) is the kernel's".into(),
            },
        ));
    }
    let found = network::route(&addresses, to);
    // A card that was named asks on its link for any address.
    let found = found.or_else(|| card.and_then(|_| network::first(&addresses, to)));
    found.ok_or_else(|| {
        refused(
            Errno::ENETUNREACH,
            format!("{to} is in the network of no card, or of several: name one with --card"),
        )
    })
}

/// Whether the card knows where the address is; one of its own it need not look for.
fn is_found(network: &dyn Network, client: ClientId, ping: &Ping) -> bool {
    let (local, remote) = (ping.local, ping.path.route.remote);
    if remote == local.address {
        return true;
    }
    let Some(sgid_index) = network.index(local.card, local.address) else { return false };
    let (hop_limit, traffic_class, flow_label, sl) = (param::HOP_LIMIT, 0, 0, 0);
    let dgid = remote.gid.octets();
    let to = GsiAddress { sgid_index, dgid, hop_limit, traffic_class, flow_label, sl };
    network.find(local.card, party(Some(owner(client))), &to)
}
