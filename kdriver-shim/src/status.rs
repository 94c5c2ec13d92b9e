//! The state of balboad as JSON, for the commands of `balboa`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bitstreams::EngineKind;
use card_driver::address::{PortAddress, gid_text, text as address_text};
use card_driver::backend::{GrantKind, Takes};
use card_driver::device::NUMBERS;
use card_driver::engine::EngineLimits;
use fpga_regs::engine::qp::{Attributes, QpType};
use fpga_regs::engine::window::{DOORBELL_PAGES, VERSION_MAJOR, VERSION_MINOR};
use fpga_regs::port::IcrcPolicy;
use host_view::shadow_device::ShadowDevices;
use hostmem::netdev::mac_text;
use hostmem::{Access, SharedMapping, memfd};
use serde::Serialize;
use serde_json::{Map, Value};
use services::{About, Attached, Loaded, Selector, Side};

use crate::cards::{Card, Quarantine, Window, find};
use crate::clients::{CardUse, Client, Stage};
use crate::cm::{Census, ConnectionManager};
use crate::error::Error;
use crate::events::Clients;
use crate::images::record::{FlashEvent, ImageName};
use crate::listeners::ObjectCount;
use crate::process::ClientId;
use crate::quota::Resource;
use crate::session::qos::told;

/// Version of the document: a field is only added under the same number.
const FORMAT: u32 = 1;
/// QPs of a client that are listed one by one, at most and at least, and of all clients together: where
/// there are more, each client's first ones are.
const LISTED_OF_CLIENT: usize = 1024;
const LISTED_AT_LEAST: usize = 16;
const LISTED_IN_ALL: usize = 2048;

/// The connection manager's messages, in the order of their numbers.
const MESSAGES: [&str; cm::MESSAGES] =
    ["req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"];

/// QPs that the engines are asked for in one turn.
const ASKED: usize = 8;

#[derive(Serialize)]
struct Status {
    format: u32,
    version: &'static str,
    /// Version of the card contract that balboad was built for.
    contract: String,
    pid: u32,
    uid: u32,
    state_dir: String,
    cards: Vec<CardStatus>,
    clients: Vec<ClientStatus>,
    connections: ConnectionsStatus,
}

/// The objects of the connection manager, of all clients, and its counters.
#[derive(Serialize)]
struct ConnectionsStatus {
    channels: usize,
    identifiers: usize,
    listeners: usize,
    ports: usize,
    joins: usize,
    /// Connections and resolutions that programs have.
    held: usize,
    /// Connections that end without a program.
    lingering: usize,
    counters: Map<String, Value>,
}

#[derive(Serialize)]
struct CardStatus {
    card: u32,
    name: String,
    board: String,
    firmware: String,
    location: String,
    /// Name of the bitstream or image, by its manifest.
    image: String,
    /// Its images, and their history.
    flash: FlashStatus,
    /// The driver of the logic in its vFPGAs.
    engine: &'static str,
    /// The way between balboad and the card.
    driver: &'static str,
    /// Why it did not come up, so that it has no engine; null otherwise.
    failure: Option<String>,
    interface: String,
    link: String,
    /// The machine's network device that it stands on, if it does.
    netdev: Option<String>,
    link_up: bool,
    /// The received frames whose ICRC is checked; null if it is not known.
    icrc_checked: Option<&'static str>,
    /// Its reaction to congestion, as balboad's option has it; null if it is not known.
    congestion: Option<String>,
    /// The objects without protection, where the bitstream is one as published.
    unprotected: &'static [&'static str],
    ip: String,
    mac: String,
    /// The GIDs by their index; null where there is none.
    gids: Vec<Option<String>>,
    /// The VLAN that each is in; 0 for none.
    gid_vlans: Vec<u16>,
    shadow: Option<ShadowStatus>,
    max_mtu: u32,
    active_mtu: u32,
    trust: &'static str,
    client_limits: Map<String, Value>,
    windows: Vec<WindowStatus>,
    counters: Map<String, Value>,
    /// The settings of its port's priorities; null where nothing has queues for them.
    qos: Option<shim_abi::Qos>,
    /// The abilities of its transport's services, and the attached ones; null where the card can have no services.
    services: Option<ServicesStatus>,
    quarantine: QuarantineStatus,
}

