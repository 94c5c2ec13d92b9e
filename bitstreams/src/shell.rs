//! Shells of FPGAs that are loaded into cards: conditions for the file, its manifest and the card.

use crate::Entry;
use crate::bitstream::Coverage;
use crate::details::FileKind;
use crate::digest::Sha256;
use crate::image::Image;
use crate::part::Part;

/// Why a file is not loaded into a card as its shell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not match its manifest.
    #[error("{0}")]
    Spoilt(String),
    /// It is for another card, or none.
    #[error("{0}")]
    Other(String),
}

/// Whether a card with so many vFPGAs is seen to have another shell than when it had so many before.
///
/// Of all entries of a manifest, every shell itself shows only the number of vFPGAs, by a register. Its engine is
/// not: a card as published is brought up without a look into its vFPGAs, so that one whose device has refused the file, and
/// which has kept its queue engines, comes up as such all the same.
#[must_use]
pub const fn is_seen_behind(regions: u64, before: u64) -> bool {
    regions != before
}

impl Entry {
    /// Checks that bytes with that digest are a shell of this manifest, which the static layer of a card with that
    /// part takes; `None` if no manifest names the part, because a card does not name it.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn check_shell(
        &self,
        bytes: &[u8],
        sha256: Sha256,
        card: Option<&Part>,
    ) -> Result<(), Refusal> {
        let other = |why: String| Err(Refusal::Other(why));
        let name = self.manifest.name.escape_default();
        let shells = || self.details.files.iter().filter(|file| file.kind == FileKind::Shell);
        let length = bytes.len() as u64;
        let is_it = |length_: Option<u64>, sha: Option<Sha256>| {
            length_ == Some(length) && sha == Some(sha256)
        };
        let mut files = self.details.files.iter();
        let vfpga = files.find(|file| file.kind == FileKind::Vfpga && file.sha256 == Some(sha256));
        if vfpga.is_some() {
            return other(format!(
                "it is of one vFPGA by the manifest {name}, and no register tells when what such a vFPGA has under way in the memory of this host is at its end, so none is taken off the datapath alone; load a shell that has it"
            ));
        }
        let Some(file) = shells().find(|file| is_it(file.length, file.sha256)) else {
            if shells().any(|file| file.length.is_none() || file.sha256.is_none()) {
                return other(format!(
                    "the manifest {name} does not say which bytes its shell is; if it is this file, write length = {length} and sha256 = \"{sha256}\" there"
                ));
            }
            return Err(Refusal::Spoilt(format!(
                "it has {length} bytes and the SHA-256 {sha256}, and is no shell of the manifest {name}; copy it again, or give its own manifest"
            )));
        };
        let image = self.details.check_known(file, self.manifest.regions, bytes, sha256);
        match image.map_err(Refusal::Other)? {
            Image::Bitstream(it) if it.header.is_none() && it.scope == Coverage::Partial => {}
            it => {
                return other(format!(
                    "it is {} ({}), and a card's own engine takes the packets of a partial bitstream alone; give the .bin of the shell",
                    it.describe(),
                    it.kind()
                ));
            }
        }
        if !self.details.services.iter().any(|service| service == "rdma") {
            return other(format!(
                "the manifest {name} names no service rdma, and balboad drives no shell without; if it has that, write services = [\"rdma\"] there"
            ));
        }
        if self.manifest.regions.is_none() {
            return other(format!(
                "the manifest {name} does not say how many vFPGAs its shell has, by which it is known again; write regions there"
            ));
        }
        let Some(wanted) = self.manifest.part else {
            return other(format!("the manifest {name} names no part; write board and part there"));
        };
        match card {
            Some(there) if there == wanted => Ok(()),
            Some(there) => {
                other(format!("it is for {}, and the card has {}", wanted.name, there.name))
            }
            None => other(format!(
                "it is for {}, and which part the card has it does not say itself; start balboad with --manifest CARD=FILE, where FILE names the part of what it holds",
                wanted.name
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;
    use crate::part;
    use crate::soft::{Logic, SoftImage};

    fn manifest(bytes: &[u8], part: &str, more: &str) -> Entry {
        let (length, sha256) = (bytes.len(), Sha256::of(bytes));
        let text = format!(
            "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nregions = 1\n{part}\n{more}\n\
             [[files]]\nname = \"shell_top.bin\"\nkind = \"shell\"\nlength = {length}\nsha256 = \"{sha256}\"\n"
        );
        Entry::parse(&text).unwrap()
    }

    const MODEL: &str = "board = \"model\"\npart = \"balboa\"";
    const RDMA: &str = "services = [\"rdma\"]";

    #[test]
    fn a_shell_is_for_a_card_whose_part_is_known_to_be_its_manifests() {
        let bytes = model::make(&SoftImage::new(vec![Logic::Vqe]).unwrap()).unwrap();
        let entry = manifest(&bytes, MODEL, RDMA);
        let u55c = part::of_number("xcu55c");
        assert_eq!(entry.check_shell(&bytes, Sha256::of(&bytes), Some(&part::MODEL)), Ok(()));
        let why = |entry: &Entry, bytes: &[u8], card| {
            entry.check_shell(bytes, Sha256::of(bytes), card).unwrap_err().to_string()
        };
        assert!(why(&entry, &bytes, None).contains("--manifest CARD=FILE"));
        assert_eq!(why(&entry, &bytes, u55c), "it is for balboa, and the card has xcu55c");
        let cut = &bytes[..bytes.len() - 4];
        assert!(matches!(entry.check_shell(cut, Sha256::of(cut), u55c), Err(Refusal::Spoilt(_))));
        let model = Some(&part::MODEL);
        assert!(why(&manifest(&bytes, MODEL, ""), &bytes, model).contains("no service rdma"));
        assert!(why(&manifest(&bytes, "", RDMA), &bytes, model).contains("names no part"));
        let text = format!(
            "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nregions = 1\n[[files]]\n\
             name = \"vfpga_c0_0.bin\"\nkind = \"vfpga\"\nregion = 0\nsha256 = \"{}\"\n",
            Sha256::of(&bytes)
        );
        let told = why(&Entry::parse(&text).unwrap(), &bytes, model);
        assert!(told.contains("of one vFPGA by the manifest x"), "{told}");
        let other = manifest(&bytes, "board = \"u55c\"\npart = \"xcu55c-x\"", RDMA);
        assert!(
            why(&other, &bytes, u55c).contains("it is for balboa, and its manifest is xcu55c's")
        );
        let text = "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\n[[files]]\nname = \"s\"\nkind = \"shell\"\n";
        let told = why(&Entry::parse(text).unwrap(), &bytes, model);
        assert!(told.contains(&format!("sha256 = \"{}\"", Sha256::of(&bytes))), "{told}");
    }
}
