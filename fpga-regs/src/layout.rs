//! Declarations of entries in shared memory: named fields at fixed byte offsets of 64-byte blocks.

/// The unit of every ring: 64 bytes as eight words, byte 0 in the low bits of word 0.
///
/// In memory each word is little-endian.
pub type Block = [u64; 8];

/// Bytes in a [`Block`].
pub const BLOCK_BYTES: usize = 64;

/// A named value of a code, or a flag.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The value's name.
    pub name: &'static str,
    /// Its meaning.
    pub doc: &'static str,
    /// Its number; the set bit for a flag.
    pub value: u64,
}

/// A set of named values, or of flags.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// The Rust type's name.
    pub name: &'static str,
    /// The module it is declared in.
    pub module: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Bits of the type.
    pub bits: u32,
    /// Whether the values are flags that can stand together.
    pub flags: bool,
    /// The values, in the order they were declared.
    pub values: &'static [Code],
}

/// A named number of the contract that belongs to no entry and no register.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// The module it is declared in.
    pub module: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Its value.
    pub value: u64,
}

/// An entry: its blocks and fields.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The Rust type's name.
    pub name: &'static str,
    /// The module it is declared in.
    pub module: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Bytes it takes.
    pub bytes: usize,
    /// Its own fields in the order of their offsets.
    pub fields: &'static [Field],
    /// The entry it stands in: that one's fields hold where it has none of its own.
    pub head: Option<&'static Layout>,
}

impl Layout {
    /// Every field of the entry, those of its head too, in the order of their offsets.
    pub fn all_fields(&self) -> Vec<&'static Field> {
        let own = self.fields;
        let head = self.head.map_or(&[][..], |head| head.fields);
        let free = |field: &&Field| {
            own.iter().all(|it| {
                it.offset + it.size <= field.offset || field.offset + field.size <= it.offset
            })
        };
        let mut all: Vec<_> = head.iter().filter(free).chain(own).collect();
        all.sort_by_key(|field| field.offset);
        all
    }
}

/// A type whose values may have names.
pub trait Describe {
    /// Bits the type holds.
    const BITS: u32;
    /// The names; `None` for a plain number.
    const CODES: Option<&'static Codes> = None;
}

/// One field of an entry, for generated documents and for the layout checks.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The field's name in the contract.
    pub name: &'static str,
    /// Its meaning.
    pub doc: &'static str,
    /// The named values, for a field that has them.
    pub codes: Option<&'static Codes>,
    /// Raw bytes in memory order rather than a little-endian number.
    pub raw: bool,
    /// Byte offset from the start of the entry.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Natural alignment the offset must have, in bytes.
    pub align: usize,
}

/// A value that can be a field of an entry.
pub trait Wire: Copy + Describe {
    /// Whether it is raw bytes in memory order rather than a little-endian number.
    const RAW: bool = false;
    /// Bytes the value takes.
    const SIZE: usize;
    /// Alignment of its offset; a value never straddles a word unless it is made of words.
    const ALIGN: usize;
    /// Adds the value to `words`, whose bytes at `offset` are zero.
    fn store(self, words: &mut [u64], offset: usize);
    /// Reads the value at byte `offset` of `words`.
    fn load(words: &[u64], offset: usize) -> Self;
}

macro_rules! wire_integer {
    ($($int:ty),*) => {$(
        impl Describe for $int {
            const BITS: u32 = <$int>::BITS;
        }
        impl Wire for $int {
            const SIZE: usize = size_of::<$int>();
            const ALIGN: usize = size_of::<$int>();
            #[inline(always)]
            fn store(self, words: &mut [u64], offset: usize) {
                words[offset / 8] |= u64::from(self) << (offset % 8 * 8);
            }
            #[inline(always)]
            fn load(words: &[u64], offset: usize) -> Self {
                (words[offset / 8] >> (offset % 8 * 8)) as $int
            }
        }
    )*};
}
wire_integer!(u8, u16, u32, u64);

impl Describe for bool {
    const BITS: u32 = 1;
}

impl<const N: usize> Describe for [u8; N] {
    const BITS: u32 = 8 * N as u32;
}

/// Raw bytes in memory order, such as a GID (network order) or a MAC address.
impl<const N: usize> Wire for [u8; N] {
    const RAW: bool = true;
    const SIZE: usize = N;
    const ALIGN: usize = 8;
    #[inline(always)]
    fn store(self, words: &mut [u64], offset: usize) {
        for (i, byte) in self.into_iter().enumerate() {
            byte.store(words, offset + i);
        }
    }
    #[inline(always)]
    fn load(words: &[u64], offset: usize) -> Self {
        core::array::from_fn(|i| u8::load(words, offset + i))
    }
}

