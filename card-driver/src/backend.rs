//! The driver's view of a PCIe function: registers, doorbell grants, DMA mapping, interrupts, reset.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::port::{IcrcPolicy, WatchFilter};
use hostmem::DmaMemory;
use roce::qos::Qos;
use services::{Attached, Chain, Selector};

use crate::error::Error;

/// Why the driver of a card behind VFIO sets no priorities.
const NO_QUEUES: &str = "the contract of cards behind VFIO has no queues for priorities: set them at the switch that it is plugged into";

/// A card's function, as bring-up and the engines use it.
///
/// Register access has PCIe's rules: writes are posted, happen in the order they were made, and
/// after every earlier store of the caller to memory that the card can read; a read completes after
/// all earlier writes. A card that is gone reads all ones. That holds for each thread by itself; between
/// threads, one's accesses before a signal to another come before that one's accesses behind the signal.
pub trait CardBackend: Send + Sync {
    /// Reads a 32-bit register; `offset` is a multiple of 4.
    fn read32(&self, bar: Bar, offset: u64) -> u32;
    /// Writes a 32-bit register; `offset` is a multiple of 4.
    fn write32(&self, bar: Bar, offset: u64, value: u32);
    /// Reads a 64-bit register; `offset` is a multiple of 8.
    fn read64(&self, bar: Bar, offset: u64) -> u64;
    /// Writes a 64-bit register; `offset` is a multiple of 8.
    fn write64(&self, bar: Bar, offset: u64, value: u64);

    /// Writes 32 bytes of the shell's BAR by one store, words in the order of their addresses; `offset` is a multiple
    /// of 32.
    fn write_wide(&self, offset: u64, words: [u64; 4]);

    /// Reads 16 bits of configuration space; `offset` is a multiple of 2.
    fn read_config(&self, offset: u16) -> u16;
    /// Writes 16 bits of configuration space; `offset` is a multiple of 2.
    fn write_config(&self, offset: u16, value: u16);

    /// The eventfd of an MSI-X vector; `None` beyond those the card has. Always the same one.
    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>>;

    /// Mutes a vector until [`Self::release_vector`]: the one thread that holds it looks for itself. `false` where that
    /// cannot be.
    fn hold_vector(&self, _vector: u16) -> bool {
        false
    }

    /// Unmutes it; whether the card would have signalled it meanwhile.
    fn release_vector(&self, _vector: u16) -> bool {
        false
    }

    /// Has the thread that runs a card of this process serve interrupts at once, before a vector is signalled; `None`: no
    /// more, and on return none is being served so. Ignored where the card is elsewhere.
    fn serve_by(&self, _serve: Option<Serve>) {}

