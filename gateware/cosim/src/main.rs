//! Tries logic in RTL, cycle by cycle, and prints what the bus allows.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use cosim::copy::{self, Copied, Copy};
use cosim::coverage::Coverage;
use cosim::coyote;
use cosim::ffi::{Library, LoadError};
use cosim::limit::{Limit, measure};
use cosim::random::Random;
use cosim::speed::{self, Load, Work};
use cosim::{
    Config, Direction, Pages, banks, claims, contract, driver, messages, payload, rtl, stopping,
    tables, told,
};
use fpga_regs::coyote::shell::Map;
use fpga_regs::engine::window::Capabilities;
use serde_json::json;
use terminal::{USAGE, report};

/// Try logic in RTL, cycle by cycle, and print what the bus before it allows
#[derive(Debug, Parser)]
#[command(name = "cosim", after_help = HELP)]
struct Arguments {
    /// The directory of the logic's libraries
    #[arg(long, value_name = "DIRECTORY")]
    logic: PathBuf,
    /// Try the seeds 1 to N, of what takes long a fifth or a fiftieth of them
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Try the queue engine alone
    #[arg(long)]
    engine: bool,
    /// Try the adaptor to the shell's records alone
    #[arg(long, conflicts_with_all = ["engine", "cycles"])]
    adaptor: bool,
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE")]
    cycles: Option<PathBuf>,
}

const HELP: &str = "\
The last line is `N passed, N failed, N skipped`.

Exit codes: 0 all passed; 1 something failed; 2 wrong arguments, or no logic in the directory.";

/// Queue pairs of the engine.
const QPS: usize = 4080;
/// Cycles in which the bus is measured.
const MEASURED: u64 = 100_000;
const OUTSTANDING: [usize; 3] = [8, 32, 64];
/// So many of 100 ends of work requests have to be seen; and, behind so many seeds, so many by messages between engines alone.
const COVERED: usize = 95;
const ENOUGH: u64 = 40;
const BY_MESSAGES: usize = 39;
const LENGTHS: [u32; 2] = [64, 4096];

