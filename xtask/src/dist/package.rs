//! A Debian package that is laid out, and made the same from the same files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use harness::process::Task;
use tempfile::TempDir;

use crate::cargo;

const MAINTAINER: &str = "The Balboa verbs authors <balboa-verbs@localhost.localdomain>";

/// A package that is being laid out.
pub struct Package {
    name: String,
    root: TempDir,
}

impl Package {
    /// An empty package of our version, with the given fields and the common ones.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn new(name: &str, fields: &str) -> Result<Self> {
        let root = tempfile::Builder::new().prefix("balboa-dist-").tempdir()?;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        let architecture = match fields.contains("Section: doc") {
            true => "all".to_owned(),
            false => Task::new("dpkg").arg("--print-architecture").run()?.success()?.stdout,
        };
        let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture.trim());
        let all = format!(
            "\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: {MAINTAINER}
Priority: optional
"
        );
        fs::create_dir(root.path().join("DEBIAN"))?;
        fs::write(root.path().join("DEBIAN/control"), all + fields)?;
        let package = Self { name: name.to_owned(), root };
        package.document(name)?;
        package.overrule("bogus-mail-host", "the project has no address yet")?;
        package.overrule("bogus-mail-host-in-debian-changelog", "likewise")?;
        Ok(package)
    }

    /// Says to lintian why a tag of its is left as it is.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn overrule(&self, tag: &str, why: &str) -> Result<()> {
        let directory = self.path("usr/share/lintian/overrides");
        fs::create_dir_all(&directory)?;
        let mut file =
            fs::File::options().create(true).append(true).open(directory.join(&self.name))?;
        Ok(write!(file, "# {why}\n{tag} *\n")?)
    }

    /// The licence, and the changelog as Debian's tools read it.
    fn document(&self, name: &str) -> Result<()> {
        let documents = format!("usr/share/doc/{name}");
        let copyright = cargo::root().join("packaging/copyright");
        self.place(&copyright, &format!("{documents}/copyright"), 0o644)?;
        let date = Task::new("date").arg(format!("--date=@{}", epoch()?)).env("LC_ALL", "C");
        let date = date.words("--utc --rfc-email").run()?.success()?.stdout;
        let (version, date) = (env!("CARGO_PKG_VERSION"), date.trim());
        let changelog = self.path(&format!("{documents}/changelog"));
        fs::write(
            &changelog,
            format!(
                "balboa ({version}) unstable; urgency=medium\n\n  * What has changed is in CHANGELOG.md, of the package balboa-doc.\n\n -- {MAINTAINER}  {date}\n"
            ),
        )?;
        compress(&changelog)
    }

    /// Where a file of it lies meanwhile.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Puts a file into it.
    ///
    /// # Errors
    /// When it is not there.
    pub fn place(&self, from: &Path, name: &str, mode: u32) -> Result<()> {
        let to = self.path(name);
        fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
    }

    /// Puts a program or library into it, without debug information.
    ///
    /// # Errors
    /// When it is not there.
    pub fn place_binary(&self, from: &Path, name: &str, mode: u32) -> Result<()> {
        self.place(from, name, mode)?;
        let strip = Task::new("strip").words("--strip-unneeded --remove-section=.comment");
        strip
            .arg(self.path(name))
            .run()?
            .success()
            .context("needs strip: apt-get install binutils")?;
        Ok(())
    }

    /// Marks a file in it as configuration, which administrators change and updates keep.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn conffile(&self, name: &str) -> Result<()> {
        let mut file =
            fs::File::options().create(true).append(true).open(self.path("DEBIAN/conffiles"))?;
        Ok(writeln!(file, "/{name}")?)
    }

    /// Makes it, the same from the same files.
    ///
    /// # Errors
    /// When dpkg-deb fails.
    pub fn make(self, package: &Path) -> Result<PathBuf> {
        // Neither the maker's umask nor a time is in it.
        let modes = Task::new("chmod").words("-R u=rwX,go=rX").arg(self.root.path());
        modes.run()?.success()?;
        let sums = Task::new("sh").arg("-c").arg(
            "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | sort -z | xargs -0 md5sum > DEBIAN/md5sums",
        );
        sums.env("LC_ALL", "C").directory(self.root.path()).run()?.success()?;
        fs::set_permissions(self.path("DEBIAN/md5sums"), fs::Permissions::from_mode(0o644))?;
        let make = Task::new("dpkg-deb").words("--root-owner-group -Zgzip --build");
        let make = make.env("SOURCE_DATE_EPOCH", epoch()?);
        make.arg(self.root.path())
            .arg(package)
            .run()?
            .success()
            .context("needs dpkg-deb: apt-get install dpkg")?;
        Ok(package.to_owned())
    }
}

/// Compresses a file, without a name or a time, so that the same package is made again.
///
/// # Errors
/// When gzip fails.
pub fn compress(file: &Path) -> Result<()> {
    Task::new("gzip").words("-9n").arg(file).run()?.success().map(drop)
}

/// The time that files of a package have: `SOURCE_DATE_EPOCH`, or that of the last commit, or where there is
/// none, none.
fn epoch() -> Result<String> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(set);
    }
    let last = Task::new("git").words("log -1 --format=%ct").with_our_environment();
    let last = last.directory(cargo::root()).run().ok().filter(|it| it.status.success());
    Ok(last.map_or_else(|| "0".to_owned(), |it| it.stdout.trim().to_owned()))
}
