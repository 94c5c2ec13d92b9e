//! The configuration file: the options of the command line, under the same names, for a balboad that is a service.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use bitstreams::MapName;
use card_driver::address::PortAddress;
use psp::Version;
use serde::de::{Deserialize, Deserializer, Error as _};
use softcard::{Congestion, FaultSpec, Image, Link};
use terminal::file::{open_plain, read_text};
use vfio::PciAddress;

use crate::args::{Args, CardCount, ForCard, ForCards, Icrc, PeerSilence, PortRoom, Seed, Tunnel};
use crate::key_source::{KeySource, PspPort};
use crate::metrics::Endpoint;

/// The place of the package's configuration file.
pub const USUAL: &str = "/etc/balboa/balboad.toml";

/// Bytes that are read of a file at most.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    why: String,
}

/// A file's keys: the options' names. Those that may be given several times are lists.
#[derive(Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    soft: Option<CardCount>,
    vfio: Vec<Text<PciAddress>>,
    port: Vec<Text<ForCard<Link>>>,
    icrc: Option<Text<Icrc>>,
    port_room: Option<PortRoom>,
    ip: Vec<Text<ForCard<PortAddress>>>,
    shadow: bool,
    manifest: Vec<Text<ForCard<PathBuf>>>,
    soft_map: Vec<Text<ForCard<MapName>>>,
    soft_image: Vec<Text<ForCards<Image>>>,
    congestion: Vec<Text<ForCards<Congestion>>>,
    psp_peers: Vec<Text<ForCards<KeySource>>>,
    psp_version: Option<Text<Version>>,
    psp_port: Option<PspPort>,
    soft_fpga: bool,
    tunnel: Option<Text<Tunnel>>,
    tunnel_peers: Option<PathBuf>,
    rnic_peers: Vec<Text<Ipv4Addr>>,
    watchdog: Option<PeerSilence>,
    lossy: bool,
    fault: Vec<Text<FaultSpec>>,
    pcap: Option<PathBuf>,
    seed: Option<Seed>,
    state_dir: Option<PathBuf>,
    metrics: Option<Text<Endpoint>>,
    verbose: u8,
}

/// A value that is written as behind its option.
#[derive(Debug, PartialEq)]
struct Text<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|why: T::Err| D::Error::custom(why))
    }
}

fn plain<T>(values: Vec<Text<T>>) -> Vec<T> {
    values.into_iter().map(|value| value.0).collect()
}

impl Args {
    /// The command line, completed by the file that it names: an option that is given replaces all of the file's values
    /// under its name.
    ///
    /// # Errors
    /// [`ConfigError`] with the line of the file, its fault, and the mend.
    pub fn with_file(mut self) -> Result<Self, ConfigError> {
        let usual = self.check_config.then(|| PathBuf::from(USUAL));
        let Some(path) = self.config.clone().or(usual) else { return Ok(self) };
        let failed = |why| ConfigError { path: path.clone(), why };
        let text = open_plain(&path).and_then(|file| read_text(file, MAX_BYTES));
        let text = text.map_err(|error| failed(format!("it cannot be read: {error}")))?;
        let keys: Keys = toml::from_str(&text)
            .map_err(|error| failed(bitstreams::sentence_of(&text, &error)))?;
        self.config = Some(path);
        self.take(keys);
        Ok(self)
    }

