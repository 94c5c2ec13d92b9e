//! Which cases of a task are run.

use clap::Args;
use ibverbs_tests::runner::Filter;

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
