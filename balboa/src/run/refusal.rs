//! Why the kernel refuses a namespace, by signs in the system.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::geteuid;

/// Switches of the kernel and signs of a container, in the order in which they explain a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// `user.max_user_namespaces` is 0, or so many exist.
    Limit,
    /// Debian's own switch is off.
    Switch,
    /// Ubuntu's AppArmor policy.
    AppArmor,
    /// Docker, Podman and the like.
    Container,
    /// A root directory that is no mount point.
    Chroot,
    /// None of these shows.
    Unknown,
}

/// The sentence for a refused unshare(CLONE_NEWUSER).
pub fn user_namespace(errno: Errno) -> String {
    let cause = match errno {
        Errno::ENOSPC | Errno::EUSERS => Cause::Limit,
        _ => cause(),
    };
    sentence(cause, "make a user namespace", errno)
}

/// The sentence for a refused mount(2) in the new namespace.
pub fn mount(errno: Errno) -> String {
    let cause = match (errno, cause()) {
        // In a plain chroot "/" is no mount point, and to change its propagation is invalid.
        (Errno::EINVAL, _) => Cause::Chroot,
        (_, cause) => cause,
    };
    sentence(cause, "mount in a namespace of its own", errno)
}

/// The switch of the kernel's that keeps ordinary users from namespaces on the machine with this root, and how it
/// is mended; `None` where none does.
pub fn forbidden(root: &Path) -> Option<(&'static str, &'static str)> {
    why(switch(root)?).split_once(": ")
}

fn cause() -> Cause {
    if let Some(cause) = switch(Path::new("/")) {
        cause
    } else if confined_container() {
        Cause::Container
    } else if root_is_no_mount() {
        Cause::Chroot
    } else {
        Cause::Unknown
    }
}

/// A switch that is set so that ordinary users may make no namespace.
fn switch(root: &Path) -> Option<Cause> {
    let switches = [
        ("user/max_user_namespaces", "0", Cause::Limit),
        ("kernel/unprivileged_userns_clone", "0", Cause::Switch),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", Cause::AppArmor),
    ];
    let is = |switch: &str, value: &str| {
        fs::read_to_string(root.join("proc/sys").join(switch))
            .is_ok_and(|text| text.trim() == value)
    };
    switches.into_iter().find(|(switch, value, _)| is(switch, value)).map(|(.., cause)| cause)
}

/// Whether this is a container with a seccomp filter or an AppArmor profile on it.
fn confined_container() -> bool {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let filtered = read("/proc/self/status")
        .lines()
        .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    let profile = read("/proc/self/attr/current");
    let profiled = !matches!(profile.trim_end_matches(['\0', '\n']), "" | "unconfined");
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists()) && (filtered || profiled)
}

/// Whether this process sees no mount at its "/", which only a chroot can bring about.
fn root_is_no_mount() -> bool {
    fs::read("/proc/self/mountinfo").is_ok_and(|mounts| !mounts_root(&mounts))
}

/// Whether a table of mounts, whose paths are any bytes, has one at "/".
fn mounts_root(mounts: &[u8]) -> bool {
    let mut lines = mounts.split(|&byte| byte == b'\n');
    lines.any(|line| line.split(|&byte| byte == b' ').nth(4) == Some(b"/"))
}

fn sentence(cause: Cause, what: &str, errno: Errno) -> String {
    let who = if geteuid().is_root() { "even root" } else { "an ordinary user" };
    let refused = format!("the kernel does not let {who} {what} ({})", errno.desc());
    format!("{refused}; {}", why(cause))
}

/// The obstacle, and the mend behind a colon.
const fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::Limit => {
            "user.max_user_namespaces is used up or 0: sudo sysctl user.max_user_namespaces=10000"
        }
        Cause::Switch => {
            "kernel.unprivileged_userns_clone is 0: sudo sysctl kernel.unprivileged_userns_clone=1, or run balboad and this as root"
        }
        Cause::AppArmor => {
            "Ubuntu's AppArmor policy restricts it: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run balboad and this as root"
        }
        Cause::Container => {
            "this is a container whose profile forbids it: say balboa run --in-place, which makes none, or start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or, to run this as its root, with --cap-add SYS_ADMIN besides"
        }
        Cause::Chroot => {
            "this is a chroot, where it is never allowed: run it outside, or make the root a mount (systemd-nspawn and podman do)"
        }
        Cause::Unknown => {
            "inside a chroot or a container with the default profile that is always so: run it outside, or in a container with balboa run --in-place"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_the_root_is_found_among_paths_in_any_bytes() {
        let elsewhere = b"29 1 8:1 / /mnt/caf\xe9 rw - ext4 /dev/sda1 rw\n";
        let root = b"30 1 8:2 / / rw - ext4 /dev/sda2 rw\n";
        assert!(!mounts_root(elsewhere));
        assert!(mounts_root(&[&elsewhere[..], root].concat()));
    }

    #[test]
    fn every_cause_names_what_to_do() {
        for (cause, mend) in [
            (Cause::Limit, "sysctl user.max_user_namespaces="),
            (Cause::Switch, "sysctl kernel.unprivileged_userns_clone=1"),
            (Cause::AppArmor, "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
            (Cause::Container, "--security-opt seccomp=unconfined"),
            (Cause::Chroot, "run it outside"),
            (Cause::Unknown, "run it outside"),
        ] {
            let sentence = sentence(cause, "make a user namespace", Errno::EPERM);
            assert!(sentence.contains(mend), "{sentence}");
            assert!(sentence.contains("Operation not permitted"), "{sentence}");
        }
    }

    #[test]
    fn a_used_up_limit_is_told_from_a_policy() {
        assert!(user_namespace(Errno::ENOSPC).contains("max_user_namespaces"));
    }
}