    fn take(&mut self, keys: Keys) {
        fn list<T>(given: &mut Vec<T>, file: Vec<Text<T>>) {
            if given.is_empty() {
                *given = plain(file);
            }
        }
        fn one<T>(given: &mut Option<T>, file: Option<T>) {
            *given = given.take().or(file);
        }
        list(&mut self.vfio, keys.vfio);
        list(&mut self.ports, keys.port);
        list(&mut self.ips, keys.ip);
        list(&mut self.manifests, keys.manifest);
        list(&mut self.maps, keys.soft_map);
        list(&mut self.images, keys.soft_image);
        list(&mut self.congestion, keys.congestion);
        list(&mut self.psp_peers, keys.psp_peers);
        list(&mut self.rnic_peers, keys.rnic_peers);
        list(&mut self.faults, keys.fault);
        one(&mut self.soft, keys.soft);
        one(&mut self.icrc, keys.icrc.map(|icrc| icrc.0));
        one(&mut self.port_room, keys.port_room);
        one(&mut self.psp_version, keys.psp_version.map(|version| version.0));
        one(&mut self.psp_port, keys.psp_port);
        one(&mut self.tunnel, keys.tunnel.map(|tunnel| tunnel.0));
        one(&mut self.tunnel_peers, keys.tunnel_peers);
        one(&mut self.watchdog, keys.watchdog);
        one(&mut self.pcap, keys.pcap);
        one(&mut self.seed, keys.seed);
        one(&mut self.state_dir, keys.state_dir);
        one(&mut self.metrics, keys.metrics.map(|endpoint| endpoint.0));
        self.shadow |= keys.shadow;
        self.soft_fpga |= keys.soft_fpga;
        self.lossy |= keys.lossy;
        if self.verbose == 0 {
            self.verbose = keys.verbose;
        }
    }

