//! Links of the documents lead somewhere: to a file that is there, and to a heading in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::root;

/// Fails unless each link of a document that leads to no other site leads somewhere.
///
/// # Errors
/// With the links that do not, a line each.
pub fn check() -> Result<()> {
    let mut broken = Vec::new();
    for path in documents()? {
        let text = read(&path)?;
        let folder = path.parent().unwrap_or(&path);
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            if !leads(link, &path, folder)? {
                let name = path.strip_prefix(root()).unwrap_or(&path);
                broken.push(format!("{}: {link}", name.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    Ok(())
}

/// The pages that people read: in the root, in the folders right below it, and in those of docs/.
fn documents() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    for entry in fs::read_dir(root())? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    for folder in folders {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    found.extend(pages_below(&root().join("docs"))?);
    found.sort();
    found.dedup();
    Ok(found)
}

/// The pages in a folder and in all folders below it.
pub fn pages_below(folder: &Path) -> Result<Vec<PathBuf>> {
    files_below(folder, "md")
}

/// The files with an extension in a folder and in all folders below it.
pub fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_below(&path, extension)?);
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether a link of a page leads to a file, and to a heading if it names one.
fn leads(link: &str, page: &Path, folder: &Path) -> Result<bool> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
    if !target.exists() {
        return Ok(false);
    }
    Ok(anchor.is_empty() || headings(&read(&target)?).iter().any(|it| it == anchor))
}

/// Where the links of a page lead.
pub fn links(page: &str) -> Vec<String> {
    let text = prose(page);
    // A span of code ends with its paragraph at the latest.
    let paragraphs = text.split("\n\n").map(|it| it.split('`').step_by(2).collect::<String>());
    let of = |text: String| {
        let ends = text.split("](").skip(1).filter_map(|it| it.split_once(')'));
        ends.map(|(link, _)| link.to_owned()).collect::<Vec<_>>()
    };
    paragraphs.flat_map(of).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn headings(page: &str) -> Vec<String> {
    let text = prose(page);
    let titles = text.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        if title.len() < line.len() { title.strip_prefix(' ') } else { None }
    });
    titles.map(anchor).collect()
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect::<String>().to_lowercase()
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    let mut is_code = false;
    let mut text = String::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n\nSee [one](a.md), [`two`](b.md#c), `[none](x.md)` and\n`not [a\n\
        link](y.md)`, [three](#d).\n\n```\n# no heading\n[none](z.md)\n```\n\n## Where do I put …\n";

    #[test]
    fn links_outside_of_code_are_found() {
        assert_eq!(links(PAGE), ["a.md", "b.md#c", "#d"]);
    }

    #[test]
    fn headings_outside_of_code_have_anchors() {
        assert_eq!(headings(PAGE), ["a-page", "where-do-i-put-"]);
        assert_eq!(anchor("Two: a `code`, NCCL's_x"), "two-a-code-nccls_x");
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_heading_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        fs::write(&page, PAGE).unwrap();
        let leads = |link| leads(link, &page, folder.path()).unwrap();
        assert!(leads("page.md") && leads("page.md#a-page") && leads("#where-do-i-put-"));
        assert!(!leads("other.md") && !leads("#no-heading") && !leads("page.md#b"));
    }
}