/// Services on the path of a card's packets.
#[derive(Serialize)]
struct ServicesStatus {
    available: Vec<ServiceStatus>,
    attached: Vec<AttachedStatus>,
}

/// A service that can be attached.
#[derive(Serialize)]
struct ServiceStatus {
    name: String,
    summary: String,
    /// It is a user's.
    loaded: bool,
}

/// Services that are attached.
#[derive(Serialize)]
struct AttachedStatus {
    /// The selector, as a person reads it: a queue pair, a process, a peer, a DSCP.
    to: String,
    /// The queue pair's number, where it is one.
    qpn: Option<u32>,
    /// The process, where it is one.
    pid: Option<u32>,
    /// The peer's address, where it is one.
    peer: Option<String>,
    /// The DSCP, where it is one.
    dscp: Option<u8>,
    services: Vec<String>,
    /// The ends of messages at which they stand: `both`, `requester` or `responder`.
    side: &'static str,
    /// They are detached, and stay for messages that had begun.
    leaving: bool,
    /// The program of the queue pair asked for them.
    asked: bool,
    /// Queue pairs that have them.
    count: usize,
    /// The first of those.
    queue_pairs: Vec<ServedStatus>,
    /// Since they were attached.
    counters: Map<String, Value>,
}

/// A queue pair that has services.
#[derive(Serialize)]
struct ServedStatus {
    qpn: u32,
    /// Since it was connected.
    counters: Map<String, Value>,
}

/// The state of a card's images.
#[derive(Serialize)]
struct FlashStatus {
    /// The kind of image that it takes.
    takes: &'static str,
    /// Its part, as a manifest says; null otherwise, for the card does not tell.
    part: Option<&'static str>,
    /// vFPGAs that it had when it was up last; null where it was not.
    regions: Option<u64>,
    current: Option<ImageName>,
    /// Whether it described itself as before the image, and was not observed to have it.
    unseen: bool,
    previous: Option<ImageName>,
    /// The image that is being loaded.
    writing: Option<ImageName>,
    /// Why it needs to be flashed again.
    needs: Option<String>,
    /// The vFPGAs that need to be flashed again, and why, where the others are well.
    vfpgas: BTreeMap<u8, String>,
    /// The oldest first.
    history: Vec<FlashEvent>,
    /// vFPGAs that its shell has room for.
    room: u8,
    /// The logic that may be in them, and has a driver here.
    logic: Vec<String>,
}

/// Resources that are never used again because the card did not confirm that it is done with them.
#[derive(Serialize)]
struct QuarantineStatus {
    queues: u64,
    keys: u64,
    iova_bytes: u64,
    pages: u64,
}

/// The device that the kernel shows of a card.
#[derive(Serialize)]
struct ShadowStatus {
    /// Name of its network device.
    netdev: String,
    /// Name of its RDMA device.
    rdma_device: String,
    /// Why programs do not find it, or do not get our provider for it.
    trouble: Option<String>,
}

#[derive(Serialize)]
struct WindowStatus {
    window: u8,
    dead: Option<String>,
    /// Doorbell pages for programs.
    pages: usize,
    free_pages: usize,
    /// Programs beyond those that can be relayed.
    relays: usize,
    free_relays: usize,
    completion_queues: usize,
    queue_pairs: usize,
    shared_receive_queues: usize,
    /// Bits of a QPN below the window's number, and those of them that nobody can guess; 0 where the engine does not say.
    qpn_bits: u8,
    qpn_random: u8,
}

#[derive(Serialize)]
struct ClientStatus {
    pid: i32,
    uid: u32,
    command: String,
    role: &'static str,
    places: Vec<PlaceStatus>,
    usage: Map<String, Value>,
    queue_pairs: Vec<QpStatus>,
}

#[derive(Serialize)]
struct PlaceStatus {
    card: u32,
    window: u8,
    page: u8,
    grant: &'static str,
    /// It has the card open; otherwise it keeps its place for the next time.
    open: bool,
    /// Bytes kept for work of the client's under way there; null where the card keeps them itself.
    under_way_bytes: Option<u64>,
    /// The client's use of the card; its own `usage` is that of all cards, and of resources that belong to none.
    usage: Map<String, Value>,
}

