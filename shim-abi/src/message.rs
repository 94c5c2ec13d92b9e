//! Requests and responses.

use super::parts::{
    AddressVector, CardInfo, CmReader, CmToken, ContextInfo, CreateQp, FileId, FlashState, Pinged,
    PortInfo, Qos, ReceiveRing, ServiceChain, ServiceUsers,
};
use super::{Deserialize, Serialize};

/// QPs by which a capture may be filtered.
pub const MAX_CAPTURED_QPS: usize = 16;
/// Bytes that may wait in balboad for the reader of a capture.
pub const CAPTURE_RING: std::ops::RangeInclusive<u32> = 64 << 10..=64 << 20;

/// Bytes of balboad's command line that it tells.
pub const MAX_OPTIONS: usize = 32 << 10;

/// Bytes of the largest image that is loaded into a card.
pub const MAX_IMAGE: u64 = 128 << 20;
/// Bytes of the largest manifest of an image.
pub const MAX_MANIFEST: usize = 32 << 10;

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version and revision of the client's build, for the log.
    pub build: String,
    /// The client's role.
    pub role: Role,
}

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A verbs program. Its memory must be within balboad's reach, and the kernel is asked at once
    /// whether it is.
    Provider,
    /// `balboa`: asks, changes ports, makes nothing.
    Tool,
}

/// The answer to every request: the response, or the refusal.
pub type Reply = Result<Response, Refusal>;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The errno the verbs call returns.
    pub errno: i32,
    /// One sentence: the object, the value, the mend.
    pub reason: String,
}

