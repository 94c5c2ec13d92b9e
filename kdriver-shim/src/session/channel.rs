//! Completion channels.

use std::collections::BTreeSet;

use shim_abi::Response;

use super::{Answer, Session, found};
use crate::channels::{Key, RecordSocket, completion_record};
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
        let channel = client.numbers.next(u32::MAX, |n| client.channels.contains_key(&n));
        match RecordSocket::new(self.poller, Token::Channel(client.id, channel)) {
            Ok((records, theirs)) => {
                client.channels.insert(channel, Channel { context, records });
                Ok(Answer { response: Response::Channel { channel }, fds: vec![theirs] })
            }
            Err(error) => {
                client.usage.give(Resource::Channels, 1);
                Err(error)
            }
        }
    }

    /// Sends records again that the client took out in search of others. They count as sent already.
    pub(super) fn requeue_records(
        &mut self,
        channel: u32,
        cookies: &[u64],
    ) -> Result<Answer, Error> {
        let client = &mut *self.client;
        let target = found(client.channels.get_mut(&channel), "completion channel", channel)?;
        let wanted: BTreeSet<u64> = cookies.iter().copied().collect();
        let mut unknown = wanted.clone();
        for (&cqn, cq) in client.cqs.iter().filter(|(_, cq)| cq.channel == Some(channel)) {
            if wanted.contains(&cq.cookie) {
                unknown.remove(&cq.cookie);
                // At most one record per queue is under way, so a second one is a mistake.
                if cq.sent > 0 && !target.records.keeps(Key::Cq(cqn)) {
                    target.records.send(self.poller, Key::Cq(cqn), completion_record(cq.cookie));
                }
            }
        }
        match unknown.first() {
            None => Ok(Response::Done.into()),
            Some(&number) => Err(Error::NoSuch {
                object: "completion queue on that channel with cookie",
                number,
            }),
        }
    }
}
