//! Declarations of registers: blocks, offsets, access, and typed bit fields, with their documentation.
//!
//! `bits!` declares a word with named bit ranges. `registers!` declares a block of registers; it
//! yields an offset constant for each register, a type for each set of fields, and a
//! [`RegisterBlock`] that generators read. All checks happen at compile time; nothing here does I/O.

use crate::coyote::map::Map;
use crate::coyote::pci::Bar;
use crate::layout::{Codes, Describe};

/// The effect of accesses on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only; writes are ignored.
    RO,
    /// Reads return the written value, within the fields.
    RW,
    /// Write only; reads answer 0 unless the register says otherwise.
    WO,
    /// Each 1 written sets that bit.
    W1S,
    /// Each 1 written clears that bit.
    W1C,
    /// Written and read values are different things.
    WR,
}

/// The accesses of a bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The register's only meaning.
    Both,
    /// The written value.
    Write,
    /// The read value.
    Read,
}

/// A range of bits with a meaning.
#[derive(Clone, Copy, Debug)]
pub struct BitField {
    /// The field's name.
    pub name: &'static str,
    /// Its meaning.
    pub doc: &'static str,
    /// Highest bit.
    pub high: u32,
    /// Lowest bit.
    pub low: u32,
    /// Bits its Rust type can hold.
    pub capacity: u32,
    /// Unit of a number; empty without.
    pub unit: &'static str,
    /// The named values, for a field that has them.
    pub codes: Option<&'static Codes>,
}

impl BitField {
    /// The field's bits, set, in place.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        mask(self.high, self.low) << self.low
    }
}

/// A word made of bit fields.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The Rust type's name.
    pub name: &'static str,
    /// The module it is declared in.
    pub module: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Bits of the word: 32 or 64.
    pub bits: u32,
    /// Its fields from the lowest bit up.
    pub fields: &'static [BitField],
}

/// A set of fields of a register.
#[derive(Clone, Copy, Debug)]
pub struct RegisterView {
    /// Whether the fields are those written, those read, or both.
    pub view: View,
    /// The fields.
    pub word: &'static Word,
}

/// A register, or an array of them.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The register's name.
    pub name: &'static str,
    /// Its description, with the effect of accesses.
    pub doc: &'static str,
    /// Byte offset of the (first) register in its block, in the newest map.
    pub offset: u64,
    /// Byte offset in [`Map::Before2026`] where it differs.
    pub was: Option<u64>,
    /// The only map that has it; `None` when both do.
    pub only: Option<Map>,
    /// Registers of the array; 1 for a register that is none.
    pub count: u64,
    /// Bytes from one register of the array to the next.
    pub stride: u64,
    /// The effect of accesses.
    pub access: Access,
    /// Value after reset, where it is known.
    pub reset: Option<u64>,
    /// Unit of the whole register; empty without.
    pub unit: &'static str,
    /// Bit fields; none for a register that is one number.
    pub views: &'static [RegisterView],
    /// The source of its definition, if not the block's; empty otherwise.
    pub source: &'static str,
}

impl Register {
    /// Byte offset of the (first) register in a map; `None` where that map has no such register.
    #[must_use]
    pub const fn at(&self, map: Map) -> Option<u64> {
        match (map, self.only, self.was) {
            (Map::Before2026, Some(Map::Since2026), _)
            | (Map::Since2026, Some(Map::Before2026), _) => None,
            (Map::Before2026, _, Some(was)) => Some(was),
            _ => Some(self.offset),
        }
    }
}

/// The place of a block of registers: once, or once for each of a row of units.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The name of the place; empty if there is only one.
    pub name: &'static str,
    /// The base address register it is decoded from.
    pub bar: Bar,
    /// Byte offset of the first.
    pub base: u64,
    /// Bytes from one to the next.
    pub stride: u64,
    /// The largest number.
    pub count: u64,
}

impl Place {
    /// A block that stands once.
    #[must_use]
    pub const fn once(bar: Bar, base: u64) -> Self {
        Self { name: "", bar, base, stride: 0, count: 1 }
    }

    /// A block that stands `count` times, `stride` bytes apart.
    #[must_use]
    pub const fn row(name: &'static str, bar: Bar, base: u64, stride: u64, count: u64) -> Self {
        Self { name, bar, base, stride, count }
    }
}

