//! The log, on standard error or in the journal behind it, within limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use env_logger::Env;
use log::{Level, LevelFilter, Log as _, Metadata, Record};

use crate::journal::{CLIENT, Journal};
use crate::limit::{Kind, LeftOut, Limit};

/// Bytes of a line's text that are told with what was left out.
const EXAMPLE_BYTES: usize = 200;
/// Bytes of the stack of the thread that tells.
const STACK: usize = 128 << 10;

/// The log of the running program; what it has left out is told when this goes.
#[must_use]
#[derive(Debug)]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        log::logger().flush();
    }
}

impl Log {
    /// Logs from now on what as many `-v` ask for.
    pub fn set_verbosity(&self, verbose: u8) {
        if let Some(limited) = LIMITED.get() {
            limited.set_verbosity(verbose);
            log::set_max_level(level(verbose).min(limited.logger.filter()));
        }
    }
}

/// Starts the log: what matters, more with one `-v`, everything with two. `RUST_LOG` comes first.
///
/// Without `-v`, lines of a kind that come again and again are left out beyond `Limit`, counted and
/// told later.
pub fn start_log(verbose: u8) -> Log {
    // What is logged of it is a matter of the greatest level, which may change.
    let logger = env_logger::Builder::from_env(Env::default().default_filter_or("trace")).build();
    let journal = Journal::behind_standard_error();
    let limited = LIMITED.get_or_init(|| Limited::new(logger, journal, Instant::now(), tell_later));
    // A second one changes nothing.
    let _ = log::set_logger(limited);
    let log = Log(());
    log.set_verbosity(verbose);
    log
}

/// What is logged with as many `-v`, where `RUST_LOG` does not say it.
fn level(verbose: u8) -> LevelFilter {
    let set = std::env::var_os("RUST_LOG").is_some();
    match verbose {
        _ if set => LevelFilter::Trace,
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    }
}

/// The program's log, if it is within limits.
static LIMITED: OnceLock<Limited> = OnceLock::new();

/// Waits aside until what was left out is to be told.
fn tell_later() {
    let Some(limited) = LIMITED.get() else { return };
    let wait = || {
        while let Some(patience) = limited.tell(Instant::now()) {
            std::thread::sleep(patience);
        }
    };
    if Builder::new().name("log".into()).stack_size(STACK).spawn(wait).is_err() {
        // The next line tells.
        limited.state().waiting = false;
    }
}

/// A logger within limits.
#[derive(Debug)]
struct Limited {
    logger: env_logger::Logger,
    /// The journal, where lines go there by their fields.
    journal: Option<Journal>,
    /// Nothing is left out.
    all: AtomicBool,
    state: Mutex<State>,
    /// Has [`Self::tell`] called in time.
    tell_later: fn(),
}

#[derive(Debug)]
struct State {
    limit: Limit,
    /// The first line of each kind that was left out.
    examples: Vec<Example>,
    /// A thread waits to tell what was left out.
    waiting: bool,
}

#[derive(Clone, Debug)]
struct Example {
    kind: Kind,
    level: Level,
    target: String,
    text: String,
}

impl Limited {
    fn new(
        logger: env_logger::Logger,
        journal: Option<Journal>,
        now: Instant,
        tell_later: fn(),
    ) -> Self {
        let state = State { limit: Limit::new(now), examples: Vec::new(), waiting: false };
        Self { logger, journal, all: AtomicBool::new(false), state: Mutex::new(state), tell_later }
    }

