//! Messages: a value for each, made from the bytes of a datagram and made into them.
//!
//! Where the fields of a message lie stands once, in its `layout!`: the byte, the bit in it (0 is
//! the most significant one), and how many bits, as in the tables of the specification's section
//! 12.6. A layout that does not fit its message does not compile, so that nothing is left to check
//! when bytes are read. All fields are big-endian; the gaps between them are reserved, written as
//! zeros, and not read (CM-2).

use core::net::Ipv6Addr;

mod ip;
mod mad;
mod message;
mod path_record;

pub use ip::IpHeader;
pub use mad::{Attribute, HEADER_LENGTH, LENGTH, Mad};
pub use message::{
    AlternatePath, Apr, Body, Drep, Dreq, Lap, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
};
pub use message::{ApPathStatus, RejectReason, Rejected, SidrStatus, TransportService};
pub use path_record::PathRecord;

/// Why bytes are no message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// More or fewer bytes than a management datagram has.
    #[error("{0} bytes, where a management datagram has 256")]
    Length(usize),
    /// A version, class or method that is not the connection manager's.
    #[error(
        "management datagram of version {base}, class {class:#04x} of version {version}, method {method:#04x}"
    )]
    Class {
        /// The base version.
        base: u8,
        /// The management class.
        class: u8,
        /// The class's version.
        version: u8,
        /// The method.
        method: u8,
    },
    /// An attribute that is none of the messages.
    #[error("attribute {0:#06x} is no message")]
    Attribute(u16),
    /// Private data does not begin with the addresses of a known version.
    #[error("private data begins without addresses of a known version")]
    IpHeader,
}

/// The bits of a message that a field has.
#[derive(Clone, Copy)]
pub(crate) struct FieldBits {
    /// The bytes that it touches.
    pub from: usize,
    /// The byte behind them.
    pub to: usize,
    /// Bits behind the field in the last of them.
    pub behind: u32,
    /// Bits of the field.
    pub width: u32,
}

impl FieldBits {
    /// A field of a message: its first byte and bit, and how many bits. It does not compile for one
    /// that does not fit.
    #[expect(clippy::arithmetic_side_effects, reason = "it is computed while compiling")]
    pub(crate) const fn of(length: usize, byte: usize, bit: usize, width: usize) -> Self {
        let behind = byte * 8 + bit + width;
        assert!(bit < 8 && width > 0 && behind <= length * 8, "the field is not in the message");
        assert!(width <= 64 || (bit == 0 && width % 8 == 0), "a long field has whole bytes");
        let to = behind.div_ceil(8);
        Self { from: byte, to, behind: (to * 8 - behind) as u32, width: width as u32 }
    }

    /// The bits of the field, where it has at most 64, or a whole number of bytes.
    fn load(self, bytes: &[u8]) -> u128 {
        let touched = bytes.get(self.from..self.to).unwrap_or_default();
        let all = touched.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        all.wrapping_shr(self.behind) & self.mask()
    }

    /// Sets the bits of the field to the lowest of `value`.
    fn store(self, bytes: &mut [u8], value: u128) {
        let mut bits = (value & self.mask()).wrapping_shl(self.behind);
        let mut mask = self.mask().wrapping_shl(self.behind);
        for byte in bytes.get_mut(self.from..self.to).unwrap_or_default().iter_mut().rev() {
            *byte = *byte & !(mask as u8) | bits as u8;
            bits >>= 8;
            mask >>= 8;
        }
    }

    fn mask(self) -> u128 {
        u128::MAX.wrapping_shr(128_u32.saturating_sub(self.width))
    }
}

/// A type of a field's values.
pub(crate) trait Value: Copy {
    /// The value of a field that was never set.
    const ZERO: Self;
    /// Reads the field.
    fn load(bytes: &[u8], place: FieldBits) -> Self;
    /// Writes the field; bits that it has no room for are left out.
    fn store(self, bytes: &mut [u8], place: FieldBits);
}