#[derive(Serialize)]
struct QpStatus {
    qpn: u32,
    card: u32,
    transport: String,
    state: String,
    dest_qpn: u32,
    dest_gid: String,
    send_cqn: u32,
    receive_cqn: u32,
    /// Bytes of its path MTU; 0 where the engine was not asked.
    path_mtu: u32,
    /// The PSN that it sends next, and the one that it expects next.
    sq_psn: u32,
    rq_psn: u32,
}

/// The engines' answers about the QPs to list, asked for by turns.
#[derive(Debug)]
pub struct Survey {
    /// Tools for which it is made, which it does not list.
    tools: BTreeSet<ClientId>,
    left: VecDeque<(ClientId, u32)>,
    found: BTreeMap<ClientId, BTreeMap<u32, Option<Attributes>>>,
}

impl Survey {
    /// A survey of the present QPs, for the clients that ask.
    #[must_use]
    pub fn new(clients: &Clients, askers: &[ClientId]) -> Self {
        let is_tool = |id: &&ClientId| clients.get(id).is_some_and(|it| it.stage == Stage::Tool);
        let tools = askers.iter().filter(is_tool).copied().collect();
        let owners = clients.values().filter(|client| !client.owned.qps.is_empty());
        let share = LISTED_IN_ALL.checked_div(owners.clone().count()).unwrap_or(0);
        let share = share.clamp(LISTED_AT_LEAST, LISTED_OF_CLIENT);
        let listed = |client: &Client| {
            let id = client.id;
            client.owned.qps.keys().take(share).map(move |qpn| (id, *qpn)).collect::<Vec<_>>()
        };
        Self { tools, left: owners.flat_map(listed).collect(), found: BTreeMap::new() }
    }

    /// Asks for some of them; whether those were the last.
    pub fn go_on(&mut self, cards: &mut [Card], clients: &Clients) -> bool {
        for _ in 0..ASKED {
            let Some((id, qpn)) = self.left.pop_front() else { break };
            let Some(client) = clients.get(&id) else { continue };
            let Some(qp) = client.owned.qps.get(&qpn) else { continue };
            let window = client.owned.places.get(&qp.card).map_or(0, |place| place.window);
            let window = find(cards, qp.card).and_then(|card| card.window(window));
            let now = window.ok().and_then(|window| window.engine.query_qp(qpn).ok());
            self.found.entry(id).or_default().insert(qpn, now);
        }
        self.left.is_empty()
    }
}

