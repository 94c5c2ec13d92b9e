//! The record of a card's images: the present one, the one before, and the history.
//!
//! A record is written before the card is given anything and behind each end, so that its reader knows the card's
//! image: the one that it names, or, if an image was on its way when the writer died, an unknown one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bitstreams::digest::Sha256;
use card_driver::backend::Takes;
use serde::{Deserialize, Serialize};
use shim_abi::MAX_MANIFEST;

/// Version of the document: another number is not read.
const FORMAT: u32 = 1;
/// Entries in a card's history.
const MOST_EVENTS: usize = 64;
/// Bytes of the longest name.
pub const MAX_NAME: usize = 64;

/// The identity of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageName {
    /// Its name, for people.
    pub name: String,
    /// Its digest, as 64 hexadecimal digits.
    pub sha256: String,
    /// Its bytes.
    pub bytes: u64,
    /// The logic in each vFPGA.
    pub logic: Vec<String>,
    /// The only vFPGA of the image; `None` for a whole card's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vfpga: Option<u8>,
    /// The text of its manifest; `None` for a software card's image, and in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
}

/// An operation on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deed {
    /// An image was flashed.
    Flash,
    /// The image before was put back.
    Rollback,
}

/// An operation, and its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashEvent {
    /// Seconds since 1970 at its end.
    pub at: u64,
    /// The operation.
    pub deed: Deed,
    /// The image.
    pub image: ImageName,
    /// Why it failed; `None` if the card came up with the image.
    pub failed: Option<String>,
    /// Whether the card described itself as before, and was not observed to have taken the image.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unseen: bool,
}

/// An image on its way into the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writing {
    /// The operation.
    pub deed: Deed,
    /// The image.
    pub image: ImageName,
}

/// The images of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    format: u32,
    /// The card's image; `None` if it is unknown.
    pub current: Option<ImageName>,
    /// Whether the card came up with that image without having been observed to have taken it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unseen: bool,
    /// The image before, which a rollback can load.
    pub previous: Option<ImageName>,
    /// The image that balboad is writing.
    pub writing: Option<Writing>,
    /// Why it needs to be flashed again.
    pub needs: Option<String>,
    /// The vFPGAs that need to be flashed again, where the others are well, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vfpgas: BTreeMap<u8, String>,
    /// The operations, the oldest first.
    pub history: Vec<FlashEvent>,
}

fn is_false(it: &bool) -> bool {
    !*it
}

impl Record {
    /// The record of a card without operations.
    #[must_use]
    pub fn new(current: Option<ImageName>) -> Self {
        let (unseen, previous, writing, needs, vfpgas, history) = Default::default();
        Self { format: FORMAT, current, unseen, previous, writing, needs, vfpgas, history }
    }

    /// The record of an unknown card, and why it is unknown.
    #[must_use]
    pub fn unknown(why: String) -> Self {
        Self { needs: Some(why), ..Self::new(None) }
    }

