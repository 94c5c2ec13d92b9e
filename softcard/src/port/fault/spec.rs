//! A cable's faults, as a value and as the text that users write.
//!
//! The text is a list of items, as in `loss=1%,dup=0.1%,delay=10us..50us,card=1`, each given at
//! most once and at least one of them a fault. `quantity.rs` reads numbers with units.

use std::fmt;
use std::str::FromStr;

use super::quantity::{BitRate, Size, split, whole, write};
use crate::{Error, Link};

/// Longest delay in nanoseconds: 10 seconds.
const MAX_DELAY: u64 = 10_000_000_000;
const TIMES: [(&str, u64); 3] = [("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Decimals of a percentage that a [`Rate`] holds.
const DECIMALS: usize = 7;

/// The default length of the queue of a cable with a rate, in bytes.
const BUFFER: Size = Size::from_bytes(1 << 20);

/// A cable's faults, each way independently.
///
/// A cable is a card's: a frame from one card to another passes those of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// Frames that are dropped.
    pub loss: Rate,
    /// Frames that arrive twice.
    pub dup: Rate,
    /// Frames that are held back until 1 to 8 later ones have come.
    pub reorder: Rate,
    /// Frames of which one bit behind the Ethernet header is flipped.
    pub corrupt: Rate,
    /// The share of IP packets that are marked "Congestion Experienced", at any length of the queue.
    pub ecn: Rate,
    /// The rate of the cable each way; frames that come faster wait.
    pub rate: Option<BitRate>,
    /// The longest queue at the far end of a cable with a rate, 1 MiB where that is `None`: frames beyond it are
    /// dropped.
    pub buffer: Option<Size>,
    /// The lengths of the queue at which packets are marked.
    pub red: Option<Red>,
    /// The delay of every frame; frames do not overtake each other by it.
    pub delay: Option<Delay>,
    /// The card whose cable it is; every card's where none is named.
    pub card: Option<usize>,
}

/// A share of all frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

/// The delay of a frame: uniformly distributed over a range, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Shortest.
    pub min: u64,
    /// Longest.
    pub max: u64,
}

/// Random early detection: from `kmin` bytes that wait on, packets of senders that understand marks are marked, ever more
/// of them, and above `kmax` all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// None up to here.
    pub kmin: Size,
    /// All above.
    pub kmax: Size,
    /// The share at `kmax`.
    pub pmax: Rate,
}

impl Red {
    /// The share of marked packets among those that leave a queue of so many bytes.
    pub(super) fn share(&self, waiting: u64) -> Rate {
        let [kmin, kmax] = [self.kmin.bytes(), self.kmax.bytes()];
        if waiting > kmax {
            return Rate::ALL;
        }
        let above = u128::from(waiting.saturating_sub(kmin));
        let share = above.saturating_mul(self.pmax.0.into());
        let share = share.checked_div(kmax.saturating_sub(kmin).into()).unwrap_or_default();
        Rate::from_billionths(u32::try_from(share).unwrap_or(u32::MAX))
    }
}

impl Rate {
    /// No frame.
    pub const NONE: Self = Self(0);
    /// Every frame.
    pub const ALL: Self = Self(1_000_000_000);

    /// A chance in billionths; more than a billion count as all frames.
    #[must_use]
    pub const fn from_billionths(billionths: u32) -> Self {
        if billionths < Self::ALL.0 { Self(billionths) } else { Self::ALL }
    }

    /// The number of frames in a billion.
    #[must_use]
    pub const fn billionths(self) -> u32 {
        self.0
    }
}

/// The advice for a value that cannot be read.
type Mend = &'static str;

const MEND_ITEM: Mend = "write loss=, dup=, reorder=, corrupt= or ecn= with a percentage, delay=, rate=, buffer= or card=";
const MEND_RATE: Mend =
    "write a percentage from 0% to 100% with at most 7 decimals, such as 1% or 0.05%";
const MEND_RED: Mend = "write KMIN:KMAX:P%, two sizes and a percentage, such as 100k:400k:10%";
const MEND_RED_ORDER: Mend = "write a KMIN that is below KMAX";
const MEND_NO_RATE: Mend =
    "it is about what waits for a cable of a given rate: give that as well, such as rate=10G";
const MEND_BEYOND: Mend = "write a KMAX that is within the buffer, of 1M unless buffer= is given";
const MEND_MACHINE: Mend = "a card on the machine's own network has its rate, which tc limits; name a card on the switch, a socket or a network device with card=";
const MEND_DELAY: Mend =
    "write a whole number with its unit, such as 800ns, 50us or 2ms, or a range such as 10us..50us";
