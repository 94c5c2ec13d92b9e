//! Checks of balboad's reports about its cards.

use serde_json::Value;

use super::{Finding, Patient, items, text};

/// Bytes of headers that the longest packet has beside its payload: IPv6, UDP, BTH, RETH, immediate data, ICRC.
const HEADERS: u64 = 40 + 8 + 12 + 16 + 4 + 4;
/// Counters of frames that were damaged on their way.
const DAMAGED: [&str; 2] = ["rx_icrc_encapsulated", "drop_malformed"];

/// Counters of pauses that were heeded.
const PAUSES: [&str; 8] = [
    "rx_prio0_pause",
    "rx_prio1_pause",
    "rx_prio2_pause",
    "rx_prio3_pause",
    "rx_prio4_pause",
    "rx_prio5_pause",
    "rx_prio6_pause",
    "rx_prio7_pause",
];

/// Ignored notifications of congestion that are a flood, if they are more than the heeded ones.
const FLOOD: u64 = 1_000;

/// One finding for each card at least.
fn each(patient: &Patient, look: impl Fn(&str, &Value) -> Vec<Finding>) -> Vec<Finding> {
    let cards = patient.cards().iter();
    cards.flat_map(|card| look(&text(&card["name"]), card)).collect()
}

/// The same of the cards that have an engine: of one without any there is nothing to tell but why.
fn each_driven(patient: &Patient, look: impl Fn(&str, &Value) -> Vec<Finding>) -> Vec<Finding> {
    each(patient, |name, card| match items(&card["windows"]).is_empty() {
        true => Vec::new(),
        false => look(name, card),
    })
}

/// Whether card and driver are of one contract.
pub(super) fn contract(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "contract";
    let ours = patient.state.as_ref().map(|state| text(&state["contract"])).unwrap_or_default();
    each_driven(patient, |name, card| {
        // Behind the version stands the profile of the engine.
        let firmware = text(&card["firmware"]);
        let theirs = firmware.rsplit_once('.').map_or(&*firmware, |(version, _)| version);
        vec![match theirs == ours {
            true => Finding::fine(CHECK, format!("{name} and balboad have version {ours}")),
            false => Finding::note(
                CHECK,
                format!(
                    "{name} has version {theirs}, balboad {ours}: they use the features of both"
                ),
                "install the release of balboad that goes with the card's image",
            ),
        }]
    })
}

/// Whether the engines live, and nothing was leaked to them.
pub(super) fn engine(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "engine";
    each(patient, |name, card| {
        let dead = items(&card["windows"]).iter().find(|window| !window["dead"].is_null());
        let leaked: u64 = card["quarantine"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|it| it.1.as_u64())
            .sum();
        if let Some(needs) = card["flash"]["needs"].as_str() {
            return vec![Finding::wrong(
                CHECK,
                format!(
                    "{name} needs to be flashed again: {}",
                    needs.replace(char::is_control, "?")
                ),
                format!("balboa flash rollback {name}, or balboa flash apply {name} FILE"),
            )];
        }
        if let Some(why) = card["failure"].as_str() {
            return vec![Finding::wrong(
                CHECK,
                format!("{name} did not come up: {}", why.replace(char::is_control, "?")),
                format!(
                    "see to that, then balboa reset {name}, or balboa flash apply {name} FILE with an image that is right for it"
                ),
            )];
        }
        if let Some((vfpga, why)) =
            card["flash"]["vfpgas"].as_object().and_then(|it| it.iter().next())
        {
            // Behind a reset balboad drives nothing there that it could give an image of its own to.
            let driven =
                items(&card["windows"]).iter().any(|window| text(&window["window"]) == *vfpga);
            let images = match driven {
                true => "that vFPGA, or of the whole card where it takes none",
                false => "the whole card",
            };
            return vec![Finding::wrong(
                CHECK,
                format!("{name}: vFPGA {vfpga} needs to be flashed again: {}", text(why)),
                format!("balboa flash apply {name} FILE, with an image of {images}"),
            )];
        }
        vec![match dead {
            Some(window) => Finding::wrong(
                CHECK,
                format!(
                    "{name}: engine {} is dead: {}",
                    text(&window["window"]),
                    text(&window["dead"])
                ),
                format!("balboa reset {name}"),
            ),
            // Of a card as published, whose engine balboad hosts.
            None if card["counters"]["engine_wants_reset"] == 1 => Finding::wrong(
                CHECK,
                format!(
                    "{name} may stand: nobody is answered any more, a queue pair got nowhere, one failed behind a standstill, or its MMU does not confirm that pages are gone"
                ),
                format!("balboa reset {name}, where its peers are there"),
            ),
            None if leaked > 0 => Finding::note(
                CHECK,
                format!(
                    "{name}: the card did not confirm the end of some objects, which are leaked"
                ),
                format!("balboa reset {name}, when no program uses it"),
            ),
            None => Finding::fine(CHECK, format!("{name} runs")),
        }]
    })
}

