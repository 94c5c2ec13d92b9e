//! Starting and ending the card thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use fpga_regs::coyote::shell::Map;
use hostmem::{AsleepWord, Borrowable, EventFd, PAGE_BYTES, Tap, Waker, memfd};

use crate::Error;
use crate::card::Programmed;
use crate::command::Command;
use crate::congestion::Congestion;
use crate::handle::CardHandle;
use crate::image::Image;
use crate::link::Link;
use crate::overseer;
use crate::port::{Cabling, FaultSpec};
use crate::protection::Protection;
use crate::published::Published;
use crate::run::{CardThread, Place, ThreadShares};
use hostmem::thread_page;

/// The cards to run, and their cables.
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig {
    /// The cards, numbered from 0.
    pub cards: Vec<CardConfig>,
    /// The file for a capture of every port, in pcapng.
    pub capture: Option<PathBuf>,
    /// The faults of the cables; each applies to the cards that it names, the first nearest to the card.
    pub faults: Vec<FaultSpec>,
    /// The seed of the faults, which fixes the n-th frame's of each cable and direction.
    pub seed: u64,
}

/// One card. Its MAC and IP addresses come from the driver through the shell's registers.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// The other end of its port.
    pub link: Link,
    /// The register map of its shell.
    pub map: Map,
    /// Its image.
    pub image: Image,
    /// The number of its vFPGAs with an image; all that there is room for where that is `None`. A card with 0 holds no
    /// image.
    pub vfpgas: Option<u8>,
    /// Plays an FPGA: it takes bitstreams ([`bitstreams::model`]), and no software card's image.
    pub plays_fpga: bool,
    /// Its reaction to congestion; the published image has no part in that.
    pub congestion: Congestion,
    /// How it protects what it sends and takes, if it does. A card that does takes no published image.
    pub protection: Option<Protection>,
    /// A network device of the kernel's that shares the port's addresses: it gets the frames that
    /// are not the card's, and sends by the port.
    pub host: Option<Arc<Tap>>,
}

impl CardConfig {
    /// A card of an image at a link: with all that there is room for, and no more than the image asks for.
    #[must_use]
    pub fn new(link: Link, image: Image) -> Self {
        Self {
            link,
            map: Map::default(),
            image,
            vfpgas: None,
            plays_fpga: false,
            congestion: Congestion::default(),
            protection: None,
            host: None,
        }
    }
}

/// The thread that runs all software cards of a process.
#[derive(Debug)]
pub struct Runtime {
    commands: Option<Sender<Command>>,
    waker: Arc<Waker>,
    idle_cards: Arc<Borrowable<CardThread>>,
    published: Vec<Arc<Published>>,
    page: OwnedFd,
    given_up: EventFd,
    overseer: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Plugs the cables and starts the card thread.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Device`], [`Error::NoFaultCard`], [`Error::BadFault`], [`Error::Capture`],
    /// [`Error::Host`], [`Error::Thread`].
    pub fn start(config: RuntimeConfig) -> Result<Self, Error> {
        let links = config.cards.iter().map(|card| card.link.clone()).collect();
        let count = config.cards.len();
        let places = config.cards.into_iter();
        let places = places
            .map(|card| {
                let CardConfig { map, image, vfpgas, plays_fpga, .. } = card;
                let CardConfig { host, congestion, protection, .. } = card;
                let programmed = Programmed { map, image, vfpgas, plays_fpga };
                Place { programmed, host, congestion, protection }
            })
            .collect();
        let RuntimeConfig { capture, faults, seed, .. } = config;
        let cabling = Cabling { links, faults, seed, capture };
        let (page, mapping) = memfd::create_read_only_for_others("balboa-cards", PAGE_BYTES)?;
        let mapping = Arc::new(mapping);
        let kick = EventFd::new()?;
        let asleep = AsleepWord::new(Arc::clone(&mapping), thread_page::ASLEEP_OFFSET as usize)?;
        let waker = Arc::new(Waker::new(asleep, kick.try_clone()?));
        let published = (0..count).map(|_| Ok(Arc::new(Published::new()?)));
        let published: Vec<_> = published.collect::<Result<_, Error>>()?;
        let (commands, receiver) = mpsc::channel();
        let (started, outcome) = mpsc::sync_channel(1);
        let published_by_thread = published.clone();
        let given_up = EventFd::new()?;
        let tell = given_up.try_clone()?;
        let page_of_cards = Arc::clone(&mapping);
        let idle_cards = Arc::<Borrowable<_>>::default();
        let lent_cards = Arc::clone(&idle_cards);
        let make = move || {
            let published = published_by_thread;
            let shares = ThreadShares { page: page_of_cards, idle_cards: lent_cards };
            CardThread::new(cabling, places, published, receiver, kick, tell, shares)
        };
        let overseer = std::thread::Builder::new()
            .name("overseer".into())
            .spawn(move || overseer::run_cards(make, mapping, &started))
            .map_err(Error::Thread)?;
        outcome.recv().map_err(|_| Error::Gone)??;
        let (commands, overseer) = (Some(commands), Some(overseer));
        Ok(Self { commands, waker, idle_cards, published, page, given_up, overseer })
    }

    /// The card with that number.
    #[must_use]
    pub fn card(&self, number: usize) -> Option<CardHandle> {
        Some(CardHandle {
            card: number,
            commands: self.commands.clone()?,
            waker: Arc::clone(&self.waker),
            idle_cards: Arc::clone(&self.idle_cards),
            published: Arc::clone(self.published.get(number)?),
        })
    }

    /// The memfd of the card thread's page, which others can only read.
    #[must_use]
    pub fn thread_page(&self) -> BorrowedFd<'_> {
        self.page.as_fd()
    }

    /// Readable, until it is read, once memory of a process did not answer, which its `RemoteProcess` then
    /// tells. The process's queue pairs fail.
    #[must_use]
    pub fn given_up(&self) -> BorrowedFd<'_> {
        self.given_up.as_fd()
    }

    /// Ends the cards once every [`CardHandle`] is dropped, and waits for it.
    pub fn shutdown(mut self) {
        self.commands = None;
        let _ = self.waker.signal();
        if let Some(overseer) = self.overseer.take() {
            let _ = overseer.join();
        }
    }
}
