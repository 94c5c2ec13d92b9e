//! Why there is no network.

/// What is wrong with the description of a network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not TOML, or not of the form.
    #[error("the networks' description: {0}")]
    Text(#[from] toml::de::Error),
    /// A number is out of its range.
    #[error("{what} is {value}, and has to be {range}")]
    Range {
        /// Which number.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// A parameter of what hosts do about congestion is out of its range.
    #[error("congestion: {0}")]
    Congestion(#[from] roce::OutOfRange),
    /// A route names what is not there, or no neighbour.
    #[error("the route of switch {switch} to host {to} via switch {via}: there is no such cable")]
    Route {
        /// The switch.
        switch: u32,
        /// The host.
        to: u32,
        /// The next switch.
        via: u32,
    },
    /// Frames to a host would go round for ever.
    #[error("the routes to host {to} have a loop through switch {switch}")]
    Loop {
        /// The host.
        to: u32,
        /// One of the switches.
        switch: u32,
    },
    /// A flow is not between two hosts.
    #[error("the pair of host {from} and host {to}: there are hosts 0 to {}, and two make a pair", hosts - 1)]
    Pair {
        /// Whose flow it is.
        from: u32,
        /// Whom it goes to.
        to: u32,
        /// How many hosts there are.
        hosts: u32,
    },
    /// Reserves and headroom leave nothing to share.
    #[error(
        "the buffer of {total} bytes of switch {switch} is too small for reserves and headroom"
    )]
    Buffer {
        /// The switch.
        switch: u32,
        /// Its bytes.
        total: u64,
    },
    /// The transport refused a queue pair.
    #[error("host {host}: {error}")]
    Stack {
        /// The host.
        host: u32,
        /// What it said.
        error: roce::Error,
    },
}