/// Whether the ports are on their cables.
pub(super) fn link(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "link";
    each_driven(patient, |name, card| {
        let link = text(&card["link"]);
        vec![match card["link_up"] == true {
            true => Finding::fine(CHECK, format!("{name} is up, {link}")),
            false => Finding::wrong(
                CHECK,
                format!("{name} is down, {link}"),
                format!(
                    "balboa link {name} up; where it stays down, see to its cable and the other end"
                ),
            ),
        }]
    })
}

/// Notes that no card tells the forward error correction of its port: the published shell has no register for it.
pub(super) fn fec(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "FEC";
    each(patient, |name, card| {
        vec![Finding::nothing(
            CHECK,
            match card["flash"]["takes"] == "bitstreams" {
                true => format!(
                    "{name} has no register that tells it; look at the switch's port, which must have what the bitstream was built with"
                ),
                false => format!("{name} is a software card, whose cable needs none"),
            },
        )]
    })
}

/// Whether packets of the path MTU fit the cables.
pub(super) fn mtu(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "MTU";
    each(patient, |name, card| {
        let number = |field: &str| card[field].as_u64().unwrap_or(0);
        let (active, largest) = (number("active_mtu"), number("max_mtu"));
        if active < largest {
            let mend = match card["netdev"].is_string() {
                true => {
                    "raise the MTU of its device, or of the route that has a smaller one: ip route"
                }
                false => "raise the MTU of its port's network",
            };
            let found = format!("{name} sends packets of {active} bytes, and could of {largest}");
            return vec![Finding::note(CHECK, found, mend)];
        }
        let needed = active.saturating_add(HEADERS);
        let link = text(&card["link"]);
        let devices = link.strip_prefix("packet:").map(str::to_owned);
        let shadow = card["shadow"]["netdev"].as_str().map(|_| text(&card["shadow"]["netdev"]));
        for device in devices.into_iter().chain(shadow) {
            let file = format!("sys/class/net/{device}/mtu");
            // A name with a slash is no device's.
            let mtu = patient.read(&file).filter(|_| !device.contains('/'));
            let Some(mtu) = mtu.and_then(|mtu| mtu.parse::<u64>().ok()) else { continue };
            if mtu < needed {
                return vec![Finding::wrong(
                    CHECK,
                    format!(
                        "{name}: {device} carries {mtu} bytes, and packets have up to {needed}"
                    ),
                    format!("sudo ip link set {device} mtu {needed}"),
                )];
            }
        }
        vec![Finding::fine(CHECK, format!("{name} sends packets of {active} bytes"))]
    })
}

/// Whether the ports have addresses that others reach.
pub(super) fn gid(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "GID";
    each(patient, |name, card| {
        let gids = items(&card["gids"]).iter().enumerate().filter(|(_, gid)| gid.is_string());
        let routable = |gid: &Value| !text(gid).starts_with("fe80:");
        let first = gids.into_iter().find(|(_, gid)| routable(gid));
        vec![match first {
            Some((index, gid)) => {
                Finding::fine(CHECK, format!("{name} has {} at index {index}", text(gid)))
            }
            None => Finding::wrong(
                CHECK,
                format!("{name} has no address but its link-local one"),
                match card["shadow"].is_null() {
                    true => format!("balboa addr {name} add ADDRESS/PREFIX"),
                    false => format!("sudo ip addr add ADDRESS/PREFIX dev {name}"),
                },
            ),
        }]
    })
}

/// Whether peers were found.
pub(super) fn neighbour(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "neighbour";
    each(patient, |name, card| {
        let lost = card["counters"]["drop_no_neighbour"].as_u64().unwrap_or(0);
        vec![match lost {
            0 => Finding::fine(CHECK, format!("{name} found whom it looked for")),
            lost => Finding::note(
                CHECK,
                format!("{name}: {lost} datagrams were lost, for nobody answered at their address"),
                "see to it that the peer is up, on the same link, and has that address (balboa addr CARD show there)",
            ),
        }]
    })
}

/// Whether frames come undamaged.
pub(super) fn frames(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "frames";
    each(patient, |name, card| {
        let counts = DAMAGED.map(|name| (name, card["counters"][name].as_u64().unwrap_or(0)));
        let damaged = counts.iter().filter(|(_, count)| *count > 0);
        let named: Vec<_> = damaged.map(|(name, count)| format!("{name} {count}")).collect();
        vec![match named.is_empty() {
            true => Finding::fine(CHECK, format!("{name} received none that was damaged")),
            false => Finding::note(
                CHECK,
                format!("{name} received frames that were damaged: {}", named.join(", ")),
                match card["netdev"].is_string() {
                    true => {
                        "see whether addresses are translated on the way (NAT, published ports of containers), which cannot work"
                    }
                    false => {
                        "see to the cable, and to forward error correction, which both ends must have alike"
                    }
                },
            ),
        }]
    })
}

