//! Files of images, manifests and signatures: taken whole, or refused by one sentence.

use arbitrary::Unstructured;
use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::model::{self, Configuration};
use bitstreams::part::{MODEL, PARTS};
use bitstreams::signature::{PublicKey, Signature};
use bitstreams::soft::{Logic, Reader, Scope, SoftImage};
use bitstreams::{Entry, Manifest};
use kdriver_shim::images::record::{Deed, ImageName, Record};

use crate::Outcome;

/// Words of a bitstream's packets: writes of registers, and their values.
const WORDS: [u32; 12] = [
    0xffff_ffff,
    0xaa99_5566,
    0x2000_0000,
    0x3001_8001,
    0x04b7_d093,
    0x3000_8001,
    5,
    13,
    0x3000_4000,
    0x5000_0003,
    0x3000_0001,
    0x3001_2001,
];

/// Lines that manifests are made of.
const LINES: [&str; 12] = [
    "format = 1",
    "name = \"x\"",
    "shell-map = \"since-2026\"",
    "regions = 2",
    "board = \"u55c\"",
    "board = \"soft\"",
    "part = \"xcu55c-x\"",
    "idcode = 0x04b7d093",
    "clocks = { shell = 250 }",
    "[[files]]\nname = \"a\"\nkind = \"shell\"",
    "[[files]]\nname = \"b\"\nkind = \"vfpga\"\nregion = 1",
    "[source]\nurl = \"https://x\"",
];

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    match u.int_in_range(0..=6)? {
        6 => shell(u),
        5 => record(u),
        0 => soft(u),
        1 => packets(u),
        2 => device_image(u),
        3 => manifest(u),
        _ => signature(u),
    }
}

/// The record of a card's images, with changed bytes.
fn record(u: &mut Unstructured<'_>) -> Outcome {
    let image = |vfpga| ImageName {
        name: "x".into(),
        sha256: Sha256::of(b"x").to_string(),
        bytes: 1,
        logic: vec!["vqe".into()],
        vfpga,
        manifest: None,
    };
    let mut record = Record::new(Some(image(None)));
    for _ in 0..u.int_in_range(0..=4)? {
        match u.int_in_range(0..=3)? {
            0 => record.begin(Deed::Flash, image(u.arbitrary()?)),
            1 => record.succeed(u.arbitrary()?, u.arbitrary()?),
            2 => record.fail(u.arbitrary()?, u.arbitrary()?, true),
            _ => record.fail(u.arbitrary()?, u.arbitrary()?, false),
        }
    }
    assert_eq!(Record::parse(&record.text()), Ok(record.clone()), "a record does not round trip");
    let mut bytes = record.text().into_bytes();
    for _ in 0..u.int_in_range(1..=3)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    if let Ok(Ok(record)) = std::str::from_utf8(&bytes).map(Record::parse) {
        assert_eq!(Record::parse(&record.text()), Ok(record), "what was taken is not written so");
    }
    Ok(())
}

/// An image of a software card with changed bytes and any length.
fn soft(u: &mut Unstructured<'_>) -> Outcome {
    let made = match u.arbitrary()? {
        true => SoftImage::new(vec![Logic::Vqe; u.int_in_range(1..=15)?]),
        false => SoftImage::of_one(u.int_in_range(0..=14)?, Logic::Vqe),
    };
    let made = made.expect("so many there are");
    let made = match u.arbitrary()? {
        true => made.filled_to(u.int_in_range(289..=1000)?).expect("it has no more bytes"),
        false => made,
    };
    let mut bytes = made.to_bytes();
    assert_eq!(SoftImage::parse(&bytes), Ok(made), "an image does not round trip");
    if u.ratio(1, 4)? {
        bytes.truncate(u.choose_index(bytes.len())?);
    }
    for _ in 0..u.int_in_range(0..=3)? {
        if let Some(byte) = bytes.len().checked_sub(1).map(|last| u.int_in_range(0..=last)) {
            bytes[byte?] = u.arbitrary()?;
        }
    }
    // A digest that fits the present bytes, to get behind it.
    if bytes.len() >= 48 && u.arbitrary()? {
        let digest = Sha256::of(&bytes[48..]);
        bytes[16..48].copy_from_slice(&digest.0);
    }
    let parsed = SoftImage::parse(&bytes);
    let mut reader = Reader::default();
    bytes.chunks(u.int_in_range(1..=64)?).for_each(|piece| reader.feed(piece));
    let scope = reader.scope();
    assert_eq!(reader.finish(), parsed, "in pieces it is another file");
    if let Ok(image) = &parsed {
        assert_eq!(scope, image.alone().map_or(Scope::Card, Scope::One));
    }
    if let Ok(image) = parsed {
        assert_eq!(image.to_bytes(), bytes, "another file is the same image");
    }
    taken(&bytes)
}

/// A bitstream of words that packets have, with a header or without.
fn packets(u: &mut Unstructured<'_>) -> Outcome {
    let mut words = Vec::new();
    if u.ratio(7, 8)? {
        words.extend(0xaa99_5566_u32.to_be_bytes());
    }
    for _ in 0..u.int_in_range(0..=64)? {
        let word: u32 = if u.ratio(7, 8)? { *u.choose(&WORDS)? } else { u.arbitrary()? };
        words.extend(word.to_be_bytes());
    }
    words.truncate(words.len().saturating_sub(u.int_in_range(0..=3)?));
    let mut bytes = Vec::new();
    if u.arbitrary()? {
        bytes.extend([0, 9, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0x0f, 0xf0, 0, 0, 1]);
        for key in *b"abcd" {
            let length = u.int_in_range(0..=12)?;
            bytes.push(key);
            bytes.extend([0, length]);
            bytes.extend(u.bytes(usize::from(length))?);
        }
        bytes.push(b'e');
        let off: i8 = if u.ratio(7, 8)? { 0 } else { u.arbitrary()? };
        bytes.extend((words.len() as u32).wrapping_add_signed(off.into()).to_be_bytes());
    }
    bytes.extend(words);
    configured(u, &bytes)?;
    taken(&bytes)
}

