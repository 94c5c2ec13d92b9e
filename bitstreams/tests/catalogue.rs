//! The manifests of `catalogue/`: each is whole, and says no more than is known.

#![allow(missing_docs, reason = "a test")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use bitstreams::soft::{Logic, SoftImage};
use bitstreams::{EngineKind, Entry};

fn catalogue() -> Vec<(PathBuf, Entry)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("catalogue");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let entry = Entry::parse(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        (path, entry)
    };
    files.map(read).collect()
}

#[test]
fn every_manifest_is_whole_and_named_as_its_file() {
    for (path, Entry { manifest, details }) in catalogue() {
        assert_eq!(path.file_stem().unwrap().to_str(), Some(manifest.name.as_str()));
        assert_eq!(path.extension().unwrap(), "toml");
        assert!(details.board.is_some() && manifest.regions.is_some(), "{}", manifest.name);
        assert!(!details.files.is_empty(), "{}", manifest.name);
    }
}

#[test]
fn the_boards_of_the_published_shell_and_the_software_card_are_there() {
    let boards: BTreeSet<_> =
        catalogue().into_iter().filter_map(|(_, entry)| entry.details.board).collect();
    assert_eq!(boards, ["soft", "u250", "u280", "u55c", "v80"].map(str::to_owned).into());
}

#[test]
fn what_nobody_has_tried_is_not_called_verified() {
    for (_, Entry { manifest, details }) in catalogue() {
        let soft = details.board.as_deref() == Some("soft");
        assert_eq!(details.verified, soft, "{}", manifest.name);
        assert_eq!(manifest.engine == EngineKind::Vqe, soft, "{}", manifest.name);
        assert!(soft || details.source.is_some(), "{}", manifest.name);
    }
}

#[test]
fn the_software_cards_image_is_the_one_that_is_made_here() {
    let all = catalogue();
    let (_, entry) = all.iter().find(|(_, entry)| entry.manifest.name == "soft-vqe").unwrap();
    let bytes = SoftImage::new(vec![Logic::Vqe]).unwrap().to_bytes();
    for file in &entry.details.files {
        entry.details.check_file(file, entry.manifest.regions, &bytes).unwrap();
    }
}
