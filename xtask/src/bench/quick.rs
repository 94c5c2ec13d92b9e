//! The main rows, in some two minutes: one of each kind of thing that a change could make slower.

use anyhow::Result;

use super::figures::Figures;
use super::{BULK, Rounds};

impl Rounds<'_> {
    /// Measures them once.
    ///
    /// # Errors
    /// When a measurement fails.
    pub(super) fn main_rows(&self, is_first: bool, figures: &mut Figures) -> Result<()> {
        for size in [64, BULK] {
            self.bandwidths(size, figures)?;
        }
        self.many_and_lossy(figures)?;
        self.rate("send_rate_64", "", figures)?;
        self.latencies(figures)?;
        self.mpi.measure(self.clean, figures)?;
        // They hardly change from round to round, and take a third of the time.
        if is_first {
            self.costs(figures)?;
        }
        Ok(())
    }
}
