//! The command `balboa top`: the activity of cards, programs and QPs, as it changes.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::raw::IntoRawMode as _;
use ratatui::termion::screen::IntoAlternateScreen as _;
use serde_json::{Value, json};
use terminal::say;

use crate::args;
use crate::cards::{Rates, counts};
use crate::state::{self, FORMAT, items, text};

mod screen;

/// PSNs have 24 bits. A PSN that seems to be more than half of them ahead is behind, by a retransmission.
const PSNS: u64 = 1 << 24;
/// Byte of Ctrl-C where the terminal makes no signal of it.
const CTRL_C: u8 = 3;

/// Shows it until the user has seen enough.
///
/// # Errors
/// When balboad does not answer, or the terminal cannot be written to.
pub fn top(arguments: &args::Top) -> anyhow::Result<()> {
    let args::Top { state_dir, seconds, count, json } = arguments;
    let period = Duration::from_secs((*seconds).into());
    let look = || -> anyhow::Result<Sample> {
        let state = state::fetch(state_dir.path())?;
        Ok(Sample { at: Instant::now(), state })
    };
    let mut left = *count;
    let mut before = look()?;
    if *json || !io::stdout().is_terminal() {
        while left != Some(0) {
            std::thread::sleep(period);
            let now = look()?;
            let view = View::of(&before, &now, Sort::default());
            match json {
                true => say(format_args!("{}\n", document(&view)))?,
                false => say(format_args!("{}", plain(&view)))?,
            }
            before = now;
            left = left.map(|left| left.saturating_sub(1));
        }
        return Ok(());
    }
    let out = io::stdout().into_raw_mode().context("the terminal")?;
    let out = out.into_alternate_screen().context("the terminal")?;
    let mut terminal = Terminal::new(TermionBackend::new(out)).context("the terminal")?;
    let (mut now, mut sort) = (look()?, Sort::default());
    while left != Some(0) {
        let view = View::of(&before, &now, sort);
        terminal.draw(|frame| screen::draw(frame, &view)).context("the terminal")?;
        let until = Instant::now() + period;
        match key(until)? {
            Some(b'q' | b'Q' | CTRL_C) => break,
            Some(b's' | b'S') => sort = sort.next(),
            Some(_) => {}
            None => {
                before = std::mem::replace(&mut now, look()?);
                left = left.map(|left| left.saturating_sub(1));
            }
        }
    }
    Ok(())
}

/// The next key; `None` when it is time to look again.
fn key(until: Instant) -> anyhow::Result<Option<u8>> {
    let input = io::stdin();
    let left = until.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    if poll(&mut fds, left).context("poll")? == 0 {
        return Ok(None);
    }
    // Not by the library's buffer, of which poll knows nothing.
    let mut byte = [0];
    match nix::unistd::read(&input, &mut byte).context("standard input")? {
        0 => Ok(Some(b'q')),
        _ => Ok(byte.first().copied()),
    }
}

/// A state, and when it was.
struct Sample {
    at: Instant,
    state: Value,
}

/// The order of programs and QPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// The ones with the highest rate first.
    #[default]
    Rate,
    /// Sorts by the number of their process.
    Process,
    /// Sorts by the name of their program.
    Command,
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Rate => Self::Process,
            Self::Process => Self::Command,
            Self::Command => Self::Rate,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Process => "process",
            Self::Command => "command",
        }
    }
}

/// The rates of a card.
struct CardLine {
    name: String,
    up: bool,
    /// Bits of payload sent and received.
    bits: [f64; 2],
    /// Packets sent and received.
    packets: [f64; 2],
    retransmitted: f64,
    /// The rate of all drops and failures.
    bad: f64,
    qps: u64,
    /// QPs that have services.
    served: u64,
}

/// The rates of a program, or of one of its QPs.
struct Line {
    pid: u64,
    command: String,
    /// Packets sent and received, by the PSNs of its QPs.
    packets: [f64; 2],
    /// The further columns.
    cells: Vec<String>,
    /// The same for programs, each under its name.
    facts: Value,
}

/// All that is shown.
struct View {
    head: String,
    /// Since the look before.
    seconds: f64,
    sort: Sort,
    cards: Vec<CardLine>,
    clients: Vec<Line>,
    qps: Vec<Line>,
}

