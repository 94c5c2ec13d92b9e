//! The log, on standard error or in the journal behind it, within limits.
//!
//! A thread that logs serves others, and must not wait for a reader of the log: a pager, a terminal that was stopped,
//! a journal that hangs. Where there is no room for a line it is lost, and counted.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use env_logger::Env;
use log::{Level, LevelFilter, Log as _, Metadata, Record};

use crate::journal::{CLIENT, Journal};
use crate::limit::{CallSite, LeftOut, Limit};
use crate::tty::{Terminal, has_room};

/// Bytes of a line's text that the report of omitted lines has.
const EXAMPLE_BYTES: usize = 200;
/// Bytes of a line's text: a pipe that can be written to takes so many at once, with the line's prefix.
const LINE_BYTES: usize = 3 << 10;
/// How long the log's reader may take to make room for a line; no time behind a lost line.
const ROOM: Duration = Duration::from_millis(100);
/// Bytes of the stack of the thread that tells.
const STACK: usize = 128 << 10;

/// The log of the running program; it reports the lines that it left out when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        log::logger().flush();
    }
}

impl Log {
    /// Logs from now on by that many `-v`.
    pub fn set_verbosity(&self, verbose: u8) {
        if let Some(limited) = LIMITED.get() {
            limited.set_verbosity(verbose);
            log::set_max_level(level(verbose).min(limited.out.logger.filter()));
        }
    }
}

/// Starts the log: important lines, more with one `-v`, all with two. `RUST_LOG` comes first.
///
/// Without `-v`, lines of a kind that come again and again are left out beyond `Limit`, counted and
/// told later.
pub fn start_log(verbose: u8) -> Log {
    // The greatest level, which may change, decides which of it is logged.
    let logger = env_logger::Builder::from_env(Env::default().default_filter_or("trace"));
    let out = Out {
        journal: Journal::behind_standard_error(),
        ..Out::to(logger, Terminal::behind(io::stderr().as_fd(), ROOM))
    };
    let limited = LIMITED.get_or_init(|| Limited::new(out, Instant::now(), tell_later));
    // A second one changes nothing.
    let _ = log::set_logger(limited);
    let log = Log(());
    log.set_verbosity(verbose);
    log
}

/// The level for a number of `-v`, if `RUST_LOG` does not set it.
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

/// Waits aside until omitted lines are due to be reported.
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
    out: Out,
    /// Nothing is left out.
    all: AtomicBool,
    state: Mutex<State>,
    /// Lines for which there was no room since the last one. Held while one is written.
    lost: Mutex<u64>,
    /// Schedules a call of [`Self::tell`].
    tell_later: fn(),
}

/// Where lines go.
#[derive(Debug)]
struct Out {
    logger: env_logger::Logger,
    /// The journal, where lines go there by their fields.
    journal: Option<Journal>,
    /// The file that the logger writes to, if that is not standard error.
    file: Option<File>,
    /// Whether the last line was cut, of which the file took a part.
    cut: Arc<AtomicBool>,
}

impl Out {
    /// To a terminal, or to standard error.
    fn to(mut logger: env_logger::Builder, terminal: Option<Terminal>) -> Self {
        let parts = terminal.and_then(|terminal| Some((terminal.parts().ok()?, terminal)));
        let Some(((file, cut), terminal)) = parts else {
            return Self { logger: logger.build(), journal: None, file: None, cut: Arc::default() };
        };
        let logger = logger.target(env_logger::Target::Pipe(Box::new(terminal))).build();
        Self { logger, journal: None, file: Some(file), cut }
    }

    /// Writes a line, if there is room for it within a time. Lines that the journal does not take go to standard error.
    fn write(&self, line: &Record<'_>, patience: Duration) -> bool {
        if let Some(journal) = &self.journal {
            if has_room(journal.as_fd(), patience) && journal.log(line).is_ok() {
                return true;
            }
        }
        let standard_error = io::stderr();
        let file = self.file.as_ref().map_or(standard_error.as_fd(), |file| file.as_fd());
        if !has_room(file, patience) {
            return false;
        }
        self.logger.log(line);
        !self.cut.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct State {
    limit: Limit,
    /// The first line of each kind that was left out.
    examples: Vec<Example>,
    /// A thread waits to report omitted lines.
    waiting: bool,
}

#[derive(Clone, Debug)]
struct Example {
    kind: CallSite,
    level: Level,
    target: String,
    text: String,
}

impl Limited {
    fn new(out: Out, now: Instant, tell_later: fn()) -> Self {
        let state = State { limit: Limit::new(now), examples: Vec::new(), waiting: false };
        let (all, state, lost) = (AtomicBool::new(false), Mutex::new(state), Mutex::new(0));
        Self { out, all, state, lost, tell_later }
    }

    /// Writes a line that is not left out, as one line: names in it may be anything.
    fn write(&self, record: &Record<'_>) {
        let text = crate::one_line(&cut(record.args().to_string(), LINE_BYTES));
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = if *lost == 0 { ROOM } else { Duration::ZERO };
        // As one of those that are asked for.
        self.tell_lost(&mut lost, record.level(), record.target());
        let line = |args: std::fmt::Arguments<'_>| {
            self.out.write(&record.to_builder().args(args).build(), patience)
        };
        // In their order, or not at all.
        if *lost > 0 || !line(format_args!("{text}")) {
            *lost = lost.saturating_add(1);
        }
    }

    /// Tells how many lines were lost, if there were any and there is room for that.
    fn tell_lost(&self, lost: &mut u64, level: Level, target: &str) {
        let line = |args: std::fmt::Arguments<'_>| {
            let record = Record::builder().level(level).target(target).args(args).build();
            self.out.write(&record, Duration::ZERO)
        };
        if *lost > 0 && line(format_args!("{lost} lines are lost, for nobody read the log")) {
            *lost = 0;
        }
    }

