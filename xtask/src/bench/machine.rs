//! The machine that figures come from.

use std::fs;

use anyhow::{Context as _, Result};
use harness::process::Task;
use serde_json::{Value, json};

use crate::cargo::root;

/// The properties of a machine that decide its figures.
#[derive(Clone, Debug)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    virtualized: bool,
    kernel: String,
    system: String,
    libibverbs: String,
    commit: String,
    load: String,
}

impl Machine {
    /// Looks at this one.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn look() -> Result<Self> {
        let cpuinfo = read("/proc/cpuinfo")?;
        let field = |name| value(&cpuinfo, name, ':').unwrap_or_default();
        let kilobytes = value(&read("/proc/meminfo")?, "MemTotal", ':').unwrap_or_default();
        let kilobytes: u64 = first_word(&kilobytes).parse().unwrap_or(0);
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = value(&release, "PRETTY_NAME", '=').unwrap_or_default();
        Ok(Self {
            cpu: field("model name"),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: kilobytes.div_ceil(1 << 20),
            virtualized: field("flags").split_whitespace().any(|flag| flag == "hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            system: system.trim_matches('"').to_owned(),
            libibverbs: said(Task::new("dpkg-query").args([
                "-W",
                "-f",
                "${Version}",
                "libibverbs1",
            ])),
            commit: commit(),
            load: first_word(&read("/proc/loadavg")?).to_owned(),
        })
    }

    /// For a program.
    pub fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_gib": self.memory_gib,
            "virtualized": self.virtualized,
            "kernel": self.kernel,
            "system": self.system,
            "libibverbs": self.libibverbs,
            "commit": self.commit,
            "load_before": self.load,
        })
    }
}

/// The machine in a sentence.
impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.virtualized { "virtual machine" } else { "machine" };
        let Self { cpu, cores, memory_gib, kernel, system, libibverbs, commit, load, .. } = self;
        write!(
            f,
            "{kind} with {cores} cores ({cpu}), {memory_gib} GiB; {system}, Linux {kernel}, \
             libibverbs {libibverbs}; commit {commit}; load average before the run {load}"
        )
    }
}

/// HEAD, and whether the files differ from it.
fn commit() -> String {
    let git = |words: &str| said(Task::new("git").arg("-C").arg(root()).words(words));
    let head = git("rev-parse --short=12 HEAD");
    let changed = !git("status --porcelain --untracked-files=no -- :!docs").is_empty();
    if changed { format!("{head} and changes") } else { head }
}

/// The output of a program, if it is there and succeeds.
fn said(task: Task) -> String {
    let finished = task.run().and_then(harness::process::Finished::success);
    finished.map(|it| it.stdout.trim().to_owned()).unwrap_or_default()
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {file}"))
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// The value on the first line that begins with a name.
fn value(text: &str, name: &str, separator: char) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(separator));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_in_full() {
        let json = Machine::look().unwrap().json();
        assert!(json["cores"].as_u64().is_some_and(|cores| cores > 0), "{json}");
        assert!(json["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{json}");
    }
}
