//! A window that also keeps to a rate of its queue pair's owner, or of a path.

use fpga_regs::engine::qp::static_rate_megabits;

use super::pacer::Pacer;
use super::{Acked, AnyWindow, Window};
use crate::error::OutOfRange;
use crate::param;
use crate::types::Instant;

/// The most that a queue pair sends. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// In kb/s, from [`param::LEAST_RATE`] to [`param::MOST_RATE`]; 0 for no limit.
    pub kilobits: u32,
    /// Bytes that may leave at once in spite of that, if there is a limit, with one packet more.
    pub burst: u32,
}

impl RateLimit {
    /// Refuses values that are out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        match self.kilobits {
            0 => OutOfRange::check("a burst without a rate", self.burst, 0, 0),
            rate => OutOfRange::check("rate_limit", rate, param::LEAST_RATE, param::MOST_RATE),
        }
    }
}

/// The lower of a queue pair's limit and of its path's, in kb/s, where 0 is none: the path's by its code. A path as fast as the
/// port holds nothing back, nor does one of a code without a rate.
pub(crate) fn lower(kilobits: u32, static_rate: u8) -> u32 {
    let megabits = static_rate_megabits(static_rate).unwrap_or_default();
    match (kilobits, megabits.saturating_mul(1_000)) {
        (own, 0 | param::MOST_RATE..) => own,
        (0, path) => path,
        (own, path) => own.min(path),
    }
}

/// A queue pair's own window, and a rate beside it: a packet leaves when both let it go.
#[derive(Debug)]
pub struct Limited {
    inner: AnyWindow,
    pacer: Pacer,
    /// Bytes that may leave early.
    burst: u32,
}

impl Limited {
    /// A window with a limit, which is not 0, in kb/s.
    pub(crate) fn new(inner: AnyWindow, kilobits: u32, burst: Option<u32>) -> Self {
        let mut limited = Self { inner, pacer: Pacer::default(), burst: 0 };
        limited.set(kilobits, burst);
        limited
    }

    /// Has another limit from the next packet on, and another burst, if it is to have one.
    pub(crate) fn set(&mut self, kilobits: u32, burst: Option<u32>) {
        self.pacer.set(u64::from(kilobits).saturating_mul(1_000));
        self.burst = burst.unwrap_or(self.burst);
    }

    /// The window without the limit.
    pub(crate) fn into_inner(self) -> AnyWindow {
        self.inner
    }
}

