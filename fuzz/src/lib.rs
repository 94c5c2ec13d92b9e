//! Fuzz targets: each boundary that hostile bytes cross, fed with anything and checked.
//!
//! A target takes bytes, makes of them messages that the boundary's other side could send, gives them to
//! the real code, and panics where the code breaks a promise: a panic of its own, memory or output
//! without bound, an address without a grant, an entry read twice, a completion too many.
//!
//! The same function runs three ways: by `cargo test -p fuzz` with a fixed number of inputs from
//! fixed seeds and with every input in `regressions/`, by `cargo xtask fuzz TARGET --minutes N`
//! under libFuzzer, which looks for inputs that reach new code, and with the same command under
//! the seeded random engine of [`random`] where libFuzzer cannot be built.
//!
//! `differential` wants a program beside it, which only `cargo xtask` builds; its fixed number of inputs is tried by
//! `cargo xtask test`, or not where that program cannot be had.

#![forbid(unsafe_code)]

use arbitrary::Unstructured;

pub mod random;
mod targets;

/// The result of a target's function: an error only says that its input has come to its end.
pub type Outcome = arbitrary::Result<()>;

/// One boundary.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line and in `regressions/`.
    pub name: &'static str,
    /// The code under test and its inputs, in one line.
    pub about: &'static str,
    /// Inputs that the test command tries.
    pub inputs: u64,
    /// Bytes of the longest input.
    pub longest: usize,
    run: fn(&mut Unstructured<'_>) -> Outcome,
}

impl Target {
    /// Feeds the target with one input; panics where the code under test breaks a promise.
    pub fn run(&self, input: &[u8]) {
        // An input that is too short for its last step ends there.
        let _ = (self.run)(&mut Unstructured::new(input));
    }
}

/// Every target, in the order of the way inwards.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frame",
        about: "the parsers of Ethernet, ARP, IP, ICMP, UDP and RoCE headers and of pauses, fed with frames",
        inputs: 60_000,
        longest: 256,
        run: targets::frame::run,
    },
    Target {
        name: "rc",
        about: "the RC transport, fed with frames, calls and the passing of time",
        inputs: 4_000,
        longest: 4096,
        run: targets::rc::run,
    },
    Target {
        name: "sealed",
        about: "what opens sealed frames, fed with frames of nobody's, and with a peer's whose bits are changed",
        inputs: 4_000,
        longest: 2048,
        run: targets::sealed::run,
    },
    Target {
        name: "services",
        about: "services on the path of packets, fed with packets of any shape and order",
        inputs: 4_000,
        longest: 4096,
        run: targets::services::run,
    },
    Target {
        name: "modules",
        about: "services of users: files of any content, and WebAssembly modules that do anything",
        inputs: 2_000,
        longest: 4096,
        run: targets::modules::run,
    },
    Target {
        name: "stock",
        about: "the model of the published card, fed with stores, frames, pages that come late or never, and the passing of time",
        inputs: 1_000,
        longest: 4096,
        run: targets::stock::run,
    },
    Target {
        name: "differential",
        about: "the model of the published card, and the stack's own code, fed with the same posts, packets, contexts and timers",
        inputs: 1_000,
        longest: 4096,
        run: targets::differential::run,
    },
    Target {
        name: "slots",
        about: "an end of the tunnel, fed with slots of a peer that has the key, messages and the passing of time",
        inputs: 3_000,
        longest: 2048,
        run: targets::slots::run,
    },
    Target {
        name: "mad",
        about: "the parser of the connection manager's messages, fed with datagrams",
        inputs: 60_000,
        longest: 512,
        run: targets::mad::run,
    },
    Target {
        name: "cm",
        about: "the connection manager, fed with datagrams of a hostile peer, calls and the passing of time",
        inputs: 4_000,
        longest: 4096,
        run: targets::cm::run,
    },
    Target {
        name: "connections",
        about: "balboad's connection manager, fed with commands of hostile programs and datagrams of a hostile peer",
        inputs: 2_000,
        longest: 4096,
        run: targets::connections::run,
    },
    Target {
        name: "datagrams",
        about: "a port on the machine's own network, fed with datagrams, segments and words of hostile hosts, and frames of its card",
        inputs: 300,
        longest: 1024,
        run: targets::datagrams::run,
    },
    Target {
        name: "multicast",
        about: "a port in multicast groups, fed with datagrams to groups, questions for members, calls and the passing of time",
        inputs: 4_000,
        longest: 1024,
        run: targets::multicast::run,
    },
    Target {
        name: "shared",
        about: "whose a frame is on a port that a host's network stack shares, and what the host may send",
        inputs: 4_000,
        longest: 1024,
        run: targets::shared::run,
    },
    Target {
        name: "engine",
        about: "the queue engine, fed with rings and doorbell records that change while they are read, admin commands and transport events",
        inputs: 4_000,
        longest: 4096,
        run: targets::engine::run,
    },
    Target {
        name: "answers",
        about: "balboad's driver of an engine, fed with admin completions, events and registers of a hostile card",
        inputs: 200,
        longest: 512,
        run: targets::answers::run,
    },
    Target {
        name: "netlink",
        about: "the answers of balboa run to RDMA netlink, fed with datagrams",
        inputs: 2_000,
        longest: 1024,
        run: targets::netlink::run,
    },
    Target {
        name: "metrics",
        about: "the endpoint for Prometheus, fed with requests in pieces",
        inputs: 60_000,
        longest: 8192,
        run: targets::metrics::run,
    },
    Target {
        name: "client",
        about: "balboad's sessions, fed with messages and descriptors of hostile clients",
        inputs: 60,
        longest: 2048,
        run: targets::client::run,
    },
    Target {
        name: "function",
        about: "a card served over vfio-user, fed with messages, descriptors and memory of hostile clients",
        inputs: 200,
        longest: 2048,
        run: targets::function::run,
    },
    Target {
        name: "messages",
        about: "the decoding of the messages between clients and balboad, both ways",
        inputs: 60_000,
        longest: 512,
        run: targets::messages::run,
    },
    Target {
        name: "arguments",
        about: "the parsers of balboad's command line: faults, ports, addresses",
        inputs: 4_000,
        longest: 256,
        run: targets::arguments::run,
    },
    Target {
        name: "image",
        about: "the parsers of images, manifests and signatures, fed with files",
        inputs: 20_000,
        longest: 1024,
        run: targets::image::run,
    },
];

/// The target called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
