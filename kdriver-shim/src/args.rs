//! The command line.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use bitstreams::{EngineKind, Manifest, MapName, Mends};
use card_driver::address::PortAddress;
use card_driver::soft::SoftCard;
use clap::{ArgAction, Parser};
use psp::Version;
use softcard::{Congestion, FaultSpec, Image, Link, UdpOptions};
use terminal::Shell;
use vfio::PciAddress;

use crate::key_source::{KeySource, PspPort};
use crate::machine;
use crate::metrics::Endpoint;

/// Most software cards one balboad runs.
pub const MAX_CARDS: u32 = 16;

/// Exit codes, as `--help` documents them.
pub mod exit {
    /// Ended by a signal, or the configuration is well.
    pub const OK: u8 = 0;
    /// A card, the state directory or the kernel failed.
    pub const FAILURE: u8 = 1;
    /// Wrong arguments.
    pub const USAGE: u8 = terminal::USAGE;
    /// Another balboad serves the state directory.
    pub const RUNNING: u8 = 3;
}

const AFTER_HELP: &str = "\
balboad prints one line, `ready`, to standard output once it serves verbs programs; its log goes to
standard error. SIGTERM and SIGINT end balboad. SIGHUP makes a balboad with --config read its file
again, and ends others: verbose and metrics change at once; the log names other changed options,
which take effect when balboad is started again.

