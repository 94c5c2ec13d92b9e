//! DCQCN's reaction point (Zhu et al., SIGCOMM 2015; QCN's is IEEE 802.1Qau's): a rate that notifications cut, and that
//! time and bytes without one bring back.
//!
//! * A notification cuts the rate by `alpha`/2, which it moves towards 1. Without one, alpha decays.
//! * The rate before a cut is its *target*. Each `time_reset`, and each `byte_reset` that is sent, the rate goes
//!   half of the way there. After `threshold` such steps the target itself grows, and faster once both timer and byte
//!   counter have had more.
//!
//! No timer fires each microsecond: the window catches up with elapsed time when the next packet leaves or the next
//! notification comes, in a bounded number of steps.

use super::pacer::Pacer;
use super::slow_start::SlowStart;
use super::{Acked, AnyWindow, Window};
use crate::error::OutOfRange;
use crate::service::Service;
use crate::types::{Instant, Qpn};

mod parameters;

pub use parameters::DcqcnParameters;

/// One, in the scale of alpha: 2^32.
const WHOLE: u64 = 1 << 32;
/// Bits that alpha has beyond mlx5's ten.
const ALPHA_SHIFT: u32 = 22;
const MEGABIT: u64 = 1_000_000;
const MICROSECOND: u64 = 1_000;

/// Increases by the byte counter are told apart up to here.
const MOST_BYTE_STAGES: u64 = 63;
/// Steps halfway to a target after which the starting point no longer matters.
const SETTLED: u64 = 40;

/// The rate of one queue pair. How much of it may be unacknowledged, [`SlowStart`] says.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    limits: Limits,
    amount: SlowStart,
    pacer: Pacer,
    /// A packet has left.
    has_sent: bool,
    /// Bits per second.
    rate: u64,
    target: u64,
    /// The share of marked packets of late, in 2^-32.
    alpha: u64,
    /// A notification has come: before the first the rate is the line's.
    is_limited: bool,
    /// Up to when alpha, and then the timer's increases, are caught up with.
    alpha_at: Instant,
    time_at: Instant,
    /// Bytes sent since the last increase by the byte counter.
    bytes: u64,
    time_stage: u64,
    byte_stage: u64,
    /// No cut is before. One may wait for that.
    next_cut: Instant,
    waits: bool,
}

/// The parameters, in bits per second, nanoseconds and bytes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    parameters: DcqcnParameters,
    line: u64,
    least: u64,
    most: u64,
    /// The part of alpha that stays at each update, in 2^-32.
    kept: u64,
    alpha_period: u64,
    time_period: u64,
    cut_period: u64,
    byte_period: u64,
    threshold: u64,
    ai_rate: u64,
    hai_rate: u64,
}

impl Limits {
    fn new(line: u64, parameters: DcqcnParameters) -> Self {
        let p = parameters;
        let line = line.max(MEGABIT);
        let rate = |mbits: u32| u64::from(mbits).saturating_mul(MEGABIT);
        let nanos = |micros: u32| u64::from(micros).saturating_mul(MICROSECOND);
        let most = if p.max_rate == 0 { line } else { rate(p.max_rate).min(line) };
        let least = if p.min_rate == 0 { line / 100 } else { rate(p.min_rate) };
        Self {
            parameters,
            line,
            least: least.min(most),
            most,
            kept: u64::from(p.dce_tcp_g) << ALPHA_SHIFT,
            alpha_period: nanos(p.dce_tcp_rtt),
            time_period: nanos(p.time_reset),
            cut_period: nanos(p.rate_reduce_monitor_period),
            byte_period: u64::from(p.byte_reset).saturating_mul(64),
            threshold: p.threshold.into(),
            ai_rate: rate(p.ai_rate),
            hai_rate: rate(p.hai_rate),
        }
    }
}

