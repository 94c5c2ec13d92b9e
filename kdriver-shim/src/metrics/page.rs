//! The page for Prometheus, in its text format.
//!
//! A port's state and traffic have the names that node_exporter's collector for InfiniBand gives them; every
//! counter of `balboa counters` is `balboa_hw_NAME_total`; balboad's own metrics begin with `balboa_`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use crate::cards::{Card, Window};
use crate::clients::Stage;
use crate::events::Clients;
use crate::listeners::ObjectCount;

/// The port's rate, of which its files say the same: 100 Gbit/s.
const BYTES_PER_SECOND: u64 = 12_500_000_000;

/// Bytes and packets of payload, by the names of the counters that have them.
const TRAFFIC: [(&str, &str, &str); 4] = [
    (
        "node_infiniband_port_data_transmitted_bytes_total",
        "sent_bytes",
        "Payload that the port has sent",
    ),
    (
        "node_infiniband_port_data_received_bytes_total",
        "rcvd_bytes",
        "Payload that the port has received",
    ),
    (
        "node_infiniband_port_packets_transmitted_total",
        "sent_pkts",
        "RoCE packets that the port has sent",
    ),
    (
        "node_infiniband_port_packets_received_total",
        "rcvd_pkts",
        "RoCE packets that the port has received",
    ),
];

/// The values of one name.
#[derive(Debug)]
struct Family {
    kind: &'static str,
    help: String,
    samples: Vec<String>,
}

/// The page, by the metrics' names.
#[derive(Debug, Default)]
struct MetricsPage {
    families: BTreeMap<String, Family>,
}

impl MetricsPage {
    fn add(
        &mut self,
        name: &str,
        kind: &'static str,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        let family = self.families.entry(name.to_owned());
        let family =
            family.or_insert_with(|| Family { kind, help: help.to_owned(), samples: Vec::new() });
        let labels: Vec<String> =
            labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        family.samples.push(format!("{name}{labels} {value}\n"));
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: impl Display) {
        self.add(name, "gauge", help, labels, value);
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in self.families {
            // To write to a string does not fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            text.extend(samples);
        }
        text
    }
}

/// A label's text as the format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Writes the page.
#[must_use]
pub fn page(cards: &mut [Card], clients: &Clients) -> String {
    let mut page = MetricsPage::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauge("balboa_build_info", "Release of balboad", &version, 1);
    for (role, stage) in [("provider", Stage::Provider), ("tool", Stage::Tool)] {
        let count = clients.values().filter(|client| client.stage == stage).count();
        let help = "Programs that are connected: of verbs, and tools";
        page.gauge("balboa_clients", help, &[("role", role)], count);
    }
    for card in cards.iter_mut().filter(|card| card.is_there()) {
        add_card(&mut page, card);
    }
    page.text()
}

fn add_card(page: &mut MetricsPage, card: &mut Card) {
    let info = card.info();
    let device = info.name.as_str();
    let about = [
        ("device", device),
        ("board_id", info.board.as_str()),
        ("firmware_version", info.firmware.as_str()),
        ("hca_type", info.board.as_str()),
    ];
    page.gauge("node_infiniband_info", "What the device is", &about, 1);
    let port = [("device", device), ("port", "1")];
    let (state, physical) = if info.port.link_up { (4, 5) } else { (1, 3) };
    let gauges = [
        ("node_infiniband_state_id", "State of the port: 1 down, 4 active", state),
        (
            "node_infiniband_physical_state_id",
            "Physical state of the port: 3 disabled, 5 link up",
            physical,
        ),
        ("node_infiniband_rate_bytes_per_second", "Rate of the port", BYTES_PER_SECOND),
    ];
    for (name, help, value) in gauges {
        page.gauge(name, help, &port, value);
    }
    let counters = card.device.counters();
    for (name, counter, help) in TRAFFIC {
        if let Some((_, value)) = counters.iter().find(|(name, _)| name == counter) {
            page.add(name, "counter", help, &port, value);
        }
    }
    for (counter, value) in &counters {
        let name = format!("balboa_hw_{counter}_total");
        let help = format!("Counter {counter} of the card");
        page.add(&name, "counter", &help, &port, value);
    }
    for window in card.windows() {
        add_window(page, device, &window);
    }
}

fn add_window(page: &mut MetricsPage, device: &str, window: &Window<'_>) {
    let vfpga = window.index.to_string();
    let labels = [("device", device), ("vfpga", vfpga.as_str())];
    let alive = u8::from(window.engine.death().is_none());
    page.gauge("balboa_engine_alive", "1 while the engine of the vFPGA answers", &labels, alive);
    let ObjectCount { cqs, qps, srqs } = window.users.listeners.count();
    for (name, help, count) in [
        ("balboa_completion_queues", "Completion queues of programs", cqs),
        ("balboa_queue_pairs", "Queue pairs of programs", qps),
        ("balboa_shared_receive_queues", "Shared receive queues of programs", srqs),
    ] {
        page.gauge(name, help, &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_explained_once_and_its_labels_are_escaped() {
        let mut page = MetricsPage::default();
        for device in ["a", "b\"\\\n"] {
            page.add("x_total", "counter", "Of x", &[("device", device)], u64::MAX);
        }
        page.gauge("a", "Of a", &[], 1);
        assert_eq!(
            page.text(),
            "# HELP a Of a\n# TYPE a gauge\na 1\n# HELP x_total Of x\n# TYPE x_total counter\n\
             x_total{device=\"a\"} 18446744073709551615\n\
             x_total{device=\"b\\\"\\\\\\n\"} 18446744073709551615\n"
        );
    }
}
