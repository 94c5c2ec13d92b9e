//! Connections that librdmacm makes for queue pairs that are the program's own.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::device::is_readable;
use super::library::{functions, last_error, symbol};
use super::{Failed, Qp, blank};

/// `RDMA_PS_TCP`.
const PS_TCP: c_int = 0x106;

/// `rdma_cm_id`, of which nothing is looked at.
#[repr(C)]
pub(super) struct RawId {
    _opaque: [u8; 0],
}

/// `rdma_event_channel`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RawChannel {
    pub(super) fd: c_int,
}

/// `rdma_conn_param`.
#[repr(C)]
struct Parameters {
    private_data: *const c_void,
    private_data_len: u8,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: u8,
    qp_num: u32,
}

/// `rdma_cm_event`, as far as it is looked at.
#[repr(C)]
pub(super) struct RawEvent {
    id: *mut RawId,
    listen_id: *mut RawId,
    event: c_int,
    status: c_int,
}

/// `rdma_get_cm_event`.
pub(super) type GetCmEvent = unsafe extern "C" fn(*mut RawChannel, *mut *mut RawEvent) -> c_int;

functions! {
    /// The functions of librdmacm that are used here.
    struct Manager = "librdmacm.so.1";
    rdma_create_event_channel @ "RDMACM_1.0": fn() -> *mut RawChannel;
    rdma_destroy_event_channel @ "RDMACM_1.0": fn(*mut RawChannel);
    rdma_create_id @ "RDMACM_1.0":
        fn(*mut RawChannel, *mut *mut RawId, *mut c_void, c_int) -> c_int;
    rdma_destroy_id @ "RDMACM_1.0": fn(*mut RawId) -> c_int;
    rdma_bind_addr @ "RDMACM_1.0": fn(*mut RawId, *mut libc::sockaddr) -> c_int;
    rdma_listen @ "RDMACM_1.0": fn(*mut RawId, c_int) -> c_int;
    rdma_resolve_addr @ "RDMACM_1.0":
        fn(*mut RawId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route @ "RDMACM_1.0": fn(*mut RawId, c_int) -> c_int;
    rdma_connect @ "RDMACM_1.0": fn(*mut RawId, *mut Parameters) -> c_int;
    rdma_accept @ "RDMACM_1.0": fn(*mut RawId, *mut Parameters) -> c_int;
    rdma_establish @ "RDMACM_1.2": fn(*mut RawId) -> c_int;
    rdma_init_qp_attr @ "RDMACM_1.2": fn(*mut RawId, *mut v::ibv_qp_attr, *mut c_int) -> c_int;
    rdma_disconnect @ "RDMACM_1.0": fn(*mut RawId) -> c_int;
    rdma_get_cm_event @ "RDMACM_1.0": fn(*mut RawChannel, *mut *mut RawEvent) -> c_int;
    rdma_ack_cm_event @ "RDMACM_1.0": fn(*mut RawEvent) -> c_int;
}

/// The values of `rdma_cm_event_type` that a program of ours waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CmEventType {
    /// The address is found.
    AddressResolved = 0,
    /// There is a path.
    RouteResolved = 2,
    /// There is none, or it cannot be asked for.
    RouteError = 3,
    /// A listener is asked.
    Request = 4,
    /// The peer has accepted.
    Response = 5,
    /// The connection is there.
    Established = 9,
    /// It has ended.
    Disconnected = 10,
    /// The device has gone.
    DeviceRemoval = 11,
    /// Nothing of it is under way any more.
    Over = 15,
}

/// How long anything of a connection may take, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(300);
/// READs and atomics either way, and tries behind the first.
const DEPTH: u8 = 4;
const RETRIES: u8 = 7;

/// An event that was acknowledged: its identifiers are not looked at any more.
struct Event {
    id: *mut RawId,
    listener: *mut RawId,
    kind: c_int,
    status: c_int,
}

/// An event channel.
#[derive(Debug)]
pub struct EventChannel {
    library: &'static Manager,
    raw: NonNull<RawChannel>,
}

