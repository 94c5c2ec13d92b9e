//! Networks as TOML: each a table by its name.

use std::collections::BTreeMap;

use roce::PRIORITIES;
use roce::qos::{Ets, Watchdog};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use trial::rng::Rng;

use crate::congestion::Congestion;
use crate::error::Error;

/// The networks that come with the crate.
pub const NETWORKS: &str = include_str!("../networks.toml");

/// The description of a network and of its traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The hosts and switches, and the cables between them.
    pub shape: Shape,
    /// The cables of hosts.
    pub host: CableSpec,
    /// The cables between switches.
    pub trunk: CableSpec,
    /// Every switch.
    pub switch: SwitchConfig,
    /// Routes in place of the shortest ones.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// The hosts' reaction to congestion, if any.
    pub congestion: Option<Congestion>,
    /// The traffic that hosts send.
    pub traffic: Vec<Traffic>,
    /// The end of a run, and the bounds of its figures.
    pub bars: Option<Bars>,
}

/// The hosts and switches, and the cables between them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Shape {
    /// Two switches; from the hosts of one to those of the other.
    Dumbbell {
        /// Hosts on each.
        pairs: u32,
    },
    /// Two switches. The last host is on the second one, and receives from one beside it and all on the first.
    ParkingLot {
        /// Hosts on the first.
        behind: u32,
    },
    /// One switch; all send to the last host.
    Incast {
        /// Hosts that send.
        senders: u32,
    },
    /// Every leaf has a cable to each spine.
    LeafSpine {
        /// Switches that have hosts.
        leaves: u32,
        /// Switches between them.
        spines: u32,
        /// Hosts on each leaf.
        hosts: u32,
    },
    /// Switches in a ring; each host sends to the one two switches further.
    Ring {
        /// Switches, each with one host.
        switches: u32,
    },
    /// Three layers of switches of `ports` ports each, for a quarter of its cube of hosts.
    FatTree {
        /// Ports of each switch, an even number.
        ports: u32,
    },
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableSpec {
    /// Bits per second, as `100G`.
    #[serde(deserialize_with = "rate")]
    pub rate: u64,
    /// Picoseconds from end to end, as `1us`.
    #[serde(deserialize_with = "time")]
    pub delay: u64,
    /// The faults that it adds to its delay.
    #[serde(default)]
    pub faults: Faults,
    /// How the port before it chooses among priorities; the highest goes first where nothing says that.
    #[serde(default, deserialize_with = "ets")]
    pub ets: Ets,
}

/// Faults of one direction of a cable: chances in units of one in 10,000 frames, and times in picoseconds. Pauses pass
/// unharmed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Frames that do not arrive.
    pub loss: u32,
    /// Frames that arrive twice.
    pub duplication: u32,
    /// Frames that others overtake.
    pub reordering: u32,
    /// Frames of which a bit is another. Of one that is not there by bytes that is a loss.
    pub corruption: u32,
    /// The share of frames that are marked "congestion experienced", of those that allow it.
    pub marking: u32,
    /// A frame takes up to so much longer, and is not overtaken for that.
    #[serde(deserialize_with = "time")]
    pub jitter: u64,
    /// One that is overtaken, or a second one, comes up to so much later.
    #[serde(deserialize_with = "time")]
    pub reorder_delay: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

impl Faults {
    /// A cable that does nothing but carry.
    pub const NONE: Self = Self {
        loss: 0,
        duplication: 0,
        reordering: 0,
        corruption: 0,
        marking: 0,
        jitter: 0,
        reorder_delay: 20_000_000,
    };

    /// Whether there are any.
    #[must_use]
    pub fn are_some(&self) -> bool {
        Self { reorder_delay: Self::NONE.reorder_delay, ..*self } != Self::NONE
    }
}

/// A switch's buffer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchConfig {
    /// All its bytes, as `32M`.
    #[serde(deserialize_with = "bytes")]
    pub buffer: u64,
    /// The bytes of the buffer that each port has for each priority.
    #[serde(deserialize_with = "bytes")]
    pub reserve: u64,
    /// Priorities with flow control (PFC).
    #[serde(default)]
    pub pfc: Vec<u8>,
    /// The queue lengths at which packets are marked, if any are.
    pub red: Option<Red>,
    /// The watchdog that ends pauses without end, if there is one; its times are as `2ms`.
    #[serde(default, deserialize_with = "watchdog")]
    pub watchdog: Option<Watchdog>,
}

