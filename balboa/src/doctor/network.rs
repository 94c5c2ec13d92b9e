//! Checks of the machine's own network, for the cards on it (`balboad --port udp`).

use serde_json::Value;

use super::{Finding, Patient, text};

/// RoCE's port, as the kernel writes it in its lists of sockets.
const ROCE_PORT: &str = "12B7";
/// Bytes of room below which peers are sent less than a fast network takes: the room that newer kernels allow.
const ROOM: u64 = 4 << 20;
/// The room advised: as much as balboad asks for.
const ADVISED: u64 = 8 << 20;
/// Bytes that each peer may have under way at least, with any room.
const LEAST_WINDOW: u64 = 16 << 10;

/// The finding for each card on the machine's network, by its name, its device and its counters.
fn each(
    patient: &Patient,
    look: impl Fn(&str, &str, &dyn Fn(&str) -> u64) -> Finding,
) -> Vec<Finding> {
    let standing = patient.cards().iter().filter_map(|card| {
        // A name with a slash is no device's.
        let device = card["netdev"].as_str().filter(|device| !device.contains('/'))?;
        Some((card, device))
    });
    let found = standing.map(|(card, device)| {
        let count = |name: &str| card["counters"][name].as_u64().unwrap_or(0);
        look(&text(&card["name"]), &text(&Value::from(device)), &count)
    });
    found.collect()
}

/// Whether RoCE's port is free, and lets datagrams through.
pub(super) fn port(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "UDP 4791";
    let taken = patient.state.is_err().then(|| taken(patient)).flatten();
    if let Some((who, mend)) = taken {
        let says = format!("it is taken by {who}, so that balboad --port udp cannot have it");
        return vec![Finding::note(CHECK, says, mend)];
    }
    each(patient, |name, _, count| match (count("sent_pkts"), count("rcvd_pkts")) {
        (0, 0) => Finding::fine(CHECK, format!("{name} has it; nothing went by it yet")),
        (sent, 0) => Finding::note(
            CHECK,
            format!(
                "{name}: {sent} packets left and none came, as where a firewall closes it: RoCE goes to that port both ways, so that an answer is a new flow to a firewall"
            ),
            "open UDP ports 4791 and 14791 on both machines (sudo nft add rule inet filter input udp dport '{ 4791, 14791 }' accept), and try balboa ping ADDRESS",
        ),
        (_, received) => Finding::fine(CHECK, format!("{name}: {received} packets came by it")),
    })
}

/// The program that has RoCE's port, and the mend.
fn taken(patient: &Patient) -> Option<(String, &'static str)> {
    let sockets = ["proc/net/udp", "proc/net/udp6"].map(|list| patient.read(list));
    let lines: Vec<&str> = sockets.iter().flatten().flat_map(|list| list.lines()).collect();
    let owner = lines.iter().find_map(|line| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        let owner = words.nth(5)?;
        (local.rsplit(':').next() == Some(ROCE_PORT)).then_some(owner)
    })?;
    Some(match patient.at("sys/module/rdma_rxe").is_dir() {
        true => ("rdma_rxe, whose module is loaded".into(), "sudo rmmod rdma_rxe"),
        false => (
            format!("a program of uid {}", text(&Value::from(owner))),
            "end it; sudo ss -lunp 'sport = :4791' names it",
        ),
    })
}

/// Whether the kernel drops datagrams that come by another device than the route back.
pub(super) fn reverse_path(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "rp_filter";
    each(patient, |name, device, _| {
        let setting = |of: &str| {
            let file = format!("proc/sys/net/ipv4/conf/{of}/rp_filter");
            patient.read(&file).and_then(|it| it.parse::<u32>().ok()).unwrap_or(0)
        };
        // The greater one counts; 1 is strict.
        if setting("all").max(setting(device)) != 1 {
            return Finding::fine(CHECK, format!("{name}: {device} is not strict"));
        }
        let mend = format!("sudo sysctl net.ipv4.conf.{device}.rp_filter=2");
        if let Some(other) = rival(patient, device) {
            let says = format!(
                "{name}: {device} is strict, and {other} leads to the same network: what comes by the one while the route is by the other is dropped"
            );
            return Finding::note(CHECK, says, mend);
        }
        match dropped(patient) {
            0 => {
                Finding::fine(CHECK, format!("{name}: {device} is strict, and has dropped nothing"))
            }
            count => Finding::note(
                CHECK,
                format!(
                    "{name}: {device} is strict, and this machine has dropped {count} packets by that"
                ),
                mend,
            ),
        }
    })
}