    /// Tells the same at the end, behind which no line comes.
    fn tell_last(&self) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell_lost(&mut lost, Level::Error, module_path!());
    }

    fn set_verbosity(&self, verbose: u8) {
        self.all.store(verbose > 0, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports omitted lines that are due; the time until the next report.
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
        if !self.out.logger.matches(record) {
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

    fn keep_example(&mut self, kind: CallSite, record: &Record<'_>) {
        if self.examples.iter().any(|example| example.kind == kind) {
            return;
        }
        let text = cut(record.args().to_string(), EXAMPLE_BYTES);
        let target = record.target().to_owned();
        self.examples.push(Example { kind, level: record.level(), target, text });
    }
}

/// A text of so many bytes, and a few more, at most.
fn cut(mut text: String, bytes: usize) -> String {
    if let Some((at, _)) = text.char_indices().find(|(at, _)| *at >= bytes) {
        text.truncate(at);
    }
    text
}

impl log::Log for Limited {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.out.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.log_at(record, Instant::now());
    }

    fn flush(&self) {
        self.tell_rest(Instant::now());
        self.tell_last();
        self.out.logger.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write};

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
        let out = Out { logger, journal: None, file: None, cut: Arc::default() };
        (Limited::new(out, now, || {}), written)
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
        logger.out.journal = Some(journal);
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
        logger.out.journal = Some(journal);
        say(&logger, now, 1, None, text);
        assert_eq!(received(&end).unwrap()["MESSAGE"], clean);
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_not_waited_for() {
        let now = Instant::now();
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let (mut reader, writer) = (File::from(reader), File::from(writer));
        let file = Some(writer.try_clone().unwrap());
        let target = || env_logger::Target::Pipe(Box::new(writer.try_clone().unwrap()));
        let logger = env_logger::Builder::new().parse_filters("debug").target(target()).build();
        let out = Out { logger, journal: None, file, cut: Arc::default() };
        let mut logger = Limited::new(out, now, || {});
        logger.set_verbosity(1);
        let long = "x".repeat(10_000);
        for _ in 0..100 {
            say(&logger, now, 1, None, &long);
        }
        let lost = *logger.lost.lock().unwrap();
        assert!((70..100).contains(&lost), "{lost}");
        let mut bytes = vec![0; 1 << 20];
        let count = reader.read(&mut bytes).unwrap();
        let lines = bytes[..count].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(u64::try_from(lines).unwrap(), 100 - lost);
        say(&logger, now, 1, None, "heard again");
        let count = reader.read(&mut bytes).unwrap();
        let told = String::from_utf8_lossy(&bytes[..count]);
        let told: Vec<_> = told.lines().collect();
        assert!(told[0].contains(&format!("{lost} lines are lost")), "{told:?}");
        assert!(told.len() == 2 && told[1].ends_with("heard again"), "{told:?}");
        assert_eq!(*logger.lost.lock().unwrap(), 0);
        // Nor is that left out where little is asked for, or where no line comes any more.
        let mut builder = env_logger::Builder::new();
        logger.out.logger = builder.parse_filters("error,of::it=info").target(target()).build();
        *logger.lost.lock().unwrap() = 3;
        let args = format_args!("asked for");
        logger.write(&Record::builder().level(Level::Info).target("of::it").args(args).build());
        *logger.lost.lock().unwrap() = 4;
        logger.flush();
        let count = reader.read(&mut bytes).unwrap();
        let told = String::from_utf8_lossy(&bytes[..count]);
        assert!(told.contains("3 lines are lost") && told.contains("4 lines are lost"), "{told}");
        // Nobody can read them any more.
        drop(reader);
        say(&logger, now, 1, None, "to nobody");
    }

    #[test]
    fn a_terminal_that_nobody_reads_holds_nobody_up_in_the_middle_of_a_line() {
        let now = Instant::now();
        let pty = nix::pty::openpty(None, None).unwrap();
        let terminal = Terminal::behind(pty.slave.as_fd(), ROOM);
        let mut builder = env_logger::Builder::new();
        builder.parse_filters("debug");
        let logger = Limited::new(Out::to(builder, terminal), now, || {});
        logger.set_verbosity(1);
        let text = "x".repeat(300);
        for _ in 0..1000 {
            say(&logger, now, 1, None, &text);
        }
        let lost = *logger.lost.lock().unwrap();
        assert!(0 < lost && lost < 1000, "{lost}");
        let mut master = File::from(pty.master);
        let reader = std::thread::spawn(move || {
            let mut told = String::new();
            let mut bytes = [0; 4096];
            while !told.trim_end().ends_with("heard again") {
                let count = master.read(&mut bytes).unwrap();
                told.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            }
            told
        });
        // The reader, which reads again, makes room by and by.
        while *logger.lost.lock().unwrap() > 0 {
            say(&logger, now, 1, None, "between");
        }
        say(&logger, now, 1, None, "heard again");
        let told = reader.join().unwrap();
        assert!(
            told.lines().any(|line| line.ends_with(" lines are lost, for nobody read the log"))
        );
        let cut = |line: &&str| line.ends_with('x') && !line.ends_with(&text);
        assert!(told.lines().filter(cut).count() <= 1, "{told}");
        assert!(told.trim_end().lines().all(|line| line.matches('[').count() <= 1), "{told}");
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
