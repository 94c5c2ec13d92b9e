//! Address handles.

use fpga_regs::engine::admin::CreateAh;
use fpga_regs::engine::window::Capabilities;
use shim_abi::{AddressVector, Response};

use super::{Answer, Session, found};
use crate::error::Error;
use crate::objects::Ah;

const MAX_FLOW_LABEL: u32 = 0xf_ffff;

impl Session<'_> {
    pub(super) fn create_ah(&mut self, pdn: u32, address: &AddressVector) -> Result<Answer, Error> {
        let context = found(self.client.owned.pds.get(&pdn), pdn)?.context;
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::UD) {
            return Err(Error::Unsupported(format!("balboa{card} has no address handles")));
        }
        let AddressVector {
            sgid_index,
            hop_limit,
            traffic_class,
            sl,
            flow_label,
            dgid,
            static_rate,
        } = *address;
        if flow_label > MAX_FLOW_LABEL {
            let why = format!("a flow label has 20 bits, which {flow_label:#x} has not");
            return Err(Error::Invalid(why));
        }
        let command = CreateAh {
            pdn,
            page: self.client.place(card)?.page,
            sgid_index,
            hop_limit,
            traffic_class,
            sl,
            static_rate,
            flow_label,
            dgid,
        };
        self.make(&limits, Ah { card, pdn, card_ah: None }, |session, made| {
            let card_ah = session.window(card)?.engine.create_ah(&command)?;
            made.card_ah = Some(card_ah);
            let client = &mut *session.client;
            let ah = client.numbers.next(u32::MAX, |n| client.owned.ahs.contains_key(&n));
            Ok((ah, Response::Ah { ah, card_ah }.into()))
        })
    }

    pub(super) fn destroy_ah(&mut self, ah: u32) -> Result<Answer, Error> {
        found(self.client.owned.ahs.get(&ah), ah)?;
        self.client.destroy::<Ah>(self.cards, ah)?;
        Ok(Response::Done.into())
    }
}
