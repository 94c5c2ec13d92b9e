//! The selection of a task's cases.

use clap::Args;
use harness::runner::{Case, Filter};

/// A name was given that is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoName(pub String);

/// Sees to it that each text of a filter takes one of the names; `list` is the command that lists them, where there is one.
///
/// # Errors
/// [`NoName`], for a text that takes none.
pub fn all_named<T: AsRef<str>>(
    names: &[T],
    filter: &Filter,
    list: Option<&str>,
) -> Result<(), NoName> {
    let takes = |text: &String| {
        let alone = Filter { parts: vec![text.clone()], exact: filter.exact };
        names.iter().any(|name| alone.takes(name.as_ref()))
    };
    let Some(text) = filter.parts.iter().find(|text| !takes(text)) else { return Ok(()) };
    let told = match list {
        Some(list) => format!("{list} has the names"),
        None => {
            let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            format!("there are {}", names.join(", "))
        }
    };
    Err(NoName(format!("{text:?} names nothing; {told}")))
}

/// The names of cases.
#[must_use]
pub fn names(cases: &[Case]) -> Vec<&str> {
    cases.iter().map(|case| case.name.as_str()).collect()
}

/// The options by which tasks select cases.
#[derive(Debug, Args)]
pub struct Selection {
    /// Run only cases with TEXT in their name; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Match --only with whole names only
    #[arg(long, requires = "only")]
    exact: bool,
}

impl Selection {
    /// The filter that takes the wanted cases.
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
        let told = |parts: &[&str], exact, list| {
            let parts = parts.iter().map(|&part| part.to_owned()).collect();
            all_named(&names(&cases), &Filter { parts, exact }, list)
        };
        let named = |parts: &[&str], exact| told(parts, exact, Some("it --list"));
        assert!(named(&[], false).is_ok());
        assert!(named(&["one", "b/"], false).is_ok());
        assert!(named(&["b/two"], true).is_ok());
        assert!(named(&["b/"], true).is_err());
        let wrong = named(&["one", "three"], false).unwrap_err().to_string();
        assert_eq!(wrong, "\"three\" names nothing; it --list has the names");
        let wrong = told(&["three"], false, None).unwrap_err().to_string();
        assert_eq!(wrong, "\"three\" names nothing; there are a/one, b/two");
    }
}