impl EventChannel {
    /// Opens one.
    ///
    /// # Errors
    /// When librdmacm is not there, or has no device.
    pub fn open() -> Result<Rc<Self>> {
        let library = Manager::open()?;
        // SAFETY: it takes nothing.
        let raw = unsafe { (library.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("rdma_create_event_channel"))?;
        Ok(Rc::new(Self { library, raw }))
    }

    pub(super) fn raw(&self) -> *mut RawChannel {
        self.raw.as_ptr()
    }

    pub(super) fn get(&self) -> GetCmEvent {
        self.library.rdma_get_cm_event
    }

    /// The descriptor, to be waited for by other means.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the answer is used, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Waits for an event, as the descriptor's own mode says, and acknowledges it; gives its number.
    ///
    /// # Errors
    /// When there is none.
    pub fn next_event(&self) -> Result<c_int, Failed> {
        self.take().map(|taken| taken.kind)
    }

    /// Takes an event, and acknowledges it.
    fn take(&self) -> Result<Event, Failed> {
        let mut event = null_mut();
        // SAFETY: the channel is open, the place is valid.
        let result = unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) };
        Failed::check("rdma_get_cm_event", result)?;
        // SAFETY: the call has succeeded, so there is an event, until it is acknowledged.
        let taken = unsafe {
            let RawEvent { id, listen_id, event: kind, status } = event.read();
            Event { id, listener: listen_id, kind, status }
        };
        // SAFETY: the event came from rdma_get_cm_event, and is not used any more.
        Failed::check("rdma_ack_cm_event", unsafe { (self.library.rdma_ack_cm_event)(event) })?;
        Ok(taken)
    }

    /// The next event, which is to be this of an identifier, and the identifier that it brings.
    fn next(self: &Rc<Self>, of: *mut RawId, told: CmEventType) -> Result<Option<Identifier>> {
        loop {
            // SAFETY: the channel is open.
            let fd = unsafe { self.raw.as_ref() }.fd;
            ensure!(is_readable(fd, LIMIT)?, "{told:?} does not come within {LIMIT:?}");
            let Event { id, listener, kind, status } = self.take()?;
            if kind == CmEventType::Over as c_int {
                continue;
            }
            let request = (kind == CmEventType::Request as c_int).then(|| self.identifier(id));
            let asked = if request.is_some() { listener } else { id };
            if (asked, kind, status) != (of, told as c_int, 0) {
                bail!("event {kind} with status {status} comes, and not {told:?}");
            }
            return request.transpose();
        }
    }

    fn identifier(self: &Rc<Self>, raw: *mut RawId) -> Result<Identifier> {
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("rdma_create_id"))?;
        Ok(Identifier { raw, channel: Rc::clone(self) })
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: opened by us; its identifiers hold it, and are gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An identifier.
#[derive(Debug)]
pub struct Identifier {
    raw: NonNull<RawId>,
    channel: Rc<EventChannel>,
}