    /// Readable once the kernel wants the function back: it is to be taken out, or to be given to
    /// another driver. `None` where it never does.
    fn wanted_back(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Readable once memory of a client's did not answer the card, until it is read; the client's
    /// `RemoteProcess` tells whose. `None` where memory always answers.
    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Lets the card reach memory at `iova`, a multiple of 4096, until it is unmapped. Memory of a program's that is
    /// granted the device ([`GrantKind::Device`]) that program maps by itself: this then tells whose it will be.
    ///
    /// # Errors
    /// [`Error::Backend`] when the range overlaps another or the memory cannot be mapped.
    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error>;
    /// Ends all mappings in a range; on return no DMA to it can follow.
    ///
    /// # Errors
    /// [`Error::Backend`] when that cannot be done, or one lies across the range's edge.
    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error>;

    /// Maps memory ahead of all later orders to the card, without waiting: if it fails, the work that needs the memory
    /// fails; otherwise as [`Self::dma_map`].
    ///
    /// # Errors
    /// [`Error::Backend`] where it was seen at once that it cannot.
    fn dma_map_ahead(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.dma_map(iova, length, memory)
    }
    /// Ends mappings that the card has confirmed not to use any more, ahead of all later orders to the card and without
    /// waiting; otherwise as [`Self::dma_unmap`].
    ///
    /// # Errors
    /// As [`Self::dma_unmap`], where it is seen at once.
    fn dma_unmap_unused(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.dma_unmap(iova, length)
    }

    /// Memory of clients is mapped in pieces of so many bytes at most, cut at multiples of that: so
    /// much is unmapped at a time, lest others wait for all of it.
    fn dma_piece(&self) -> u64 {
        u64::MAX
    }

    /// The I/O virtual addresses that can be mapped: first and last of each range.
    ///
    /// # Errors
    /// [`Error::Backend`] when the kernel does not tell.
    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error>;

    /// The kind of its grants.
    fn grant_kind(&self) -> GrantKind;
    /// Grants a doorbell page (1 to 15) of a window to one process.
    ///
    /// # Errors
    /// [`Error::Backend`] when it is granted already, or there is none.
    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error>;
    /// Takes a doorbell page back: later stores of its holder are ignored.
    fn revoke_page(&self, window: u8, page: u8);

    /// Bytes that the card keeps in balboad for work under way of the client behind a doorbell page; `None` where a
    /// card keeps it in memory of its own.
    fn under_way(&self, _window: u8, _page: u8) -> Option<u64> {
        None
    }
    /// The most that [`Self::under_way`] becomes.
    fn under_way_limit(&self) -> Option<u64> {
        None
    }

    /// The kind of image that its reconfiguration engine takes.
    fn takes(&self) -> Takes {
        Takes::Bitstreams
    }

    /// Resets the function: its engines stand still, and all of its state is as when it came up.
    ///
    /// # Errors
    /// [`Error::Backend`] when it cannot be reset by itself.
    fn reset(&self) -> Result<(), Error>;

    /// Writes the frames at its port to a socket, as a pcapng file, until [`Self::end_record`] or the reader's end. The
    /// card never waits for the reader.
    ///
    /// # Errors
    /// [`Error::NoRecord`] if the card cannot record, [`Error::Recorded`] if it records for another reader.
    fn record(&self, _filter: WatchFilter, _reader: UnixStream) -> Result<(), Error> {
        Err(Error::NoRecord(
            "frames of a card behind VFIO do not pass balboad; capture at its peer, or at the switch between"
                .into(),
        ))
    }
    /// Ends the recording; frames that wait are still written.
    fn end_record(&self) {}

    /// Attaches services to queue pairs.
    ///
    /// # Errors
    /// [`Error::NoServices`] where the card has none, [`Error::Services`] where it refuses; nothing is attached then.
    fn attach_services(&self, _to: Selector, _services: Chain) -> Result<(), Error> {
        Err(Error::NoServices)
    }
    /// Has other services follow those that are attached there: messages that have begun keep those, and later ones have
    /// these.
    ///
    /// # Errors
    /// As [`Self::attach_services`]; nothing is changed then.
    fn replace_services(&self, _of: Selector, _services: Chain) -> Result<(), Error> {
        Err(Error::NoServices)
    }
    /// Attaches the services that the program of a new queue pair asks for, before that is connected.
    ///
    /// # Errors
    /// As [`Self::attach_services`].
    fn ask_for_services(&self, _qpn: u32, _services: Chain) -> Result<(), Error> {
        Err(Error::NoServices)
    }
    /// Detaches the services that are attached there, where messages are under way only if it is to be `now`; gives the
    /// number of queue pairs that keep them to the end of a message.
    ///
    /// # Errors
    /// As [`Self::attach_services`]; nothing is detached then.
    fn detach_services(&self, _from: Selector, _now: bool) -> Result<usize, Error> {
        Err(Error::NoServices)
    }
    /// Tells the process that has a queue pair, before that is connected: services may be attached to its process.
    fn own_qp(&self, _qpn: u32, _process: u32) {}
    /// Tells that a process has ended, and with it the services that were attached to it.
    fn end_process(&self, _process: u32) {}
    /// The services that are attached; `None` where the card can have none.
    fn services(&self) -> Option<Vec<Attached>> {
        None
    }

    /// The settings of the port's priorities.
    ///
    /// # Errors
    /// [`Error::NoQueues`] where nothing here has queues for them.
    fn qos(&self) -> Result<Qos, Error> {
        Err(Error::NoQueues(NO_QUEUES.into()))
    }
    /// Changes the settings of the port's priorities.
    ///
    /// # Errors
    /// As [`Self::qos`], and [`Error::Qos`] where they make no sense, or there is too little room for them; nothing has
    /// changed then.
    fn set_qos(&self, _qos: Qos) -> Result<(), Error> {
        Err(Error::NoQueues(NO_QUEUES.into()))
    }

    /// The card's description, for people.
    fn identity(&self) -> Identity;
    /// A number that grows when counters of the card may have changed without a command or a register's write of its
    /// driver; `None` where the card tells none.
    fn activity(&self) -> Option<u64> {
        None
    }

    /// Counters of the port below the engines, by name, in a fixed order.
    fn port_counters(&self) -> Vec<(&'static str, u64)>;
}

/// A handler of interrupts, on the thread that runs the card: gets a vector, and the value that the interrupt register of
/// the vFPGA of that number reads. It says whether it has served the interrupt; it must not wait for the card, and must
/// not wait long for anything.
pub type Serve = Box<dyn Fn(u16, u64) -> bool + Send + Sync>;

/// The kind of images that a card's own reconfiguration engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Images of software cards. Only one that says that it is a software card.
    SoftImages,
    /// Bitstreams of shells: an FPGA, or a software card that plays one.
    Bitstreams,
}

/// The way in which clients reach a card, and the trust in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantKind {
    /// Clients ring by pages of memory of their own, and are isolated from each other.
    Page,
    /// Clients have the function itself: all of them and balboad are one trust domain. They map the memory that they
    /// register by themselves.
    Device,
}

