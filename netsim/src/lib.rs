//! A network in virtual time, without I/O, to try the transport in.
//!
//! [Hosts](host) are [`roce::Stack`]s over [memory] that is a length only, or one of yours with bytes. Between them
//! are [cables](port) of a rate and a delay, which may lose, double, delay and spoil frames ([faults](cable)), and
//! switches with a [shared buffer](roce::qos::Buffer), random early detection (RED) that marks packets, priority flow
//! control ([PFC](roce::qos::pfc)), and [routes](route) over all shortest ways, chosen by a hash of addresses and ports (ECMP). Frames have
//! their headers by bytes, and their payload by length, or by bytes as well. Frames to groups, and to unknown addresses,
//! go to all hosts.
//!
//! Time counts picoseconds, and nothing that decides is a floating-point number: the same description and seed give
//! the same [`Network::digest`].
//!
//! A priority is the upper half of the DSCP. At each port, of hosts and of switches, the highest goes first, or they share
//! by [weights](roce::qos::Ets). Pauses stop the one priority alone that they name. Hosts receive as fast as frames come, or in
//! bursts, and never pause their senders.
//!
//! ```
//! use netsim::{NETWORKS, Network, Time, parse};
//! use roce::window::{AnyWindow, Fixed};
//!
//! let networks = parse(NETWORKS).unwrap();
//! let window = |_, _| AnyWindow::Fixed(Fixed::new(64));
//! let mut network = Network::new(&networks["dumbbell"], 1, window).unwrap();
//! network.look_each(10_000_000);
//! network.run(Time::from_micros(200));
//! assert_eq!(network.tally().dropped, 0);
//! assert!(network.flows().iter().all(|flow| flow.delivered > 0));
//! assert!(network.results().flows_csv().starts_with("time_ns,flow,rate,goodput\n"));
//! ```

#![forbid(unsafe_code)]

pub mod bars;
pub mod cable;
pub mod chart;
pub mod config;
pub mod congestion;
mod error;
pub mod events;
pub mod flow;
pub mod frame;
pub mod host;
pub mod memory;
mod network;
pub mod port;
pub mod results;
pub mod route;
pub mod shape;
mod time;

pub use config::{Config, NETWORKS, parse};
pub use error::Error;
pub use network::{Network, NetworkTally};
pub use time::Time;
