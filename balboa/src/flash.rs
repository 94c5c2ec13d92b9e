//! `balboa flash`: the images of cards that run.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use bitstreams::shell::is_seen_behind;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::errno::Errno;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use shim_abi::FlashState;
use terminal::{say, say_line};

use crate::args::{self, CardName};
use crate::client::{ClientError, ToolClient};
use crate::image;
use crate::question::{self, DECLINED};
use crate::state::{self, FORMAT, items, table, text};

mod device;
mod incoming;

use incoming::Incoming;

/// How often balboad is asked how far it is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Exit codes, as `--help` documents them, beside [`DECLINED`].
pub mod code {
    /// It could not be done.
    pub const FAILED: u8 = 1;
    /// The file is truncated, or has been changed.
    pub const SPOILT: u8 = 4;
    /// It is for another part or shell.
    pub const OTHER_CARD: u8 = 5;
    /// Its signature is missing, or by no trusted key.
    pub const UNSIGNED: u8 = 6;
    /// Programs have the card open.
    pub const IN_USE: u8 = 7;
    /// The card needs to be flashed again.
    pub const AGAIN: u8 = 8;
    /// No run on a card has verified it.
    pub const UNVERIFIED: u8 = 9;
    /// The card's taking of it cannot be observed.
    pub const UNSEEN: u8 = 10;
}

/// Why a command failed, and its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message; `None` if a person has just said it.
    pub error: Option<anyhow::Error>,
}

