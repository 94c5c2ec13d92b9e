//! The file for a card: its content, its signer, and whether it is for the card.

use std::path::Path;

use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::shell::Refusal;
use bitstreams::soft::Logic;
use bitstreams::{Entry, part};
use serde_json::{Value, json};
use shim_abi::MAX_MANIFEST;

use super::{Failure, code, device, is_told_apart};
use crate::args::Plan;
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
    pub(super) manifest: Option<Described>,
}

/// A manifest.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) entry: Entry,
    /// Its text, as balboad is given it.
    pub(super) text: String,
    /// The key whose signature it has.
    pub(super) signed_by: Option<String>,
}

impl Incoming {
    /// Reads a file, its manifest, and their signatures by one of the keys in a directory.
    pub(super) fn read(plan: &Plan) -> Result<Self, Failure> {
        let Plan { file, manifest, .. } = plan;
        let manifest = manifest.as_deref().map(|path| read_manifest(path, plan)).transpose()?;
        let (bytes, parsed) = read(file)?;
        let sha256 = Sha256::of(&bytes);
        let files = manifest.iter().flat_map(|it| &it.entry.details.files);
        let mut its_own = files.filter(|it| it.sha256 == Some(sha256)).peekable();
        // The signature of the manifest covers the digest in it.
        let has_signed = manifest.as_ref().is_some_and(|it| it.signed_by.is_some());
        let is_vouched_for = has_signed && its_own.peek().is_some();
        let signature = its_own
            .find_map(|it| it.signature.as_ref())
            .map_or_else(|| image::signature_of(file), |name| file.with_file_name(name));
        let may_do_without = plan.allow_unsigned || is_vouched_for;
        let signed_by = signer(file, &signature, &bytes, plan, may_do_without)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, bytes, sha256, image: parsed, signed_by, manifest })
    }

    /// Whether it is for a card.
    pub(super) fn for_card(&self, card: &Value, plan: &Plan) -> Result<(), Failure> {
        if self.image == Image::Module {
            let why = format!("it is {}: `balboa service load` does that", self.image.describe());
            return Err(Failure::new(code::OTHER_CARD, image::about(&plan.file, &why)));
        }
        match card["flash"]["takes"] == "bitstreams" {
            true => self.shell_for_card(card, plan),
            false => self.soft_for_card(card, &plan.file),
        }
    }

    /// Whether it is a shell for a card that takes bitstreams.
    fn shell_for_card(&self, card: &Value, plan: &Plan) -> Result<(), Failure> {
        let fail = |code, why: String| Err(Failure::new(code, image::about(&plan.file, &why)));
        let (name, board) = (text(&card["name"]), text(&card["board"]));
        if let Image::Soft(_) = self.image {
            let why = format!("it is a software card's, and {name} is a {board}");
            return fail(code::OTHER_CARD, why);
        }
        if self.image.full() == Some(true) {
            let (what, advice) = (self.image.describe(), device::advice(&plan.file));
            let why = format!("it is {what}, and a card's own engine takes shells alone; {advice}");
            return fail(code::OTHER_CARD, why);
        }
        let Some(Described { entry, .. }) = &self.manifest else {
            let why = format!(
                "{name} takes bitstreams, and what the shell in this one is its manifest says; say --manifest FILE (bitstreams/README.md has what is in it)"
            );
            return fail(code::OTHER_CARD, why);
        };
        let part = card["flash"]["part"].as_str().and_then(part::of_number);
        match entry.check_shell(&self.bytes, self.sha256, part) {
            Ok(()) if entry.details.verified || plan.allow_unverified => Ok(()),
            Ok(()) => fail(
                code::UNVERIFIED,
                "its manifest says verified = false: nobody has seen it work, and a card whose shell does not come up may have to be programmed by its cable; --allow-unverified loads it all the same. Once it was seen to work, write verified = true there".into(),
            ),
            Err(Refusal::Spoilt(why)) => fail(code::SPOILT, why),
            Err(Refusal::Other(why)) => fail(code::OTHER_CARD, why),
        }
    }

    /// Whether it is an image for a software card.
    fn soft_for_card(&self, card: &Value, file: &Path) -> Result<(), Failure> {
        let name = text(&card["name"]);
        let other = |why: String| Err(Failure::new(code::OTHER_CARD, image::about(file, &why)));
        let Image::Soft(soft) = &self.image else {
            let parts: Vec<_> = self.image.parts().iter().map(|part| part.name).collect();
            let parts = match parts.is_empty() {
                true => "another device".to_owned(),
                false => parts.join(" or "),
            };
            let (what, board) = (self.image.describe(), text(&card["board"]));
            return other(format!("it is {what} for {parts}, and {name} is a {board}"));
        };
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
            None => Ok(()),
        }
    }

    /// The vFPGA that it is of alone.
    pub(super) fn vfpga(&self) -> Option<u8> {
        self.image.alone()
    }

    /// The text of its manifest; empty where it has none.
    pub(super) fn manifest_text(&self) -> &str {
        self.manifest.as_ref().map_or("", |it| &it.text)
    }

    /// The facts shown of it beside a card.
    pub(super) fn facts(&self, card: &Value) -> Value {
        let mut facts = json!({
            "name": self.name, "sha256": self.sha256.to_string(), "bytes": self.bytes.len(),
            "vfpga": self.vfpga(), "signed_by": self.signed_by,
        });
        match (&self.image, &self.manifest) {
            (Image::Soft(soft), _) => {
                facts["logic"] = json!(soft.logic().iter().map(|it| it.name()).collect::<Vec<_>>());
            }
            (_, Some(Described { entry, signed_by, .. })) => {
                facts["manifest"] = json!({ "name": entry.manifest.name, "signed_by": signed_by });
                let regions = entry.manifest.regions.unwrap_or_default();
                let stands = entry.manifest.stands();
                facts["logic"] = json!(stands.iter().map(|it| it.name()).collect::<Vec<_>>());
                facts["part"] = json!(entry.manifest.part.map(|part| part.name));
                facts["verified"] = json!(entry.details.verified);
                facts["told_apart"] = json!(is_told_apart(card, regions.into()));
            }
            _ => {}
        }
        facts
    }
}

