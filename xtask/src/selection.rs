//! Which cases of a task are run.

use clap::Args;
use ibverbs_tests::runner::{Case, Filter};

/// A name was given that is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoName(pub String);

/// Sees to it that each text of a filter takes a case of a task's that lists them.
///
/// # Errors
/// [`NoName`], for one that takes none.
pub fn all_named(cases: &[Case], filter: &Filter, task: &str) -> Result<(), NoName> {
    let takes = |text: &String| {
        let alone = Filter { parts: vec![text.clone()], exact: filter.exact };
        cases.iter().any(|case| alone.takes(&case.name))
    };
    match filter.parts.iter().find(|text| !takes(text)) {
        Some(text) => Err(NoName(format!("{text:?} names nothing; {task} --list has the names"))),
        None => Ok(()),
    }
}

/// What the tasks take that run cases.
#[derive(Debug, Args)]
pub struct Selection {
    /// Run only cases with TEXT in their name; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Take --only for whole names
    #[arg(long, requires = "only")]
    exact: bool,
}

impl Selection {
    /// What takes the cases that are wanted.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter { parts: self.only.clone(), exact: self.exact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_takes_nothing_is_told() {
        let cases = ["a/one", "b/two"].map(|name| Case::new(name, &[], |_| Ok(())));
        let named = |parts: &[&str], exact| {
            let parts = parts.iter().map(|&part| part.to_owned()).collect();
            all_named(&cases, &Filter { parts, exact }, "it")
        };
        assert!(named(&[], false).is_ok());
        assert!(named(&["one", "b/"], false).is_ok());
        assert!(named(&["b/two"], true).is_ok());
        assert!(named(&["b/"], true).is_err());
        let told = named(&["one", "three"], false).unwrap_err().to_string();
        assert_eq!(told, "\"three\" names nothing; it --list has the names");
    }
}
