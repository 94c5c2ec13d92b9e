//! Debian packages of other releases, fetched and unpacked without touching the host's packages.
//!
//! An apt root of our own: its own sources, lists and archives, and an empty list of installed
//! packages. The mirror is the one that the machine's own sources name, the signatures are checked
//! with Debian's keyring.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::{Finished, Task};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// How long one command of apt may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A private apt root whose lists are up to date.
#[derive(Debug)]
pub struct Apt {
    root: PathBuf,
}

impl Apt {
    /// Makes the root and fetches the lists of the releases that packages are taken from.
    ///
    /// # Errors
    /// When this is no Debian, a tool is missing, or the mirror cannot be reached.
    pub fn open(root: PathBuf, suites: &[&str]) -> Result<Self> {
        let lines = suites.iter().map(|suite| format!("deb SOURCE {suite} main\n"));
        Self::with(root, lines.collect())
    }

    /// The same for source packages of one component of a release.
    ///
    /// # Errors
    /// As [`Apt::open`].
    pub fn open_sources(root: PathBuf, suite: &str, component: &str) -> Result<Self> {
        Self::with(root, format!("deb-src SOURCE {suite} {component}\n"))
    }

    /// Fetches the lists of lines of sources, in which the word SOURCE is for the mirror.
    fn with(root: PathBuf, sources: String) -> Result<Self> {
        for tool in ["apt-get", "apt-config", "dpkg-deb"] {
            ensure!(Task::is_installed(tool), "needs {tool}, which this machine has not");
        }
        ensure!(
            Path::new(KEYRING).exists(),
            "needs Debian's keyring: apt-get install debian-archive-keyring"
        );
        for directory in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::write(root.join("status"), "")?;
        let mirror = format!("[signed-by={KEYRING}] {}", mirror()?);
        fs::write(root.join("sources.list"), sources.replace("SOURCE", &mirror))?;
        fs::write(root.join("apt.conf"), configuration(&root)?)?;
        let apt = Self { root };
        let updated = apt.get().words("update -q").run()?;
        // apt-get takes a mirror that it cannot reach for a warning.
        let failed = updated.stderr.lines().find(|line| {
            ["E: ", "W: Failed to fetch", "W: Some index"].iter().any(|it| line.starts_with(it))
        });
        ensure!(failed.is_none(), "the mirror cannot be reached: {}", failed.unwrap_or_default());
        updated.success().context("the lists of packages cannot be fetched")?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Task {
        let task = Task::new(program).with_our_environment().env("LC_ALL", "C");
        task.env("APT_CONFIG", self.root.join("apt.conf")).directory(&self.root).limit(LIMIT)
    }

    fn get(&self) -> Task {
        self.command("apt-get")
    }

    /// Unpacks packages of a release and all that they need into a directory.
    ///
    /// # Errors
    /// When one of them cannot be fetched or unpacked.
    pub fn unpack_with_dependencies(
        &self,
        suite: &str,
        packages: &[&str],
        into: &Path,
    ) -> Result<()> {
        let archives = self.root.join("archives");
        empty(&archives)?;
        let install = self.get().words("install -q -y --download-only -t").arg(suite);
        fetched(install.args(packages).run()?, &packages.join(" "))?;
        unpack_all(&archives, into)
    }

    /// Unpacks one package, which may be given as `NAME=VERSION` or `NAME/RELEASE`.
    ///
    /// # Errors
    /// When it cannot be fetched or unpacked.
    pub fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        let archives = self.root.join("archives");
        empty(&archives)?;
        let download = self.get().words("download -q").arg(package).directory(&archives);
        fetched(download.run()?, package)?;
        unpack_all(&archives, into)
    }

    /// Unpacks the authors' archive of a source package, given as `NAME/RELEASE`.
    ///
    /// # Errors
    /// When it cannot be fetched or unpacked.
    pub fn unpack_source(&self, package: &str, into: &Path) -> Result<()> {
        let archives = tempfile::tempdir_in(&self.root)?;
        let source = self.get().words("source -q --download-only --tar-only").arg(package);
        fetched(source.directory(archives.path()).run()?, package)?;
        for archive in fs::read_dir(archives.path())? {
            let unpack = Task::new("tar").words("--strip-components=1 -xf").arg(archive?.path());
            unpack.arg("-C").arg(into).limit(LIMIT).run()?.success()?;
        }
        Ok(())
    }

