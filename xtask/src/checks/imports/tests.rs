//! Tests of the search for circles, on small trees of files.

use std::fs;

use super::*;

/// The circles of a library of these files, each as its files' names.
fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let home = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut graph = Graph::default();
    let read = source::read(home.path(), Path::new("src/lib.rs")).unwrap();
    read.into_iter().for_each(|it| graph.add(it));
    graph.circles().into_iter().map(|circle| circle.into_iter().collect()).collect()
}

const TWO: (&str, &str) = ("src/lib.rs", "mod a; mod b; pub use a::A;");

#[test]
fn two_files_that_import_each_other_are_a_circle() {
    let both = vec![vec!["src/a.rs".to_owned(), "src/b.rs".to_owned()]];
    let b = ("src/b.rs", "pub struct B; fn f() { let _ = crate::a::A; }");
    for a in [
        "use crate::b::B; pub struct A;",
        "use super::{b::{self, B}}; pub struct A;",
        "pub struct A; fn g() { assert!(matches!(x, crate::b::B)) }",
        "pub struct A; impl A { fn h() { use crate::b::*; } }",
    ] {
        assert_eq!(circles(&[TWO, ("src/a.rs", a), b]), both, "{a}");
    }
    let none = ("src/a.rs", "pub struct A; struct B;");
    assert_eq!(circles(&[TWO, none, b]), Vec::<Vec<String>>::new());
}

#[test]
fn a_name_is_followed_through_what_exports_it_again() {
    let a = ("src/a.rs", "use crate::b::B; pub struct A;");
    let b = ("src/b.rs", "pub struct B(crate::A);");
    assert_eq!(circles(&[TWO, a, b]).len(), 1);
    let elsewhere = ("src/lib.rs", "mod a; mod b; mod c; pub use c::A;");
    assert_eq!(circles(&[elsewhere, a, b, ("src/c.rs", "pub struct A;")]).len(), 0);
    let by_all = ("src/lib.rs", "mod a; mod b; pub use a::*;");
    assert_eq!(circles(&[by_all, a, b]).len(), 1);
}

#[test]
fn a_module_and_its_children_may_import_each_other() {
    let root = ("src/lib.rs", "mod a; mod x;");
    let a = ("src/a.rs", "mod one; mod two; use one::One; pub struct A;");
    let one = ("src/a/one.rs", "use super::A; pub struct One; fn f() { super::two::g() }");
    let two = ("src/a/two.rs", "pub fn g() {} struct Two(super::A);");
    let x = ("src/x.rs", "pub struct X;");
    assert_eq!(circles(&[root, a, one, two, x]).len(), 0);
    let by_child = ("src/x.rs", "pub struct X(crate::a::two::T);");
    let back = ("src/a.rs", "mod one; pub mod two; use crate::x::X; pub struct A;");
    assert_eq!(circles(&[root, back, one, two, by_child]).len(), 1, "x, two, a");
    let siblings = ("src/a/two.rs", "use super::one::One; pub fn g() {}");
    assert_eq!(circles(&[root, a, one, siblings, x]).len(), 1, "one, two");
}

#[test]
fn tests_do_not_count() {
    let a = ("src/a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }");
    let b = ("src/b.rs", "use crate::a::A; pub struct B; #[cfg(all(test, unix))] mod t;");
    assert_eq!(circles(&[TWO, a, b]).len(), 0);
}