impl Window for Limited {
    // RC-109
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        if self.inner.paces() {
            self.inner.on_sent(now, bytes);
        }
        self.pacer.leaves(now, bytes);
    }

    fn on_ack(&mut self, now: Instant, acked: Acked) {
        self.inner.on_ack(now, acked);
    }

    fn on_loss(&mut self, now: Instant) {
        self.inner.on_loss(now);
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        self.inner.on_cnp(now)
    }

    fn on_timeout(&mut self, now: Instant) {
        self.inner.on_timeout(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    // RC-109
    fn earliest_departure(&self) -> Option<Instant> {
        self.pacer.next_ahead(self.burst).max(self.inner.earliest_departure())
    }

    fn asks_for_marks(&self) -> bool {
        self.inner.asks_for_marks()
    }
}

#[cfg(test)]
mod tests {
    use trial::rng::Rng;

    use super::*;
    use crate::service::Service;
    use crate::window::{Dcqcn, DcqcnParameters};

    const MEGABIT: u32 = 1_000;

    /// The bytes that leave until a time, where a packet of a drawn size waits whenever one may leave.
    fn sent(window: &mut AnyWindow, rng: &mut Rng, until: u64) -> u64 {
        let (mut now, mut sent) = (Instant(0), 0);
        loop {
            now = window.earliest_departure().unwrap_or(now).max(now);
            if now.0 >= until {
                return sent;
            }
            let bytes = 64 + rng.below(4096);
            window.on_sent(now, bytes as usize);
            sent += bytes;
        }
    }

    /// RC-109.
    #[test]
    fn a_rate_is_kept_to_within_a_packet_whatever_packets_leave() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            for kilobits in [param::LEAST_RATE, 333 * MEGABIT, 25_781 * MEGABIT] {
                let mut window = AnyWindow::of(Service::Rc);
                window.limit(kilobits, None);
                // As long as some thousand packets take.
                let nanos = 4_000_000_000_000_000 / u64::from(kilobits) / 1_000;
                let bytes = sent(&mut window, &mut rng, nanos);
                let due = u64::from(kilobits) * nanos / 8_000_000;
                assert!((due..due + 4160).contains(&bytes), "{seed}: {bytes} of {due}");
            }
        }
    }

    /// RC-109.
    #[test]
    fn a_burst_leaves_at_once_and_no_more_than_that() {
        let mut rng = Rng::new(7);
        let mut window = AnyWindow::of(Service::Uc);
        window.limit(8 * MEGABIT, Some(9_000));
        let mut at_once = 0;
        while window.earliest_departure().is_none_or(|at| at <= Instant(1 << 30)) {
            window.on_sent(Instant(1 << 30), 1_000);
            at_once += 1;
        }
        assert_eq!(at_once, 10);
        let mut window = AnyWindow::of(Service::Uc);
        window.limit(8 * MEGABIT, Some(9_000));
        // A second at 8 Mb/s is a megabyte.
        let bytes = sent(&mut window, &mut rng, Instant::SECOND);
        assert!((1_009_000..1_009_000 + 4160).contains(&bytes), "{bytes}");
    }

    /// RC-109.
    #[test]
    fn of_a_limit_and_a_notified_window_the_slower_counts() {
        const LINE: u64 = 10_000_000_000;
        let second_of = |kilobits| {
            let dcqcn = Dcqcn::new(LINE, DcqcnParameters::paper(LINE)).unwrap();
            let mut window = AnyWindow::Other(Box::new(dcqcn));
            window.limit(kilobits, None);
            window.on_sent(Instant(0), 1_000);
            assert!(window.on_cnp(Instant(0)) && window.asks_for_marks());
            window.on_sent(Instant(1_000), 1_000);
            window.earliest_departure().unwrap().0
        };
        // The line's rate is cut to about a half, of which a packet takes 1.6 µs.
        let notified = second_of(9_900 * MEGABIT);
        assert!((2_590..2_610).contains(&notified), "{notified}");
        assert_eq!(second_of(100 * MEGABIT), 160_000);
    }

    #[test]
    fn a_limit_that_ends_leaves_the_window_as_it_is_without_one() {
        let mut window = AnyWindow::of(Service::Rc);
        let free = format!("{window:?}");
        window.limit(0, None);
        assert!(!window.paces());
        window.limit(MEGABIT, None);
        window.on_sent(Instant(0), 125);
        assert_eq!((window.paces(), window.earliest_departure()), (true, Some(Instant(1_000_000))));
        window.limit(2 * MEGABIT, None);
        window.on_sent(Instant(1_000_000), 125);
        assert_eq!(window.earliest_departure(), Some(Instant(1_500_000)));
        window.limit(0, None);
        assert_eq!((window.paces(), format!("{window:?}")), (false, free));
    }

    #[test]
    fn a_path_slower_than_the_limit_or_the_port_counts() {
        let rate = lower;
        // 2.5, 10, 25.781 and 103.125 Gb/s, and none.
        assert_eq!(
            [2, 3, 15, 16, 0].map(|code| rate(0, code)),
            [2_500_000, 10_000_000, 25_781_000, 0, 0]
        );
        assert_eq!([2, 3, 16].map(|code| rate(5_000_000, code)), [2_500_000, 5_000_000, 5_000_000]);
        assert_eq!([1, 25, 255].map(|code| rate(7_000, code)), [7_000; 3]);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let all = RateLimit { kilobits: 1_000, burst: 4_096 };
        assert_eq!((all.check(), RateLimit::default().check()), (Ok(()), Ok(())));
        for (bad, text) in [
            (RateLimit { kilobits: 0, ..all }, "a burst without a rate is 4096; it can be 0 to 0"),
            (RateLimit { kilobits: 999, ..all }, "rate_limit is 999; it can be 1000 to 100000000"),
            (
                RateLimit { kilobits: 100_000_001, ..all },
                "rate_limit is 100000001; it can be 1000 to 100000000",
            ),
        ] {
            assert_eq!(bad.check().unwrap_err().to_string(), text);
        }
    }
}
