//! Every fuzz target, with a fixed number of inputs from fixed seeds, and with every input that
//! ever made it fail.
//!
//! `FUZZ_SEED=N` tries that seed only; `FUZZ_INPUTS=N` tries N inputs instead of the target's own
//! number, `TEST_SHARE=N` an Nth of that.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use fuzz::{TARGETS, Target, random};
use trial::share::share;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn target(name: &str) -> &'static Target {
    fuzz::find(name).expect("the target exists")
}

fn share_of(inputs: u64) -> u64 {
    inputs.div_ceil(share() as u64)
}

fn holds(name: &str) {
    let target = target(name);
    let seeds = match number("FUZZ_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("FUZZ_INPUTS").unwrap_or_else(|| share_of(target.inputs)),
    };
    for seed in seeds {
        let input = random::input(seed, target.longest);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target.run(&input))) {
            eprintln!("repeat with: FUZZ_SEED={seed} cargo test -p fuzz --test targets {name}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn frame_parsers_hold() {
    holds("frame");
}

#[test]
fn rc_transport_holds() {
    holds("rc");
}

#[test]
fn services_on_the_path_hold() {
    holds("services");
}

#[test]
fn modules_of_services_are_taken_or_refused_and_stopped() {
    holds("modules");
}

#[test]
fn the_model_of_the_published_card_holds() {
    holds("stock");
}

#[test]
fn sealed_frames_open_as_their_peer_has_sealed_them() {
    holds("sealed");
}

#[test]
fn an_end_of_the_tunnel_holds() {
    holds("slots");
}

#[test]
fn a_port_on_the_machines_network_holds() {
    holds("datagrams");
}

#[test]
fn messages_of_connection_managers_parse_or_are_refused() {
    holds("mad");
}

#[test]
fn the_connection_manager_holds() {
    holds("cm");
}

#[test]
fn programs_of_the_connection_manager_reach_their_own() {
    holds("connections");
}

#[test]
fn groups_reach_their_members_alone() {
    holds("multicast");
}

#[test]
fn a_shared_port_confuses_nobody() {
    holds("shared");
}

#[test]
fn engine_and_its_rings_hold() {
    holds("engine");
}

#[test]
fn answers_of_a_hostile_card_are_survived() {
    holds("answers");
}

#[test]
fn client_sessions_hold() {
    holds("client");
}

#[test]
fn a_served_card_outlives_its_clients() {
    holds("function");
}

#[test]
fn messages_decode_or_are_refused() {
    holds("messages");
}

#[test]
fn images_manifests_and_signatures_are_taken_or_refused() {
    holds("image");
}

#[test]
fn arguments_are_taken_or_refused() {
    holds("arguments");
}

/// `regressions/TARGET/NAME`: the name states the fault.
#[test]
fn past_failures_stay_mended() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut inputs = 0;
    for target in TARGETS {
        let Ok(files) = std::fs::read_dir(root.join(target.name)) else { continue };
        for file in files {
            let path = file.unwrap().path();
            eprintln!("input: {}", path.display());
            target.run(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
    }
    let kept = std::fs::read_dir(&root).map_or(0, Iterator::count);
    assert!(inputs > 0 || kept == 0, "inputs are kept, and none was run");
}