The file of --config is TOML: names of options without dashes before them (soft = 2), lists for those
that may be given several times (ip = [\"1=10.0.0.2\"]). An option on the command line replaces
everything that the file says under its name.

A FAULT is one of loss=P%, dup=P%, reorder=P%, corrupt=P%, ecn=P% and delay=TIME or
delay=TIME..TIME, with P from 0 to 100 and times in ns, us or ms. The cable decides for each frame of
either direction anew: loss drops the frame, dup sends it twice, reorder holds it back until 1 to 8
later ones have come (1 ms at most), corrupt flips one bit behind the Ethernet header, ecn marks it
as having met congestion, delay holds it for that time. A frame from one card to another passes
the cables of both.

rate=10G makes a cable carry so many bits per second each way (M or G). The card sends no faster.
Frames that arrive faster wait at the far end, up to buffer=SIZE (bytes, k or M; 1M without it);
those beyond are dropped. ecn=KMIN:KMAX:P%, such as ecn=100k:400k:10%, then marks packets whose
sender understands marks by the bytes that wait there: none up to KMIN, P% at KMAX, all above. Cards
on the machine's own network (--port udp) have no rate.

--congestion sets the reaction of software cards' queue pairs to marks: off notifies peers and does
nothing else; dcqcn-paper and dcqcn-mlx5 make senders slow down, too. NAME=VALUE is np=off, which
stops notifications, line=RATE (that of the cable, else 100G), or a parameter of docs/congestion.md,
such as min_rate=10.

Exit codes: 0 ended by a signal, or --check-config found no fault; 1 a card, the state directory or
the kernel failed; 2 wrong arguments; 3 another balboad serves the state directory.";

/// Runs cards for verbs programs of this user: bring-up, resources, events.
#[derive(Clone, Debug, Parser)]
#[command(name = "balboad", version, after_help = AFTER_HELP)]
pub struct Args {
    /// Run N software cards, balboa0 to balboa(N-1), connected by a switch
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub soft: Option<CardCount>,
    /// Drive the card at this PCI address, which is bound to vfio-pci (balboa bind); may be given several times; these
    /// cards' numbers follow those of software cards
    #[arg(long = "vfio", value_name = "PCI-ADDRESS")]
    pub vfio: Vec<PciAddress>,
    /// Connect a software card's port, in place of the switch, to a pair of Unix datagram sockets, which must both be
    /// this user's, to a network device, or to the machine's own network, whose addresses the card then has (udp alone:
    /// those of the default route) (default card: 0)
    #[arg(
        long = "port",
        value_name = "[CARD=]unix:LOCAL,REMOTE|packet:DEVICE|udp[:DEVICE|ADDRESS]"
    )]
    pub ports: Vec<ForCard<Link>>,
    /// Accept, at cards on the machine's own network, datagrams of hosts that count IPv4 identifications up, as
    /// rdma_rxe does, or (strict) only those with the identification 0 and those of balboads [default: counted]
    #[arg(long, value_name = "counted|strict")]
    pub icrc: Option<Icrc>,
    /// Request at most KIB KiB of receive buffer, from 16 to 8192, for each address of cards on the machine's own network
    /// [default: 8192]
    #[arg(long, value_name = "KIB", allow_negative_numbers = true)]
    pub port_room: Option<PortRoom>,
    /// Give a card's port this address in place of 10.77.0.(CARD+1)/24 (default card: 0)
    #[arg(long = "ip", value_name = "[CARD=]A.B.C.D[/P]")]
    pub ips: Vec<ForCard<PortAddress>>,
    /// Show each software card in the kernel as a network device and an RDMA device of its name, by rdma_rxe: for the
    /// rdma tool, sysfs, ip addr and rdma_cm without balboa run
    #[arg(long)]
    pub shadow: bool,
    /// Describe the bitstream that a card holds by this manifest (default card: 0)
    #[arg(long = "manifest", value_name = "[CARD=]FILE")]
    pub manifests: Vec<ForCard<PathBuf>>,
    /// Give a software card's shell the register map of this time (default: since-2026)
    #[arg(long = "soft-map", value_name = "[CARD=]before-2026|since-2026")]
    pub maps: Vec<ForCard<MapName>>,
    /// Program a software card with a verbs queue engine (default), or as published: pass-through logic over a model of
    /// the published stack, for which balboad hosts the engine, with the shell's known faults mended (stock) or not
    /// (stock-old), or with the queue engine in RTL, simulated (rtl); without CARD, all of them
    #[arg(long = "soft-image", value_name = "[CARD=]vqe|stock|stock-old|rtl")]
    pub images: Vec<ForCards<Image>>,
    /// Have software cards notify peers of congestion (off), or also slow down when notified; without CARD, all of them
    /// [default: off]
    #[arg(long = "congestion", value_name = "[CARD=]off|dcqcn-paper|dcqcn-mlx5[,NAME=VALUE...]")]
    pub congestion: Vec<ForCards<Congestion>>,
    /// Seal all RoCE by PSP, for peers alone with which a key is shared, and take no other: a file of yours alone, or a
    /// credential of systemd's, each line a host's addresses, with commas between, and the 64 hexadecimal digits that its file
    /// has with this one's; for all software cards unless CARD is given
    #[arg(long = "psp-peers", value_name = "[CARD=]FILE|credential:NAME")]
    pub psp_peers: Vec<ForCards<KeySource>>,
    /// Seal by this algorithm, as the peers do: of those with gcm, which encrypt, or gmac, which authenticate alone [default:
    /// hdr0-aes-gcm-128]
    #[arg(
        long,
        value_name = "hdr0-aes-gcm-128|hdr0-aes-gcm-256|hdr0-aes-gmac-128|hdr0-aes-gmac-256"
    )]
    pub psp_version: Option<Version>,
    /// Send what is sealed to this UDP port, and take it there, as the peers do; with --port udp one below 1024 takes a
    /// privilege [default: 1000]
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub psp_port: Option<PspPort>,
    /// Have the software cards play FPGAs: they take bitstreams (balboa image make --bitstream), as FPGAs take shells, in
    /// place of software cards' images
    #[arg(long)]
    pub soft_fpga: bool,
    /// Carry operations that published bitstreams lack through a tunnel between such cards of this balboad (on), or
    /// refuse them (off) [default: off]
    #[arg(long, value_name = "on|off")]
    pub tunnel: Option<Tunnel>,
    /// Extend the tunnel to the cards of other balboads in this file, which nobody else may read: each line has a
    /// card's IPv4 address and 32 hexadecimal digits, which the file of that card's balboad has beside your card's
    /// address
    #[arg(long, value_name = "FILE")]
    pub tunnel_peers: Option<PathBuf>,
    /// Treat these peers of cards with a published bitstream as RNICs, not as such cards: a queue pair to them names
    /// one key, and sends WRITEs packet by packet
    #[arg(long, value_name = "A.B.C.D", value_delimiter = ',')]
    pub rnic_peers: Vec<Ipv4Addr>,
    /// Fail a queue pair of a card with a published bitstream when its peer is silent for MS milliseconds; before 400 the
    /// card still repeats [default: 500]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub watchdog: Option<PeerSilence>,
    /// Send one packet at a time on each queue pair of cards with a published bitstream, for cables that lose packets:
    /// a packet that follows a lost one shows a gap, which stops such cards
    #[arg(long)]
    pub lossy: bool,
    /// Add faults to every cable, or to card N's; may be given several times
    #[arg(long = "fault", value_name = "FAULT[,FAULT...][,card=N]")]
    pub faults: Vec<FaultSpec>,
    /// Write every frame of every card to a pcapng file: a new one, one of your own, which is
    /// replaced, or a FIFO of your own that is read; no link is followed
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Derive the faults of the n-th frame each way from this seed [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<Seed>,
    /// Serve in this directory [default: $BALBOA_STATE_DIR, else the user's run-time directory]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Serve counters to Prometheus at /metrics of a Unix socket (mode 0600), or of a loopback port
    #[arg(long, value_name = "unix:PATH|127.0.0.1:PORT")]
    pub metrics: Option<Endpoint>,
    /// Take options that are not given here from this file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the command line and the file [default: /etc/balboa/balboad.toml], and end
    #[arg(long)]
    pub check_config: bool,
    /// Print the script that completes this command line in a shell, and end
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
    /// Write the manual page to this directory, and end
    #[arg(long, value_name = "DIR", exclusive = true, hide = true)]
    pub manual: Option<PathBuf>,
    /// Log more, and repeated messages each time; twice: everything
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "u64")]
pub struct Within<const LEAST: u64, const MOST: u64>(u64);

