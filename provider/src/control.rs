//! The control connection to balboad: one for the process and all its devices.
//!
//! A call that balboad does not answer within [`shim_abi::CONTROL_SECONDS`] fails with ETIMEDOUT, and
//! balboad is given up: nothing more is asked of it, because an answer that came late could be taken
//! for that to a later question. If it was only stopped, it then answers, finds that the connection is closed, and ends
//! this client; that is the moment when the process's cards are dead, and
//! not before: until then they may still move data.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hostmem::mapping::Access;
use hostmem::process::{allow_ptracer, allow_reach_of_unreadable};
use hostmem::{
    AsleepWord, DoorbellPage, EventFd, ForkCanary, Lifeline, PAGE_BYTES, SharedMapping, SharedWord,
    Waker,
};
use nix::errno::Errno;
use nix::unistd::geteuid;
use parking_lot::{Mutex, MutexGuard};
use shim_abi::{ContextInfo, DoorbellAccess, Grant, Request, Response, Role};
use shim_client::{Client, ConnectError};
use vfio::Iommu;

use crate::abi::RELEASE;
use crate::doorbell::{CardPath, Life};
use crate::error::{Error, Result};
use crate::ffi::cancel::Uncancelled;
use crate::process::ProcessLock;

/// A connection to balboad, and the resources that the process got through it.
#[derive(Debug)]
pub(crate) struct ControlConnection {
    /// Held from the request to its answer.
    balboad: Mutex<Client>,
    canary: ForkCanary,
    /// Held while a context is opened: later contexts use the resources that come with the first.
    opening: Mutex<()>,
    /// Held while an event of the connection manager's is read, and while it is asked to end or to move some.
    reading: Mutex<()>,
    /// [`THERE`], [`GIVEN_UP`] or [`GONE`].
    state: AtomicU8,
    /// How long an answer is waited for.
    seconds: u32,
    granted: Mutex<Granted>,
}

/// balboad answers.
const THERE: u8 = 0;
/// balboad owes an answer, and is asked nothing more.
const GIVEN_UP: u8 = 1;
/// balboad has closed the connection.
const GONE: u8 = 2;

/// The process's connection; made by the first device that is opened, gone with the last.
pub(crate) static SHARED: ProcessLock<Weak<ControlConnection>> = ProcessLock::new(Weak::new());

/// The resources that balboad sends once for a process.
#[derive(Debug, Default)]
struct Granted {
    rings: Option<Arc<SharedMapping>>,
    cards: Vec<(u32, Arc<CardPath>)>,
}

/// The resources of an opened context.
#[derive(Debug)]
pub(crate) struct OpenedContext {
    /// balboad's description of the context.
    pub info: ContextInfo,
    /// The descriptor of asynchronous events.
    pub events: OwnedFd,
    /// The way to the card.
    pub path: Arc<CardPath>,
    /// The process's ring memory.
    pub rings: Arc<SharedMapping>,
}