/// A client's request. Numbers of objects are only good on the connection that made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The cards. → [`Response::Cards`]
    ListCards,
    /// The whole state as JSON. → [`Response::Status`] with a memfd of the text.
    Status,
    /// Takes a card's port off its cable, or puts it back; a tool's. → [`Response::Done`] once its state
    /// says so
    SetLink {
        /// Card number.
        card: u32,
        /// As the cable says; down otherwise.
        up: bool,
    },
    /// Gives a card's port one more address; a tool's. → [`Response::Gid`]
    AddGid {
        /// Card number.
        card: u32,
        /// The address, network order.
        gid: [u8; 16],
        /// Number of the VLAN that it is in; 0 for none.
        vlan: u16,
    },
    /// Takes an address from a card's port; a tool's. → [`Response::Done`]
    DelGid {
        /// Card number.
        card: u32,
        /// The address, network order.
        gid: [u8; 16],
        /// Number of the VLAN that it is in; 0 for none.
        vlan: u16,
    },
    /// Resets a card, whose programs are told first that it is gone; a tool's. → [`Response::Reset`]
    ResetCard {
        /// Card number.
        card: u32,
    },
    /// Captures the frames at a card's port; a tool's. → [`Response::Capture`] with the client's end of a socket,
    /// where a pcapng file comes until the capture is ended or the card is gone.
    Capture {
        /// Card number.
        card: u32,
        /// Only frames for one of these QPs, [`MAX_CAPTURED_QPS`] at most; all where there are none.
        qpns: Vec<u32>,
        /// Only frames from or to this address, network order.
        address: Option<[u8; 16]>,
        /// Bytes of each frame that are kept; 0 for all.
        snap: u32,
        /// Bytes that wait for the client at most, [`CAPTURE_RING`]: frames that come beyond them are lost.
        ring: u32,
    },
    /// Ends the capture of a card's port; a tool's. → [`Response::Done`]; waiting frames are still sent.
    EndCapture {
        /// Card number.
        card: u32,
    },
    /// Announces an image for a card, of which [`Request::FlashWrite`] brings the bytes; a tool's. Nothing happens to
    /// the card. → [`Response::Done`]
    FlashOpen {
        /// Card number.
        card: u32,
        /// Bytes of the image, [`MAX_IMAGE`] at most.
        length: u64,
        /// Their SHA-256.
        sha256: [u8; 32],
        /// Name of the image, for people.
        name: String,
        /// The text of its manifest, [`MAX_MANIFEST`] bytes at most; empty for a software card's image, which needs none.
        manifest: String,
    },
    /// The next bytes of the image that was announced. → [`Response::Done`]
    FlashWrite {
        /// As many as a message has room for, at most.
        bytes: Vec<u8>,
    },
    /// Loads the image that was brought into its card. → [`Response::Done`] once that has begun; it goes on
    /// even if the client ends, and [`Request::FlashState`] tells its progress.
    FlashApply {
        /// Programs that have the card open are disconnected; otherwise they are why it is refused.
        force: bool,
    },
    /// As [`Request::FlashApply`], of the image that the card had before; a tool's. → [`Response::Done`]
    FlashRollback {
        /// Card number.
        card: u32,
        /// As there.
        force: bool,
    },
    /// How far the image of a card is that was asked for last; a tool's. → [`Response::Flash`]
    FlashState {
        /// Card number.
        card: u32,
    },
    /// Asks a card again for its identity, and compares it with its record; a tool's. → [`Response::Done`]
    FlashVerify {
        /// Card number.
        card: u32,
    },
    /// Opens a card. → [`Response::Context`]
    OpenContext {
        /// Card number, as in its name `balboaN`.
        card: u32,
    },
    /// Closes a context whose objects are gone. → [`Response::Done`]
    CloseContext {
        /// From [`Response::Context`].
        context: u32,
    },
    /// The port and its GIDs, now. → [`Response::Port`]
    QueryPort {
        /// Context.
        context: u32,
    },
    /// The card's clock, by which it stamps completions, now. → [`Response::Clock`]
    QueryClock {
        /// Context.
        context: u32,
    },
    /// Makes a completion channel. → [`Response::Channel`] with the client's end of a socket pair.
    ///
    /// It carries 8-byte records, the cookies of completion queues. It ends when the client closes
    /// its end.
    CreateChannel {
        /// Context.
        context: u32,
    },
    /// Makes a protection domain. → [`Response::Pd`]
    AllocPd {
        /// Context.
        context: u32,
    },
    /// Ends a protection domain. → [`Response::Done`]
    DeallocPd {
        /// Protection domain.
        pdn: u32,
    },
    /// First step of a registration: address space of the card. → [`Response::Reserved`]
    ///
    /// The client has to provide the memory: the card cannot reach memory that is missing, or that the client
    /// may not write.
    ReserveMr {
        /// Protection domain.
        pdn: u32,
        /// First byte in the client.
        address: u64,
        /// Bytes.
        length: u64,
        /// Address by which work requests name the first byte.
        hca_va: u64,
        /// `ibv_access_flags`.
        access: u32,
    },
    /// Second step, after the client mapped the memory as the grant asks: the keys. → [`Response::Mr`]
    CommitMr {
        /// From [`Response::Reserved`].
        mr: u32,
    },
    /// Gives a committed region another protection domain and other rights; its keys stay. →
    /// [`Response::Done`] once no DMA under the old ones can follow
    ModifyMr {
        /// Memory region.
        mr: u32,
        /// Protection domain.
        pdn: u32,
        /// `ibv_access_flags`.
        access: u32,
    },
    /// Gives a committed region what another one has reserved, memory, domain and rights; its keys stay.
    /// The other one gets its former memory, without keys. → [`Response::Done`] once no DMA to that can follow
    MoveMr {
        /// Memory region.
        mr: u32,
        /// One of the same card that is not committed.
        to: u32,
    },
    /// Ends a registration, committed or not. → [`Response::Done`] once no DMA can follow.
    DeregMr {
        /// Memory region.
        mr: u32,
    },
    /// Gives out a part of the card's own memory, zeroed. → [`Response::Dm`]
    AllocDm {
        /// Context.
        context: u32,
        /// Bytes.
        length: u32,
        /// log2 of its alignment.
        log2_alignment: u8,
    },
    /// Copies bytes of the card's own memory to where they pass between it and the client, or from there;
    /// the first byte has the place of `offset` modulo 64 in the first block there. → [`Response::Done`]
    CopyDm {
        /// The part.
        dm: u32,
        /// First byte in the part.
        offset: u32,
        /// Bytes.
        length: u32,
        /// To the card; otherwise from it.
        to_card: bool,
    },
    /// Registers a range of the card's own memory. → [`Response::DmMr`]
    RegDmMr {
        /// Protection domain.
        pdn: u32,
        /// The part.
        dm: u32,
        /// First byte in the part, which work requests name by 0.
        offset: u64,
        /// Bytes.
        length: u64,
        /// `ibv_access_flags`.
        access: u32,
    },
    /// Makes a null memory region. → [`Response::DmMr`]
    AllocNullMr {
        /// Protection domain.
        pdn: u32,
    },
    /// Takes back a part of the card's own memory. → [`Response::Done`]
    FreeDm {
        /// The part.
        dm: u32,
    },
    /// Makes a memory window, unbound. → [`Response::Mw`]
    AllocMw {
        /// Protection domain.
        pdn: u32,
        /// Whether it is of type 2, which the QP has that binds it.
        type_2: bool,
    },
    /// Ends a memory window. → [`Response::Done`]
    DeallocMw {
        /// Memory window.
        mw: u32,
    },
    /// Makes an address handle. → [`Response::Ah`]
    CreateAh {
        /// Protection domain.
        pdn: u32,
        /// Where its datagrams go.
        address: AddressVector,
    },
    /// Ends an address handle. → [`Response::Done`]
    DestroyAh {
        /// Address handle.
        ah: u32,
    },
    /// Takes a QP of datagrams into a multicast group; once more does nothing. → [`Response::Done`]
    AttachMulticast {
        /// QP.
        qpn: u32,
        /// GID of the group, network order.
        group: [u8; 16],
    },
    /// Takes a QP out of a multicast group, without which it cannot be destroyed. → [`Response::Done`]
    DetachMulticast {
        /// QP.
        qpn: u32,
        /// GID of the group, network order.
        group: [u8; 16],
    },
    /// Makes a completion queue. → [`Response::Cq`]
    CreateCq {
        /// Context.
        context: u32,
        /// log2 of the entries.
        log2_entries: u8,
        /// Channel for its events.
        channel: Option<u32>,
        /// Completion vector, below [`Limits::comp_vectors`](crate::Limits::comp_vectors).
        vector: u8,
        /// The client's name for it in its records, never used for another.
        cookie: u64,
    },
    /// Moves a completion queue to a ring of another size. Its old ring stays until it is given back, with
    /// the entries that were written before. → [`Response::CqResized`]
    ResizeCq {
        /// Completion queue.
        cqn: u32,
        /// log2 of the new entries.
        log2_entries: u8,
    },
    /// Gives back the old ring of a completion queue, in whose new record the number of events read stands
    /// by now. → [`Response::Done`]
    ReleaseCqRing {
        /// Completion queue.
        cqn: u32,
    },
    /// Makes a completion queue raise events for several completions at once. → [`Response::Done`]
    ModerateCq {
        /// Completion queue.
        cqn: u32,
        /// Completions of an event; 0 for no moderation.
        count: u16,
        /// Microseconds after the first of them at which it comes anyway; 0 for no moderation.
        period: u16,
    },
    /// Ends a completion queue. → [`Response::Destroyed`]; no record of it is sent afterwards.
    DestroyCq {
        /// Completion queue.
        cqn: u32,
    },
    /// Makes a shared receive queue. → [`Response::Srq`]
    CreateSrq {
        /// Protection domain.
        pdn: u32,
        /// log2 of the entries.
        log2_entries: u8,
        /// log2 of the blocks of an entry.
        log2_stride: u8,
        /// The client's name for it, in its asynchronous events; never used for another.
        cookie: u64,
    },
    /// Opens an XRC domain. → [`Response::Xrcd`]
    OpenXrcd {
        /// Context.
        context: u32,
        /// The file that stands for it; without one it is the client's alone.
        file: Option<FileId>,
        /// Makes it where there is none.
        creates: bool,
        /// Where there is one, that is an error.
        exclusive: bool,
    },
    /// Closes an XRC domain. → [`Response::Done`]
    CloseXrcd {
        /// XRC domain.
        xrcd: u32,
    },
    /// Makes a shared receive queue of an XRC domain. → [`Response::Srq`]
    CreateXrcSrq {
        /// XRC domain.
        xrcd: u32,
        /// Protection domain.
        pdn: u32,
        /// Completion queue.
        cqn: u32,
        /// log2 of the entries.
        log2_entries: u8,
        /// log2 of the blocks of an entry.
        log2_stride: u8,
        /// As that of [`Request::CreateSrq`].
        cookie: u64,
    },
    /// Makes an XRC target. → [`Response::Target`]
    CreateTarget {
        /// XRC domain.
        xrcd: u32,
        /// The client's name for it, in its asynchronous events; never used for another.
        cookie: u64,
    },
    /// Opens an XRC target of a domain, which any client of the domain may have made. → [`Response::Target`]
    OpenTarget {
        /// XRC domain.
        xrcd: u32,
        /// Its QP number.
        qpn: u32,
        /// As that of [`Request::CreateTarget`].
        cookie: u64,
    },
    /// Changes an XRC target. → [`Response::QpModified`]
    ModifyTarget {
        /// From [`Response::Target`].
        target: u32,
        /// `fpga_regs::engine::qp::Attributes`, encoded.
        attributes: [[u64; 8]; 2],
    },
    /// Asks for an XRC target's attributes. → [`Response::QpAttributes`]
    QueryTarget {
        /// From [`Response::Target`].
        target: u32,
    },
    /// Gives an XRC target up, which ends once no client has it. → [`Response::Destroyed`]
    DestroyTarget {
        /// From [`Response::Target`].
        target: u32,
    },
    /// Sets the limit of a shared receive queue. → [`Response::Done`]
    ModifySrq {
        /// Shared receive queue.
        srqn: u32,
        /// Entries below which it is told of once; 0 for none.
        limit: u32,
    },
    /// Asks for the limit of a shared receive queue. → [`Response::SrqLimit`]
    QuerySrq {
        /// Shared receive queue.
        srqn: u32,
    },
    /// Ends a shared receive queue. → [`Response::Destroyed`]
    DestroySrq {
        /// Shared receive queue.
        srqn: u32,
    },
    /// Makes a QP. → [`Response::Qp`]
    CreateQp(CreateQp),
    /// Changes a QP. → [`Response::QpModified`]
    ModifyQp {
        /// QP.
        qpn: u32,
        /// A change that comes before it, as [`Request::ModifyQp::attributes`]: the one to INIT, in which a connected QP does
        /// nothing, waits for the next. If a request is refused for the second, the first is made all the same.
        first: Option<[[u64; 8]; 2]>,
        /// `fpga_regs::engine::qp::Attributes`, encoded.
        attributes: [[u64; 8]; 2],
    },
    /// Asks for a QP's attributes. → [`Response::QpAttributes`]
    QueryQp {
        /// QP.
        qpn: u32,
    },
    /// Ends a QP. → [`Response::Destroyed`] once no completion and no DMA of it can follow.
    DestroyQp {
        /// QP.
        qpn: u32,
    },
    /// Opens an event channel of the connection manager. → [`Response::CmChannel`] with the client's end of
    /// a socket pair.
    ///
    /// The channel's events come there, each a [`CmEvent`](crate::CmEvent) of [`crate::CM_EVENT_BYTES`] at most;
    /// nothing else. An event that finds the socket full comes when there is room. The channel ends when all
    /// descriptors of that end are closed.
    OpenCmChannel,
    /// A command of the kernel's user interface of RDMA CM. → [`Response::CmAnswer`]
    CmCommand {
        /// From [`Response::CmChannel`]; also of a process that this one was forked from.
        channel: CmReader,
        /// The program's write to the kernel's device: `rdma_ucm_cmd_hdr` and as many bytes as that says.
        ///
        /// Behind a SET_OPTION follow the bytes that its pointer names. Pointers are not looked at.
        command: Vec<u8>,
        /// MIGRATE_ID: the channel that its descriptor is.
        from: Option<CmReader>,
    },
    /// Asks for this balboad's identity, and the options by which it was started; a tool's. → [`Response::Balboad`]
    Introduce,
    /// Asks an address once for its presence; a tool's. → [`Response::Pinged`]
    Ping {
        /// The card that asks; else that in whose network the address is.
        card: Option<u32>,
        /// The address, network order.
        address: [u8; 16],
    },
    /// Attaches services to queue pairs of a card; a tool's. → [`Response::Done`]
    AttachServices {
        /// Card number.
        card: u32,
        /// Which queue pairs.
        to: ServiceUsers,
        /// The services.
        chain: ServiceChain,
        /// They follow those that are attached there, which messages that have begun keep. Otherwise there may be none.
        replaces: bool,
    },
    /// Detaches them; a tool's. → [`Response::ServicesDetached`]
    DetachServices {
        /// Card number.
        card: u32,
        /// The queue pairs to which they were attached.
        from: ServiceUsers,
        /// Also while messages are under way; those that have begun keep their services to their end. Otherwise they are
        /// why it is refused.
        now: bool,
    },
    /// Loads a service of a user's into a card, for which it can then be attached; a tool's.
    /// → [`Response::ServiceLoaded`]
    LoadService {
        /// Card number.
        card: u32,
        /// A WebAssembly module, of [`crate::MAX_MODULE`] bytes at most. The tool has checked its signature.
        module: Vec<u8>,
    },
    /// Unloads it; a tool's. → [`Response::Done`]
    UnloadService {
        /// Card number.
        card: u32,
        /// Its name.
        name: String,
        /// Also while chains that have it are attached; they keep it until they are detached. Otherwise they are why
        /// it is refused.
        now: bool,
    },
    /// Asks for the settings of a port's priorities; a tool's. → [`Response::Qos`]
    QueryQos {
        /// Card number.
        card: u32,
    },
    /// Changes them, for all users of the card; a tool's. → [`Response::Done`]
    SetQos {
        /// Card number.
        card: u32,
        /// The settings.
        qos: Qos,
    },
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// Done, nothing to tell. Also the answer to [`Hello`].
    Done,
    /// To [`Request::ResetCard`].
    Reset {
        /// Programs that still have the card open as it was before its reset.
        programs: u32,
    },
    /// To [`Request::Capture`].
    Capture,
    /// To [`Request::LoadService`].
    ServiceLoaded {
        /// The name by which it is attached.
        name: String,
    },
    /// To [`Request::DetachServices`].
    ServicesDetached {
        /// Queue pairs that keep them to the end of a message.
        keeping: u32,
    },
    /// To [`Request::FlashState`].
    Flash(FlashState),
    /// To [`Request::ListCards`].
    Cards(Vec<CardInfo>),
    /// To [`Request::Status`]; the descriptor is a memfd with the text.
    Status {
        /// Bytes of the text.
        length: u64,
    },
    /// To [`Request::OpenContext`]. Descriptors, in this order: the asynchronous event socket, then
    /// those that `grant` and `rings` name.
    Context(Box<ContextInfo>),
    /// To [`Request::AddGid`].
    Gid {
        /// Its index.
        index: u8,
    },
    /// To [`Request::QueryPort`].
    Port(PortInfo),
    /// To [`Request::QueryClock`].
    Clock {
        /// Nanoseconds.
        now: u64,
    },
    /// To [`Request::CreateChannel`].
    Channel {
        /// Number of the channel.
        channel: u32,
    },
    /// To [`Request::AllocPd`].
    Pd {
        /// Number of the protection domain.
        pdn: u32,
    },
    /// To [`Request::ReserveMr`].
    Reserved {
        /// Number of the memory region.
        mr: u32,
        /// Where the card will see the first byte.
        iova: u64,
    },
    /// To [`Request::CommitMr`].
    Mr {
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// To [`Request::AllocDm`].
    Dm {
        /// Number of the part.
        dm: u32,
        /// Where bytes pass between it and the client: in the client's ring memory.
        passage: u64,
        /// log2 of the blocks there.
        log2_blocks: u8,
    },
    /// To [`Request::RegDmMr`], and to [`Request::AllocNullMr`], whose region has a local key only.
    DmMr {
        /// Number of the region.
        mr: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// To [`Request::AllocMw`].
    Mw {
        /// Number of the memory window.
        mw: u32,
        /// Its key.
        rkey: u32,
    },
    /// To [`Request::CreateAh`].
    Ah {
        /// Number of the address handle.
        ah: u32,
        /// Its number as work requests name it to the card.
        card_ah: u32,
    },
    /// To [`Request::CreateCq`].
    Cq {
        /// Number of the completion queue.
        cqn: u32,
        /// Where its ring memory (record, then zeroed entries) lies in the client's ring memory.
        ring: u64,
    },
    /// To [`Request::ResizeCq`].
    CqResized {
        /// Where its new ring memory (record, then zeroed entries) lies in the client's ring memory.
        ring: u64,
        /// Running index behind the last entry of the old ring.
        end: u32,
    },
    /// To [`Request::CreateSrq`].
    Srq {
        /// Number of the shared receive queue.
        srqn: u32,
        /// The offset of its rings in the client's ring memory.
        ring: u64,
    },
    /// To [`Request::OpenXrcd`].
    Xrcd {
        /// Number of the XRC domain, of this client's handle of it.
        xrcd: u32,
    },
    /// To [`Request::CreateTarget`] and [`Request::OpenTarget`].
    Target {
        /// Number of this client's handle of it.
        target: u32,
        /// Its QP number.
        qpn: u32,
    },
    /// To [`Request::QuerySrq`].
    SrqLimit {
        /// Entries below which it will be told of; 0 where it was, or where there is no limit.
        limit: u32,
    },
    /// To [`Request::CreateQp`].
    Qp {
        /// Number of the QP.
        qpn: u32,
        /// Its generation.
        generation: u8,
        /// Where its send ring memory lies in the client's ring memory.
        sq_ring: u64,
        /// Its own receive queue; `None` where it has a shared one, or only sends.
        receive: Option<ReceiveRing>,
    },
    /// To [`Request::ModifyQp`].
    QpModified {
        /// The QP's generation, one more after RESET.
        generation: u8,
    },
    /// To [`Request::QueryQp`].
    QpAttributes {
        /// `fpga_regs::engine::qp::Attributes`, encoded.
        attributes: [[u64; 8]; 2],
    },
    /// To a destroy: how many events of the object were sent in all; the client waits until the
    /// program has acknowledged those it read.
    Destroyed {
        /// Records sent on the completion channel.
        completion_events: u32,
        /// Records sent on the asynchronous event socket.
        async_events: u32,
    },
    /// To [`Request::OpenCmChannel`].
    CmChannel {
        /// By which commands name it.
        channel: CmToken,
    },
    /// To [`Request::CmCommand`].
    CmAnswer {
        /// The kernel's answer to the command; at most as long as the command
        /// says.
        output: Vec<u8>,
        /// Numbers of events that have gone with their identifier or group (DESTROY_ID, LEAVE_MCAST), or to another
        /// channel (MIGRATE_ID): the client drops them when it finds them in the channel's socket; with MIGRATE_ID, in
        /// that of the channel which the identifier leaves.
        void: Vec<u64>,
    },
    /// To [`Request::Introduce`].
    Balboad {
        /// Its process, where it runs.
        pid: u32,
        /// Number of its network namespace; 0 where the kernel does not tell.
        network_namespace: u64,
        /// The words of its command line behind the program, as many as [`MAX_OPTIONS`] bytes have room for.
        options: Vec<String>,
    },
    /// To [`Request::Ping`].
    Pinged(Pinged),
    /// To [`Request::QueryQos`].
    Qos(Qos),
}