/// Another device with a route to a network of this one's that the kernel may prefer.
fn rival(patient: &Patient, device: &str) -> Option<String> {
    let routes = patient.read("proc/net/route")?;
    // Device, destination, gateway, flags, two counts, metric, mask.
    let routes: Vec<Vec<&str>> =
        routes.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let network = |route: &[&str]| Some((route.get(1)?.to_string(), route.get(7)?.to_string()));
    let metric = |route: &[&str]| route.get(6).and_then(|it| it.parse::<u32>().ok());
    let own = routes.iter().filter(|route| route.first() == Some(&device));
    own.flat_map(|own| routes.iter().map(move |other| (own, other))).find_map(|(own, other)| {
        let same = network(own).is_some() && network(own) == network(other);
        let is_rival = same && other.first() != Some(&device) && metric(other) <= metric(own);
        is_rival.then(|| other.first().map(|name| text(&Value::from(*name)))).flatten()
    })
}

/// Packets that the kernel has dropped because their source is reached by another device.
fn dropped(patient: &Patient) -> u64 {
    let counts = patient.read("proc/net/netstat").unwrap_or_default();
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut all = names.split_whitespace().zip(values.split_whitespace());
    let found = all.find(|(name, _)| *name == "IPReversePathFilter");
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Whether there is room for bursts of all peers.
pub(super) fn room(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "receive room";
    let most = patient.read("proc/sys/net/core/rmem_max").and_then(|it| it.parse::<u64>().ok());
    each(patient, |name, _, count| {
        let mend = format!("sudo sysctl net.core.rmem_max={ADVISED}, and start balboad again");
        match (count("port_frames_lost"), most) {
            (lost, _) if lost > 0 => Finding::note(
                CHECK,
                format!("{name}: {lost} packets came that found no room at its socket"),
                mend,
            ),
            (_, Some(most)) if most < ROOM => Finding::note(
                CHECK,
                format!(
                    "{name}: net.core.rmem_max is {most}: all peers together may have as much under way, and beyond {} of them packets are lost",
                    most / LEAST_WINDOW
                ),
                mend,
            ),
            (_, Some(most)) => Finding::fine(CHECK, format!("{name}: net.core.rmem_max is {most}")),
            (_, None) => Finding::nothing(
                CHECK,
                format!("{name}: the kernel does not tell net.core.rmem_max"),
            ),
        }
    })
}

/// Whether the kernel takes segments together.
pub(super) fn together(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "GRO";
    each(patient, |name, device, _| match (patient.gro)(device) {
        Some(true) => Finding::fine(CHECK, format!("{name}: {device} takes segments together")),
        Some(false) => Finding::note(
            CHECK,
            format!(
                "{name}: {device} takes each datagram by itself, which makes large messages slower"
            ),
            format!("sudo ethtool -K {device} gro on"),
        ),
        None => Finding::nothing(CHECK, format!("{name}: {device} does not tell")),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::Verdict::{Note, Nothing};
    use super::super::tests::Machine;
    use super::*;

    const SOCKETS: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";

    #[test]
    fn a_firewall_that_answers_are_new_flows_to_is_named() {
        let mut machine = Machine::well();
        *machine.card("counters") = json!({ "sent_pkts": 7, "rcvd_pkts": 0 });
        let (says, mend) = machine.ill("UDP 4791", Note);
        assert!(
            says.contains("7 packets left and none came") && says.contains("a new flow"),
            "{says}"
        );
        assert!(mend.contains("4791, 14791"), "{mend}");
        *machine.card("counters") = json!({ "sent_pkts": 7, "rcvd_pkts": 2 });
        assert_eq!(port(&machine.patient)[0].says, "balboa0: 2 packets came by it");
    }

    #[test]
    fn who_has_the_port_is_told_where_no_balboad_is() {
        let machine = || {
            let mut machine = Machine::well();
            machine.patient.state = Err("none: start one".into());
            machine
        };
        let owned = |port: &str| {
            format!(
                "{SOCKETS}  71: 0100007F:{port} 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 12 2 0 0\n"
            )
        };
        let free = machine();
        free.write("proc/net/udp", &owned("12B8"));
        assert!(port(&free.patient).is_empty());
        let taken = machine();
        taken.write("proc/net/udp6", &owned("12B7"));
        let found = port(&taken.patient).remove(0);
        assert!(found.says.contains("a program of uid 1001"), "{found:?}");
        fs::create_dir_all(taken.home.path().join("sys/module/rdma_rxe")).unwrap();
        let found = port(&taken.patient).remove(0);
        assert_eq!(found.mend.as_deref(), Some("sudo rmmod rdma_rxe"));
    }

    #[test]
    fn a_strict_filter_is_noted_where_it_drops() {
        let machine = Machine::well();
        machine.write("proc/sys/net/ipv4/conf/all/rp_filter", "1\n");
        let route = |rows: &str| {
            machine.write(
                "proc/net/route",
                &format!("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n{rows}"),
            );
        };
        route("eth0 0002000A 0 1 0 0 100 00FFFFFF\neth1 0002000A 0 1 0 0 200 00FFFFFF\n");
        assert!(reverse_path(&machine.patient)[0].says.ends_with("has dropped nothing"));
        route("eth0 0002000A 0 1 0 0 100 00FFFFFF\neth1 0002000A 0 1 0 0 100 00FFFFFF\n");
        let (says, mend) = machine.ill("rp_filter", Note);
        assert!(says.contains("eth1 leads to the same network"), "{says}");
        assert_eq!(mend, "sudo sysctl net.ipv4.conf.eth0.rp_filter=2");
        route("");
        machine.write(
            "proc/net/netstat",
            "TcpExt: A IPReversePathFilter\nTcpExt: 1 23\nIpExt: B\nIpExt: 4\n",
        );
        assert!(machine.ill("rp_filter", Note).0.contains("dropped 23 packets"));
        // The greater of the two counts, and 2 is loose.
        machine.write("proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n");
        assert_eq!(reverse_path(&machine.patient)[0].says, "balboa0: eth0 is not strict");
    }

    #[test]
    fn small_buffers_and_what_they_have_lost_are_named_with_the_switch() {
        let mut machine = Machine::well();
        machine.write("proc/sys/net/core/rmem_max", "212992\n");
        let (says, mend) = machine.ill("receive room", Note);
        assert!(says.contains("212992") && says.contains("beyond 13 of them"), "{says}");
        assert!(mend.starts_with("sudo sysctl net.core.rmem_max=8388608"), "{mend}");
        machine.write("proc/sys/net/core/rmem_max", "4194304\n");
        *machine.card("counters") = json!({ "port_frames_lost": 5 });
        assert!(machine.ill("receive room", Note).0.contains("5 packets"));
    }

    #[test]
    fn a_device_that_takes_datagrams_one_by_one_is_noted() {
        let mut machine = Machine::well();
        machine.patient.gro = |device| Some(device != "eth0");
        assert_eq!(machine.ill("GRO", Note).1, "sudo ethtool -K eth0 gro on");
        machine.patient.gro = |_| None;
        assert_eq!(together(&machine.patient)[0].verdict, Nothing);
    }

    #[test]
    fn damaged_frames_may_be_those_whose_addresses_were_translated() {
        let mut machine = Machine::well();
        *machine.card("counters") = json!({ "rx_icrc_encapsulated": 3 });
        assert!(machine.ill("frames", Note).1.contains("NAT"));
    }
}