impl Dcqcn {
    /// The reaction point of a queue pair on a line of so many bits per second.
    pub fn new(line: u64, parameters: DcqcnParameters) -> Result<Self, OutOfRange> {
        parameters.check()?;
        let limits = Limits::new(line, parameters);
        Ok(Self {
            limits,
            amount: SlowStart::default(),
            pacer: Pacer::default(),
            has_sent: false,
            rate: limits.most,
            target: limits.most,
            alpha: u64::from(parameters.initial_alpha_value) << ALPHA_SHIFT,
            is_limited: false,
            alpha_at: Instant::default(),
            time_at: Instant::default(),
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            next_cut: Instant::default(),
            waits: false,
        })
    }

    /// Windows for [`Stack::set_windows`](crate::Stack::set_windows): connections have one as this, which has not begun.
    /// Datagrams, which cause no notifications, have the stack's own.
    pub fn windows(self) -> impl Fn(Qpn, Service) -> AnyWindow + Clone + Send + 'static {
        move |_, service| match service {
            Service::Ud => AnyWindow::of(service),
            _ => AnyWindow::Other(Box::new(self.clone())),
        }
    }

    /// The present rate, in bits per second.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Makes up for the updates and increases up to a time.
    fn catch_up(&mut self, now: Instant) {
        if self.waits && self.next_cut <= now {
            self.elapse(self.next_cut);
            self.cut(self.next_cut);
        }
        self.elapse(now);
    }

    /// Time passes without a cut.
    fn elapse(&mut self, now: Instant) {
        if !self.is_limited {
            return;
        }
        let Limits { kept, alpha_period, time_period, .. } = self.limits;
        let updates = periods(&mut self.alpha_at, now, alpha_period);
        self.alpha = product(self.alpha, power(kept, updates));
        let increases = periods(&mut self.time_at, now, time_period);
        self.increase_by_time(increases);
    }

    /// The timer has expired so often.
    fn increase_by_time(&mut self, times: u64) {
        let mut left = times;
        let steady = self.limits.threshold.max(MOST_BYTE_STAGES);
        while left != 0 && !self.is_restored() {
            // From here on each step is as the one before: most of them are done as one.
            if self.time_stage > steady && left > SETTLED {
                let at_once = left.wrapping_sub(SETTLED);
                let by = self.growth().saturating_mul(at_once);
                self.time_stage = self.time_stage.saturating_add(at_once);
                self.target = self.target.saturating_add(by).min(self.limits.most);
                self.rate = self.rate.saturating_add(by).min(self.target);
                left = SETTLED;
            }
            self.time_stage = self.time_stage.saturating_add(1);
            self.increase();
            left = left.wrapping_sub(1);
        }
        self.time_stage = self.time_stage.saturating_add(left);
    }

    /// Bytes were sent.
    fn increase_by_bytes(&mut self, bytes: u64) {
        let period = self.limits.byte_period;
        if !self.is_limited || period == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        // A frame is at most some hundred of the shortest periods.
        while self.bytes >= period {
            self.bytes = self.bytes.wrapping_sub(period);
            self.byte_stage = self.byte_stage.saturating_add(1).min(MOST_BYTE_STAGES);
            self.increase();
        }
    }

    /// Whether nothing is left of any cut.
    fn is_restored(&self) -> bool {
        self.rate == self.limits.most && self.target == self.limits.most
    }

    /// The step of the target's growth.
    fn growth(&self) -> u64 {
        let Limits { threshold, ai_rate, hai_rate, .. } = self.limits;
        let [least, most] =
            [self.time_stage.min(self.byte_stage), self.time_stage.max(self.byte_stage)];
        if most < threshold {
            0
        } else if least > threshold {
            least.wrapping_sub(threshold).saturating_mul(hai_rate)
        } else {
            ai_rate
        }
    }

    /// One step up.
    fn increase(&mut self) {
        self.target = self.target.saturating_add(self.growth()).min(self.limits.most);
        self.rate = self.rate.saturating_add(self.target).div_ceil(2);
    }

    /// A notification counts.
    fn cut(&mut self, at: Instant) {
        let p = self.limits.parameters;
        let has_grown = self.byte_stage != 0 || p.clamp_tgt_rate_ati && self.time_stage != 0;
        if p.clamp_tgt_rate || has_grown {
            self.target = self.rate;
        }
        let first = (!self.is_limited).then_some(p.rate_to_set_on_first_cnp).filter(|it| *it != 0);
        let rate = match first {
            Some(mbits) => u64::from(mbits).saturating_mul(MEGABIT).min(self.rate),
            None => self.rate.saturating_sub(self.decrease()),
        };
        self.rate = rate.max(self.limits.least);
        self.alpha = product(self.alpha, self.limits.kept)
            .saturating_add(WHOLE.wrapping_sub(self.limits.kept));
        self.is_limited = true;
        (self.alpha_at, self.time_at) = (at, at);
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.next_cut = Instant(at.0.saturating_add(self.limits.cut_period));
        self.waits = false;
    }

    /// The part of the rate that a cut takes.
    fn decrease(&self) -> u64 {
        let p = self.limits.parameters;
        let most = percent(self.rate, 100_u32.saturating_sub(p.min_dec_fac));
        let by_alpha = u128::from(self.rate).saturating_mul(self.alpha.into());
        let by_alpha = by_alpha >> ALPHA_SHIFT >> p.gd;
        u64::try_from(by_alpha).unwrap_or(u64::MAX).min(most)
    }
}

