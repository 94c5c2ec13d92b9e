//! The notification point of congestion control: it tells senders of marked packets.
//!
//! A switch marks packets when its queue grows (RFC 3168), and the receiver of a marked packet sends
//! its peer a congestion notification packet (annex A17.9.3), of a queue pair at most one in
//! [`min_time_between_cnps`](NotificationPoint::min_time_between_cnps), as DCQCN has it (Zhu et al., SIGCOMM 2015). The
//! peer's [window](crate::window) reacts, as the own queue pair's window does to the peer's notifications.

use core::time::Duration;

use crate::error::OutOfRange;
use crate::param;
use crate::types::Instant;

/// Reserved bytes that follow the Base Transport Header of a notification.
pub(crate) const RESERVED: [u8; 16] = [0; 16];

/// How a port notifies peers whose packets arrive marked. Times and codes have mlx5's names, ranges and defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationPoint {
    /// Whether it notifies them. Marks are counted in any case.
    pub enable: bool,
    /// The shortest time between two notifications of a queue pair, in microseconds, at most 131,071; 0 stands for
    /// [`NotificationPoint::MIN_TIME_BETWEEN_CNPS`]. Notifications of a peer that come more often than that are ignored.
    pub min_time_between_cnps: u32,
    /// The DSCP of notifications, 0 to 63, and no capability of being marked; `None` for the traffic class of the queue
    /// pair.
    pub cnp_dscp: Option<u8>,
}

impl NotificationPoint {
    /// The default of `min_time_between_cnps`, in microseconds.
    pub const MIN_TIME_BETWEEN_CNPS: u32 = 4;

    /// Refuses values that are out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let time = self.min_time_between_cnps;
        OutOfRange::check("min_time_between_cnps", time, 0, (1 << 17) - 1)?;
        OutOfRange::check("cnp_dscp", self.cnp_dscp.unwrap_or_default().into(), 0, 63)
    }

    fn interval(&self) -> Duration {
        let micros = match self.min_time_between_cnps {
            0 => Self::MIN_TIME_BETWEEN_CNPS,
            micros => micros,
        };
        Duration::from_micros(micros.into())
    }
}

impl Default for NotificationPoint {
    fn default() -> Self {
        Self { enable: true, min_time_between_cnps: Self::MIN_TIME_BETWEEN_CNPS, cnp_dscp: None }
    }
}

/// The notifications that a queue pair owes its peer, and those that it has heard of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifications {
    due: bool,
    /// No other is sent before.
    next: Instant,
    /// A peer that sends them as often as it may sends none before.
    expected: Instant,
}

impl Notifications {
    /// A marked packet of the peer was received. Says whether a notification of it is due.
    // RC-95
    pub(crate) fn note(&mut self, point: &NotificationPoint, now: Instant) -> bool {
        if !point.enable || self.due || now < self.next {
            return false;
        }
        (self.due, self.next) = (true, now.after(point.interval()));
        true
    }

    /// Whether one is due.
    #[inline]
    pub(crate) const fn is_due(&self) -> bool {
        self.due
    }

    /// Whether one is due, which is sent now.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    /// Whether the peer's notifications come, in the long run, no more often than this port would send them. Delayed
    /// ones may arrive in one burst.
    // RC-96
    pub(crate) fn is_timely(&mut self, point: &NotificationPoint, now: Instant) -> bool {
        let is_timely = now.after(param::CNP_LATENESS) >= self.expected;
        if is_timely {
            self.expected = self.expected.max(now).after(point.interval());
        }
        is_timely
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-95.
    #[test]
    fn a_notification_is_due_once_in_an_interval_and_never_where_they_are_off() {
        let point = NotificationPoint::default();
        let mut own = Notifications::default();
        let due = |own: &mut Notifications, at| own.note(&point, Instant(at)) && own.take();
        assert!(due(&mut own, 100));
        assert!(!due(&mut own, 101) && !due(&mut own, 4_099));
        assert!(due(&mut own, 4_100));
        let off = NotificationPoint { enable: false, ..point };
        assert!(!own.note(&off, Instant(1 << 40)) && !own.take());
    }

    /// RC-96.
    #[test]
    fn of_notifications_without_end_as_many_count_as_are_sent_here_at_most() {
        let point = NotificationPoint { min_time_between_cnps: 50, ..Default::default() };
        let mut own = Notifications::default();
        // 100,000 of them in a second.
        let counted = (0..100_000).filter(|n| own.is_timely(&point, Instant(n * 10_000))).count();
        assert_eq!(counted, 20_002);
        // Of those that keep their distance none is lost, though those of 100 µs are heard at once.
        for min_time_between_cnps in [1, 4, 50] {
            let point = NotificationPoint { min_time_between_cnps, ..point };
            let interval = u64::from(min_time_between_cnps) * 1_000;
            let heard = |n: u64| Instant((n * interval).next_multiple_of(100_000));
            let mut own = Notifications::default();
            assert!((0..1_000).all(|n| own.is_timely(&point, heard(n))));
        }
    }

    #[test]
    fn values_that_mlx5_does_not_have_are_refused_by_name() {
        let point = NotificationPoint::default();
        assert_eq!(point.check(), Ok(()));
        let error = NotificationPoint { min_time_between_cnps: 1 << 17, ..point }.check();
        let text = "min_time_between_cnps is 131072; it can be 0 to 131071";
        assert_eq!(error.unwrap_err().to_string(), text);
        let error = NotificationPoint { cnp_dscp: Some(64), ..point }.check();
        assert_eq!(error.unwrap_err().to_string(), "cnp_dscp is 64; it can be 0 to 63");
    }
}