const MEND_RANGE: Mend = "write the shorter duration first";
const MEND_LONG: Mend = "write a delay of at most 10000ms";
const MEND_CARD: Mend = "write the number of a card, such as card=0";
const MEND_TWICE: Mend = "write each item once, and another fault specification for another card";
const MEND_EMPTY: Mend = "name at least one fault, such as loss=1%";

impl FaultSpec {
    fn set(&mut self, item: &str) -> Result<(), Mend> {
        let (name, value) = item.split_once('=').ok_or(MEND_ITEM)?;
        match name {
            "loss" => self.loss = rate(value)?,
            "dup" => self.dup = rate(value)?,
            "reorder" => self.reorder = rate(value)?,
            "corrupt" => self.corrupt = rate(value)?,
            "ecn" if value.contains(':') => self.red = Some(red(value)?),
            "ecn" => self.ecn = rate(value)?,
            "rate" => self.rate = Some(value.parse()?),
            "buffer" => self.buffer = Some(value.parse()?),
            "delay" => self.delay = Some(delay(value)?),
            "card" => self.card = Some(whole(value).ok_or(MEND_CARD)?),
            _ => return Err(MEND_ITEM),
        }
        Ok(())
    }

    /// The longest queue at the far end of the cable, in bytes.
    pub(super) fn room(&self) -> u64 {
        self.buffer.unwrap_or(BUFFER).bytes()
    }

    /// Checks that the items fit together: an error is the item that does not, and the advice.
    fn fits(&self) -> Result<(), (&'static str, Mend)> {
        match (self.rate, self.buffer, self.red) {
            (None, Some(_), _) => Err(("buffer=", MEND_NO_RATE)),
            (None, None, Some(_)) => Err(("ecn=", MEND_NO_RATE)),
            (Some(_), _, Some(red)) if red.kmax.bytes() > self.room() => Err(("ecn=", MEND_BEYOND)),
            _ => Ok(()),
        }
    }

    /// Whether it is for the cable of a card.
    pub(crate) fn is_for(&self, card: usize) -> bool {
        self.card.is_none_or(|named| named == card)
    }

    /// Refuses a rate for cards that cannot have one, of which each has its link; `links` are those of all cards.
    ///
    /// # Errors
    /// [`Error::BadFault`] where one of the cards stands on the machine's own network.
    pub fn check_links<'a>(&self, links: impl IntoIterator<Item = &'a Link>) -> Result<(), Error> {
        let Some(rate) = self.rate else { return Ok(()) };
        let mut links = links.into_iter().enumerate();
        match links.any(|(card, link)| self.is_for(card) && matches!(link, Link::Udp(..))) {
            true => Err(Error::BadFault { item: format!("rate={rate}"), mend: MEND_MACHINE }),
            false => Ok(()),
        }
    }
}

impl FromStr for FaultSpec {
    type Err = Error;

    /// Reads a list of items.
    ///
    /// # Errors
    /// [`Error::BadFault`] for the first item that is wrong.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |item: &str, mend| Error::BadFault { item: item.to_owned(), mend };
        let mut spec = Self::default();
        let mut names = Vec::new();
        for item in text.split(',') {
            spec.set(item).map_err(|mend| bad(item, mend))?;
            let name = item.split('=').next().unwrap_or(item);
            if names.contains(&name) {
                return Err(bad(item, MEND_TWICE));
            }
            names.push(name);
        }
        if let Err((name, mend)) = spec.fits() {
            let item = text.split(',').find(|item| item.starts_with(name));
            return Err(bad(item.unwrap_or(text), mend));
        }
        if names == ["card"] { Err(bad(text, MEND_EMPTY)) } else { Ok(spec) }
    }
}

fn red(text: &str) -> Result<Red, Mend> {
    let mut parts = text.split(':');
    let (Some(kmin), Some(kmax), Some(pmax), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(MEND_RED);
    };
    let (kmin, kmax): (Size, Size) = (kmin.parse()?, kmax.parse()?);
    if kmin >= kmax {
        return Err(MEND_RED_ORDER);
    }
    Ok(Red { kmin, kmax, pmax: rate(pmax)? })
}

fn rate(text: &str) -> Result<Rate, Mend> {
    let read = || {
        let number = text.strip_suffix('%')?;
        let (whole_part, decimals) = match number.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (number, ""),
        };
        let missing = DECIMALS.checked_sub(decimals.len())?;
        let percent: u32 = whole(whole_part)?;
        let fraction: u32 = whole(&format!("{decimals}{}", "0".repeat(missing)))?;
        let billionths = percent.checked_mul(Rate::ALL.0 / 100)?.checked_add(fraction)?;
        (billionths <= Rate::ALL.0).then_some(Rate(billionths))
    };
    read().ok_or(MEND_RATE)
}