fn main() -> ExitCode {
    let arguments: Arguments = match terminal::parse("cosim", "option", USAGE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let load = |name: &str| Library::load(&arguments.logic.join(name));
    let load_if = |is: bool, name: &str| is.then(|| load(name)).transpose();
    let loaded = (|| {
        let copy = load_if(!arguments.engine && !arguments.adaptor, "libcopy.so")?;
        let adaptor = load_if(!arguments.engine, "libcoyote.so")?;
        Ok::<_, LoadError>((copy, adaptor, load_if(!arguments.adaptor, "libengine.so")?))
    })();
    let (copy, adaptor, engine) = match loaded {
        Ok(libraries) => libraries,
        Err(error) => {
            terminal::complain("cosim", error);
            return ExitCode::from(USAGE);
        }
    };
    let mut tried = Tried::default();
    if let Some(library) = &adaptor {
        tried.count("the adaptor to the shell's records", adapted(library, arguments.seeds));
    }
    let Some(engine) = engine else { return tried.conclude() };
    let mut rows = Vec::new();
    if let Some(library) = &copy {
        tried.count("what the bus allows", bus(&mut rows));
        tried.count("the trivial master in RTL, every byte", every_byte(library, arguments.seeds));
        tried.count("the trivial master in RTL, its speed", speed(library, &mut rows));
    }
    let seeds = arguments.seeds;
    let (fifth, few) = (seeds.div_ceil(5), seeds.div_ceil(50));
    let mut seen = Coverage::default();
    tried.count(
        "SEND, WRITE and READ of one queue pair, RTL to RTL",
        between_engines(&engine, fifth, &mut seen),
    );
    tried.count("many questions for payload at once", questions(&engine, seeds));
    tried.count("a shell that does not answer", silence(&engine));
    tried.count("an engine that stops amid a command", stopped(&engine, seeds));
    tried.count("claims of many queue pairs at once", many_claims(&engine, fifth));
    tried.count("seeds of numbers, and faults that the driver refuses", told(&engine));
    tried.count("messages of more queue pairs than have banks", many_messages(&engine, few));
    tried.count("as many keys and queues as there can be, and tables that flip", kept(&engine));
    let outcome = refused(&engine, &mut seen);
    let offered = outcome.as_ref().map(|(_, offered)| *offered).unwrap_or_default();
    tried.count("bad commands, entries and doorbells, RTL", outcome.map(|(said, _)| said));
    // What a scenario that failed has not seen says nothing.
    if tried.failed.is_empty() {
        tried.count("each end of each work request", covered(&seen, offered));
    }
    tried.count("a driver written from the contract alone, on two cards of RTL", driven(&engine));
    tried.count("page faults that the project's own driver refuses", own_driver());
    if let Some(file) = &arguments.cycles {
        tried.count("the queue engine in RTL, its speed", engine_speed(&engine, &mut rows));
        tried.count("the figures' file", write_rows(file, &rows));
    }
    tried.conclude()
}

type Outcome = Result<String, String>;

/// What was tried.
#[derive(Default)]
struct Tried {
    passed: usize,
    failed: Vec<&'static str>,
}

impl Tried {
    /// Prints the closing line.
    fn conclude(&self) -> ExitCode {
        report!("");
        self.failed.iter().for_each(|name| report!("failed: {name}"));
        report!("{} passed, {} failed, 0 skipped", self.passed, self.failed.len());
        match self.failed.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }

    fn count(&mut self, name: &'static str, outcome: Outcome) {
        match outcome {
            Ok(said) => {
                self.passed += 1;
                report!("ok   {name}: {said}");
            }
            Err(why) => {
                self.failed.push(name);
                report!("FAIL {name}: {why}");
            }
        }
    }
}

/// A figure that nothing is wanted of.
fn row(metric: String, value: f64, unit: &str) -> serde_json::Value {
    json!({ "metric": metric, "value": value, "unit": unit, "wanted": null, "met": null })
}

/// Adds the figures of a limit, and gives them as words.
fn rows(rows: &mut Vec<serde_json::Value>, name: &str, limit: &Limit) -> String {
    let (million, giga) = (limit.per_second() / 1e6, limit.bandwidth() / 1e9);
    rows.push(row(format!("{name}, requests"), million, "M/s"));
    rows.push(row(format!("{name}, bytes"), giga, "GB/s"));
    format!("\n       {name:<44}{million:>8.2} M/s {giga:>8.2} GB/s")
}

/// What the bus allows a trivial master that is not RTL.
fn bus(all: &mut Vec<serde_json::Value>) -> Outcome {
    let mut said = String::from("at 250 MHz, answers after 1 us");
    for (direction, word) in [(Direction::Read, "READ"), (Direction::Write, "WRITE")] {
        for length in LENGTHS {
            for outstanding in OUTSTANDING {
                let config = Config { outstanding, ..Config::default() };
                let limit = measure(&config, direction, length, MEASURED);
                let limit = limit.map_err(|violation| violation.to_string())?;
                let name = format!("bus, {word} {length} B, {outstanding} outstanding");
                said.push_str(&rows(all, &name, &limit));
            }
        }
    }
    Ok(said)
}

/// A bus, a copy and memory that a seed decides.
fn scenario(seed: u64) -> (Config, Copy, Pages) {
    let mut random = Random::new(seed);
    let mut config = Config {
        outstanding: random.one_of(&OUTSTANDING),
        streams: 1,
        latency: random.below(300),
        jitter: random.below(400),
        bytes_per_cycle: 8 + random.below(72),
        payload: random.one_of(&[128, 256, 512]),
        read_request: random.one_of(&[128, 512, 4096]),
        stalls: random.below(200) as u8,
        hasty: 0,
        ends_held: 0,
        seed,
    };
    let most = random.one_of(&[64, 300, 4096]);
    let length = 1 + random.below(most) as u32;
    let count = 1 + random.below(20) as u32;
    let bytes = u64::from(length) * u64::from(count);
    let source = 0x10_0000 + random.below(8192);
    let destination = 0x80_0000 + random.below(8192);
    let mut memory = Pages::default();
    memory.map(source, bytes);
    memory.map(destination, bytes);
    let content: Vec<u8> = (0..bytes).map(|_| random.next_u64() as u8).collect();
    memory.store(source, &content);
    config.hasty = random.below(256) as u8;
    (config, Copy { source, destination, length, count }, memory)
}

/// What comes of each seed, in their order; the seeds share the processors. Of those that fail the first one is told.
fn of_each<T: Send, E: Display>(
    seeds: u64,
    run: impl Fn(u64) -> Result<T, E> + Sync,
) -> Result<Vec<T>, String> {
    let next = AtomicU64::new(1);
    let work = || {
        let mut done = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > seeds {
                return done;
            }
            let outcome = run(seed).map_err(|error| format!("seed {seed}: {error}"));
            if outcome.is_err() {
                next.store(seeds + 1, Ordering::Relaxed);
            }
            done.push((seed, outcome));
        }
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let others: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |other: thread::ScopedJoinHandle<'_, _>| {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().flat_map(join).collect()
    });
    done.sort_unstable_by_key(|(seed, _)| *seed);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Copies with each seed, and compares all of memory.
