//! A network of ternary weights over the bits of a word, as BALBOA's artifact has one.

/// Bytes of a word.
pub const WORD: usize = 64;
/// Units of the layers; the last one has one unit, the score.
const ONE: usize = 32;
const TWO: usize = 64;
const THREE: usize = 64;
/// The greatest output of a unit, of 3 bits.
const MOST: u8 = 7;
/// Values of a digit: four bits of a word, or a unit's output.
const VALUES: usize = 16;
/// The sums of so many digits, of which each adds from -7 to 7, fit a byte.
const GROUP: usize = 16;

/// A layer of `N` units.
///
/// Its inputs come as digits. The contributions of each value of each digit to the sums are kept ready, so a sum is a few
/// additions of vectors.
struct Layer<const N: usize> {
    digits: Vec<[[i8; N]; VALUES]>,
    /// The binary logarithm of the divisor of the sums.
    shift: u32,
}

impl<const N: usize> Layer<N> {
    /// A layer by the weights of its units. A digit has so many inputs, `part` their values by their place in the digit.
    fn new(
        units: &[Vec<i8>],
        inputs: usize,
        part: fn(u8, usize) -> i8,
        shift: u32,
    ) -> Option<Self> {
        let count = units.first()?.len().checked_div(inputs)?;
        let mut digits = vec![[[0; N]; VALUES]; count];
        for (number, digit) in digits.iter_mut().enumerate() {
            for (value, sums) in (0..).zip(digit) {
                for (sum, weights) in sums.iter_mut().zip(units) {
                    let weights = weights.chunks(inputs).nth(number)?.iter().enumerate();
                    let parts = weights.map(|(at, weight)| weight.wrapping_mul(part(value, at)));
                    *sum = parts.fold(0, i8::wrapping_add);
                }
            }
        }
        Some(Self { digits, shift })
    }

    /// The outputs of its units: the sums, divided, rounded down, and cut to what they can be.
    #[inline]
    fn outputs(&self, input: &[u8]) -> [u8; N] {
        let mut sums = [0i16; N];
        for (digits, values) in self.digits.chunks(GROUP).zip(input.chunks(GROUP)) {
            let mut group = [0i8; N];
            for (digit, value) in digits.iter().zip(values) {
                let Some(row) = digit.get(usize::from(*value)) else { continue };
                group.iter_mut().zip(row).for_each(|(sum, part)| *sum = sum.wrapping_add(*part));
            }
            let wide = sums.iter_mut().zip(group);
            wide.for_each(|(sum, part)| *sum = sum.wrapping_add(i16::from(part)));
        }
        sums.map(|sum| sum.wrapping_shr(self.shift).clamp(0, i16::from(MOST)) as u8)
    }
}

/// The network.
pub struct Network {
    one: Layer<ONE>,
    two: Layer<TWO>,
    three: Layer<THREE>,
    last: [i16; THREE],
    bias: i32,
}

/// A line of numbers.
fn numbers<T: std::str::FromStr>(line: &str) -> Option<Vec<T>> {
    line.split(' ').map(|number| number.parse().ok()).collect()
}

/// The weights of so many units, a line each: a character for each input.
fn units<'a>(
    lines: &mut impl Iterator<Item = &'a str>,
    count: usize,
    inputs: usize,
) -> Option<Vec<Vec<i8>>> {
    let weight = |character| match character {
        '+' => Some(1),
        '0' => Some(0),
        '-' => Some(-1),
        _ => None,
    };
    let unit = |line: &str| -> Option<Vec<i8>> { line.chars().map(weight).collect() };
    let units: Option<Vec<_>> = lines.take(count).map(unit).collect();
    units.filter(|all| all.len() == count && all.iter().all(|unit| unit.len() == inputs))
}

impl Network {
    /// Reads a network from a text: lines that begin with # say nothing; three shifts; a line for each unit of each
    /// layer; the weights of the score; its bias. `None` where it is no such text.
    pub fn parse(text: &str) -> Option<Self> {
        let lines = &mut text.lines().filter(|line| !line.starts_with('#'));
        let shifts: [u32; 3] = numbers(lines.next()?)?.try_into().ok()?;
        if shifts.iter().any(|shift| *shift >= i16::BITS) {
            return None;
        }
        let [one, two, three] = shifts;
        let mut bits = units(lines, ONE, 8 * WORD)?;
        // Input 0 is the last bit of the word, which a digit has in their own order.
        bits.iter_mut().for_each(|unit| unit.reverse());
        let bit = |value: u8, at: usize| {
            i8::from(value.checked_shr(at as u32).is_some_and(|it| it & 1 == 1))
        };
        let value = |value: u8, _: usize| value.min(MOST) as i8;
        Some(Self {
            one: Layer::new(&bits, 4, bit, one)?,
            two: Layer::new(&units(lines, TWO, ONE)?, 1, value, two)?,
            three: Layer::new(&units(lines, THREE, TWO)?, 1, value, three)?,
            last: numbers(lines.next()?)?.try_into().ok()?,
            bias: lines.next()?.parse().ok()?,
        })
    }

    /// The score of a word: above 0 for what the network was taught to find.
    #[inline]
    pub fn score(&self, word: &[u8; WORD]) -> i32 {
        let mut digits = [[0; 2]; WORD];
        for (digits, byte) in digits.iter_mut().zip(word) {
            *digits = [byte & 0xf, byte >> 4];
        }
        let one = self.one.outputs(digits.as_flattened());
        let three = self.three.outputs(&self.two.outputs(&one));
        let parts = self.last.iter().zip(three);
        let parts = parts.map(|(weight, output)| i32::from(*weight).wrapping_mul(output.into()));
        parts.fold(self.bias, i32::saturating_add)
    }
}
