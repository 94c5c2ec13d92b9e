//! The file that a card is to be flashed with: what it is, who signed it, and whether it is for the card.

use std::path::Path;

use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::soft::{Logic, SoftImage};
use serde_json::{Value, json};

use super::device;
use super::{Failure, code};
use crate::image;
use crate::state::{items, text};

/// A file that was read.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Its name without its folder.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) sha256: Sha256,
    pub(super) image: Image,
    /// The key whose signature it has.
    pub(super) signed_by: Option<String>,
}

impl Incoming {
    /// Reads a file, and its signature by one of the keys in a directory.
    pub(super) fn read(
        file: &Path,
        keys: Option<&Path>,
        allow_unsigned: bool,
    ) -> Result<Self, Failure> {
        let bytes = image::read(file, image::MAX_IMAGE)?;
        let parsed = Image::parse(&bytes);
        let parsed = parsed.map_err(|why| Failure::new(code::SPOILT, image::about(file, &why)))?;
        let unsigned = |error| Failure::new(code::UNSIGNED, error);
        let signature = image::signature_of(file);
        let is_there = signature.try_exists().map_err(anyhow::Error::from)?;
        let signed_by = match is_there {
            // One that is there is right, or why it is there is to be found out.
            true => Some(image::signer(file, &bytes, keys).map_err(unsigned)?),
            false if allow_unsigned => None,
            false => {
                let why = format!(
                    "it has no signature ({} is not there); `balboa image sign` makes one, and --allow-unsigned does without",
                    signature.display()
                );
                return Err(unsigned(image::about(file, &why)));
            }
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sha256 = Sha256::of(&bytes);
        Ok(Self { name, bytes, sha256, image: parsed, signed_by })
    }

    /// The image, if it is for a card.
    pub(super) fn for_card(&self, card: &Value, file: &Path) -> Result<&SoftImage, Failure> {
        let name = text(&card["name"]);
        let other = |why: String| Err(Failure::new(code::OTHER_CARD, image::about(file, &why)));
        let for_software = !card["flash"].is_null();
        let Image::Soft(soft) = &self.image else {
            let parts: Vec<_> = self.image.parts().iter().map(|part| part.name).collect();
            let parts = match parts.is_empty() {
                true => "another device".to_owned(),
                false => parts.join(" or "),
            };
            let (what, board) = (self.image.describe(), text(&card["board"]));
            let how = match (for_software, self.image.full()) {
                (false, Some(true)) => format!("; {}", device::advice(file)),
                (false, _) => "; balboad loads images into software cards alone".to_owned(),
                (true, _) => String::new(),
            };
            return other(format!("it is {what} for {parts}, and {name} is a {board}{how}"));
        };
        if !for_software {
            return other(format!(
                "it is a software card's, and {name} is a {}",
                text(&card["board"])
            ));
        }
        let (room, count) = (card["flash"]["room"].as_u64().unwrap_or(0), soft.logic().len());
        if let Some(vfpga) = soft.alone() {
            if !items(&card["windows"]).iter().any(|window| window["window"] == vfpga) {
                return other(format!(
                    "it is of vFPGA {vfpga}, in which balboad drives no engine of {name}; an image of the whole card brings one there"
                ));
            }
            if card["engine"] == Logic::Stock.name() {
                return other(format!(
                    "it is of vFPGA {vfpga} alone, and those of {name} have one stack in common; load an image of the whole card"
                ));
            }
            if soft.logic().iter().any(|logic| card["engine"] != logic.name()) {
                return other(format!(
                    "it is of vFPGA {vfpga} alone, and wants another network than {name} has; load an image of the whole card"
                ));
            }
        } else if count as u64 > room {
            return other(format!(
                "it has logic for {count} vFPGAs, and the shell of {name} has room for {room}"
            ));
        }
        let driven: Vec<_> = items(&card["flash"]["logic"]).iter().map(text).collect();
        let undriven = soft.logic().iter().find(|it| driven.iter().all(|name| name != it.name()));
        match undriven {
            Some(logic) => other(format!(
                "it has {logic}, which balboad does not drive; it drives {}",
                driven.join(", ")
            )),
            None => Ok(soft),
        }
    }

    /// The vFPGA that it is of alone.
    pub(super) fn vfpga(&self) -> Option<u8> {
        self.image.alone()
    }

    /// What is shown of it.
    pub(super) fn facts(&self) -> Value {
        let logic = match &self.image {
            Image::Soft(soft) => json!(soft.logic().iter().map(|it| it.name()).collect::<Vec<_>>()),
            _ => Value::Null,
        };
        json!({
            "name": self.name, "sha256": self.sha256.to_string(), "bytes": self.bytes.len(),
            "logic": logic, "vfpga": self.vfpga(), "signed_by": self.signed_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(bytes: &[u8]) -> Incoming {
        let (name, sha256, bytes) = ("x.soft".into(), Sha256::of(bytes), bytes.to_vec());
        let image = Image::parse(&bytes).unwrap();
        Incoming { name, bytes, sha256, image, signed_by: None }
    }

    #[test]
    fn an_image_is_for_the_cards_whose_kind_room_and_drivers_it_fits() {
        let soft = |logic, count| incoming(&SoftImage::new(vec![logic; count]).unwrap().to_bytes());
        let mut card = json!({
            "name": "balboa0", "board": "B", "driver": "softcard", "engine": "vqe",
            "flash": { "room": 4, "logic": ["vqe"] },
        });
        let refusal = |incoming: &Incoming, card: &Value| {
            let failure = incoming.for_card(card, Path::new("x.soft")).unwrap_err();
            assert_eq!(failure.code, code::OTHER_CARD);
            failure.error.unwrap().to_string()
        };
        assert!(soft(Logic::Vqe, 4).for_card(&card, Path::new("x.soft")).is_ok());
        let told = refusal(&soft(Logic::Vqe, 5), &card);
        assert_eq!(
            told,
            "x.soft: it has logic for 5 vFPGAs, and the shell of balboa0 has room for 4"
        );
        let one = |vfpga| incoming(&SoftImage::of_one(vfpga, Logic::Vqe).unwrap().to_bytes());
        card["windows"] = json!([{ "window": 0 }, { "window": 1 }]);
        assert!(one(1).for_card(&card, Path::new("x.soft")).is_ok());
        let told = refusal(&one(2), &card);
        assert_eq!(
            told,
            "x.soft: it is of vFPGA 2, in which balboad drives no engine of balboa0; an image of the whole card brings one there"
        );
        let other = incoming(&SoftImage::of_one(1, Logic::Stock).unwrap().to_bytes());
        let told = refusal(&other, &card);
        assert!(told.contains("wants another network than balboa0 has"), "{told}");
        card["engine"] = "stock".into();
        for one in [&one(1), &other] {
            let told = refusal(one, &card);
            assert!(told.contains("those of balboa0 have one stack in common"), "{told}");
        }
        card["engine"] = "vqe".into();
        let told = refusal(&soft(Logic::Stock, 1), &card);
        assert_eq!(told, "x.soft: it has stock, which balboad does not drive; it drives vqe");
        let words: [u32; 5] = [0xaa99_5566, 0x3001_8001, 0x14b7_d093, 0x3000_8001, 13];
        let partial: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let partial = incoming(&partial);
        let told = refusal(&partial, &card);
        assert_eq!(
            told,
            "x.soft: it is a partial bitstream for xcu55c or xcu280, and balboa0 is a B"
        );
        card["flash"] = Value::Null;
        assert!(
            refusal(&partial, &card).contains("balboad loads images into software cards alone")
        );
        assert!(refusal(&soft(Logic::Vqe, 1), &card).contains("it is a software card's"));
    }
}