/// A block of registers.
#[derive(Clone, Copy, Debug)]
pub struct RegisterBlock {
    /// The block's name, as the constant's.
    pub name: &'static str,
    /// Its title in documents.
    pub title: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// The module it is declared in.
    pub module: &'static str,
    /// Bytes of a register; its number is its offset divided by this.
    pub word_bytes: u64,
    /// Bytes the block takes.
    pub bytes: u64,
    /// Its places.
    pub places: &'static [Place],
    /// The source of its definition.
    pub source: &'static str,
    /// Its registers.
    pub registers: &'static [Register],
}

/// Byte offsets of a register that moved with the shell's map of 2026.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its value in [`Map::Since2026`].
    pub since_2026: u64,
    /// Its value in [`Map::Before2026`].
    pub before_2026: u64,
}

impl Moved {
    /// Byte offset in a map.
    #[must_use]
    pub const fn at(self, map: Map) -> u64 {
        match map {
            Map::Since2026 => self.since_2026,
            Map::Before2026 => self.before_2026,
        }
    }
}

/// Byte offsets of an array of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// The offset of the first.
    pub offset: u64,
    /// The distance from one to the next.
    pub stride: u64,
    /// The number.
    pub count: u64,
}

impl Array {
    /// Byte offset of the register with that index, which is below `count`.
    #[must_use]
    pub const fn at(self, index: u64) -> u64 {
        self.offset.wrapping_add(index.wrapping_mul(self.stride))
    }

    /// The index of the register at a byte offset; `None` where none begins.
    #[must_use]
    pub const fn index(self, offset: u64) -> Option<u64> {
        let Some(inside) = offset.checked_sub(self.offset) else { return None };
        if inside % self.stride == 0 && inside / self.stride < self.count {
            Some(inside / self.stride)
        } else {
            None
        }
    }
}

/// The bits of a field from `low` to `high`, at bit 0.
#[inline(always)]
#[must_use]
pub const fn mask(high: u32, low: u32) -> u64 {
    u64::MAX >> (63 - (high - low))
}

/// A [`BitField`], checked later by [`check_word`].
pub(crate) const fn bit_field<T: Describe>(
    name: &'static str,
    doc: &'static str,
    (high, low): (u32, u32),
    unit: &'static str,
) -> BitField {
    BitField { name, doc, high, low, capacity: T::BITS, unit, codes: T::CODES }
}

/// Fails compilation when fields overlap, stand out of order or do not fit word or type.
pub(crate) const fn check_word(word: &Word) {
    let mut i = 0;
    let mut next = 0;
    while i < word.fields.len() {
        let field = &word.fields[i];
        assert!(field.high >= field.low, "a bit range is written high:low");
        assert!(field.low >= next, "bit fields overlap or are not in order");
        assert!(field.high < word.bits, "a bit field lies beyond its word");
        assert!(field.high - field.low < field.capacity, "a bit field is wider than its type");
        next = field.high + 1;
        i += 1;
    }
}

/// Fails compilation when registers overlap in either map, are misaligned or lie beyond the block.
pub(crate) const fn check_block(block: &RegisterBlock) {
    check_map(block, Map::Since2026);
    check_map(block, Map::Before2026);
}

const fn check_map(block: &RegisterBlock, map: Map) {
    let mut i = 0;
    while i < block.registers.len() {
        let register = &block.registers[i];
        i += 1;
        let Some(offset) = register.at(map) else { continue };
        assert!(offset % block.word_bytes == 0, "a register is not aligned to its size");
        assert!(register.stride % block.word_bytes == 0, "an array's stride is not whole words");
        assert!(register.stride >= block.word_bytes, "the registers of an array overlap");
        let end = offset + register.stride * (register.count - 1) + block.word_bytes;
        assert!(end <= block.bytes, "a register lies beyond its block");
        let mut k = i;
        while k < block.registers.len() {
            let other = &block.registers[k];
            k += 1;
            if let Some(at) = other.at(map) {
                assert!(!overlap(register, offset, other, at), "two registers overlap");
            }
        }
    }
}

