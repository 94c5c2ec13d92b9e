//! Objects that would block a reader for ever, and text that would speak to a terminal in balboad's name.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process;
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use verbs_programs::hostile::PATIENCE;

use super::phase::Length;
use crate::flash::flash;

/// Connections that say nothing: twice as many as are served at a time.
const SILENT: usize = 128;
/// Values of a configuration that would have a terminal clear itself and show a forged line.
const COMMANDS: &str = "\"\\u001b[2J\\u009b31m\\n[2026 ERROR balboad] all is lost\" = 1\n";

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, body| super::case(length, name, &[], body);
    vec![
        case("files and sockets that nobody answers", unanswered),
        case("a configuration that commands a terminal", commanding),
        case("an image whose name commands a terminal", named),
        case("a program whose loader does not end", endless),
    ]
}

/// A configuration that is written anew.
struct Configuration<'a> {
    setting: &'a Setting,
    path: std::path::PathBuf,
}

impl<'a> Configuration<'a> {
    fn new(setting: &'a Setting) -> Result<Self> {
        let it = Self { setting, path: setting.directory().join("balboad.toml") };
        it.write("soft = 2\n")?;
        Ok(it)
    }

    fn write(&self, text: &str) -> Result<()> {
        let _ = fs::remove_file(&self.path);
        Ok(fs::write(&self.path, text)?)
    }

    fn daemon(&self) -> Result<Daemon<'a>> {
        self.setting.balboad(&format!("--config {}", self.path.display()))
    }
}