impl Failure {
    fn new(code: u8, error: anyhow::Error) -> Self {
        Self { code, error: Some(error) }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(code::FAILED, error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let is_in_use =
            matches!(&error, ClientError::Refused { errno, .. } if *errno == Errno::EBUSY as i32);
        Self::new(if is_in_use { code::IN_USE } else { code::FAILED }, error.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

/// Executes the command.
///
/// # Errors
/// Why it was not done, or the fault.
pub fn flash(action: &args::Flash) -> Result<(), Failure> {
    match action {
        args::Flash::List { state_dir, json } => list(state_dir.path(), *json),
        args::Flash::Inspect { file, keys, json } => inspect(file, keys.as_deref(), *json),
        args::Flash::Plan(plan) => apply(plan, true, true),
        args::Flash::Apply { plan, yes, dry_run } => apply(plan, *yes, *dry_run),
        args::Flash::Verify { state_dir, card, file, json } => {
            verify(state_dir.path(), *card, file.as_deref(), *json)
        }
        args::Flash::Rollback {
            state_dir,
            card,
            yes,
            dry_run,
            allow_unseen,
            force_disconnect,
            json,
        } => {
            let todo = Todo { state_dir: state_dir.path(), card: *card, json: *json };
            let waived = Waived { unseen: *allow_unseen, force: *force_disconnect };
            rollback(&todo, *yes, *dry_run, waived)
        }
        args::Flash::History { state_dir, card, json } => history(state_dir.path(), *card, *json),
    }
}

/// The card, and the form of the output.
struct Todo<'a> {
    state_dir: Option<&'a Path>,
    card: CardName,
    json: bool,
}

/// The safeguards that the user waives.
#[derive(Clone, Copy)]
struct Waived {
    /// The observation that the card takes an image.
    unseen: bool,
    /// The requirement that no program has the card open.
    force: bool,
}

impl Todo<'_> {
    fn client(&self) -> Result<ToolClient, ClientError> {
        let dir = shim_abi::state_dir(self.state_dir, geteuid().as_raw());
        ToolClient::connect(&dir, Duration::ZERO)
    }
}

fn list(state_dir: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let state = state::fetch(state_dir)?;
    let cards: Vec<Value> = items(&state["cards"])
        .iter()
        .map(|card| {
            let flash = &card["flash"];
            json!({
                "name": card["name"], "address": card["location"], "current": flash["current"],
                "previous": flash["previous"], "writing": flash["writing"], "needs": flash["needs"],
                "vfpgas": flash["vfpgas"], "takes": flash["takes"], "part": flash["part"],
                "unseen": flash["unseen"], "failure": card["failure"],
            })
        })
        .collect();
    if as_json {
        return say_json(&json!({ "format": FORMAT, "cards": cards }));
    }
    let head = ["NAME", "ADDRESS", "IMAGE", "BEFORE", "STATE"].map(str::to_owned).to_vec();
    let lines = cards.iter().map(|card| {
        let [current, previous] = ["current", "previous"].map(|field| short(&card[field]));
        vec![text(&card["name"]), text(&card["address"]), current, previous, state_of(card)]
    });
    let lines: Vec<_> = std::iter::once(head).chain(lines).collect();
    Ok(say(format_args!("{}", table(&lines)))?)
}

/// How a card is, by its part of `flash list`.
fn state_of(card: &Value) -> String {
    match text(&card["needs"]) {
        _ if !card["writing"].is_null() => "being flashed".to_owned(),
        needs if !needs.is_empty() => format!("needs to be flashed again: {needs}"),
        _ if card["failure"].is_string() => format!("did not come up: {}", text(&card["failure"])),
        _ => match needy_vfpga(card) {
            None if card["unseen"] == true => "not seen to have it".to_owned(),
            None => "well".to_owned(),
            Some(needs) => needs,
        },
    }
}

/// The vFPGA of a card that needs to be flashed again, by the card's part of `flash list` or of the state.
fn needy_vfpga(flash: &Value) -> Option<String> {
    let (vfpga, why) = flash["vfpgas"].as_object()?.iter().next()?;
    Some(format!("vFPGA {} needs to be flashed again: {}", vfpga, text(why)))
}

fn inspect(file: &Path, keys: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let (bytes, image) = incoming::read(file)?;
    let mut facts = image::facts(&bytes, &image);
    facts["signed_by"] = match image::signature_of(file).exists() {
        true => image::signer(file, &image::signature_of(file), &bytes, keys).map_or_else(
            |why| json!(format!("nobody who is trusted: {why:#}")),
            |name| json!(name),
        ),
        false => Value::Null,
    };
    if image.full() == Some(true) {
        facts["how"] = json!(device::advice(file));
    }
    Ok(image::show(&facts, as_json)?)
}

/// Shows the effect of loading a file, asks, and loads it.
fn apply(plan: &args::Plan, yes: bool, dry_run: bool) -> Result<(), Failure> {
    let args::Plan { state_dir, card, force_disconnect, allow_unseen, json, .. } = plan;
    let waived = Waived { unseen: *allow_unseen, force: *force_disconnect };
    let todo = Todo { state_dir: state_dir.path(), card: *card, json: *json };
    let state = state::fetch(todo.state_dir)?;
    let found = state::card(&state, todo.card)?;
    let incoming = Incoming::read(plan)?;
    incoming.for_card(found, plan)?;
    let programs = state::programs_of(&state, todo.card, incoming.vfpga());
    let mut shown = show_plan(&todo, found, &incoming.facts(found), &programs, waived, dry_run)?;
    if dry_run {
        return Ok(());
    }
    ask(&todo, yes, &format!("Flash {card}?"))?;
    let mut client = todo.client()?;
    let manifest = incoming.manifest_text();
    client.bring_image(card.0, &incoming.name, incoming.sha256.0, &incoming.bytes, manifest)?;
    client.flash(*force_disconnect)?;
    let seen = follow(&todo, &mut client)?;
    shown["done"] = json!(true);
    ended(
        &todo,
        &mut shown,
        seen,
        waived,
        &incoming.name,
        &match incoming.vfpga() {
            None => format!("{card} has the image {}, and was brought up with it", incoming.name),
            Some(vfpga) => format!(
                "vFPGA {vfpga} of {card} has the image {}, and its engine was started anew",
                incoming.name
            ),
        },
    )
}

fn rollback(todo: &Todo<'_>, yes: bool, dry_run: bool, waived: Waived) -> Result<(), Failure> {
    let card = todo.card;
    let state = state::fetch(todo.state_dir)?;
    let found = state::card(&state, card)?;
    let previous = &found["flash"]["previous"];
    if previous.is_null() {
        return Err(anyhow!("{card} had no other image that could be put back").into());
    }
    let programs = state::programs_of(&state, card, None);
    let mut incoming = previous.clone();
    if found["flash"]["takes"] == "bitstreams" {
        let regions = items(&previous["logic"]).len() as u64;
        incoming["told_apart"] = json!(is_told_apart(found, regions));
    }
    let mut shown = show_plan(todo, found, &incoming, &programs, waived, dry_run)?;
    if dry_run {
        return Ok(());
    }
    ask(todo, yes, &format!("Put back the image that {card} had?"))?;
    let mut client = todo.client()?;
    client.roll_back(card.0, waived.force)?;
    let seen = follow(todo, &mut client)?;
    shown["done"] = json!(true);
    let name = text(&previous["name"]);
    let sentence = format!("{card} has the image {name} again, and was brought up with it");
    ended(todo, &mut shown, seen, waived, &name, &sentence)
}

/// Whether an FPGA's registers will differ behind an image from those before. One that needs to be flashed again may
/// have its shell of before still.
fn is_told_apart(card: &Value, regions: u64) -> bool {
    card["flash"]["regions"].as_u64().is_some_and(|said| is_seen_behind(regions, said))
}

/// Reports the end: as a success only if the card was observed to have taken the image.
fn ended(
    todo: &Todo<'_>,
    shown: &mut Value,
    seen: bool,
    waived: Waived,
    name: &str,
    sentence: &str,
) -> Result<(), Failure> {
    let card = todo.card;
    shown["seen"] = json!(seen);
    if seen {
        return told(todo, shown, sentence);
    }
    let unseen = format!("{card} was given {name}, and came up; {UNSEEN}");
    told(todo, shown, &unseen)?;
    match waived.unseen {
        true => Ok(()),
        false => Err(Failure { code: code::UNSEEN, error: None }),
    }
}

/// The words about an image that the card was not observed to have taken.
const UNSEEN: &str = "whether it has taken it was NOT SEEN: it says nothing of itself that it was not known to say before";

/// Shows the effect on a card; an error where programs have it open that must not be disconnected.
fn show_plan(
    todo: &Todo<'_>,
    found: &Value,
    incoming: &Value,
    programs: &[Value],
    waived: Waived,
    dry_run: bool,
) -> Result<Value, Failure> {
    let refusal = match incoming["told_apart"] == false && !waived.unseen {
        true => Some(not_seen(todo.card)),
        false => (!programs.is_empty() && !waived.force).then(|| in_use(todo.card, programs)),
    };
    let shown = json!({
        "format": FORMAT, "card": found["name"], "current": found["flash"]["current"],
        "needs": found["flash"]["needs"], "incoming": incoming, "programs": programs,
        "refused": refusal.as_ref().map(|failure| failure.told()),
    });
    if todo.json {
        if dry_run {
            say_json(&shown)?;
        }
    } else {
        say(format_args!("{}", planned(found, &shown)))?;
    }
    match refusal {
        Some(refusal) => Err(refusal),
        None => Ok(shown),
    }
}

fn not_seen(card: CardName) -> Failure {
    let why = anyhow!(
        "success of loading it into {card} cannot be seen, for an FPGA that refuses a bitstream comes up with the shell that it had, which describes itself as this one does, or is not known; --allow-unseen loads it all the same"
    );
    Failure::new(code::UNSEEN, why)
}

fn in_use(card: CardName, programs: &[Value]) -> Failure {
    let names: Vec<_> = programs.iter().map(|it| text(&it["command"])).collect();
    let (has, it) = if names.len() == 1 { ("has", "it") } else { ("have", "them") };
    let why =
        anyhow!("{} {has} {card} open: end {it}, or say --force-disconnect", names.join(", "));
    Failure::new(code::IN_USE, why)
}

impl Failure {
    fn told(&self) -> Value {
        let why = self.error.as_ref().map(|error| format!("{error:#}"));
        json!({ "code": self.code, "why": why })
    }
}

fn verify(
    state_dir: Option<&Path>,
    card: CardName,
    file: Option<&Path>,
    as_json: bool,
) -> Result<(), Failure> {
    let todo = Todo { state_dir, card, json: as_json };
    let state = state::fetch(state_dir)?;
    let flash = &state::card(&state, card)?["flash"];
    if let Some(needs) = flash["needs"].as_str() {
        let why = anyhow!("{card} needs to be flashed again: {}", text(&json!(needs)));
        return Err(Failure::new(code::AGAIN, why));
    }
    if let Some(needs) = needy_vfpga(flash) {
        return Err(Failure::new(code::AGAIN, anyhow!("{card}: {needs}")));
    }
    todo.client()?.verify_image(card.0)?;
    let current = &flash["current"];
    if let Some(file) = file {
        let (bytes, image) = incoming::read(file)?;
        if let Some(vfpga) = image.alone() {
            let why = format!(
                "it is of vFPGA {vfpga} alone, and only which image a whole card has is known"
            );
            return Err(Failure::new(code::FAILED, image::about(file, &why)));
        }
        let sha256 = bitstreams::digest::Sha256::of(&bytes).to_string();
        if current["sha256"] != sha256.as_str() {
            let why = format!("its SHA-256 is {sha256}, and {card} has {}", described(current));
            return Err(Failure::new(code::OTHER_CARD, image::about(file, &why)));
        }
    }
    if flash["unseen"] == true {
        let why = anyhow!(
            "{card} is what its manifest says, and its record is of {}; {UNSEEN}",
            described(current)
        );
        return Err(Failure::new(code::UNSEEN, why));
    }
    told(
        &todo,
        &json!({ "format": FORMAT, "card": card.to_string(), "current": current, "verified": true }),
        &match current.is_null() {
            // The image that it came with, of which no file is known.
            true => {
                format!("{card} is what its manifest says; the file that it came with is unknown")
            }
            false => format!("{card} is what its record says: {}", described(current)),
        },
    )
}

fn history(state_dir: Option<&Path>, card: CardName, as_json: bool) -> Result<(), Failure> {
    let state = state::fetch(state_dir)?;
    let history = &state::card(&state, card)?["flash"]["history"];
    if as_json {
        let document = json!({ "format": FORMAT, "card": card.to_string(), "history": history });
        return say_json(&document);
    }
    let lines = items(history).iter().map(|event| {
        let outcome = match event["failed"].as_str() {
            None if event["unseen"] == true => "not seen".to_owned(),
            None => "done".to_owned(),
            Some(_) => format!("failed: {}", text(&event["failed"])),
        };
        let at = time(event["at"].as_u64().unwrap_or(0));
        vec![at, text(&event["deed"]), short(&event["image"]), outcome]
    });
    let lines: Vec<_> = lines.collect();
    match lines.is_empty() {
        true => Ok(say(format_args!("{card} was never flashed\n"))?),
        false => Ok(say(format_args!("{}", table(&lines)))?),
    }
}

/// The state before, the state after, and the programs that lose by it.
fn planned(card: &Value, shown: &Value) -> String {
    let current = match shown["needs"].as_str() {
        Some(_) => format!("none, it needs to be flashed again: {}", text(&shown["needs"])),
        None => described(&shown["current"]),
    };
    let mut rows = vec![
        (
            "card",
            format!(
                "{}, {} at {}",
                text(&card["name"]),
                text(&card["board"]),
                text(&card["location"])
            ),
        ),
        ("current", current),
        ("incoming", described(&shown["incoming"])),
    ];
    if let Some(signed_by) = shown["incoming"].get("signed_by") {
        let by = |by: &Value| if by.is_null() { "nobody".into() } else { text(by) };
        rows.push(("signed by", by(signed_by)));
        let manifest = &shown["incoming"]["manifest"];
        if !manifest.is_null() {
            let name = text(&manifest["name"]);
            rows.push(("manifest", format!("{name}, signed by {}", by(&manifest["signed_by"]))));
        }
    }
    if let Some(part) = shown["incoming"]["part"].as_str() {
        rows.push(("part", format!("{part}, as the card's manifest says; the card does not")));
    }
    if shown["incoming"]["verified"] == false {
        rows.push(("verified", "no: nobody has seen it work on a card".into()));
    }
    if shown["incoming"]["told_apart"] == false {
        let why = "the card will say of itself what it may have said before: whether it has taken it is then not seen";
        rows.push(("then", why.into()));
    }
    let programs = items(&shown["programs"]);
    let names: Vec<_> = programs
        .iter()
        .map(|it| format!("{} ({})", text(&it["command"]), text(&it["pid"])))
        .collect();
    rows.push((
        "programs",
        match names.is_empty() {
            true => "none has it open".into(),
            false => format!(
                "{}: told that the device is gone, and ended where they keep it open",
                names.join(", ")
            ),
        },
    ));
    rows.iter().map(|(name, value)| format!("{name:<10}{value}\n")).collect()
}

/// An image in a few words.
fn described(image: &Value) -> String {
    if image.is_null() {
        return "not known".into();
    }
    let logic: Vec<_> = items(&image["logic"]).iter().map(text).collect();
    let alone = match image["vfpga"].as_u64() {
        None => String::new(),
        Some(vfpga) => format!("vFPGA {vfpga} alone, "),
    };
    format!(
        "{}: {alone}{} ({} bytes, {})",
        text(&image["name"]),
        logic.join(", "),
        text(&image["bytes"]),
        digest(image)
    )
}

fn short(image: &Value) -> String {
    if image.is_null() {
        "-".into()
    } else {
        format!("{} ({})", text(&image["name"]), digest(image))
    }
}

/// The beginning of an image's digest.
fn digest(image: &Value) -> String {
    text(&image["sha256"]).chars().take(12).collect()
}

/// Asks, unless the answer was given.
fn ask(todo: &Todo<'_>, yes: bool, question: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if todo.json {
        return Err(anyhow!("cannot ask for confirmation with --json: say --yes").into());
    }
    match question::ask(question)? {
        true => Ok(()),
        false => Err(Failure { code: DECLINED, error: None }),
    }
}

/// Waits until balboad has done it, and shows how far it is. Whether the card was seen to have taken it.
fn follow(todo: &Todo<'_>, client: &mut ToolClient) -> Result<bool, Failure> {
    let card = todo.card;
    let mut progress = Progress::new(todo);
    loop {
        match client.flash_state(card.0)? {
            FlashState::Leaving => progress.leaving(),
            FlashState::Loading { done, total } => progress.loading(done, total)?,
            FlashState::Done => return Ok(true),
            FlashState::Unseen => return Ok(false),
            FlashState::Idle => {
                return Err(anyhow!(
                    "balboad knows nothing of it any more: look at `balboa flash history {card}`"
                )
                .into());
            }
            FlashState::Failed(why) => {
                let code = match why.contains("needs to be flashed again") {
                    true => code::AGAIN,
                    false => code::FAILED,
                };
                return Err(Failure::new(code, anyhow!("{card}: {why}")));
            }
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// A bar on a terminal, lines elsewhere.
struct Progress {
    bar: ProgressBar,
    /// Lines are told, of each tenth.
    lines: Option<u64>,
    card: CardName,
}

impl Progress {
    fn new(todo: &Todo<'_>) -> Self {
        let on_terminal = io::stderr().is_terminal() && !todo.json;
        let bar = ProgressBar::with_draw_target(
            None,
            match on_terminal {
                true => ProgressDrawTarget::stderr(),
                false => ProgressDrawTarget::hidden(),
            },
        );
        // A template that is known to be one.
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:40}] {bytes}/{total_bytes}") {
            bar.set_style(style);
        }
        bar.set_message(todo.card.to_string());
        Self { bar, lines: (!on_terminal && !todo.json).then_some(0), card: todo.card }
    }

    fn leaving(&mut self) {
        self.bar.set_message(format!("{}: programs leave it", self.card));
    }

    fn loading(&mut self, done: u64, total: u64) -> io::Result<()> {
        self.bar.set_message(self.card.to_string());
        self.bar.set_length(total);
        self.bar.set_position(done);
        let Some(tenths) = &mut self.lines else { return Ok(()) };
        let now = done.saturating_mul(10).checked_div(total).unwrap_or(0);
        if now > *tenths {
            *tenths = now;
            say(format_args!("{}: {done} of {total} bytes\n", self.card))?;
        }
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn told(todo: &Todo<'_>, document: &Value, sentence: &str) -> Result<(), Failure> {
    if todo.json {
        return say_json(document);
    }
    Ok(say_line(sentence)?)
}

fn say_json(document: &Value) -> Result<(), Failure> {
    Ok(say(format_args!("{document:#}\n"))?)
}

/// Seconds since 1970 as a date and a time, UTC.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Of the proleptic Gregorian calendar, whose years begin in March: 400 of them have 146,097 days.
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year.saturating_add(era.saturating_mul(400)).saturating_add(u64::from(month <= 2));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_date() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_798_761_599, "2026-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(seconds), date);
        }
        time(u64::MAX);
    }

