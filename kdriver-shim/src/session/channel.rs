//! Completion channels.

use std::sync::Arc;

use shim_abi::Response;

use super::{Answer, Session};
use crate::channels::RecordSocket;
use crate::error::Error;
use crate::objects::Channel;
use crate::poller::Token;
use crate::quota::Resource;

impl Session<'_> {
    pub(super) fn create_channel(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        self.client.usage.take(Resource::Channels, 1, &limits)?;
        let client = &mut *self.client;
        let channel = client.numbers.next(u32::MAX, |n| client.owned.channels.contains_key(&n));
        let records = Arc::new(RecordSocket::new(self.poller));
        match records.open(Token::Channel(client.id, channel)) {
            Ok(theirs) => {
                client.owned.channels.insert(channel, Channel { context, records });
                Ok(Answer { response: Response::Channel { channel }, fds: vec![theirs] })
            }
            Err(error) => {
                client.usage.give(Resource::Channels, 1);
                Err(error)
            }
        }
    }
}