macro_rules! number {
    ($($number:ty),*) => {$(
        impl Value for $number {
            const ZERO: Self = 0;

            fn load(bytes: &[u8], place: FieldBits) -> Self {
                place.load(bytes) as Self
            }

            fn store(self, bytes: &mut [u8], place: FieldBits) {
                place.store(bytes, u128::from(self));
            }
        }
    )*};
}

number!(u8, u16, u32, u64);

impl Value for bool {
    const ZERO: Self = false;

    fn load(bytes: &[u8], place: FieldBits) -> Self {
        place.load(bytes) != 0
    }

    fn store(self, bytes: &mut [u8], place: FieldBits) {
        place.store(bytes, u128::from(self));
    }
}

impl Value for Ipv6Addr {
    const ZERO: Self = Self::UNSPECIFIED;

    fn load(bytes: &[u8], place: FieldBits) -> Self {
        Self::from_bits(place.load(bytes))
    }

    fn store(self, bytes: &mut [u8], place: FieldBits) {
        place.store(bytes, self.to_bits());
    }
}

impl<const N: usize> Value for [u8; N] {
    const ZERO: Self = [0; N];

    fn load(bytes: &[u8], place: FieldBits) -> Self {
        let field = bytes.get(place.from..place.to).unwrap_or_default();
        field.first_chunk().copied().unwrap_or([0; N])
    }

    fn store(self, bytes: &mut [u8], place: FieldBits) {
        if let Some(field) = bytes.get_mut(place.from..place.to) {
            if let Some(field) = field.first_chunk_mut() {
                *field = self;
            }
        }
    }
}

/// The bytes as the start of a field of private data; `None` where they do not fit.
pub(crate) fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut field = [0; N];
    field.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(field)
}

/// A message, or a part of one: its length in bytes, and each field with its type, first byte, bit
/// in that byte, and bits.
macro_rules! layout {
    (
        $(#[$about:meta])*
        $name:ident of $length:literal {
            $($(#[$about_field:meta])* $field:ident: $value:ty = $byte:literal:$bit:literal + $width:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about_field])* pub $field: $value,)*
        }

        impl $name {
            /// Each field: its name, the number of its first bit, and how many they are.
            #[cfg(test)]
            #[allow(dead_code, reason = "the layouts of headers are tried by their bytes")]
            pub(crate) const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $byte * 8 + $bit, $width)),*];

            /// Nothing but zeros.
            pub const ZERO: Self =
                Self { $($field: <$value as $crate::wire::Value>::ZERO,)* };

            /// Reads the fields out of the bytes.
            #[must_use]
            pub fn load(bytes: &[u8; $length]) -> Self {
                use $crate::wire::Value as _;
                Self { $($field: <$value>::load(
                    bytes,
                    const { $crate::wire::FieldBits::of($length, $byte, $bit, $width) },
                ),)* }
            }

            /// Writes the fields into the bytes.
            pub fn store(&self, bytes: &mut [u8; $length]) {
                use $crate::wire::Value as _;
                $(self.$field.store(
                    bytes,
                    const { $crate::wire::FieldBits::of($length, $byte, $bit, $width) },
                );)*
            }

            /// The bytes.
            #[must_use]
            pub fn to_bytes(self) -> [u8; $length] {
                let mut bytes = [0; $length];
                self.store(&mut bytes);
                bytes
            }
        }
    };
}

/// An open set of numbers, some of which have names.
macro_rules! open {
    (
        $(#[$about:meta])*
        $name:ident($number:ty) {
            $($(#[$about_value:meta])* $value:ident = $code:literal, $text:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);

        #[allow(missing_docs, reason = "the text beside each is what it says")]
        impl $name {
            $($(#[$about_value])* pub const $value: Self = Self($code);)*
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.0 {
                    $($code => f.write_str($text),)*
                    other => write!(f, "unknown ({other})"),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }

        impl $crate::wire::Value for $name {
            const ZERO: Self = Self(0);

            fn load(bytes: &[u8], place: $crate::wire::FieldBits) -> Self {
                Self(<$number as $crate::wire::Value>::load(bytes, place))
            }

            fn store(self, bytes: &mut [u8], place: $crate::wire::FieldBits) {
                self.0.store(bytes, place);
            }
        }
    };
}

pub(crate) use {layout, open};
