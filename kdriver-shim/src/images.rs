//! The images of cards: the present one, the ones that it was given, and the kind that it takes.

use std::sync::Arc;
use std::thread::Builder;
use std::time::{SystemTime, UNIX_EPOCH};

use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::soft::{Logic, SoftImage};
use bitstreams::{EngineKind, Entry, Manifest, Mends, model};
use card_driver::backend::Takes;
use card_driver::soft::SoftCard;

pub mod examiner;
pub mod record;
pub mod store;

use record::{ImageName, MAX_NAME, Record};
use store::Store;

/// The message about a card without a known image.
pub const AGAIN: &str = "it needs to be flashed again";

/// The seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An image that a card takes, with the driver's description of it.
#[derive(Debug)]
pub struct Accepted {
    /// Its name.
    pub name: ImageName,
    /// The card's description after loading.
    pub manifest: Manifest,
    /// The file.
    pub bytes: Arc<Vec<u8>>,
}

/// A file and its digest.
#[derive(Debug)]
pub struct Digested {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its digest.
    pub sha256: Sha256,
}

/// Frees an image by a thread of its own: for the kernel to take 128 MiB back costs more than others are to wait.
pub fn let_go(image: impl Send + 'static) {
    // Where there can be no thread it goes here.
    let _ = Builder::new().name("images".into()).spawn(move || drop(image));
}

/// A file that a card takes which is like that, by the text of its manifest.
///
/// # Errors
/// The fault, and the mend; so all of these.
pub fn accept_for(
    takes: Takes,
    name: &str,
    file: Digested,
    text: &str,
    like: &Manifest,
) -> Result<Accepted, String> {
    match takes {
        Takes::SoftImages => accept_soft(name, file, like),
        Takes::Bitstreams => accept_shell(name, file, text, like),
    }
}

/// A file for a card that takes software cards' images, if it is one.
fn accept_soft(name: &str, file: Digested, like: &Manifest) -> Result<Accepted, String> {
    let image = accept(&file.bytes)?;
    let name = name_of(name, &image, &file);
    let manifest = manifest(&image, &name.name, like)?;
    Ok(Accepted { manifest, name, bytes: Arc::new(file.bytes) })
}

/// A file for a card with a shell, and the text of its manifest, if it is one for a card that is like that.
fn accept_shell(
    name: &str,
    Digested { bytes, sha256 }: Digested,
    text: &str,
    like: &Manifest,
) -> Result<Accepted, String> {
    if text.is_empty() {
        return Err(
            "the card takes bitstreams, and this comes without a manifest; say --manifest FILE"
                .into(),
        );
    }
    let entry = Entry::parse(text).map_err(|why| format!("its manifest: {why}"))?;
    entry.check_shell(&bytes, sha256, like.part).map_err(|why| why.to_string())?;
    let manifest = entry.manifest;
    let logic = manifest.stands().iter().map(ToString::to_string).collect();
    let (sha256, length) = (sha256.to_string(), bytes.len() as u64);
    let (vfpga, text) = (None, Some(text.to_owned()));
    let name =
        ImageName { name: line_of(name), sha256, bytes: length, logic, vfpga, manifest: text };
    Ok(Accepted { name, manifest, bytes: Arc::new(bytes) })
}

/// A name as it is kept: one line that is not too long.
fn line_of(name: &str) -> String {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

/// The name by which an image is known.
fn name_of(name: &str, image: &SoftImage, file: &Digested) -> ImageName {
    ImageName {
        name: line_of(name),
        sha256: file.sha256.to_string(),
        bytes: file.bytes.len() as u64,
        logic: image.logic().iter().map(|logic| logic.name().to_owned()).collect(),
        vfpga: image.alone(),
        manifest: None,
    }
}

/// The image that a software card comes with, by its manifest, and its bytes.
#[must_use]
pub fn initial(manifest: &Manifest) -> Option<(ImageName, Vec<u8>)> {
    let image = SoftImage::new(manifest.stands()).ok()?;
    let bytes = image.to_bytes();
    let file = Digested { sha256: Sha256::of(&bytes), bytes };
    Some((name_of(&manifest.name, &image, &file), file.bytes))
}

/// Reads an image, if a software card takes it.
///
/// # Errors
/// The fault, and the mend.
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
    let here = |logic: &&Logic| softcard::logic::is_known(**logic);
    if let Some(other) = image.logic().iter().find(|logic| !here(logic)) {
        return Err(format!(
            "it has {other}, which is not in this balboad; it has {}",
            softcard::logic::names().join(", ")
        ));
    }
    if image.alone().is_none() && softcard::fits(&image).is_none() {
        return Err(format!(
            "it has logic for {} vFPGAs, and a software card's shell has room for {}",
            image.logic().len(),
            softcard::WINDOWS
        ));
    }
    Ok(image)
}

