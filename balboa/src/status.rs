//! `balboa status`: the state of a balboad.

use std::fmt::Write as _;

use serde_json::Value;
use terminal::say;

use crate::state::{self, counted, items, text};
use crate::{args, service};

/// Prints the state.
///
/// # Errors
/// When there is no balboad, or its answer cannot be shown.
pub fn status(arguments: &args::Status) -> anyhow::Result<()> {
    let text = state::fetch_text(arguments.state_dir.path())?;
    if arguments.json {
        return Ok(say(format_args!("{text}\n"))?);
    }
    Ok(say(format_args!("{}", describe(&state::parse(&text)?)))?)
}

/// A card and its users, for people.
pub fn describe_one(card: &Value, clients: &[Value]) -> String {
    let mut out = String::new();
    describe_card(&mut out, card);
    describe_clients(&mut out, clients);
    out.trim_start().to_owned()
}

/// The state as a person reads it.
fn describe(state: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "balboad {}, process {}, user {}, in {}",
        text(&state["version"]),
        text(&state["pid"]),
        text(&state["uid"]),
        text(&state["state_dir"])
    );
    for card in items(&state["cards"]) {
        describe_card(&mut out, card);
    }
    describe_connections(&mut out, &state["connections"]);
    describe_clients(&mut out, items(&state["clients"]));
    out
}

/// The objects of the connection manager, and its counters; nothing if it was never used.
fn describe_connections(out: &mut String, connections: &Value) {
    let rows =
        [("there are", counted(connections)), ("counters", counted(&connections["counters"]))];
    if rows.iter().all(|(_, counts)| counts.is_empty()) {
        return;
    }
    let _ = writeln!(out, "\nconnections");
    for (name, counts) in rows.iter().filter(|(_, counts)| !counts.is_empty()) {
        let _ = writeln!(out, "  {name:<10}{}", counts.join(", "));
    }
}

fn describe_card(out: &mut String, card: &Value) {
    let windows = items(&card["windows"]);
    let sum = |field: &str| windows.iter().filter_map(|w| w[field].as_u64()).sum::<u64>();
    let up = if card["link_up"] == true { "up" } else { "down" };
    let _ = writeln!(
        out,
        "\n{}  {}, firmware {}, at {}",
        text(&card["name"]),
        text(&card["board"]),
        text(&card["firmware"]),
        text(&card["location"])
    );
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<10}{value}");
    };
    let (link, mtu) = (text(&card["link"]), text(&card["active_mtu"]));
    let ip = card["ip"]
        .as_str()
        .filter(|ip| !ip.is_empty())
        .map_or("none".into(), |_| text(&card["ip"]));
    row("link", format!("{up}, {link}, MTU {mtu}, MAC {}, IP {ip}", text(&card["mac"])));
    if let Some(checked) = card["icrc_checked"].as_str() {
        row("ICRC", format!("checked on {checked}"));
    }
    if card["congestion"].as_str().is_some_and(|told| told != "off") {
        row("congestion", format!(" {}", text(&card["congestion"])));
    }
    for (index, what) in items(&card["unprotected"]).iter().enumerate() {
        row(if index == 0 { "open" } else { "" }, text(what));
    }
    let gids = items(&card["gids"]).iter().enumerate().filter(|(_, gid)| !gid.is_null());
    for (line, (index, gid)) in gids.enumerate() {
        let vlan = card["gid_vlans"].get(index).and_then(Value::as_u64).filter(|vlan| *vlan != 0);
        let vlan = vlan.map(|vlan| format!(", VLAN {vlan}")).unwrap_or_default();
        row(if line == 0 { "GIDs" } else { "" }, format!("{index}  {}, RoCE v2{vlan}", text(gid)));
    }
    let shadow = &card["shadow"];
    if !shadow.is_null() {
        let (netdev, rdma) = (text(&shadow["netdev"]), text(&shadow["rdma_device"]));
        row("kernel", format!("network device {netdev}, RDMA device {rdma}"));
    }
    if let Some(trouble) = shadow["trouble"].as_str() {
        row("", trouble.to_owned());
    }
    row(
        "engines",
        format!(
            "{}, doorbell pages free {} of {}, relays {} of {}, QPs {}, CQs {}",
            windows.len(),
            sum("free_pages"),
            sum("pages"),
            sum("free_relays"),
            sum("relays"),
            sum("queue_pairs"),
            sum("completion_queues")
        ),
    );
    describe_failures(&mut row, card);
    row("image", format!("{}, driven as {}", text(&card["image"]), text(&card["engine"])));
    row("interface", format!("{}, {}", text(&card["driver"]), text(&card["interface"])));
    row("trust", text(&card["trust"]));
    for (index, attached) in items(&card["services"]["attached"]).iter().enumerate() {
        row(if index == 0 { "services" } else { "" }, service::in_a_line(attached));
    }
    let quarantined = counted(&card["quarantine"]);
    if !quarantined.is_empty() {
        row("leaked", quarantined.join(", "));
    }
    let counters = counted(&card["counters"]);
    if counters.is_empty() {
        row("counters", "all 0".into());
    }
    for (index, counter) in counters.iter().enumerate() {
        row(if index == 0 { "counters" } else { "" }, counter.clone());
    }
}