    /// Parses the text of a record.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if record.format != FORMAT {
            return Err(format!(
                "its format is {}, and only {FORMAT} is known here",
                record.format
            ));
        }
        let writing = record.writing.as_ref().map(|writing| &writing.image);
        let past = record.history.iter().map(|event| &event.image);
        let images = record.current.iter().chain(&record.previous).chain(writing).chain(past);
        for image in images {
            image.check()?;
        }
        // One that came with a bitstream of which the bytes are not known may have been given nothing.
        let is_told = record.needs.is_some() || record.writing.is_some();
        if record.current.is_none() && !is_told && record.history.is_empty() {
            return Err("it tells of no image, and not why".into());
        }
        Ok(record)
    }

    /// The record as text.
    #[must_use]
    pub fn text(&self) -> String {
        // Texts, numbers and lists of them always have a JSON form.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        let _ = writeln!(text);
        text
    }

    /// The kind of images that the record's card takes; `None` if the record has no image that shows it.
    #[must_use]
    pub fn takes(&self) -> Option<Takes> {
        let writing = self.writing.as_ref().map(|writing| &writing.image);
        let image = self.current.as_ref().or(self.previous.as_ref()).or(writing)?;
        Some(if image.manifest.is_some() { Takes::Bitstreams } else { Takes::SoftImages })
    }

    /// An image is about to be given to the card.
    pub fn begin(&mut self, deed: Deed, image: ImageName) {
        self.writing = Some(Writing { deed, image });
    }

    /// Records that the card came up with the image; `seen` says whether the card was seen to have taken it.
    pub fn succeed(&mut self, at: u64, seen: bool) {
        let unseen = !seen;
        let Some(Writing { deed, image }) = self.writing.take() else { return };
        if let Some(vfpga) = image.vfpga {
            self.vfpgas.remove(&vfpga);
            return self.note(FlashEvent { at, deed, image, failed: None, unseen });
        }
        let before = self.current.replace(image.clone());
        // Of a card whose image was lost the one before that stays.
        if let Some(before) = before.filter(|before| before.sha256 != image.sha256) {
            self.previous = Some(before);
        }
        (self.needs, self.unseen) = (None, unseen);
        self.vfpgas.clear();
        self.note(FlashEvent { at, deed, image, failed: None, unseen });
    }

    /// Records that the operation failed; `lost` says whether the image of the card, or of the vFPGA, went with it.
    pub fn fail(&mut self, at: u64, why: &str, lost: bool) {
        let Some(Writing { deed, image }) = self.writing.take() else { return };
        match image.vfpga {
            Some(vfpga) if lost => drop(self.vfpgas.insert(vfpga, why.to_owned())),
            None if lost => self.lose(why.to_owned()),
            _ => {}
        }
        self.note(FlashEvent { at, deed, image, failed: Some(why.to_owned()), unseen: false });
    }

    /// Records that the card has lost its image.
    pub fn lose(&mut self, why: String) {
        self.previous = self.current.take().or(self.previous.take());
        (self.needs, self.unseen) = (Some(why), false);
        self.vfpgas.clear();
    }

    /// Records that these vFPGAs have an engine.
    pub fn find(&mut self, vfpgas: &[u8]) {
        self.vfpgas.retain(|vfpga, _| !vfpgas.contains(vfpga));
    }

    fn note(&mut self, mut event: FlashEvent) {
        event.image = event.image.told();
        self.history.push(event);
        let beyond = self.history.len().saturating_sub(MOST_EVENTS);
        self.history.drain(..beyond);
    }

    /// The digests of the images that it may want again.
    pub fn wanted(&self) -> impl Iterator<Item = &str> {
        let writing = self.writing.as_ref().map(|writing| &writing.image);
        let images = self.current.iter().chain(&self.previous).chain(writing);
        images.map(|image| image.sha256.as_str())
    }
}

impl ImageName {
    /// The record for clients.
    #[must_use]
    pub fn told(&self) -> Self {
        Self { manifest: None, ..self.clone() }
    }

