//! Why a file is no service.

use crate::{interface, limit};

/// The longest text of a file's, or of the interpreter's, in a sentence.
const TEXT: usize = 160;

/// A text of a file's, or of the interpreter's, in a line and not too long.
pub(crate) fn short(text: impl ToString) -> String {
    let text = text.to_string();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(TEXT).collect()
}

/// Why a file is no service; each is a sentence about the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is too large.
    #[error("the module has {0} bytes; {most} are the most", most = limit::MODULE)]
    Large(usize),
    /// It is no valid module.
    #[error("it is no module that can be executed: {0}")]
    Invalid(String),
    /// It wants something of its surroundings.
    #[error("the module imports {module:?} {name:?}; a service imports nothing")]
    Import {
        /// The first name of the import.
        module: String,
        /// The second.
        name: String,
    },
    /// It has a function that runs by itself.
    #[error("the module has a start function; a service has none, for nothing calls it")]
    Start,
    /// It does not export something.
    #[error("the module exports no {0}; docs/services-wasm.md lists the exports of a service")]
    Missing(&'static str),
    /// It exports something of another type.
    #[error("the module exports {name} of another type than {wanted}")]
    Type {
        /// The export.
        name: String,
        /// The type that it has in the interface.
        wanted: &'static str,
    },
    /// It exports something that the interface does not have.
    #[error(
        "the module exports {0:?}, which version {version} of the interface does not have; take it out, or name it otherwise than {prefix}…",
        version = interface::VERSION, prefix = interface::PREFIX
    )]
    Unknown(String),
    /// It is for another version of the interface.
    #[error(
        "the module is for version {0} of the interface, and this balboad has version {ours}; build it for that",
        ours = interface::VERSION
    )]
    Version(i32),
    /// It has too much memory.
    #[error(
        "the module has {0} pages of memory; {most} are the most: link it with a smaller stack (-zstack-size=8192)", most = limit::PAGES
    )]
    Memory(u64),
    /// It does not tell what it is.
    #[error("{function} of the module did not answer: {why}")]
    Silent {
        /// The function.
        function: &'static str,
        /// Why not.
        why: String,
    },
    /// The description or the room is not in its memory.
    #[error("{0} of the module names a place that is not in its memory")]
    Place(&'static str),
    /// A field of the description is not right.
    #[error("the description of the module: {0}")]
    Description(String),
}