/// Writes the state as JSON.
#[must_use]
pub fn text(
    state_dir: &Path,
    uid: u32,
    cards: &mut [Card],
    clients: &Clients,
    survey: &Survey,
    shadow: Option<&ShadowDevices>,
    connections: &ConnectionManager,
) -> String {
    let client = |client: &Client| client_status(client, cards, survey, connections);
    let listed = clients.values().filter(|client| !survey.tools.contains(&client.id));
    let clients = listed.map(client).collect();
    let there = cards.iter_mut().filter(|card| card.is_there());
    let status = Status {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        contract: format!("{VERSION_MAJOR}.{VERSION_MINOR}"),
        pid: std::process::id(),
        uid,
        state_dir: state_dir.display().to_string(),
        connections: connections_status(connections),
        clients,
        cards: there.map(|card| card_status(card, shadow)).collect(),
    };
    // Maps with text keys and plain values always have a JSON form.
    serde_json::to_string_pretty(&status)
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// Puts a text into a memfd that the receiver can only read.
///
/// # Errors
/// [`Error::Memory`] when the memfd cannot be made.
pub fn to_memfd(text: &str) -> Result<OwnedFd, Error> {
    let fd = memfd::create("balboad-status", text.len())?;
    let mapping = SharedMapping::new(fd.as_fd(), 0, text.len(), Access::ReadWrite)?;
    mapping.write_bytes(0, text.as_bytes())?;
    Ok(fd)
}

fn services_status(loaded: &Loaded, attached: Vec<Attached>) -> ServicesStatus {
    let told = |loaded: bool| {
        move |about: About| {
            let (name, summary) = (about.name.into_owned(), about.summary.into_owned());
            ServiceStatus { name, summary, loaded }
        }
    };
    let available = services::natives().map(told(false)).chain(loaded.abouts().map(told(true)));
    let named = |counters: services::Counters| {
        counters.named().map(|(name, value)| (name.into(), value.into())).into_iter().collect()
    };
    let attached = attached.into_iter().map(|it| {
        let (mut qpn, mut pid, mut peer, mut dscp) = (None, None, None, None);
        match it.selector {
            Selector::Qp(number) => qpn = Some(number),
            Selector::Process(number) => pid = Some(number),
            Selector::Peer(address) => peer = Some(address_text(address)),
            Selector::Dscp(number) => dscp = Some(number),
        }
        let served = |(qpn, counters)| ServedStatus { qpn, counters: named(counters) };
        AttachedStatus {
            to: it.selector.to_string(),
            qpn,
            pid,
            peer,
            dscp,
            services: it.chain,
            side: match it.side {
                Side::Both => "both",
                Side::Requester => "requester",
                Side::Responder => "responder",
            },
            leaving: it.is_leaving,
            asked: it.is_asked,
            count: it.connections.len(),
            queue_pairs: it.connections.into_iter().take(LISTED_OF_CLIENT).map(served).collect(),
            counters: named(it.counters),
        }
    });
    ServicesStatus { available: available.collect(), attached: attached.collect() }
}

fn card_status(card: &mut Card, shadow: Option<&ShadowDevices>) -> CardStatus {
    let shadow = shadow.and_then(|shadow| {
        let name = shadow.name_of(card.device.number)?.to_owned();
        let trouble = shadow.trouble_of(card.device.number);
        Some(ShadowStatus { netdev: name.clone(), rdma_device: name, trouble })
    });
    let info = card.info();
    let engine =
        card.device.windows.first().map(|window| *window.engine.limits()).unwrap_or_default();
    let limits = Resource::all().map(|r| (snake(r.name()), r.limit(&engine).into()));
    let mut limits: Map<String, Value> = limits.collect();
    limits.insert("under_way_bytes".into(), card.device.backend.under_way_limit().into());
    let counters =
        card.device.counters().into_iter().map(|(name, value)| (name, value.into())).collect();
    let Quarantine { queues, keys, pages } = card.quarantine;
    let iova_bytes = card.device.arena.lost_bytes();
    let quarantine = QuarantineStatus { queues, keys, iova_bytes, pages };
    CardStatus {
        unprotected: match card.device.manifest.engine {
            EngineKind::Vqe => &[],
            EngineKind::Stock => &UNPROTECTED,
        },
        card: card.device.number,
        name: info.name,
        board: info.board,
        firmware: info.firmware,
        location: card.device.identity.location.clone(),
        image: match (&card.record.needs, &card.failure) {
            (Some(_), _) => "none".into(),
            // It did not say that it is the one that it is to have.
            (None, Some(_)) => "not known".into(),
            (None, None) => card.device.manifest.name.clone(),
        },
        flash: flash_status(card),
        engine: match card.device.manifest.engine {
            EngineKind::Vqe => "vqe",
            EngineKind::Stock => "stock",
        },
        driver: match card.device.backend.grant_kind() {
            GrantKind::Page => "softcard",
            GrantKind::Device => "vfio-pci",
        },
        failure: card.failure.clone(),
        interface: card.device.identity.interface.clone(),
        link: card.device.identity.link.clone(),
        netdev: card.on_machine.clone(),
        link_up: info.port.link_up,
        icrc_checked: card.device.identity.icrc_policy.map(icrc_checked),
        congestion: card.device.identity.congestion.clone(),
        ip: first_ipv4(&info.port.gids, card.device.address),
        mac: mac_text(info.port.mac),
        gid_vlans: {
            let shown = gid_texts(&info.port.gids).len();
            info.port.vlans.iter().copied().take(shown).collect()
        },
        gids: gid_texts(&info.port.gids),
        shadow,
        max_mtu: mtu_bytes(info.port.max_mtu),
        active_mtu: mtu_bytes(info.port.active_mtu),
        trust: match card.device.backend.grant_kind() {
            GrantKind::Page => "isolated: every process has doorbells and rings of its own",
            GrantKind::Device => "one domain: every process is given the card itself",
        },
        client_limits: limits,
        windows: card.windows().map(window_status).collect(),
        counters,
        qos: card.device.backend.qos().ok().as_ref().map(told),
        services: {
            let attached = card.device.backend.services();
            attached.map(|attached| services_status(&card.loaded, attached))
        },
        quarantine,
    }
}

fn flash_status(card: &Card) -> FlashStatus {
    FlashStatus {
        takes: match card.device.backend.takes() {
            Takes::SoftImages => "software cards' images",
            Takes::Bitstreams => "bitstreams",
        },
        part: card.device.manifest.part.map(|part| part.name),
        regions: card.device.said.as_ref().map(|it| it.regions),
        unseen: card.record.unseen,
        current: card.record.current.as_ref().map(ImageName::told),
        previous: card.record.previous.as_ref().map(ImageName::told),
        writing: card.record.writing.as_ref().map(|it| it.image.told()),
        needs: card.record.needs.clone(),
        vfpgas: card.record.vfpgas.clone(),
        history: card.record.history.clone(),
        room: softcard::WINDOWS,
        logic: softcard::logic::names(),
    }
}

/// The protections that a published bitstream lacks.
const UNPROTECTED: [&str; 4] = [
    "keys on the link: without the tunnel, anybody who sends to a QP's number reaches each page of memory that the QP has for its peer or has used",
    "rights: such a page can be read and written, with any rights of its region",
    "frames: neither the ICRC nor the source of one is looked at",
    "the card: one frame of an unknown kind, lost, or to a wrong number, may stop it for all until `balboa reset`",
];

/// The frames whose ICRC is checked, in words.
fn icrc_checked(policy: IcrcPolicy) -> &'static str {
    match policy {
        IcrcPolicy::CheckAll => "every frame",
        // Vouched for are those of cards of this process, by the switch between them.
        IcrcPolicy::TrustVouchedFor => "frames from outside this balboad",
    }
}