impl View {
    fn of(before: &Sample, now: &Sample, sort: Sort) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let old = psns(&before.state);
        let (mut clients, mut qps) = (Vec::new(), Vec::new());
        for client in items(&now.state["clients"]).iter().filter(|it| it["role"] == "provider") {
            let (pid, command) = (client["pid"].as_u64().unwrap_or(0), text(&client["command"]));
            let mut sum = [0.0; 2];
            for qp in items(&client["queue_pairs"]) {
                let from = old.get(&Key::of(qp));
                let packets = [0, 1].map(|way: usize| match (from, Key::psns(qp)) {
                    (Some(from), now) => advance(from.get(way), now.get(way)) / seconds,
                    (None, _) => 0.0,
                });
                for (sum, packets) in sum.iter_mut().zip(packets) {
                    *sum += packets;
                }
                let number = |field: &str| qp[field].as_u64().unwrap_or(0);
                let cells = vec![
                    format!("{:#08x}", number("qpn")),
                    format!("balboa{}", text(&qp["card"])),
                    text(&qp["transport"]),
                    text(&qp["state"]),
                    format!("{:#08x} at {}", number("dest_qpn"), text(&qp["dest_gid"])),
                ];
                let names = ["qpn", "card", "transport", "state", "dest_qpn", "dest_gid"];
                let facts = names.map(|name| (name.to_owned(), qp[name].clone()));
                let facts = Value::Object(facts.into_iter().collect());
                qps.push(Line { pid, command: command.clone(), packets, cells, facts });
            }
            let used = |name: &str| text(&client["usage"][name]);
            let cards = items(&client["places"]).iter().map(|it| text(&it["card"]));
            let cells = vec![
                cards.collect::<Vec<_>>().join(","),
                used("queue_pairs"),
                used("memory_regions"),
            ];
            let usage = ["queue_pairs", "memory_regions"].map(|name| client["usage"][name].clone());
            let cards = items(&client["places"]).iter().map(|it| it["card"].clone());
            let facts = json!({
                "cards": cards.collect::<Vec<_>>(),
                "queue_pairs": usage[0], "memory_regions": usage[1],
            });
            clients.push(Line { pid, command, packets: sum, cells, facts });
        }
        for lines in [&mut clients, &mut qps] {
            lines.sort_by(|a, b| {
                let rate = |line: &Line| line.packets.iter().sum::<f64>();
                let by = match sort {
                    Sort::Rate => rate(b).total_cmp(&rate(a)),
                    Sort::Process => a.pid.cmp(&b.pid),
                    Sort::Command => a.command.cmp(&b.command),
                };
                by.then(a.pid.cmp(&b.pid)).then_with(|| a.cells.cmp(&b.cells))
            });
        }
        let of = |field: &str| text(&now.state[field]);
        Self {
            head: format!(
                "balboad {}, process {}, in {}",
                of("version"),
                of("pid"),
                of("state_dir")
            ),
            seconds,
            sort,
            cards: cards(&before.state, &now.state, seconds),
            clients,
            qps,
        }
    }
}

fn cards(before: &Value, now: &Value, seconds: f64) -> Vec<CardLine> {
    let count = |attached: &Value| attached["count"].as_u64().unwrap_or(0);
    let line = |card: &Value| {
        let old = items(&before["cards"]).iter().find(|it| it["card"] == card["card"]);
        let (old, new) = (old.map(counts).unwrap_or_default(), counts(card));
        let rates = Rates { seconds, from: &old };
        let rate = |name: &str| rates.of(name, new.get(name).copied().unwrap_or(0));
        let is_bad = |name: &&String| name.starts_with("drop_") || name.ends_with("_err");
        let windows = items(&card["windows"]).iter();
        CardLine {
            name: text(&card["name"]),
            up: card["link_up"] == true,
            bits: ["sent_bytes", "rcvd_bytes"].map(|name| rate(name) * 8.0),
            packets: ["sent_pkts", "rcvd_pkts"].map(rate),
            retransmitted: rate("retransmitted_pkts"),
            bad: new.keys().filter(is_bad).map(|name| rate(name)).sum(),
            qps: windows.filter_map(|window| window["queue_pairs"].as_u64()).sum(),
            served: items(&card["services"]["attached"]).iter().map(count).sum(),
        }
    };
    items(&now["cards"]).iter().map(line).collect()
}

/// The identity of the connection of a QP that PSNs belong to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key([u64; 3]);

impl Key {
    fn of(qp: &Value) -> Self {
        Self(["card", "qpn", "dest_qpn"].map(|field| qp[field].as_u64().unwrap_or(0)))
    }

    /// The PSNs that come next, sent and received.
    fn psns(qp: &Value) -> [u64; 2] {
        ["sq_psn", "rq_psn"].map(|field| qp[field].as_u64().unwrap_or(0))
    }
}

fn psns(state: &Value) -> BTreeMap<Key, [u64; 2]> {
    let clients = items(&state["clients"]).iter();
    let qps = clients.flat_map(|client| items(&client["queue_pairs"]));
    qps.map(|qp| (Key::of(qp), Key::psns(qp))).collect()
}

/// Packets from one PSN to another.
fn advance(from: Option<&u64>, to: Option<&u64>) -> f64 {
    let (Some(from), Some(to)) = (from, to) else { return 0.0 };
    let ahead = to.wrapping_sub(*from) % PSNS;
    if ahead < PSNS / 2 { ahead as f64 } else { 0.0 }
}

/// A rate with a unit of a thousand, a million or more.
fn short(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| rate >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", rate / size),
        None => format!("{rate:.0}"),
    }
}