/// Random early detection: from `kmin` bytes in an egress queue on packets are marked "congestion experienced", ever more
/// of them, and above `kmax` all.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// None below so many bytes.
    #[serde(deserialize_with = "bytes")]
    pub kmin: u64,
    /// All above so many.
    #[serde(deserialize_with = "bytes")]
    pub kmax: u64,
    /// The probability of a mark at `kmax`, in millionths.
    pub pmax_millionths: u32,
}

impl Red {
    /// Whether a packet is marked that leaves a queue of so many bytes.
    pub fn marks(&self, bytes: u64, rng: &mut Rng) -> bool {
        if bytes <= self.kmin {
            return false;
        }
        if bytes > self.kmax {
            return true;
        }
        let span = self.kmax - self.kmin;
        rng.below(span * 1_000_000) < (bytes - self.kmin) * u64::from(self.pmax_millionths)
    }
}

/// A route in place of the shortest.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The switch that has it.
    pub switch: u32,
    /// The host that it leads to.
    pub to: u32,
    /// The next switch.
    pub via: u32,
}

/// The traffic of hosts: WRITEs along reliable connections.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// The pairs of hosts.
    pub pattern: Pattern,
    /// Flows from each to each of these.
    #[serde(default = "one")]
    pub flows: u32,
    /// Bytes of a message.
    #[serde(deserialize_with = "bytes")]
    pub bytes: u64,
    /// Messages of a flow.
    pub messages: u32,
    /// Picoseconds by which each flow begins later than the one before.
    #[serde(default, deserialize_with = "time")]
    pub stagger: u64,
    /// Picoseconds from the start of one message of a flow to that of the next, if they do not all start at once.
    #[serde(default, deserialize_with = "time")]
    pub interval: u64,
    /// The traffic class: DSCP, whose upper half is the priority, and ECN.
    pub class: u8,
}

impl Traffic {
    fn check(&self) -> Result<(), Error> {
        let range = |what, value, range| Err(Error::Range { what, value, range });
        if !(1..=1 << 31).contains(&self.bytes) {
            return range("a message", self.bytes, "1 to 2G bytes");
        }
        if !(1..=1 << 20).contains(&self.messages) {
            return range("a flow's messages", self.messages.into(), "1 to 1,048,576");
        }
        if !(1..=4_096).contains(&self.flows) {
            return range("the flows of a pair", self.flows.into(), "1 to 4,096");
        }
        if self.interval > 1_000_000_000_000 {
            return range("an interval in picoseconds", self.interval, "1 s at most");
        }
        Ok(())
    }
}

/// The pairs of hosts between which flows go.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The pairs of the shape itself; in a shape without any, each host to the one half of all hosts further.
    Shape,
    /// Each to another one, drawn by the seed.
    Permutation,
    /// Each to all others.
    AllToAll,
    /// Flows from the first host of each pair to the second.
    Pairs(Vec<[u32; 2]>),
}

/// The span of a run that is judged, and the bounds of the figures seen in it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    /// The picosecond from which on bytes count for fairness and goodput.
    #[serde(default, deserialize_with = "time")]
    pub from: u64,
    /// The picosecond at which the run ends.
    #[serde(deserialize_with = "time")]
    pub until: u64,
    /// The flows that fairness and goodput are of, by their numbers; all, if it names none.
    #[serde(default)]
    pub flows: Vec<u32>,
    /// Jain's index of their bytes that arrived, in millionths.
    #[serde(default)]
    pub fairness: Bounds,
    /// The bounds of a priority's share in all bytes that arrived, in thousandths.
    #[serde(default)]
    pub shares: BTreeMap<u8, Bounds>,
    /// Payload of these flows that arrived, in bits per second, as `90G`.
    #[serde(default, deserialize_with = "rates")]
    pub goodput: Bounds,
    /// How long the 99th of each hundred messages took that started at `from` or later, in nanoseconds.
    #[serde(default)]
    pub p99: Bounds,
    /// Frames that switches dropped in the whole run.
    #[serde(default)]
    pub dropped: Bounds,
    /// Pauses that were sent in the whole run.
    #[serde(default)]
    pub pauses: Bounds,
}

