//! Every wrong command line or file ends in one sentence, and with the exit code that --help says.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Task};
use harness::runner::Case;
use harness::setting::{Setting, installed_release};
use verbs_sys::RELEASES;

use super::IBVERBS_UTILS;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("usage/balboad", &[], balboad),
        Case::new("usage/balboad without RTL", &[], without_rtl),
        Case::new("usage/balboad's files", &[], balboads_files),
        Case::new("usage/balboa", &[], balboa),
        Case::new("usage/names of any bytes", &[], any_bytes),
        Case::new("usage/outputs that take nothing", &[], deaf_outputs),
        Case::new("usage/provider of another release", &[IBVERBS_UTILS], other_providers),
    ]
}

/// Those that build something: last, for cargo has them wait until it has built the unit tests, which run beside the cases.
pub fn cases_that_build() -> Vec<Case> {
    vec![Case::new("usage/cargo xtask", &[], xtask)]
}

/// A command line, the exit code it ends with, and words of its sentence.
type Wrong<'a> = (&'a str, i32, &'a str);

/// Checks that a program complained in one line, the log apart, and ended with the code.
fn complained(finished: Finished, program: &str, code: i32, words: &str) -> Result<()> {
    let finished = finished.code(code)?;
    let told: Vec<&str> = finished.stderr.lines().filter(|line| !line.starts_with('[')).collect();
    ensure!(finished.stdout.is_empty(), "on standard output: {finished}");
    ensure!(told.len() == 1, "one sentence is wanted: {finished}");
    let fits = told[0].starts_with(program) && told[0].contains(words);
    ensure!(fits, "expected {program}: ...{words}...: {finished}");
    Ok(())
}

