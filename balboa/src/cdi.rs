//! The command `balboa cdi generate`: the mounts and variables by which programs in a container find the cards, as a
//! file of the Container Device Interface, which podman, containerd and CRI-O read.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::unistd::geteuid;
use serde_json::{Value, json};
use shim_abi::{CardInfo, STATE_DIR_VARIABLE};
use verbs_sys::RELEASES;

use crate::args;
use crate::client::ToolClient;
use crate::run;

/// Version of the interface: the first that all of the runtimes named in the documentation read.
const VERSION: &str = "0.5.0";
/// The vendor and class of the devices.
const KIND: &str = "balboa/card";
/// The name of all cards together.
const ALL: &str = "all";
/// The state directory in a container.
const STATE_DIR: &str = "/run/balboa";
const TOOL: &str = "/usr/bin/balboa";
const PROVIDERS: &str = "/usr/lib/balboa";

/// Writes the file.
///
/// # Errors
/// No balboad, no card, no provider; an output that cannot be written.
pub fn cdi(action: &args::Cdi) -> anyhow::Result<()> {
    let args::Cdi::Generate { state_dir, output } = action;
    let dir = shim_abi::state_dir(state_dir.path(), geteuid().as_raw());
    let cards = ToolClient::connect(&dir, Duration::ZERO)?.cards()?;
    if cards.is_empty() {
        bail!("balboad in {} has no card: start it with --soft 1 or more", dir.display());
    }
    let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
    let tool = std::env::current_exe().and_then(|tool| tool.canonicalize())?;
    let text = serde_json::to_string_pretty(&spec(&cards, &dir, &tool)?)? + "\n";
    match output {
        Some(path) => write(path, &text),
        None => Ok(terminal::say(format_args!("{text}"))?),
    }
}

/// Replaces an older file at once, for runtimes watch the directory.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let named = || format!("cannot write {}", path.display());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    path.file_name().with_context(named)?;
    // The name is random, so that no link can be there; another user may read the file.
    let mut new = tempfile::Builder::new();
    new.prefix(".balboa-").permissions(fs::Permissions::from_mode(0o666));
    let mut new = new.tempfile_in(parent.unwrap_or(Path::new("."))).with_context(named)?;
    new.write_all(text.as_bytes()).with_context(named)?;
    new.persist(path).with_context(named)?;
    Ok(())
}

fn spec(cards: &[CardInfo], dir: &Path, tool: &Path) -> anyhow::Result<Value> {
    let names = cards.iter().map(|card| card.name.as_str()).chain([ALL]);
    let device = |name: &str| {
        // The interface wants each device to be something of its own.
        json!({"name": name, "containerEdits": {"env": [format!("BALBOA_CDI_DEVICE={name}")]}})
    };
    let mut mounts = vec![
        mount(dir, STATE_DIR, &["rbind", "ro", "nosuid", "nodev", "noexec"])?,
        mount(tool, TOOL, &["bind", "ro", "nosuid", "nodev"])?,
    ];
    let providers = providers(tool);
    if providers.is_empty() {
        bail!(
            "no provider is beside {} or in ../lib/balboa from there: install a package balboa-provider-NN",
            tool.display()
        );
    }
    for (name, file) in providers {
        mounts.push(mount(
            &file,
            &format!("{PROVIDERS}/{name}"),
            &["bind", "ro", "nosuid", "nodev"],
        )?);
    }
    Ok(json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": names.map(device).collect::<Vec<_>>(),
        "containerEdits": {
            "env": [format!("{STATE_DIR_VARIABLE}={STATE_DIR}")],
            "mounts": mounts,
        },
    }))
}

fn mount(from: &Path, to: &str, options: &[&str]) -> anyhow::Result<Value> {
    // A path with another byte in its place would be another path.
    let from = from.to_str().with_context(|| {
        format!(
            "{}: a file of the interface holds UTF-8 alone; use a path that is UTF-8",
            from.display()
        )
    })?;
    Ok(json!({"hostPath": from, "containerPath": to, "options": options}))
}

