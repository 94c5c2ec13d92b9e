//! Two connected QPs in one process, on two cards or on one.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use crate::ffi::{
    Channel, Completion, Context, Cq, CqWishes, Library, Operation, Patience, Pd, Peer, Qp,
    QpWishes, Recv, Region, Send, Service, ThreadDomain,
};

/// How long a completion may take.
pub const LIMIT: Duration = Duration::from_secs(120);
/// How long after its completion a WRITE may land.
const LATE: Duration = Duration::from_secs(60);
/// Work requests of each kind that a QP takes.
pub const DEPTH: u32 = 32;
/// SGEs of a work request.
pub const MAX_SGE: u32 = 16;
/// The bytes of memory in which a message is to arrive.
pub const BEFORE: u8 = 0xaa;
/// Inline sizes that are asked for, until one is granted.
const INLINE: [u32; 5] = [512, 256, 128, 64, 0];

/// How a link is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the two devices, which may be one.
    pub devices: [String; 2],
    /// Index of the GIDs.
    pub gid_index: u8,
    /// Completions are waited for on a completion channel, not polled for.
    pub events: bool,
    /// The queues are made in a thread domain.
    pub thread_domain: bool,
    /// Work requests are posted and completions polled by the extended functions, and this is asked of completions
    /// (`ibv_create_cq_wc_flags`).
    pub extended: Option<u64>,
    /// The transport service of the QPs.
    pub service: Service,
    /// Least number of CQ entries.
    pub cq_entries: u32,
    /// How long a lost frame is waited for, and how often it is sent again.
    pub patience: Patience,
}

