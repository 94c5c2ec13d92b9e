//! perftest's bandwidth and latency programs.

use anyhow::{Result, ensure};
use harness::pair::{Both, run_between};
use harness::runner::{Case, Need};
use harness::setting::Setting;
use harness::table::table;

use super::PERFTEST;

const OPERATIONS: [&str; 3] = ["write", "read", "send"];

/// Takes the processor's clock as it is: perftest measures it first, and refuses to report where a
/// busy machine makes two measurements differ.
pub(crate) const STEADY_CLOCK: &str = "-F";

/// Sizes that `-a` runs through: 2^1 to 2^23 bytes.
const ALL_SIZES: usize = 23;

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for operation in OPERATIONS {
        let mut add = |program: &str, options: &'static str, rows: usize| {
            let program = format!("ib_{operation}_{program}");
            cases.push(between_two(&program, options, rows));
        };
        for options in ["-b", "-q 8", "-D 5", "-x 0", "-x 1"] {
            add("bw", options, 1);
        }
        add("bw", "-a -n 200", ALL_SIZES);
        if operation != "write" {
            // perftest has no events for WRITE, whose target learns nothing.
            add("bw", "-e", 1);
        }
        add("lat", "-n 500", 1);
        add("lat", "-a -n 200", ALL_SIZES);
    }
    for options in ["--use-srq", "--use-srq -q 8 -r 64", "--use-srq -e"] {
        cases.push(between_two("ib_send_bw", options, 1));
    }
    cases.push(between_two("ib_send_lat", "--use-srq -n 500", 1));
    // No more datagrams than the receiver has room for: others are lost, and the receiver waits for them in vain.
    for options in [
        "-c UD -s 4096 -n 400",
        "-c UD -x 0 -s 1 -n 400",
        "-c UD -I 64 -s 64 -n 400 -l 8",
        "-c UD -e -n 400",
        "-c UD -q 4 -n 100",
        "-c UD --use-srq -n 400",
    ] {
        cases.push(between_two("ib_send_bw", options, 1));
        cases.push(on_one("ib_send_bw", options, 1));
    }
    cases.push(between_two("ib_send_lat", "-c UD -n 500", 1));
    cases.extend(multicast());
    cases.extend(seldom_used());
    cases.push(between_two("ib_send_lat", "-c UD -I 200 -s 200 -x 0 -n 500", 1));
    for options in ["-c UC -s 65536 -n 400", "-c UC -x 0 -a -n 100", "-c UC -e -n 400"] {
        let rows = if options.contains("-a") { ALL_SIZES } else { 1 };
        cases.push(between_two("ib_send_bw", options, rows));
    }
    for options in ["-c UC -b", "-c UC -a -n 200", "-c UC -q 8"] {
        let rows = if options.contains("-a") { ALL_SIZES } else { 1 };
        cases.push(between_two("ib_write_bw", options, rows));
        cases.push(on_one("ib_write_bw", options, rows));
    }
    for program in ["ib_write_lat", "ib_send_lat"] {
        cases.push(between_two(program, "-c UC -n 500", 1));
    }
    cases.extend(xrc());
    for options in ["-A CMP_AND_SWAP", "-A FETCH_AND_ADD"] {
        cases.push(between_two("ib_atomic_bw", options, 1));
        cases.push(on_one("ib_atomic_bw", options, 1));
        cases.push(between_two("ib_atomic_lat", options, 1));
    }
    cases.push(between_two("ib_atomic_bw", "-A FETCH_AND_ADD -q 8 -b", 1));
    cases.extend(options_of_all());
    for operation in OPERATIONS {
        let program = format!("ib_{operation}_bw");
        cases.push(between_two(&program, "-s 65536 -n 1000", 1).as_root());
        cases.push(on_one(&program, "-s 65536 -n 1000", 1));
    }
    cases.push(between_two("ib_write_lat", "-n 500 -s 64", 1).as_root());
    cases.push(on_one("ib_write_lat", "-n 500", 1));
    cases
}

/// All programs along XRC.
fn xrc() -> Vec<Case> {
    let mut cases = Vec::new();
    for options in
        ["-c XRC -n 400", "-c XRC -q 4 -n 100", "-c XRC -e -n 400", "-c XRC -x 0 -a -n 100"]
    {
        let rows = if options.contains("-a") { ALL_SIZES } else { 1 };
        cases.push(between_two("ib_send_bw", options, rows));
    }
    cases.push(on_one("ib_send_bw", "-c XRC -n 400", 1));
    for program in ["ib_write_bw", "ib_read_bw"] {
        cases.push(between_two(program, "-c XRC -n 400", 1));
    }
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
        cases.push(between_two(program, "-c XRC -n 200", 1));
    }
    for options in ["-c XRC -A CMP_AND_SWAP", "-c XRC -A FETCH_AND_ADD"] {
        cases.push(between_two("ib_atomic_bw", options, 1));
    }
    cases
}