    #[test]
    fn a_plan_shows_both_images_and_whom_it_costs_something() {
        let card = json!({ "name": "balboa0", "board": "B", "location": "L" });
        let image = json!({ "name": "n", "logic": ["vqe", "vqe"], "bytes": 81, "sha256": "0123456789abcdef" });
        let mut incoming = image.clone();
        incoming["signed_by"] = json!("site.pub");
        let programs = json!([{ "command": "ib_write_bw", "pid": 42 }]);
        let mut shown =
            json!({ "current": image, "needs": null, "incoming": incoming, "programs": programs });
        let told = planned(&card, &shown);
        assert!(
            told.contains(
                "card      balboa0, B at L\ncurrent   n: vqe, vqe (81 bytes, 0123456789ab)\n"
            ),
            "{told}"
        );
        assert!(
            told.contains("signed by site.pub\nprograms  ib_write_bw (42): told that"),
            "{told}"
        );
        shown["incoming"]["vfpga"] = json!(2);
        assert!(planned(&card, &shown).contains("incoming  n: vFPGA 2 alone, vqe, vqe (81 bytes"));
        let flash = json!({ "vfpgas": { "3": "spoilt" } });
        assert_eq!(needy_vfpga(&flash).unwrap(), "vFPGA 3 needs to be flashed again: spoilt");
        let vfpgas = &flash["vfpgas"];
        for (card, state) in [
            (json!({}), "well"),
            (json!({ "unseen": true }), "not seen to have it"),
            (json!({ "vfpgas": vfpgas }), "vFPGA 3 needs to be flashed again: spoilt"),
            (json!({ "vfpgas": vfpgas, "failure": "no" }), "did not come up: no"),
            (json!({ "failure": "no", "needs": "power" }), "needs to be flashed again: power"),
            (json!({ "needs": "power", "writing": {} }), "being flashed"),
        ] {
            assert_eq!(state_of(&card), state);
        }
        assert_eq!(needy_vfpga(&json!({ "vfpgas": {} })), None);
        shown["needs"] = json!("its power went");
        shown["programs"] = json!([]);
        let told = planned(&card, &shown);
        assert!(told.contains("none, it needs to be flashed again: its power went"), "{told}");
        assert!(told.contains("none has it open"), "{told}");
    }
}