impl Window for Dcqcn {
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.catch_up(now);
        self.increase_by_bytes(bytes as u64);
        self.has_sent = true;
        // The line itself keeps packets apart at its rate.
        match self.rate == self.limits.line {
            true => self.pacer = Pacer::default(),
            false => {
                self.pacer.set(self.rate);
                self.pacer.leaves(now, bytes);
            }
        }
    }

    fn on_ack(&mut self, now: Instant, acked: Acked) {
        self.amount.on_ack(now, acked);
    }

    fn on_loss(&mut self, now: Instant) {
        self.amount.on_loss(now);
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        // Nothing was sent that can have been marked.
        if !self.has_sent {
            return false;
        }
        self.catch_up(now);
        match self.next_cut <= now {
            true => self.cut(now),
            false => self.waits = true,
        }
        true
    }

    fn window(&self) -> u64 {
        self.amount.window()
    }

    fn earliest_departure(&self) -> Option<Instant> {
        self.pacer.next()
    }

    fn asks_for_marks(&self) -> bool {
        true
    }
}

/// How many whole periods have passed, which are none from then on.
fn periods(since: &mut Instant, now: Instant, period: u64) -> u64 {
    let passed = now.0.saturating_sub(since.0).checked_div(period).unwrap_or_default();
    since.0 = since.0.saturating_add(passed.saturating_mul(period));
    passed
}

/// The product of two fractions in 2^-32, neither of which is above 1.
fn product(one: u64, other: u64) -> u64 {
    let product = u128::from(one).saturating_mul(other.into()) >> 32;
    product as u64
}

/// A fraction in 2^-32, which is not above 1, to a power.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut power = WHOLE;
    while exponent != 0 && power != 0 {
        if exponent & 1 == 1 {
            power = product(power, base);
        }
        base = product(base, base);
        exponent >>= 1;
    }
    power
}