/// Whether notifications of congestion have the effect that their senders want.
pub(super) fn congestion(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "congestion";
    each_driven(patient, |name, card| {
        let count = |counter: &str| card["counters"][counter].as_u64().unwrap_or(0);
        let (handled, ignored) = (count("rp_cnp_handled"), count("rp_cnp_ignored"));
        let is_off = card["congestion"].as_str().is_some_and(|told| told.starts_with("off"));
        vec![match ignored {
            0 => Finding::fine(CHECK, format!("{name} heeded {handled} notifications, of all")),
            _ if is_off => Finding::note(
                CHECK,
                format!(
                    "{name}: {ignored} notifications that it sends too fast had no effect, for its queue pairs do not react"
                ),
                "start balboad with --congestion dcqcn-mlx5",
            ),
            _ if ignored < FLOOD || ignored <= handled => Finding::fine(
                CHECK,
                format!("{name} heeded {handled} notifications, not {ignored}"),
            ),
            _ => Finding::note(
                CHECK,
                format!(
                    "{name} is flooded with notifications that it sends too fast: {ignored} were ignored, and {handled} heeded"
                ),
                format!(
                    "find their sender (balboa capture {name}): somebody forges them, or a peer sends them more often than this card does (min_time_between_cnps)"
                ),
            ),
        }]
    })
}

/// Whether a peer paused a port without end.
pub(super) fn pauses(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "pauses";
    each_driven(patient, |name, card| {
        let count = |counter: &str| card["counters"][counter].as_u64().unwrap_or(0);
        let (times, dropped) = (count("pfc_watchdog_detected"), count("pfc_watchdog_dropped"));
        let heeded: u64 = PAUSES.iter().map(|counter| count(counter)).sum();
        vec![match times {
            0 => Finding::fine(CHECK, format!("{name} heeded {heeded} pauses, none without end")),
            times => Finding::note(
                CHECK,
                format!(
                    "{name}: the other end of its cable paused it without end, {times} times: {dropped} frames were dropped so that others go on"
                ),
                format!(
                    "see who sends pauses (balboa capture {name}) and whom their queue waits for; to heed none: balboa qos {name} set pfc prio-pfc all:off"
                ),
            ),
        }]
    })
}