/// Whether two aligned registers, or arrays of them, share an offset.
const fn overlap(a: &Register, a_offset: u64, b: &Register, b_offset: u64) -> bool {
    let mut i = 0;
    while i < a.count {
        let array = Array { offset: b_offset, stride: b.stride, count: b.count };
        if array.index(a_offset + i * a.stride).is_some() {
            return true;
        }
        i += 1;
    }
    false
}

/// A field's value out of its bits, and its bits out of its value, by the field's type.
macro_rules! bits_value {
    (get bool, $raw:expr) => {
        $raw != 0
    };
    (get u8, $raw:expr) => {
        $raw as u8
    };
    (get u16, $raw:expr) => {
        $raw as u16
    };
    (get u32, $raw:expr) => {
        $raw as u32
    };
    (get u64, $raw:expr) => {
        $raw
    };
    (get $type:ident, $raw:expr) => {
        $type::from_raw($raw)
    };
    (put bool, $value:expr) => {
        $value as u64
    };
    (put u8, $value:expr) => {
        $value as u64
    };
    (put u16, $value:expr) => {
        $value as u64
    };
    (put u32, $value:expr) => {
        $value as u64
    };
    (put u64, $value:expr) => {
        $value
    };
    (put $type:ident, $value:expr) => {
        $value.raw()
    };
}

/// The low end of a bit range: `[7:4]` has one, `[7]` is one bit.
macro_rules! bits_low {
    ($high:literal) => {
        $high
    };
    ($high:literal $low:literal) => {
        $low
    };
}