/// The name of a request in a message.
fn name(request: &Request) -> &'static str {
    match request {
        Request::ListCards => "the list of cards",
        Request::Status => "the status",
        Request::Introduce => "who balboad is",
        Request::Ping { .. } => "who is at an address",
        Request::SetLink { .. } => "the change of a link",
        Request::AddGid { .. } | Request::DelGid { .. } => "the change of an address",
        Request::ResetCard { .. } => "a reset",
        Request::FlashOpen { .. }
        | Request::FlashWrite { .. }
        | Request::FlashApply { .. }
        | Request::FlashRollback { .. }
        | Request::FlashState { .. }
        | Request::FlashVerify { .. } => "an image of a card",
        Request::Capture { .. } | Request::EndCapture { .. } => "a capture",
        Request::AttachServices { .. }
        | Request::DetachServices { .. }
        | Request::LoadService { .. }
        | Request::UnloadService { .. } => "services",
        Request::QueryQos { .. } | Request::SetQos { .. } => "the priorities of a port",
        Request::OpenContext { .. } => "opening a device",
        Request::CloseContext { .. } => "closing a device",
        Request::QueryPort { .. } => "a port query",
        Request::QueryClock { .. } => "a clock query",
        Request::CreateChannel { .. } => "making a completion channel",
        Request::AllocPd { .. } => "making a PD",
        Request::DeallocPd { .. } => "ending a PD",
        Request::ReserveMr { .. } => "reserving a memory region",
        Request::CommitMr { .. } => "committing a memory region",
        Request::ModifyMr { .. } => "changing a memory region",
        Request::MoveMr { .. } => "moving a memory region",
        Request::DeregMr { .. } => "ending a memory region",
        Request::AllocMw { .. } => "making a memory window",
        Request::DeallocMw { .. } => "ending a memory window",
        Request::CreateAh { .. } => "making an address handle",
        Request::AllocDm { .. } => "taking device memory",
        Request::CopyDm { .. } => "copying device memory",
        Request::RegDmMr { .. } => "registering device memory",
        Request::AllocNullMr { .. } => "making a null memory region",
        Request::FreeDm { .. } => "giving device memory back",
        Request::DestroyAh { .. } => "ending an address handle",
        Request::AttachMulticast { .. } => "attaching a QP to a multicast group",
        Request::DetachMulticast { .. } => "detaching a QP from a multicast group",
        Request::CreateCq { .. } => "making a CQ",
        Request::ResizeCq { .. } => "resizing a CQ",
        Request::ModerateCq { .. } => "moderating a CQ",
        Request::ReleaseCqRing { .. } => "giving back a CQ's old ring",
        Request::DestroyCq { .. } => "destroying a CQ",
        Request::CreateSrq { .. } => "making an SRQ",
        Request::OpenXrcd { .. } => "opening an XRC domain",
        Request::CloseXrcd { .. } => "closing an XRC domain",
        Request::CreateXrcSrq { .. } => "making an XRC SRQ",
        Request::CreateTarget { .. } => "making an XRC target",
        Request::OpenTarget { .. } => "opening an XRC target",
        Request::ModifyTarget { .. } => "changing an XRC target",
        Request::QueryTarget { .. } => "an XRC target query",
        Request::DestroyTarget { .. } => "giving up an XRC target",
        Request::ModifySrq { .. } => "changing an SRQ",
        Request::QuerySrq { .. } => "an SRQ query",
        Request::DestroySrq { .. } => "destroying an SRQ",
        Request::CreateQp(_) => "making a QP",
        Request::ModifyQp { .. } => "changing a QP",
        Request::QueryQp { .. } => "a QP query",
        Request::DestroyQp { .. } => "destroying a QP",
        Request::OpenCmChannel => "opening a channel of the connection manager",
        Request::CmCommand { .. } => "asking the connection manager",
    }
}

/// Reports an answer to `request` that its documentation does not allow.
pub(crate) fn unexpected(request: &Request, what: &'static str) -> Error {
    Error::Answer { to: name(request), what }
}

/// Sends a request and takes the one kind of answer it has.
macro_rules! ask {
    ($connection:expr, $request:expr, $answer:pat => $value:expr) => {{
        let request = $request;
        match $connection.call(&request) {
            Ok(($answer, _)) => Ok($value),
            Ok(_) => Err($crate::control::unexpected(&request, "it answers another request")),
            Err(error) => Err(error),
        }
    }};
}
pub(crate) use ask;

impl ControlConnection {
    /// The process's connection.
    pub(crate) fn shared() -> Result<Arc<Self>> {
        let usable = |shared: &Weak<Self>| shared.upgrade().filter(|it| it.check().is_ok());
        if let Some(connection) = SHARED.with(|shared| usable(shared)) {
            return Ok(connection);
        }
        let directory = shim_abi::state_dir(None, geteuid().as_raw());
        let connection = Arc::new(Self::open(&directory, control_seconds())?);
        // Not held while connecting, which can take long: another thread may have been faster.
        Ok(SHARED.with(|shared| {
            usable(shared).unwrap_or_else(|| {
                *shared = Arc::downgrade(&connection);
                connection
            })
        }))
    }

