//! `docs/cm.md` and the crate agree: each requirement is met somewhere and shown by some test.

use trial::requirements::Page;

const PAGE: Page =
    Page { root: env!("CARGO_MANIFEST_DIR"), document: "../docs/cm.md", kinds: &[("CM", 41)] };

#[test]
fn requirements_are_numbered_from_one_without_a_hole_and_name_their_chapters() {
    assert_eq!(PAGE.is_in_order(), Ok(()));
}

#[test]
fn every_requirement_is_met_in_code_and_shown_by_a_test_and_no_other_is_cited() {
    assert_eq!(PAGE.is_met(), Ok(()));
}
