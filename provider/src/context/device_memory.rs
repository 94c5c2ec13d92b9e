//! The card's own memory, a part of which a program has.

use std::sync::Arc;

use fpga_regs::BLOCK_BYTES;
use fpga_regs::engine::window::Capabilities;
use hostmem::{FutexMutex, SharedMapping};
use shim_abi::{Request, Response};

use super::Context;
use crate::control::ask;
use crate::error::{Error, Result, invalid, unsupported};

/// The alignment of a copy's first byte and length, as programs expect.
const ALIGNMENT: u64 = 4;

/// A part of the card's own memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    number: u32,
    length: u32,
    passage: Passage,
    /// Held while bytes are in the passage.
    copying: FutexMutex<()>,
    /// The part's context in a forked child: one of its own, on its parent's card.
    own: Option<Box<Context>>,
}

/// Where bytes pass between the program and the card.
#[derive(Debug)]
struct Passage {
    rings: Arc<SharedMapping>,
    at: usize,
    bytes: usize,
}

impl Context {
    /// Takes a part of the card's own memory, which is zero.
    ///
    /// A forked child, to which nothing of its parent's belongs, has a part by a context of its own.
    pub(crate) fn alloc_dm(&self, length: usize, log2_alignment: u32) -> Result<DeviceMemory> {
        if self.connection.is_forked() {
            let own = Box::new(Self::open(self.info().card.card)?);
            return match own.alloc_dm(length, log2_alignment) {
                Ok(memory) => Ok(DeviceMemory { own: Some(own), ..memory }),
                Err(error) => own.close().and(Err(error)),
            };
        }
        if !self.capabilities().contains(Capabilities::DEVICE_MEMORY) {
            return Err(unsupported!("the device has no memory of its own"));
        }
        let most = self.limits().max_dm_bytes;
        let asked = u32::try_from(length).ok().filter(|length| (1..=most).contains(length));
        let Some(length) = asked else {
            return Err(invalid!("{length} bytes of device memory; a part has 1 to {most}"));
        };
        let log2_alignment = u8::try_from(log2_alignment)
            .map_err(|_| invalid!("device memory is not aligned to 2^{log2_alignment} bytes"))?;
        let context = self.number();
        let request = Request::AllocDm { context, length, log2_alignment };
        let (number, at, log2_blocks) = ask!(self.connection, request,
            Response::Dm { dm, passage, log2_blocks } => (dm, passage, log2_blocks))?;
        let rings = Arc::clone(&self.opened.rings);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = BLOCK_BYTES.checked_shl(log2_blocks.into()).unwrap_or(0);
        let passage = Passage { rings, at, bytes };
        Ok(DeviceMemory { number, length, passage, copying: FutexMutex::default(), own: None })
    }

    /// Gives a part back.
    pub(crate) fn free_dm(&self, dm: &DeviceMemory) -> Result<()> {
        match &dm.own {
            Some(own) => own.end(Request::FreeDm { dm: dm.number }).and_then(|()| own.close()),
            None => self.end(Request::FreeDm { dm: dm.number }),
        }
    }

    /// Copies bytes to a part of the card's own memory.
    pub(crate) fn copy_to_dm(&self, dm: &DeviceMemory, offset: u64, from: &[u8]) -> Result<()> {
        let mut at = dm.range(offset, from.len())?;
        let owner = self.owner(dm)?;
        let _copying = dm.copying.lock();
        let mut rest = from;
        while !rest.is_empty() {
            let (within, room) = dm.passage.within(at);
            let (now, behind) = rest.split_at(rest.len().min(room));
            let place = dm.passage.at.saturating_add(within);
            let host = Error::host("copy to device memory");
            dm.passage.rings.write_bytes(place, now).map_err(host)?;
            at = owner.pass(dm, at, now.len(), true)?;
            rest = behind;
        }
        Ok(())
    }

    /// Copies bytes from a part of the card's own memory.
    pub(crate) fn copy_from_dm(
        &self,
        dm: &DeviceMemory,
        offset: u64,
        into: &mut [u8],
    ) -> Result<()> {
        let mut at = dm.range(offset, into.len())?;
        let owner = self.owner(dm)?;
        let _copying = dm.copying.lock();
        let mut rest = into;
        while !rest.is_empty() {
            let (within, room) = dm.passage.within(at);
            let length = rest.len().min(room);
            let (now, behind) = rest.split_at_mut(length);
            at = owner.pass(dm, at, length, false)?;
            let place = dm.passage.at.saturating_add(within);
            let host = Error::host("copy from device memory");
            dm.passage.rings.read_bytes(place, now).map_err(host)?;
            rest = behind;
        }
        Ok(())
    }

    /// The context that a part is of, if that is this process's: a child has neither its parent's passages nor
    /// the end of a copy that another thread was in.
    fn owner<'a>(&'a self, dm: &'a DeviceMemory) -> Result<&'a Self> {
        let owner = dm.own.as_deref().unwrap_or(self);
        if owner.connection.is_forked() { Err(Error::Forked) } else { Ok(owner) }
    }

    /// Orders a copy of bytes of a part to or from its passage; answers the offset behind them.
    fn pass(&self, dm: &DeviceMemory, offset: u32, bytes: usize, to_card: bool) -> Result<u32> {
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let request = Request::CopyDm { dm: dm.number, offset, length, to_card };
        ask!(self.connection, request, Response::Done => offset.saturating_add(length))
    }

    /// Registers a range of a part; answers with the region's number, lkey and rkey.
    pub(crate) fn reg_dm_mr(
        &self,
        pdn: u32,
        dm: &DeviceMemory,
        (offset, length): (u64, u64),
        access: u32,
    ) -> Result<(u32, u32, u32)> {
        let request = Request::RegDmMr { pdn, dm: dm.number, offset, length, access };
        ask!(self.connection, request, Response::DmMr { mr, lkey, rkey } => (mr, lkey, rkey))
    }
}

impl DeviceMemory {
    /// balboad's number of it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Refuses a range that does not lie in the part.
    pub(crate) fn check(&self, offset: u64, length: usize) -> Result<()> {
        self.range(offset, length).map(drop)
    }

    /// The first byte of a range, if that lies in the part.
    fn range(&self, offset: u64, length: usize) -> Result<u32> {
        if offset % ALIGNMENT != 0 || length as u64 % ALIGNMENT != 0 {
            return Err(invalid!(
                "device memory is copied in words of {ALIGNMENT} bytes, not {length} from {offset} on"
            ));
        }
        let end = offset.checked_add(length as u64);
        match (u32::try_from(offset), end) {
            (Ok(first), Some(end)) if end <= self.length.into() => Ok(first),
            _ => Err(invalid!(
                "{length} bytes from {offset} are not in device memory of {} bytes",
                self.length
            )),
        }
    }
}

impl Passage {
    /// Where a byte of the part stands in the passage, and how many bytes there is room for from it on.
    fn within(&self, offset: u32) -> (usize, usize) {
        let within = offset as usize & BLOCK_BYTES.wrapping_sub(1);
        (within, self.bytes.saturating_sub(within).max(1))
    }
}