/// A bitstream of the model's, with changed bytes and any length, in any pieces.
fn shell(u: &mut Unstructured<'_>) -> Outcome {
    let image =
        SoftImage::new(vec![Logic::Vqe; u.int_in_range(1..=15)?]).expect("so many there are");
    let mut bytes = model::make(&image).expect("it is of a whole card");
    let made = model::image_of(&bytes).expect("a bitstream does not round trip");
    assert_eq!(made.logic(), image.logic(), "a bitstream stands for something else");
    if u.ratio(1, 4)? {
        bytes.truncate(u.choose_index(bytes.len())?);
    }
    for _ in 0..u.int_in_range(0..=3)? {
        if let Some(byte) = bytes.len().checked_sub(1).map(|last| u.int_in_range(0..=last)) {
            bytes[byte?] = u.arbitrary()?;
        }
    }
    configured(u, &bytes)?;
    taken(&bytes)
}

/// A file in pieces is taken as a whole one.
fn configured(u: &mut Unstructured<'_>, bytes: &[u8]) -> Outcome {
    let mut logic = Configuration::new(&MODEL);
    bytes.chunks(u.int_in_range(1..=64)?).for_each(|piece| logic.feed(piece));
    let written = logic.has_written();
    let image = logic.finish();
    assert!(written || image.is_none(), "an image without frames");
    assert_eq!(image, model::image_of(bytes), "in pieces it is another bitstream");
    Ok(())
}

/// A device image whose boot header's checksum is right, and whose table is anywhere.
fn device_image(u: &mut Unstructured<'_>) -> Outcome {
    let mut bytes = vec![0; 0x10 + usize::from(u.arbitrary::<u16>()? % 0x1100)];
    let mut put = |at: usize, word: u32| {
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    };
    let table: u32 = u.int_in_range(0xf00..=0x1100)?;
    let words: u32 = u.arbitrary()?;
    let fields = [(0x10, 0xaa99_5566), (0x14, 0x584c_4e58), (0xc4, table), (0x30, words)];
    let sum = fields.iter().fold(0u32, |sum, (_, word)| sum.wrapping_add(*word));
    fields.into_iter().for_each(|(at, word)| put(at, word));
    put(0xf30, !sum);
    let at = table as usize;
    let kind = *u.choose(&[0x4650_4449, 0x5050_4449, 0])?;
    if at > 0xf30 {
        put(at + 0x28, kind);
        put(at + 0x18, words);
        put(at + 0x7c, !words.wrapping_add(kind));
    }
    taken(&bytes)
}

fn manifest(u: &mut Unstructured<'_>) -> Outcome {
    let mut text = String::new();
    for _ in 0..u.int_in_range(0..=12)? {
        match u.ratio(7, 8)? {
            true => text.push_str(u.choose(&LINES)?),
            false => text.push_str(u.arbitrary()?),
        }
        text.push('\n');
    }
    let entry = Entry::parse(&text);
    let manifest = Manifest::parse(&text);
    assert_eq!(entry.clone().map(|entry| entry.manifest), manifest, "two readings of a manifest");
    match entry {
        Err(why) => one_sentence(&why),
        Ok(entry) => {
            let bytes = u.bytes(u.len().min(64))?;
            for file in &entry.details.files {
                let checked = entry.details.check_file(file, entry.manifest.regions, bytes);
                if let Err(why) = checked {
                    one_sentence(&why);
                }
            }
            if let Err(why) = entry.check_shell(bytes, Sha256::of(bytes), PARTS.first()) {
                one_sentence(&why.to_string());
            }
        }
    }
    Ok(())
}

/// Files of signatures and keys, with lines that are near to theirs.
fn signature(u: &mut Unstructured<'_>) -> Outcome {
    let mut text = String::new();
    for head in ["untrusted comment: ", "RUR", "trusted comment: ", ""] {
        if u.ratio(7, 8)? {
            text.push_str(head);
        }
        let length = *u.choose(&[0, 3, 53, 85, 88, 97, 100])?;
        for _ in 0..length {
            text.push(char::from(*u.choose(b"ABCxyz019+/=")?));
        }
        text.push('\n');
    }
    let key = PublicKey::parse(&text);
    if let Err(why) = &key {
        one_sentence(why);
    }
    match Signature::parse(&text) {
        Err(why) => one_sentence(&why),
        Ok(signature) => {
            let keys: Vec<_> = key.into_iter().map(|key| ((), key)).collect();
            assert_eq!(signature.check(b"image", &keys), None, "a signature out of nothing");
        }
    }
    Ok(())
}

/// Parses a file, and checks its invariants.
fn taken(bytes: &[u8]) -> Outcome {
    match Image::parse(bytes) {
        Err(why) => one_sentence(&why),
        Ok(image) => {
            assert!(!image.describe().is_empty());
            let fits = image.parts().iter().all(|part| match (part.idcode, image.idcode()) {
                (Some(part), Some(image)) => part & 0x0fff_ffff == image & 0x0fff_ffff,
                _ => true,
            });
            assert!(fits, "a part with another IDCODE");
            if let Image::Bitstream(bitstream) = &image {
                assert!(bitstream.frame_bytes <= bytes.len() as u64);
            }
        }
    }
    Ok(())
}

fn one_sentence(why: &str) {
    assert!(!why.is_empty() && why.len() < 2000 && why.lines().count() == 1, "{why:?}");
}
