//! balboad comes and goes and leaves nothing behind.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use harness::runner::Case;
use harness::setting::Setting;
use nix::sys::signal::Signal;

use super::IBVERBS_UTILS;

/// The family.
pub fn cases() -> Vec<Case> {
    let both = |name: &str, body: fn(&Setting) -> Result<()>| {
        [Case::new(name, &[IBVERBS_UTILS], body), Case::new(name, &[IBVERBS_UTILS], body).as_root()]
    };
    let mut cases = Vec::new();
    cases.extend(both("SIGTERM leaves no socket and no process", sigterm));
    cases.push(Case::new("SIGINT is as good as SIGTERM", &[], sigint));
    cases.push(Case::new("balboad starts over a dead one's directory", &[], after_a_crash));
    cases.push(Case::new("balboa run waits for a balboad that starts", &[IBVERBS_UTILS], waits));
    cases.push(Case::new("balboa run passes the exit code on", &[], exit_codes));
    cases
}

fn sigterm(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let pid = daemon.pid();
    let mode = daemon.state_dir().metadata()?.permissions().mode() & 0o777;
    ensure!(mode == 0o700, "the state directory's mode is {mode:o}, not 700");
    daemon.run("ibv_devinfo").run()?.success()?;
    daemon.stop()?;
    ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is still there");
    Ok(())
}

fn sigint(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let task = setting.built("balboad").words("--soft 1 --state-dir").arg(&state).tidy();
    let mut running = task.start()?;
    running.wait_until("it was ready", |it| it.output() == "ready\n")?;
    running.signal(Signal::SIGINT)?;
    running.wait()?.success()?;
    ensure!(!state.join("balboad.sock").exists(), "balboad left its socket");
    Ok(())
}

fn after_a_crash(setting: &Setting) -> Result<()> {
    setting.balboad("--soft 1")?.kill()?;
    ensure!(setting.state_dir().join("balboad.sock").exists(), "SIGKILL leaves the socket");
    setting.balboad("--soft 1")?.stop()
}

fn waits(setting: &Setting) -> Result<()> {
    let early = setting.balboa_run(&setting.state_dir()).arg("ibv_devices").start()?;
    let daemon = setting.balboad("--soft 1")?;
    early.wait()?.success()?.says("balboa0")?;
    daemon.stop()
}

fn exit_codes(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    daemon.run("sh -c").arg("exit 42").run()?.code(42)?;
    daemon.run("true").run()?.success()?;
    daemon.stop()
}
