//! The pages of requirements and the crate agree: each requirement is met somewhere and shown by some test.

use trial::requirements::Page;

const PAGES: [Page; 2] = [
    Page {
        root: env!("CARGO_MANIFEST_DIR"),
        document: "../docs/transport-reliable.md",
        kinds: &[("RC", 107), ("XRC", 9)],
    },
    Page {
        root: env!("CARGO_MANIFEST_DIR"),
        document: "../docs/transport-unreliable.md",
        kinds: &[("UC", 15), ("UD", 24)],
    },
];

#[test]
fn requirements_are_numbered_from_one_without_a_hole_and_name_their_chapters() {
    assert_eq!(PAGES.map(|page| page.is_in_order()), [Ok(()), Ok(())]);
}

#[test]
fn every_requirement_is_met_in_code_and_shown_by_a_test_and_no_other_is_cited() {
    assert_eq!(PAGES.map(|page| page.is_met()), [Ok(()), Ok(())]);
}
