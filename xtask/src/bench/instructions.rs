//! What the provider's data path costs, counted in instructions by callgrind.
//!
//! Counted are whole calls, from entry to return: a signaled WRITE with one SGE that is not inline,
//! in lists of one, with default locking; and polls that each return one completion. The system
//! call that wakes a sleeping card is left out: it is made for the first work request after a
//! pause, not for each. Instructions do not depend on what else the machine does, so they can be
//! compared between runs and machines.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ibverbs_tests::setting::Daemon;

use super::stock::Programs;

const POST_SEND: &str = "balboa_provider::ffi::post::post_send";
const POLL_CQ: &str = "balboa_provider::ffi::cq::poll_cq";
/// The way from posting to the system call; collection stops at its entry and goes on at its
/// return.
const WAKE: &str = "balboa_provider::doorbell::CardPath::wake";

/// Instructions of an ibv_post_send.
///
/// # Errors
/// When valgrind fails.
pub fn of_post_send(programs: &Programs, daemon: &Daemon<'_>, count: u32) -> Result<f64> {
    of(programs, daemon, &[POST_SEND, WAKE], count)
}

/// Instructions of an ibv_poll_cq.
///
/// # Errors
/// When valgrind fails.
pub fn of_poll_cq(programs: &Programs, daemon: &Daemon<'_>, count: u32) -> Result<f64> {
    of(programs, daemon, &[POLL_CQ], count)
}

/// Instructions between entry and return of the first function, per call. Entry and return of any
/// of the functions start and stop the count.
fn of(programs: &Programs, daemon: &Daemon<'_>, functions: &[&str], count: u32) -> Result<f64> {
    let file = programs.scratch.join("callgrind.out");
    let toggles: String =
        functions.iter().map(|function| format!(" --toggle-collect={function}")).collect();
    let under = format!(
        "valgrind --tool=callgrind --quiet --callgrind-out-file={}{toggles}",
        file.display()
    );
    let arguments = format!("one-by-one --count {count}");
    programs.verbs_bench(daemon, &under, &arguments).run()?.success()?;
    let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
    let total = total(&text).context("callgrind counted nothing at all")?;
    ensure!(total > 0, "{functions:?}: not called, or without symbols in the provider");
    Ok(total as f64 / f64::from(count))
}

/// The sum over all of a callgrind profile.
fn total(profile: &str) -> Option<u64> {
    let line = profile.lines().find_map(|line| line.strip_prefix("totals:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_profile_is_found() {
        assert_eq!(total("version: 1\nevents: Ir\nfn=(1) a\n3 4\n\ntotals: 12345\n"), Some(12345));
        assert_eq!(total("version: 1\n"), None);
    }
}