fn every_byte(library: &Library, seeds: u64) -> Outcome {
    let began = Instant::now();
    let copied = of_each(seeds, |seed| {
        let (config, copy, mut memory) = scenario(seed);
        let mut wanted = memory.clone();
        let length = u64::from(copy.length) * u64::from(copy.count);
        let mut content = vec![0; length as usize];
        wanted.load(copy.source, &mut content);
        wanted.store(copy.destination, &content);
        let Copied { counts, cycles, .. } =
            copy::run(library, config, &copy, &mut memory).map_err(|error| error.to_string())?;
        if memory != wanted {
            return Err(format!("memory is not what it has to be: {copy:?}"));
        }
        if (counts.bytes_read, counts.bytes_written) != (length, length) {
            return Err(format!("{counts:?} passed the ports, of {length} bytes"));
        }
        Ok((cycles, length))
    })?;
    let cycles: u64 = copied.iter().map(|(cycles, _)| cycles).sum();
    let bytes: u64 = copied.iter().map(|(_, bytes)| bytes).sum();
    let rate = cycles as f64 / began.elapsed().as_secs_f64();
    Ok(format!(
        "{seeds} seeds, {bytes} bytes, image=copy (rtl) cycles={cycles}, {rate:.0} cycles a second"
    ))
}

/// What the trivial master in RTL reaches: each byte in and out.
fn speed(library: &Library, all: &mut Vec<serde_json::Value>) -> Outcome {
    let mut said = String::from("each byte is read and written");
    for length in LENGTHS {
        for outstanding in OUTSTANDING {
            let config = Config { outstanding, ..Config::default() };
            let copy = Copy { source: 1 << 20, destination: 1 << 24, length, count: 2000 };
            let bytes = u64::from(copy.length) * u64::from(copy.count);
            let mut memory = Pages::default();
            memory.map(copy.source, bytes);
            memory.map(copy.destination, bytes);
            let copied = copy::run(library, config, &copy, &mut memory);
            let copied = copied.map_err(|error| error.to_string())?;
            let name = format!("copy (rtl), {length} B, {outstanding} outstanding");
            said.push_str(&rows(all, &name, &copied.limit));
        }
    }
    Ok(said)
}

/// The adaptor with each seed.
fn adapted(library: &Library, seeds: u64) -> Outcome {
    let own: u64 = of_each(seeds, |seed| coyote::run(library, seed))?.iter().sum();
    Ok(format!("{seeds} seeds, each bit of the records in both layouts, {own} completions taken"))
}

/// Messages between two engines with each seed.
fn between_engines(library: &Library, seeds: u64, ends: &mut Coverage) -> Outcome {
    let began = Instant::now();
    let mut all = messages::Seen::default();
    for seen in of_each(seeds, |seed| messages::run(library, &scenario(seed).0, 4))? {
        all.messages += seen.messages;
        all.bytes += seen.bytes;
        all.cycles += seen.cycles;
        all.beats += seen.beats;
        all.compared += seen.compared;
        ends.merge(&seen.coverage);
    }
    let messages::Seen { messages, bytes, cycles, beats, compared, .. } = all;
    let covered = ends.count();
    // Few seeds cannot end in each way.
    if seeds >= ENOUGH && covered < BY_MESSAGES {
        return Err(format!("only {covered} ends of work requests were seen: {}", ends.words()));
    }
    let rate = 2.0 * cycles as f64 / began.elapsed().as_secs_f64();
    Ok(format!(
        "{seeds} seeds, {messages} messages, {bytes} bytes, {beats} beats at both ports N, {covered} ends of work requests, {compared} steps as the model's; image=rtl cycles={cycles} of each card, {rate:.0} cycles a second"
    ))
}

