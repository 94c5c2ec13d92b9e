//! Bitstreams and images of cards: their files, their manifests, and their signatures.
//!
//! Nothing here reads more than the bytes it is given, but for [`Manifest::read`] and the password
//! of a secret key. Files are hostile: a file that is no image is refused by one sentence.
//!
//! | module | content |
//! |---|---|
//! | [`image`] | the kind of a file, and its part |
//! | [`bitstream`] | `.bit` and `.bin` |
//! | [`pdi`] | `.pdi` |
//! | [`soft`] | images of software cards |
//! | [`shell`] | shells of FPGAs, on their way into cards |
//! | [`model`] | bitstreams of software cards that play FPGAs |
//! | [`part`] | devices and their IDCODEs |
//! | [`details`] | the entries of a manifest that balboad does not need |
//! | [`signature`] | ed25519, by minisign's files |
//! | [`digest`] | SHA-256 |

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests may fail"
    )
)]

pub mod bitstream;
mod bytes;
pub mod details;
pub mod digest;
pub mod image;
mod manifest;
pub mod model;
pub mod part;
pub mod pdi;
pub mod shell;
pub mod signature;
pub mod soft;

pub use details::Mends;
pub use manifest::{EngineKind, Entry, Error, Manifest, MapName, sentence_of};