/// The number of software cards.
pub type CardCount = Within<1, { MAX_CARDS as u64 }>;
/// KiB of receive buffer.
pub type PortRoom = Within<
    { (*UdpOptions::ROOMS.start() >> 10) as u64 },
    { (*UdpOptions::ROOMS.end() >> 10) as u64 },
>;
/// Milliseconds of a peer's silence.
pub type PeerSilence = Within<400, 600_000>;
/// The seed of faults.
pub type Seed = Within<0, { u64::MAX }>;

impl<const LEAST: u64, const MOST: u64> Within<LEAST, MOST> {
    /// The number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    fn mend() -> String {
        format!("write a whole number from {LEAST} to {MOST}")
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Within<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        (LEAST..=MOST).contains(&number).then_some(Self(number)).ok_or_else(Self::mend)
    }
}

impl<const LEAST: u64, const MOST: u64> FromStr for Within<LEAST, MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| Self::mend()).and_then(|number: u64| number.try_into())
    }
}

/// The fate of traffic that a published bitstream cannot carry: the tunnel, or a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// balboad refuses it.
    Off,
    /// The tunnel carries it.
    On,
}

impl FromStr for Tunnel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => Err("write on or off".into()),
        }
    }
}

/// The IPv4 identifications that a receiver believes, which the socket does not tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// Those of balboads, 0, and those of hosts that count their datagrams up.
    Counted,
    /// 0, and balboads' numbers of segments.
    Strict,
}

impl FromStr for Icrc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "counted" => Ok(Self::Counted),
            "strict" => Ok(Self::Strict),
            _ => Err("write counted or strict".into()),
        }
    }
}

/// A value for one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForCard<T> {
    /// Card number; 0 where none is given.
    pub card: u32,
    /// The value.
    pub value: T,
}

/// A value for a software card, or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForCards<T> {
    /// Card number; all cards that are not named where none is given.
    pub card: Option<u32>,
    /// The value.
    pub value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for ForCards<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = |text: &str| text.parse().map_err(|error: T::Err| error.to_string());
        let numbered = text.split_once('=').map(|(card, rest)| (card.parse(), rest));
        match numbered {
            Some((Ok(card), rest)) => Ok(Self { card: Some(card), value: value(rest)? }),
            _ => Ok(Self { card: None, value: value(text)? }),
        }
    }
}

/// The cards as the command line wants them, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedCards {
    /// Software cards, which come first.
    pub soft: Vec<SoftCard>,
    /// Cards behind VFIO.
    pub vfio: Vec<PciAddress>,
    /// The address of the port of each card.
    pub addresses: Vec<PortAddress>,
    /// The manifest of each card; `None` for the card's default.
    pub manifests: Vec<Option<PathBuf>>,
}

