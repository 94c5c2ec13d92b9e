//! Devices, protection domains and completion queues.

use std::ffi::{CStr, c_int};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::Failed;
use super::library::Library;

mod extended;
mod watch;

pub use extended::{Batch, CqWishes, EVERYTHING, STANDARD};

/// The only port.
const PORT: u8 = 1;

/// An open device.
#[derive(Debug)]
pub struct Context {
    library: &'static Library,
    raw: NonNull<v::ibv_context>,
}

impl Context {
    /// The names of all devices.
    ///
    /// # Errors
    /// When libibverbs has no list.
    pub fn names(library: &Library) -> Result<Vec<String>> {
        with_devices(library, |devices| Ok(devices.iter().map(|(_, name)| name.clone()).collect()))
    }

    /// Opens a device by its name.
    ///
    /// # Errors
    /// When it is not there, or cannot be opened.
    pub fn open(library: &'static Library, name: &str) -> Result<Rc<Self>> {
        with_devices(library, |devices| {
            let Some((device, _)) = devices.iter().find(|(_, known)| known == name) else {
                let known: Vec<&str> = devices.iter().map(|(_, known)| known.as_str()).collect();
                bail!("there is no device {name}; there are {}", known.join(", "));
            };
            // SAFETY: the device is of the list, which is freed only after this.
            let raw = unsafe { (library.ibv_open_device)(*device) };
            let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_open_device"))?;
            Ok(Rc::new(Self { library, raw }))
        })
    }

    pub(super) fn raw(&self) -> *mut v::ibv_context {
        self.raw.as_ptr()
    }

    /// Completion vectors.
    pub fn vectors(&self) -> i32 {
        // SAFETY: the context is open.
        unsafe { self.raw.as_ref() }.num_comp_vectors
    }

    /// The library it came from.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// The attributes of the device.
    ///
    /// # Errors
    /// When it does not say.
    pub fn attributes(&self) -> Result<v::ibv_device_attr, Failed> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: the context is open, the place has the size of the attributes.
        let result =
            unsafe { (self.library.ibv_query_device)(self.raw(), attributes.as_mut_ptr()) };
        Failed::check("ibv_query_device", result)?;
        // SAFETY: zeroed, all numbers, and filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The port's state.
    ///
    /// # Errors
    /// When the device does not say.
    pub fn port(&self) -> Result<v::ibv_port_attr, Failed> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: the context is open; the function fills at most the public structure.
        let result =
            unsafe { (self.library.ibv_query_port)(self.raw(), PORT, attributes.as_mut_ptr()) };
        Failed::check("ibv_query_port", result)?;
        // SAFETY: zeroed, all numbers, and filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// A GID, network order.
    ///
    /// # Errors
    /// When there is none at the index.
    pub fn gid(&self, index: u8) -> Result<[u8; 16], Failed> {
        let mut gid = v::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, the GID a valid place.
        let result = unsafe {
            (self.library.ibv_query_gid)(self.raw(), PORT, c_int::from(index), &raw mut gid)
        };
        Failed::check("ibv_query_gid", result)?;
        // SAFETY: every variant is 16 plain bytes.
        Ok(unsafe { gid.raw })
    }

