//! The extended verbs of devices and completion queues.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::super::Failed;
use super::{Channel, Completion, Context, Cq, Pd};

/// The fields that `ibv_poll_cq` has of a completion (`IBV_WC_STANDARD_FLAGS`).
pub const STANDARD: u64 = (v::IBV_WC_EX_WITH_BYTE_LEN
    | v::IBV_WC_EX_WITH_IMM
    | v::IBV_WC_EX_WITH_QP_NUM
    | v::IBV_WC_EX_WITH_SRC_QP
    | v::IBV_WC_EX_WITH_SLID
    | v::IBV_WC_EX_WITH_SL
    | v::IBV_WC_EX_WITH_DLID_PATH_BITS) as u64;
/// All that a completion can be asked to tell.
pub const EVERYTHING: u64 = STANDARD | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP as u64;

/// The arguments of an extended completion queue, beside its size.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqWishes<'a> {
    /// `ibv_create_cq_wc_flags`.
    pub wc_flags: u64,
    /// `ibv_cq_init_attr_mask`.
    pub comp_mask: u32,
    /// `ibv_create_cq_attr_flags`.
    pub flags: u32,
    /// Parent domain.
    pub parent: Option<&'a Rc<Pd>>,
    /// Completion vector.
    pub vector: u32,
}

impl Context {
    /// The extended attributes of the device.
    ///
    /// # Errors
    /// When it does not say.
    pub fn extended_attributes(&self) -> Result<v::ibv_device_attr_ex> {
        // SAFETY: the extended context lives as long as the context.
        let query = unsafe { self.extended()?.as_ref() }.query_device_ex;
        let Some(query) = query else { bail!("there is no ibv_query_device_ex") };
        let mut attributes = MaybeUninit::zeroed();
        let bytes = size_of::<v::ibv_device_attr_ex>();
        // SAFETY: the context is open, the place has that many bytes.
        let result = unsafe { query(self.raw(), null_mut(), attributes.as_mut_ptr(), bytes) };
        Failed::check("ibv_query_device_ex", result)?;
        // SAFETY: zeroed, all numbers, and filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The device's clock, with `mask` as `ibv_values_mask`.
    ///
    /// # Errors
    /// When it does not say.
    pub fn clock(&self, mask: u32) -> Result<u64> {
        // SAFETY: the extended context lives as long as the context.
        let query = unsafe { self.extended()?.as_ref() }.query_rt_values;
        let Some(query) = query else { bail!("there is no ibv_query_rt_values_ex") };
        let raw_clock = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        let mut values = v::ibv_values_ex { comp_mask: mask, raw_clock };
        // SAFETY: the context is open.
        Failed::check("ibv_query_rt_values_ex", unsafe { query(self.raw(), &raw mut values) })?;
        let told = (values.comp_mask, values.raw_clock.tv_sec);
        ensure!(told == (v::IBV_VALUES_MASK_RAW_CLOCK, 0), "ibv_query_rt_values_ex says {told:?}");
        Ok(u64::try_from(values.raw_clock.tv_nsec)?)
    }
}

impl Cq {
    /// Makes one that is polled by the extended functions.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn extended(
        context: &Rc<Context>,
        entries: u32,
        channel: Option<&Rc<Channel>>,
        wishes: CqWishes<'_>,
    ) -> Result<Rc<Self>> {
        // SAFETY: the extended context lives as long as the context.
        let create = unsafe { context.extended()?.as_ref() }.create_cq_ex;
        let Some(create) = create else { bail!("there is no ibv_create_cq_ex") };
        let mut attributes = v::ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: null_mut(),
            channel: channel.map_or(null_mut(), |channel| channel.raw.as_ptr()),
            comp_vector: wishes.vector,
            wc_flags: wishes.wc_flags,
            comp_mask: wishes.comp_mask,
            flags: wishes.flags,
            parent_domain: wishes.parent.map_or(null_mut(), |pd| pd.raw()),
        };
        // SAFETY: the context is open, the channel is null or lives, and so is the domain.
        let raw = unsafe { create(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_cq_ex"))?;
        let (channel, context) = (channel.cloned(), Rc::clone(context));
        let parent = wishes.parent.cloned();
        let (raw, is_extended) = (raw.cast(), true);
        Ok(Rc::new(Self { raw, is_extended, channel, _parent: parent, context }))
    }

    /// Moderates its events: one of `count` completions, or `period` microseconds behind the first of them, with `mask`
    /// as `ibv_cq_attr_mask`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn moderate(&self, mask: u32, count: u16, period: u16) -> Result<()> {
        // SAFETY: the extended context lives as long as the context.
        let modify = unsafe { self.context.extended()?.as_ref() }.modify_cq;
        let Some(modify) = modify else { bail!("there is no ibv_modify_cq") };
        let moderate = v::ibv_moderate_cq { cq_count: count, cq_period: period };
        let mut attributes = v::ibv_modify_cq_attr { attr_mask: mask, moderate };
        // SAFETY: the queue lives.
        let result = unsafe { modify(self.raw(), &raw mut attributes) };
        Ok(Failed::check("ibv_modify_cq", result)?)
    }

