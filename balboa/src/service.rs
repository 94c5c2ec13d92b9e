//! `balboa service`: services on the path of a card's packets.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use bitstreams::image::Image;
use serde_json::{Value, json};
use shim_abi::{MAX_MODULE, MAX_SETTING, ServiceChain, ServiceSide, ServiceUsers};
use terminal::say;

use crate::args::{self, CardName, Users};
use crate::image::{self, read};
use crate::port::client_with;
use crate::state::{self, FORMAT, counted, items, text};

#[cfg(feature = "wasm")]
mod capture;
#[cfg(feature = "wasm")]
mod trial;

/// Shows, loads, attaches or detaches services.
///
/// # Errors
/// When there is no such balboad or card, or it refuses.
pub fn service(action: &args::Service) -> anyhow::Result<()> {
    match action {
        args::Service::List(of) => show(of, list),
        args::Service::Stats(of) => show(of, stats),
        args::Service::Attach { state_dir, card, services, settings, users, side, replace } => {
            let (users, settings) = (named(users)?, told(settings)?);
            let side = match side {
                None => ServiceSide::Both,
                Some(args::Side::Requester) => ServiceSide::Requester,
                Some(args::Side::Responder) => ServiceSide::Responder,
            };
            let chain = ServiceChain { services: services.clone(), settings, side };
            let (mut client, _) = client_with(state_dir.path(), *card)?;
            Ok(client.attach_services(card.0, users, chain, *replace)?)
        }
        args::Service::Load { state_dir, card, file, keys, allow_unsigned } => {
            let module = module(file, keys.as_deref(), *allow_unsigned)?;
            let (mut client, _) = client_with(state_dir.path(), *card)?;
            let name =
                client.load_service(card.0, module).with_context(|| file.display().to_string())?;
            Ok(say(format_args!("{card} has the service {name}\n"))?)
        }
        args::Service::Unload { state_dir, card, service, now } => {
            let (mut client, _) = client_with(state_dir.path(), *card)?;
            Ok(client.unload_service(card.0, service.clone(), *now)?)
        }
        args::Service::Test { file, pcap } => test(file, pcap),
        args::Service::Detach { state_dir, card, users, now } => {
            let users = named(users)?;
            let (mut client, _) = client_with(state_dir.path(), *card)?;
            match client.detach_services(card.0, users, *now)? {
                0 => Ok(()),
                keeping => Ok(say(format_args!(
                    "{keeping} queue pairs keep their services to the end of a message\n"
                ))?),
            }
        }
    }
}

/// The module in a file, if it is signed as an image has to be.
fn module(file: &Path, keys: Option<&Path>, allow_unsigned: bool) -> anyhow::Result<Vec<u8>> {
    let module = read(file, MAX_MODULE as u64)?;
    match Image::parse(&module) {
        Ok(Image::Module) => {}
        Ok(other) => bail!("{}: it is {}, and no module", file.display(), other.describe()),
        Err(_) => bail!("{}: it is no module of WebAssembly", file.display()),
    }
    let signature = image::signature_of(file);
    // One that is there is right, or why it is there is to be found out.
    match signature.try_exists().with_context(|| signature.display().to_string())? {
        true => {
            image::signer(file, &signature, &module, keys)?;
        }
        false if allow_unsigned => {}
        false => bail!(
            "{}: it has no signature ({} is not there); `balboa image sign` makes one, and --allow-unsigned does without",
            file.display(),
            signature.display()
        ),
    }
    Ok(module)
}

#[cfg(feature = "wasm")]
fn test(file: &Path, pcap: &Path) -> anyhow::Result<()> {
    trial::test(&read(file, MAX_MODULE as u64)?, file, pcap)
}

#[cfg(not(feature = "wasm"))]
fn test(file: &Path, _: &Path) -> anyhow::Result<()> {
    bail!(
        "{}: this balboa was built without the interpreter of modules; build it with the feature wasm",
        file.display()
    )
}

/// The queue pairs that a command line names.
fn named(users: &Users) -> anyhow::Result<ServiceUsers> {
    let Users { qp, process, peer, dscp } = *users;
    let mut named = [
        qp.map(ServiceUsers::Qp),
        process.map(ServiceUsers::Process),
        peer.map(|address| ServiceUsers::Peer(address.gid())),
        dscp.map(ServiceUsers::Dscp),
    ]
    .into_iter()
    .flatten();
    match (named.next(), named.next()) {
        (Some(users), None) => Ok(users),
        _ => bail!("say one of --qp, --process, --peer and --dscp"),
    }
}