    /// The descriptor of asynchronous events, to be waited for by other means.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the context lives as long as the answer is used, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) }
    }

    /// The descriptor by which libibverbs reaches the kernel's driver.
    pub fn command_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: as above.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().cmd_fd) }
    }

    /// Waits for an asynchronous event and acknowledges it.
    ///
    /// # Errors
    /// When none comes in time.
    pub fn async_event(&self, limit: Duration) -> Result<AsyncEvent> {
        // SAFETY: the context is open.
        let fd = unsafe { self.raw.as_ref() }.async_fd;
        ensure!(is_readable(fd, limit)?, "no asynchronous event within {limit:?}");
        Ok(self.take_event()?)
    }

    /// Waits for an asynchronous event without a limit, and acknowledges it; gives its type.
    ///
    /// # Errors
    /// When there will be none.
    pub fn next_async_event(&self) -> Result<v::ibv_event_type, Failed> {
        self.take_event().map(|event| event.kind)
    }

    /// Waits for an asynchronous event and acknowledges it.
    fn take_event(&self) -> Result<AsyncEvent, Failed> {
        let mut event: MaybeUninit<v::ibv_async_event> = MaybeUninit::zeroed();
        // SAFETY: the context is open, the place has the size of the event.
        let result = unsafe { (self.library.ibv_get_async_event)(self.raw(), event.as_mut_ptr()) };
        Failed::check("ibv_get_async_event", result)?;
        // SAFETY: zeroed, numbers and pointers only, and filled.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: whichever member was written, all 8 bytes of the union are initialized.
        let element = unsafe { event.element.qp } as usize;
        // SAFETY: it came from ibv_get_async_event.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Ok(AsyncEvent { kind: event.event_type, element })
    }

    /// The extended operations, found as verbs.h does.
    pub(super) fn extended(&self) -> Result<NonNull<v::verbs_context>> {
        // SAFETY: the context is open.
        let marker = unsafe { self.raw.as_ref() }.abi_compat;
        ensure!(marker as usize == usize::MAX, "libibverbs' contexts are not extended");
        // SAFETY: the marker says that the context lies in a verbs_context.
        Ok(unsafe { self.raw.byte_sub(offset_of!(v::verbs_context, context)) }.cast())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us; everything made from it holds an Rc and is gone.
        let result = unsafe { (self.library.ibv_close_device)(self.raw()) };
        assert_eq!(result, 0, "ibv_close_device");
    }
}

fn with_devices<T>(
    library: &Library,
    look: impl FnOnce(&[(*mut v::ibv_device, String)]) -> Result<T>,
) -> Result<T> {
    let mut count = 0;
    // SAFETY: the count is a valid place.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(Failed::last("ibv_get_device_list").into());
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count)? {
        // SAFETY: the list has `count` devices.
        let device = unsafe { *list.add(index) };
        // SAFETY: the device lives as long as the list, and its name with it.
        let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) };
        devices.push((device, name.to_string_lossy().into_owned()));
    }
    let outcome = look(&devices);
    // SAFETY: the list came from ibv_get_device_list; an open device outlives it.
    unsafe { (library.ibv_free_device_list)(list) };
    outcome
}

/// Waits until a descriptor can be read from; false when the time is over.
pub(super) fn is_readable(fd: c_int, limit: Duration) -> Result<bool> {
    let events = libc::POLLIN | libc::POLLOUT;
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one valid entry.
    let found = unsafe { libc::poll(&raw mut poll, 1, limit.as_millis().try_into()?) };
    // A channel that has ended takes all written bytes, and drops them.
    let is_writable = poll.revents & (libc::POLLOUT | libc::POLLHUP) == libc::POLLOUT;
    ensure!(!is_writable, "a channel, which is only read, is ready to be written");
    Ok(found == 1)
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The type of the event.
    pub kind: v::ibv_event_type,
    /// Address of the object it happened to; the number of a port.
    pub element: usize,
}

/// A protection domain, or a parent domain over one.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<v::ibv_pd>,
    /// The domains that a parent domain was made of.
    _made_of: Option<(Rc<Pd>, Option<Rc<ThreadDomain>>)>,
    // Last, because it goes last.
    context: Rc<Context>,
}

impl Pd {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>, Failed> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_alloc_pd"))?;
        Ok(Rc::new(Self { raw, _made_of: None, context: Rc::clone(context) }))
    }

    /// Makes a parent domain, whose queues are for one thread.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn parent(pd: &Rc<Self>, thread: &Rc<ThreadDomain>) -> Result<Rc<Self>> {
        Self::over(pd, Some(thread), |_| {})
    }

    /// Makes a parent domain with an allocator.
    ///
    /// # Errors
    /// When the device refuses.
    pub(super) fn allocating(
        pd: &Rc<Self>,
        set: impl FnOnce(&mut v::ibv_parent_domain_init_attr),
    ) -> Result<Rc<Self>> {
        Self::over(pd, None, set)
    }

    fn over(
        pd: &Rc<Self>,
        thread: Option<&Rc<ThreadDomain>>,
        set: impl FnOnce(&mut v::ibv_parent_domain_init_attr),
    ) -> Result<Rc<Self>> {
        let context = Rc::clone(&pd.context);
        // SAFETY: the extended context lives as long as the context.
        let make = unsafe { context.extended()?.as_ref() }.alloc_parent_domain;
        let Some(make) = make else { bail!("there is no ibv_alloc_parent_domain") };
        let mut attributes: MaybeUninit<v::ibv_parent_domain_init_attr> = MaybeUninit::zeroed();
        // SAFETY: all zero is a valid value: null pointers and no optional fields.
        let attributes = unsafe { attributes.assume_init_mut() };
        attributes.pd = pd.raw();
        attributes.td = thread.map_or(null_mut(), |thread| thread.raw());
        set(attributes);
        // SAFETY: the context is open, domain and thread domain live.
        let raw = unsafe { make(context.raw(), attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_alloc_parent_domain"))?;
        let made_of = Some((Rc::clone(pd), thread.cloned()));
        Ok(Rc::new(Self { raw, _made_of: made_of, context }))
    }

    pub(super) fn raw(&self) -> *mut v::ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.context.library
    }

    /// Its address, by which registrations in it name it.
    pub fn element(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Its device.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made by us; everything made in it holds an Rc and is gone.
        let result = unsafe { (self.library().ibv_dealloc_pd)(self.raw()) };
        assert_eq!(result, 0, "ibv_dealloc_pd");
    }
}

