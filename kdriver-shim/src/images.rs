//! The images of cards: which one a card has, what it was given, and what it takes.

use std::time::{SystemTime, UNIX_EPOCH};

use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::soft::{Logic, SoftImage};
use bitstreams::{EngineKind, Manifest};

pub mod record;
pub mod store;

use record::{ImageName, MAX_NAME, Record};
use store::Store;

/// What is said of a card without an image that is known.
pub const AGAIN: &str = "it needs to be flashed again";

/// The seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The name by which an image is known.
#[must_use]
pub fn name_of(name: &str, image: &SoftImage, bytes: &[u8]) -> ImageName {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    ImageName {
        name: name.get(..end.unwrap_or(0)).unwrap_or_default().to_owned(),
        sha256: Sha256::of(bytes).to_string(),
        bytes: bytes.len() as u64,
        logic: image.logic().iter().map(|logic| logic.name().to_owned()).collect(),
        vfpga: image.alone(),
    }
}

/// The image that a software card comes with, by its manifest, and its bytes.
#[must_use]
pub fn initial(manifest: &Manifest) -> Option<(ImageName, Vec<u8>)> {
    let logic = match manifest.engine {
        EngineKind::Vqe => Logic::Vqe,
        EngineKind::Stock => Logic::Stock,
    };
    let image = SoftImage::new(vec![logic; manifest.regions?.into()]).ok()?;
    let bytes = image.to_bytes();
    Some((name_of(&manifest.name, &image, &bytes), bytes))
}

/// What bytes are, if a software card takes them.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn accept(bytes: &[u8]) -> Result<SoftImage, String> {
    let image = match Image::parse(bytes)? {
        Image::Soft(image) => image,
        other => {
            return Err(format!(
                "it is {}, and the card is a software card; `balboa image make` makes its images",
                other.describe()
            ));
        }
    };
    if image.alone().is_none() && softcard::fits(&image).is_none() {
        return Err(format!(
            "it has logic for {} vFPGAs, and a software card's shell has room for {}",
            image.logic().len(),
            softcard::WINDOWS
        ));
    }
    Ok(image)
}

/// What the driver has to know of an image.
///
/// # Errors
/// When a software card's shell has no room for it, or it is of one vFPGA alone and the card has other logic.
pub fn manifest(image: &SoftImage, name: &str, like: &Manifest) -> Result<Manifest, String> {
    // It has the same logic in all of them.
    let engine = image.logic().first().copied().map(engine_of).unwrap_or_default();
    if let Some(vfpga) = image.alone() {
        return match engine == like.engine {
            true => Ok(like.clone()),
            false => Err(format!(
                "it is of vFPGA {vfpga} alone, and wants another network than the card has; load an image of the whole card"
            )),
        };
    }
    let (_, count) = softcard::fits(image).ok_or("it does not fit")?;
    Ok(Manifest { name: name.to_owned(), map: like.map, engine, regions: Some(count) })
}

fn engine_of(logic: Logic) -> EngineKind {
    match logic {
        Logic::Vqe => EngineKind::Vqe,
        Logic::Stock => EngineKind::Stock,
    }
}

/// What is known of a card that had images before.
pub struct Known {
    /// What it has, and in how many vFPGAs; `None` where that is not known, or is not kept.
    pub holds: Option<(softcard::Image, u8)>,
    /// The manifest of that, or what it would have without a record.
    pub manifest: Manifest,
    /// Its record.
    pub record: Record,
}

/// What the record of the card at a place says. `None` where there is none.
#[must_use]
pub fn restored(store: &Store, location: &str, like: &Manifest) -> Option<Known> {
    let without = |record: Record| Known { holds: None, manifest: like.clone(), record };
    let mut record = match store.record(location) {
        Ok(None) => return None,
        Ok(Some(record)) => record,
        Err(why) => return Some(without(Record::unknown(format!("its record: {why}")))),
    };
    if record.writing.is_some() {
        record.fail(now(), "balboad ended while the image was on its way", true);
        if let Err(error) = store.save(location, &record) {
            log::error!("{location}: its record cannot be written: {error}");
        }
    }
    let Some(current) = record.current.clone() else { return Some(without(record)) };
    let image = store.image(&current.sha256, shim_abi::MAX_IMAGE);
    let image = image.and_then(|bytes| accept(&bytes));
    let found = image.and_then(|image| {
        let manifest = manifest(&image, &current.name, like)?;
        Ok((softcard::fits(&image).ok_or("it does not fit")?, manifest))
    });
    match found {
        Ok((holds, manifest)) => Some(Known { holds: Some(holds), manifest, record }),
        Err(why) => {
            record.needs = Some(format!("its image {}: {why}", current.name));
            record.current = None;
            Some(without(record))
        }
    }
}