fn window_status(window: Window<'_>) -> WindowStatus {
    let ObjectCount { cqs, qps, srqs } = window.users.listeners.count();
    let [pages, relays] = window.users.places();
    let [free_pages, free_relays] = window.users.free();
    let EngineLimits { qpn_bits, qpn_random, .. } = *window.engine.limits();
    WindowStatus {
        window: window.index,
        dead: window.engine.death().map(str::to_owned),
        pages,
        free_pages,
        relays,
        free_relays,
        completion_queues: cqs,
        queue_pairs: qps,
        shared_receive_queues: srqs,
        qpn_bits,
        qpn_random,
    }
}

fn place_status(
    number: u32,
    place: &CardUse,
    client: &Client,
    cards: &[Card],
) -> Option<PlaceStatus> {
    // The remains of a card that was reset are no card.
    let mut there = cards.iter().filter(|card| card.is_there());
    let card = there.find(|card| card.device.number == number)?;
    let grant = match card.device.backend.grant_kind() {
        GrantKind::Page if place.page > DOORBELL_PAGES => "relay",
        GrantKind::Page => "page",
        GrantKind::Device => "device",
    };
    let CardUse { window, page, .. } = *place;
    let under_way_bytes = card.device.backend.under_way(window, page);
    let used = Resource::all()
        .map(|r| (r, client.usage.on(Some(number), r)))
        .filter(|(_, used)| *used > 0);
    let usage = used.map(|(r, used)| (snake(r.name()), used.into())).collect();
    let open = client.has_open(number);
    Some(PlaceStatus { card: number, window, page, grant, open, under_way_bytes, usage })
}

fn connections_status(connections: &ConnectionManager) -> ConnectionsStatus {
    let Census { channels, identifiers, listeners, ports, joins, connections: held, lingering } =
        connections.census();
    let counted = connections.counters();
    let by_message = [("received", &counted.received), ("sent", &counted.sent)];
    let by_message = by_message.into_iter().flat_map(|(way, counts)| {
        MESSAGES.iter().zip(counts).map(move |(name, count)| (format!("{way}_{name}"), *count))
    });
    let others = [
        ("repeated", counted.repeated),
        ("refused", counted.refused),
        ("drop_malformed", counted.drop_malformed),
        ("drop_unknown", counted.drop_unknown),
        ("drop_state", counted.drop_state),
        ("drop_backlog", counted.drop_backlog),
        ("drop_presence", counted.drop_presence),
        ("cut_short", counted.cut_short),
    ];
    let others = others.into_iter().map(|(name, count)| (name.to_owned(), count));
    let counters = by_message.chain(others).map(|(name, count)| (name, count.into())).collect();
    ConnectionsStatus { channels, identifiers, listeners, ports, joins, held, lingering, counters }
}

