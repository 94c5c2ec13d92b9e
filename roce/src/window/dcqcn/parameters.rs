//! DCQCN's parameters: names, sets of values, ranges.

use crate::error::OutOfRange;

/// Bits of mlx5's field for times and for rates.
const WIDE: u32 = (1 << 17) - 1;
/// Bits of its fields for `dce_tcp_g` and `initial_alpha_value`.
const FRACTION: u32 = (1 << 10) - 1;

/// The parameters of the reaction point. Names and ranges are mlx5's, but for `byte_reset`, which the paper wants
/// larger. Times are in microseconds, rates in Mb/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcqcnParameters {
    /// Whether every cut makes the rate before it the target.
    pub clamp_tgt_rate: bool,
    /// It does if the timer has raised the rate since the cut before. If the byte counter has, it always does.
    pub clamp_tgt_rate_ati: bool,
    /// The time without a cut from one increase to the next, at least 1.
    pub time_reset: u32,
    /// Bytes sent without a cut from one increase to the next, in units of 64; 0: bytes are not counted.
    pub byte_reset: u32,
    /// Increases towards the target, by timer or byte counter, before the target grows itself: 1 to 31.
    pub threshold: u32,
    /// The step of the target's growth then, in Mb/s, at least 1.
    pub ai_rate: u32,
    /// The step for each increase that both have had beyond the threshold.
    pub hai_rate: u32,
    /// The largest rate; 0 for the line's.
    pub max_rate: u32,
    /// The smallest rate; 0 for a hundredth of the line's. mlx5's own is 1.
    pub min_rate: u32,
    /// A cut leaves so many percent of the rate at least: 1 to 100.
    pub min_dec_fac: u32,
    /// The rate that the first notification sets; 0: it is a cut as all others.
    pub rate_to_set_on_first_cnp: u32,
    /// The part of alpha that stays at each of its updates, in 1,024ths: below 1,024.
    pub dce_tcp_g: u32,
    /// The time from one update of alpha to the next without a notification, at least 1.
    pub dce_tcp_rtt: u32,
    /// The shortest time from one cut to the next.
    pub rate_reduce_monitor_period: u32,
    /// Alpha at the first notification, in 1,024ths: below 1,024.
    pub initial_alpha_value: u32,
    /// A cut takes alpha, in 1,024ths, over 2^gd of the rate: 0 to 15.
    pub gd: u32,
}

impl DcqcnParameters {
    /// The parameters of the paper (Zhu et al., SIGCOMM 2015, for 40 Gb/s), with rates in proportion to the line's,
    /// which is in bits per second. For notifications 50 µs apart, and marks from 5 to 200 KB with a probability of up
    /// to 1 %, both in the same proportion.
    #[must_use]
    pub const fn paper(line: u64) -> Self {
        // 40 Mb/s of 40 Gb/s.
        let thousandth = line / 1_000_000_000;
        let step = if thousandth == 0 {
            1
        } else if thousandth > WIDE as u64 {
            WIDE
        } else {
            thousandth as u32
        };
        Self {
            clamp_tgt_rate: true,
            clamp_tgt_rate_ati: true,
            time_reset: 55,
            // 10 MB.
            byte_reset: 156_250,
            threshold: 5,
            ai_rate: step,
            // The paper names none.
            hai_rate: step,
            max_rate: 0,
            min_rate: 0,
            min_dec_fac: 50,
            rate_to_set_on_first_cnp: 0,
            // 1 - 1/256.
            dce_tcp_g: 1020,
            dce_tcp_rtt: 55,
            rate_reduce_monitor_period: 50,
            initial_alpha_value: 1023,
            // Alpha over 2.
            gd: 11,
        }
    }

    /// mlx5's defaults, but for the smallest rate. For notifications 4 µs apart.
    #[must_use]
    pub const fn mlx5() -> Self {
        Self {
            clamp_tgt_rate: false,
            clamp_tgt_rate_ati: true,
            time_reset: 300,
            byte_reset: 32_767,
            threshold: 1,
            ai_rate: 5,
            hai_rate: 50,
            max_rate: 0,
            min_rate: 0,
            min_dec_fac: 50,
            rate_to_set_on_first_cnp: 0,
            dce_tcp_g: 1019,
            dce_tcp_rtt: 1,
            rate_reduce_monitor_period: 4,
            initial_alpha_value: 1023,
            gd: 11,
        }
    }

