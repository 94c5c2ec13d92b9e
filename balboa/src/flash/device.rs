//! Images of whole devices, which other programs load through a JTAG cable: the programs that are here, and the
//! commands.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take to tell its version.
const LIMIT: Duration = Duration::from_secs(10);

/// A program that loads whole devices.
struct Loader {
    program: &'static str,
    version: &'static str,
    /// The command, with the file behind it.
    command: fn(&str) -> String,
}

const LOADERS: [Loader; 2] = [
    Loader {
        program: "openFPGALoader",
        version: "--Version",
        command: |file| format!("openFPGALoader --cable ft4232 {file}"),
    },
    Loader {
        program: "vivado",
        version: "-version",
        command: |file| {
            format!(
                "hw_server -d; echo 'open_hw_manager; connect_hw_server; open_hw_target; set_property PROGRAM.FILE {{{file}}} [current_hw_device]; program_hw_devices' | vivado -mode tcl"
            )
        },
    },
];

/// The advice for an image of a whole device, in one sentence.
pub(super) fn advice(file: &Path) -> String {
    advice_in(&env::var_os("PATH").unwrap_or_default(), file)
}

fn advice_in(path: &OsStr, file: &Path) -> String {
    let quoted = format!("'{}'", file.display().to_string().replace('\'', "'\\''"));
    let found = LOADERS.iter().filter_map(|loader| {
        let program = find(path, loader.program)?;
        let version =
            version(&program, loader.version).unwrap_or("of no version that it tells".into());
        Some(format!("{} is here ({version}): {}", loader.program, (loader.command)(&quoted)))
    });
    let found: Vec<String> = found.collect();
    let how = match found.is_empty() {
        true => {
            "openFPGALoader or Vivado loads it through a JTAG cable, and neither is in PATH".into()
        }
        false => format!("balboa does not run it, but {}", found.join("; or ")),
    };
    format!(
        "{how}; then take the card from the bus and look for it anew (echo 1 > /sys/bus/pci/devices/ADDRESS/remove; echo 1 > /sys/bus/pci/rescan)"
    )
}

fn find(path: &OsStr, program: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The first line that a program prints of its version.
fn version(program: &Path, argument: &str) -> Option<String> {
    let mut child = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
    Some(line.chars().filter(|c| !c.is_control()).take(80).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_programs_that_are_there_are_told_with_their_version_and_none_is_run_on_a_file() {
        let home = tempfile::tempdir().unwrap();
        let none = advice_in(home.path().as_os_str(), Path::new("a.bit"));
        assert!(none.starts_with("openFPGALoader or Vivado loads it"), "{none}");
        let program = home.path().join("openFPGALoader");
        let script = "#!/bin/sh\n[ \"$*\" = --Version ] || echo loaded > loaded\necho\necho openFPGALoader v0.12.1\n";
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let told = advice_in(home.path().as_os_str(), Path::new("it's.bit"));
        let wanted = "openFPGALoader is here (openFPGALoader v0.12.1): openFPGALoader --cable ft4232 'it'\\''s.bit'";
        assert!(told.contains(wanted), "{told}");
        assert!(told.contains("rescan") && !Path::new("loaded").exists());
    }
}