/// The ends of work requests that the scenarios have seen, of those that an engine offers.
fn covered(seen: &Coverage, offered: Capabilities) -> Outcome {
    let ends = Coverage::of_all(offered);
    let (covered, count) = (seen.count_of(&ends), ends.count());
    if 100 * covered < COVERED * count {
        let missing = seen.missing(&ends);
        return Err(format!("{covered} of {count} were seen, without {missing}"));
    }
    Ok(format!("{covered} of {count} seen, by operation, status, and state of the queue pair"))
}

/// Many questions for payload at one engine with each seed.
fn questions(library: &Library, seeds: u64) -> Outcome {
    let mut all = payload::Asked::default();
    for asked in of_each(seeds, |seed| payload::run(library, &scenario(seed).0))? {
        all.done += asked.done;
        all.refused += asked.refused;
        all.faults += asked.faults;
        all.cycles += asked.cycles;
    }
    let payload::Asked { done, refused, faults, cycles } = all;
    Ok(format!(
        "{seeds} seeds, {done} with their bytes, {refused} refused, {faults} faults, image=rtl cycles={cycles}"
    ))
}

/// Requests that the shell loses.
fn silence(library: &Library) -> Outcome {
    let kinds = payload::silence(library).map_err(|error| error.to_string())?;
    Ok(format!("{kinds} kinds of requests, each of which stops the engine"))
}

/// Engines that stop amid a command with each seed.
fn stopped(library: &Library, seeds: u64) -> Outcome {
    of_each(seeds, |seed| stopping::run(library, &scenario(seed).0))?;
    Ok(format!("{seeds} seeds, the transport forgets all"))
}

/// Claims of many queue pairs at one engine with each seed.
fn many_claims(library: &Library, seeds: u64) -> Outcome {
    let mut all = claims::Claims::default();
    for seen in of_each(seeds, |seed| claims::run(library, &scenario(seed).0))? {
        all.done += seen.done;
        all.empty += seen.empty;
        all.flushed += seen.flushed;
        all.late += seen.late;
        all.cycles += seen.cycles;
    }
    let claims::Claims { done, empty, flushed, late, cycles } = all;
    Ok(format!(
        "{seeds} seeds, {done} with a receive, {empty} without, {flushed} receives flushed, {late} of them filled; image=rtl cycles={cycles}"
    ))
}

/// Messages of many queue pairs at one engine with each seed.
fn many_messages(library: &Library, seeds: u64) -> Outcome {
    let mut all = banks::Seen::default();
    for seen in of_each(seeds, |seed| banks::run(library, &scenario(seed).0))? {
        all.messages += seen.messages;
        all.cycles += seen.cycles;
    }
    let banks::Seen { messages, cycles } = all;
    Ok(format!("{seeds} seeds, {messages} messages, image=rtl cycles={cycles}"))
}

/// The tables.
fn kept(library: &Library) -> Outcome {
    let tables::Kept { keys, cqs, flips } =
        tables::run(library).map_err(|error| error.to_string())?;
    Ok(format!(
        "{keys} keys and {cqs} completion queues at a time, whose numbers rest; {flips} bits that flip, of which nothing is used"
    ))
}

/// What only the driver knows.
fn told(library: &Library) -> Outcome {
    let told::Told { numbers, faults } = told::run(library).map_err(|error| error.to_string())?;
    Ok(format!(
        "{numbers} numbers of the first seed that counts, {faults} faults of their requests"
    ))
}

/// What the contract has a status for.
fn refused(library: &Library, ends: &mut Coverage) -> Result<(String, Capabilities), String> {
    let messages::Refused { commands, entries, failures, doorbells, coverage, capabilities } =
        messages::refuse(library).map_err(|error| error.to_string())?;
    ends.merge(&coverage);
    let said = format!(
        "{commands} commands and {entries} entries have their statuses, {failures} requests fail in each way of their operation, {doorbells} writes of registers change nothing"
    );
    Ok((said, capabilities))
}

/// Bring-up, page faults, WRITEs and errors, by both register maps.
fn driven(library: &Library) -> Outcome {
    rtl::take(library);
    rtl::offer().map_err(|error| error.to_string())?;
    let image = rtl::NAME.parse()?;
    for map in [Map::Since2026, Map::Before2026] {
        contract::drive(image, map).map_err(|error| format!("{map:?}: {error}"))?;
    }
    Ok("contract/drive_card.py, with the shell's registers since 2026 and before".to_owned())
}

/// Page faults that card-driver refuses, on a card that has the engine of [`driven`].
fn own_driver() -> Outcome {
    let image = rtl::NAME.parse()?;
    let faults = driver::drive(image).map_err(|error| error.to_string())?;
    Ok(format!("{faults} page faults refused, each heard of by the engine"))
}

