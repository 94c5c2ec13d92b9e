//! `balboa perf`: figures of two cards.
//!
//! This program has no verbs of its own: those are calls of C's, which it is to be without. The one that has them is
//! installed beside the providers, and runs as any verbs program does.

use std::ffi::OsString;
use std::path::Path;

use crate::args;
use crate::run::{self, RunError};

/// The program that measures.
const PROGRAM: &str = "balboa-perf";

/// Becomes the program that measures.
///
/// # Errors
/// The step that failed.
pub fn perf(arguments: &args::Perf) -> Result<u8, RunError> {
    let program = run::beside_us(PROGRAM).map_err(RunError::NoPerf)?;
    let command = line(&program, arguments);
    let state_dir = arguments.state_dir.clone();
    run::run(&args::Run { state_dir, in_place: false, start: None, command })
}

fn line(program: &Path, arguments: &args::Perf) -> Vec<OsString> {
    let args::Perf { state_dir: _, from, to, gid, seconds, json } = arguments;
    let mut words =
        vec![format!("--from={from}"), format!("--to={to}"), format!("--seconds={seconds}")];
    words.extend(gid.map(|gid| format!("--gid={gid}")));
    words.extend(json.then(|| "--json".to_owned()));
    let program = OsString::from(program);
    [program].into_iter().chain(words.into_iter().map(OsString::from)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn what_is_asked_for_is_passed_on() {
        let words = ["balboa", "perf", "--from", "balboa2", "--gid", "3", "--json"];
        let args::Command::Perf(asked) = args::Arguments::parse_from(words).command else {
            panic!("another command");
        };
        let line = line(Path::new("/x/balboa-perf"), &asked);
        let wanted = "/x/balboa-perf --from=balboa2 --to=balboa1 --seconds=1 --gid=3 --json";
        assert_eq!(line, wanted.split(' ').map(OsString::from).collect::<Vec<_>>());
    }
}