fn all(program: &str, task: impl Fn() -> Result<Task>, table: &[Wrong<'_>]) -> Result<()> {
    for (arguments, code, words) in table {
        // An argument that is empty stands as '' in the table.
        let words_of = arguments.split_whitespace().map(|it| if it == "''" { "" } else { it });
        let finished = task()?.args(words_of).run()?;
        complained(finished, program, *code, words).with_context(|| arguments.to_string())?;
    }
    Ok(())
}

fn balboad(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let task = || Ok(setting.built("balboad").arg("--state-dir").arg(&state));
    let too_long = "x".repeat(200);
    let table = [
        ("", 2, "--soft 1 runs one software card"),
        ("--soft", 2, "a value is required for '--soft <N>'"),
        ("--soft x", 2, "invalid value 'x' for '--soft <N>'"),
        ("--soft -1", 2, "'-1' for '--soft <N>': write a whole number from 1 to 16"),
        ("--soft 0", 2, "from 1 to 16"),
        ("--soft 17", 2, "from 1 to 16"),
        ("--soft 4294967296", 2, "from 1 to 16"),
        ("--soft 1 --soft 2", 2, "cannot be used multiple times"),
        ("--soft 1 2", 2, "unexpected argument '2'"),
        ("--soft 1 --bogus", 2, "unexpected argument '--bogus'"),
        ("--soft 1 -x", 2, "unexpected argument '-x'"),
        ("--soft 1 --verbose=3", 2, "unexpected value '3'"),
        ("--soft 1 --seed", 2, "a value is required"),
        ("--soft 1 --seed x", 2, "invalid value 'x' for '--seed <N>'"),
        ("--soft 1 --seed 18446744073709551616", 2, "from 0 to 18446744073709551615"),
        ("--soft 1 --seed 1 --seed 2", 2, "cannot be used multiple times"),
        ("--soft 1 --fault ''", 2, "write loss="),
        ("--soft 1 --fault loss", 2, "fault"),
        ("--soft 1 --fault loss=x", 2, "write a percentage"),
        ("--soft 1 --fault loss=101%", 2, "write a percentage"),
        ("--soft 1 --fault loss=-1%", 2, "write a percentage"),
        ("--soft 1 --fault delay=5", 2, "delay"),
        ("--soft 1 --fault delay=2ms..1ms", 2, "delay"),
        ("--soft 1 --fault drop=1%", 2, "write loss="),
        ("--soft 1 --fault loss=1%,card=1", 2, "there is no card 1"),
        ("--soft 1 --fault loss=1%,card=x", 2, "card"),
        ("--soft 1 --port ''", 2, "unix:LOCAL,REMOTE"),
        ("--soft 1 --port unix:a", 2, "unix:LOCAL,REMOTE"),
        ("--soft 1 --port unix:,b", 2, "unix:LOCAL,REMOTE"),
        ("--soft 1 --port tap:x", 2, "unix:LOCAL,REMOTE"),
        ("--soft 1 --port 1=unix:a,b", 2, "there is no card 1"),
        ("--soft 1 --port unix:a,b --port unix:c,d", 2, "twice for card 0"),
        ("--soft 1 --port unix:a,a", 2, "both ends of its cable"),
        ("--soft 1 --port udp:::1", 2, "write udp:127.0.0.1"),
        ("--soft 1 --port udp:10.0.0.1/24", 2, "write udp:10.0.0.1"),
        ("--soft 1 --port udp:lo --port-room 0", 2, "write a whole number from 16 to 8192"),
        ("--soft 1 --port udp:lo --port-room 8193", 2, "write a whole number from 16 to 8192"),
        ("--soft 1 --port udp:lo --port-room -1", 2, "write a whole number from 16 to 8192"),
        ("--soft 1 --soft-image stock --tunnel-peers no-peers", 2, "there is no peer in it"),
        ("--soft 1 --port unix:/no/where,b", 1, "port /no/where: No such file"),
        (&format!("--soft 1 --port unix:{too_long},b"), 1, "longer than"),
        (&format!("--soft 1 --port unix:a,{too_long}"), 1, "longer than"),
        ("--soft 2 --port 0=unix:a,b --port 1=unix:a,c", 1, "port a: Address already in use"),
        ("--soft 1 --ip ''", 2, "no IPv4 address"),
        ("--soft 1 --ip 10.0.0", 2, "no IPv4 address"),
        ("--soft 1 --ip 10.0.0.256", 2, "no IPv4 address"),
        ("--soft 1 --ip fe80::1", 2, "no IPv4 address"),
        ("--soft 1 --ip 10.0.0.1/0", 2, "prefix length"),
        ("--soft 1 --ip 10.0.0.1/33", 2, "prefix length"),
        ("--soft 1 --ip 224.0.0.1", 2, "cannot be the address"),
        ("--soft 1 --ip 127.0.0.1", 2, "cannot be the address"),
        ("--soft 1 --ip 1=10.0.0.1", 2, "there is no card 1"),
        ("--soft 2 --ip 10.77.0.2", 2, "cards 0 and 1 both have the address"),
        ("--soft 1 --rnic-peers 10.0.0", 2, "invalid IPv4 address"),
        ("--soft 1 --rnic-peers 10.0.0.9", 2, "no card here has a published bitstream"),
        ("--soft 1 --pcap", 2, "a value is required"),
        ("--soft 1 --pcap ''", 2, "a value is required"),
        ("--soft 1 --pcap /no/where", 1, "capture file /no/where: No such file"),
        ("--soft 1 --pcap /", 1, "capture file /: Is a directory"),
        ("--soft 1 --pcap /dev/full", 1, "capture file /dev/full: No space left"),
        ("--soft 1 --pcap fifo", 1, "capture file fifo: No such device or address"),
        ("--soft 1 --manifest 0=", 2, "the name is empty"),
        ("--soft 1 --manifest /no/where", 2, "manifest /no/where: No such file"),
        ("--soft 1 --manifest /", 2, "manifest /: it is no regular file"),
        ("--soft 1 --manifest fifo", 2, "manifest fifo: it is no regular file"),
        ("--soft 1 --manifest lines", 2, "manifest lines: line 2: "),
        ("--soft 1 --manifest bytes", 2, "manifest bytes: stream did not contain valid UTF-8"),
        ("--soft 1 --manifest long", 2, "manifest long: it has more than 65536 bytes"),
        ("--vfio 0000:00:00.9", 2, "is no PCI address"),
        ("--vfio ffff:ff:1f.7", 1, "there is no PCI function at ffff:ff:1f.7"),
    ];
    let file = |name: &str| setting.directory().join(name);
    nix::unistd::mkfifo(&file("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o666))?;
    std::os::unix::fs::chown(file("fifo"), Some(setting.uid()), None)?;
    fs::write(file("lines"), "x = [\n[")?;
    fs::write(file("no-peers"), "# none\n")?;
    fs::set_permissions(file("no-peers"), fs::Permissions::from_mode(0o600))?;
    std::os::unix::fs::chown(file("no-peers"), Some(setting.uid()), None)?;
    fs::write(file("bytes"), [0xff; 16])?;
    fs::write(file("long"), "#".repeat((64 << 10) + 1))?;
    all("balboad", task, &table)?;
    let left = fs::read_dir(&state).map_or(0, |entries| entries.count());
    ensure!(left == 0, "{left} files were left in the state directory");
    Ok(())
}

/// A balboad beside which no engine in RTL was built.
fn without_rtl(setting: &Setting) -> Result<()> {
    let alone = setting.directory().join("alone");
    fs::create_dir_all(alone.join("bin"))?;
    let balboad = alone.join("bin/balboad");
    fs::copy(setting.bin.join("balboad"), &balboad)?;
    let state = setting.state_dir();
    let task = || Ok(setting.task(&balboad).arg("--state-dir").arg(&state));
    let says = "No such file or directory); build it: cargo xtask gateware build";
    let table = [("--soft 1 --soft-image rtl", 2, says), ("--soft 2 --soft-image 1=rtl", 2, says)];
    all("balboad: --soft-image rtl: ", task, &table)
}

/// State directories that are none, or not fit.
fn balboads_files(setting: &Setting) -> Result<()> {
    let home = setting.directory();
    let own = |name: &str, mode: u32| -> Result<()> {
        let path = home.join(name);
        fs::create_dir(&path)?;
        std::os::unix::fs::chown(&path, Some(setting.uid()), Some(setting.uid()))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    };
    fs::write(home.join("file"), "")?;
    own("open", 0o777)?;
    own("sticky", 0o1777)?;
    own("closed", 0o500)?;
    own("occupied", 0o700)?;
    own("locked", 0o700)?;
    own("shared", 0o700)?;
    fs::create_dir(home.join("shared/ports"))?;
    fs::write(home.join("shared/ports/precious"), "")?;
    std::os::unix::fs::chown(home.join("shared/ports"), Some(setting.uid()), None)?;
    fs::write(home.join("occupied/balboad.sock"), "")?;
    fs::create_dir(home.join("locked/balboad.lock"))?;
    symlink("open", home.join("link"))?;
    let too_long = "x".repeat(120);
    let table = [
        ("''", 2, "a value is required"),
        ("file", 1, "it is no directory"),
        ("file/below", 1, "cannot be made: Not a directory"),
        ("/proc/balboa", 1, "cannot be made: No such file"),
        ("link", 1, "symbolic link"),
        ("open", 1, "others can write to it (mode 777); run chmod 700"),
        ("sticky", 1, "others can write to it (mode 777); run chmod 700"),
        ("occupied", 1, "is no socket; move it away"),
        ("locked", 1, "its lock file cannot be used"),
        ("shared", 1, "no balboad put \"precious\" into it; move that away"),
        (&too_long, 1, "choose a shorter --state-dir"),
    ];
    let task = || Ok(setting.built("balboad").words("--soft 1 --state-dir"));
    all("balboad", task, &table)?;
    ensure!(home.join("shared/ports/precious").exists(), "a file of the user's is gone");
    ensure!(!home.join(&too_long).exists(), "a directory that is of no use was made");
    if setting.uid() != 0 {
        all("balboad", task, &[("closed", 1, "Permission denied")])?;
        all("balboad", task, &[("/", 1, "belongs to user 0, not to you")])?;
    }
    let daemon = setting.balboad("--soft 1")?;
    let state = daemon.state_dir().to_string_lossy().into_owned();
    all("balboad", task, &[(&state, 3, "another balboad (process")])?;
    daemon.stop()
}

fn balboa(setting: &Setting) -> Result<()> {
    fs::write(setting.directory().join("file"), "")?;
    fs::write(setting.directory().join("empty.toml"), "")?;
    let too_long = "x".repeat(120);
    let (long_status, long_run) =
        (format!("status --state-dir {too_long}"), format!("run --state-dir {too_long} true"));
    fs::create_dir(setting.directory().join(&too_long))?;
    let uid = Some(setting.uid());
    std::os::unix::fs::chown(setting.directory().join(&too_long), uid, uid)?;
    let table = [
        ("", 2, "no command is given"),
        ("bogus", 2, "unrecognized subcommand 'bogus'"),
        ("--bogus", 2, "unexpected argument '--bogus'"),
        ("ping", 2, "required arguments were not provided: <ADDRESS>"),
        ("ping nowhere", 2, "write an address of IPv4 (A.B.C.D) or IPv6"),
        ("ping 10.0.0.1 --state-dir nowhere", 1, "no balboad serves nowhere"),
        ("status bogus", 2, "unexpected argument 'bogus'"),
        ("status --bogus", 2, "unexpected argument '--bogus'"),
        ("status --json --json", 2, "cannot be used multiple times"),
        ("status --state-dir", 2, "a value is required"),
        ("status --state-dir ''", 2, "a value is required"),
        ("status --state-dir nowhere", 1, "no balboad serves nowhere"),
        ("status --state-dir file", 1, "is not a directory"),
        ("status --state-dir file/below", 1, "Not a directory"),
        (&long_status, 1, "too long"),
        ("list --state-dir nowhere", 1, "no balboad serves nowhere"),
        ("list balboa0", 2, "unexpected argument 'balboa0' found"),
        ("show", 2, "required arguments were not provided: <CARD>"),
        ("show eth0", 2, "'eth0' for '<CARD>': write the name of a card: balboa0"),
        ("show --state-dir nowhere balboa0", 1, "no balboad serves nowhere"),
        ("counters", 2, "required arguments were not provided: <CARD>"),
        ("counters balboa0 --watch=0", 2, "0 is not in 1..=86400"),
        ("counters balboa0 --count 3", 2, "required arguments were not provided: --watch"),
        ("counters --state-dir nowhere balboa0", 1, "no balboad serves nowhere"),
        ("reset", 2, "required arguments were not provided: <CARD>"),
        ("reset --state-dir nowhere balboa0", 1, "no balboad serves nowhere"),
        ("capture balboa0", 2, "required arguments were not provided: --output <FILE>"),
        ("capture balboa0 -o x --qp five", 2, "write the number of a QP"),
        ("capture balboa0 -o x --ring 65", 2, "65 is not in 1..=64"),
        ("capture --state-dir nowhere balboa0 -o x", 1, "no balboad serves nowhere"),
        ("doctor balboa0", 2, "unexpected argument 'balboa0' found"),
        ("link", 2, "required arguments were not provided: <CARD> <up|down>"),
        ("link balboa0", 2, "required arguments were not provided: <up|down>"),
        ("link eth0 down", 2, "'eth0' for '<CARD>': write the name of a card: balboa0"),
        ("link balboa0 off", 2, "'off' for '<up|down>': write up or down"),
        ("link --state-dir nowhere balboa0 up", 1, "no balboad serves nowhere"),
        ("addr", 2, "no command is given"),
        ("addr balboa0", 2, "requires a subcommand but one was not provided"),
        ("addr balboa0 flush", 2, "unexpected argument 'flush' found"),
        ("addr balboa0 add", 2, "required arguments were not provided: <ADDRESS[/PREFIX]>"),
        ("addr balboa0 add 10.0.0", 2, "write an address of IPv4 (A.B.C.D) or IPv6"),
        ("addr balboa0 add 10.0.0.1/33", 2, "write a prefix length from 1 to 32"),
        ("addr balboa0 del 2001:db8::1/0", 2, "write a prefix length from 1 to 128"),
        ("addr balboa0 add 10.5.0.1 tag", 2, "write vlan and a number behind the address"),
        ("addr balboa0 add 10.5.0.1 vlan", 2, "required arguments were not provided: <N>"),
        ("addr balboa0 add 10.5.0.1 vlan 0", 2, "0 is not in 1..=4094"),
        ("addr balboa0 add 10.5.0.1 vlan 4095", 2, "4095 is not in 1..=4094"),
        ("addr --state-dir nowhere balboa0 show", 1, "no balboad serves nowhere"),
        ("image", 2, "no command is given"),
        ("image bogus", 2, "unrecognized subcommand 'bogus'"),
        ("image make", 2, "not provided: --soft <LOGIC[,LOGIC...]> --output <FILE>"),
        ("image make --soft vqe", 2, "required arguments were not provided: --output <FILE>"),
        ("image make --soft vqe,", 2, "software cards have no logic ``; write vqe"),
        ("image make --soft TCP -o x", 2, "software cards have no logic `TCP`; write vqe"),
        (&format!("image make -o x --soft vqe{}", ",vqe".repeat(15)), 1, "a card has 1 to 15"),
        ("image make --soft vqe -o /", 1, "/: it is no regular file"),
        ("image make --soft vqe -o /no/where", 1, "/no/where: No such file"),
        ("image make --soft vqe -o x --sign file", 1, "file: it is no secret key"),
        ("image inspect", 2, "required arguments were not provided: <FILE>"),
        ("image inspect nowhere", 1, "nowhere: No such file"),
        ("image inspect /", 1, "/: it is no regular file"),
        ("image inspect /dev/zero", 1, "/dev/zero: it is no regular file"),
        ("image inspect file", 1, "file: it is no .bit, no .pdi and no software card's image"),
        ("image lint", 2, "required arguments were not provided: <FILE>"),
        ("image lint file", 1, "file: it is no .bit, no .pdi and no software card's image"),
        ("image lint no.toml", 1, "no.toml: No such file"),
        ("image lint empty.toml", 1, "empty.toml: line 1: missing field `format`"),
        ("image sign file", 2, "required arguments were not provided: --key <KEY>"),
        ("image sign file --key file", 1, "file: it is no .bit"),
        ("image verify", 2, "required arguments were not provided: <FILE>"),
        ("image verify file --key", 2, "a value is required"),
        ("image verify file --key file", 1, "file: it is no .bit"),
        ("run", 125, "required arguments were not provided: <CMD>..."),
        ("run --", 125, "required arguments were not provided: <CMD>..."),
        ("run --state-dir", 125, "a value is required"),
        ("run --state-dir '' true", 125, "a value is required"),
        ("run --state-dir file true", 125, "is not a directory"),
        ("run --state-dir file/below true", 125, "Not a directory"),
        (&long_run, 125, "too long"),
        ("run --start --soft 1", 125, "as in `balboa run --start --soft 1 -- ibv_devinfo`"),
        ("run --start", 125, "as in `balboa run --start -- ibv_devinfo`"),
        ("run --start --state-dir -- true", 125, "--state-dir: its value is missing"),
        ("run --state-dir x --start --state-dir y -- true", 125, "--state-dir: it is given twice"),
        ("run no-such-program", 127, "command not found"),
        ("run ''", 127, ""),
        ("run ./file", 126, "not an executable file"),
        ("run /", 126, ""),
    ];
    all("balboa", || Ok(setting.built("balboa")), &table)
}

/// Arguments that are no text, and names of several lines.
fn any_bytes(setting: &Setting) -> Result<()> {
    use std::os::unix::ffi::OsStrExt as _;

    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe\n\x1b[2J");
    let table = [
        ("balboad", "balboad", "--soft", 2, "invalid UTF-8"),
        ("balboad", "balboad", "--soft 1 --state-dir / --seed", 2, "invalid UTF-8"),
        ("balboad", "balboad", "--soft 1 --port", 2, "invalid UTF-8"),
        ("balboad", "balboad", "--soft 1 --state-dir file", 2, "unexpected argument"),
        ("balboa", "balboa", "", 2, "unrecognized subcommand"),
        ("balboa", "balboa status", "status --state-dir", 1, "no balboad serves"),
        ("balboa", "balboa run", "run", 127, "command not found"),
        ("balboa", "balboa bind", "bind", 2, "invalid UTF-8"),
    ];
    for (program, told, arguments, code, words) in table {
        let finished = setting.built(program).words(arguments).arg(odd).run()?;
        ensure!(!finished.stderr.contains('\x1b'), "the terminal is commanded: {finished}");
        complained(finished, told, code, words).with_context(|| format!("{told} {arguments}"))?;
    }
    Ok(())
}

/// Outputs that are full, closed, or whose reader has gone.
fn deaf_outputs(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let state = daemon.state_dir().to_string_lossy().into_owned();
    let shell = |script: &str| {
        let task = setting.task("bash").args(["-c", script]).env("D", &state);
        let of = |program: &str| setting.bin.join(program);
        task.env("balboa", of("balboa")).env("balboad", of("balboad")).run()
    };
    for status in ["status", "status --json"] {
        let finished = shell(&format!("$balboa {status} --state-dir $D > /dev/full"))?;
        complained(finished, "balboa status", 1, "cannot write to standard output: No space")?;
        shell(&format!("$balboa {status} --state-dir $D >&-"))?.success()?;
        let script = format!("$balboa {status} --state-dir $D | head -0; exit ${{PIPESTATUS[0]}}");
        let finished = shell(&script)?.success()?;
        ensure!(finished.stderr.is_empty(), "{finished}");
    }
    shell("$balboa image make --soft vqe -o one.soft")?.success()?;
    for done in ["reset balboa0 --yes", "flash apply balboa0 one.soft --allow-unsigned --yes"] {
        let script = format!("$balboa {done} --state-dir $D | head -0; exit ${{PIPESTATUS[0]}}");
        let finished = shell(&script)?.success()?;
        ensure!(finished.stderr.is_empty(), "{finished}");
    }
    // What cannot be told does not change the exit code.
    for (wrong, code) in [
        ("$balboa bogus", 2),
        ("$balboa run no-such-program", 127),
        ("$balboa status --state-dir /", 1),
        ("$balboad --soft 0", 2),
        ("$balboad --soft 1 --state-dir $D", 3),
        ("$balboad --help > /dev/full", 0),
    ] {
        for output in ["2> /dev/full", "2>&-", "2>&1 | head -0; exit ${PIPESTATUS[0]}"] {
            shell(&format!("{wrong} {output}"))?.code(code)?;
        }
    }
    daemon.stop()
}

/// The program of the tasks, which lies beside the one of these cases.
fn xtask(_: &Setting) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("xtask");
    // Some of it builds the cases.
    let task = || Ok(Task::new(&program).with_our_environment());
    let table = [
        ("", 2, "no task is given"),
        ("bogus", 2, "unrecognized subcommand 'bogus'"),
        ("--bogus", 2, "unexpected argument '--bogus'"),
        ("demo bogus", 2, "unexpected argument 'bogus'"),
        ("test --only", 2, "a value is required"),
        ("test --exact", 2, "required arguments were not provided: --only <TEXT>"),
        ("test --seeds x", 2, "invalid value 'x' for '--seeds <N>'"),
        ("test --only x --seeds 3", 2, "cannot be used with"),
        ("chaos --rounds", 2, "a value is required"),
        ("chaos --rounds -1", 2, "unexpected argument"),
        ("chaos --rounds x", 2, "invalid value 'x' for '--rounds <N>'"),
        ("chaos --seed 18446744073709551616", 2, "number too large"),
        ("apps bogus", 2, "\"bogus\" names nothing"),
        ("apps --list --exact apps/ucx", 2, "\"apps/ucx\" names nothing"),
        ("attack --only bogus", 2, "\"bogus\" names nothing"),
        ("test --only bogus", 2, "\"bogus\" names nothing; cargo xtask test --list has"),
        ("nccl --only bogus", 2, "\"bogus\" names nothing; there are NCCL/as it is, "),
        ("check bogus", 2, "\"bogus\" names nothing; there are formatting, "),
        ("guest pair --only bogus", 2, "cargo xtask guest pair --kernel 6.12 --list has"),
        ("guest test --kernel 6.1 --only bogus", 2, "test --kernel 6.1 --list has the names"),
        ("bench --bogus", 2, "unexpected argument '--bogus'"),
        ("bindings", 2, "required arguments were not provided: <DIR>"),
        ("bindings bogus", 1, "bogus: No such file"),
        ("guest", 2, "no task is given"),
        ("guest test --kernel 7", 2, "invalid value '7' for '--kernel <KERNEL>'"),
        ("guest shell --hardware x", 2, "there are plain, intel-iommu, virtio-iommu"),
    ];
    all("cargo xtask", task, &table)
}

/// A provider that is for another release than the libibverbs that is told to load it says so in a line, or, where it
/// misses that one's private interface, libibverbs does; no card is shown.
fn other_providers(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let installed = installed_release()?;
    for release in &RELEASES {
        let driver = setting.directory().join(format!("provider{}", release.number));
        let plugin = format!("{}{}", driver.display(), installed.suffix());
        fs::copy(setting.bin.join(release.provider()), plugin)?;
        let task = daemon.run("env").arg(format!("RDMAV_DRIVERS={}", driver.display()));
        let finished = task.arg("ibv_devices").run()?.success()?;
        let told: Vec<&str> = finished.stderr.lines().collect();
        let shown = finished.stdout.contains("balboa0");
        if release == installed {
            ensure!(shown && told.is_empty(), "its own: {finished}");
            continue;
        }
        let words = if release.private_abi == installed.private_abi {
            format!("this provider is for rdma-core {}, and ", release.number)
        } else {
            format!("`IBVERBS_PRIVATE_{}' not found", release.private_abi)
        };
        let says = told.len() == 1 && told[0].contains(&words);
        ensure!(says && !shown, "expected {words:?} alone: {finished}");
    }
    daemon.stop()
}