    /// Checks the digest, which becomes a file's name, and the texts, which are shown.
    fn check(&self) -> Result<(), String> {
        self.sha256.parse::<Sha256>()?;
        if self.manifest.as_ref().is_some_and(|text| text.len() > MAX_MANIFEST) {
            return Err(format!("a manifest in it has more than {MAX_MANIFEST} bytes"));
        }
        let texts = self.logic.iter().chain([&self.name]);
        match texts
            .into_iter()
            .all(|text| text.len() <= MAX_NAME && !text.contains(char::is_control))
        {
            true => Ok(()),
            false => Err(format!("a name in it is no line of at most {MAX_NAME} bytes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> ImageName {
        let sha256 = Sha256::of(name.as_bytes()).to_string();
        let (logic, vfpga, manifest) = (vec!["vqe".into()], None, None);
        ImageName { name: name.into(), sha256, bytes: 1, logic, vfpga, manifest }
    }

    fn done(record: &mut Record, deed: Deed, name: &str) {
        record.begin(deed, image(name));
        record.succeed(7, true);
    }

    #[test]
    fn the_image_before_is_the_last_that_was_another() {
        let mut record = Record::new(Some(image("a")));
        done(&mut record, Deed::Flash, "b");
        assert_eq!((&record.current, &record.previous), (&Some(image("b")), &Some(image("a"))));
        done(&mut record, Deed::Flash, "b");
        assert_eq!(record.previous, Some(image("a")));
        done(&mut record, Deed::Rollback, "a");
        assert_eq!((&record.current, &record.previous), (&Some(image("a")), &Some(image("b"))));
        assert_eq!(Record::parse(&record.text()), Ok(record));
    }

    #[test]
    fn a_card_whose_image_was_lost_says_so_until_it_has_one() {
        let mut record = Record::new(Some(image("a")));
        record.begin(Deed::Flash, image("b"));
        assert_eq!(record.wanted().count(), 2);
        record.fail(8, "it stood still", true);
        assert_eq!((&record.current, &record.previous), (&None, &Some(image("a"))));
        record.begin(Deed::Flash, image("c"));
        record.fail(9, "it stood still again", true);
        assert_eq!(record.previous, Some(image("a")), "the last that was good");
        assert_eq!(record.needs.as_deref(), Some("it stood still again"));
        done(&mut record, Deed::Rollback, "a");
        assert_eq!((record.needs.clone(), record.history.len()), (None, 3));
        record.begin(Deed::Flash, image("b"));
        record.fail(9, "refused", false);
        assert_eq!((&record.current, record.needs.clone()), (&Some(image("a")), None));
    }

    #[test]
    fn an_image_of_one_vfpga_changes_what_is_known_of_that_alone() {
        let of = |vfpga| ImageName { vfpga: Some(vfpga), ..image("one") };
        let mut record = Record::new(Some(image("a")));
        record.begin(Deed::Flash, of(2));
        record.succeed(7, true);
        assert_eq!((&record.current, &record.previous), (&Some(image("a")), &None));
        for vfpga in [1, 2] {
            record.begin(Deed::Flash, of(vfpga));
            record.fail(8, "spoilt", true);
        }
        assert_eq!((record.needs.clone(), record.vfpgas.len()), (None, 2));
        assert_eq!(Record::parse(&record.text()), Ok(record.clone()));
        record.find(&[0, 1]);
        assert_eq!(record.vfpgas.keys().collect::<Vec<_>>(), [&2]);
        record.begin(Deed::Flash, of(2));
        record.fail(9, "refused", false);
        assert_eq!(record.vfpgas.len(), 1, "it has what it had: nothing");
        done(&mut record, Deed::Flash, "b");
        assert_eq!((record.vfpgas.len(), record.history.len()), (0, 5));
    }

    #[test]
    fn a_history_has_an_end_and_what_is_no_record_is_refused() {
        let mut record = Record::new(Some(image("a")));
        (0..100).for_each(|_| done(&mut record, Deed::Flash, "b"));
        assert_eq!(record.history.len(), MOST_EVENTS);
        let text = record.text();
        for (from, to) in [
            ("\"format\": 1", "\"format\": 2"),
            ("\"needs\": null", "\"needs\": 7"),
            ("\"name\": \"b\"", "\"name\": \"\\u001b\""),
            (&*image("b").sha256, "../../etc/passwd"),
            ("\"format\"", "\"more\": 1, \"format\""),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Record::parse(&text.replace(from, to)).is_err(), "{from}");
        }
        let none = "{\"format\": 1, \"current\": null, \"previous\": null, \"writing\": null, \"needs\": null, \"history\": []}";
        assert!(Record::parse(none).unwrap_err().contains("tells of no image"));
        assert!(Record::parse(&none.replace("\"needs\": null", "\"needs\": \"x\"")).is_ok());
    }
}