/// The providers that this tool would give a program here: an image has a libibverbs of its own.
fn providers(tool: &Path) -> Vec<(String, PathBuf)> {
    let found = RELEASES.iter().filter_map(|release| {
        let name = release.provider();
        run::beside(tool, &name).map(|file| (name, file))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::client::tests::card;

    /// Holds a text against the interface's specification and its schema, as far as we use them.
    fn check(spec: &Value) {
        let keys =
            |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let known = |value: &Value, allowed: &[&str]| {
            for key in keys(value) {
                assert!(allowed.contains(&key.as_str()), "{key} in {value}");
            }
        };
        known(spec, &["cdiVersion", "kind", "devices", "containerEdits"]);
        assert!(
            ["0.3.0", "0.4.0", "0.5.0", "0.6.0"].map(Value::from).contains(&spec["cdiVersion"])
        );
        let (vendor, class) = spec["kind"].as_str().unwrap().split_once('/').unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        for (name, dots) in [(vendor, true), (class, false)] {
            assert!(name.starts_with(|c: char| c.is_ascii_alphabetic()), "{name}");
            assert!(name.ends_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
            assert!(name.chars().all(|c| plain(c) && (dots || c != '.')), "{name}");
        }
        let edits = |edits: &Value| {
            known(edits, &["env", "mounts"]);
            for text in edits["env"].as_array().into_iter().flatten() {
                let (name, value) = text.as_str().unwrap().split_once('=').unwrap();
                assert!(!name.is_empty() && !value.is_empty());
            }
            for mount in edits["mounts"].as_array().into_iter().flatten() {
                known(mount, &["hostPath", "containerPath", "options", "type"]);
                for path in ["hostPath", "containerPath"] {
                    assert!(mount[path].as_str().unwrap().starts_with('/'), "{mount}");
                }
                assert!(mount["options"].as_array().unwrap().iter().all(Value::is_string));
            }
        };
        edits(&spec["containerEdits"]);
        let devices = spec["devices"].as_array().unwrap();
        assert!(!devices.is_empty());
        for device in devices {
            known(device, &["name", "containerEdits"]);
            let name = device["name"].as_str().unwrap();
            assert!(name.chars().all(|c| plain(c) || c == ':'), "{name}");
            assert!(!keys(&device["containerEdits"]).is_empty());
            edits(&device["containerEdits"]);
        }
    }

    #[test]
    fn a_file_is_as_the_interface_has_it_and_names_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        let (bin, lib) = (root.path().join("bin"), root.path().join("lib/balboa"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let tool = bin.join("balboa");
        let name = RELEASES[0].provider();
        fs::write(lib.join(&name), "").unwrap();
        let spec = spec(&[card(0), card(1)], Path::new("/run/user/7/balboa"), &tool).unwrap();
        check(&spec);
        let named = spec["devices"].as_array().unwrap().iter().map(|it| it["name"].clone());
        assert_eq!(named.collect::<Vec<_>>(), ["balboa0", "balboa1", "all"]);
        let mounts = spec["containerEdits"]["mounts"].as_array().unwrap();
        let at = |path: &str| mounts.iter().find(|it| it["containerPath"] == path).unwrap();
        assert_eq!(at("/run/balboa")["hostPath"], "/run/user/7/balboa");
        let provider = at(&format!("/usr/lib/balboa/{name}"))["hostPath"].clone();
        assert_eq!(provider, lib.canonicalize().unwrap().join(name).display().to_string());
        assert_eq!(mounts.len(), 3);
    }

    #[test]
    fn a_path_that_is_no_text_is_refused_and_not_written_as_another() {
        let odd = Path::new(OsStr::from_bytes(b"/run/\xff"));
        let why = mount(odd, STATE_DIR, &[]).unwrap_err().to_string();
        assert!(why.contains("UTF-8"), "{why}");
    }

    #[test]
    fn without_a_provider_there_is_no_file() {
        let root = tempfile::tempdir().unwrap();
        let tool = root.path().join("bin/balboa");
        let why = spec(&[card(0)], Path::new("/run/balboa"), &tool).unwrap_err().to_string();
        assert!(why.contains("balboa-provider-NN"), "{why}");
    }

    #[test]
    fn a_file_takes_the_place_of_an_older_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("balboa.json");
        for text in ["a longer text\n", "b\n"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        // A file of others' is not written to.
        fs::write(root.path().join("precious"), "precious").unwrap();
        for name in [".balboa.json.new", "balboa.json.new"] {
            symlink("precious", root.path().join(name)).unwrap();
        }
        fs::remove_file(&path).unwrap();
        symlink("precious", &path).unwrap();
        write(&path, "c\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "c\n");
        assert_eq!(fs::read_to_string(root.path().join("precious")).unwrap(), "precious");
        assert!(write(Path::new("/nonexistent/x.json"), "").is_err());
    }
}