/// The least and the most that a figure may be.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The least.
    pub least: Option<u64>,
    /// The most.
    pub most: Option<u64>,
}

const fn one() -> u32 {
    1
}

/// Reads networks.
pub fn parse(text: &str) -> Result<BTreeMap<String, Config>, Error> {
    let networks: BTreeMap<String, Config> = toml::from_str(text)?;
    for (name, config) in &networks {
        config.check().map_err(|error| error.of(name))?;
    }
    Ok(networks)
}

impl Config {
    /// Refuses numbers that make no network.
    pub fn check(&self) -> Result<(), Error> {
        let range = |what, value, range| Err(Error::Range { what, value, range });
        for link in [self.host, self.trunk] {
            if !(1_000..=10_000_000_000_000).contains(&link.rate) {
                return range("a rate", link.rate, "1k to 10000G");
            }
            if link.delay > 1_000_000_000_000 {
                return range("a delay in picoseconds", link.delay, "1 s at most");
            }
            let faults = link.faults;
            let chances = [faults.loss, faults.duplication, faults.reordering, faults.corruption];
            if let Some(&chance) = chances.iter().chain([&faults.marking]).find(|it| **it > 10_000)
            {
                return range("a fault", chance.into(), "0 to 10,000 of 10,000 frames");
            }
            let longest = faults.jitter.max(faults.reorder_delay);
            if longest > 1_000_000_000_000 {
                return range("a fault's delay in picoseconds", longest, "1 s at most");
            }
            link.ets.check("priority")?;
        }
        for &priority in &self.switch.pfc {
            if priority > 7 {
                return range("a priority", priority.into(), "0 to 7");
            }
        }
        if self.switch.buffer > 1 << 40 {
            return range("a buffer", self.switch.buffer, "1024G at most");
        }
        if self.switch.reserve > 1 << 30 {
            return range("a reserve", self.switch.reserve, "1G at most");
        }
        if let Some(watchdog) = self.switch.watchdog {
            let times = [watchdog.detect, watchdog.recover];
            if let Some(&time) =
                times.iter().find(|it| !(1_000_000..=1_000_000_000_000).contains(*it))
            {
                return range("a watchdog's time in picoseconds", time, "1 us to 1 s");
            }
        }
        if let Some(red) = self.switch.red {
            if red.kmin >= red.kmax || red.kmax > 1 << 40 {
                return range("kmin", red.kmin, "below kmax, and that 1024G at most");
            }
            if red.pmax_millionths > 1_000_000 {
                return range("pmax_millionths", red.pmax_millionths.into(), "0 to 1,000,000");
            }
        }
        if let Some(Bars { from, until, shares, .. }) = &self.bars {
            let (from, until) = (*from, *until);
            if until <= from || until > MOST_TIME {
                return range(
                    "the picosecond of a run's end",
                    until,
                    "behind `from`, 100 s at most",
                );
            }
            if let Some(priority) = shares.keys().find(|priority| **priority > 7) {
                return range("the priority of a bar's share", (*priority).into(), "0 to 7");
            }
        }
        self.traffic.iter().try_for_each(Traffic::check)?;
        self.check_shape()
    }

    fn check_shape(&self) -> Result<(), Error> {
        let (sizes, most): (&[u32], u32) = match &self.shape {
            Shape::Dumbbell { pairs } => (&[*pairs], 1_000),
            Shape::ParkingLot { behind } => (&[*behind], 1_000),
            Shape::Incast { senders } => (&[*senders], 1_000),
            Shape::LeafSpine { leaves, spines, hosts } => (&[*leaves, *spines, *hosts], 128),
            Shape::Ring { switches } => (&[*switches], 128),
            Shape::FatTree { ports } => (&[*ports], 32),
        };
        if let Some(&size) = sizes.iter().find(|size| !(1..=most).contains(*size)) {
            return Err(Error::Range {
                what: "a size of the shape",
                value: size.into(),
                range: "1 to 1,000; in leaf-spine and ring to 128, in fat-tree to 32",
            });
        }
        match self.shape {
            Shape::Ring { switches } if switches < 3 => {
                let range = "3 or more";
                Err(Error::Range { what: "a ring's switches", value: switches.into(), range })
            }
            Shape::FatTree { ports } if ports % 2 == 1 => {
                let range = "an even number";
                Err(Error::Range { what: "a fat tree's ports", value: ports.into(), range })
            }
            _ => Ok(()),
        }
    }
}

