//! The rules of the ports, which are checked in each cycle.

use std::fmt;

use super::port::{BEAT_BYTES, Beat, Driven, MAX_REQUEST, Master, Request, STREAMS};

/// A port of the logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// `sq_rd`.
    Read,
    /// `sq_wr`.
    Write,
    /// `axis_host_send` of that stream.
    Data(u8),
    /// `notify`.
    Notify,
    /// The answers of `axi_ctrl`.
    Control,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("sq_rd"),
            Self::Write => f.write_str("sq_wr"),
            Self::Data(stream) => write!(f, "axis_host_send[{stream}]"),
            Self::Notify => f.write_str("notify"),
            Self::Control => f.write_str("an answer of axi_ctrl"),
        }
    }
}

/// A rule of the ports that the logic broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Valid fell, or what was shown changed, before it was taken.
    #[error(
        "cycle {cycle}: {port} changed before it was taken; hold valid and what it shows until ready"
    )]
    Unstable {
        /// When.
        cycle: u64,
        /// Where.
        port: Port,
    },
    /// The same at port N.
    #[error(
        "cycle {cycle}: {channel} of port N changed before it was taken; hold valid and what it shows until ready"
    )]
    UnstablePort {
        /// When.
        cycle: u64,
        /// The channel.
        channel: &'static str,
    },
    /// It broke another rule of port N.
    #[error("cycle {cycle}: at port N {what}")]
    PortRule {
        /// When.
        cycle: u64,
        /// What it does that it may not.
        what: &'static str,
    },
    /// Logic that was quiet went on by itself.
    #[error(
        "cycle {cycle}: the logic goes on though nothing came; it is quiet only where it waits for something"
    )]
    Woke {
        /// When.
        cycle: u64,
    },
    /// An interrupt came, and nothing stands in the driver's rings that did not before.
    #[error("cycle {cycle}: an interrupt comes before what it is for; raise it behind its cq_wr")]
    Early {
        /// When.
        cycle: u64,
    },
    /// Something stands in the driver's rings for which no interrupt came.
    #[error("cycle {cycle}: no interrupt comes for what stands in the driver's rings")]
    Untold {
        /// When.
        cycle: u64,
    },
    /// A request of no bytes, or of too many.
    #[error("cycle {cycle}: {port} asks for {length} bytes; a request has 1 to {MAX_REQUEST}")]
    Length {
        /// When.
        cycle: u64,
        /// Where.
        port: Port,
        /// Bytes.
        length: u32,
    },
    /// A stream that the shell was not built with.
    #[error("cycle {cycle}: {port} names stream {stream} of {streams}; they count from 0")]
    Stream {
        /// When.
        cycle: u64,
        /// Where.
        port: Port,
        /// The stream.
        stream: u8,
        /// How many there are.
        streams: u8,
    },
    /// A beat that is not the next of its request.
    #[error(
        "cycle {cycle}: axis_host_send[{stream}] has a beat of {bytes} bytes (last: {last}) where the request has {left} left"
    )]
    Beat {
        /// When.
        cycle: u64,
        /// The stream.
        stream: u8,
        /// Its bytes.
        bytes: u8,
        /// Whether it says that it is the last.
        last: bool,
        /// The bytes that the request still lacks.
        left: u32,
    },
}

/// What was shown and not taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    read: Option<Request>,
    write: Option<Request>,
    data: [Option<Beat>; STREAMS],
    notify: Option<u32>,
}

impl Watch {
    /// Looks at a cycle.
    pub(super) fn look(
        &mut self,
        cycle: u64,
        driven: &Driven,
        master: &Master,
    ) -> Result<(), Violation> {
        let unstable = |port| move |()| Violation::Unstable { cycle, port };
        hold(&mut self.read, master.read, driven.read_ready).map_err(unstable(Port::Read))?;
        hold(&mut self.write, master.write, driven.write_ready).map_err(unstable(Port::Write))?;
        hold(&mut self.notify, master.notify, driven.notify_ready)
            .map_err(unstable(Port::Notify))?;
        let streams = self.data.iter_mut().zip(master.data).zip(driven.data_ready);
        for (number, ((held, data), ready)) in (0..).zip(streams) {
            hold(held, data, ready).map_err(unstable(Port::Data(number)))?;
        }
        Ok(())
    }
}

/// Fails where something that was held is not shown any more.
fn hold<T: Copy + PartialEq>(
    held: &mut Option<T>,
    shown: Option<T>,
    ready: bool,
) -> Result<(), ()> {
    let kept = held.is_none() || *held == shown;
    *held = shown.filter(|_| !ready);
    kept.then_some(()).ok_or(())
}

/// Fails where a request is none.
pub(super) fn request(
    cycle: u64,
    port: Port,
    request: &Request,
    streams: u8,
) -> Result<(), Violation> {
    let Request { length, stream, .. } = *request;
    if length == 0 || length > MAX_REQUEST {
        return Err(Violation::Length { cycle, port, length });
    }
    match stream < streams {
        true => Ok(()),
        false => Err(Violation::Stream { cycle, port, stream, streams }),
    }
}

/// Fails where a beat is not the next of a request that lacks `left` bytes.
pub(super) fn beat(cycle: u64, stream: u8, beat: &Beat, left: u32) -> Result<(), Violation> {
    let wanted = left.min(BEAT_BYTES as u32);
    let Beat { bytes, last, .. } = *beat;
    match u32::from(bytes) == wanted && last == (wanted == left) {
        true => Ok(()),
        false => Err(Violation::Beat { cycle, stream, bytes, last, left }),
    }
}