    /// Refuses values that are out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let mut all = *self;
        for (name, value, least, most) in all.numbers() {
            OutOfRange::check(name, *value, least, most)?;
        }
        Ok(())
    }

    /// Sets a parameter by its name: `None` where there is none of that name. 1 stands for on, and 0 for off.
    pub fn set(&mut self, name: &str, value: u32) -> Option<Result<(), OutOfRange>> {
        let is_switch = |name| OutOfRange::check(name, value, 0, 1).map(|()| value == 1);
        for (known, switch) in [
            ("clamp_tgt_rate", &mut self.clamp_tgt_rate),
            ("clamp_tgt_rate_ati", &mut self.clamp_tgt_rate_ati),
        ] {
            if name == known {
                return Some(is_switch(known).map(|is_on| *switch = is_on));
            }
        }
        let number = self.numbers().into_iter().find(|(known, ..)| *known == name);
        let (name, place, least, most) = number?;
        Some(OutOfRange::check(name, value, least, most).map(|()| *place = value))
    }

    /// All that are numbers: their names, values and ranges.
    fn numbers(&mut self) -> [(&'static str, &mut u32, u32, u32); 14] {
        [
            ("time_reset", &mut self.time_reset, 1, WIDE),
            ("byte_reset", &mut self.byte_reset, 0, (1 << 20) - 1),
            ("threshold", &mut self.threshold, 1, 31),
            ("ai_rate", &mut self.ai_rate, 1, WIDE),
            ("hai_rate", &mut self.hai_rate, 0, WIDE),
            ("max_rate", &mut self.max_rate, 0, (1 << 31) - 1),
            ("min_rate", &mut self.min_rate, 0, WIDE),
            ("min_dec_fac", &mut self.min_dec_fac, 1, 100),
            ("rate_to_set_on_first_cnp", &mut self.rate_to_set_on_first_cnp, 0, WIDE),
            ("dce_tcp_g", &mut self.dce_tcp_g, 0, FRACTION),
            ("dce_tcp_rtt", &mut self.dce_tcp_rtt, 1, WIDE),
            ("rate_reduce_monitor_period", &mut self.rate_reduce_monitor_period, 0, WIDE),
            ("initial_alpha_value", &mut self.initial_alpha_value, 0, FRACTION),
            ("gd", &mut self.gd, 0, 15),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_are_in_range_and_what_is_not_is_refused_by_name() {
        for line in [0, 1_000_000, 10_000_000_000, 100_000_000_000, u64::MAX] {
            assert_eq!(DcqcnParameters::paper(line).check(), Ok(()), "{line}");
        }
        let mlx5 = DcqcnParameters::mlx5();
        assert_eq!(mlx5.check(), Ok(()));
        for (bad, text) in [
            (DcqcnParameters { time_reset: 0, ..mlx5 }, "time_reset is 0; it can be 1 to 131071"),
            (DcqcnParameters { gd: 16, ..mlx5 }, "gd is 16; it can be 0 to 15"),
            (DcqcnParameters { dce_tcp_g: 1024, ..mlx5 }, "dce_tcp_g is 1024; it can be 0 to 1023"),
            (DcqcnParameters { threshold: 0, ..mlx5 }, "threshold is 0; it can be 1 to 31"),
            (DcqcnParameters { min_dec_fac: 0, ..mlx5 }, "min_dec_fac is 0; it can be 1 to 100"),
        ] {
            assert_eq!(bad.check().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn each_is_set_by_its_name_within_its_range() {
        let mut set = DcqcnParameters::mlx5();
        assert_eq!(set.set("min_rate", 7), Some(Ok(())));
        assert_eq!(set.set("clamp_tgt_rate", 1), Some(Ok(())));
        assert_eq!((set.min_rate, set.clamp_tgt_rate), (7, true));
        for (name, value, text) in [
            ("gd", 16, "gd is 16; it can be 0 to 15"),
            ("clamp_tgt_rate_ati", 2, "clamp_tgt_rate_ati is 2; it can be 0 to 1"),
        ] {
            assert_eq!(set.set(name, value).unwrap().unwrap_err().to_string(), text);
        }
        assert_eq!(set.set("np", 1), None);
        assert_eq!(
            set,
            DcqcnParameters { min_rate: 7, clamp_tgt_rate: true, ..DcqcnParameters::mlx5() }
        );
    }
}
