//! The scripts by which numpy judges services, where it is installed.

use std::env;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// What a script says of each seed that is asked for; nothing where no Python has numpy, or what it judges is too slow,
/// which counts as a skip.
///
/// `SERVICES_PYTHON` names the Python, and `SERVICES_SEEDS` the number of seeds, of which the first is 2.
pub fn judged(script: &str, is_quick: bool) -> Vec<(u64, String)> {
    if !is_quick {
        skip("it is not optimized; cargo xtask services has it so");
        return Vec::new();
    }
    let python = env::var_os("SERVICES_PYTHON").unwrap_or_else(|| "python3".into());
    let numpy = Command::new(&python).args(["-c", "import numpy"]).output();
    if !numpy.is_ok_and(|it| it.status.success()) {
        skip("numpy is not installed; cargo xtask services brings it");
        return Vec::new();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let seeds = env::var("SERVICES_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let judged = (2..2 + seeds).map(|seed: u64| {
        let output = Command::new(&python).arg(&script).arg(seed.to_string()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (seed, String::from_utf8(output.stdout).unwrap())
    });
    judged.collect()
}

/// Tells that a test does not run: the runner of the tests counts the lines of the file that `SKIPPED_TESTS` names.
fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    if let Some(path) = env::var_os("SKIPPED_TESTS") {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "services::{}::{test}: {why}", env!("CARGO_CRATE_NAME")).unwrap();
    }
}