/// Whether programs find a card that the kernel shows, and get our provider for it.
pub(super) fn shadow(patient: &Patient) -> Vec<Finding> {
    const CHECK: &str = "shadow";
    each(patient, |name, card| {
        let shadow = &card["shadow"];
        if shadow.is_null() {
            return vec![Finding::fine(CHECK, format!("{name} is found by balboa run"))];
        }
        vec![match shadow["trouble"].as_str() {
            None => {
                Finding::fine(CHECK, format!("{name} is found as {}", text(&shadow["rdma_device"])))
            }
            Some(trouble) => match trouble.rsplit_once(": ") {
                Some((says, mend)) => Finding::wrong(CHECK, format!("{name}: {says}"), mend),
                None => Finding::wrong(CHECK, format!("{name}: {trouble}"), "start balboad again"),
            },
        }]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Verdict;
    use super::super::tests::Machine;

    /// Changes a field of a card, and gives the finding.
    fn ill(
        field: &str,
        value: serde_json::Value,
        check: &str,
        verdict: Verdict,
    ) -> (String, String) {
        let mut machine = Machine::well();
        *machine.card(field) = value;
        machine.ill(check, verdict)
    }

    #[test]
    fn notifications_to_a_card_that_does_not_react_are_noted_and_a_few_ignored_ones_are_not() {
        let mut machine = Machine::well();
        *machine.card("counters") = json!({ "rp_cnp_ignored": 999, "rp_cnp_handled": 7 });
        assert_eq!(super::congestion(&machine.patient)[0].verdict, Verdict::Fine);
        *machine.card("congestion") = json!("off,np=off");
        let (says, mend) = machine.ill("congestion", Verdict::Note);
        assert!(says.contains("999 notifications") && mend.contains("--congestion"), "{says}");
    }

    #[test]
    fn each_check_of_a_card_tells_what_is_wrong_and_what_to_type() {
        use Verdict::{Note, Wrong};
        let shadow = |trouble| json!({ "netdev": "b", "rdma_device": "b", "trouble": trouble });
        for (field, value, check, verdict, says, mend) in [
            ("firmware", json!("1.0.1"), "contract", Note, "version 1.0, balboad 1.2", "install"),
            (
                "windows",
                json!([{ "window": 2, "dead": "it is" }]),
                "engine",
                Wrong,
                "engine 2 is dead: it is",
                "balboa reset balboa0",
            ),
            (
                "flash",
                json!({ "needs": "power\n" }),
                "engine",
                Wrong,
                "balboa0 needs to be flashed again: power?",
                "balboa flash rollback balboa0",
            ),
            (
                "failure",
                json!("no answer\n"),
                "engine",
                Wrong,
                "balboa0 did not come up: no answer?",
                "balboa reset balboa0, or balboa flash apply balboa0 FILE",
            ),
            (
                "flash",
                json!({ "needs": null, "vfpgas": { "2": "spoilt" } }),
                "engine",
                Wrong,
                "vFPGA 2 needs to be flashed again: spoilt",
                "balboa flash apply balboa0 FILE, with an image of the whole card",
            ),
            (
                "flash",
                json!({ "needs": null, "vfpgas": { "0": "spoilt" } }),
                "engine",
                Wrong,
                "vFPGA 0 needs to be flashed again: spoilt",
                "with an image of that vFPGA, or of the whole card where it takes none",
            ),
            (
                "counters",
                json!({ "engine_wants_reset": 1 }),
                "engine",
                Wrong,
                "balboa0 may stand: nobody is answered any more, a queue pair got nowhere, one failed",
                "balboa reset balboa0",
            ),
            ("quarantine", json!({ "keys": 3 }), "engine", Note, "leaked", "balboa reset balboa0"),
            ("link_up", json!(false), "link", Wrong, "balboa0 is down", "balboa link balboa0 up"),
            ("active_mtu", json!(1024), "MTU", Note, "of 1024 bytes, and could of 4096", "raise"),
            ("gids", json!(["fe80::1"]), "GID", Wrong, "link-local", "balboa addr balboa0 add "),
            (
                "counters",
                json!({ "drop_no_neighbour": 4 }),
                "neighbour",
                Note,
                "4 datagrams",
                "peer",
            ),
            (
                "counters",
                json!({ "rx_icrc_encapsulated": 2 }),
                "frames",
                Note,
                "rx_icrc_encapsulated 2",
                "NAT",
            ),
            ("counters", json!({ "drop_malformed": 1 }), "frames", Note, "drop_malformed 1", "NAT"),
            (
                "counters",
                json!({ "rp_cnp_ignored": 1_001, "rp_cnp_handled": 1_000 }),
                "congestion",
                Note,
                "is flooded with notifications that it sends too fast: 1001 were ignored",
                "balboa capture balboa0",
            ),
            (
                "counters",
                json!({ "pfc_watchdog_detected": 2, "pfc_watchdog_dropped": 70 }),
                "pauses",
                Note,
                "paused it without end, 2 times: 70 frames",
                "balboa qos balboa0 set pfc prio-pfc all:off",
            ),
            (
                "shadow",
                shadow(Some("rxe wins: install it")),
                "shadow",
                Wrong,
                "rxe wins",
                "install it",
            ),
            ("shadow", shadow(Some("it is gone")), "shadow", Wrong, "it is gone", "start balboad"),
        ] {
            let (found, told) = ill(field, value, check, verdict);
            assert!(found.contains(says), "{check}: {found}");
            assert!(told.contains(mend), "{check}: {told}");
        }
    }

    #[test]
    fn of_a_card_without_engines_it_is_told_why_and_nothing_that_follows_from_it() {
        let mut machine = Machine::well();
        *machine.card("failure") = json!("no answer");
        *machine.card("windows") = json!([]);
        *machine.card("firmware") = json!("");
        *machine.card("link_up") = json!(false);
        let (says, mend) = machine.ill("engine", Verdict::Wrong);
        assert!(
            says.contains("did not come up") && mend.contains("balboa reset"),
            "{says}: {mend}"
        );
    }

    #[test]
    fn a_network_device_must_carry_the_longest_packet() {
        let mut machine = Machine::well();
        *machine.card("link") = json!("packet:eth0");
        machine.write("sys/class/net/eth0/mtu", "1500\n");
        let (says, mend) = machine.ill("MTU", Verdict::Wrong);
        assert_eq!(says, "balboa0: eth0 carries 1500 bytes, and packets have up to 4180");
        assert_eq!(mend, "sudo ip link set eth0 mtu 4180");
        machine.write("sys/class/net/eth0/mtu", "4180\n");
        let found = super::mtu(&machine.patient);
        assert_eq!(found[0].verdict, Verdict::Fine);
    }

    #[test]
    fn a_card_that_the_kernel_shows_has_its_addresses_from_there() {
        let mut machine = Machine::well();
        *machine.card("gids") = json!([null, "fe80::1"]);
        *machine.card("shadow") = json!({ "netdev": "balboa0", "rdma_device": "balboa0" });
        let (_, mend) = machine.ill("GID", Verdict::Wrong);
        assert_eq!(mend, "sudo ip addr add ADDRESS/PREFIX dev balboa0");
    }
}
