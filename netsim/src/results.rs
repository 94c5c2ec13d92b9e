//! The figures of a run: as numbers, as CSV, and as charts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::chart::{Chart, Line};
use crate::flow::Flow;
use crate::time::Time;

/// One: shares are in millionths.
pub const WHOLE: u64 = 1_000_000;

/// The lengths of queues and the rates of flows at a time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The time.
    pub at: Time,
    /// Bytes that wait at each of the watched ports.
    pub queues: Vec<u64>,
    /// Bytes of payload that each flow has sent, and that have arrived.
    pub flows: Vec<(u64, u64)>,
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Picoseconds between two looks.
    pub interval: u64,
    /// The ports whose queues are looked at.
    pub watched: Vec<u32>,
    /// The figures of each look.
    pub samples: Vec<Sample>,
}

/// Jain's index of fairness in millionths: 1,000,000 where all are equal, and that by their number where one has all.
#[must_use]
pub fn jain(shares: impl IntoIterator<Item = u64>) -> u64 {
    let (mut count, mut sum, mut squares) = (0_u128, 0_u128, 0_u128);
    for share in shares {
        count += 1;
        sum += u128::from(share);
        squares += u128::from(share) * u128::from(share);
    }
    // Of nothing, all have the same.
    let whole = u128::from(WHOLE);
    (sum * sum * whole).checked_div(count * squares).unwrap_or(whole) as u64
}

/// Bits per second of so many bytes in so many picoseconds.
#[must_use]
pub fn rate(bytes: u64, picoseconds: u64) -> u64 {
    let bits = u128::from(bytes) * 8 * 1_000_000_000_000;
    bits.checked_div(picoseconds.into()).unwrap_or(0) as u64
}

impl Results {
    /// Two looks after each other.
    fn spans(&self) -> impl Iterator<Item = (&Sample, &Sample)> {
        self.samples.iter().zip(self.samples.iter().skip(1))
    }

    /// The fairness of each span between two looks, among the flows that had messages to send, in millionths.
    #[must_use]
    pub fn fairness(&self, flows: &[Flow]) -> Vec<(Time, u64)> {
        let of_span = |(before, after): (&Sample, &Sample)| {
            let active = flows.iter().enumerate();
            let active = active.filter(|(_, flow)| flow.is_active(before.at, after.at));
            let share = |(number, _): (usize, &Flow)| delivered(before, after, number);
            (after.at, jain(active.map(share)))
        };
        self.spans().map(of_span).collect()
    }

    /// Bytes in the watched ports' queues: `time_ns,port,bytes`.
    #[must_use]
    pub fn queues_csv(&self) -> String {
        let mut csv = String::from("time_ns,port,bytes\n");
        for sample in &self.samples {
            for (port, bytes) in self.watched.iter().zip(&sample.queues) {
                let _ = writeln!(csv, "{},{port},{bytes}", sample.at.nanos());
            }
        }
        csv
    }

    /// The rate at which each flow sent, and at which its bytes arrived for the first time, in bits per second:
    /// `time_ns,flow,rate,goodput`.
    #[must_use]
    pub fn flows_csv(&self) -> String {
        let mut csv = String::from("time_ns,flow,rate,goodput\n");
        for (before, after) in self.spans() {
            let time = after.at.0 - before.at.0;
            for number in 0..after.flows.len() {
                let rates = [sent(before, after, number), delivered(before, after, number)];
                let [sent, arrived] = rates.map(|bytes| rate(bytes, time));
                let _ = writeln!(csv, "{},{number},{sent},{arrived}", after.at.nanos());
            }
        }
        csv
    }

    /// Jain's index of the flows that had messages to send: `time_ns,jain_millionths`.
    #[must_use]
    pub fn fairness_csv(&self, flows: &[Flow]) -> String {
        let mut csv = String::from("time_ns,jain_millionths\n");
        for (at, index) in self.fairness(flows) {
            let _ = writeln!(csv, "{},{index}", at.nanos());
        }
        csv
    }

    /// The messages that are complete: `flow,message,bytes,start_ns,duration_ns`.
    #[must_use]
    pub fn messages_csv(flows: &[Flow]) -> String {
        let mut csv = String::from("flow,message,bytes,start_ns,duration_ns\n");
        for (number, flow) in flows.iter().enumerate() {
            for (message, (it, end)) in flow.messages.iter().zip(&flow.ends).enumerate() {
                let (start, end) = (it.start.nanos(), end.nanos());
                let _ = writeln!(csv, "{number},{message},{},{start},{}", it.bytes, end - start);
            }
        }
        csv
    }

