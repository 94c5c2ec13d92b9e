//! The first ten minutes: each common mistake is told in one helpful sentence.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use anyhow::{Result, ensure};
use harness::process::{Finished, Task};
use harness::runner::{Case, Need};
use harness::setting::{NOBODY, Setting};
use nix::sys::signal::Signal;

use super::IBVERBS_UTILS;

/// `balboa run`'s own failures.
const OWN_FAILURE: i32 = 125;

/// The family.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        Case::new(format!("sentence/{name}"), needs, body)
    };
    vec![
        case("no balboad", &[], no_balboad),
        case("wrong state directory", &[], wrong_directory),
        case("someone else's state directory", &[Need::Root], someone_elses),
        case("stale state directory", &[], stale),
        case("second balboad", &[], second_balboad),
        case("user namespaces used up", &[], namespaces_used_up),
        case("chroot", &[Need::Root], chroot).as_root(),
        case("container profile", &[], container),
        case("libibverbs without a provider", &[], other_release),
        case("pingpong without -g", &[IBVERBS_UTILS], pingpong_without_gid),
        case("perftest missing", &[], no_perftest),
        case("program not executable", &[], not_executable),
    ]
}

/// One sentence on standard error, and the exit code.
fn told(finished: Finished, code: i32, sentence: &str) -> Result<()> {
    finished.refuses(code, sentence).map(drop)
}

fn no_balboad(setting: &Setting) -> Result<()> {
    let nowhere = setting.directory().join("nowhere");
    let finished = setting.balboa_run(&nowhere).arg("true").run()?;
    told(finished, OWN_FAILURE, "no balboad serves")
}

fn wrong_directory(setting: &Setting) -> Result<()> {
    let finished = setting.balboa_run(&setting.bin.join("balboa")).arg("true").run()?;
    told(finished, OWN_FAILURE, "is not a directory")?;
    let file = setting.bin.join("balboa");
    let balboad = setting.built("balboad").words("--soft 1 --state-dir").arg(file).run()?;
    ensure!(!balboad.status.success() && balboad.stderr.contains("director"), "{balboad}");
    Ok(())
}

fn someone_elses(setting: &Setting) -> Result<()> {
    let state = setting.directory().join("roots");
    fs::create_dir(&state)?;
    let finished = setting.balboa_run(&state).arg("true").run()?;
    told(finished, OWN_FAILURE, "belongs to uid 0")?;
    let balboad = setting.built("balboad").words("--soft 1 --state-dir").arg(state).run()?;
    ensure!(!balboad.status.success() && balboad.stderr.contains("belongs to user 0"), "{balboad}");
    Ok(())
}

fn stale(setting: &Setting) -> Result<()> {
    setting.balboad("--soft 1")?.kill()?;
    let finished = setting.balboa_run(&setting.state_dir()).arg("true").run()?;
    told(finished, OWN_FAILURE, "left over from a balboad that has ended")
}

fn second_balboad(setting: &Setting) -> Result<()> {
    let first = setting.balboad("--soft 1")?;
    let state = setting.state_dir();
    let second = setting.built("balboad").words("--soft 1 --state-dir").arg(&state).run()?;
    ensure!(!second.status.success() && second.stderr.contains("balboad"), "{second}");
    ensure!(second.stderr.contains(&*state.to_string_lossy()), "names the directory: {second}");
    // The first is none the worse for it.
    first.run("true").run()?.success()?;
    first.stop()
}

fn namespaces_used_up(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; \
        exec setpriv --bounding-set -all --inh-caps -all \"$@\"";
    let inner = daemon.run("true");
    let finished =
        wrapped(setting, "unshare --user --map-root-user sh -c", script, &inner).run()?;
    told(finished, OWN_FAILURE, "user.max_user_namespaces is used up or 0")?;
    daemon.stop()
}

/// A command line of words, a script for its shell, and a task as the script's arguments.
fn wrapped(setting: &Setting, words: &str, script: &str, inner: &Task) -> Task {
    let mut all = words.split_whitespace();
    let outer = setting.task(all.next().unwrap_or_default()).args(all);
    outer.arg(script).arg("sh").args(inner.command_line())
}

fn chroot(setting: &Setting) -> Result<()> {
    let root = setting.directory().join("root");
    fs::create_dir(&root)?;
    // An ordinary user in a chroot; its state directory is enough to get that far.
    let state = setting.directory().join("nobodys");
    fs::create_dir(&state)?;
    std::os::unix::fs::chown(&state, Some(NOBODY), Some(NOBODY))?;
    fs::set_permissions(setting.directory(), fs::Permissions::from_mode(0o755))?;
    let balboad = setting.built("balboad").words("--soft 1 --state-dir").arg(&state);
    let mut balboad = balboad.user(Some(NOBODY)).tidy().start()?;
    balboad.wait_until("it was ready", |it| it.output() == "ready\n")?;

    let root = root.display();
    let script = format!(
        "mount --rbind / {root} && mount --make-rslave {root} && exec chroot {root} \
         setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \"$@\""
    );
    let inner = setting.balboa_run(&state).arg("true");
    let finished = wrapped(setting, "unshare --mount sh -c", &script, &inner).run()?;
    balboad.signal(Signal::SIGTERM)?;
    balboad.wait()?.success()?;
    told(finished, OWN_FAILURE, "inside a chroot")
}

/// unshare(2) is refused, as by Docker's seccomp profile.
fn container(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let balboa = daemon.run("true");
    let finished = setting.built("deny-namespaces").args(balboa.command_line()).run()?;
    // The marks of a container are there or not, by where the tests run.
    told(finished, OWN_FAILURE, "container")?;
    daemon.stop()
}

/// A directory with a libibverbs.so.1 that is a link to a file of the given name.
fn with_libibverbs(setting: &Setting, file: &str) -> Result<Task> {
    let libraries = setting.directory().join("lib");
    fs::create_dir(&libraries)?;
    fs::write(libraries.join(file), "")?;
    symlink(file, libraries.join("libibverbs.so.1"))?;
    let task = setting.balboa_run(&setting.state_dir()).arg("true");
    Ok(task.env("LD_LIBRARY_PATH", &libraries))
}

fn other_release(setting: &Setting) -> Result<()> {
    let finished = with_libibverbs(setting, "libibverbs.so.1.14.52.0")?.run()?;
    told(finished, OWN_FAILURE, "is of rdma-core 52, for which there is no Balboa provider")
}

fn pingpong_without_gid(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let mut server = daemon.run("ibv_rc_pingpong -d balboa0").start()?;
    let warning = "ibv_rc_pingpong without -g uses no GID";
    server.wait_until("it warned", |it| it.errors().contains(warning))?;
    drop(server);
    daemon.stop()
}

fn no_perftest(setting: &Setting) -> Result<()> {
    let task = setting.balboa_run(&setting.state_dir()).arg("ib_write_bw");
    let finished = task.env("PATH", "/nonexistent").run()?;
    told(finished, 127, "apt-get install perftest")
}

fn not_executable(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("file");
    fs::write(&file, "")?;
    let finished = setting.balboa_run(&setting.state_dir()).arg(&file).run()?;
    told(finished, 126, "not an executable file")
}
