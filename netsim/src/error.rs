//! Why there is no network.

/// An error in the description of a network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not TOML, or not of the form.
    #[error("the networks' description: {0}")]
    Text(#[from] toml::de::Error),
    /// One of several networks is none.
    #[error("the network '{network}': {error}")]
    Of {
        /// Its name.
        network: String,
        /// Its fault.
        error: Box<Error>,
    },
    /// A number is out of its range.
    #[error("{what} is {value}, and has to be {range}")]
    Range {
        /// The number's name.
        what: &'static str,
        /// The value.
        value: u64,
        /// The range that it must lie in.
        range: &'static str,
    },
    /// A parameter of the hosts' reaction to congestion is out of its range.
    #[error("congestion: {0}")]
    Congestion(#[from] roce::OutOfRange),
    /// Priorities cannot share a cable so.
    #[error("ets: {0}")]
    Ets(#[from] roce::qos::BadEts),
    /// A route names a host or switch that does not exist, or is no neighbour.
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
        /// The host that the flow comes from.
        from: u32,
        /// The host that the flow goes to.
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
}

impl Error {
    /// The error as that of a network among several.
    #[must_use]
    pub fn of(self, network: &str) -> Self {
        Self::Of { network: network.to_owned(), error: Box::new(self) }
    }
}