    /// The output of `apt-cache show` about all versions of a package.
    ///
    /// # Errors
    /// When there is none.
    pub fn show(&self, package: &str) -> Result<String> {
        let shown = self.command("apt-cache").arg("show").arg(package).run()?;
        Ok(shown.success().with_context(|| format!("there is no package {package}"))?.stdout)
    }
}

fn fetched(finished: Finished, package: &str) -> Result<()> {
    finished.success().map(drop).with_context(|| format!("{package} cannot be fetched"))
}

/// Removes the archives of an earlier call.
fn empty(archives: &Path) -> Result<()> {
    for archive in packages_in(archives)? {
        fs::remove_file(archive)?;
    }
    Ok(())
}

fn unpack_all(archives: &Path, into: &Path) -> Result<()> {
    let packages = packages_in(archives)?;
    ensure!(!packages.is_empty(), "apt fetched nothing into {}", archives.display());
    for package in packages {
        Task::new("dpkg-deb").arg("-x").arg(&package).arg(into).run()?.success()?;
        fs::remove_file(package)?;
    }
    Ok(())
}

fn packages_in(archives: &Path) -> Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "deb") {
            packages.push(path);
        }
    }
    Ok(packages)
}

/// The mirror that this machine takes Debian from.
fn mirror() -> Result<String> {
    let codename = codename()?;
    let format = "$(COMPONENT) $(RELEASE) $(CODENAME) $(ORIGIN) $(REPO_URI)";
    let targets = Task::new("apt-get").words("indextargets --format").arg(format);
    let targets = targets.arg("Created-By: Packages").run()?.success()?;
    mirror_among(&targets.stdout, &codename)
        .with_context(|| format!("no source of apt names Debian {codename}; see /etc/apt"))
}

/// The release of Debian that this machine has, by its name.
///
/// # Errors
/// When it has another system.
pub fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().trim_matches('"').to_owned()
    };
    ensure!(value("ID") == "debian", "needs Debian, whose mirror it would use");
    Ok(value("VERSION_CODENAME"))
}

/// The mirror of a release among lines of `COMPONENT RELEASE CODENAME ORIGIN URI`; one whose lists
/// say that it is Debian's is preferred.
fn mirror_among(targets: &str, codename: &str) -> Option<String> {
    let mut found = None;
    for line in targets.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &["main", release, known_as, origin, uri] = words.as_slice() else { continue };
        if release != codename && known_as != codename {
            continue;
        }
        if origin == "Debian" {
            return Some(uri.to_owned());
        }
        found.get_or_insert_with(|| uri.to_owned());
    }
    found
}

/// apt's configuration: how the machine reaches its mirror, and everything else ours.
fn configuration(root: &Path) -> Result<String> {
    let machine = Task::new("apt-config").arg("dump").run()?.success()?.stdout;
    let reach = machine
        .lines()
        .filter(|line| line.starts_with("Acquire::") && !line.starts_with("Acquire::IndexTargets"));
    let root = root.to_str().context("apt wants a cache directory whose name is UTF-8")?;
    if root.contains(['"', ';']) {
        bail!("apt cannot be given the directory {root}");
    }
    let mut text: String = reach.flat_map(|line| [line, "\n"]).collect();
    for (name, value) in [
        ("Dir::State", root),
        ("Dir::State::status", &format!("{root}/status")),
        ("Dir::State::lists", &format!("{root}/lists")),
        ("Dir::Cache", root),
        ("Dir::Etc::sourcelist", &format!("{root}/sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null"),
        ("Dir::Etc::main", "/dev/null"),
        ("Dir::Etc::parts", "/dev/null"),
        ("Dir::Etc::preferences", "/dev/null"),
        ("Dir::Etc::preferencesparts", "/dev/null"),
        ("APT::Install-Recommends", "false"),
        ("APT::Architecture", "amd64"),
        ("APT::Architectures", "amd64"),
        ("Acquire::Languages", "none"),
        ("Acquire::Retries", "2"),
        // Fetched files lie in this user's cache, where no other user can write.
        ("APT::Sandbox::User", ""),
    ] {
        text.push_str(&format!("{name} \"{value}\";\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_machines_release() {
        let targets = "main bookworm-updates bookworm-updates Debian http://a/\n\
            main nodistro nodistro . http://b/\n\
            contrib bookworm bookworm Debian http://c/\n\
            main bookworm bookworm Third http://d/\n\
            main stable bookworm Debian http://e/\n";
        assert_eq!(mirror_among(targets, "bookworm").as_deref(), Some("http://e/"));
        assert_eq!(mirror_among(targets, "nodistro").as_deref(), Some("http://b/"));
        assert_eq!(mirror_among(targets, "trixie"), None);
    }
}
