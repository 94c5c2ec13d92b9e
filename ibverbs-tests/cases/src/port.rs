//! Ports that are changed while programs use them.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::pair::run_between;
use harness::runner::Case;
use harness::setting::Setting;

use super::capture::{TSHARK, tshark};
use super::{IBVERBS_UTILS, PERFTEST};

/// How long all the changes of a program may take.
const LIMIT: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("port/links go down under a program", &[], links),
        Case::new("port/links go down under a program", &[], links).as_root(),
        Case::new("port/a link that is down is seen", &[IBVERBS_UTILS], seen),
        Case::new("port/addresses come and go under a program", &[], addresses),
        Case::new("port/addresses come and go under a program", &[], addresses).as_root(),
        Case::new("port/every address of a full table moves data", &[IBVERBS_UTILS], full),
        Case::new("port/frames carry their VLAN and what the path says", &[PERFTEST, TSHARK], vlan),
    ]
}

fn links(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("links --balboa");
    let task = task.arg(setting.bin.join("balboa")).limit(LIMIT);
    task.run()?.success()?.says("links went down and came back")?;
    daemon.stop()
}

fn seen(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let link = |words: &str| {
        setting.built("balboa").words("link --state-dir").arg(daemon.state_dir()).words(words)
    };
    link("balboa1 down").run()?.success()?;
    let status = daemon.status()?;
    let cards = [&status["cards"][0]["link_up"], &status["cards"][1]["link_up"]];
    ensure!(cards[0] == true && cards[1] == false, "status says {cards:?}");
    let shown = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    shown.run()?.success()?.says("link      down, switch")?;
    daemon.run("ibv_devinfo -d balboa1").run()?.success()?.says("PORT_DOWN (1)")?;
    daemon.run("ibv_devinfo -d balboa0").run()?.success()?.says("PORT_ACTIVE (4)")?;
    link("balboa1 up").run()?.success()?;
    daemon.run("ibv_devinfo -d balboa1").run()?.success()?.says("PORT_ACTIVE (4)")?;
    link("balboa2 down").run()?.code(1)?.complains("its cards are balboa0, balboa1")?;
    daemon.stop()
}

fn addresses(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("addresses --balboa");
    let task = task.arg(setting.bin.join("balboa")).limit(LIMIT);
    task.run()?.success()?.says("addresses came and went")?;
    daemon.stop()
}

fn full(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let addr = |words: &str| {
        setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir()).words(words)
    };
    for host in 2..16 {
        for card in 0..2 {
            let added = addr(&format!("balboa{card} add 10.88.{card}.{host}/16")).run()?;
            ensure!(added.success()?.stdout == format!("GID {host}\n"));
        }
    }
    let refused = [
        ("add 10.88.0.16", "its GID table has 16 entries, and those for IPv4 addresses, 1 to 15,"),
        ("add 2001:db8::1", "and those for IPv6 addresses, 2 to 15,"),
        ("add 10.77.0.1", "10.77.0.1 is an address of balboa0 already"),
        ("add 10.88.1.5", "10.88.1.5 is an address of balboa1 already"),
        ("add 224.0.0.1", "it is a multicast address"),
        ("add ::", "it is the unspecified address"),
        ("add 127.0.0.1", "it is a loopback address"),
        ("add fe80::200:ff:fe00:1", "peers take an Ethernet address out of it"),
        ("del 10.88.0.99", "has no address 10.88.0.99"),
        ("del fe80::aff:fe4d:1", "is the link-local address of balboa0, which stays"),
    ];
    for (words, why) in refused {
        addr(&format!("balboa0 {words}")).run()?.code(1)?.complains(why)?;
    }
    let shown = addr("balboa0 show").run()?.success()?;
    let (first, last) =
        ("0   fe80::aff:fe4d:1\n1   10.77.0.1\n2   10.88.0.2\n", "15  10.88.0.15\n");
    ensure!(shown.stdout.starts_with(first) && shown.stdout.ends_with(last), "{shown}");
    let devinfo = daemon.run("ibv_devinfo -v -d balboa1").run()?.success()?;
    devinfo.says("GID[ 15]:\t\t::ffff:10.88.1.15, RoCE v2")?;
    // An address in the middle goes, and nothing moves; the next one takes its place.
    addr("balboa0 del 10.88.0.7").run()?.success()?;
    addr("balboa0 add 2001:db8::7").run()?.success()?.says("GID 7")?;
    addr("balboa0 show").run()?.success()?.says("7   2001:db8::7\n8   10.88.0.8\n")?;
    let sweep = |gid: u8| {
        let task = daemon.run("").arg(setting.bin.join("verbs-data"));
        task.words(&format!("lists --gid {gid}")).limit(LIMIT).run()?.success()
    };
    for gid in [0, 1, 2, 15] {
        sweep(gid)?.says("listed messages arrived")?;
    }
    // The first address of IPv4 goes as any other does.
    addr("balboa0 del 10.77.0.1").run()?.success()?;
    let status = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    status.run()?.success()?.says("IP 10.88.0.2\n")?;
    addr("balboa0 add 10.99.0.1").run()?.success()?.says("GID 1")?;
    daemon.stop()
}

