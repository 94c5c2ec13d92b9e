//! The book: docs/ and the pages beside it, by mdBook.
//!
//! Pages link to each other as they lie in the repository, in docs/ and above it. So the book is made of a copy that
//! lies in the same way, with the files that pages link to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use terminal::report;

use crate::cargo::{LIMIT, root, target_directory};
use crate::checks::links;
use crate::tool::Tool;

/// The tool mdBook, without its server, its watcher, and their dependencies.
pub const MDBOOK: Tool = Tool {
    package: "mdbook",
    version: "0.5.2",
    options: "--no-default-features --features search",
};
const SETTINGS: &str = include_str!("book/book.toml");
/// The order of the pages, from docs/.
const SUMMARY: &str = "docs/SUMMARY.md";

/// `cargo xtask book`.
///
/// # Errors
/// As of [`build`], and when mdBook cannot be installed.
pub fn book() -> Result<ExitCode> {
    let book = build(&MDBOOK.program()?)?;
    report!("{}", book.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Makes the book in `target/book`, by a program mdBook, and answers where it is.
///
/// # Errors
/// When the summary lacks a page of docs/, when mdBook fails, and when a link of the book leads nowhere.
pub fn build(mdbook: &Path) -> Result<PathBuf> {
    let target = target_directory()?;
    let (book, copy) = (target.join("book"), target.join("book-source"));
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    lay(&copy)?;
    let task = Task::new(mdbook).words("build --dest-dir").arg(&book).arg(&copy);
    let said = task.with_our_environment().limit(LIMIT).run()?.success()?;
    let warned = said.stderr.lines().any(|line| line.contains("WARN") || line.contains("ERROR"));
    ensure!(!warned, "mdbook warns:\n{}", said.stderr);
    let broken = broken(&book)?;
    ensure!(broken.is_empty(), "links of the book that lead nowhere:\n{}", broken.join("\n"));
    Ok(book)
}

/// Lays the book's pages, and the files that they link to, below `copy`.
fn lay(copy: &Path) -> Result<()> {
    let summary = links::read(&root().join(SUMMARY))?;
    let pages: BTreeSet<PathBuf> =
        links::links(&summary).iter().map(|it| linked(SUMMARY, it)).collect();
    let mut missing = Vec::new();
    for page in links::pages_below(&root().join("docs"))? {
        let page = page.strip_prefix(root())?;
        if page != Path::new(SUMMARY) && !pages.contains(page) {
            missing.push(page.display().to_string());
        }
    }
    ensure!(missing.is_empty(), "{SUMMARY} lacks {}", missing.join(", "));
    let mut files = pages.clone();
    for page in &pages {
        let text = links::read(&root().join(page))?;
        for link in links::links(&text).iter().filter(|it| !it.contains("://")) {
            let file = linked(page, link.split('#').next().unwrap_or_default());
            if root().join(&file).is_file() {
                files.insert(file);
            }
        }
    }
    let source = copy.join("src");
    for file in &files {
        let to = source.join(file);
        fs::create_dir_all(to.parent().context("a file lies in no folder")?)?;
        fs::copy(root().join(file), to).with_context(|| format!("{}", file.display()))?;
    }
    fs::write(source.join("SUMMARY.md"), from_root(&summary))?;
    fs::write(copy.join("book.toml"), SETTINGS)?;
    Ok(())
}

/// The summary with its links from the root in place of docs/.
fn from_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        out.push_str(&format!("]({}){rest}", linked(SUMMARY, link).display()));
    }
    out
}

/// Where a link of a page leads, from the root.
fn linked(page: impl AsRef<Path>, link: &str) -> PathBuf {
    let page = page.as_ref();
    if link.is_empty() {
        return page.to_owned();
    }
    let mut path = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The links of the book that lead to no file, or to no place in it.
fn broken(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for file in links::files_below(book, "html")? {
        let text = links::read(&file)?;
        pages.insert(file.strip_prefix(book)?.to_owned(), text);
    }
    let places: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(page, text)| (page.as_path(), values(text, "id").collect())).collect();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in values(text, "href").chain(values(text, "src")) {
            if link.contains(':') || link.starts_with('#') && link.len() == 1 {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = linked(page, file);
            let leads = match places.get(target.as_path()) {
                Some(places) => place.is_empty() || places.contains(place),
                None => place.is_empty() && book.join(&target).is_file(),
            };
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// The values of an attribute in HTML as mdBook writes it.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let parts = text.split(&format!(" {attribute}=\"")).skip(1).collect::<Vec<_>>();
    parts.into_iter().filter_map(|it| it.split_once('"')).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_from_the_page_that_has_them() {
        assert_eq!(linked("docs/a.md", "../README.md"), Path::new("README.md"));
        assert_eq!(linked("docs/log/a.md", "../b.md"), Path::new("docs/b.md"));
        assert_eq!(linked("docs/a.md", ""), Path::new("docs/a.md"));
    }

    #[test]
    fn the_summary_is_laid_with_links_from_the_root() {
        let summary = "# Try\n\n- [One](../README.md)\n  - [Two](two.md)\n";
        assert_eq!(from_root(summary), "# Try\n\n- [One](README.md)\n  - [Two](docs/two.md)\n");
    }

    /// Pages to look things up in may be longer: those of two parts of the summary, and two lists.
    #[test]
    fn no_page_to_read_has_more_than_1800_words() {
        let summary = links::read(&root().join(SUMMARY)).unwrap();
        let parts = summary
            .split("\n# ")
            .filter(|it| !it.starts_with("Reference") && !it.starts_with("Log"));
        let pages = parts.flat_map(links::links).map(|it| linked(SUMMARY, &it));
        let lists = [Path::new("CHANGELOG.md"), Path::new("docs/stock-card.md")];
        for page in pages.filter(|it| !lists.contains(&it.as_path())) {
            let words = links::read(&root().join(&page)).unwrap().split_whitespace().count();
            assert!(words <= 1800, "{} has {words} words", page.display());
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let book = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(book.path().join(name), text).unwrap();
        write(
            "a.html",
            r##"<h1 id="a"></h1><a href="b.html#b"></a><img src="c.svg"><a href="#a">"##,
        );
        write("b.html", r#"<h1 id="b"></h1><a href="a.html#b"></a><a href="https://x.org/">"#);
        write("c.svg", "");
        assert_eq!(broken(book.path()).unwrap(), ["b.html: a.html#b"]);
        write("b.html", r#"<p><a href="c.svg"></a><a href="d.html"></a></p>"#);
        assert_eq!(broken(book.path()).unwrap(), ["a.html: b.html#b", "b.html: d.html"]);
    }
}