/// Declares a word of named bit fields: a plain struct, its encoding and its decoding.
///
/// `name[high:low]: type unit("…")`; the type is `bool`, an unsigned integer, an open enum or flags.
/// Every bit pattern decodes; encoding cuts a value to its field and leaves the other bits zero.
macro_rules! bits {
    (
        $(#[doc = $doc:expr])*
        pub struct $name:ident($word:ident) {
            $(
                $(#[doc = $fdoc:expr])*
                $field:ident[$high:literal $(: $low:literal)?]: $type:ident $(unit($unit:literal))?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type ),* }

        impl $name {
            /// The word's description.
            pub const WORD: &'static $crate::Word = &$crate::Word {
                name: stringify!($name),
                module: module_path!(),
                doc: concat!($($doc, "\n"),*),
                bits: $word::BITS,
                fields: &[$( $crate::registers::bit_field::<$type>(
                    stringify!($field),
                    concat!($($fdoc, "\n"),*),
                    ($high, bits_low!($high $($low)?)),
                    concat!($($unit)?),
                ) ),*],
            };

            /// The word, reserved bits zero.
            #[inline(always)]
            #[must_use]
            pub const fn encode(self) -> $word {
                let mut word = 0u64;
                $( word |= (bits_value!(put $type, self.$field)
                    & $crate::registers::mask($high, bits_low!($high $($low)?)))
                    << bits_low!($high $($low)?); )*
                word as $word
            }

            /// Reads the word; every bit pattern decodes, reserved bits are ignored.
            #[inline(always)]
            #[must_use]
            pub const fn decode(word: $word) -> Self {
                let word = word as u64;
                Self { $( $field: bits_value!(
                    get $type,
                    (word >> bits_low!($high $($low)?)
                        & $crate::registers::mask($high, bits_low!($high $($low)?)))
                ) ),* }
            }
        }

        const _: () = $crate::registers::check_word($name::WORD);
    };
}

/// The offset constant of a register: a number, an [`Array`], or a [`Moved`].
macro_rules! register_offset {
    ($(#[doc = $doc:expr])* $name:ident $offset:literal) => {
        $(#[doc = $doc])*
        pub const $name: u64 = $offset;
    };
    ($(#[doc = $doc:expr])* $name:ident $offset:literal was $was:literal) => {
        $(#[doc = $doc])*
        pub const $name: $crate::Moved =
            $crate::Moved { since_2026: $offset, before_2026: $was };
    };
    ($(#[doc = $doc:expr])* $name:ident $offset:literal [$count:literal $stride:literal]) => {
        $(#[doc = $doc])*
        pub const $name: $crate::Array =
            $crate::Array { offset: $offset, stride: $stride, count: $count };
    };
}

/// The types of a register's fields.
macro_rules! register_views {
    ({ $($doc:tt)* } $word:ident) => {};
    ({ $($doc:tt)* } $word:ident as $type:ident { $($fields:tt)* } $($rest:tt)*) => {
        bits! { $($doc)* pub struct $type($word) { $($fields)* } }
        register_views! { { $($doc)* } $word $($rest)* }
    };
}

/// The value given, or a default.
macro_rules! or_default {
    ($default:expr,) => {
        $default
    };
    ($default:expr, $value:expr) => {
        $value
    };
}

/// Declares a block of registers. For each register, in this order, the parts in `()?` optional:
///
/// ```text
/// /// Its meaning, and the effects of its accesses.
/// NAME ([count; stride])? @ offset (was old_offset)? (only Map)?: ACCESS
///     (reset(value))? (unit("…"))? (source("…"))?
///     (as Type { fields })? (write Type { fields })? (read Type { fields })? (like Type)?;
/// ```
///
/// `was` gives the offset before 2026, `only Since2026` says that the other map has no such register.
/// Fields are those of `bits!`; `like` takes the fields of a type declared elsewhere.
macro_rules! registers {
    (
        $(#[doc = $doc:expr])*
        pub const $block:ident {
            title: $title:literal,
            word: $word:ident,
            bytes: $bytes:expr,
            places: $places:expr,
            source: $source:literal $(,)?
        }
        $(
            $(#[doc = $rdoc:expr])*
            $name:ident $([$count:literal; $stride:literal])? @ $offset:literal
                $(was $was:literal)? $(only $only:ident)?: $access:ident
                $(reset($reset:expr))? $(unit($unit:literal))? $(source($rsource:literal))?
                $(as $type:ident { $($fields:tt)* })?
                $(write $wtype:ident { $($wfields:tt)* })?
                $(read $rtype:ident { $($rfields:tt)* })?
                $(like $like:ident)?;
        )*
    ) => {
        $(
            register_offset! {
                $(#[doc = $rdoc])* $name $offset $(was $was)? $([$count $stride])?
            }
            register_views! {
                { $(#[doc = $rdoc])* } $word
                $(as $type { $($fields)* })?
                $(as $wtype { $($wfields)* })?
                $(as $rtype { $($rfields)* })?
            }
        )*

        $(#[doc = $doc])*
        pub const $block: &'static $crate::RegisterBlock = &$crate::RegisterBlock {
            name: stringify!($block),
            title: $title,
            doc: concat!($($doc, "\n"),*),
            module: module_path!(),
            word_bytes: size_of::<$word>() as u64,
            bytes: $bytes,
            places: &$places,
            source: $source,
            registers: &[$( $crate::Register {
                name: stringify!($name),
                doc: concat!($($rdoc, "\n"),*),
                offset: $offset,
                was: optional!($($was)?),
                only: optional!($($crate::coyote::shell::Map::$only)?),
                count: or_default!(1, $($count)?),
                stride: or_default!(size_of::<$word>() as u64, $($stride)?),
                access: $crate::Access::$access,
                reset: optional!($($reset)?),
                unit: concat!($($unit)?),
                source: concat!($($rsource)?),
                views: &[
                    $( $crate::RegisterView { view: $crate::View::Both, word: $type::WORD }, )?
                    $( $crate::RegisterView { view: $crate::View::Write, word: $wtype::WORD }, )?
                    $( $crate::RegisterView { view: $crate::View::Read, word: $rtype::WORD }, )?
                    $( $crate::RegisterView { view: $crate::View::Both, word: $like::WORD }, )?
                ],
            } ),*],
        };

        const _: () = $crate::registers::check_block($block);
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(dead_code, reason = "not every constant of the sample is looked at")]
    mod sample {
        use crate::coyote::pci::Bar;
        use crate::registers::Place;

        open_enum! {
            /// A code in a register.
            pub struct Kind(u8) {
                /// The first.
                First = 1,
            }
        }

        registers! {
            /// A block with every kind of register.
            pub const SAMPLE {
                title: "Sample",
                word: u64,
                bytes: 0x200,
                places: [Place::row("unit", Bar::Shell, 0x1000, 0x200, 3)],
                source: "the tests",
            }

            /// Plain.
            PLAIN @ 0x00: RO reset(7) unit("bytes");
            /// Only new.
            NEW @ 0x08 only Since2026: RO;
            /// Moved.
            MOVED @ 0x10 was 0x08: RW as Moving {
                /// One bit.
                flag[0]: bool,
                /// A code.
                kind[11:8]: Kind,
                /// A number.
                number[63:32]: u32 unit("packets"),
            };
            /// Moved too.
            ALSO @ 0x18 was 0x10: RW like Moving;
            /// Written and read differently.
            TWOFOLD @ 0x20: WR source("elsewhere") write TwofoldWrite {
                /// Starts.
                start[0]: bool,
            } read TwofoldRead {
                /// Commands queued.
                queued[5:0]: u8 unit("commands"),
            };
            /// Every other word.
            EVEN[4; 0x10] @ 0x100: RO;
            /// The words between.
            ODD[4; 0x10] @ 0x108: RO;
        }
    }
    use sample::*;

    #[test]
    fn fields_stand_at_their_bits_and_come_back() {
        let word = Moving { flag: true, kind: Kind(0xff), number: 0x1234_5678 };
        assert_eq!(word.encode(), 0x1234_5678_0000_0f01, "a value is cut to its field");
        assert_eq!(Moving::decode(word.encode()), Moving { kind: Kind(0xf), ..word });
        assert_eq!(Moving::decode(0xffff_f0fe), Moving::default(), "reserved bits are ignored");
        assert_eq!(Moving::decode(1 << 8).kind, Kind::First);
    }

    #[test]
    fn registers_stand_where_each_map_has_them() {
        assert_eq!((PLAIN, NEW), (0x00, 0x08));
        assert_eq!((MOVED.at(Map::Since2026), MOVED.at(Map::Before2026)), (0x10, 0x08));
        let by_name = |name| SAMPLE.registers.iter().find(|it| it.name == name).unwrap();
        assert_eq!(by_name("NEW").at(Map::Before2026), None);
        assert_eq!(by_name("ALSO").at(Map::Before2026), Some(0x10));
        assert_eq!(ODD.at(3), 0x138);
        assert_eq!((ODD.index(0x138), ODD.index(0x148), ODD.index(0x130)), (Some(3), None, None));
        let views: Vec<View> = by_name("TWOFOLD").views.iter().map(|it| it.view).collect();
        assert_eq!(views, [View::Write, View::Read]);
        assert_eq!((by_name("PLAIN").reset, by_name("PLAIN").unit), (Some(7), "bytes"));
        assert_eq!(by_name("ALSO").views[0].word.fields[1].codes.unwrap().values[0].name, "First");
    }

    fn block(registers: &'static [Register]) -> RegisterBlock {
        RegisterBlock { registers, bytes: 0x20, ..*SAMPLE }
    }

    const A: Register = Register { offset: 0x10, ..SAMPLE.registers[0] };

    #[test]
    #[should_panic(expected = "two registers overlap")]
    fn registers_that_overlap_are_refused() {
        check_block(&block(&[Register { offset: 0, count: 3, ..A }, A]));
    }

    #[test]
    #[should_panic(expected = "two registers overlap")]
    fn registers_that_overlap_in_the_older_map_alone_are_refused() {
        check_block(&block(&[A, Register { offset: 0x18, was: Some(0x10), ..A }]));
    }

    #[test]
    #[should_panic(expected = "lies beyond its block")]
    fn a_register_beyond_its_block_is_refused() {
        check_block(&block(&[Register { count: 3, ..A }]));
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_misaligned_register_is_refused() {
        check_block(&block(&[Register { offset: 4, ..A }]));
    }

    #[test]
    #[should_panic(expected = "wider than its type")]
    fn a_field_wider_than_its_type_is_refused() {
        check_word(&Word {
            fields: const { &[bit_field::<u8>("wide", "", (8, 0), "")] },
            ..*Moving::WORD
        });
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn fields_that_overlap_are_refused() {
        const FIELDS: &[BitField] =
            &[bit_field::<u8>("a", "", (7, 0), ""), bit_field::<bool>("b", "", (7, 7), "")];
        check_word(&Word { fields: FIELDS, ..*Moving::WORD });
    }
}