impl WantedCards {
    /// The description of a card that bring-up is to expect.
    ///
    /// # Errors
    /// The manifest's.
    pub fn manifest(&self, card: u32) -> Result<Manifest, bitstreams::Error> {
        let card = usize::try_from(card).unwrap_or(usize::MAX);
        if let Some(Some(path)) = self.manifests.get(card) {
            return Manifest::read(path);
        }
        Ok(match self.soft.get(card) {
            Some(soft) => Manifest {
                name: match soft.image {
                    _ if soft.plays_fpga => "software card that plays an FPGA".into(),
                    Image::Vqe => "software card".into(),
                    Image::Named(_) => format!("software card (--soft-image {})", soft.image),
                    published => {
                        format!("software card with the published image (--soft-image {published})")
                    }
                },
                map: soft.map,
                engine: match soft.image.is_published() {
                    true => EngineKind::Stock,
                    false => EngineKind::Vqe,
                },
                mends: if soft.image == Image::Stock { Mends::ALL } else { Mends::default() },
                regions: Some(soft.image.vfpgas()),
                logic: match soft.image {
                    Image::Named(_) => {
                        (0..softcard::WINDOWS).map_while(|at| soft.image.logic(at)).collect()
                    }
                    _ => Vec::new(),
                },
                ..Manifest::default()
            },
            None => {
                Manifest { name: "a bitstream without a manifest".into(), ..Manifest::default() }
            }
        })
    }
}

impl Args {
    /// Milliseconds of a peer's silence by which a queue pair of a card with a published bitstream fails.
    #[must_use]
    pub fn watchdog(&self) -> u64 {
        self.watchdog.map_or(500, PeerSilence::number)
    }

    /// The cards, in the order of their numbers.
    ///
    /// # Errors
    /// One sentence that names the options that do not fit together, and the mend.
    pub fn cards(&self) -> Result<WantedCards, String> {
        let soft = match self.soft {
            None if self.vfio.is_empty() => {
                return Err("no card is given; --soft 1 runs one software card, --vfio PCI-ADDRESS drives a real one".into());
            }
            None => 0,
            Some(count) => u32::try_from(count.number()).unwrap_or(MAX_CARDS),
        };
        let real = u32::try_from(self.vfio.len()).unwrap_or(u32::MAX);
        let count = soft.saturating_add(real);
        if count > MAX_CARDS {
            return Err(format!("{count} cards: one balboad drives {MAX_CARDS} at most"));
        }
        for (number, address) in self.vfio.iter().enumerate() {
            if self.vfio.iter().take(number).any(|other| other == address) {
                return Err(format!("--vfio {address} is given twice"));
            }
        }
        if self.shadow && soft == 0 {
            return Err("--shadow: the frames of a card behind VFIO do not pass this host, so the kernel cannot share its port; --shadow is for software cards (--soft N)".into());
        }
        if self.soft_fpga && soft == 0 {
            return Err("--soft-fpga: there are no software cards; --soft N runs some".into());
        }
        if self.manifests.iter().any(|file| file.value.as_os_str().is_empty()) {
            return Err("--manifest: a file is wanted, and the name is empty".into());
        }
        self.check_numbers(soft, count)?;
        let mut cards = WantedCards { vfio: self.vfio.clone(), ..WantedCards::default() };
        for number in 0..count {
            if number < soft {
                cards.soft.push(self.soft_card(number)?);
            }
            let address = one(&self.ips, number, "--ip")?.copied();
            let address = address.unwrap_or_else(|| PortAddress::default_of(number));
            if let Some(other) = cards.addresses.iter().position(|other| other.ip == address.ip) {
                return Err(format!(
                    "cards {other} and {number} both have the address {}; give one of them another with --ip {number}=A.B.C.D",
                    address.ip
                ));
            }
            cards.addresses.push(address);
            cards.manifests.push(one(&self.manifests, number, "--manifest")?.cloned());
        }
        let addressed = |number| matches!(one(&self.ips, number, "--ip"), Ok(Some(_)));
        machine::check(&cards.soft, self.shadow, addressed)?;
        self.check_protection(&cards.soft)?;
        for fault in &self.faults {
            let links = cards.soft.iter().map(|card| &card.link);
            fault.check_links(links).map_err(|error| format!("--fault {fault}: {error}"))?;
        }
        let given = [("--icrc", self.icrc.is_some()), ("--port-room", self.port_room.is_some())];
        let is_on_machine = cards.soft.iter().any(|card| matches!(card.link, Link::Udp(..)));
        if let Some((option, _)) = given.iter().find(|(_, is)| *is && !is_on_machine) {
            return Err(format!(
                "{option}: no card stands on the machine's own network (--port udp)"
            ));
        }
        Ok(cards)
    }