    /// Connects to the balboad of a state directory and introduces this process.
    pub(crate) fn open(directory: &Path, seconds: u32) -> Result<Self> {
        let path = || directory.join(shim_abi::SOCKET_NAME);
        let balboad = Client::connect(directory, seconds).map_err(|error| match error {
            // Its queue of connections is full, and stays so.
            ConnectError::Socket { errno: Errno::EAGAIN, .. } => {
                Error::Silent { to: "a connection", seconds }
            }
            ConnectError::Socket { errno, .. } => Error::NoDaemon { path: path(), errno },
            ConnectError::Foreign { uid } => Error::ForeignDaemon { path: path(), uid },
        })?;
        // Without this, a kernel that restricts ptrace keeps balboad from this process's memory.
        allow_ptracer(balboad.daemon())
            .map_err(Error::host("let balboad reach this process's memory"))?;
        allow_reach_of_unreadable();
        let canary = ForkCanary::new().map_err(Error::host("detect a fork"))?;
        let connection = Self {
            balboad: Mutex::new(balboad),
            canary,
            opening: Mutex::new(()),
            reading: Mutex::new(()),
            state: AtomicU8::new(THERE),
            seconds,
            granted: Mutex::default(),
        };
        let build = format!("provider {} for rdma-core {RELEASE}", env!("CARGO_PKG_VERSION"));
        let greet = |balboad: &mut Client| balboad.greet(build, Role::Provider);
        connection.exchange("the greeting", greet)?;
        Ok(connection)
    }