/// A [`Field`], checked later by [`check`].
pub(crate) const fn field<T: Wire>(name: &'static str, doc: &'static str, offset: usize) -> Field {
    Field { name, doc, codes: T::CODES, raw: T::RAW, offset, size: T::SIZE, align: T::ALIGN }
}

/// Fails compilation when fields overlap, are misaligned, out of order or beyond `bytes`.
pub(crate) const fn check(fields: &[Field], bytes: usize) {
    let mut i = 0;
    let mut end = 0;
    while i < fields.len() {
        let field = fields[i];
        assert!(field.offset >= end, "fields overlap or are not in the order of their offsets");
        assert!(field.offset % field.align == 0, "a field is not aligned to its size");
        end = field.offset + field.size;
        assert!(end <= bytes, "a field lies beyond the entry");
        i += 1;
    }
}

/// `None`, or the value given.
macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Declares an entry of `N` blocks: a plain struct, its encoding, its decoding and its field table.
///
/// `in Header` says that the entry begins as another one does, or lies over it: where it has no
/// fields of its own, those of the other hold.
macro_rules! layout {
    (
        $(#[doc = $doc:expr])*
        pub struct $name:ident: $blocks:literal $(in $head:ident)? {
            $( $(#[doc = $fdoc:expr])* $field:ident @ $offset:literal: $ty:ty ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $ty ),* }

        impl $name {
            /// Blocks of 64 bytes the entry takes.
            pub const BLOCKS: usize = $blocks;
            /// The entry's fields in the order of their offsets.
            pub const FIELDS: &'static [$crate::Field] = &[$( $crate::layout::field::<$ty>(
                stringify!($field),
                concat!($($fdoc, "\n"),*),
                $offset,
            ) ),*];
            /// The entry's description.
            pub const LAYOUT: &'static $crate::Layout = &$crate::Layout {
                name: stringify!($name),
                module: module_path!(),
                doc: concat!($($doc, "\n"),*),
                bytes: $blocks * $crate::BLOCK_BYTES,
                fields: Self::FIELDS,
                head: optional!($($head::LAYOUT)?),
            };

            /// The entry as it stands in memory, reserved bytes zero.
            #[inline(always)]
            #[must_use]
            pub fn encode(&self) -> [$crate::Block; $blocks] {
                let mut blocks = [[0u64; 8]; $blocks];
                {
                    let words = blocks.as_flattened_mut();
                    $( <$ty as $crate::Wire>::store(self.$field, words, $offset); )*
                }
                blocks
            }

            /// Reads the entry from memory once copied; every bit pattern decodes.
            #[inline(always)]
            #[must_use]
            pub fn decode(blocks: &[$crate::Block; $blocks]) -> Self {
                let words = blocks.as_flattened();
                Self { $( $field: <$ty as $crate::Wire>::load(words, $offset) ),* }
            }
        }

        const _: () = $crate::layout::check($name::FIELDS, $blocks * $crate::BLOCK_BYTES);
    };
}

/// Declares a code that may come from the other side: named values, and any other value kept as it is.
macro_rules! open_enum {
    (
        $(#[doc = $doc:expr])*
        pub struct $name:ident($int:ty) {
            $( $(#[doc = $vdoc:expr])* $value:ident = $code:expr ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $int);

        #[expect(non_upper_case_globals, reason = "the values of an open enum read as variants")]
        impl $name {
            $( $(#[doc = $vdoc])* pub const $value: Self = Self($code); )*

            /// The name of a known code.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some(stringify!($value)), )*
                    _ => None,
                }
            }

            /// The code in the low bits of a word.
            #[inline(always)]
            #[must_use]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw as $int)
            }

            /// The code as the low bits of a word.
            #[inline(always)]
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.0 as u64
            }
        }

        impl $crate::Describe for $name {
            const BITS: u32 = <$int>::BITS;
            const CODES: Option<&'static $crate::Codes> = Some(&$crate::Codes {
                name: stringify!($name),
                module: module_path!(),
                doc: concat!($($doc, "\n"),*),
                bits: <$int>::BITS,
                flags: false,
                values: &[$( $crate::Code {
                    name: stringify!($value),
                    doc: concat!($($vdoc, "\n"),*),
                    value: $code,
                } ),*],
            });
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }

        impl $crate::Wire for $name {
            const SIZE: usize = <$int as $crate::Wire>::SIZE;
            const ALIGN: usize = <$int as $crate::Wire>::ALIGN;
            #[inline(always)]
            fn store(self, words: &mut [u64], offset: usize) {
                self.0.store(words, offset);
            }
            #[inline(always)]
            fn load(words: &[u64], offset: usize) -> Self {
                Self(<$int as $crate::Wire>::load(words, offset))
            }
        }
    };
}