impl Identifier {
    /// Makes one.
    ///
    /// # Errors
    /// When there are too many.
    pub fn new(channel: &Rc<EventChannel>) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: the channel is open and held by the identifier; the place is valid.
        let result = unsafe {
            let create = channel.library.rdma_create_id;
            create(channel.raw.as_ptr(), &raw mut raw, null_mut(), PS_TCP)
        };
        Failed::check("rdma_create_id", result)?;
        channel.identifier(raw)
    }

    /// Listens at an address, for so many requests at a time.
    ///
    /// # Errors
    /// When it is no address of a card's, or is taken.
    pub fn listen(&self, address: SocketAddrV4, backlog: c_int) -> Result<(), Failed> {
        let mut address = sockaddr(address);
        let (library, raw) = (self.channel.library, self.raw.as_ptr());
        // SAFETY: the identifier lives, and so does the address until the call is over.
        let bound = unsafe { (library.rdma_bind_addr)(raw, (&raw mut address).cast()) };
        Failed::check("rdma_bind_addr", bound)?;
        // SAFETY: the identifier lives.
        Failed::check("rdma_listen", unsafe { (library.rdma_listen)(raw, backlog) })
    }

    /// Finds an address, and the way there.
    ///
    /// # Errors
    /// When it is not found.
    pub fn resolve(&self, from: SocketAddrV4, to: SocketAddrV4) -> Result<()> {
        self.ask_for_address(from, to)?;
        self.told(CmEventType::AddressResolved)?;
        self.ask_for_route()?;
        self.told(CmEventType::RouteResolved)
    }

    /// Asks for an address, of which an event tells.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn ask_for_address(&self, from: SocketAddrV4, to: SocketAddrV4) -> Result<()> {
        let limit = LIMIT.as_millis().try_into()?;
        let (mut from, mut to) = (sockaddr(from), sockaddr(to));
        let (library, raw) = (self.channel.library, self.raw.as_ptr());
        // SAFETY: the identifier lives, and so do the addresses until the call is over.
        let asked = unsafe {
            let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
            (library.rdma_resolve_addr)(raw, from, to, limit)
        };
        Ok(Failed::check("rdma_resolve_addr", asked)?)
    }

    /// Asks for the way to the address that was found, of which an event tells.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn ask_for_route(&self) -> Result<()> {
        let limit = LIMIT.as_millis().try_into()?;
        let resolve = self.channel.library.rdma_resolve_route;
        // SAFETY: the identifier lives.
        let asked = unsafe { resolve(self.raw.as_ptr(), limit) };
        Ok(Failed::check("rdma_resolve_route", asked)?)
    }

    /// Waits for an event of its own.
    ///
    /// # Errors
    /// When another comes first, or none.
    pub fn told(&self, what: CmEventType) -> Result<()> {
        self.channel.next(self.raw.as_ptr(), what).map(drop)
    }

    /// Waits until it is asked for a connection, and answers with that one's identifier.
    ///
    /// # Errors
    /// When something else comes first, or nothing.
    pub fn request(&self) -> Result<Identifier> {
        let request = self.channel.next(self.raw.as_ptr(), CmEventType::Request)?;
        request.ok_or_else(|| Failed::last("rdma_get_cm_event").into())
    }

    /// Asks for a connection of a queue pair.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn connect(&self, qp: &Qp) -> Result<(), Failed> {
        let mut parameters = parameters(qp);
        let connect = self.channel.library.rdma_connect;
        // SAFETY: the identifier lives, and the parameters name no private data.
        let asked = unsafe { connect(self.raw.as_ptr(), &raw mut parameters) };
        Failed::check("rdma_connect", asked)
    }

    /// Accepts, with a queue pair that is ready.
    ///
    /// # Errors
    /// When it is not to be decided any more.
    pub fn accept(&self, qp: &Qp) -> Result<(), Failed> {
        let mut parameters = parameters(qp);
        let accept = self.channel.library.rdma_accept;
        // SAFETY: as in `connect`.
        let accepted = unsafe { accept(self.raw.as_ptr(), &raw mut parameters) };
        Failed::check("rdma_accept", accepted)
    }

    /// Says that the queue pair which asked is ready.
    ///
    /// # Errors
    /// When nobody has accepted.
    pub fn establish(&self) -> Result<(), Failed> {
        // SAFETY: the identifier lives, and has no queue pair of librdmacm's.
        let said = unsafe { (self.channel.library.rdma_establish)(self.raw.as_ptr()) };
        Failed::check("rdma_establish", said)
    }

    /// Takes a queue pair to a state, with the connection manager's attributes.
    ///
    /// # Errors
    /// When it says nothing, or the device refuses.
    pub fn bring(&self, qp: &Qp, to: v::ibv_qp_state) -> Result<(), Failed> {
        let (mut attributes, mut mask) = (blank(), 0);
        attributes.qp_state = to;
        let ask = self.channel.library.rdma_init_qp_attr;
        // SAFETY: the identifier lives, both places are valid.
        let said = unsafe { ask(self.raw.as_ptr(), &raw mut attributes, &raw mut mask) };
        Failed::check("rdma_init_qp_attr", said)?;
        qp.modify(mask as v::ibv_qp_attr_mask, |all| *all = attributes)
    }

    /// Ends the connection, or agrees to its end.
    ///
    /// # Errors
    /// When there is none.
    pub fn disconnect(&self) -> Result<(), Failed> {
        // SAFETY: the identifier lives.
        let ended = unsafe { (self.channel.library.rdma_disconnect)(self.raw.as_ptr()) };
        Failed::check("rdma_disconnect", ended)
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: made by us, or given to us by an event; all of its events are acknowledged.
        let result = unsafe { (self.channel.library.rdma_destroy_id)(self.raw.as_ptr()) };
        assert_eq!(result, 0, "rdma_destroy_id");
    }
}

fn parameters(qp: &Qp) -> Parameters {
    Parameters {
        private_data: null(),
        private_data_len: 0,
        responder_resources: DEPTH,
        initiator_depth: DEPTH,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: qp.number(),
    }
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}
