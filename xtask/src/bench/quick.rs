//! The main rows, in some two minutes: of each kind of thing that a change could make slower.

use anyhow::Result;

use super::figures::{Column, Figures};
use super::perftest::{Bandwidth, Devices};
use super::{BULK, Rounds, instructions};

impl Rounds<'_> {
    /// Measures them once; rows that hardly differ between rounds, in the first.
    ///
    /// # Errors
    /// When a measurement fails.
    pub(super) fn main_rows(&self, is_first: bool, figures: &mut Figures) -> Result<()> {
        let cards = Devices::Cards(self.clean);
        let short = Bandwidth::of("write", 64, self.effort.seconds).run(cards)?;
        figures.add("write_bw_64", Column::Balboa, short.megabytes);
        figures.add("write_rate_64", Column::Balboa, short.messages);
        self.bandwidths(BULK, figures)?;
        self.one_and_many(figures)?;
        self.spinners(figures)?;
        self.main_latencies(figures)?;
        self.mpi.measure(self.clean, figures)?;
        if is_first {
            let programs = self.programs;
            let mut add = |metric: &str, value| figures.add(metric, Column::Balboa, value);
            instructions::measure(programs, self.clean, self.effort.counted, &mut add)?;
            add("connects_per_s", programs.connects(cards, self.effort.seconds)?);
            add("idle_cpu_percent", programs.idle_cpu(self.clean, self.effort.idle)?);
        }
        Ok(())
    }
}
