//! The imports between the files of one library or program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The importing file and the imported one.
pub type Arrow = (String, String);

/// An arrow from a file to one that it imports from.
#[derive(Debug)]
pub struct Import {
    /// Both files, from the workspace's root.
    pub arrow: Arrow,
    /// The imported name, as it is written.
    pub name: String,
    /// The relation of the imported module to the importing one.
    pub kin: Kin,
}

/// The relation of a module to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// It is around it.
    Parent,
    /// It is inside it.
    Child,
    /// Neither.
    None,
}

/// The names from the crate's root to a module or to an item.
type Names = Vec<String>;

/// The content of a module.
#[derive(Debug, Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    /// Its imports and re-exports, by their names here.
    uses: BTreeMap<String, Names>,
    /// Modules of which it imports everything.
    globs: Vec<Names>,
    /// Every path written in it.
    paths: Vec<Names>,
}

/// Reads a library or program from its first file on.
///
/// # Errors
/// When a file cannot be read, or is not Rust.
pub fn read(root: &Path, first: &Path) -> Result<Vec<Import>> {
    let mut reader = Reader { root, modules: BTreeMap::new() };
    let inside = first.parent().context("a file is in a directory")?.to_owned();
    reader.file(first, &inside, Vec::new())?;
    Ok(reader.imports())
}

struct Reader<'a> {
    root: &'a Path,
    modules: BTreeMap<Names, Module>,
}

impl Reader<'_> {
    /// Reads a module's file; the files of its children are in `inside`.
    fn file(&mut self, file: &Path, inside: &Path, module: Names) -> Result<()> {
        let name = file.display().to_string();
        let text = fs::read_to_string(self.root.join(file))
            .with_context(|| format!("cannot read {name}"))?;
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{name} is not Rust: {error}"))?;
        self.modules.insert(module.clone(), Module { file: name, ..Module::default() });
        self.module(tokens, inside, &module)
    }

    /// Reads the content of a module.
    fn module(&mut self, tokens: TokenStream, inside: &Path, module: &Names) -> Result<()> {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let word = word(token);
            let next = tokens.get(at + 1);
            if is_of_tests(&tokens, at) {
                at = after_item(&tokens, at + 2);
                continue;
            }
            match (word.as_deref(), next.and_then(self::word)) {
                (Some("mod"), Some(name)) => {
                    let (child, inside) = (
                        [module.as_slice(), std::slice::from_ref(&name)].concat(),
                        inside.join(&name),
                    );
                    match tokens.get(at + 2) {
                        Some(TokenTree::Group(body)) => {
                            let file = self.at(module).file.clone();
                            self.modules
                                .insert(child.clone(), Module { file, ..Module::default() });
                            self.module(body.stream(), &inside, &child)?;
                        }
                        _ => self.file(&self.file_of(&inside), &inside, child)?,
                    }
                    at += 3;
                    continue;
                }
                (Some("use"), _) => {
                    let end = (at..tokens.len()).find(|&it| is(&tokens[it], ';'));
                    let tree = &tokens[at + 1..end.unwrap_or(tokens.len())];
                    for (path, name) in trees(tree, &[]) {
                        let this = self.at(module);
                        this.paths.push(path.clone());
                        match name {
                            Some(name) => drop(this.uses.insert(name, path)),
                            None => this.globs.push(path),
                        }
                    }
                    at = end.unwrap_or(tokens.len());
                }
                (
                    Some(
                        "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static",
                    ),
                    Some(name),
                ) => drop(self.at(module).items.insert(name)),
                (Some("pub"), _) if matches!(next, Some(TokenTree::Group(_))) => at += 1,
                _ => {
                    let paths = &mut self.at(module).paths;
                    at += path(&tokens[at..], at > 0 && is(&tokens[at - 1], ':'), paths);
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// The file of a module that is declared, as cargo looks for it.
    fn file_of(&self, inside: &Path) -> std::path::PathBuf {
        let beside = inside.with_extension("rs");
        if self.root.join(&beside).exists() { beside } else { inside.join("mod.rs") }
    }

    fn at(&mut self, module: &Names) -> &mut Module {
        self.modules.entry(module.clone()).or_default()
    }

    /// All arrows between different files.
    fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for (names, module) in &self.modules {
            for path in &module.paths {
                let Some(whole) = self.whole(names, path) else { continue };
                let Some(there) = self.holder(&whole, 0) else { continue };
                let Some(other) = self.modules.get(&there) else { continue };
                if other.file == module.file {
                    continue;
                }
                let kin = match (names.starts_with(&there), there.starts_with(names)) {
                    (true, _) => Kin::Parent,
                    (_, true) => Kin::Child,
                    _ => Kin::None,
                };
                let arrow = (module.file.clone(), other.file.clone());
                imports.push(Import { arrow, name: path.join("::"), kin });
            }
        }
        imports
    }

    /// A path as seen from the crate's root, if it begins in the crate.
    fn whole(&self, module: &Names, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module.as_slice(), rest].concat()),
            "super" => {
                let parent = module.split_last()?.1.to_vec();
                match rest.first().is_some_and(|it| it == "super") {
                    true => self.whole(&parent, rest),
                    false => Some([parent.as_slice(), rest].concat()),
                }
            }
            name => {
                let child = [module.as_slice(), &[name.to_owned()]].concat();
                let this = self.modules.get(module)?;
                let known = self.modules.contains_key(&child)
                    || this.uses.get(name).is_some_and(|it| *it != path);
                known.then(|| [module.as_slice(), path].concat())
            }
        }
    }

    /// The module with the item that a path from the root names.
    fn holder(&self, path: &[String], depth: usize) -> Option<Names> {
        const DEEPEST: usize = 16;
        let mut here = Names::new();
        for (at, name) in path.iter().enumerate() {
            let child = [here.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                here = child;
                continue;
            }
            let module = self.modules.get(&here)?;
            if module.items.contains(name) || depth > DEEPEST {
                return Some(here);
            }
            if let Some(used) = module.uses.get(name) {
                let whole = self.whole(&here, used)?;
                return self.holder(&[&whole, &path[at + 1..]].concat(), depth + 1);
            }
            for glob in &module.globs {
                let Some(whole) = self.whole(&here, glob) else { continue };
                let Some(of) = self.modules.get(&whole) else { continue };
                if of.items.contains(name) || of.uses.contains_key(name) {
                    return self.holder(&[&whole, &path[at..]].concat(), depth + 1);
                }
            }
            return Some(here);
        }
        Some(here)
    }
}

