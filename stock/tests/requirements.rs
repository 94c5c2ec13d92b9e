//! `docs/stock-card.md` and the crate agree: each thing that the page lists is done somewhere and shown by some test.

use trial::requirements::Page;

const PAGE: Page = Page {
    root: env!("CARGO_MANIFEST_DIR"),
    document: "../docs/stock-card.md",
    kinds: &[("STOCK", 43)],
};

#[test]
fn what_is_listed_is_numbered_from_one_without_a_hole_and_names_its_sources() {
    assert_eq!(PAGE.is_in_order(), Ok(()));
}

#[test]
fn everything_listed_is_done_in_code_and_shown_by_a_test_and_nothing_else_is_cited() {
    assert_eq!(PAGE.is_met(), Ok(()));
}