    /// Whether calls can be made: this is the process that connected, and balboad is there.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.canary.alive() {
            return Err(Error::Forked);
        }
        match self.state.load(Ordering::Relaxed) {
            THERE => Ok(()),
            GIVEN_UP => Err(self.await_end()),
            _ => Err(Error::Gone),
        }
    }

    /// Sends a request and waits for its answer and the descriptors with it.
    pub(crate) fn call(&self, request: &Request) -> Result<(Response, Vec<OwnedFd>)> {
        self.check()?;
        self.exchange(name(request), |balboad| balboad.ask(request))
    }

    /// Keeps others from reading events of the connection manager's.
    pub(crate) fn reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock()
    }

    /// Gives the connection ring memory, as if a context had been opened.
    #[cfg(test)]
    pub(crate) fn share_rings(&self, rings: Arc<SharedMapping>) {
        self.granted.lock().rings = Some(rings);
    }

    /// The era of answers that were given ahead ([`shim_abi::CmAhead`]); `None` where none hold: in a forked child,
    /// and once one of the process's cards is dead.
    pub(crate) fn cm_era(&self) -> Option<u32> {
        // In a child the lock may have been copied while a thread of the parent held it.
        if self.is_forked() {
            return None;
        }
        let granted = self.granted.lock();
        if !granted.cards.iter().all(|(_, path)| path.is_fit()) {
            return None;
        }
        let offset = usize::try_from(shim_abi::CM_ERA).ok()?;
        granted.rings.as_ref()?.load_acquire_u32(offset).ok()
    }

    fn exchange<T>(
        &self,
        to: &'static str,
        ask: impl FnOnce(&mut Client) -> Result<T, shim_client::Error>,
    ) -> Result<T> {
        // A thread that ended in between would leave the lock taken, and its answer to the next.
        let _uncancelled = Uncancelled::now();
        let mut balboad = self.balboad.lock();
        self.check()?;
        ask(&mut balboad).map_err(|error| match error {
            shim_client::Error::Silent => self.give_up(to, &balboad),
            shim_client::Error::Gone => self.note_end(),
            shim_client::Error::Host(source) => Error::Host { what: "talk to balboad", source },
            shim_client::Error::Decode(error) => Error::Decode(error),
            shim_client::Error::Greeting(_) => Error::Answer { to, what: "it answers a request" },
            shim_client::Error::Refused(shim_abi::Refusal { errno, reason }) => {
                Error::Refused { errno, reason }
            }
        })
    }

    /// balboad does not answer: asks nothing more, which it will see, and then end this client.
    fn give_up(&self, to: &'static str, balboad: &Client) -> Error {
        self.state.store(GIVEN_UP, Ordering::Relaxed);
        balboad.hang_up();
        Error::Silent { to, seconds: self.seconds }
    }

    /// Whether balboad, which was given up, has ended this client.
    fn await_end(&self) -> Error {
        // A thread in a call, or in this look, has to leave first.
        match self.balboad.try_lock().map(|mut balboad| balboad.has_ended()) {
            Some(true) => self.note_end(),
            // balboad takes the cards away before it closes the connection, and the thread that was told goes on.
            _ if self.has_lost_all_cards() => Error::Gone,
            _ => Error::GivenUp,
        }
    }

    /// Whether this process had cards, and has none that lives.
    fn has_lost_all_cards(&self) -> bool {
        let granted = self.granted.lock();
        !granted.cards.is_empty() && granted.cards.iter().all(|(_, path)| path.is_dead())
    }

    /// balboad has closed the connection: with it every card of this process is gone.
    fn note_end(&self) -> Error {
        self.state.store(GONE, Ordering::Relaxed);
        for (_, path) in &self.granted.lock().cards {
            path.declare_dead();
        }
        Error::Gone
    }

    /// Opens a context on a card.
    pub(crate) fn open_context(&self, card: u32) -> Result<OpenedContext> {
        self.check()?;
        let _opening = self.opening.lock();
        let request = Request::OpenContext { card };
        let (response, fds) = self.call(&request)?;
        let Response::Context(info) = response else {
            return Err(unexpected(&request, "it answers another request"));
        };
        let context = info.context;
        self.take_context(&request, *info, fds).inspect_err(|_| {
            // The failure to tell is the one before; a context left behind ends with the client.
            let _ = self.call(&Request::CloseContext { context });
        })
    }

    /// Keeps a dead card no longer than its contexts do: balboad and the kernel may wait for it to be
    /// free.
    pub(crate) fn let_go_if_dead(&self, card: u32) {
        self.granted.lock().cards.retain(|(number, path)| *number != card || !path.is_dead());
    }

    /// Maps the resources that came with a new context, and finds those that came with earlier ones.
    fn take_context(
        &self,
        request: &Request,
        info: ContextInfo,
        fds: Vec<OwnedFd>,
    ) -> Result<OpenedContext> {
        let card = info.card.card;
        let mut fds = fds.into_iter();
        let mut next = |what| fds.next().ok_or_else(|| unexpected(request, what));
        let events = next("the event descriptor is missing")?;

        let Grant { first, access, state, .. } = info.grant;
        let granted = match access {
            _ if !first => None,
            DoorbellAccess::Page { asleep, liveness, worked } => {
                let page = next("the doorbell page is missing")?;
                let event = next("the eventfd is missing")?;
                let words = next("the card's page is missing")?;
                let offsets = [asleep, liveness, worked].map(|offset| offset as usize);
                Some(Brought::Page(page, event, words, offsets, None))
            }
            DoorbellAccess::Relay { asleep, liveness, worked } => {
                let page = next("the doorbell page is missing")?;
                let event = next("the eventfd is missing")?;
                let words = next("the card's page is missing")?;
                let relay = next("the relay's page is missing")?;
                let offsets = [asleep, liveness, worked].map(|offset| offset as usize);
                Some(Brought::Page(page, event, words, offsets, Some(relay)))
            }
            DoorbellAccess::Device { offset, ioas } => {
                let function = next("the card's descriptor is missing")?;
                let iommu = next("the descriptor of its IOMMU is missing")?;
                let life = next("the page with balboad's lock is missing")?;
                Some(Brought::Device(function, offset, Iommu::from_received(iommu, ioas), life))
            }
        };
        let rings = if info.rings.first {
            let memory = next("the ring memory is missing")?;
            let bytes = usize::try_from(info.rings.length)
                .map_err(|_| unexpected(request, "the ring memory is too large"))?;
            let mapping = SharedMapping::new(memory.as_fd(), 0, bytes, Access::ReadWrite)
                .map_err(Error::host("map the ring memory"))?;
            Some(Arc::new(mapping))
        } else {
            None
        };

        let mut all = self.granted.lock();
        if rings.is_some() {
            all.rings = rings;
        }
        let rings = all.rings.as_ref().map(Arc::clone);
        let rings = rings.ok_or_else(|| unexpected(request, "the ring memory never came"))?;
        if let Some(granted) = granted {
            let state = state_word(&rings, state)?;
            let path = match granted {
                Brought::Page(page, event, words, [asleep, liveness, worked], relay) => {
                    let words = map_words(&words)?;
                    // A thread that balboad wakes for a card without a page for this process sleeps by a word of its
                    // own.
                    let sleeps = relay.map_or(Ok(Arc::clone(&words)), |relay| map_words(&relay))?;
                    let life = Life { thread: lifeline_in(&words, liveness)?, state };
                    map_page(&page, event, (sleeps, asleep), (words, worked), life)?
                }
                Brought::Device(function, offset, iommu, life) => {
                    let life = Life { thread: lifeline_in(&map_words(&life)?, 0)?, state };
                    map_device(&function, offset, iommu, life)?
                }
            };
            all.cards.retain(|(number, _)| *number != card);
            all.cards.push((card, path));
        }
        let path = all.cards.iter().find(|(number, _)| *number == card).map(|(_, path)| path);
        let path = path.ok_or_else(|| unexpected(request, "the card's grant never came"))?;
        Ok(OpenedContext { events, path: Arc::clone(path), rings, info })
    }

    /// Whether this is a forked child of the process that connected.
    pub(crate) fn is_forked(&self) -> bool {
        !self.canary.alive()
    }
}