/// The manifest of an image, for the driver.
///
/// # Errors
/// When a software card's shell has no room for it, or it is of one vFPGA alone and the card has other logic.
pub fn manifest(image: &SoftImage, name: &str, like: &Manifest) -> Result<Manifest, String> {
    // It has one network for all of them.
    let engine = image.logic().first().copied().map(EngineKind::from).unwrap_or_default();
    if !image.logic().contains(&engine.into()) {
        return Err(match image.alone() {
            None => "it has no engine that balboad drives; load one that has vqe, too".into(),
            Some(vfpga) => format!(
                "it is of vFPGA {vfpga} alone, and has no engine that balboad drives; load an image of the whole card that has vqe, too"
            ),
        });
    }
    if let Some(vfpga) = image.alone() {
        return match engine == like.engine {
            true => Ok(like.clone()),
            false => Err(format!(
                "it is of vFPGA {vfpga} alone, and wants another network than the card has; load an image of the whole card"
            )),
        };
    }
    let (_, count) = softcard::fits(image).ok_or("it does not fit")?;
    let (name, regions) = (name.to_owned(), Some(count));
    let is_engine = |logic: &Logic| *logic == Logic::from(engine);
    let logic = match image.logic().iter().all(is_engine) {
        true => Vec::new(),
        false => image.logic().to_vec(),
    };
    // A software card loads the published image as the model with its shell mended.
    let mends = Mends::ALL;
    Ok(Manifest { name, map: like.map, engine, regions, logic, mends, ..Manifest::default() })
}

/// The record of a card that had images before.
pub struct Known {
    /// Its image and number of vFPGAs; `None` if they are unknown, or not kept.
    pub holds: Option<(softcard::Image, u8)>,
    /// The manifest of that image, or of the card without a record.
    pub manifest: Manifest,
    /// Its record.
    pub record: Record,
}

impl Known {
    /// The software card with this image, otherwise like another one.
    #[must_use]
    pub fn card(&self, like: &SoftCard) -> SoftCard {
        // A card that was given no image has the one that it came with, if that is known.
        let came = (like.image, if self.record.needs.is_some() { Some(0) } else { like.vfpgas });
        let (image, vfpgas) = self.holds.map_or(came, |(image, count)| (image, Some(count)));
        SoftCard { image, vfpgas, ..like.clone() }
    }
}

/// Reads the record of the card at a place, which takes that kind of image. `None` if there is none, or one of a
/// card of the other kind that was there before; and for an FPGA if the record cannot be read, for an FPGA describes
/// its own image.
#[must_use]
pub fn restored(store: &Store, location: &str, like: &Manifest, takes: Takes) -> Option<Known> {
    let without = |record: Record| Known { holds: None, manifest: like.clone(), record };
    let mut record = match (store.record(location), takes) {
        (Ok(None), _) => return None,
        (Ok(Some(record)), _) => record,
        (Err(why), Takes::SoftImages) => {
            return Some(without(Record::unknown(format!("its record: {why}"))));
        }
        (Err(why), Takes::Bitstreams) => {
            log::error!("{location}: its record of images is not used: {why}");
            return None;
        }
    };
    if record.takes().is_some_and(|kind| kind != takes) {
        log::warn!("{location}: the record of images there is of a card of another kind");
        return None;
    }
    if record.writing.is_some() {
        record.fail(now(), "balboad ended while the image was on its way", true);
        if let Err(error) = store.save(location, &record) {
            log::error!("{location}: its record cannot be written: {error}");
        }
    }
    let Some(current) = record.current.clone() else { return Some(without(record)) };
    let image = store.image(&current.sha256, shim_abi::MAX_IMAGE);
    match known(&current, image, like) {
        Ok((holds, manifest)) => Some(Known { holds, manifest, record }),
        Err(why) => {
            record.needs = Some(format!("its image {}: {why}", current.name));
            record.current = None;
            Some(without(record))
        }
    }
}

/// The image of a record, if it is a software card's, and its manifest.
fn known(
    current: &ImageName,
    bytes: Result<Vec<u8>, String>,
    like: &Manifest,
) -> Result<(Option<(softcard::Image, u8)>, Manifest), String> {
    let Some(text) = &current.manifest else {
        let image = accept(&bytes?)?;
        let manifest = manifest(&image, &current.name, like)?;
        return Ok((Some(softcard::fits(&image).ok_or("it does not fit")?), manifest));
    };
    let own = Entry::parse(text)?.manifest;
    // A card that names no part was checked when its record was written.
    if let (Some(there), Some(part)) = (like.part, own.part.filter(|part| Some(*part) != like.part))
    {
        return Err(format!("it is for {}, and the card has {}", part.name, there.name));
    }
    // An FPGA has it, whether its bytes are kept or not, which are for going back to it alone.
    let image = bytes.ok().and_then(|bytes| model::image_of(&bytes));
    Ok((image.as_ref().and_then(softcard::fits), own))
}