    /// Writes a line that is not left out, as one line: names in it may be anything. What the journal does not take
    /// goes to standard error.
    fn write(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let text = crate::one_line(&text);
        let line = |args: std::fmt::Arguments<'_>| {
            let line = record.to_builder().args(args).build();
            let Some(journal) = &self.journal else { return self.logger.log(&line) };
            if journal.log(&line).is_err() {
                self.logger.log(&line);
            }
        };
        line(format_args!("{text}"));
    }

    fn set_verbosity(&self, verbose: u8) {
        self.all.store(verbose > 0, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what is due, and how long it is until more will be.
    fn tell(&self, now: Instant) -> Option<Duration> {
        let (told, patience) = {
            let mut state = self.state();
            let due = state.limit.due(now);
            let told = state.with_examples(due);
            let patience = state.limit.patience(now);
            state.waiting &= patience.is_some();
            (told, patience)
        };
        self.say(told, now);
        patience
    }

    /// Tells everything that was left out.
    fn tell_rest(&self, now: Instant) {
        let told = {
            let mut state = self.state();
            let rest = state.limit.rest();
            state.with_examples(rest)
        };
        self.say(told, now);
    }

    fn log_at(&self, record: &Record<'_>, now: Instant) {
        if !self.logger.matches(record) {
            return;
        }
        if record.level() > Level::Info || self.all.load(Ordering::Relaxed) {
            return self.write(record);
        }
        self.tell(now);
        let kind = (record.file_static().unwrap_or_default(), record.line().unwrap_or(0));
        let client = record.key_values().get(CLIENT.into()).and_then(|client| client.to_u64());
        let mut state = self.state();
        if state.limit.admit(kind, client, now) {
            drop(state);
            return self.write(record);
        }
        state.keep_example(kind, record);
        if !std::mem::replace(&mut state.waiting, true) {
            drop(state);
            (self.tell_later)();
        }
    }

    fn say(&self, told: Vec<(LeftOut, Example)>, now: Instant) {
        for (left_out, example) in told {
            let seconds = now.saturating_duration_since(left_out.since).as_secs().max(1);
            let Example { level, target, text, .. } = example;
            let lines = left_out.lines;
            self.write(
                &Record::builder()
                    .level(level)
                    .target(&target)
                    .args(format_args!("{lines} more like it in the last {seconds} s: {text}"))
                    .build(),
            );
        }
    }
}

impl State {
    fn with_examples(&mut self, left_out: Vec<LeftOut>) -> Vec<(LeftOut, Example)> {
        let mut told = Vec::new();
        for left_out in left_out {
            if let Some(at) = self.examples.iter().position(|it| it.kind == left_out.kind) {
                told.push((left_out, self.examples.swap_remove(at)));
            }
        }
        told
    }

    fn keep_example(&mut self, kind: Kind, record: &Record<'_>) {
        if self.examples.iter().any(|example| example.kind == kind) {
            return;
        }
        let mut text = record.args().to_string();
        if let Some((at, _)) = text.char_indices().find(|(at, _)| *at >= EXAMPLE_BYTES) {
            text.truncate(at);
        }
        let target = record.target().to_owned();
        self.examples.push(Example { kind, level: record.level(), target, text });
    }
}

impl log::Log for Limited {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.log_at(record, Instant::now());
    }

    fn flush(&self) {
        self.tell_rest(Instant::now());
        self.logger.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use super::*;
    use crate::journal::tests::{pair, received};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn limited(now: Instant) -> (Limited, Written) {
        let written = Written::default();
        let target = env_logger::Target::Pipe(Box::new(written.clone()));
        let logger = env_logger::Builder::new().parse_filters("debug").target(target).build();
        (Limited::new(logger, None, now, || {}), written)
    }

    fn say(logger: &Limited, now: Instant, line: u32, client: Option<u64>, text: &str) {
        let client = client.map(|client| (CLIENT, client));
        let level = if line == DETAIL { Level::Debug } else { Level::Warn };
        logger.log_at(
            &Record::builder()
                .level(level)
                .target("test")
                .file_static(Some("test.rs"))
                .line(Some(line))
                .key_values(&client)
                .args(format_args!("{text}"))
                .build(),
            now,
        );
    }

    /// The line of this source that says details.
    const DETAIL: u32 = 99;

    #[test]
    fn a_flood_becomes_a_number_of_lines_and_one_that_counts_the_rest() {
        let now = Instant::now();
        let (logger, written) = limited(now);
        for n in 0..1000 {
            say(&logger, now, 1, None, &format!("overflow {n}"));
            say(&logger, now, 2, Some(7), &format!("refusal {n}"));
        }
        say(&logger, now, 2, Some(8), "another's");
        let lines = written.take();
        assert_eq!(lines.len(), 121, "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("another's")));
        assert!(logger.state().waiting);
        logger.tell_rest(now + Duration::from_secs(7));
        let rest = written.take();
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert!(rest[0].contains("WARN"), "{rest:?}");
        assert!(rest[0].contains("980 more like it in the last 7 s: refusal 20"), "{rest:?}");
        assert!(rest[1].contains("900 more like it in the last 7 s: overflow 100"), "{rest:?}");
        logger.flush();
        assert!(written.take().is_empty());
    }

    #[test]
    fn what_was_left_out_is_told_in_time_and_then_nobody_waits() {
        let now = Instant::now();
        let (logger, written) = limited(now);
        for _ in 0..101 {
            say(&logger, now, 1, None, &"x".repeat(1000));
        }
        written.take();
        let patience = logger.tell(now).unwrap();
        assert!(written.take().is_empty());
        assert_eq!(logger.tell(now + patience), None);
        let told = written.take();
        assert!(told.len() == 1 && told[0].len() < 300, "{told:?}");
        assert!(!logger.state().waiting);
    }

    #[test]
    fn nothing_is_left_out_while_more_is_asked_for() {
        let now = Instant::now();
        let (logger, written) = limited(now);
        for (verbose, lines) in [(1, 1000), (0, 100)] {
            logger.set_verbosity(verbose);
            for _ in 0..1000 {
                say(&logger, now, 1, None, "a line");
            }
            assert_eq!(written.take().len(), lines);
        }
    }

    #[test]
    fn the_journal_takes_lines_within_the_same_limits_and_standard_error_those_it_does_not() {
        let now = Instant::now();
        let home = tempfile::tempdir().unwrap();
        let (end, journal) = pair(home.path());
        let (mut logger, written) = limited(now);
        logger.journal = Some(journal);
        let mut told = Vec::new();
        for n in 0..1000 {
            say(&logger, now, 1, Some(7), &format!("refusal {n}"));
            told.extend(received(&end));
        }
        assert_eq!(told.len(), 20);
        assert_eq!((&*told[19]["MESSAGE"], &*told[19]["BALBOA_CLIENT"]), ("refusal 19", "7"));
        logger.tell_rest(now + Duration::from_secs(7));
        let rest = received(&end).unwrap();
        assert_eq!(rest["MESSAGE"], "980 more like it in the last 7 s: refusal 20");
        assert_eq!(rest["PRIORITY"], "4");
        assert!(written.take().is_empty(), "a line was told twice");
        drop(end);
        say(&logger, now, 2, None, "the journal has gone");
        assert!(written.take()[0].contains("the journal has gone"));
    }

    #[test]
    fn a_line_is_one_line_and_nothing_that_a_terminal_obeys() {
        let now = Instant::now();
        let (mut logger, written) = limited(now);
        let text = "a\u{1b}]0;title\u{7}\r\n[2026 ERROR forged] b\u{9b}2J";
        let clean = "a?]0;title? [2026 ERROR forged] b?2J";
        for line in [1, DETAIL] {
            say(&logger, now, line, None, text);
            let told = written.take();
            assert!(told.len() == 1 && told[0].ends_with(clean), "{told:?}");
        }
        let home = tempfile::tempdir().unwrap();
        let (end, journal) = pair(home.path());
        logger.journal = Some(journal);
        say(&logger, now, 1, None, text);
        assert_eq!(received(&end).unwrap()["MESSAGE"], clean);
    }

    #[test]
    fn details_are_not_counted() {
        let now = Instant::now();
        let (logger, written) = limited(now);
        for _ in 0..1000 {
            say(&logger, now, DETAIL, None, "a detail");
        }
        assert_eq!(written.take().len(), 1000);
    }
}