/// Reads an image, whose bytes may not be those that it was made with.
pub(super) fn read(file: &Path) -> Result<(Vec<u8>, Image), Failure> {
    let bytes = image::read(file, image::MAX_IMAGE)?;
    let parsed = Image::parse(&bytes);
    let parsed = parsed.map_err(|why| Failure::new(code::SPOILT, image::about(file, &why)))?;
    Ok((bytes, parsed))
}

/// The key whose signature a file has, if that is one that is trusted; `None` where it has no signature and may do without.
fn signer(
    file: &Path,
    signature: &Path,
    bytes: &[u8],
    plan: &Plan,
    may_do_without: bool,
) -> Result<Option<String>, Failure> {
    let unsigned = |error| Failure::new(code::UNSIGNED, error);
    match signature.try_exists().map_err(anyhow::Error::from)? {
        // One that is there is right, or why it is there is to be found out.
        true => {
            let by = image::signer(file, signature, bytes, plan.keys.as_deref());
            Ok(Some(by.map_err(unsigned)?))
        }
        false if may_do_without => Ok(None),
        false => {
            let why = format!(
                "it has no signature ({} is not there); `balboa image sign` makes one, and --allow-unsigned does without",
                signature.display()
            );
            Err(unsigned(image::about(file, &why)))
        }
    }
}

/// A manifest, and its signature by one of the keys that are trusted.
fn read_manifest(path: &Path, plan: &Plan) -> Result<Described, Failure> {
    if !image::is_manifest(path) {
        // By its name it is signed as one, and checked.
        return Err(image::about(path, "it is no manifest by its name: call it NAME.toml").into());
    }
    let text = image::read_text(path)?;
    let entry = Entry::parse(&text).map_err(|why| image::about(path, &why))?;
    if text.len() > MAX_MANIFEST {
        return Err(image::about(path, &format!("it has more than {MAX_MANIFEST} bytes")).into());
    }
    let signature = image::signature_of(path);
    let signed_by = signer(path, &signature, text.as_bytes(), plan, plan.allow_unsigned)?;
    Ok(Described { entry, text, signed_by })
}

#[cfg(test)]
mod tests {
    use bitstreams::model;
    use bitstreams::soft::SoftImage;

    use super::*;

    fn plan(file: &str) -> Plan {
        Plan {
            state_dir: crate::args::StateDir::default(),
            card: crate::args::CardName(0),
            file: file.into(),
            keys: None,
            allow_unsigned: false,
            manifest: None,
            allow_unverified: false,
            allow_unseen: false,
            force_disconnect: false,
            json: false,
        }
    }

