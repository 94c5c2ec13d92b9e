//! Comparisons with the crate that need a C compiler alone.

use super::{compare, generated};

#[test]
fn the_generated_files_are_what_the_crate_says() {
    if let Err(error) = generated().unwrap().check() {
        panic!("{error}");
    }
}

#[test]
fn a_c_program_sees_every_entry_as_the_crate_does() {
    if let Err(error) = compare::c_header("cc", "c11") {
        panic!("{error:#}");
    }
}
