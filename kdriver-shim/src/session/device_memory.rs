//! Parts of cards' own memory.

use fpga_regs::engine::admin::{
    AllocDm, CopyDm, CreateKey, DmDirection, KeyKind, MAX_LOG2_DM_BLOCKS,
};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::window::Capabilities;
use shim_abi::{Request, Response};

use super::region::check_access;
use super::{Answer, Session, check_unused, found, not_at_once};
use crate::error::Error;
use crate::objects::{Dm, Mr};

const BLOCK: u64 = 64;

/// A region of a card's own memory that a client wants to register.
struct WantedDeviceMemory {
    pdn: u32,
    dm: u32,
    offset: u64,
    length: u64,
    access: u32,
}

impl Session<'_> {
    /// Executes a request about a card's own memory.
    pub(super) fn serve_device_memory(&mut self, request: Request) -> Result<Answer, Error> {
        match request {
            Request::AllocDm { context, length, log2_alignment } => {
                self.alloc_dm(context, length, log2_alignment)
            }
            Request::CopyDm { dm, offset, length, to_card } => {
                self.copy_dm(dm, offset, length, to_card)
            }
            Request::RegDmMr { pdn, dm, offset, length, access } => {
                self.reg_dm_mr(WantedDeviceMemory { pdn, dm, offset, length, access })
            }
            Request::FreeDm { dm } => self.free_dm(dm),
            _ => Err(not_at_once()),
        }
    }

    fn alloc_dm(&mut self, context: u32, length: u32, log2_alignment: u8) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::DEVICE_MEMORY) {
            let why = format!("balboa{card} has no device memory");
            return Err(Error::Unsupported(why));
        }
        // Room for all of it where it is small, wherever the first byte stands in its block.
        let blocks = u64::from(length).div_ceil(BLOCK).saturating_add(1).next_power_of_two();
        let blocks = blocks.min(1 << MAX_LOG2_DM_BLOCKS);
        let log2_blocks = u8::try_from(blocks.ilog2()).unwrap_or(MAX_LOG2_DM_BLOCKS);
        let dm = Dm { context, card, length, log2_blocks, passage: None, card_dm: None };
        self.make(&limits, dm, |session, dm| {
            let passage = session.place_ring(card, blocks, &limits, &mut dm.passage)?;
            let command = AllocDm { length, log2_alignment };
            dm.card_dm = Some(session.window(card)?.engine.alloc_dm(&command)?);
            let client = &mut *session.client;
            let number = client.numbers.next(u32::MAX, |n| client.owned.dms.contains_key(&n));
            let passage = passage.start;
            Ok((number, Response::Dm { dm: number, passage, log2_blocks }.into()))
        })
    }

    fn copy_dm(
        &mut self,
        dm: u32,
        offset: u32,
        length: u32,
        to_card: bool,
    ) -> Result<Answer, Error> {
        let &Dm { card, log2_blocks, passage, card_dm, .. } =
            found(self.client.owned.dms.get(&dm), dm)?;
        let (Some(passage), Some(card_dm)) = (passage, card_dm) else {
            return Err(Error::NoSuch { object: "device memory", number: dm.into() });
        };
        self.limits(card)?;
        let host = self.client.place(card)?.ring_address(passage)?;
        let direction = if to_card { DmDirection::ToCard } else { DmDirection::ToHost };
        let command = CopyDm { host, offset, length, dm: card_dm, log2_blocks, direction };
        self.window(card)?.engine.copy_dm(&command)?;
        Ok(Response::Done.into())
    }

    fn reg_dm_mr(&mut self, wanted: WantedDeviceMemory) -> Result<Answer, Error> {
        let WantedDeviceMemory { pdn, dm, offset, length, access } = wanted;
        let pd = found(self.client.owned.pds.get(&pdn), pdn)?;
        let card = self.context(pd.context)?.card;
        let memory = found(self.client.owned.dms.get(&dm), dm)?;
        if memory.card != card {
            return Err(Error::Invalid(format!(
                "device memory {dm} is another device's than protection domain {pdn}"
            )));
        }
        let Some(card_dm) = memory.card_dm else {
            return Err(Error::NoSuch { object: "device memory", number: dm.into() });
        };
        let within = offset.checked_add(length).is_some_and(|end| end <= memory.length.into());
        let rights = Access::from_bits_truncate(access);
        if !within || !rights.contains(Access::ZERO_BASED) {
            return Err(Error::Invalid(format!(
                "{length} bytes from {offset} of the {} of device memory {dm} cannot be \
                 registered with access {access:#x}; they count from 0 (IBV_ACCESS_ZERO_BASED)",
                memory.length
            )));
        }
        check_access(access)?;
        let limits = self.limits(card)?;
        let mr = Mr {
            card,
            pdn,
            address: 0,
            length,
            hca_va: 0,
            access,
            range: None,
            mapped: false,
            key: None,
            dm: Some(dm),
        };
        self.make(&limits, mr, |session, mr| {
            let command = CreateKey {
                va: 0,
                length,
                iova: offset,
                pdn,
                access: rights,
                kind: KeyKind::DeviceMemory,
                dm: card_dm,
            };
            let key = session.window(card)?.engine.create_key(&command)?;
            mr.key = Some(key);
            let client = &mut *session.client;
            let number = client.numbers.next(u32::MAX, |n| client.owned.mrs.contains_key(&n));
            Ok((number, Response::DmMr { mr: number, lkey: key, rkey: key }.into()))
        })
    }

    fn free_dm(&mut self, dm: u32) -> Result<Answer, Error> {
        found(self.client.owned.dms.get(&dm), dm)?;
        let users = self.client.owned.mrs.values().filter(|mr| mr.dm == Some(dm)).count();
        check_unused::<Dm>(dm, &[("memory regions", users)])?;
        self.client.destroy::<Dm>(self.cards, dm)?;
        Ok(Response::Done.into())
    }
}