/// Declares flags that can stand together; unknown bits are kept.
macro_rules! flags {
    (
        $(#[doc = $doc:expr])*
        pub struct $name:ident($int:ty) {
            $( $(#[doc = $fdoc:expr])* $flag:ident = $bit:expr ),* $(,)?
        }
    ) => {
        bitflags::bitflags! {
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name: $int {
                $( $(#[doc = $fdoc])* const $flag = $bit; )*
            }
        }

        impl $name {
            /// The flags in the low bits of a word.
            #[inline(always)]
            #[must_use]
            pub const fn from_raw(raw: u64) -> Self {
                Self::from_bits_retain(raw as $int)
            }

            /// The flags as the low bits of a word.
            #[inline(always)]
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.bits() as u64
            }
        }

        impl $crate::Describe for $name {
            const BITS: u32 = <$int>::BITS;
            const CODES: Option<&'static $crate::Codes> = Some(&$crate::Codes {
                name: stringify!($name),
                module: module_path!(),
                doc: concat!($($doc, "\n"),*),
                bits: <$int>::BITS,
                flags: true,
                values: &[$( $crate::Code {
                    name: stringify!($flag),
                    doc: concat!($($fdoc, "\n"),*),
                    value: $bit,
                } ),*],
            });
        }

        impl $crate::Wire for $name {
            const SIZE: usize = <$int as $crate::Wire>::SIZE;
            const ALIGN: usize = <$int as $crate::Wire>::ALIGN;
            #[inline(always)]
            fn store(self, words: &mut [u64], offset: usize) {
                self.bits().store(words, offset);
            }
            #[inline(always)]
            fn load(words: &[u64], offset: usize) -> Self {
                Self::from_bits_retain(<$int as $crate::Wire>::load(words, offset))
            }
        }
    };
}

/// Declares numbers of the contract that belong to no entry and no register, and lists them.
macro_rules! constants {
    ($(
        $(#[doc = $doc:expr])*
        pub const $name:ident: $ty:ty = $value:expr;
    )*) => {
        $(
            $(#[doc = $doc])*
            pub const $name: $ty = $value;
        )*
        /// The numbers of this module.
        pub const CONSTANTS: &[$crate::Constant] = &[$( $crate::Constant {
            name: stringify!($name),
            module: module_path!(),
            doc: concat!($($doc, "\n"),*),
            value: $name as u64,
        } ),*];
    };
}

#[cfg(test)]
mod tests {
    layout! {
        /// An entry with every kind of field.
        pub struct Sample: 2 {
            /// One byte.
            byte @ 0x00: u8,
            /// Two bytes.
            half @ 0x02: u16,
            /// Four bytes.
            word @ 0x04: u32,
            /// Eight bytes.
            long @ 0x08: u64,
            /// A GID.
            gid @ 0x40: [u8; 16],
            /// The last byte.
            last @ 0x7f: u8,
        }
    }

    #[test]
    fn fields_stand_little_endian_at_their_offsets() {
        let sample = Sample {
            byte: 0x11,
            half: 0x2233,
            word: 0x4455_6677,
            long: 0x8899_aabb_ccdd_eeff,
            gid: core::array::from_fn(|i| i as u8 + 1),
            last: 0xee,
        };
        let blocks = sample.encode();
        let bytes: Vec<u8> = blocks.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(bytes[..8], [0x11, 0, 0x33, 0x22, 0x77, 0x66, 0x55, 0x44]);
        assert_eq!(bytes[8..16], 0x8899_aabb_ccdd_eeff_u64.to_le_bytes());
        assert_eq!(bytes[64..80], core::array::from_fn::<u8, 16, _>(|i| i as u8 + 1));
        assert_eq!(bytes[127], 0xee);
        assert_eq!(Sample::decode(&blocks), sample);
        assert_eq!(blocks.len(), Sample::BLOCKS);
        assert_eq!(Sample::LAYOUT.fields[5].doc, " The last byte.\n");
    }
}
