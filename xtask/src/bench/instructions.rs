//! The cost of the provider's data path, counted in instructions by callgrind.
//!
//! Counted are whole calls, from entry to return, with default locking, of one element for each work
//! request; and polls that each return one completion. The system call that wakes a sleeping card is
//! left out: it is made for the first work request after a pause, not for each. Instructions do not
//! depend on other work of the machine, so they can be compared between runs and machines.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use harness::setting::Daemon;
use verbs_sys::RELEASES;

use super::perftest::Programs;

/// A row, and the calls counted for it.
struct Counted {
    metric: &'static str,
    /// The functions of the call, and the parts left out: entry and return of each start and stop the count. In the
    /// provider.
    functions: &'static [&'static str],
    /// The words for `verbs-bench one-by-one`: the requests that it posts, and how.
    posted: &'static str,
    /// Work requests, or polls, of each time that it posts.
    of_each: u32,
}

const POST_SEND: &[&str] = &[
    "ffi::post::post_send",
    // The way to the system call.
    "doorbell::CardPath::wake",
];
/// A card that has nothing to do is not woken for receives.
const POST_RECV: &[&str] = &["ffi::post::post_recv"];
const POST_SRQ_RECV: &[&str] = &["ffi::post::post_srq_recv"];
const POLL_CQ: &[&str] = &["ffi::cq::poll_cq"];

/// One request, call by call.
const WR: &[&str] = &[
    "ffi::qp::extended::wr_start",
    "ffi::qp::extended::wr_rdma_write",
    "ffi::qp::extended::wr_set_sge",
    "ffi::qp::extended::wr_complete",
    "doorbell::CardPath::wake",
];
/// The call without the program's reads of the completion.
const START_POLL: &[&str] = &["ffi::cq::extended::start_poll", "ffi::cq::extended::end_poll"];

const ROWS: [Counted; 11] = [
    row("post_send_instr", POST_SEND, "write", 1),
    row("post_send_inline_instr", POST_SEND, "inline", 1),
    row("post_send_list8_instr", POST_SEND, "list8", 8),
    row("post_recv_instr", POST_RECV, "receive", 1),
    row("post_srq_recv_instr", POST_SRQ_RECV, "shared-receive", 1),
    row("poll_cq_instr", POLL_CQ, "write", 1),
    row("poll_recv_instr", POLL_CQ, "receive", 1),
    row("poll_srq_recv_instr", POLL_CQ, "shared-receive", 1),
    row("wr_post_instr", WR, "write --extended", 1),
    row("wr_post_list8_instr", WR, "list8 --extended", 8),
    row("start_poll_instr", START_POLL, "write --extended", 1),
];

const fn row(
    metric: &'static str,
    functions: &'static [&'static str],
    posted: &'static str,
    of_each: u32,
) -> Counted {
    Counted { metric, functions, posted, of_each }
}

/// Counts for every row, with so many calls that post.
///
/// # Errors
/// When valgrind fails.
pub fn measure(
    programs: &Programs,
    daemon: &Daemon<'_>,
    count: u32,
    mut add: impl FnMut(&str, f64),
) -> Result<()> {
    for Counted { metric, functions, posted, of_each } in ROWS {
        let instructions = of(programs, daemon, functions, posted, count).context(metric)?;
        add(metric, instructions / f64::from(of_each));
    }
    Ok(())
}

/// Instructions of functions for each time that requests are posted.
fn of(
    programs: &Programs,
    daemon: &Daemon<'_>,
    functions: &[&str],
    posted: &str,
    count: u32,
) -> Result<f64> {
    let file = programs.scratch.join("callgrind.out");
    let toggles: String = functions.iter().flat_map(|function| toggles(function)).collect();
    let under = format!(
        "valgrind --tool=callgrind --quiet --callgrind-out-file={}{toggles}",
        file.display()
    );
    let arguments = format!("one-by-one --count {count} --posted {posted}");
    programs.verbs_bench(daemon, &under, &arguments).run()?.success()?;
    let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
    let total = total(&text).context("callgrind counted nothing at all")?;
    ensure!(total > 0, "{functions:?}: not called, or without symbols in the provider");
    Ok(total as f64 / f64::from(count))
}

/// The options that start and stop the count at a function of whichever provider is loaded. Each is named whole: of
/// several patterns that begin alike, callgrind heeds one.
fn toggles(function: &str) -> impl Iterator<Item = String> {
    RELEASES.iter().map(move |release| {
        format!(" --toggle-collect=balboa_provider_{}::{function}", release.number)
    })
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
