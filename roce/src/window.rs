//! How much a queue pair may send, and when: congestion control.
//!
//! Each queue pair has a [`Window`], of whichever transport service. The queue pair tells it of packets sent,
//! acknowledged and lost and of the peer's notifications, and asks how many packets may be unacknowledged and when the
//! next may leave. RNR NAKs and the PSNs that may be in flight are not the window's affair.
//!
//! [`Stack::set_windows`](crate::Stack::set_windows) says which window a queue pair has. Another one is a file beside
//! [`slow_start`](SlowStart), and a variant of [`AnyWindow`] to avoid an indirect call.

use core::fmt;
use core::time::Duration;

use crate::service::Service;
use crate::types::{Instant, Qpn};

mod dcqcn;
mod fixed;
mod limited;
mod pacer;
mod slow_start;
mod swift;

pub use dcqcn::{Dcqcn, DcqcnParameters};
pub use fixed::Fixed;
pub(crate) use limited::lower;
pub use limited::{Limited, RateLimit};
pub use slow_start::SlowStart;
pub use swift::{Swift, SwiftParameters};

/// The packets and bytes that an answer of the peer has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Packets; of READs and atomics responses that came.
    pub packets: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// How long one of them was under way and its acknowledgement back, where that was measured: of one packet at a
    /// time, and of none that was sent twice.
    pub round_trip: Option<Duration>,
}

/// The congestion window of one queue pair: how much it may send, and when.
///
/// Deterministic, without a clock of its own: the same calls give the same answers.
pub trait Window: fmt::Debug + Send {
    /// A packet leaves that the window paces, of so many bytes from the Ethernet header to the invariant CRC: a
    /// request, a READ response or a datagram. Acknowledgements, NAKs, results of atomics and notifications are not
    /// paced, and it is not told of them.
    fn on_sent(&mut self, _now: Instant, _bytes: usize) {}

    /// Requests were acknowledged, or READ responses came. UC, UD and the receiving side of XRC never hear this.
    fn on_ack(&mut self, now: Instant, acked: Acked);

    /// Takes a loss, by a NAK, a missing response or the acknowledgement timeout: all from the lost packet on is sent
    /// again.
    fn on_loss(&mut self, now: Instant);

    /// The peer of the connection has sent a congestion notification packet. Says whether it is heeded; one that is
    /// not is counted as ignored.
    fn on_cnp(&mut self, _now: Instant) -> bool {
        false
    }

    /// The time of [`Window::next_deadline`] has come, which is to be later than `now` behind this: the card asks again at
    /// once otherwise.
    fn on_timeout(&mut self, _now: Instant) {}

    /// When to call [`Window::on_timeout`], at the earliest. The card wakes up for it, so work that can be caught up
    /// with at the next packet needs no deadline.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Packets that may be unacknowledged, at least 1; a READ or an atomic counts as one until it is answered. A
    /// number above [`WINDOW_PACKETS`](crate::param::WINDOW_PACKETS) has no effect.
    fn window(&self) -> u64;

    /// The next packet that is paced leaves then, or later; `None` where none is ever held back. The card sleeps until
    /// then, if it has nothing else to do.
    fn earliest_departure(&self) -> Option<Instant> {
        None
    }

    /// Whether paced packets are marked ECT(0), capable of congestion marks, for the window heeds the notifications
    /// that follow. Otherwise the traffic class says that.
    fn asks_for_marks(&self) -> bool {
        false
    }
}

/// The window of a queue pair: those of this crate by value, for they are asked for each packet, and any other.
#[derive(Debug)]
pub enum AnyWindow {
    /// Small at first and after a loss.
    SlowStart(SlowStart),
    /// Always the same.
    Fixed(Fixed),
    /// One that keeps to a rate as well.
    Limited(Box<Limited>),
    /// Another one.
    Other(Box<dyn Window>),
}

impl AnyWindow {
    /// The one of a queue pair of a transport service for which there is no other: slow start, where a peer
    /// acknowledges.
    #[must_use]
    pub fn of(service: Service) -> Self {
        if service.kind().is_reliable() {
            Self::SlowStart(SlowStart::default())
        } else {
            Self::Fixed(Fixed::default())
        }
    }

    /// Whether it may hold packets back or have a deadline, and hears of sent packets. Those that do not cost nothing
    /// there.
    #[inline]
    pub(crate) const fn paces(&self) -> bool {
        !matches!(self, Self::SlowStart(_) | Self::Fixed(_))
    }

    /// Whether it keeps to a rate of its queue pair or of a path.
    #[inline]
    pub(crate) const fn is_limited(&self) -> bool {
        matches!(self, Self::Limited(_))
    }

    /// Keeps to a rate from the next packet on, or to none any more.
    ///
    /// The rate is in kb/s, or 0; and another burst, if it is to have one.
    pub(crate) fn limit(&mut self, kilobits: u32, burst: Option<u32>) {
        let before = core::mem::replace(self, Self::Fixed(Fixed::default()));
        *self = match before {
            Self::Limited(limited) if kilobits == 0 => limited.into_inner(),
            Self::Limited(mut limited) => {
                limited.set(kilobits, burst);
                Self::Limited(limited)
            }
            free if kilobits == 0 => free,
            free => Self::Limited(Box::new(Limited::new(free, kilobits, burst))),
        };
    }
}

/// Says the same to whichever window it is.
macro_rules! whichever {
    ($any:expr, $window:ident => $says:expr) => {
        match $any {
            AnyWindow::SlowStart($window) => $says,
            AnyWindow::Fixed($window) => $says,
            AnyWindow::Limited($window) => $says,
            AnyWindow::Other($window) => $says,
        }
    };
}

impl Window for AnyWindow {
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        whichever!(self, window => window.on_sent(now, bytes));
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, acked: Acked) {
        whichever!(self, window => window.on_ack(now, acked));
    }

    fn on_loss(&mut self, now: Instant) {
        whichever!(self, window => window.on_loss(now));
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        whichever!(self, window => window.on_cnp(now))
    }

    fn on_timeout(&mut self, now: Instant) {
        whichever!(self, window => window.on_timeout(now));
    }

    fn next_deadline(&self) -> Option<Instant> {
        whichever!(self, window => window.next_deadline())
    }

    #[inline]
    fn window(&self) -> u64 {
        match self {
            Self::SlowStart(window) => window.window(),
            Self::Fixed(window) => window.window(),
            Self::Limited(window) => window.window(),
            // None would wait for ever: nothing is under way then that an answer could come to.
            Self::Other(window) => window.window().max(1),
        }
    }

    fn earliest_departure(&self) -> Option<Instant> {
        whichever!(self, window => window.earliest_departure())
    }

    fn asks_for_marks(&self) -> bool {
        whichever!(self, window => window.asks_for_marks())
    }
}

/// The function that gives each queue pair its window, by its transport service.
pub(crate) struct Windows(Box<dyn Fn(Qpn, Service) -> AnyWindow + Send>);

impl Windows {
    pub(crate) fn new(of: impl Fn(Qpn, Service) -> AnyWindow + Send + 'static) -> Self {
        Self(Box::new(of))
    }

    pub(crate) fn of(&self, qpn: Qpn, service: Service) -> AnyWindow {
        (self.0)(qpn, service)
    }
}

impl Default for Windows {
    fn default() -> Self {
        Self::new(|_, service| AnyWindow::of(service))
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Windows")
    }
}