    /// The options whose values take effect only when balboad is started again, and are others in `new`.
    #[must_use]
    pub fn fixed_that_differ(&self, new: &Self) -> Vec<&'static str> {
        let options = [
            ("soft", self.soft == new.soft),
            ("vfio", self.vfio == new.vfio),
            ("port", self.ports == new.ports),
            ("icrc", self.icrc == new.icrc),
            ("port-room", self.port_room == new.port_room),
            ("ip", self.ips == new.ips),
            ("shadow", self.shadow == new.shadow),
            ("manifest", self.manifests == new.manifests),
            ("soft-map", self.maps == new.maps),
            ("soft-image", self.images == new.images),
            ("congestion", self.congestion == new.congestion),
            ("psp-peers", self.psp_peers == new.psp_peers),
            ("psp-version", self.psp_version == new.psp_version),
            ("psp-port", self.psp_port == new.psp_port),
            ("soft-fpga", self.soft_fpga == new.soft_fpga),
            ("tunnel", self.tunnel == new.tunnel),
            ("tunnel-peers", self.tunnel_peers == new.tunnel_peers),
            ("rnic-peers", self.rnic_peers == new.rnic_peers),
            ("watchdog", self.watchdog == new.watchdog),
            ("lossy", self.lossy == new.lossy),
            ("fault", self.faults == new.faults),
            ("pcap", self.pcap == new.pcap),
            ("seed", self.seed == new.seed),
            ("state-dir", self.state_dir == new.state_dir),
        ];
        options.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser as _};

    use super::*;

    fn args(line: &[&str], file: &str) -> Result<Args, String> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("balboad.toml");
        std::fs::write(&path, file).unwrap();
        let line_of_file = ["balboad", "--config", path.to_str().unwrap()];
        let line = line_of_file.iter().chain(line).copied();
        let args = Args::try_parse_from(line).map_err(|error| error.to_string())?;
        let args = args.with_file().map_err(|error| {
            let told = error.to_string();
            let told = told.strip_prefix(&path.display().to_string()).unwrap();
            told.to_owned()
        })?;
        args.cards().map(|_| args)
    }

    #[test]
    fn a_file_says_what_options_say() {
        let file = "soft = 2\nip = [\"1=10.9.8.7/16\"]\nfault = [\"loss=1%,card=1\"]\nseed = 7\n\
            port = [\"udp:eth1\"]\nicrc = \"strict\"\nport-room = 208\n\
            soft-image = [\"stock\"]\nmetrics = \"127.0.0.1:9100\"\nverbose = 1\n";
        let line = [
            "--soft",
            "2",
            "--ip",
            "1=10.9.8.7/16",
            "--port",
            "udp:eth1",
            "--icrc",
            "strict",
            "--port-room",
            "208",
            "--fault",
            "loss=1%,card=1",
            "--seed",
            "7",
            "--soft-image",
            "stock",
            "--metrics",
            "127.0.0.1:9100",
            "-v",
        ];
        let by_file = args(&[], file).unwrap();
        let by_line = args(&line, "").unwrap();
        assert!(by_file.fixed_that_differ(&by_line).is_empty());
        assert_eq!(by_file.metrics, by_line.metrics);
        assert_eq!((by_file.soft.map(CardCount::number), by_file.verbose), (Some(2), 1));
    }

    #[test]
    fn what_an_option_gives_counts_for_all_of_its_name() {
        let file = "soft = 3\nip = [\"0=10.1.1.1\", \"1=10.1.1.2\"]\nseed = 7\nverbose = 2\n";
        let made = args(&["--ip", "2=10.2.2.2", "--seed", "0", "-v"], file).unwrap();
        let addresses = made.cards().unwrap().addresses;
        let ips: Vec<String> = addresses.iter().map(|it| it.ip.to_string()).collect();
        assert_eq!(ips, ["10.77.0.1", "10.77.0.2", "10.2.2.2"]);
        let numbers = (made.soft.map(CardCount::number), made.seed.map(Seed::number));
        assert_eq!((numbers, made.verbose), ((Some(3), Some(0)), 1));
    }

    #[test]
    fn what_a_file_must_not_say_is_refused_with_its_line_and_the_mend() {
        for (file, sentence) in [
            ("soft = 1\nsofd = 2\n", ": line 2: unknown field `sofd`, expected one of `soft`"),
            ("soft = \"1\"\n", ": line 1: invalid type: string \"1\", expected u64"),
            ("soft = 17\n", ": line 1: write a whole number from 1 to 16"),
            ("soft = 1\nport-room = 0\n", ": line 2: write a whole number from 16 to 8192"),
            ("soft = 1\n\nfault = [\"loss=1%\", \"drop=1%\"]", ": line 3: fault `drop=1%`: write"),
            ("soft = 1\nip = [\"10.0.0\"]", ": line 2: 10.0.0 is no IPv4 address"),
            ("soft = 1\nmetrics = \"0.0.0.0:1\"", ": line 2: "),
            ("soft = 1\nsoft = 2\n", ": line 2: duplicate key"),
            ("[soft]\n", ": line 1: "),
            ("soft", ": line 1: "),
        ] {
            let refusal = args(&[], file).unwrap_err();
            assert!(refusal.starts_with(sentence), "{file:?}: {refusal}");
        }
        let refusal = args(&[], "").unwrap_err();
        assert!(refusal.contains("no card is given"), "{refusal}");
        let nowhere = Args::try_parse_from(["balboad", "--config", "/nonexistent/x.toml"]);
        let refusal = nowhere.unwrap().with_file().unwrap_err().to_string();
        assert!(refusal.starts_with("/nonexistent/x.toml: it cannot be read"), "{refusal}");
    }

    #[test]
    fn every_option_has_its_key() {
        let without = ["config", "check-config", "completions", "manual", "help", "version"];
        let command = Args::command();
        let options = command.get_arguments().filter_map(clap::Arg::get_long);
        for option in options.filter(|option| !without.contains(option)) {
            // A key that is known is refused for its value, if at all.
            let told = args(&["--soft", "1"], &format!("{option} = {{}}")).unwrap_err();
            assert!(!told.contains("unknown field"), "{option}: {told}");
        }
    }

    #[test]
    fn what_needs_a_new_start_is_named() {
        let before = args(&[], "soft = 1\nverbose = 1").unwrap();
        let after = args(&[], "soft = 2\nseed = 4\nmetrics = \"127.0.0.1:1\"").unwrap();
        assert_eq!(before.fixed_that_differ(&after), ["soft", "seed"]);
    }
}