/// Makes a balboad read its configuration again, waits until it has told the result, and checks that it serves.
fn reload(daemon: &Daemon<'_>, told: &str) -> Result<()> {
    daemon.signal(Signal::SIGHUP)?;
    let begun = Instant::now();
    while !daemon.log().contains(told) {
        ensure!(begun.elapsed() < PATIENCE, "no {told:?} in {}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon.status_within(PATIENCE).map(drop)
}

fn unanswered(setting: &Setting, _: Length) -> Result<()> {
    let configuration = Configuration::new(setting)?;
    let daemon = configuration.daemon()?;
    let at = |name: &str| setting.directory().join(name);
    let metrics = |name: &str| format!("soft = 2\nmetrics = \"unix:{}\"\n", at(name).display());

    // Somebody listens, and accepts none.
    let full = crowded(&at("full"))?;
    chown(at("full"), Some(setting.uid()), None)?;
    configuration.write(&metrics("full"))?;
    reload(&daemon, "the configuration stays as it was")?;
    drop(full);

    fs::remove_file(&configuration.path)?;
    mkfifo(&configuration.path, Mode::from_bits_truncate(0o600))?;
    chown(&configuration.path, Some(setting.uid()), None)?;
    reload(&daemon, "it is no regular file")?;
    let check = setting.built("balboad").words("--check-config --config").arg(&configuration.path);
    check.limit(PATIENCE).run()?.code(2)?.complains("it is no regular file")?;

    configuration.write(&metrics("numbers"))?;
    reload(&daemon, "metrics are shown at")?;
    let silent = (0..SILENT).map(|_| UnixStream::connect(at("numbers")));
    let silent = silent.collect::<std::io::Result<Vec<_>>>()?;
    let mut asks = UnixStream::connect(at("numbers"))?;
    asks.set_read_timeout(Some(PATIENCE))?;
    asks.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    asks.read_to_string(&mut page).context("beside silent connections")?;
    ensure!(page.contains("balboa_"), "no numbers: {page}");
    drop(silent);
    daemon.stop()
}

/// A socket at a path whose backlog is full, and the sockets that wait for it.
fn crowded(path: &Path) -> Result<Vec<OwnedFd>> {
    let made = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None);
    let listener = made(SockFlag::SOCK_CLOEXEC)?;
    let address = UnixAddr::new(path)?;
    bind(listener.as_raw_fd(), &address)?;
    listen(&listener, Backlog::new(0)?)?;
    let mut all = vec![listener];
    loop {
        let one = made(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
        let connected = connect(one.as_raw_fd(), &address);
        all.push(one);
        match connected {
            Ok(()) => {}
            Err(Errno::EAGAIN) => return Ok(all),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn commanding(setting: &Setting, _: Length) -> Result<()> {
    let configuration = Configuration::new(setting)?;
    let daemon = configuration.daemon()?;
    configuration.write(COMMANDS)?;
    reload(&daemon, "all is lost")?;
    let log = daemon.log();
    is_plain(&log)?;
    ensure!(!log.lines().any(|line| line.starts_with("[2026 ERROR")), "a forged line: {log}");
    let check = setting.built("balboad").words("--check-config --config").arg(&configuration.path);
    is_plain(&check.run()?.code(2)?.complains("all is lost")?.stderr)?;
    daemon.stop()
}

/// The name of a file becomes that of a card's image, and is told by the tool and in the log.
fn named(setting: &Setting, _: Length) -> Result<()> {
    let name = "a\u{1b}[2J\u{9b}31m\n[2026 ERROR balboad] all is lost";
    let daemon = setting.balboad("--soft 1")?;
    let make = setting.built("balboa").words("image make --soft vqe,vqe -o").arg(name);
    make.run()?.success()?;
    let balboa = |words: &str| flash(&daemon, setting, words);
    for task in [
        balboa("apply balboa0 --allow-unsigned --yes").arg(name),
        balboa("history balboa0"),
        balboa("verify balboa0"),
        balboa("rollback balboa0 --yes"),
        balboa("rollback balboa0 --yes"),
    ] {
        let told = task.run()?.success()?;
        is_plain(&told.stdout)?;
        is_plain(&told.stderr)?;
    }
    is_plain(&daemon.log())?;
    daemon.stop()
}

fn is_plain(text: &str) -> Result<()> {
    let commands = text.chars().any(|it| it.is_control() && it != '\n');
    ensure!(!commands, "a terminal would obey: {text:?}");
    Ok(())
}

/// The loader that a program names is asked for its libraries, with no more rights than the program gets and not for ever.
fn endless(setting: &Setting, _: Length) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let at = |name: &str| setting.directory().join(name);
    let script = format!(
        "#!/bin/sh\ngrep NoNewPrivs /proc/self/status > {0}\necho $$ > {1}\nexec sleep 1000\n",
        at("rights").display(),
        at("number").display()
    );
    for (name, bytes) in [("loader", script.into_bytes()), ("program", naming(&at("loader")))] {
        fs::write(at(name), bytes)?;
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755))?;
    }
    // What the kernel, or a shell, makes of such a program is none of this.
    daemon.run("").arg(at("program")).limit(PATIENCE).run()?;
    let rights = fs::read_to_string(at("rights")).context("the loader was not asked")?;
    ensure!(rights.trim().ends_with('1'), "it may get rights: {rights}");
    let number = fs::read_to_string(at("number"))?.trim().parse()?;
    ensure!(matches!(process::state(number), None | Some('Z')), "it is left");
    daemon.stop()
}

/// A program that is nothing but the name of its loader.
fn naming(loader: &Path) -> Vec<u8> {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    let name = loader.as_os_str().as_encoded_bytes();
    let mut file = vec![0; HEADER + SEGMENT];
    file.extend(name);
    file.push(0);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(32, &(HEADER as u64).to_le_bytes());
    put(54, &(SEGMENT as u16).to_le_bytes());
    put(56, &1u16.to_le_bytes());
    // PT_INTERP, where it lies, and its length.
    put(HEADER, &3u32.to_le_bytes());
    put(HEADER + 8, &((HEADER + SEGMENT) as u64).to_le_bytes());
    put(HEADER + 32, &(name.len() as u64 + 1).to_le_bytes());
    file
}
