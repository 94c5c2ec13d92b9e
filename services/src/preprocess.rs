//! Preprocessing of rows of features, as the CPU reference of BALBOA's artifact does it.

use std::borrow::Cow;

use crate::part::{Operations, Part};
use crate::service::{About, Budget, Halt, PacketService, Placing, Stages};

/// Columns of a row, each a 32-bit integer, little-endian.
pub const ROW: u64 = 48;
/// The first so many columns are dense.
pub const DENSE: u64 = 16;
/// The others are sparse: numbers modulo this.
pub const MODULUS: i32 = 8192;

/// Bytes of a column.
const COLUMN: usize = 4;
/// The longest payload of a packet, in columns.
const MOST: u32 = 4096 / COLUMN as u32;

/// Makes floating-point features of rows of integers, in their place: a message is rows one behind the other.
///
/// A dense column becomes the logarithm of 1 more than it, and 0 where it is negative; a sparse one its remainder,
/// which is never negative. Both are 32-bit floating-point numbers, little-endian. The column follows from the offset
/// in the message, so rows may cross the borders of packets, and nothing is remembered. Bytes behind the last whole
/// column stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preprocess;

impl Preprocess {
    pub(crate) const ABOUT: About = About {
        name: Cow::Borrowed("preprocess"),
        summary: Cow::Borrowed(
            "rows of 48 integers become features: 16 times log1p(max(x, 0)), 32 times x mod 8192, as 32-bit floats",
        ),
        stages: Stages { check: false, act: true, rewrites: true, transform: false },
        operations: Operations::REMOTE,
        takes: Some("int32 rows"),
        gives: Some("float32 rows"),
        check_state: 0,
        act_state: 0,
        work: MOST,
    };

    /// The feature of a column's value.
    #[inline]
    fn feature(column: u64, value: i32) -> f32 {
        if column < DENSE {
            // Rounded once, from far more digits than are kept.
            f64::from(value.max(0)).ln_1p() as f32
        } else {
            // Below 2^24, so exact.
            value.rem_euclid(MODULUS) as f32
        }
    }
}

impl PacketService for Preprocess {
    fn about(&self) -> &About {
        &Self::ABOUT
    }

    fn act(
        &self,
        part: &Part,
        placing: &mut Placing<'_>,
        _state: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), Halt> {
        // Packets other than a message's last are as long as the path MTU, a multiple of a column.
        let columns = placing.bytes.chunks_exact_mut(COLUMN);
        budget.spend(u32::try_from(columns.len()).unwrap_or(u32::MAX))?;
        let first = part.offset.div_euclid(COLUMN as u64);
        for (number, column) in (first..).zip(columns) {
            let Ok(bytes) = <&mut [u8; COLUMN]>::try_from(column) else { break };
            let feature = Self::feature(number.rem_euclid(ROW), i32::from_le_bytes(*bytes));
            *bytes = feature.to_le_bytes();
        }
        Ok(())
    }
}