/// Path MTUs, lists of requests, inline data, both ways to post, both GIDs, counters: each with every program
/// and transport that has it.
fn options_of_all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |program: &str, options: &'static str| {
        cases.push(between_two(program, options, 1));
    };
    for operation in OPERATIONS {
        let program = format!("ib_{operation}_bw");
        for options in [
            "-m 256 -n 200",
            "-m 512 -n 200",
            "-m 1024 -n 200",
            "-m 2048 -n 200",
            "-m 4096 -n 200",
            "-l 8 -n 800",
            "--use_old_post_send -n 500",
            "--tclass=32 --sl=3 -n 400",
        ] {
            add(&program, options);
        }
        add(&format!("ib_{operation}_lat"), "-x 0 -n 400");
        add(&format!("ib_{operation}_lat"), "--use_old_post_send -n 400");
    }
    for program in ["ib_write_lat", "ib_send_lat"] {
        add(program, "-I 64 -s 64 -n 500");
        add(program, "-c UC -I 64 -s 64 -n 400");
    }
    add("ib_write_bw", "-l 8 -q 2 -I 32 -s 32 -n 800");
    add("ib_write_bw", "-Q 4 -t 16 -s 4096 -n 500");
    add("ib_write_bw", "--mr_per_qp -q 4 -n 400");
    add("ib_write_bw", "-W counters/port_xmit_data,hw_counters/sent_pkts -n 500");
    for program in ["ib_send_lat", "ib_read_lat"] {
        add(program, "-e -n 400");
    }
    for program in ["ib_write_bw", "ib_send_bw"] {
        for options in
            ["-c UC -l 8 -n 400", "-c UC -m 512 -n 400", "-c UC --use_old_post_send -n 400"]
        {
            add(program, options);
        }
    }
    for options in ["-c UD -m 256 -s 256 -n 400", "-c UD --use_old_post_send -n 400"] {
        add("ib_send_bw", options);
    }
    add("ib_send_lat", "-c UD --use-srq -n 400");
    for options in ["-x 0 -n 400", "-l 8 -n 800", "-e -n 400", "--use_old_post_send -n 400"] {
        add("ib_atomic_bw", options);
    }
    for options in ["-x 0 -n 400", "--use_old_post_send -n 400"] {
        add("ib_atomic_lat", options);
    }
    cases
}

/// Datagrams to a group of IPv6, which perftest names itself, from a GID of IPv6.
fn multicast() -> [Case; 2] {
    [
        between_two("ib_send_bw", "-c UD -g -x 0 -s 1024 -n 400", 1),
        between_two("ib_send_lat", "-c UD -g -x 0 -s 64 -n 400", 1),
    ]
}

/// Lists of receives, inline data, memory of a file.
fn seldom_used() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.push(between_two("ib_send_bw", "--recv_post_list=4 -n 400", 1));
    // From 23.04 on perftest has no such option.
    let mut inline = between_two("ib_send_bw", "--inline_recv=64 -s 64 -n 400", 1);
    inline.needs.push(Need::Flag("ib_send_bw", "--inline_recv"));
    cases.push(inline);
    for program in ["ib_write_bw", "ib_send_bw"] {
        cases.push(between_two(program, "-I 64 -s 64 -n 400", 1));
    }
    for program in ["ib_write_lat", "ib_send_lat"] {
        cases.push(between_two(program, "-I 200 -s 200 -n 400", 1));
    }
    cases.push(between_two("ib_write_bw", "--mmap=/dev/zero -n 400", 1));
    cases
}

/// From one card to another.
fn between_two(program: &str, options: &'static str, rows: usize) -> Case {
    let command = format!("{program} {options} {STEADY_CLOCK}");
    Case::new(format!("{program}/{options}"), &[PERFTEST], move |setting| {
        run(setting, &command, 1, rows)
    })
}

/// From a card to itself.
fn on_one(program: &str, options: &'static str, rows: usize) -> Case {
    let command = format!("{program} {options} {STEADY_CLOCK}");
    Case::new(format!("{program}/{options}/loopback"), &[PERFTEST], move |setting| {
        run(setting, &command, 0, rows)
    })
}

fn run(setting: &Setting, command: &str, client_card: u32, rows: usize) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let Both { client, .. } = run_between((&daemon, 0), (&daemon, client_card), command)?;
    let table = table(&client)?;
    ensure!(table.len() == rows, "expected {rows} rows, there are {}: {client}", table.len());
    daemon.stop()
}
