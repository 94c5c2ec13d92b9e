//! The reaction of hosts to congestion.

use roce::window::{Dcqcn, DcqcnParameters, Swift, SwiftParameters};
use roce::{NotificationPoint, OutOfRange, Stack};
use serde::Deserialize;

/// How all hosts react to marks, and tell each other of them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Congestion {
    /// The algorithm of senders.
    pub algorithm: Algorithm,
    /// The smallest rate in Mb/s; 0 for a hundredth of the line's.
    #[serde(default)]
    pub min_rate: u32,
    /// The shortest time between two notifications of a queue pair, in microseconds; 0 for mlx5's.
    #[serde(default)]
    pub min_time_between_cnps: u32,
    /// The DSCP of notifications, whose upper half is their priority; that of the flow where there is none.
    pub cnp_dscp: Option<u8>,
}

/// The algorithm by which a sender reacts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// DCQCN with the parameters of its paper.
    DcqcnPaper,
    /// DCQCN with mlx5's.
    DcqcnMlx5,
    /// A window by round trips, after Swift. It has no smallest rate.
    Swift,
}

impl Congestion {
    /// Gives all queue pairs that a host makes from now on these windows, for a line of so many bits per second.
    pub fn set_up(&self, line: u64, stack: &mut Stack) -> Result<(), OutOfRange> {
        stack.set_notification_point(NotificationPoint {
            enable: true,
            min_time_between_cnps: self.min_time_between_cnps,
            cnp_dscp: self.cnp_dscp,
        })?;
        let set = match self.algorithm {
            Algorithm::DcqcnPaper => DcqcnParameters::paper(line),
            Algorithm::DcqcnMlx5 => DcqcnParameters::mlx5(),
            Algorithm::Swift => {
                stack.set_windows(Swift::new(SwiftParameters::default())?.windows());
                return Ok(());
            }
        };
        let parameters = DcqcnParameters { min_rate: self.min_rate, ..set };
        stack.set_windows(Dcqcn::new(line, parameters)?.windows());
        Ok(())
    }
}
