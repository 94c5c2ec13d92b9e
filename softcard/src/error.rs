//! Errors of a software card.

use std::path::PathBuf;

use nix::errno::Errno;

/// An error of a software card.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A range that cannot be mapped.
    #[error(
        "cannot map {length} bytes at card address {iova:#x}: a range is not empty and ends below 2^44"
    )]
    BadRange {
        /// First card address.
        iova: u64,
        /// Bytes.
        length: u64,
    },
    /// A range that is mapped already.
    #[error("cannot map {length} bytes at card address {iova:#x}: a part of it is mapped already")]
    Overlap {
        /// First card address.
        iova: u64,
        /// Bytes.
        length: u64,
    },
    /// A doorbell page that is not there or not free.
    #[error("doorbell page {page} of window {window} does not exist or is in use")]
    NoPage {
        /// Window.
        window: u8,
        /// Page.
        page: u8,
    },
    /// Shared memory or descriptors failed.
    #[error(transparent)]
    Host(#[from] hostmem::Error),
    /// Another recording of the port runs.
    #[error("its port is being captured already; one capture of a card runs at a time")]
    Recorded,
    /// The socket that a recording goes to cannot be used.
    #[error("the socket of a capture: {0}")]
    Recorder(#[source] std::io::Error),
    /// Services are not attached, or not detached.
    #[error(transparent)]
    Services(#[from] services::Error),
    /// The socket that clients connect to could not be made.
    #[error("socket {}: {source}", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A port could not be opened.
    #[error("port {}: {source}", path.display())]
    Port {
        /// Its local socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A network device of the kernel's could not be plugged into.
    #[error("network device {device}: {source}{}", device_mend(source))]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: hostmem::Error,
    },
    /// A card cannot stand on the machine's own network.
    #[error("port {link}: {why}")]
    Machine {
        /// The link that was asked for.
        link: String,
        /// Why not, as a sentence.
        why: String,
    },
    /// An item of a fault specification that cannot be read.
    #[error("fault `{item}`: {mend}")]
    BadFault {
        /// The item as it was written, with its value.
        item: String,
        /// The text to write instead.
        mend: &'static str,
    },
    /// A fault specification for a card that is not there.
    #[error(
        "fault `{fault}`: there is no card {card}; cards are numbered from 0, and there are {cards}"
    )]
    NoFaultCard {
        /// The specification.
        fault: String,
        /// The card it names.
        card: usize,
        /// How many there are.
        cards: usize,
    },
    /// An unreadable item of a card's reaction to congestion.
    #[error("congestion `{item}`: {mend}")]
    BadCongestion {
        /// The item as it was written, with its value.
        item: String,
        /// The text to write instead.
        mend: String,
    },
    /// A parameter of congestion control is out of its range.
    #[error("congestion: {0}")]
    Congestion(#[from] roce::OutOfRange),
    /// A card's cable has no queues for priorities.
    #[error(
        "nothing waits there, for its cable has no rate: start balboad with --fault rate=10G,card=N, or another rate"
    )]
    NoQueues,
    /// A card on the machine's own network has no queues for priorities.
    #[error(
        "it is on the machine's own network, whose devices have the queues: set priorities there with tc and dcb"
    )]
    MachinesQueues,
    /// The headroom of priorities with flow control is more than all of a buffer.
    #[error(
        "the headroom of these priorities with flow control would be all of the cable's buffer of {buffer} bytes: give it more by buffer= of --fault, or fewer priorities flow control"
    )]
    NoHeadroom {
        /// Bytes of the buffer.
        buffer: u64,
    },
    /// Settings of priorities make no sense.
    #[error(transparent)]
    Qos(#[from] roce::qos::BadQos),
    /// The capture file could not be made.
    #[error("capture file {}: {source}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Logic cannot have that name.
    #[error("logic `{name}`: {why}")]
    LogicName {
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
    /// The card thread has ended.
    #[error("the card thread has ended")]
    Gone,
    /// The card thread could not be started.
    #[error("the card thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}

fn device_mend(error: &hostmem::Error) -> &'static str {
    match error.errno() {
        Some(Errno::EPERM | Errno::EACCES) => {
            "; a cable to a network device needs CAP_NET_RAW: run as root, or with that capability"
        }
        Some(Errno::ENODEV) => "; `ip link` lists the devices there are",
        _ => "",
    }
}