/// A number with one of these units behind it.
fn measure<'de, D: Deserializer<'de>>(deserializer: D, units: &[Unit]) -> Result<u64, D::Error> {
    measured(&String::deserialize(deserializer)?, units).map_err(D::Error::custom)
}

/// The name of a unit, and its size in the smallest one.
type Unit = (&'static str, u64);

fn measured(text: &str, units: &[Unit]) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = number.parse::<u64>().ok().zip(factor);
    value.and_then(|(number, factor)| number.checked_mul(factor)).ok_or_else(|| {
        let names: Vec<_> = units.iter().map(|(name, _)| format!("'{name}'")).collect();
        format!("'{text}' is no number with one of {}", names.join(" "))
    })
}

/// Units of time, in picoseconds.
const TIMES: [Unit; 4] = [("ps", 1), ("ns", 1_000), ("us", 1_000_000), ("ms", 1_000_000_000)];

/// Picoseconds that a run takes at most.
const MOST_TIME: u64 = 100_000_000_000_000;

/// Reads the time at which a run ends, as `10ms`, in picoseconds.
///
/// # Errors
/// A sentence where it is none, or is too long.
pub fn parse_end(text: &str) -> Result<u64, String> {
    let time = measured(text, &TIMES)?;
    let fits = (1..=MOST_TIME).contains(&time);
    fits.then_some(time).ok_or_else(|| "write a time above 0, and of 100000ms at most".into())
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let units = [("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    measure(deserializer, &units)
}

fn rates<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bounds, D::Error> {
    #[derive(Deserialize)]
    struct Rate(#[serde(deserialize_with = "rate")] u64);
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Description {
        least: Option<Rate>,
        most: Option<Rate>,
    }
    let Description { least, most } = Description::deserialize(deserializer)?;
    Ok(Bounds { least: least.map(|it| it.0), most: most.map(|it| it.0) })
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    measure(deserializer, &TIMES)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    measure(deserializer, &[("", 1), ("k", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)])
}

/// Reads how priorities share a cable: those that are strict, and the weights of others.
fn ets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ets, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Description {
        #[serde(default)]
        strict: Vec<u8>,
        #[serde(default)]
        weights: BTreeMap<u8, u8>,
    }
    let description = Description::deserialize(deserializer)?;
    let none = |priority| {
        let (what, value) = ("a priority of ets", u64::from(priority));
        D::Error::custom(Error::Range { what, value, range: "0 to 7" })
    };
    let mut ets = Ets { strict: 0, weights: [0; PRIORITIES] };
    for priority in description.strict {
        ets.strict |= 1_u8.checked_shl(priority.into()).ok_or_else(|| none(priority))?;
    }
    for (priority, weight) in description.weights {
        let place = ets.weights.get_mut(usize::from(priority));
        *place.ok_or_else(|| none(priority))? = weight;
    }
    Ok(ets)
}

fn watchdog<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Watchdog>, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Description {
        #[serde(deserialize_with = "time")]
        detect: u64,
        #[serde(deserialize_with = "time")]
        recover: u64,
    }
    let Description { detect, recover } = Description::deserialize(deserializer)?;
    Ok(Some(Watchdog { detect, recover }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_between_the_thresholds() {
        let red = Red { kmin: 100_000, kmax: 200_000, pmax_millionths: 200_000 };
        let mut rng = Rng::new(1);
        let mut share = |bytes| (0..10_000).filter(|_| red.marks(bytes, &mut rng)).count();
        assert_eq!(share(100_000), 0);
        assert_eq!(share(200_001), 10_000);
        assert!((900..1_100).contains(&share(150_000)));
        assert!((1_850..2_150).contains(&share(200_000)));
    }
}
