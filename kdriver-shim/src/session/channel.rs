//! Completion channels.

use std::sync::Arc;

use shim_abi::Response;

use super::{Answer, Session};
use crate::channels::RecordSocket;
use crate::error::Error;
use crate::objects::Channel;
use crate::poller::Token;

impl Session<'_> {
    pub(super) fn create_channel(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        let client = &mut *self.client;
        let number = client.numbers.next(u32::MAX, |n| client.owned.channels.contains_key(&n));
        let token = Token::Channel(client.id, number);
        let records = Arc::new(RecordSocket::new(self.poller));
        self.make(&limits, Channel { context, records }, |_, channel| {
            let fds = vec![channel.records.open(token)?];
            Ok((number, Answer { response: Response::Channel { channel: number }, fds }))
        })
    }
}