/// What the engine reaches, and what is wanted of it. A goal that is missed is no failure.
fn engine_speed(library: &Library, all: &mut Vec<serde_json::Value>) -> Outcome {
    let mut said = String::from("a transport that keeps it waiting for nothing");
    let mut add = |metric: String, value: f64, unit: &str, wanted: f64, on_the_bus: Option<f64>| {
        // Of cycles, fewer are better.
        let met = if unit == "cycles" { value <= wanted } else { value >= wanted };
        let bus = on_the_bus.map(|part| format!(", bus at work {:.0} %", 100.0 * part));
        let (bus, word) = (bus.unwrap_or_default(), if met { "met" } else { "not met" });
        said.push_str(&format!("\n       {metric:<52}{value:>8.2} {unit} ({wanted}: {word}{bus})"));
        all.push(
            json!({ "metric": metric, "value": value, "unit": unit, "wanted": wanted, "met": met }),
        );
    };
    let reach = |work, qps, outstanding, [first_length, length]: [u32; 2], messages| {
        let config = Config { outstanding, ..Config::default() };
        let load = Load { work, qps, length, first_length, messages };
        speed::measure(library, &config, &load).map_err(|error| error.to_string())
    };
    for (word, work, qps, outstanding, wanted) in [
        ("WRITE", Work::Write, 16, 64, 16.0),
        ("WRITE", Work::Write, 1, 64, 8.0),
        ("WRITE", Work::Write, 16, 8, 6.39),
        ("WRITE", Work::Write, 1, 8, 6.39),
        ("WRITE inline", Work::Inline, 16, 8, 16.0),
        ("SEND received", Work::Receive, 16, 64, 8.0),
    ] {
        let reached =
            reach(work, qps, outstanding, [64; 2], [256 / qps as u64, 2048 / qps as u64])?;
        let plural = if qps == 1 { "" } else { "s" };
        let metric = format!("engine, {word} 64 B, {qps} QP{plural}, {outstanding} outstanding");
        add(metric, reached.limit.per_second() / 1e6, "M/s", wanted, Some(reached.on_the_bus));
    }
    for (word, work, direction) in
        [("WRITE", Work::Write, Direction::Read), ("READ", Work::Read, Direction::Write)]
    {
        let most =
            measure(&Config { outstanding: 64, ..Config::default() }, direction, 4096, MEASURED);
        let most = most.map_err(|violation| violation.to_string())?.bandwidth();
        for (length, messages, wanted) in [(4096, [64, 256], 0.9), (65_536, [2, 8], 0.97)] {
            let reached = reach(work, 16, 64, [length; 2], messages)?;
            let metric = format!("engine, {word} {length} B, 16 QPs, 64 outstanding");
            let part = reached.limit.bandwidth() / most;
            add(metric, part, "of the bus", wanted, Some(reached.on_the_bus));
        }
    }
    let own = speed::to_first_payload(library).map_err(|error| error.to_string())?;
    let metric = "engine, doorbell to payload beside the reads".to_owned();
    add(metric, own as f64, "cycles", 40.0, None);
    // A queue pair sends in bursts of the entries that are read at a time, of which each has some.
    let reached = reach(Work::Write, 64, 64, [65_536, 64], [2, 64])?;
    let metric = "engine, WRITE 64 B, slowest of 63 QPs beside 64 KiB".to_owned();
    add(metric, reached.slowest, "of the mean", 0.8, Some(reached.on_the_bus));
    let [few, many] = [16, QPS].map(|qps| reach(Work::Write, qps, 64, [64; 2], [8, 32]));
    let part = many?.limit.per_second() / few?.limit.per_second();
    let metric = format!("engine, WRITE 64 B, {QPS} QPs against 16");
    add(metric, part, "of the rate", 0.95, None);
    let cycles = speed::to_reset(library, QPS).map_err(|error| error.to_string())?;
    let metric = format!("engine, reset with {QPS} QPs");
    said.push_str(&format!("\n       {metric:<52}{cycles:>8} cycles"));
    all.push(row(metric, cycles as f64, "cycles"));
    Ok(said)
}

fn write_rows(file: &Path, rows: &[serde_json::Value]) -> Outcome {
    let text = format!("{:#}\n", json!({ "rows": rows }));
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file.display().to_string())
}