/// Notes the paths in some tokens' first one, and says how many more tokens the path takes.
fn path(tokens: &[TokenTree], goes_on: bool, paths: &mut Vec<Names>) -> usize {
    match tokens.first() {
        Some(TokenTree::Group(group)) => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let mut at = 0;
            while at < inner.len() {
                if is_of_tests(&inner, at) {
                    at = after_item(&inner, at + 2);
                } else if word(&inner[at]).as_deref() == Some("use") {
                    let end = (at..inner.len()).find(|&it| is(&inner[it], ';'));
                    let end = end.unwrap_or(inner.len());
                    paths.extend(trees(&inner[at + 1..end], &[]).into_iter().map(|(path, _)| path));
                    at = end + 1;
                } else {
                    let goes_on = at > 0 && is(&inner[at - 1], ':');
                    at += 1 + path(&inner[at..], goes_on, paths);
                }
            }
            0
        }
        Some(TokenTree::Ident(first)) if !goes_on => {
            let mut names = vec![first.to_string()];
            let mut at = 1;
            while let [colon, other, TokenTree::Ident(name), ..] = &tokens[at..] {
                if !is(colon, ':') || !is(other, ':') {
                    break;
                }
                names.push(name.to_string());
                at += 3;
            }
            if names.len() > 1 {
                paths.push(names);
            }
            at - 1
        }
        _ => 0,
    }
}

/// The paths of a `use`, each with the name it has from then on; none for all of a module.
fn trees(tokens: &[TokenTree], before: &[String]) -> Vec<(Names, Option<String>)> {
    let mut found = Vec::new();
    for tree in tokens.split(|token| is(token, ',')) {
        let mut names = before.to_vec();
        let mut renamed = None;
        let mut all = None;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Ident(name) if name == "as" => {
                    renamed = tree.get(at + 1).and_then(word);
                    break;
                }
                // A list's own `self` is the path before the list.
                TokenTree::Ident(name) if name == "self" && !names.is_empty() => {}
                TokenTree::Ident(name) => names.push(name.to_string()),
                TokenTree::Group(list) if list.delimiter() == Delimiter::Brace => {
                    let list: Vec<TokenTree> = list.stream().into_iter().collect();
                    all = Some(trees(&list, &names));
                }
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    all = Some(vec![(names.clone(), None)]);
                }
                _ => {}
            }
        }
        let name = renamed.or_else(|| names.last().cloned());
        match all {
            Some(all) => found.extend(all),
            None if names.is_empty() => {}
            None => found.push((names, name)),
        }
    }
    found
}

/// Whether an attribute that leaves the next item to tests begins here.
fn is_of_tests(tokens: &[TokenTree], at: usize) -> bool {
    let [hash, TokenTree::Group(attribute), ..] = &tokens[at..] else { return false };
    let text = attribute.stream().to_string();
    let mut words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    is(hash, '#')
        && words.next() == Some("cfg")
        && words.clone().any(|it| it == "test")
        && !words.any(|it| it == "not")
}

/// Where the item that begins here has ended.
fn after_item(tokens: &[TokenTree], from: usize) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is(token, ';') || is(token, ','),
    };
    let end = (from..tokens.len()).find(|&at| ends(&tokens[at]));
    end.map_or(tokens.len(), |at| at + 1)
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == sign)
}

fn word(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    }
}