/// The settings of services in a command line.
fn told(settings: &args::Settings) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut told = Vec::new();
    if let Some(path) = &settings.patterns {
        told.push(("patterns".to_owned(), read(path, MAX_SETTING as u64)?));
    }
    if let Some(mode) = settings.mode {
        let mode = match mode {
            args::Mode::Refuse => "refuse",
            args::Mode::Count => "count",
        };
        told.push(("mode".to_owned(), mode.into()));
    }
    if let Some(words) = settings.words {
        told.push(("words".to_owned(), words.to_string().into_bytes()));
    }
    Ok(told)
}

fn show(of: &args::Show, tell: fn(&Value) -> String) -> anyhow::Result<()> {
    let state = state::fetch(of.state_dir.path())?;
    let services = &state::card(&state, of.card)?["services"];
    if services.is_null() {
        bail!("packets of {} do not pass balboad, so no service sees them", of.card);
    }
    match of.json {
        true => Ok(say(format_args!("{:#}\n", document(of.card, services)))?),
        false => Ok(say(format_args!("{}", tell(services)))?),
    }
}

/// A card's services, for programs.
fn document(card: CardName, services: &Value) -> Value {
    let (available, attached) = (&services["available"], &services["attached"]);
    json!({
        "format": FORMAT, "card": card.to_string(), "available": available, "attached": attached,
    })
}

/// The names of the services in a chain.
fn chain(attached: &Value) -> String {
    items(&attached["services"]).iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Services that are attached, in a line.
pub fn in_a_line(attached: &Value) -> String {
    let leaving = if attached["leaving"] == true { ", being detached" } else { "" };
    let (to, count) = (text(&attached["to"]), text(&attached["count"]));
    let side = match attached["side"].as_str() {
        Some(side @ ("requester" | "responder")) => format!(" as {side}"),
        _ => String::new(),
    };
    let asked = if attached["asked"] == true { ", asked for by its program" } else { "" };
    format!("{} on {to}{side}: {count} QPs{asked}{leaving}", chain(attached))
}

/// The available services, and the attached ones.
fn list(services: &Value) -> String {
    let mut out = String::from("available\n");
    for service in items(&services["available"]) {
        let (name, summary) = (text(&service["name"]), text(&service["summary"]));
        let loaded = if service["loaded"] == true { "loaded: " } else { "" };
        let _ = writeln!(out, "  {name:<12}{loaded}{summary}");
    }
    out.push_str("attached\n");
    let attached = items(&services["attached"]);
    for it in attached {
        let _ = writeln!(out, "  {}", in_a_line(it));
    }
    if attached.is_empty() {
        out.push_str("  none\n");
    }
    out
}

/// The counters of an object that are not 0, in a line.
fn line_of(counters: &Value) -> String {
    let counted = counted(counters);
    if counted.is_empty() { "nothing yet".into() } else { counted.join(", ") }
}

/// The counters of the attached services.
fn stats(services: &Value) -> String {
    let mut out = String::new();
    for it in items(&services["attached"]) {
        let _ = writeln!(out, "{}", in_a_line(it));
        let _ = writeln!(out, "  in all      {}", line_of(&it["counters"]));
        for qp in items(&it["queue_pairs"]) {
            let qpn = qp["qpn"].as_u64().unwrap_or(0);
            let _ = writeln!(out, "  QP {qpn:#08x} {}", line_of(&qp["counters"]));
        }
    }
    if out.is_empty() {
        out.push_str("nothing is attached\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_what_is_attached_and_what_it_did() {
        let services = json!({
            "available": [
                {"name": "preprocess", "summary": "rows become features", "loaded": false},
                {"name": "mine", "summary": "does something", "loaded": true},
            ],
            "attached": [{
                "to": "peer 10.77.0.1", "services": ["one", "two"], "leaving": true, "count": 1,
                "side": "requester",
                "counters": {"acted_packets": 7, "over_budget": 0},
                "queue_pairs": [{"qpn": 0x17, "counters": {"acted_packets": 0}}],
            }],
        });
        let line = "one, two on peer 10.77.0.1 as requester: 1 QPs, being detached";
        let expected = format!(
            "available\n  preprocess  rows become features\n  mine        loaded: does something\nattached\n  {line}\n"
        );
        assert_eq!(list(&services), expected);
        let expected =
            format!("{line}\n  in all      acted_packets 7\n  QP 0x000017 nothing yet\n");
        assert_eq!(stats(&services), expected);
        let none = json!({ "available": [], "attached": [] });
        assert_eq!(list(&none), "available\nattached\n  none\n");
        assert_eq!(stats(&none), "nothing is attached\n");
    }
}