/// All of it, for programs.
fn document(view: &View) -> Value {
    let cards: Vec<Value> = view
        .cards
        .iter()
        .map(|card| {
            let ([tx_bits, rx_bits], [tx, rx]) = (card.bits, card.packets);
            json!({
                "name": card.name, "link_up": card.up, "queue_pairs": card.qps,
                "served_queue_pairs": card.served,
                "tx_bits_per_s": tx_bits, "rx_bits_per_s": rx_bits,
                "tx_packets_per_s": tx, "rx_packets_per_s": rx,
                "retransmitted_per_s": card.retransmitted, "bad_per_s": card.bad,
            })
        })
        .collect();
    let lines = |lines: &[Line]| -> Vec<Value> {
        let line = |line: &Line| {
            let mut facts = line.facts.clone();
            facts["pid"] = json!(line.pid);
            facts["command"] = json!(line.command);
            let [tx, rx] = line.packets;
            (facts["tx_packets_per_s"], facts["rx_packets_per_s"]) = (json!(tx), json!(rx));
            facts
        };
        lines.iter().map(line).collect()
    };
    json!({
        "format": FORMAT, "seconds": view.seconds, "cards": cards,
        "clients": lines(&view.clients), "queue_pairs": lines(&view.qps),
    })
}

/// A line for each card, for an output that is no screen.
fn plain(view: &View) -> String {
    let line = |card: &CardLine| {
        let [sent, received] = card.bits.map(short);
        let [sent_packets, received_packets] = card.packets.map(short);
        format!(
            "{} {} sent {sent} b/s {sent_packets} pkt/s received {received} b/s {received_packets} pkt/s retransmitted {}/s bad {}/s QPs {} served {}\n",
            card.name,
            if card.up { "up" } else { "down" },
            short(card.retransmitted),
            short(card.bad),
            card.qps,
            card.served
        )
    };
    view.cards.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn view(sort: Sort) -> View {
        let state = |bytes: u64, psn: u64| {
            let qp = |qpn: u64, psn: u64| {
                json!({ "qpn": qpn, "card": 0, "transport": "RC", "state": "RTS", "dest_qpn": 9,
                        "dest_gid": "::ffff:10.0.0.2", "sq_psn": psn, "rq_psn": 5 })
            };
            let client = |pid: u64, command: &str, psn| {
                json!({ "pid": pid, "command": command, "role": "provider",
                        "places": [{ "card": 0 }], "usage": { "queue_pairs": 1, "memory_regions": 2 },
                        "queue_pairs": [qp(pid, psn)] })
            };
            json!({
                "version": "1.2", "pid": 7, "state_dir": "D",
                "cards": [{ "card": 0, "name": "balboa0", "link_up": true,
                            "windows": [{ "queue_pairs": 2 }],
                            "services": { "attached": [{ "count": 1 }] },
                            "counters": { "sent_bytes": bytes, "drop_malformed": 0 } }],
                "clients": [client(10, "b\u{1b}[2J", 100), client(11, "a", psn),
                            { "pid": 1, "role": "tool" }],
            })
        };
        let at = Instant::now();
        let before = Sample { at, state: state(0, 0xff_fffe) };
        let now = Sample { at: at + Duration::from_secs(2), state: state(2_000_000, 18) };
        View::of(&before, &now, sort)
    }

    #[test]
    fn rates_are_of_counters_and_of_psns_that_wrap() {
        let shown = view(Sort::Rate);
        assert_eq!(shown.cards[0].bits[0], 8e6);
        assert_eq!(shown.clients[0].packets, [10.0, 0.0], "20 PSNs in two seconds");
        assert_eq!(
            plain(&shown),
            "balboa0 up sent 8.00M b/s 0 pkt/s received 0 b/s 0 pkt/s retransmitted 0/s bad 0/s QPs 2 served 1\n"
        );
        assert_eq!(advance(Some(&5), Some(&3)), 0.0, "a retransmission");
        let told = document(&shown);
        assert_eq!(
            (&told["seconds"], &told["cards"][0]["tx_bits_per_s"]),
            (&json!(2.0), &json!(8e6))
        );
        assert_eq!(
            (&told["clients"][0]["pid"], &told["clients"][0]["cards"]),
            (&json!(11), &json!([0]))
        );
        let qp = &told["queue_pairs"][0];
        assert_eq!((&qp["qpn"], &qp["tx_packets_per_s"]), (&json!(11), &json!(10.0)));
    }

    #[test]
    fn the_order_is_by_rate_process_or_command() {
        let pids = |sort| view(sort).clients.iter().map(|line| line.pid).collect::<Vec<_>>();
        assert_eq!(pids(Sort::Rate), [11, 10]);
        assert_eq!(pids(Sort::Process), [10, 11]);
        assert_eq!(pids(Sort::Command), [11, 10]);
        assert_eq!(Sort::Rate.next().next().next(), Sort::Rate);
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(
            [0.0, 999.0, 1500.0, 2e6, 3e10].map(short),
            ["0", "999", "1.50k", "2.00M", "30.00G"]
        );
    }
}