fn percent(rate: u64, percent: u32) -> u64 {
    let part = u128::from(rate).saturating_mul(percent.into()) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trial::rng::Rng;

    const G: u64 = 1_000_000_000;
    const LINE: u64 = 40 * G;

    fn paper() -> Dcqcn {
        Dcqcn::new(LINE, DcqcnParameters::paper(LINE)).unwrap()
    }

    /// One that has sent a packet.
    fn begun(mut dcqcn: Dcqcn) -> Dcqcn {
        dcqcn.on_sent(Instant(0), 4158);
        dcqcn
    }

    fn micros(micros: u64) -> Instant {
        Instant(micros * 1_000)
    }

    /// Whether two rates are the same to some bits per second.
    fn same(one: u64, other: u64) -> bool {
        one.abs_diff(other) < 64
    }

    /// RC-96.
    #[test]
    fn a_notification_counts_only_where_something_was_sent_that_can_have_been_marked() {
        let mut dcqcn = paper();
        assert!(dcqcn.asks_for_marks() && !dcqcn.on_cnp(micros(1)));
        assert_eq!(dcqcn.rate(), LINE);
        let mut dcqcn = begun(dcqcn);
        assert!(dcqcn.on_cnp(micros(1)));
        assert!(dcqcn.rate() < LINE);
    }

    #[test]
    fn a_cut_takes_half_of_alpha_and_recovery_goes_half_of_the_way_each_time() {
        let mut dcqcn = begun(paper());
        assert!(dcqcn.on_cnp(micros(100)));
        let cut = LINE - LINE * 1023 / 2048;
        assert!(same(dcqcn.rate(), cut), "{}", dcqcn.rate());
        assert_eq!(dcqcn.target, LINE);
        let mut expected = cut;
        for n in 1..5 {
            dcqcn.catch_up(micros(100 + 55 * n));
            expected = (expected + LINE) / 2;
            assert!(same(dcqcn.rate(), expected), "{n}: {}", dcqcn.rate());
        }
        // After the second cut the target is the rate before it, and after four steps it grows by 40 Mb/s a step.
        let at = 100 + 55 * 4;
        let before = dcqcn.rate();
        assert!(dcqcn.on_cnp(micros(at)));
        assert_eq!(dcqcn.target, before);
        for (steps, more) in [(4, 0), (5, 40), (6, 80), (10, 240)] {
            dcqcn.catch_up(micros(at + 55 * steps));
            assert_eq!(dcqcn.target, before + more * 1_000_000, "{steps}");
        }
        // 10 MB count as well: both beyond the threshold make it faster.
        for n in 1..=7 {
            dcqcn.increase_by_bytes(10_000_000);
            let by = if n > 5 { (n - 5) * 40 } else { 40 };
            assert_eq!(dcqcn.growth(), by * 1_000_000, "{n}");
        }
    }

    #[test]
    fn alpha_decays_without_notifications_and_grows_with_them() {
        let mut dcqcn = begun(paper());
        dcqcn.on_cnp(micros(0));
        let first = dcqcn.alpha;
        dcqcn.catch_up(micros(55 * 256));
        // (1 - 1/256)^256 is e^-1, all but a 500th.
        let decayed = dcqcn.alpha * 1_000 / first;
        assert!((366..=368).contains(&decayed), "{decayed}");
        let before = dcqcn.alpha;
        dcqcn.on_cnp(micros(55 * 256));
        assert!(dcqcn.alpha.abs_diff(before + (WHOLE - before) / 256) < 4);
    }

    #[test]
    fn cuts_keep_their_distance_and_one_that_comes_early_waits() {
        let mut dcqcn = begun(paper());
        assert!(dcqcn.on_cnp(micros(100)));
        let once = dcqcn.rate();
        assert!(dcqcn.on_cnp(micros(120)) && dcqcn.on_cnp(micros(149)));
        assert_eq!(dcqcn.rate(), once);
        dcqcn.catch_up(micros(151));
        assert!(dcqcn.rate() < once * 51 / 100, "one of two");
        assert_eq!(dcqcn.time_at, micros(150));
    }

    #[test]
    fn notifications_without_end_leave_a_hundredth_of_the_line() {
        for parameters in [DcqcnParameters::paper(LINE), DcqcnParameters::mlx5()] {
            let mut dcqcn = begun(Dcqcn::new(LINE, parameters).unwrap());
            for n in 0..100_000 {
                dcqcn.on_cnp(micros(n));
                assert!(dcqcn.rate() >= LINE / 100);
            }
            assert!(dcqcn.rate() < LINE / 90);
            // It comes back.
            dcqcn.catch_up(micros(100_000_000));
            assert_eq!((dcqcn.rate(), dcqcn.target), (LINE, LINE));
        }
    }

    #[test]
    fn mlx5_keeps_the_target_of_cuts_that_follow_each_other() {
        let mut dcqcn = begun(Dcqcn::new(LINE, DcqcnParameters::mlx5()).unwrap());
        dcqcn.on_cnp(micros(10));
        dcqcn.on_cnp(micros(20));
        assert_eq!(dcqcn.target, LINE);
        dcqcn.catch_up(micros(20 + 300));
        let before = dcqcn.rate();
        dcqcn.on_cnp(micros(330));
        assert_eq!(dcqcn.target, before);
        let set = DcqcnParameters { rate_to_set_on_first_cnp: 7_000, ..DcqcnParameters::mlx5() };
        let mut dcqcn = begun(Dcqcn::new(LINE, set).unwrap());
        dcqcn.on_cnp(micros(10));
        assert_eq!(dcqcn.rate(), 7 * G);
    }

    /// Catching up at once is the same as at each timer, in a bounded number of steps.
    #[test]
    fn what_is_caught_up_with_at_once_is_what_steps_would_have_made() {
        let mut rng = Rng::new(7);
        for round in 0..200 {
            let mut draw = |below: u64| rng.next() % below;
            let parameters = DcqcnParameters {
                time_reset: 1 + draw(300) as u32,
                threshold: 1 + draw(31) as u32,
                ai_rate: 1 + draw(20) as u32,
                hai_rate: draw(100) as u32,
                ..[DcqcnParameters::paper(LINE), DcqcnParameters::mlx5()][draw(2) as usize]
            };
            let mut at_once = begun(Dcqcn::new(LINE, parameters).unwrap());
            for _ in 0..1 + draw(12) {
                let now = Instant(at_once.next_cut.0);
                at_once.on_cnp(now);
            }
            let stages = draw(80);
            at_once.increase_by_bytes(stages * at_once.limits.byte_period);
            let mut stepwise = at_once.clone();
            let steps = draw(3_000);
            let period = u64::from(parameters.time_reset) * 1_000;
            for _ in 0..steps {
                let next = Instant(stepwise.time_at.0 + period);
                stepwise.elapse(next);
            }
            at_once.elapse(Instant(at_once.time_at.0 + steps * period));
            assert!(same(at_once.rate, stepwise.rate), "{round}: {at_once:?} {stepwise:?}");
            assert!(same(at_once.target, stepwise.target), "{round}: {at_once:?} {stepwise:?}");
            let error = at_once.alpha.abs_diff(stepwise.alpha);
            assert!(error < 4096, "{round}: {error}");
            at_once.elapse(Instant(u64::MAX));
            assert_eq!(at_once.rate, LINE, "{round}: the end of time is near");
        }
    }

    /// RC-107.
    #[test]
    fn packets_leave_at_the_rate_that_a_cut_has_left() {
        let mut dcqcn = begun(paper());
        assert_eq!(dcqcn.earliest_departure(), None, "the line's rate needs no pace");
        let before = Instant(832);
        dcqcn.on_cnp(before);
        dcqcn.on_sent(before, 4158);
        let took = dcqcn.earliest_departure().unwrap().0 - before.0;
        assert_eq!(took, 4158 * 8 * G / dcqcn.rate());
        assert_eq!(dcqcn.next_deadline(), None, "nobody wakes up for its timers");
        let slow = DcqcnParameters { max_rate: 10_000, ..DcqcnParameters::mlx5() };
        let dcqcn = begun(Dcqcn::new(LINE, slow).unwrap());
        assert_eq!(dcqcn.earliest_departure(), Some(Instant(4158 * 8 / 10)));
    }
}
