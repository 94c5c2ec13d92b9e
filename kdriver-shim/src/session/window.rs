//! Memory windows. Programs bind them by work requests to their cards, without balboad.

use fpga_regs::engine::admin::{CreateKey, KeyKind};
use fpga_regs::engine::window::Capabilities;
use shim_abi::Response;

use super::{Answer, Session, found};
use crate::error::Error;
use crate::objects::Mw;

impl Session<'_> {
    pub(super) fn alloc_mw(&mut self, pdn: u32, type_2: bool) -> Result<Answer, Error> {
        let context = found(self.client.owned.pds.get(&pdn), pdn)?.context;
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::MEMORY_WINDOW) {
            return Err(Error::Unsupported(format!("balboa{card} has no memory windows")));
        }
        let kind = if type_2 { KeyKind::Window2 } else { KeyKind::Window1 };
        let command = CreateKey { pdn, kind, ..CreateKey::default() };
        self.make(&limits, Mw { card, pdn, key: None }, |session, made| {
            let rkey = session.window(card)?.engine.create_key(&command)?;
            made.key = Some(rkey);
            let client = &mut *session.client;
            let mw = client.numbers.next(u32::MAX, |n| client.owned.mws.contains_key(&n));
            Ok((mw, Response::Mw { mw, rkey }.into()))
        })
    }

    pub(super) fn dealloc_mw(&mut self, mw: u32) -> Result<Answer, Error> {
        found(self.client.owned.mws.get(&mw), mw)?;
        self.client.destroy::<Mw>(self.cards, mw)?;
        Ok(Response::Done.into())
    }
}