    #[test]
    fn a_shell_is_for_a_card_by_its_manifest_and_only_where_it_was_seen_to_work_or_that_is_waived()
    {
        let image = SoftImage::new(vec![Logic::Vqe; 2]).unwrap();
        let mut shell = incoming(&model::make(&image).unwrap());
        let text = format!(
            "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nregions = 2\nboard = \"model\"\npart = \"balboa\"\n\
             services = [\"rdma\"]\n[[files]]\nname = \"s\"\nkind = \"shell\"\nlength = {}\nsha256 = \"{}\"\n",
            shell.bytes.len(),
            shell.sha256
        );
        let entry = Entry::parse(&text).unwrap();
        shell.manifest = Some(Described { entry, text, signed_by: None });
        let mut card = json!({
            "name": "balboa0", "board": "B", "engine": "vqe",
            "flash": { "takes": "bitstreams", "part": "balboa", "regions": 2, "needs": null },
        });
        let waived = Plan { allow_unverified: true, ..plan("x.bin") };
        assert!(shell.for_card(&card, &waived).is_ok());
        assert_eq!(shell.for_card(&card, &plan("x.bin")).unwrap_err().code, code::UNVERIFIED);
        assert_eq!(shell.facts(&card)["told_apart"], false);
        // Its driver may not fit its shell: a device that has refused the shell before has kept its queue engines.
        card["engine"] = "stock".into();
        assert_eq!(shell.facts(&card)["told_apart"], false);
        card["flash"]["regions"] = 3.into();
        assert_eq!(shell.facts(&card)["told_apart"], true);
        // One that needs an image may have its shell of before, and of one that was never up nothing is known.
        card["flash"]["needs"] = "spoilt".into();
        card["flash"]["regions"] = 2.into();
        assert_eq!(shell.facts(&card)["told_apart"], false);
        card["flash"]["regions"] = Value::Null;
        assert_eq!(shell.facts(&card)["told_apart"], false);
        card["flash"]["part"] = "xcu55c".into();
        assert_eq!(shell.for_card(&card, &waived).unwrap_err().code, code::OTHER_CARD);
        shell.bytes.truncate(100);
        shell.sha256 = Sha256::of(&shell.bytes);
        assert_eq!(shell.for_card(&card, &waived).unwrap_err().code, code::SPOILT);
    }

    fn incoming(bytes: &[u8]) -> Incoming {
        let (name, sha256, bytes) = ("x.soft".into(), Sha256::of(bytes), bytes.to_vec());
        let image = Image::parse(&bytes).unwrap();
        Incoming { name, bytes, sha256, image, signed_by: None, manifest: None }
    }

    #[test]
    fn an_image_is_for_the_cards_whose_kind_room_and_drivers_it_fits() {
        let soft = |logic, count| incoming(&SoftImage::new(vec![logic; count]).unwrap().to_bytes());
        let mut card = json!({
            "name": "balboa0", "board": "B", "driver": "softcard", "engine": "vqe",
            "flash": { "takes": "software cards' images", "room": 4, "logic": ["vqe"] },
        });
        let refusal = |incoming: &Incoming, card: &Value| {
            let failure = incoming.for_card(card, &plan("x.soft")).unwrap_err();
            assert_eq!(failure.code, code::OTHER_CARD);
            failure.error.unwrap().to_string()
        };
        assert!(soft(Logic::Vqe, 4).for_card(&card, &plan("x.soft")).is_ok());
        let told = refusal(&soft(Logic::Vqe, 5), &card);
        assert_eq!(
            told,
            "x.soft: it has logic for 5 vFPGAs, and the shell of balboa0 has room for 4"
        );
        let one = |vfpga| incoming(&SoftImage::of_one(vfpga, Logic::Vqe).unwrap().to_bytes());
        card["windows"] = json!([{ "window": 0 }, { "window": 1 }]);
        assert!(one(1).for_card(&card, &plan("x.soft")).is_ok());
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
        card["flash"] = json!({ "takes": "bitstreams", "part": null });
        assert!(refusal(&soft(Logic::Vqe, 1), &card).contains("it is a software card's"));
        assert!(refusal(&partial, &card).contains("say --manifest FILE"));
    }
}
