//! Cards behind vfio-pci and an IOMMU: the driver as it drives the FPGA.

use std::fs;

use anyhow::{Result, ensure};
use harness::pair::{Both, both_say, listening, run_between};
use harness::process::Task;
use harness::setting::Daemon;

use super::{Case, Hardware, Need, Setting, for_both};
use crate::rdmacm::{self, RDMACM_UTILS, to_the_end};
use crate::{IBVERBS_UTILS, PERFTEST};
pub(super) use harness::vm::cards::{
    bind, bound_for, cards, cards_in, cards_of, driver, drivers, functions, neighbours,
    override_driver, plugged_in, unbind,
};

/// The family.
pub(super) fn cases(hardware: Hardware) -> Vec<Case> {
    let mut cases = vec![
        Case::new("balboa bind and unbind", &[], move |it| bind_and_unbind(it, hardware)).as_root(),
        Case::new("what is in the way is told", &[], move |it| refusals(it, hardware)).as_root(),
    ];
    let mut both = |name: &str, needs: &[Need], body: fn(&Setting, &Daemon<'_>) -> Result<()>| {
        cases.extend(for_both(name, needs, move |setting| {
            let daemon = cards(setting, hardware)?;
            body(setting, &daemon)?;
            daemon.stop()
        }));
    };
    both("ibv_devinfo", &[IBVERBS_UTILS], |_, daemon| devinfo(daemon));
    both("ibv_rc_pingpong", &[IBVERBS_UTILS], |_, daemon| pingpong(daemon, ""));
    both("ibv_rc_pingpong/-e", &[IBVERBS_UTILS], |_, daemon| pingpong(daemon, "-e"));
    both("verbs-data/sweep", &[], |it, daemon| data(it, daemon, "sweep", "850 messages arrived"));
    both("verbs-data/16 MiB", &[], |it, daemon| {
        data(it, daemon, "huge write --mib 16", "16 MiB arrived")?;
        data(it, daemon, "huge read --mib 16", "16 MiB arrived")?;
        data(it, daemon, "huge send --mib 16", "16 MiB arrived")
    });
    both("verbs-data/errors", &[], |it, daemon| {
        data(it, daemon, "errors --pinned", "23 errors came")
    });
    both("verbs-data/memory", &[], |it, daemon| {
        data(it, daemon, "memory --pinned", "bytes moved in")
    });
    both("rdmacm/rping", &[RDMACM_UTILS], |_, daemon| {
        let pings = "-a 10.77.0.1 -v -V -C 10 -S 4000";
        let server = listening(daemon, daemon.run(&format!("rping -s {pings}")), "listeners")?;
        let client = daemon.run(&format!("rping -c {pings} -I 10.77.0.2"));
        both_say(&to_the_end(daemon, server, client)?, "ping data: rdma-ping-9: ")
    });
    both("rdmacm/ib_write_bw -R", &[PERFTEST], |_, daemon| {
        rdmacm::perftest(daemon, "ib_write_bw -R -s 65536 -n 40")
    });
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_send_lat"] {
        cases.extend(for_both(program, &[PERFTEST], move |setting| {
            let daemon = cards(setting, hardware)?;
            perftest(&daemon, &format!("{program} -F -n 200"))?;
            daemon.stop()
        }));
    }
    cases.push(
        Case::new("ib_send_bw/-e", &[PERFTEST], move |setting| {
            let daemon = cards(setting, hardware)?;
            perftest(&daemon, "ib_send_bw -F -e -n 200 -s 65536")?;
            daemon.stop()
        })
        .as_root(),
    );
    cases
}

fn bind_and_unbind(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let function = functions()?.remove(0);
    let driver = || {
        let link = fs::read_link(format!("/sys/bus/pci/devices/{function}/driver"));
        link.ok().map(|it| it.file_name().unwrap_or_default().to_string_lossy().into_owned())
    };
    let balboa = |words: &str| setting.built("balboa").words(words).arg(&function).run();
    balboa("bind")?.success()?.says("next: balboad --vfio")?;
    ensure!(driver().as_deref() == Some("vfio-pci"), "bound to {:?}", driver());
    balboa("bind")?.success()?;
    balboa("unbind")?.success()?;
    ensure!(driver().is_none(), "still bound to {:?}", driver());
    balboa("unbind")?.code(1)?.complains("there is nothing to undo").map(drop)
}

fn refusals(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let functions = functions()?;
    let refused = |function: &str, sentence: &str| -> Result<()> {
        let balboad = setting.built("balboad").arg("--state-dir");
        let task = balboad.arg(setting.directory().join("other")).arg("--vfio").arg(function);
        task.run()?.code(1)?.complains(sentence).map(drop)
    };
    let _ = setting.built("balboa").arg("unbind").arg(&functions[0]).run()?;
    refused(&functions[0], "run balboa bind")?;
    refused("0000:00:00.0", "not a Coyote card")?;
    refused("00ff:00:00.0", "there is no PCI function")?;
    let daemon = cards(setting, hardware)?;
    refused(&functions[0], "is in use")?;
    // Another user's program gets no card.
    let task = Task::new(setting.bin.join("balboa")).args(["run", "--state-dir"]);
    let task = task.arg(daemon.state_dir()).args(["--", "ibv_devices"]);
    let stranger = task.user(Some(harness::setting::NOBODY)).run()?;
    ensure!(!stranger.status.success(), "another user was served: {stranger}");
    daemon.stop()
}

pub(super) fn devinfo(daemon: &Daemon<'_>) -> Result<()> {
    let finished = daemon.run("ibv_devinfo -v").run()?.success()?;
    ensure!(finished.stderr.is_empty(), "libibverbs complains: {finished}");
    let said = finished.says("hca_id:\tbalboa0")?.says("hca_id:\tbalboa1")?;
    said.says("PORT_ACTIVE (4)")?.says("::ffff:10.77.0.2, RoCE v2")?;
    let status = daemon.status()?;
    let trust = status["cards"][0]["trust"].as_str().unwrap_or_default();
    ensure!(trust.starts_with("one domain"), "the status hides who is trusted: {trust}");
    Ok(())
}

pub(super) fn pingpong(daemon: &Daemon<'_>, events: &str) -> Result<()> {
    let command = format!("ibv_rc_pingpong -c -g 1 -m 1024 -n 200 {events}");
    let Both { server, client } = run_between((daemon, 0), (daemon, 1), &command)?;
    for side in [server, client] {
        let side = side.says("200 iters in ")?;
        ensure!(!side.stdout.contains("invalid data"), "{side}");
    }
    Ok(())
}

pub(super) fn data(
    setting: &Setting,
    daemon: &Daemon<'_>,
    command: &str,
    says: &str,
) -> Result<()> {
    let program = daemon.run("").arg(setting.bin.join("verbs-data")).words(command);
    program.run()?.success()?.says(says).map(drop)
}

fn perftest(daemon: &Daemon<'_>, command: &str) -> Result<()> {
    let Both { client, .. } = run_between((daemon, 0), (daemon, 1), command)?;
    // The figures are left alone: the clock of an emulated processor is not steady enough for them.
    let all = |line: &str| line.split_whitespace().nth(1) == Some("200");
    ensure!(client.stdout.lines().any(all), "perftest shows no row of 200 iterations: {client}");
    Ok(())
}