impl Options {
    /// Whether both devices execute atomics.
    ///
    /// # Errors
    /// When a device cannot be opened.
    pub(super) fn have_atomics(&self) -> Result<bool> {
        let library = Library::open()?;
        for device in &self.devices {
            if Context::open(library, device)?.attributes()?.atomic_cap == v::IBV_ATOMIC_NONE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Each device, with the address of the other one's port as a person writes it.
    ///
    /// # Errors
    /// When a device has no such GID.
    pub(super) fn peer_addresses(&self) -> Result<[(&str, String); 2]> {
        let library = Library::open()?;
        let address = |device: &str| -> Result<String> {
            let gid = Context::open(library, device)?.gid(self.gid_index)?;
            Ok(Ipv6Addr::from(gid).to_canonical().to_string())
        };
        let [left, right] = &self.devices;
        Ok([(left, address(right)?), (right, address(left)?)])
    }
}

/// One side.
pub struct Side {
    /// Its QP.
    pub qp: Qp,
    /// Where its sends complete.
    pub send_cq: Rc<Cq>,
    /// Where its receives complete.
    pub receive_cq: Rc<Cq>,
    /// Its memory.
    pub region: Rc<Region>,
    /// Its protection domain.
    pub pd: Rc<Pd>,
    /// Its device.
    pub context: Rc<Context>,
}

/// Both sides, connected.
pub struct ConnectedSides {
    /// The side that sends, writes and reads.
    pub left: Side,
    /// The side that receives, is written to and read from.
    pub right: Side,
    /// For the words of a status.
    pub library: &'static Library,
    options: Options,
    mtu: v::ibv_mtu,
}

/// The rights that the other side has to a region.
pub const ACCESS: v::ibv_access_flags =
    v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;
/// First PSNs. They wrap around after the first few packets.
const PSNS: [u32; 2] = [0xff_fffa, 0xff_fff0];

impl ConnectedSides {
    /// Makes and connects both sides, each with a region of `room` bytes.
    ///
    /// # Errors
    /// When a device refuses a step of it.
    pub fn new(options: &Options, mtu: v::ibv_mtu, room: usize) -> Result<Self> {
        let library = Library::open()?;
        let left = Side::new(library, options, 0, room).context("the left side")?;
        let right = Side::new(library, options, 1, room).context("the right side")?;
        let link = Self { left, right, library, options: options.clone(), mtu };
        link.connect()?;
        Ok(link)
    }

    /// Takes both QPs from RESET to RTS.
    ///
    /// # Errors
    /// When a device refuses.
    pub fn connect(&self) -> Result<()> {
        for side in [&self.left, &self.right] {
            side.qp.init(ACCESS)?;
        }
        let (left, right) = self.peers()?;
        self.left.qp.receive_from(&right)?;
        self.right.qp.receive_from(&left)?;
        self.left.qp.send_to(&right, self.options.patience)?;
        self.right.qp.send_to(&left, self.options.patience)?;
        let attributes = self.left.qp.query()?;
        ensure!(attributes.qp_state == v::IBV_QPS_RTS, "ibv_query_qp says {}", attributes.qp_state);
        ensure!(
            attributes.dest_qp_num == self.right.qp.number(),
            "ibv_query_qp names another peer"
        );
        Ok(())
    }

    /// Takes both QPs from any state over RESET, the left one to RTS, the right one only to RTR;
    /// [`ConnectedSides::finish`] does the rest. The right one gives its peer only these rights.
    ///
    /// # Errors
    /// When a device refuses.
    pub fn half_connect(&self, rights: v::ibv_access_flags) -> Result<()> {
        for (side, rights) in [(&self.left, ACCESS), (&self.right, rights)] {
            side.qp.to(v::IBV_QPS_RESET)?;
            side.qp.init(rights)?;
        }
        let (left, right) = self.peers()?;
        self.right.qp.receive_from(&left)?;
        self.left.qp.receive_from(&right)?;
        Ok(self.left.qp.send_to(&right, self.options.patience)?)
    }

    /// Takes the right QP from RTR to RTS.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn finish(&self) -> Result<()> {
        let (left, _) = self.peers()?;
        Ok(self.right.qp.send_to(&left, self.options.patience)?)
    }

    /// Each side as the other one's peer.
    ///
    /// # Errors
    /// When a device has no such GID.
    pub(super) fn peers(&self) -> Result<(Peer, Peer)> {
        let [left_psn, right_psn] = PSNS;
        let peer = |side: &Side, receive_psn, send_psn| -> Result<Peer> {
            let gid_index = self.options.gid_index;
            let gid = side.context.gid(gid_index)?;
            let qpn = side.qp.number();
            Ok(Peer { qpn, gid, gid_index, send_psn, receive_psn, mtu: self.mtu })
        };
        Ok((peer(&self.left, left_psn, right_psn)?, peer(&self.right, right_psn, left_psn)?))
    }

    /// Changes how patient the next connection is.
    pub fn set_patience(&mut self, patience: Patience) {
        self.options.patience = patience;
    }

    /// How it was made.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Bytes that a work request may carry inline.
    pub fn max_inline(&self) -> usize {
        self.left.qp.capabilities.max_inline_data as usize
    }

    /// A signaled request of the left side for the first bytes of both regions.
    pub(super) fn request(&self, wr_id: u64, operation: Operation, length: usize) -> Send {
        Send {
            wr_id,
            operation,
            pieces: vec![self.left.region.piece(0, length)],
            remote: (self.right.region.address(), self.right.region.rkey()),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        }
    }

    /// The sides that a message of the left side's request comes from and goes to.
    pub(super) fn ends_of(&self, operation: Operation) -> [&Side; 2] {
        match operation {
            Operation::Read => [&self.right, &self.left],
            _ => [&self.left, &self.right],
        }
    }

    /// Moves a message; gives the status of its request, and the bytes that are there then. A receive ends as its SEND
    /// does, or is flushed.
    ///
    /// # Errors
    /// When a call fails, a completion does not come, or a receive ends otherwise.
    pub(super) fn pass(
        &self,
        operation: Operation,
        message: &[u8],
    ) -> Result<(v::ibv_wc_status, Vec<u8>)> {
        let [from, to] = self.ends_of(operation);
        let length = message.len();
        to.region.write(0, &vec![BEFORE; length]);
        from.region.write(0, message);
        if operation == Operation::Send {
            let pieces = vec![self.right.region.piece(0, length)];
            self.right.qp.post_recv(&Recv { wr_id: 1, pieces })?;
        }
        let request = self.request(2, operation, length);
        self.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        let status = self.completion(&self.left.send_cq)?.status;
        if operation == Operation::Send {
            let received = self.completion(&self.right.receive_cq)?.status;
            let is_sent = status == v::IBV_WC_SUCCESS;
            let expected = if is_sent { v::IBV_WC_SUCCESS } else { v::IBV_WC_WR_FLUSH_ERR };
            ensure!(received == expected, "received as {}", self.library.status_name(received));
        }
        let mut found = vec![0; length];
        to.region.read(0, &mut found);
        Ok((status, found))
    }

    /// Waits for the next completion of a queue.
    ///
    /// # Errors
    /// When none comes in time.
    pub fn completion(&self, cq: &Cq) -> Result<Completion> {
        completion(cq)
    }

    /// Waits for the next completion of a queue, which must be a success.
    ///
    /// # Errors
    /// When it is none, or does not come.
    pub fn success(&self, cq: &Cq) -> Result<Completion> {
        success(self.library, cq)
    }

    /// Checks that a queue has nothing more.
    ///
    /// # Errors
    /// When it has.
    pub fn nothing_more(&self, cq: &Cq) -> Result<()> {
        match cq.poll()? {
            None => Ok(()),
            Some(more) => bail!("a completion too many: {more:?}"),
        }
    }
}

/// Waits for the next completion of a queue.
///
/// # Errors
/// When none comes in time.
pub(super) fn completion(cq: &Cq) -> Result<Completion> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(completion) = cq.poll()? {
            return Ok(completion);
        }
        ensure!(Instant::now() < deadline, "no completion within {LIMIT:?}");
        let Some(channel) = cq.channel() else {
            std::thread::yield_now();
            continue;
        };
        cq.arm()?;
        // A completion before the arming raises no event. A completion after it raises one, which may stay unread and
        // wake a later wait for nothing.
        if let Some(completion) = cq.poll()? {
            return Ok(completion);
        }
        channel.wait(LIMIT)?;
    }
}