/// A thread domain: the promise that one thread uses the objects made in it.
#[derive(Debug)]
pub struct ThreadDomain {
    raw: NonNull<v::ibv_td>,
    context: Rc<Context>,
}

impl ThreadDomain {
    /// Makes one.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>> {
        // SAFETY: the extended context lives as long as the context.
        let make = unsafe { context.extended()?.as_ref() }.alloc_td;
        let Some(make) = make else { bail!("there is no ibv_alloc_td") };
        let mut attributes = v::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open.
        let raw = unsafe { make(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_alloc_td"))?;
        Ok(Rc::new(Self { raw, context: Rc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut v::ibv_td {
        self.raw.as_ptr()
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        let extended = self.context.extended().expect("it was when this was made");
        // SAFETY: the extended context lives as long as the context.
        let end = unsafe { extended.as_ref() }.dealloc_td.expect("who can make can end");
        // SAFETY: made by us; parent domains over it hold an Rc and are gone.
        assert_eq!(unsafe { end(self.raw.as_ptr()) }, 0, "ibv_dealloc_td");
    }
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<v::ibv_comp_channel>,
    context: Rc<Context>,
}

impl Channel {
    /// Makes one.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>, Failed> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_comp_channel"))?;
        Ok(Rc::new(Self { raw, context: Rc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut v::ibv_comp_channel {
        self.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.context.library
    }

    /// Waits for an event and acknowledges it; the answer tells which queue it was of.
    ///
    /// # Errors
    /// When none comes in time.
    pub fn wait(&self, limit: Duration) -> Result<*const v::ibv_cq> {
        ensure!(self.is_ready(limit)?, "no completion event within {limit:?}");
        Ok(self.next_event()?)
    }

    /// Whether there is an event within that time.
    ///
    /// # Errors
    /// When the time is too long to be waited.
    pub fn is_ready(&self, limit: Duration) -> Result<bool> {
        // SAFETY: the channel lives.
        is_readable(unsafe { self.raw.as_ref() }.fd, limit)
    }

    /// The descriptor, to be waited for by other means.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the answer is used, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Waits for an event however long it takes, and acknowledges it; answers which queue it was of.
    ///
    /// # Errors
    /// When there will be none.
    pub fn next_event(&self) -> Result<*const v::ibv_cq, Failed> {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        let get = self.context.library.ibv_get_cq_event;
        // SAFETY: the channel lives, both places are valid.
        let result = unsafe { get(self.raw.as_ptr(), &raw mut cq, &raw mut cookie) };
        Failed::check("ibv_get_cq_event", result)?;
        // SAFETY: libibverbs hands out only living queues.
        unsafe { (self.context.library.ibv_ack_cq_events)(cq, 1) };
        Ok(cq)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by us; queues on it hold an Rc and are gone.
        let result = unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        assert_eq!(result, 0, "ibv_destroy_comp_channel");
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<v::ibv_cq>,
    /// It is polled by the extended functions.
    is_extended: bool,
    channel: Option<Rc<Channel>>,
    _parent: Option<Rc<Pd>>,
    context: Rc<Context>,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: v::ibv_wc_status,
    /// The operation; valid only for success.
    pub opcode: v::ibv_wc_opcode,
    /// Bytes that came; good only for received and read ones.
    pub byte_len: u32,
    /// The immediate, host order, if one came.
    pub immediate: Option<u32>,
    /// The QP.
    pub qp_num: u32,
    /// The QP that a datagram came from.
    pub source_qpn: u32,
    /// A network header lies before a datagram.
    pub has_header: bool,
    /// The key that a SEND took back, if it did.
    pub invalidated: Option<u32>,
}

impl Cq {
    /// Makes one.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(
        context: &Rc<Context>,
        entries: u32,
        channel: Option<&Rc<Channel>>,
    ) -> Result<Rc<Self>, Failed> {
        Self::of_vector(context, entries, channel, 0)
    }

    /// Makes one of a completion vector.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn of_vector(
        context: &Rc<Context>,
        entries: u32,
        channel: Option<&Rc<Channel>>,
        vector: c_int,
    ) -> Result<Rc<Self>, Failed> {
        let raw_channel = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let create = context.library.ibv_create_cq;
        // SAFETY: the context is open, the channel is null or lives.
        let raw = unsafe { create(context.raw(), entries, null_mut(), raw_channel, vector) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_cq"))?;
        let (channel, context) = (channel.cloned(), Rc::clone(context));
        Ok(Rc::new(Self { raw, is_extended: false, channel, _parent: None, context }))
    }

    pub(super) fn raw(&self) -> *mut v::ibv_cq {
        self.raw.as_ptr()
    }

    /// Its address, by which an asynchronous event names it.
    pub fn element(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Entries it really has.
    pub fn entries(&self) -> u32 {
        // SAFETY: the queue lives.
        u32::try_from(unsafe { self.raw.as_ref() }.cqe).unwrap_or(0)
    }

    /// Gives it room for other many entries, or more.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn resize(&self, entries: u32) -> Result<(), Failed> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives.
        let result = unsafe { (self.context.library.ibv_resize_cq)(self.raw(), entries) };
        Failed::check("ibv_resize_cq", result)
    }

    /// The channel of its events.
    pub fn channel(&self) -> Option<&Rc<Channel>> {
        self.channel.as_ref()
    }

    fn operations(&self) -> &v::ibv_context_ops {
        // SAFETY: the context is open, and its operations never change.
        &unsafe { self.context.raw.as_ref() }.ops
    }

    /// Takes a completion, as the queue was made to be polled.
    ///
    /// # Errors
    /// When the provider says that the queue is broken.
    pub fn poll(&self) -> Result<Option<Completion>> {
        if self.is_extended {
            return Ok(self.poll_extended(1)?.pop().map(|(completion, _)| completion));
        }
        self.poll_plain()
    }

    /// Takes a completion by `ibv_poll_cq`.
    ///
    /// # Errors
    /// When the provider says that the queue is broken.
    pub fn poll_plain(&self) -> Result<Option<Completion>> {
        let poll = self.operations().poll_cq.expect("every provider polls");
        let mut wc: MaybeUninit<v::ibv_wc> = MaybeUninit::zeroed();
        // SAFETY: the queue lives, there is room for one completion.
        let count = unsafe { poll(self.raw(), 1, wc.as_mut_ptr()) };
        if count == 0 {
            return Ok(None);
        }
        ensure!(count == 1, "ibv_poll_cq answers {count}");
        // SAFETY: zeroed, all numbers, and filled.
        let wc = unsafe { wc.assume_init() };
        // SAFETY: both variants are a u32.
        let word = unsafe { wc.__bindgen_anon_1.imm_data };
        let has = |flag| wc.wc_flags & flag != 0;
        Ok(Some(Completion {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            immediate: has(v::IBV_WC_WITH_IMM).then_some(u32::from_be(word)),
            qp_num: wc.qp_num,
            source_qpn: wc.src_qp,
            has_header: has(v::IBV_WC_GRH),
            invalidated: has(v::IBV_WC_WITH_INV).then_some(word),
        }))
    }

    /// Asks for an event at the next completion.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn arm(&self) -> Result<(), Failed> {
        self.arm_for(false)
    }

    /// Asks for an event at the next completion, or at the next that is solicited or an error.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn arm_for(&self, solicited_only: bool) -> Result<(), Failed> {
        let arm = self.operations().req_notify_cq.expect("every provider arms");
        // SAFETY: the queue lives.
        Failed::check("ibv_req_notify_cq", unsafe { arm(self.raw(), solicited_only.into()) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: made by us; QPs on it hold an Rc and are gone.
        let result = unsafe { (self.context.library.ibv_destroy_cq)(self.raw()) };
        assert_eq!(result, 0, "ibv_destroy_cq");
    }
}
