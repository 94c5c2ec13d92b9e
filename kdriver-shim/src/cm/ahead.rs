//! Answers ahead of questions: with an event come the answers to librdmacm's next questions about its identifier.
//!
//! An answer may be given ahead while the program would be told the same if it asked. A command of its own that may
//! change it, the program sees itself. For all else there is a word in the memory that it shares with balboad
//! ([`shim_abi::CM_ERA`]), which is moved on *before* anything is told of the change, or can be seen of it.

use std::sync::Arc;

use fpga_regs::engine::qp::{QpState, QpType};
use hostmem::SharedMapping;
use shim_abi::{CmAhead, CmQuestion};

use super::abi::{event, length};
use super::identifier::IdentifierState;
use super::network::Network;
use super::{ConnectionManager, calls};
use crate::process::ClientId;

/// Until when a client's answers hold.
#[derive(Debug, Default)]
pub(super) struct Era {
    /// The value of the word.
    number: u32,
    /// The memory that it is in.
    memory: Option<Arc<SharedMapping>>,
}

impl Era {
    /// Ends the validity of answers given ahead.
    fn end(&mut self) {
        self.number = self.number.wrapping_add(1);
        if let (Some(memory), Ok(offset)) = (&self.memory, usize::try_from(shim_abi::CM_ERA)) {
            let stored = memory.store_release_u32(offset, self.number);
            debug_assert!(stored.is_ok(), "the word is there");
        }
    }
}

/// An event that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// The key of the channel.
    pub channel: u64,
    /// Its place among the channel's events.
    pub place: u64,
    /// The identifier that it is about.
    pub id: u32,
    /// The event's number, see [`event`].
    pub number: u32,
}

/// The sender of a command, and how far it had read then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub client: ClientId,
    /// The key of the channel that he has read.
    pub channel: u64,
    /// The place of the last event that he had read of it.
    pub read: u64,
}

impl ConnectionManager {
    /// Gives a client answers ahead, by a word in its ring memory. One without a channel of its own is told nothing.
    pub fn tell_ahead(&mut self, client: ClientId, memory: &Arc<SharedMapping>) {
        let client = self.clients.get_mut(&client).filter(|client| client.era.memory.is_none());
        if let Some(client) = client {
            client.era.memory = Some(Arc::clone(memory));
        }
    }

    /// The answers to the next questions of the program that reads an event.
    pub(super) fn ahead(&mut self, network: &dyn Network, leaving: Leaving) -> Option<CmAhead> {
        let Leaving { channel, place, id, number } = leaving;
        let states: &[QpState] = match number {
            event::ADDR_RESOLVED => &[],
            event::ROUTE_RESOLVED => &[QpState::Init],
            event::CONNECT_REQUEST | event::CONNECT_RESPONSE => {
                &[QpState::Init, QpState::Rtr, QpState::Rts]
            }
            _ => return None,
        };
        let reader = self.channels.get(&channel)?.client;
        let client = self.clients.get(&reader)?;
        client.era.memory.as_ref()?;
        let era = client.era.number;
        let it = self.ids.get(&id).filter(|it| it.state != IdentifierState::Removed)?;
        // Of datagrams only the first change is asked for.
        let states =
            if it.kind == QpType::Ud { states.get(..1).unwrap_or_default() } else { states };
        let route = it.facts(calls::guid(network, it)).route(length::QUERY_ROUTE);
        let mut answers = vec![(CmQuestion::Route, route)];
        for state in states.iter().map(|state| u32::from(state.0)) {
            let answer = self.qp_change(network, id, state).ok();
            answers.extend(answer.map(|answer| (CmQuestion::QpAttributes(state), answer)));
        }
        self.ids.get_mut(&id)?.told_ahead = Some((reader, place));
        Some(CmAhead { id, era, answers })
    }

    /// Outdates the answers that programs were given ahead about an identifier. The program `by`, whose own command
    /// outdates them, sees that itself, if it had read them.
    pub(super) fn outdate(&mut self, id: u32, by: Option<Reader>) {
        let Some(it) = self.ids.get_mut(&id) else { return };
        let (told, channel) = (it.told_ahead.take(), it.channel);
        let sees = |(client, place): &(ClientId, u64)| {
            by.is_some_and(|by| (by.client, by.channel) == (*client, channel) && *place <= by.read)
        };
        self.end_era(told.filter(|told| !sees(told)).map(|(client, _)| client));
    }

    /// Ends the validity of the answers that a client was given ahead about an identifier, as [`Self::outdate`].
    pub(super) fn end_era(&mut self, told: Option<ClientId>) {
        if let Some(client) = told.and_then(|told| self.clients.get_mut(&told)) {
            client.era.end();
        }
    }

    /// Makes all answers that programs got ahead out of date: a card is gone, or has other addresses.
    pub fn outdate_all(&mut self) {
        self.clients.values_mut().for_each(|client| client.era.end());
    }
}