/// Waits until a region begins with these bytes: a published card acknowledges bytes that land a moment later.
///
/// # Errors
/// When it has others for too long.
pub(crate) fn becomes(region: &Region, wanted: &[u8]) -> Result<()> {
    let begun = Instant::now();
    let mut found = vec![0; wanted.len()];
    loop {
        region.read(0, &mut found);
        if found == wanted {
            return Ok(());
        }
        ensure!(begun.elapsed() < LATE, "it has other bytes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the next completion of a queue, which must be a success.
///
/// # Errors
/// When it is none, or does not come.
pub(super) fn success(library: &Library, cq: &Cq) -> Result<Completion> {
    let completion = completion(cq)?;
    let status = completion.status;
    ensure!(status == v::IBV_WC_SUCCESS, "{}: {completion:?}", library.status_name(status));
    Ok(completion)
}

impl Side {
    /// Opens a device and makes everything of one side, with the QP in RESET.
    ///
    /// # Errors
    /// When the device refuses a step of it.
    pub fn new(
        library: &'static Library,
        options: &Options,
        index: usize,
        room: usize,
    ) -> Result<Self> {
        let context = Context::open(library, &options.devices[index])?;
        let port = context.port()?;
        ensure!(port.state == v::IBV_PORT_ACTIVE, "the port's state is {}", port.state);
        let plain = Pd::new(&context)?;
        let pd = match options.thread_domain {
            true => Pd::parent(&plain, &ThreadDomain::new(&context)?)?,
            false => plain,
        };
        let cq = || -> Result<Rc<Cq>> {
            let channel = options.events.then(|| Channel::new(&context)).transpose()?;
            let entries = options.cq_entries;
            if let Some(wc_flags) = options.extended {
                let flags = v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
                let comp_mask = v::IBV_CQ_INIT_ATTR_MASK_FLAGS * u32::from(options.thread_domain);
                let wishes = CqWishes { wc_flags, comp_mask, flags, ..CqWishes::default() };
                return Cq::extended(&context, entries, channel.as_ref(), wishes);
            }
            Ok(Cq::new(&context, entries, channel.as_ref())?)
        };
        let (send_cq, receive_cq) = (cq()?, cq()?);
        ensure!(send_cq.entries() >= options.cq_entries, "only {} CQ entries", send_cq.entries());
        let region = Region::new(&pd, room, ACCESS, index == 0)?;
        let kinds = (options.extended.is_some(), options.service);
        let qp = Self::qp(&pd, [&send_cq, &receive_cq], kinds)?;
        Ok(Self { qp, send_cq, receive_cq, region, pd, context })
    }

    /// Makes a QP, in RESET, in place of the one it has.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn renew_qp(&mut self) -> Result<()> {
        self.qp = self.another_qp()?;
        Ok(())
    }

    /// Makes a QP, in RESET, beside the one it has.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn another_qp(&self) -> Result<Qp> {
        let cqs = [&self.send_cq, &self.receive_cq];
        let kinds = (self.qp.is_extended(), self.qp.service());
        Self::qp(&self.pd, cqs, kinds)
    }

    fn qp(pd: &Rc<Pd>, cqs: [&Rc<Cq>; 2], (extended, service): (bool, Service)) -> Result<Qp> {
        let capabilities = |inline| v::ibv_qp_cap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: inline,
        };
        let mut last = None;
        for inline in INLINE {
            let made = if extended {
                Qp::extended(pd, cqs, capabilities(inline), QpWishes::default())
            } else {
                Qp::of(service, pd, cqs, capabilities(inline)).map_err(anyhow::Error::from)
            };
            match made {
                Ok(qp) => {
                    let granted = qp.capabilities;
                    ensure!(granted.max_send_wr >= DEPTH && granted.max_recv_sge >= MAX_SGE);
                    return Ok(qp);
                }
                Err(failed) => last = Some(failed),
            }
        }
        bail!("cannot make a QP: {last:?}")
    }
}