/// Both cards have the same addresses in no VLAN and in two, and each connection stays in its own.
fn vlan(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    let addr = |words: String| {
        setting.built("balboa").words("addr --state-dir").arg(daemon.state_dir()).words(&words)
    };
    for card in 0..2 {
        let own = format!("10.88.0.{}", card + 1);
        for (place, index) in [("", 2), (" vlan 5", 3), (" vlan 4094", 4)] {
            let added = addr(format!("balboa{card} add {own}{place}")).run()?.success()?;
            ensure!(added.stdout == format!("GID {index}\n"), "{added}");
        }
        addr(format!("balboa{card} add fe80::aff:fe4d:{} vlan 5", card + 1)).run()?.success()?;
    }
    addr("balboa0 show".into()).run()?.success()?.says("4   10.88.0.1 vlan 4094\n")?;
    let status = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    status.run()?.success()?.says("3  ::ffff:10.88.0.1, RoCE v2, VLAN 5\n")?;
    for command in [
        "ib_write_bw -F -x 2 -n 50 -s 3000 --sl 5 --tclass 104",
        "ib_write_bw -F -x 3 -n 50 -s 3000 --sl 5 --tclass 104",
        "ib_send_lat -F -c UD -x 4 -n 50 -s 500 --sl 2 --tclass 104",
        "ib_read_bw -F -x 5 -n 50 -s 3000 --sl 3 --tclass 104",
    ] {
        run_between((&daemon, 0), (&daemon, 1), command)?;
    }
    // Where there is no peer in the VLAN there is none, though it has the address elsewhere.
    addr("balboa1 del 10.88.0.2 vlan 4094".into()).run()?.success()?;
    addr("balboa1 add 10.88.0.2 vlan 4093".into()).run()?.success()?.says("GID 4")?;
    let program = setting.bin.join("verbs-data");
    let apart = daemon
        .run("")
        .arg(program)
        .words("huge write --mib 1 --gid 4 --timeout 8")
        .limit(LIMIT)
        .run()?;
    ensure!(!apart.status.success() && apart.stderr.contains("retry"), "{apart}");
    daemon.stop()?;
    let fields = "-d udp.port==4791,infiniband -Y udp.dstport==4791 -T fields -e vlan.id \
        -e vlan.priority -e ip.dsfield -e ip.ttl -e ipv6.tclass -e ipv6.hlim";
    let lines = tshark(setting, &file).words(fields).run()?.success()?.stdout;
    let found: std::collections::BTreeSet<&str> = lines.lines().collect();
    let expected = [
        "\t\t0x68\t255\t\t",
        "5\t5\t0x68\t255\t\t",
        "4094\t2\t0x68\t255\t\t",
        "5\t3\t\t\t0x00000068\t255",
    ];
    ensure!(found == std::collections::BTreeSet::from(expected), "{found:?}");
    Ok(())
}
