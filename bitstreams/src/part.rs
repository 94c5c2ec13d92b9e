//! The devices of the cards that Balboa knows, and their IDCODEs.

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name, as a part number begins: `xcu55c`.
    pub name: &'static str,
    /// The board it is on: `u55c`.
    pub board: &'static str,
    /// Its JTAG IDCODE without the version in bits 31 to 28; `None` where we know of no public source of it.
    pub idcode: Option<u32>,
}

/// The device's bits of an IDCODE: those above are the silicon's version.
const DEVICE: u32 = 0x0fff_ffff;

/// The devices. The U55C's and the U280's are one to the configuration logic: they share an IDCODE,
/// so only a part number tells their files apart. (Values: tables of open programming
/// tools.)
pub const PARTS: &[Part] = &[
    Part { name: "xcu50", board: "u50", idcode: Some(0x04b7_7093) },
    Part { name: "xcu55c", board: "u55c", idcode: Some(0x04b7_d093) },
    Part { name: "xcu200", board: "u200", idcode: Some(0x04b3_7093) },
    Part { name: "xcu250", board: "u250", idcode: Some(0x04b5_7093) },
    Part { name: "xcu280", board: "u280", idcode: Some(0x04b7_d093) },
    Part { name: "xcv80", board: "v80", idcode: None },
    MODEL,
];

/// The part of a software card that plays an FPGA. Its IDCODE names a manufacturer that does not exist, so that no
/// device takes its bitstreams.
pub const MODEL: Part = Part { name: "balboa", board: "model", idcode: Some(0x0ba1_b001) };

/// The devices with an IDCODE, of any version.
pub fn of_idcode(idcode: u32) -> impl Iterator<Item = &'static Part> {
    PARTS.iter().filter(move |part| part.idcode == Some(idcode & DEVICE))
}

/// The device that a part number is of: `xcu55c-fsvh2892-2L-e` is of `xcu55c`.
#[must_use]
pub fn of_number(number: &str) -> Option<&'static Part> {
    let name = number.split('-').next().unwrap_or_default();
    PARTS.iter().find(|part| part.name.eq_ignore_ascii_case(name))
}

/// Whether two IDCODEs are of one device.
#[must_use]
pub fn same_device(one: u32, other: u32) -> bool {
    one & DEVICE == other & DEVICE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idcode_names_every_part_that_has_it_whatever_its_version() {
        let names = |idcode| of_idcode(idcode).map(|part| part.name).collect::<Vec<_>>();
        assert_eq!(names(0x14b7_d093), ["xcu55c", "xcu280"]);
        assert_eq!(names(0x04b5_7093), ["xcu250"]);
        assert_eq!(names(0), [""; 0]);
    }

    #[test]
    fn a_part_number_is_of_one_part() {
        assert_eq!(of_number("xcu280-fsvh2892-2L-e").map(|part| part.board), Some("u280"));
        assert_eq!(of_number("xcu2800-x"), None);
        assert_eq!(of_number(""), None);
    }
}