    /// The watched queues over time, as SVG.
    #[must_use]
    pub fn queues_svg(&self) -> String {
        let lines = self.watched.iter().enumerate().map(|(number, port)| Line {
            name: format!("port {port}"),
            points: self.samples.iter().map(|it| (it.at.nanos(), it.queues[number])).collect(),
        });
        Chart { title: "Queues", y: "bytes", lines: lines.collect() }.svg()
    }

    /// Flows' goodput over time, as SVG.
    #[must_use]
    pub fn flows_svg(&self, flows: &[Flow]) -> String {
        self.of_each("Goodput", flows, delivered)
    }

    /// The rates at which flows sent over time, as SVG.
    #[must_use]
    pub fn rates_svg(&self, flows: &[Flow]) -> String {
        self.of_each("Rates", flows, sent)
    }

    /// The goodput of all flows of each priority over time, as SVG.
    #[must_use]
    pub fn priorities_svg(&self, flows: &[Flow]) -> String {
        let mut of: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (number, flow) in flows.iter().enumerate() {
            of.entry(flow.priority()).or_default().push(number);
        }
        let line = |(priority, flows): (u8, Vec<usize>)| {
            self.line(format!("priority {priority}"), &flows, delivered)
        };
        let lines = of.into_iter().map(line).collect();
        Chart { title: "Goodput by priority", y: "bit/s", lines }.svg()
    }

    /// A chart with the line of each flow.
    fn of_each(&self, title: &'static str, flows: &[Flow], bytes: BytesBetween) -> String {
        let of_flow = |(number, flow): (usize, &Flow)| {
            self.line(format!("host {} to {}", flow.from, flow.to), &[number], bytes)
        };
        let lines = (0..).zip(flows).map(of_flow).collect();
        Chart { title, y: "bit/s", lines }.svg()
    }

    /// The bytes of some flows between each two looks, in bits per second.
    fn line(&self, name: String, flows: &[usize], bytes: BytesBetween) -> Line {
        let of_span = |(before, after): (&Sample, &Sample)| {
            let sum = flows.iter().map(|flow| bytes(before, after, *flow)).sum();
            (after.at.nanos(), rate(sum, after.at.0 - before.at.0))
        };
        Line { name, points: self.spans().map(of_span).collect() }
    }

    /// Fairness over time, as SVG.
    #[must_use]
    pub fn fairness_svg(&self, flows: &[Flow]) -> String {
        let points = self.fairness(flows).into_iter().map(|(at, index)| (at.nanos(), index));
        let line = Line { name: "Jain's index".into(), points: points.collect() };
        Chart { title: "Fairness", y: "millionths", lines: vec![line] }.svg()
    }

    /// The share of messages by the time that they took, as SVG.
    #[must_use]
    pub fn messages_svg(flows: &[Flow]) -> String {
        let mut times: Vec<u64> = flows
            .iter()
            .flat_map(|flow| flow.messages.iter().zip(&flow.ends))
            .map(|(message, end)| end.nanos() - message.start.nanos())
            .collect();
        times.sort_unstable();
        let count = times.len() as u64;
        let share = |(number, time): (u64, u64)| (time, (number + 1) * WHOLE / count);
        let points = (0..).zip(times).map(share).collect();
        let line = Line { name: "messages".into(), points };
        Chart { title: "Completion times", y: "millionths", lines: vec![line] }.svg()
    }
}

/// Bytes of a flow between two looks.
type BytesBetween = fn(&Sample, &Sample, usize) -> u64;

/// Bytes that a flow, if there was one yet, sent between two looks.
fn sent(before: &Sample, after: &Sample, flow: usize) -> u64 {
    after.flows[flow].0 - before.flows.get(flow).map_or(0, |then| then.0)
}

/// Bytes of a flow that arrived between two looks.
fn delivered(before: &Sample, after: &Sample, flow: usize) -> u64 {
    let now = after.flows.get(flow).map_or(0, |now| now.1);
    now - before.flows.get(flow).map_or(0, |then| then.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_alone() {
        assert_eq!(jain([5, 5, 5, 5]), WHOLE);
        assert_eq!(jain([7, 0, 0, 0]), WHOLE / 4);
        assert_eq!(jain([0, 0]), WHOLE);
        // The parking lot: one flow has half, and seven the other half.
        assert_eq!(jain([7, 1, 1, 1, 1, 1, 1, 1]), 437_500);
    }

    #[test]
    fn rates_are_in_bits_per_second() {
        assert_eq!(rate(12_500, 1_000_000), 100_000_000_000);
        assert_eq!(rate(1, 0), 0);
    }
}