/// A doorbell page, ready to be handed to a client.
#[derive(Debug)]
pub enum DoorbellGrant {
    /// A page of kind [`GrantKind::Page`].
    Page {
        /// A memfd of exactly the page.
        page: OwnedFd,
        /// How the card is woken, and its death seen.
        wake: WakeGrant,
    },
    /// Instead of one, where the pages have run out: the engine's driver rings for the client.
    Relay {
        /// A memfd of exactly the page that the client stores to.
        page: OwnedFd,
        /// A memfd that its holder can only read, with the asleep word of the thread that it rings for.
        words: OwnedFd,
        /// How that one is woken, by the word in `words`; and how the card's death is seen, in its thread's
        /// page.
        relay: WakeGrant,
    },
    /// A grant of kind [`GrantKind::Device`].
    Device {
        /// The function's descriptor.
        function: OwnedFd,
        /// Byte offset of the page in it.
        offset: u64,
        /// The descriptor of the function's IOMMU.
        iommu: OwnedFd,
        /// The I/O address space, where it is iommufd's.
        ioas: Option<u32>,
        /// A memfd, read only for its holder, that begins with a lock of balboad's.
        life: OwnedFd,
    },
}

/// The means to wake a sleeping card, and to see its death.
#[derive(Debug)]
pub struct WakeGrant {
    /// The eventfd to signal.
    pub eventfd: OwnedFd,
    /// A memfd that its holder can only read.
    pub thread_page: OwnedFd,
    /// Byte offset of the u32 asleep word in it.
    pub asleep: u32,
    /// Byte offset of the robust mutex in it.
    pub liveness: u32,
    /// Byte offset of the u32 in it that counts the microseconds in which the card's thread worked.
    pub worked: u32,
}

/// A card's description, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Board name.
    pub board: String,
    /// Its place: a PCI address, or a text in the shape of one.
    pub location: String,
    /// The other end of its port.
    pub link: String,
    /// The frames whose ICRC it checks; `None` if nothing tells.
    pub icrc_policy: Option<IcrcPolicy>,
    /// Its reaction to congestion, as the option's value; `None` if it is not known.
    pub congestion: Option<String>,
    /// Whether it sends nothing but sealed frames, and takes no other.
    pub seals: bool,
    /// The interface through which balboad reaches it.
    pub interface: String,
}