    /// The software card of that number.
    fn soft_card(&self, number: u32) -> Result<SoftCard, String> {
        let mut link = one(&self.ports, number, "--port")?.cloned().unwrap_or_default();
        if let Link::Udp(_, options) = &mut link {
            *options = self.udp_options();
        }
        let map = one(&self.maps, number, "--soft-map")?.copied().unwrap_or_default().0;
        let image = one_of_all(&self.images, number, "--soft-image")?;
        let image = image.copied().unwrap_or_default();
        let congestion = one_of_all(&self.congestion, number, "--congestion")?;
        let congestion = congestion.cloned().unwrap_or_default();
        if image.is_published() && congestion != Congestion::default() {
            return Err(format!(
                "--congestion {congestion}: the published image, which card {number} has, does nothing about congestion; write --congestion CARD=… for the others, or leave --soft-image out"
            ));
        }
        if self.shadow && image.is_published() {
            return Err(format!(
                "--shadow: the published image, which card {number} has, shares its port with nobody; leave --shadow or --soft-image out"
            ));
        }
        Ok(SoftCard {
            link,
            map,
            image,
            vfpgas: None,
            plays_fpga: self.soft_fpga,
            congestion,
            protection: None,
        })
    }

    /// The options of ports on the machine's own network.
    fn udp_options(&self) -> UdpOptions {
        UdpOptions {
            is_strict: self.icrc == Some(Icrc::Strict),
            room: self.port_room.and_then(|room| usize::try_from(room.number() << 10).ok()),
            port: None,
        }
    }