fn client_status(
    client: &Client,
    cards: &[Card],
    survey: &Survey,
    connections: &ConnectionManager,
) -> ClientStatus {
    let of_connections = connections.usage(client.id);
    let used = |resource| {
        let here = client.usage.of(resource);
        here.saturating_add(of_connections.map_or(0, |usage| usage.of(resource)))
    };
    let places: Vec<_> = client
        .owned
        .places
        .iter()
        .filter_map(|(&card, place)| place_status(card, place, client, cards))
        .collect();
    let found = survey.found.get(&client.id).into_iter().flatten();
    let queue_pairs = found.filter_map(|(qpn, now)| {
        let qp = client.owned.qps.get(qpn).filter(|qp| qp.card < NUMBERS)?;
        Some(QpStatus {
            qpn: *qpn,
            card: qp.card,
            transport: format!("{:?}", QpType(qp.kind)).to_uppercase(),
            state: format!("{:?}", now.map_or(qp.state, |now| now.state)).to_uppercase(),
            dest_qpn: now.map_or(0, |now| now.dest_qpn),
            dest_gid: gid_text(now.map_or([0; 16], |now| now.dgid)),
            send_cqn: qp.send_cqn,
            receive_cqn: qp.receive_cqn,
            path_mtu: now.map_or(0, |now| mtu_bytes(now.path_mtu)),
            sq_psn: now.map_or(0, |now| now.sq_psn),
            rq_psn: now.map_or(0, |now| now.rq_psn),
        })
    });
    ClientStatus {
        pid: client.process.pid,
        uid: client.process.uid,
        command: client.process.command.clone(),
        role: match client.stage {
            Stage::Greeting | Stage::Examined => "greeting",
            Stage::Provider => "provider",
            Stage::Tool => "tool",
            Stage::Ending => "ending",
        },
        places,
        usage: Resource::all().map(|r| (snake(r.name()), used(r).into())).collect(),
        queue_pairs: queue_pairs.collect(),
    }
}

/// The first IPv4 address, with its prefix where that is known; nothing where there is none.
fn first_ipv4(gids: &[[u8; 16]], given: PortAddress) -> String {
    let first = gids.iter().find_map(|gid| Ipv6Addr::from(*gid).to_ipv4_mapped());
    match first {
        Some(ip) if ip == given.ip => format!("{ip}/{}", given.prefix),
        Some(ip) => ip.to_string(),
        None => String::new(),
    }
}

/// GIDs up to the last that there is.
fn gid_texts(gids: &[[u8; 16]]) -> Vec<Option<String>> {
    let text = |gid: &[u8; 16]| (*gid != [0; 16]).then(|| gid_text(*gid));
    let mut texts: Vec<_> = gids.iter().map(text).collect();
    while texts.last().is_some_and(Option::is_none) {
        texts.pop();
    }
    texts
}

/// A resource's name as a JSON key.
fn snake(name: &str) -> String {
    name.replace(' ', "_")
}

/// Bytes of an `ibv_mtu`; 0 where it is none.
pub fn mtu_bytes(mtu: u8) -> u32 {
    if mtu == 0 { 0 } else { 128u32.checked_shl(u32::from(mtu)).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_of_the_status_reads_the_text_and_no_more() {
        let fd = to_memfd("{\"a\":1}").unwrap();
        let mut buffer = [0; 64];
        let length = nix::unistd::read(&fd, &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"{\"a\":1}");
    }

    #[test]
    fn gids_keep_their_index_where_one_before_them_is_gone() {
        let mut table = [[0; 16]; 16];
        table[2] = [1; 16];
        let texts = gid_texts(&table);
        assert_eq!((texts.len(), &texts[0]), (3, &None));
        assert!(texts[2].is_some());
        assert!(gid_texts(&[[0; 16]; 16]).is_empty());
    }

    #[test]
    fn the_ip_address_is_one_that_the_port_has() {
        let given = PortAddress::default_of(0);
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let (link_local, other) = (ip("fe80::1"), ip("::ffff:10.1.2.3"));
        assert_eq!(first_ipv4(&given.gids(), given), "10.77.0.1/24");
        assert_eq!(first_ipv4(&[link_local, [0; 16], other], given), "10.1.2.3");
        assert_eq!(first_ipv4(&[link_local], given), "");
    }

    #[test]
    fn an_mtu_code_becomes_bytes() {
        assert_eq!([1, 3, 5].map(mtu_bytes), [256, 1024, 4096]);
        assert_eq!([0, 200].map(mtu_bytes), [0, 0]);
    }
}
