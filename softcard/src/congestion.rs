//! A card's reaction to congestion, as a value and as the text that users write.
//!
//! The text is an algorithm, and the changes of its defaults, as in `dcqcn-mlx5,min_rate=10,np=off`.

use std::fmt;
use std::str::FromStr;

use roce::window::{Dcqcn, DcqcnParameters};
use roce::{NotificationPoint, OutOfRange, Stack};

use crate::Error;
use crate::port::{BitRate, whole};

/// The rate that a port's line has where the cable has none of its own.
const LINE: BitRate = BitRate::from_bits(100_000_000_000);

/// A card's reaction to congestion: how it notifies its peers, and whether its queue pairs react to notifications.
///
/// By default it notifies them and does not react.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    algorithm: Algorithm,
    line: Option<BitRate>,
    point: NotificationPoint,
    /// Parameters that are not as in the algorithm's set.
    changes: Vec<(String, u32)>,
}

/// The algorithm of senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Algorithm {
    #[default]
    Off,
    /// DCQCN with the parameters of its paper.
    Paper,
    /// DCQCN with mlx5's.
    Mlx5,
}

const ALGORITHMS: [(&str, Algorithm); 3] =
    [("off", Algorithm::Off), ("dcqcn-paper", Algorithm::Paper), ("dcqcn-mlx5", Algorithm::Mlx5)];

impl Algorithm {
    /// Its parameters on a line of so many bits per second.
    fn parameters(self, line: u64) -> Option<DcqcnParameters> {
        match self {
            Self::Off => None,
            Self::Paper => Some(DcqcnParameters::paper(line)),
            Self::Mlx5 => Some(DcqcnParameters::mlx5()),
        }
    }

    /// How far apart its notifications are, in microseconds.
    const fn between_cnps(self) -> u32 {
        match self {
            Self::Paper => 50,
            Self::Off | Self::Mlx5 => NotificationPoint::MIN_TIME_BETWEEN_CNPS,
        }
    }
}

const MEND_ALGORITHM: &str = "write off, dcqcn-paper or dcqcn-mlx5, and behind it what is to be other than its defaults, such as dcqcn-mlx5,min_rate=10";
const MEND_ITEM: &str = "write np=on or np=off, line= with a rate, or a parameter of the notification point or of the reaction point with a whole number, such as min_rate=10";
const MEND_OFF: &str = "queue pairs react with dcqcn-paper or dcqcn-mlx5 only; with off write np=, cnp_dscp= or min_time_between_cnps=";
const MEND_TWICE: &str = "write each item once";

impl Congestion {
    /// Takes an item; an error is the advice.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "np" => {
                self.point.enable = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(MEND_ITEM.into()),
                };
                return Ok(());
            }
            "min_time_between_cnps" => {
                self.point.min_time_between_cnps = whole(value).ok_or(MEND_ITEM)?
            }
            "cnp_dscp" => {
                let value = whole(value).ok_or(MEND_ITEM)?;
                let beyond = OutOfRange { name: "cnp_dscp", value, least: 0, most: 63 };
                let dscp = u8::try_from(value).map_err(|_| beyond.to_string())?;
                self.point.cnp_dscp = Some(dscp);
            }
            "line" => {
                self.line = Some(value.parse()?);
                return self.must_react();
            }
            _ => return self.set_parameter(name, value),
        }
        self.point.check().map_err(|error| error.to_string())
    }

    /// Refuses parameters that only reacting senders have.
    fn must_react(&self) -> Result<(), String> {
        match self.algorithm {
            Algorithm::Off => Err(MEND_OFF.into()),
            Algorithm::Paper | Algorithm::Mlx5 => Ok(()),
        }
    }

    fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), String> {
        if DcqcnParameters::mlx5().set(name, 1).is_none() {
            return Err(MEND_ITEM.into());
        }
        self.must_react()?;
        let number = whole(value).ok_or(MEND_ITEM)?;
        if let Some(Err(error)) = DcqcnParameters::mlx5().set(name, number) {
            return Err(error.to_string());
        }
        self.changes.push((name.to_owned(), number));
        Ok(())
    }

    /// The settings of a card's stack, with a cable that has a rate, or none of its own.
    ///
    /// # Errors
    /// The parameter that is out of range; none of a value that was read is.
    pub(crate) fn reaction(&self, cable: Option<BitRate>) -> Result<Reaction, OutOfRange> {
        let line = self.line.or(cable).unwrap_or(LINE).bits();
        let Some(mut parameters) = self.algorithm.parameters(line) else {
            return Ok(Reaction { point: self.point, dcqcn: None });
        };
        for (name, value) in &self.changes {
            parameters.set(name, *value).transpose()?;
        }
        Ok(Reaction { point: self.point, dcqcn: Some(Dcqcn::new(line, parameters)?) })
    }
}

impl FromStr for Congestion {
    type Err = Error;