    /// Checks that options for cards that protect what they send are for such as can.
    fn check_protection(&self, soft: &[SoftCard]) -> Result<(), String> {
        if self.psp_peers.is_empty() {
            let given = [
                ("--psp-version", self.psp_version.is_some()),
                ("--psp-port", self.psp_port.is_some()),
            ];
            return match given.iter().find(|(_, is)| *is) {
                Some((option, _)) => {
                    Err(format!("{option}: no card protects anything (--psp-peers FILE)"))
                }
                None => Ok(()),
            };
        }
        if self.shadow {
            return Err("--psp-peers: with --shadow the kernel sends RoCE by the card's port, too, and seals nothing; leave --shadow or --psp-peers out".into());
        }
        for (number, card) in (0_u32..).zip(soft) {
            let keys = one_of_all(&self.psp_peers, number, "--psp-peers")?;
            if card.image.is_published() && keys.is_some() {
                return Err(format!(
                    "--psp-peers: the stack of the published image, which card {number} has, seals nothing; write --psp-peers CARD=… for the others, or leave --soft-image out"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the cards that options name are there: ports and faults are a software card's.
    fn check_numbers(&self, soft: u32, count: u32) -> Result<(), String> {
        let missing = |option: String, card: u64, limit: u32| {
            if card < u64::from(count) {
                return format!(
                    "{option}: card {card} is behind VFIO, and this is for software cards; leave it out"
                );
            }
            let last = limit.saturating_sub(1);
            let made = match (limit, self.vfio.is_empty()) {
                (0, _) => "there are no software cards".to_owned(),
                (_, true) => format!("--soft {soft} makes cards 0 to {last}"),
                _ => format!("those it can be given for are 0 to {last}"),
            };
            format!("{option}: there is no card {card}; {made}")
        };
        let ports = self.ports.iter().map(|port| ("--port", port.card, soft));
        let maps = self.maps.iter().map(|map| ("--soft-map", map.card, soft));
        let ips = self.ips.iter().map(|ip| ("--ip", ip.card, count));
        let manifests = self.manifests.iter().map(|file| ("--manifest", file.card, count));
        let images = self.images.iter();
        let images = images.filter_map(|image| Some(("--soft-image", image.card?, soft)));
        let reactions = self.congestion.iter();
        let reactions = reactions.filter_map(|it| Some(("--congestion", it.card?, soft)));
        let keys = self.psp_peers.iter();
        let keys = keys.filter_map(|it| Some(("--psp-peers", it.card?, soft)));
        let given = [
            ("--soft-image", self.images.len()),
            ("--congestion", self.congestion.len()),
            ("--psp-peers", self.psp_peers.len()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, count)| soft == 0 && *count > 0) {
            return Err(format!("{option}: there are no software cards; --soft N runs some"));
        }
        let of_soft = ports.chain(maps).chain(images).chain(reactions).chain(keys);
        let mut all = of_soft.chain(ips).chain(manifests);
        if let Some((option, card, limit)) = all.find(|(_, card, limit)| card >= limit) {
            return Err(missing(format!("{option} {card}=…"), card.into(), limit));
        }
        let soft_cards = usize::try_from(soft).unwrap_or(usize::MAX);
        for fault in &self.faults {
            if let Some(card) = fault.card.filter(|card| *card >= soft_cards) {
                let card = u64::try_from(card).unwrap_or(u64::MAX);
                return Err(missing(format!("--fault {fault}"), card, soft));
            }
        }
        Ok(())
    }
}

/// The value for a card, of which there may be one.
fn one<'a, T>(values: &'a [ForCard<T>], card: u32, option: &str) -> Result<Option<&'a T>, String> {
    let mut of_card = values.iter().filter(|value| value.card == card);
    let first = of_card.next();
    if of_card.next().is_some() {
        return Err(format!(
            "{option} is given twice for card {card}; write {option} CARD=… for the others"
        ));
    }
    Ok(first.map(|value| &value.value))
}

/// The value for a card: the one given for it, else the one for all.
pub(crate) fn one_of_all<'a, T>(
    values: &'a [ForCards<T>],
    number: u32,
    option: &str,
) -> Result<Option<&'a T>, String> {
    for card in [Some(number), None] {
        let mut given = values.iter().filter(|it| it.card == card);
        match (given.next(), given.next()) {
            (Some(_), Some(_)) => {
                return Err(format!(
                    "{option} is given twice for a card; write {option} CARD=… for the others"
                ));
            }
            (Some(found), None) => return Ok(Some(&found.value)),
            _ => {}
        }
    }
    Ok(None)
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for ForCard<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ForCards { card, value } = text.parse()?;
        Ok(Self { card: card.unwrap_or(0), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(args: &[&str]) -> Result<WantedCards, String> {
        Args::try_parse_from(std::iter::once(&"balboad").chain(args))
            .map_err(|error| error.to_string())?
            .cards()
    }

    #[test]
    fn the_arguments_are_well_formed() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn the_tunnel_is_on_or_off() {
        let parse =
            |args: &[&str]| Args::try_parse_from([&["balboad", "--soft", "1"], args].concat());
        assert_eq!(parse(&["--tunnel", "off"]).unwrap().tunnel, Some(Tunnel::Off));
        assert_eq!(parse(&["--tunnel", "on"]).unwrap().tunnel, Some(Tunnel::On));
        assert!(parse(&["--tunnel", "perhaps"]).is_err());
    }

    #[test]
    fn numbers_have_a_least_and_a_most() {
        for (option, least, most) in [
            ("--soft", 1, u64::from(MAX_CARDS)),
            ("--port-room", 16, 8192),
            ("--watchdog", 400, 600_000),
            ("--seed", 0, u64::MAX),
        ] {
            let read = |number: &str| {
                let read = Args::try_parse_from(["balboad", option, number]);
                read.map(drop).map_err(|error| error.to_string())
            };
            for number in [least, most] {
                assert_eq!(read(&number.to_string()), Ok(()), "{option}");
            }
            let below = (i128::from(least) - 1).to_string();
            let above = (i128::from(most) + 1).to_string();
            for number in [&below, &above, "", "x", "1.5", "99999999999999999999"] {
                let told = format!(
                    "invalid value '{number}' for '{option} <{}>': write a whole number from {least} to {most}",
                    match option {
                        "--port-room" => "KIB",
                        "--watchdog" => "MS",
                        _ => "N",
                    }
                );
                let refusal = read(number).unwrap_err();
                assert!(refusal.contains(&told), "{refusal}");
            }
        }
    }

    #[test]
    fn cards_have_defaults_and_take_their_own_values() {
        let made = cards(&[
            "--soft",
            "3",
            "--ip",
            "1=192.168.7.9/16",
            "--ip",
            "10.1.1.1",
            "--port",
            "2=unix:/tmp/a,/tmp/b=c",
        ])
        .unwrap();
        let text: Vec<_> =
            made.addresses.iter().map(|it| format!("{}/{}", it.ip, it.prefix)).collect();
        assert_eq!(text, ["10.1.1.1/24", "192.168.7.9/16", "10.77.0.3/24"]);
        assert_eq!(made.soft[0].link, Link::Switch);
        let unix = Link::Unix { local: "/tmp/a".into(), remote: "/tmp/b=c".into() };
        assert_eq!(made.soft[2].link, unix);
    }

    #[test]
    fn ports_on_the_machines_network_are_as_is_said_of_them() {
        let link = |options: &[&str]| {
            let args = [&["--soft", "1", "--port", "udp:eth1"], options].concat();
            let Link::Udp(_, options) = cards(&args).unwrap().soft[0].link.clone() else {
                panic!()
            };
            (options.is_strict, options.room)
        };
        assert_eq!(link(&[]), (false, None));
        assert_eq!(link(&["--icrc", "counted"]), (false, None));
        assert_eq!(link(&["--icrc", "strict", "--port-room", "208"]), (true, Some(208 << 10)));
    }

    #[test]
    fn faults_are_given_as_often_as_one_likes() {
        let args = ["balboad", "--soft", "2", "--fault", "loss=1%,card=1", "--fault", "delay=1ms"];
        let args = Args::try_parse_from(args).unwrap();
        let texts: Vec<String> = args.faults.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["loss=1%,card=1", "delay=1ms"]);
        assert!(args.cards().is_ok());
    }

    #[test]
    fn an_image_is_for_all_cards_that_are_not_named() {
        let made =
            cards(&["--soft", "3", "--soft-image", "stock", "--soft-image", "1=vqe"]).unwrap();
        let images: Vec<Image> = made.soft.iter().map(|card| card.image).collect();
        assert_eq!(images, [Image::Stock, Image::Vqe, Image::Stock]);
        let engine = |card| made.manifest(card).unwrap().engine;
        assert_eq!([0, 1].map(engine), [EngineKind::Stock, EngineKind::Vqe]);
    }

    #[test]
    fn what_is_done_about_congestion_is_said_for_all_cards_or_for_one() {
        let made =
            cards(&["--soft", "3", "--congestion", "dcqcn-paper", "--congestion", "1=off,np=off"]);
        let told: Vec<String> =
            made.unwrap().soft.iter().map(|card| card.congestion.to_string()).collect();
        assert_eq!(told, ["dcqcn-paper", "off,np=off", "dcqcn-paper"]);
    }

    #[test]
    fn cards_behind_vfio_follow_the_software_cards() {
        let made = cards(&["--soft", "1", "--vfio", "3b:00.0", "--ip", "1=10.1.1.1/8"]).unwrap();
        assert_eq!((made.soft.len(), made.vfio.len()), (1, 1));
        assert_eq!(made.vfio[0].to_string(), "0000:3b:00.0");
        assert_eq!(made.addresses[1].prefix, 8);
        assert_eq!(cards(&["--vfio", "3b:00.0"]).unwrap().soft, []);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_sentence() {
        for (args, sentence) in [
            (&[][..], "--soft 1 runs one"),
            (&["--soft", "0"], "from 1 to 16"),
            (&["--vfio", "3b:00"], "no PCI address"),
            (&["--vfio", "3b:00.0", "--vfio", "0000:3b:00.0"], "is given twice"),
            (&["--vfio", "3b:00.0", "--port", "udp"], "--port 0=…: card 0 is behind VFIO"),
            (
                &["--soft", "1", "--vfio", "3b:00.0", "--fault", "dup=1%,card=1"],
                "card 1 is behind VFIO, and this is for software cards",
            ),
            (&["--soft", "1", "--vfio", "3b:00.0", "--port", "2=udp"], "are 0 to 0"),
            (&["--vfio", "3b:00.0", "--port", "2=udp"], "no software cards"),
            (&["--soft", "1", "--ip", "1=10.0.0.1"], "there is no card 1"),
            (&["--soft", "1", "--manifest", "0="], "the name is empty"),
            (&["--soft", "2", "--ip", "10.0.0.1", "--ip", "10.0.0.2"], "twice for card 0"),
            (&["--soft", "2", "--ip", "10.77.0.2"], "cards 0 and 1 both have the address"),
            (&["--soft", "1", "--ip", "10.0.0"], "no IPv4 address"),
            (&["--soft", "1", "--ip", "10.0.0.1/33"], "no prefix length"),
            (&["--soft", "1", "--ip", "224.0.0.1"], "cannot be the address"),
            (&["--soft", "1", "--port", "tap:x"], "unix:LOCAL,REMOTE"),
            (&["--soft", "1", "--icrc", "strict"], "no card stands on the machine's own network"),
            (&["--soft", "1", "--port-room", "208"], "--port-room: no card stands"),
            (&["--soft", "1", "--port", "udp", "--icrc", "lax"], "write counted or strict"),
            (&["--vfio", "3b:00.0", "--shadow"], "is for software cards"),
            (&["--soft", "1", "--fault", "loss=101%"], "fault `loss=101%`: write a percentage"),
            (&["--soft", "1", "--fault", "drop=1%"], "fault `drop=1%`: write loss=, dup="),
            (&["--soft", "1", "--soft-image", "none"], "write vqe"),
            (&["--soft", "2", "--soft-image", "2=stock"], "makes cards 0 to 1"),
            (&["--soft", "2", "--soft-image", "stock", "--soft-image", "vqe"], "given twice"),
            (
                &["--soft", "2", "--soft-image", "1=stock", "--shadow"],
                "shares its port with nobody",
            ),
            (&["--vfio", "3b:00.0", "--soft-image", "stock"], "no software cards"),
            (&["--vfio", "3b:00.0", "--soft-fpga"], "no software cards"),
            (&["--soft", "2", "--fault", "dup=1%,card=2"], "makes cards 0 to 1"),
            (&["--soft", "1", "--fault", "rate=0"], "fault `rate=0`: write bits per second"),
            (&["--soft", "1", "--fault", "rate=1G,ecn=4k:1k:1%"], "a KMIN that is below KMAX"),
            (&["--soft", "1", "--fault", "rate=1G,ecn=1k:4k:101%"], "a percentage from 0%"),
            (
                &["--soft", "1", "--port", "udp", "--fault", "rate=1G"],
                "--fault rate=1G: fault `rate=1G`: a card on the machine's own network has its rate",
            ),
            (&["--soft", "1", "--congestion", "dcqcn"], "write off, dcqcn-paper or dcqcn-mlx5"),
            (&["--soft", "1", "--congestion", "dcqcn-mlx5,gd=16"], "it can be 0 to 15"),
            (&["--soft", "1", "--congestion", "1=off"], "makes cards 0 to 0"),
            (&["--vfio", "3b:00.0", "--congestion", "off"], "no software cards"),
            (&["--vfio", "3b:00.0", "--psp-peers", "/a"], "no software cards"),
            (&["--soft", "1", "--psp-peers", "1=/a"], "makes cards 0 to 0"),
            (&["--soft", "1", "--psp-peers", ""], "the name is empty"),
            (&["--soft", "1", "--psp-peers", "0=credential:a/b"], "is no name of a credential"),
            (&["--soft", "1", "--psp-peers", "/a", "--psp-peers", "/b"], "given twice"),
            (&["--soft", "1", "--psp-peers", "/a", "--shadow"], "seals nothing; leave --shadow"),
            (&["--soft", "1", "--psp-port", "1000"], "--psp-port: no card protects anything"),
            (&["--soft", "1", "--psp-version", "hdr0-aes-gmac-256"], "--psp-version: no card"),
            (&["--soft", "1", "--psp-version", "aes"], "write hdr0-aes-gcm-128, hdr0-aes-gcm-256"),
            (&["--soft", "1", "--psp-peers", "/a", "--psp-port", "4791"], "write a UDP port"),
            (
                &["--soft", "2", "--soft-image", "1=stock", "--psp-peers", "/a"],
                "which card 1 has, seals nothing",
            ),
            (&["--soft", "1", "--congestion", "off", "--congestion", "off"], "given twice"),
            (
                &["--soft", "2", "--soft-image", "1=stock", "--congestion", "dcqcn-paper"],
                "the published image, which card 1 has, does nothing about congestion",
            ),
        ] {
            let refusal = cards(args).unwrap_err();
            assert!(refusal.contains(sentence), "{args:?}: {refusal}");
        }
    }
}
