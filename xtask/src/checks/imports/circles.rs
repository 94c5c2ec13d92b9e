//! Circles among files that import each other.

use std::collections::BTreeSet;

use super::Names;
use super::source::{Arrow, Import, Kin};

/// All arrows between files.
#[derive(Debug, Default)]
pub struct Graph {
    names: Names,
    /// From a module to one of its parents, and the other way.
    up: BTreeSet<Arrow>,
    down: BTreeSet<Arrow>,
}

impl Graph {
    /// Adds an arrow.
    pub fn add(&mut self, import: Import) {
        match import.kin {
            Kin::Parent => drop(self.up.insert(import.arrow.clone())),
            Kin::Child => drop(self.down.insert(import.arrow.clone())),
            Kin::None => {}
        }
        self.names.entry(import.arrow).or_insert(import.name);
    }

    /// The files of each circle.
    ///
    /// A module and its children may import each other. So circles are looked for twice, as if no
    /// module imported a parent, and as if none imported a child.
    pub fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let mut circles: BTreeSet<BTreeSet<String>> = BTreeSet::new();
        for kin in [&self.up, &self.down] {
            let left = self.without(kin);
            for (file, _) in &left {
                let ahead = reached(&left, file);
                let circle: BTreeSet<String> =
                    ahead.into_iter().filter(|it| reached(&left, it).contains(file)).collect();
                if circle.len() > 1 {
                    circles.insert(circle);
                }
            }
        }
        let part = |it: &BTreeSet<String>| circles.iter().any(|all| it != all && it.is_subset(all));
        circles.iter().filter(|it| !part(it)).cloned().collect()
    }

    /// The arrows between files of a circle, with an example of an import.
    pub fn within<'a>(
        &'a self,
        circle: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = (&'a Arrow, &'a String)> {
        let inside = |arrow: &Arrow| circle.contains(&arrow.0) && circle.contains(&arrow.1);
        self.names.iter().filter(move |(arrow, _)| inside(arrow))
    }

    fn without(&self, kin: &BTreeSet<Arrow>) -> BTreeSet<Arrow> {
        self.names.keys().filter(|arrow| !kin.contains(*arrow)).cloned().collect()
    }
}

/// The files that one can come to from a file by one arrow or more.
fn reached(arrows: &BTreeSet<Arrow>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(file) = next.pop() {
        let first = (file.clone(), String::new());
        for (_, to) in arrows.range(first..).take_while(|(from, _)| *from == file) {
            if reached.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    reached
}