fn delay(text: &str) -> Result<Delay, Mend> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let (min, max) = (duration(min)?, duration(max)?);
    if min <= max { Ok(Delay { min, max }) } else { Err(MEND_RANGE) }
}

fn duration(text: &str) -> Result<u64, Mend> {
    let read = split(text, &TIMES).filter(|(number, _)| !number.is_empty());
    let (number, factor) = read.ok_or(MEND_DELAY)?;
    // A number beyond u64 is longer still.
    let number: u64 = whole(number).ok_or(MEND_LONG)?;
    number.checked_mul(factor).filter(|delay| *delay <= MAX_DELAY).ok_or(MEND_LONG)
}

/// The text that reads back as this value.
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("loss", self.loss),
            ("dup", self.dup),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("ecn", self.ecn),
        ];
        let rates = rates.into_iter().filter(|(_, rate)| *rate != Rate::NONE);
        let red = self.red.map(|red| format!("ecn={}:{}:{}", red.kmin, red.kmax, red.pmax));
        let mut items: Vec<String> = rates
            .map(|(name, rate)| format!("{name}={rate}"))
            .chain(red)
            .chain(self.delay.map(|delay| format!("delay={delay}")))
            .chain(self.rate.map(|rate| format!("rate={rate}")))
            .chain(self.buffer.map(|buffer| format!("buffer={buffer}")))
            .collect();
        if items.is_empty() {
            items.push("loss=0%".into());
        }
        items.extend(self.card.map(|card| format!("card={card}")));
        f.write_str(&items.join(","))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = Self::ALL.0 / 100;
        let (percent, fraction) = (self.0 / one, self.0 % one);
        let decimals = format!("{fraction:0width$}", width = DECIMALS);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{percent}%"),
            decimals => write!(f, "{percent}.{decimals}%"),
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.min, &TIMES)?;
        if self.max != self.min {
            f.write_str("..")?;
            write(f, self.max, &TIMES)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::quantity;
    use super::*;

    #[test]
    fn every_item_is_read_and_written_back() {
        let text = "loss=1%,dup=0.5%,reorder=100%,corrupt=0.0000001%,ecn=12.25%,delay=10us..2ms,rate=10G,buffer=64k";
        let spec: FaultSpec = text.parse().unwrap();
        let expected = FaultSpec {
            loss: Rate(10_000_000),
            dup: Rate(5_000_000),
            reorder: Rate::ALL,
            corrupt: Rate(1),
            ecn: Rate(122_500_000),
            delay: Some(Delay { min: 10_000, max: 2_000_000 }),
            rate: Some(BitRate::from_bits(10_000_000_000)),
            buffer: Some(Size::from_bytes(64 << 10)),
            red: None,
            card: None,
        };
        assert_eq!(spec, expected);
        assert_eq!(spec.to_string(), text);
        for text in [
            "loss=1%,card=3",
            "delay=7ns",
            "delay=1us,card=0",
            "loss=0%,card=1",
            "ecn=100k:400k:10%,rate=10G,card=2",
            "ecn=1:2:0.5%,rate=1500M,buffer=2M",
        ] {
            assert_eq!(text.parse::<FaultSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn items_come_in_any_order_and_numbers_in_any_spelling() {
        for (text, same) in [
            ("card=2,loss=1.50%", "loss=1.5%,card=2"),
            ("delay=1000ns..1ms,ecn=001%", "ecn=1%,delay=1us..1ms"),
            ("delay=10000ms", "delay=10000ms..10000ms"),
            ("delay=0us,loss=100.0000000%", "loss=100%,delay=0ns"),
        ] {
            assert_eq!(text.parse::<FaultSpec>().unwrap(), same.parse().unwrap(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write_instead() {
        for (text, item, mend) in [
            ("", "", MEND_ITEM),
            ("loss", "loss", MEND_ITEM),
            ("loss=1%,", "", MEND_ITEM),
            ("drop=1%", "drop=1%", MEND_ITEM),
            ("Loss=1%", "Loss=1%", MEND_ITEM),
            ("dup=1%, loss=1%", " loss=1%", MEND_ITEM),
            ("dup=1%,loss=1", "loss=1", MEND_RATE),
            ("loss=101%", "loss=101%", MEND_RATE),
            ("loss=100.0000001%", "loss=100.0000001%", MEND_RATE),
            ("loss=0.00000001%", "loss=0.00000001%", MEND_RATE),
            ("loss=-1%", "loss=-1%", MEND_RATE),
            ("loss=+1%", "loss=+1%", MEND_RATE),
            ("loss=1.%", "loss=1.%", MEND_RATE),
            ("loss=.5%", "loss=.5%", MEND_RATE),
            ("loss=%", "loss=%", MEND_RATE),
            ("loss=1e1%", "loss=1e1%", MEND_RATE),
            ("loss=99999999999%", "loss=99999999999%", MEND_RATE),
            ("loss=1%=2%", "loss=1%=2%", MEND_RATE),
            ("delay=5", "delay=5", MEND_DELAY),
            ("delay=ms", "delay=ms", MEND_DELAY),
            ("delay=1s", "delay=1s", MEND_DELAY),
            ("delay=1.5ms", "delay=1.5ms", MEND_DELAY),
            ("delay=1µs", "delay=1µs", MEND_DELAY),
            ("delay=1us..", "delay=1us..", MEND_DELAY),
            ("delay=1us..2us..3us", "delay=1us..2us..3us", MEND_DELAY),
            ("delay=2us..1us", "delay=2us..1us", MEND_RANGE),
            ("delay=10001ms", "delay=10001ms", MEND_LONG),
            ("delay=99999999999999999999ns", "delay=99999999999999999999ns", MEND_LONG),
            ("loss=1%,card=-1", "card=-1", MEND_CARD),
            ("loss=1%,card=", "card=", MEND_CARD),
            ("loss=1%,loss=2%", "loss=2%", MEND_TWICE),
            ("loss=1%,card=1,card=1", "card=1", MEND_TWICE),
            ("card=1", "card=1", MEND_EMPTY),
            ("rate=0", "rate=0", quantity::MEND_RATE),
            ("rate=0G", "rate=0G", quantity::MEND_RATE),
            ("rate=10", "rate=10", quantity::MEND_RATE),
            ("rate=1.5G", "rate=1.5G", quantity::MEND_RATE),
            ("rate=1001G", "rate=1001G", quantity::MEND_RATE),
            ("rate=99999999999999999999G", "rate=99999999999999999999G", quantity::MEND_RATE),
            ("rate=1G,buffer=0", "buffer=0", quantity::MEND_SIZE),
            ("rate=1G,buffer=2G", "buffer=2G", quantity::MEND_SIZE),
            ("loss=1%,buffer=1M", "buffer=1M", MEND_NO_RATE),
            ("ecn=100k:400k:10%,loss=1%", "ecn=100k:400k:10%", MEND_NO_RATE),
            ("rate=1G,ecn=400k:100k:10%", "ecn=400k:100k:10%", MEND_RED_ORDER),
            ("rate=1G,ecn=400k:400k:10%", "ecn=400k:400k:10%", MEND_RED_ORDER),
            ("rate=1G,ecn=100k:400k:101%", "ecn=100k:400k:101%", MEND_RATE),
            ("rate=1G,ecn=100k:400k", "ecn=100k:400k", MEND_RED),
            ("rate=1G,ecn=1:2:3%:4", "ecn=1:2:3%:4", MEND_RED),
            ("rate=1G,ecn=100k:2000k:10%", "ecn=100k:2000k:10%", MEND_BEYOND),
            ("rate=1G,buffer=64k,ecn=1k:65k:1%", "ecn=1k:65k:1%", MEND_BEYOND),
        ] {
            let refusal = text.parse::<FaultSpec>().unwrap_err();
            let Error::BadFault { item: found, mend: advice } = &refusal else {
                panic!("{text}: {refusal}");
            };
            assert_eq!((found.as_str(), *advice), (item, mend), "{text}");
            assert_eq!(refusal.to_string(), format!("fault `{item}`: {mend}"));
        }
    }

    #[test]
    fn marks_lie_between_the_thresholds() {
        let spec: FaultSpec = "rate=10G,ecn=100k:200k:20%".parse().unwrap();
        let share = |kib: u64| spec.red.unwrap().share(kib << 10).to_string();
        let shares = [0, 100, 150, 175, 200].map(share);
        assert_eq!(shares, ["0%", "0%", "10%", "15%", "20%"]);
        assert_eq!(spec.red.unwrap().share((200 << 10) + 1), Rate::ALL);
    }

    #[test]
    fn a_card_on_the_machines_network_has_no_rate() {
        let links: [Link; 2] = [Link::Switch, "udp".parse().unwrap()];
        let check = |text: &str| text.parse::<FaultSpec>().unwrap().check_links(&links);
        assert!(check("rate=10G,card=0").is_ok() && check("loss=1%").is_ok());
        for text in ["rate=10G", "rate=10G,card=1"] {
            let refusal = check(text).unwrap_err().to_string();
            assert_eq!(refusal, format!("fault `rate=10G`: {MEND_MACHINE}"));
        }
    }

    #[test]
    fn more_than_all_frames_are_all() {
        assert_eq!(Rate::from_billionths(u32::MAX), Rate::ALL);
        assert_eq!(Rate::from_billionths(10_000_000).to_string(), "1%");
    }
}