/// Features that a card lacks, and the reasons.
fn describe_failures(row: &mut impl FnMut(&str, String), card: &Value) {
    for window in items(&card["windows"]).iter().filter(|window| !window["dead"].is_null()) {
        row("", format!("window {} is dead: {}", text(&window["window"]), text(&window["dead"])));
    }
    if let Some(why) = card["failure"].as_str() {
        row("", format!("it did not come up: {}", why.replace(char::is_control, "?")));
    }
    if let Some(needs) = card["flash"]["needs"].as_str() {
        row(
            "flash",
            format!("needs to be flashed again: {}", needs.replace(char::is_control, "?")),
        );
    }
    for (vfpga, why) in card["flash"]["vfpgas"].as_object().into_iter().flatten() {
        row("flash", format!("vFPGA {vfpga} needs to be flashed again: {}", text(why)));
    }
}

fn describe_clients(out: &mut String, clients: &[Value]) {
    if clients.is_empty() {
        let _ = writeln!(out, "\nno clients");
        return;
    }
    let mut rows = vec![
        [
            "PID",
            "COMMAND",
            "ON",
            "CONTEXTS",
            "PDS",
            "MRS",
            "MR BYTES",
            "CQS",
            "QPS",
            "KEPT BYTES",
            "UNDER WAY",
        ]
        .map(str::to_owned),
    ];
    for client in clients {
        let places = items(&client["places"]).iter().map(|place| {
            let (card, window) = (text(&place["card"]), text(&place["window"]));
            format!("balboa{card}/{window}/{} ({})", text(&place["page"]), text(&place["grant"]))
        });
        let places: Vec<String> = places.collect();
        let under_way = items(&client["places"]).iter().map(|place| &place["under_way_bytes"]);
        let under_way = under_way.filter_map(Value::as_u64).reduce(u64::saturating_add);
        let on = if places.is_empty() { text(&client["role"]) } else { places.join(" ") };
        let used = |name: &str| text(&client["usage"][name]);
        rows.push([
            text(&client["pid"]),
            text(&client["command"]),
            on,
            used("contexts"),
            used("protection_domains"),
            used("memory_regions"),
            used("registered_bytes"),
            used("completion_queues"),
            used("queue_pairs"),
            used("bytes_kept_at_most"),
            under_way.map_or_else(String::new, |bytes| bytes.to_string()),
        ]);
    }
    let _ = writeln!(out, "\nclients (on card/engine/doorbell page)");
    for row in &rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().filter_map(|row| row.get(column)).map(String::len).max();
            let _ = write!(line, " {cell:<width$}", width = width.unwrap_or(0));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for client in clients {
        for qp in items(&client["queue_pairs"]) {
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            let _ = writeln!(
                out,
                "  {}: QP {:#08x} {} {} on balboa{} to {:#08x} at {}",
                text(&client["pid"]),
                number(&qp["qpn"]),
                text(&qp["transport"]),
                text(&qp["state"]),
                text(&qp["card"]),
                number(&qp["dest_qpn"]),
                text(&qp["dest_gid"])
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_person_sees_cards_clients_and_what_was_counted() {
        let state = json!({
            "version": "1.2.3", "pid": 7, "uid": 1000, "state_dir": "D",
            "connections": {
                "channels": 2, "joins": 0, "held": 1,
                "counters": {"received_req": 3, "refused": 0},
            },
            "cards": [{
                "name": "balboa0", "board": "B", "firmware": "F", "location": "L", "link": "switch",
                "link_up": true, "ip": "10.77.0.1/24", "mac": "02:00:0a:4d:00:01",
                "gids": ["fe80::1", "::ffff:10.77.0.1", "2001:db8::1"], "gid_vlans": [0, 0, 5],
                "active_mtu": 4096, "trust": "isolated",
                "icrc_checked": "every frame", "congestion": "dcqcn-mlx5,min_rate=10",
                "interface": "iommufd and N", "driver": "vfio-pci", "image": "I", "engine": "vqe",
                "windows": [{"window": 0, "dead": null, "pages": 14, "free_pages": 13,
                             "relays": 240, "free_relays": 239,
                             "completion_queues": 1, "queue_pairs": 2}],
                "counters": {"sent_pkts": 5, "rcvd_pkts": 0}, "quarantine": {"keys": 0},
                "services": {"attached": [{"to": "peer P", "services": ["s"], "count": 2}]},
            }],
            "clients": [{
                "pid": 42, "uid": 1000, "command": "ib_write_bw", "role": "provider",
                "places": [
                    {"card": 0, "window": 0, "page": 1, "grant": "page", "under_way_bytes": 5000},
                    {"card": 1, "window": 0, "page": 1, "grant": "page", "under_way_bytes": 600},
                    {"card": 2, "window": 0, "page": 1, "grant": "device", "under_way_bytes": null},
                ],
                "usage": {"contexts": 1, "queue_pairs": 2, "registered_bytes": 131072,
                          "bytes_kept_at_most": 57344},
                "queue_pairs": [{"qpn": 0x12345, "card": 0, "transport": "RC", "state": "Rts",
                                 "dest_qpn": 0x54321, "dest_gid": "::ffff:10.77.0.2"}],
            }],
        });
        let shown = describe(&state);
        for expected in [
            "\nconnections\n  there are channels 2, held 1\n  counters  received_req 3\n",
            "balboad 1.2.3, process 7, user 1000, in D\n",
            "up, switch, MTU 4096",
            "ICRC      checked on every frame\n",
            "congestion dcqcn-mlx5,min_rate=10\n",
            "1  ::ffff:10.77.0.1, RoCE v2\n",
            "2  2001:db8::1, RoCE v2, VLAN 5\n",
            "doorbell pages free 13 of 14, relays 239 of 240, QPs 2, CQs 1\n",
            "image     I, driven as vqe\n",
            "interface vfio-pci, iommufd and N\n",
            "counters  sent_pkts 5\n",
            "services  s on peer P: 2 QPs\n",
            "balboa0/0/1 (page)",
            "KEPT BYTES UNDER WAY\n",
            "57344      5600\n",
            "42: QP 0x012345 RC Rts on balboa0 to 0x054321 at ::ffff:10.77.0.2\n",
        ] {
            assert!(shown.contains(expected), "no {expected:?} in\n{shown}");
        }
        let one = describe_one(&state["cards"][0], items(&state["clients"]));
        assert!(
            one.starts_with("balboa0  B, firmware F") && one.contains("42: QP 0x012345"),
            "{one}"
        );
        assert!(!shown.contains("rcvd_pkts") && !shown.contains("leaked"), "{shown}");
    }

    #[test]
    fn no_name_commands_the_terminal() {
        let card = json!({ "name": "balboa0", "board": "\u{1b}[2Jboard\r\n" });
        let client = json!({ "pid": 1, "command": "\u{1b}]0;x\u{7}\u{9b}m" });
        let shown = describe(&json!({ "cards": [card], "clients": [client] }));
        assert!(shown.contains("?[2Jboard??") && shown.contains("?]0;x??m"), "{shown}");
        assert!(!shown.replace('\n', "").contains(char::is_control), "{shown:?}");
    }

    #[test]
    fn an_answer_that_says_nothing_is_shown_as_such() {
        assert!(describe(&Value::Null).contains("no clients"));
        let card = json!({ "name": "balboa0", "icrc_checked": null });
        assert!(!describe(&json!({ "cards": [card] })).contains("ICRC"));
        let card = json!({ "name": "balboa0", "congestion": "off" });
        assert!(!describe(&json!({ "cards": [card] })).contains("congestion"));
    }
}
