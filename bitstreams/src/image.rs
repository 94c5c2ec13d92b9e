//! Files that a card is made of: which kind one is, and for which part.

use crate::bitstream::{Bitstream, Coverage};
use crate::part::Part;
use crate::pdi::Pdi;
use crate::soft::SoftImage;

/// The kind of a file, with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A bitstream, `.bit` or `.bin`.
    Bitstream(Bitstream),
    /// A device image, `.pdi`.
    Pdi(Pdi),
    /// The image of a software card.
    Soft(SoftImage),
    /// A module of WebAssembly: the service of a user's, for a software card. Its kind and version alone were read.
    Module,
}

/// The first bytes of a module of WebAssembly, with the version of the format.
const MODULE: [u8; 8] = *b"\0asm\x01\0\0\0";

impl Image {
    /// The vFPGA that it is of alone; `None` where it is of a whole card.
    #[must_use]
    pub fn alone(&self) -> Option<u8> {
        match self {
            Self::Soft(soft) => soft.alone(),
            _ => None,
        }
    }

    /// Parses a file, which may have any content.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if SoftImage::begins(bytes) {
            SoftImage::parse(bytes).map(Self::Soft)
        } else if bytes.starts_with(&MODULE) {
            Ok(Self::Module)
        } else if Bitstream::begins_bit(bytes) {
            Bitstream::parse_bit(bytes).map(Self::Bitstream)
        } else if Pdi::begins(bytes) {
            Pdi::parse(bytes).map(Self::Pdi)
        } else {
            // A file of no other kind consists of packets, or is no image.
            Bitstream::parse_bin(bytes).map(Self::Bitstream).map_err(|why| {
                format!("it is no .bit, no .pdi and no software card's image, and as a .bin: {why}")
            })
        }
    }

    /// Its kind, as its file's name ends by custom.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bitstream(bitstream) if bitstream.header.is_some() => "bit",
            Self::Bitstream(_) => "bin",
            Self::Pdi(_) => "pdi",
            Self::Soft(_) => "soft",
            Self::Module => "wasm",
        }
    }

    /// The IDCODE that it is for, where it says so.
    #[must_use]
    pub fn idcode(&self) -> Option<u32> {
        match self {
            Self::Bitstream(bitstream) => Some(bitstream.idcode),
            Self::Pdi(pdi) => pdi.table.map(|table| table.idcode),
            Self::Soft(_) | Self::Module => None,
        }
    }

    /// The parts that it is for, of those that are known: several where it does not tell them apart.
    #[must_use]
    pub fn parts(&self) -> Vec<&'static Part> {
        match self {
            Self::Bitstream(bitstream) => bitstream.parts(),
            Self::Pdi(pdi) => pdi.parts(),
            Self::Soft(_) | Self::Module => Vec::new(),
        }
    }

    /// Whether it is for a whole device, where it says so.
    #[must_use]
    pub fn full(&self) -> Option<bool> {
        match self {
            Self::Bitstream(bitstream) => Some(bitstream.scope == Coverage::Full),
            Self::Pdi(pdi) => pdi.table.map(|table| table.full),
            Self::Soft(_) | Self::Module => None,
        }
    }

    /// It in a few words.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match (self, self.full()) {
            (Self::Soft(soft), _) if soft.alone().is_some() => {
                "a software card's image of one vFPGA"
            }
            (Self::Soft(_), _) => "a software card's image",
            (Self::Module, _) => "a module of WebAssembly, which can be loaded as a service",
            (Self::Bitstream(_), Some(true)) => "a bitstream of a whole device",
            (Self::Bitstream(_), _) => "a partial bitstream",
            (Self::Pdi(_), Some(true)) => "a device image to boot from",
            (Self::Pdi(_), Some(false)) => "a partial device image",
            (Self::Pdi(_), None) => "a device image that does not say for what",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::Logic;

    #[test]
    fn a_file_is_known_by_its_bytes() {
        let soft = SoftImage::new(vec![Logic::Vqe]).unwrap();
        let image = Image::parse(&soft.to_bytes()).unwrap();
        assert_eq!((image.kind(), image.full(), image.idcode()), ("soft", None, None));
        let module = Image::parse(b"\0asm\x01\0\0\0 and more").unwrap();
        assert_eq!((module.kind(), module.full(), module.idcode()), ("wasm", None, None));
        // The component model's files, and the format's next version, are other files.
        assert!(Image::parse(b"\0asm\x0d\0\x01\0").is_err());
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            let why = Image::parse(bytes).unwrap_err();
            assert!(why.starts_with("it is no .bit, no .pdi"), "{why}");
        }
    }
}