    fn raw_ex(&self) -> *mut v::ibv_cq_ex {
        assert!(self.is_extended, "it was made by ibv_create_cq");
        self.raw().cast()
    }

    /// Takes up to `limit` completions in one poll, each with the device's time where the queue was asked for it.
    ///
    /// # Errors
    /// When the provider says that the queue is broken.
    pub fn poll_extended(&self, limit: usize) -> Result<Vec<(Completion, Option<u64>)>> {
        let mut all = Vec::new();
        let Some(mut batch) = self.start()? else { return Ok(all) };
        loop {
            // SAFETY: the poll has started, and there is a completion.
            all.push(unsafe { completion(self.raw_ex()) });
            if all.len() == limit || !batch.go_on()? {
                return Ok(all);
            }
        }
    }

    /// Starts a poll; `None` where there is no completion.
    ///
    /// # Errors
    /// When the provider says that the queue is broken.
    pub fn start(&self) -> Result<Option<Batch<'_>>, Failed> {
        let raw = self.raw_ex();
        let mut attributes = v::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue lives, and is an extended one, whose functions are there.
        let started = unsafe {
            let start = (*raw).start_poll.expect("every extended queue has it");
            start(raw, &raw mut attributes)
        };
        match started {
            0 => Ok(Some(Batch { cq: self })),
            libc::ENOENT => Ok(None),
            errno => Err(Failed { call: "ibv_start_poll", errno }),
        }
    }
}

/// A poll that has started, until dropped. It is at a completion.
#[derive(Debug)]
pub struct Batch<'a> {
    cq: &'a Cq,
}

impl Batch<'_> {
    /// The completion that it is at, or, once there was no more, was at last.
    pub fn completion(&self) -> Completion {
        // SAFETY: the poll has started, and there was a completion.
        unsafe { completion(self.cq.raw_ex()) }.0
    }

    /// Goes on to the next completion; whether there is one.
    ///
    /// # Errors
    /// When the provider says that the queue is broken.
    pub fn go_on(&mut self) -> Result<bool, Failed> {
        let raw = self.cq.raw_ex();
        // SAFETY: the poll has started.
        match unsafe { (*raw).next_poll.expect("every extended queue has it")(raw) } {
            0 => Ok(true),
            libc::ENOENT => Ok(false),
            errno => Err(Failed { call: "ibv_next_poll", errno }),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let raw = self.cq.raw_ex();
        // SAFETY: the poll has started, and ends here.
        unsafe { (*raw).end_poll.expect("every extended queue has it")(raw) };
    }
}

/// Reads the completion that a poll is at.
///
/// # Safety
/// The queue is polled, was made to tell at least [`STANDARD`], and there is a completion.
unsafe fn completion(cq: *mut v::ibv_cq_ex) -> (Completion, Option<u64>) {
    macro_rules! read {
        ($function:ident) => {
            // SAFETY: as the caller promises.
            unsafe { ((*cq).$function.expect(stringify!($function)))(cq) }
        };
    }
    // SAFETY: as the caller promises.
    let (wr_id, status) = unsafe { ((*cq).wr_id, (*cq).status) };
    let flags = read!(read_wc_flags);
    let has = |flag| flags & flag != 0;
    let completion = Completion {
        wr_id,
        status,
        opcode: read!(read_opcode),
        byte_len: read!(read_byte_len),
        immediate: has(v::IBV_WC_WITH_IMM).then(|| u32::from_be(read!(read_imm_data))),
        qp_num: read!(read_qp_num),
        source_qpn: read!(read_src_qp),
        has_header: has(v::IBV_WC_GRH),
        invalidated: has(v::IBV_WC_WITH_INV).then(|| read!(read_imm_data)),
    };
    // SAFETY: as the caller promises.
    let time = unsafe { (*cq).read_completion_ts.map(|read| read(cq)) };
    (completion, time)
}