    /// Reads an algorithm and items.
    ///
    /// # Errors
    /// [`Error::BadCongestion`] for the first that is wrong.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |item: &str, mend: String| Error::BadCongestion { item: item.to_owned(), mend };
        let mut items = text.split(',');
        let first = items.next().unwrap_or_default();
        let named = ALGORITHMS.iter().find(|(name, _)| *name == first);
        let (_, algorithm) = named.ok_or_else(|| bad(first, MEND_ALGORITHM.into()))?;
        let mut congestion = Self { algorithm: *algorithm, ..Self::default() };
        congestion.point.min_time_between_cnps = algorithm.between_cnps();
        let mut names = Vec::new();
        for item in items {
            let (name, value) =
                item.split_once('=').ok_or_else(|| bad(item, MEND_ITEM.to_owned()))?;
            congestion.set(name, value).map_err(|mend| bad(item, mend))?;
            if names.contains(&name) {
                return Err(bad(item, MEND_TWICE.into()));
            }
            names.push(name);
        }
        Ok(congestion)
    }
}

/// The text that reads back as this value.
impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = ALGORITHMS.iter().find(|(_, algorithm)| *algorithm == self.algorithm);
        f.write_str(named.map_or("off", |(name, _)| name))?;
        if let Some(line) = self.line {
            write!(f, ",line={line}")?;
        }
        for (name, value) in &self.changes {
            write!(f, ",{name}={value}")?;
        }
        let NotificationPoint { enable, min_time_between_cnps, cnp_dscp } = self.point;
        if min_time_between_cnps != self.algorithm.between_cnps() {
            write!(f, ",min_time_between_cnps={min_time_between_cnps}")?;
        }
        if let Some(dscp) = cnp_dscp {
            write!(f, ",cnp_dscp={dscp}")?;
        }
        if enable { Ok(()) } else { f.write_str(",np=off") }
    }
}

/// The settings of each stack of a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaction {
    point: NotificationPoint,
    dcqcn: Option<Dcqcn>,
}

impl Reaction {
    /// Tells a stack that has no queue pairs yet.
    pub(crate) fn tell(&self, stack: &mut Stack) {
        // Values out of range were refused when they were read.
        let _ = stack.set_notification_point(self.point);
        if let Some(dcqcn) = &self.dcqcn {
            stack.set_windows(dcqcn.clone().windows());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Congestion {
        text.parse().unwrap()
    }

    fn rate(text: &str, cable: Option<u64>) -> u64 {
        let reaction = read(text).reaction(cable.map(BitRate::from_bits)).unwrap();
        reaction.dcqcn.unwrap().rate()
    }

    #[test]
    fn what_is_read_is_written_back() {
        for text in [
            "off",
            "off,np=off",
            "off,min_time_between_cnps=50,cnp_dscp=48",
            "dcqcn-paper",
            "dcqcn-mlx5,line=10G,min_rate=1,gd=11,clamp_tgt_rate=1,cnp_dscp=0,np=off",
        ] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("dcqcn-paper,min_time_between_cnps=50,np=on"), read("dcqcn-paper"));
        assert_eq!(read("off"), Congestion::default());
    }

    #[test]
    fn the_lines_rate_is_what_is_said_or_its_cables_or_the_ports() {
        assert_eq!(rate("dcqcn-paper", None), 100_000_000_000);
        assert_eq!(rate("dcqcn-paper", Some(10_000_000_000)), 10_000_000_000);
        assert_eq!(rate("dcqcn-mlx5,line=40G", Some(10_000_000_000)), 40_000_000_000);
        assert_eq!(rate("dcqcn-mlx5,max_rate=7", None), 7_000_000);
        for text in ["off", "off,np=off"] {
            assert!(read(text).reaction(None).unwrap().dcqcn.is_none());
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write_instead() {
        for (text, item, mend) in [
            ("", "", MEND_ALGORITHM),
            ("dcqcn", "dcqcn", MEND_ALGORITHM),
            ("np=off", "np=off", MEND_ALGORITHM),
            ("off,np", "np", MEND_ITEM),
            ("off,np=0", "np=0", MEND_ITEM),
            ("off,kmin=3", "kmin=3", MEND_ITEM),
            ("off,min_rate=3", "min_rate=3", MEND_OFF),
            ("off,line=10G", "line=10G", MEND_OFF),
            ("dcqcn-mlx5,min_rate=+3", "min_rate=+3", MEND_ITEM),
            ("dcqcn-mlx5,min_rate=", "min_rate=", MEND_ITEM),
            ("dcqcn-mlx5,gd=1,gd=2", "gd=2", MEND_TWICE),
            ("dcqcn-mlx5,gd=16", "gd=16", "gd is 16; it can be 0 to 15"),
            ("off,cnp_dscp=64", "cnp_dscp=64", "cnp_dscp is 64; it can be 0 to 63"),
            ("off,cnp_dscp=300", "cnp_dscp=300", "cnp_dscp is 300; it can be 0 to 63"),
        ] {
            let refusal = text.parse::<Congestion>().unwrap_err();
            assert_eq!(refusal.to_string(), format!("congestion `{item}`: {mend}"), "{text}");
        }
        let refusal = "dcqcn-mlx5,line=0".parse::<Congestion>().unwrap_err().to_string();
        assert!(refusal.starts_with("congestion `line=0`: write bits per second"), "{refusal}");
    }
}
