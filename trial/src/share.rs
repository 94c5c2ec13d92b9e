//! The part of much that a test tries.

/// One of so many of its inputs, places or moments is tried by a test that has very many: all, or as many less as
/// `TEST_SHARE` says. The default run of the tests sets that.
///
/// # Panics
/// If `TEST_SHARE` is no number above 0.
#[must_use]
pub fn share() -> usize {
    let Ok(text) = std::env::var("TEST_SHARE") else { return 1 };
    let share = text.parse().ok().filter(|share| *share > 0);
    share.unwrap_or_else(|| panic!("TEST_SHARE={text} is no number above 0"))
}