/// Maps a doorbell page of a card that is woken by an eventfd while its asleep word says so.
fn map_page(
    page: &OwnedFd,
    event: OwnedFd,
    (sleeps, asleep): (Arc<SharedMapping>, usize),
    (words, worked): (Arc<SharedMapping>, usize),
    life: Life,
) -> Result<Arc<CardPath>> {
    let host = Error::host;
    let mapping = SharedMapping::new(page.as_fd(), 0, PAGE_BYTES, Access::ReadWrite)
        .map_err(host("map the doorbell page"))?;
    let page = DoorbellPage::new(Arc::new(mapping), 0).map_err(host("map the doorbell page"))?;
    // One of the card's own, which is marked when it dies.
    let canary = ForkCanary::new().map_err(host("detect a fork"))?;
    let worked = SharedWord::new(words, worked);
    let worked = worked.map_err(host("find the word of the card's work"))?;
    let word = AsleepWord::new(sleeps, asleep).map_err(host("find the asleep word"))?;
    let waker = Waker::new(word, EventFd::from_received(event));
    Ok(Arc::new(CardPath::new(page, waker, life, canary).with_worked(worked)))
}

/// Maps the doorbell page of the card itself.
fn map_device(function: &OwnedFd, offset: u64, iommu: Iommu, life: Life) -> Result<Arc<CardPath>> {
    let host = Error::host;
    let mapping = SharedMapping::of_device(function.as_fd(), offset, PAGE_BYTES, Access::ReadWrite)
        .map_err(host("map the card's doorbell page"))?;
    let page =
        DoorbellPage::new(Arc::new(mapping), 0).map_err(host("map the card's doorbell page"))?;
    let canary = ForkCanary::new().map_err(host("detect a fork"))?;
    let path = CardPath::new(page, Waker::needless(), life, canary);
    Ok(Arc::new(path.with_iommu(iommu)))
}

/// Maps the page that the card thread, or balboad, writes.
fn map_words(page: &OwnedFd) -> Result<Arc<SharedMapping>> {
    SharedMapping::new(page.as_fd(), 0, PAGE_BYTES, Access::ReadOnly)
        .map(Arc::new)
        .map_err(Error::host("map the page with balboad's lock"))
}

/// The lock in that page, which dies with its writer.
fn lifeline_in(words: &Arc<SharedMapping>, offset: usize) -> Result<Lifeline> {
    Lifeline::new(Arc::clone(words), offset).map_err(Error::host("find balboad's lock"))
}

/// The resources that came with the first context of a card.
enum Brought {
    /// A doorbell page, the eventfd that wakes the card, the card thread's page, and where in it the
    /// asleep word, the thread's lock and the count of its work are; where balboad forwards the page, the
    /// one in which the asleep word is instead.
    Page(OwnedFd, OwnedFd, OwnedFd, [usize; 3], Option<OwnedFd>),
    /// The card, the offset of the doorbell page in it, its IOMMU, and the page with balboad's lock.
    Device(OwnedFd, u64, Iommu, OwnedFd),
}

/// A card's state word in the ring memory.
fn state_word(rings: &Arc<SharedMapping>, offset: u32) -> Result<SharedWord> {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    SharedWord::new(Arc::clone(rings), offset)
        .map_err(Error::host("find a card's state in the ring memory"))
}

/// How long an answer of balboad is waited for.
fn control_seconds() -> u32 {
    static SECONDS: OnceLock<u32> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let set = std::env::var(shim_abi::CONTROL_SECONDS_VARIABLE).ok();
        let seconds = set.and_then(|text| text.trim().parse().ok()).filter(|it| *it > 0);
        seconds.unwrap_or(shim_abi::CONTROL_SECONDS)
    })
}

#[cfg(test)]
pub(crate) mod tests;
