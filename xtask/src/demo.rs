//! The demo: the distribution's programs between two software cards, and the bytes that they moved.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::pair::{free_port, start_server};
use harness::process::{Finished, Task};
use harness::setting::{Daemon, Stage, Who, installed_release};
use harness::table::table;
use serde_json::Value;
use terminal::report;

use crate::cargo::{self, Profile};
use crate::setup;

/// Bytes of a MiB, which perftest calls MB.
const MIB: f64 = 1_048_576.0;
/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(180);
/// Messages of each bandwidth run.
const ITERATIONS: u32 = 20_000;

/// Runs the demo.
///
/// # Errors
/// When a step of it fails.
pub fn demo() -> Result<ExitCode> {
    setup::packages(setup::DEMO)?;
    // Without the interpreter of services.
    let stage = stage("--no-default-features", &[])?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::Ourselves)?;
    let daemon = setting.balboad("--soft 2")?;
    report!("\nTwo software cards, balboa0 and balboa1, one cable between them.");

    show("ibv_devinfo", &daemon.run("ibv_devinfo").run()?.success()?);
    let mut lines = Vec::new();
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        // -F: perftest refuses to report where a busy machine makes its clock look unsteady.
        let command = format!("{program} -F -s 65536 -n {ITERATIONS}");
        let client = between_the_cards(&daemon, &command, LIMIT)?;
        lines.push((program, "64 KiB messages", bandwidth(&client)? * MIB));
    }
    let latency = between_the_cards(&daemon, "ib_write_lat -F", LIMIT)?;
    let typical = column(&latency, 4)?;
    let tcp = tcp_loopback()?;
    let status = daemon.status()?;
    daemon.stop()?;

    report!("\n---- Summary (1 MB = 10^6 bytes; perftest's \"MB/sec\" above is MiB/s)");
    for (program, what, bytes) in lines {
        report!("{program:<14}{:>9.0} MB/s   {what}", bytes / 1e6);
    }
    report!(
        "{:<14}{:>9.0} MB/s   iperf3 -l 64K, this machine, this run",
        "TCP loopback",
        tcp / 1e6
    );
    report!("{:<14}{typical:>9.2} us     typical, 2 bytes, one way", "ib_write_lat");
    print_counters(&status);
    Ok(ExitCode::SUCCESS)
}

/// Builds the daemon, the tool, the one provider that the programs load, and more programs of the tests', with these
/// options of cargo's.
///
/// # Errors
/// When the build fails, or there is no provider for the distribution's programs.
pub fn stage(options: &str, more: &[&str]) -> Result<Stage> {
    let release = installed_release()?;
    let number = release.number;
    let mut packages = format!("{options} -p kdriver-shim -p balboa -p balboa-provider-{number}");
    if !more.is_empty() {
        packages.push_str(" -p verbs-programs");
    }
    let built = cargo::build_of(Profile::Quick, packages.trim_start())?;
    let programs = ["balboad", "balboa"].iter().chain(more).copied();
    Stage::of(&built, programs.map(str::to_owned), [release])
}

/// Shows what a program said.
fn show(title: &str, finished: &Finished) {
    report!("\n---- {title}");
    report!("{}", finished.stdout.trim_end());
}

/// Runs a command on balboa0 as server and on balboa1 as client, and shows the client's output.
///
/// # Errors
/// When either fails.
pub fn between_the_cards(daemon: &Daemon<'_>, command: &str, limit: Duration) -> Result<Finished> {
    let port = free_port()?;
    let side = |card: u32| daemon.run(command).words(&format!("-d balboa{card} -p {port}"));
    let server = start_server(side(0).limit(limit), port)?;
    let client = side(1).arg("127.0.0.1").limit(limit).run()?.success()?;
    server.wait()?.success()?;
    show(&format!("{command} from balboa1 to balboa0"), &client);
    Ok(client)
}

/// Average bandwidth, MiB/s.
fn bandwidth(finished: &Finished) -> Result<f64> {
    column(finished, 3)
}

fn column(finished: &Finished, index: usize) -> Result<f64> {
    let value = table(finished)?.first().and_then(|row| row.get(index).copied());
    value.with_context(|| format!("no column {index} in {finished}"))
}

/// Bytes per second of TCP over the loopback interface.
fn tcp_loopback() -> Result<f64> {
    let port = free_port()?;
    let server = Task::new("iperf3").words(&format!("-s -1 -B 127.0.0.1 -p {port}"));
    let server = start_server(server, port)?;
    let client = Task::new("iperf3").words(&format!("-c 127.0.0.1 -p {port} -l 64K -t 3 -J"));
    let client = client.run()?.success()?;
    drop(server);
    let report: Value = serde_json::from_str(&client.stdout)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.with_context(|| format!("no rate: {client}"))? / 8.0)
}

/// Prints the cards' counters.
fn print_counters(status: &Value) {
    let cards = status["cards"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |name: &str| -> u64 {
        cards.iter().filter_map(|card| card["counters"][name].as_u64()).sum()
    };
    report!(
        "\nRoCE v2 packets sent {}, received {}; retransmitted {}; ICRC errors {}.",
        sum("sent_pkts"),
        sum("rcvd_pkts"),
        sum("retransmitted_pkts"),
        sum("rx_icrc_encapsulated"),
    );
}
