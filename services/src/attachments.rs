//! The services of a card's queue pairs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::chain::Chain;
use crate::connection::{Counters, ServedQp};
use crate::error::Error;
use crate::limit;
use crate::selector::Selector;

/// A chain that is attached, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The queue pairs that it is attached to.
    pub selector: Selector,
    /// Its services.
    pub chain: Vec<&'static str>,
    /// It is detached, and stays only for messages that had begun.
    pub is_leaving: bool,
    /// Its queue pairs, by number, and the counts of its services there since they were connected.
    pub connections: Vec<(u32, Counters)>,
    /// The counts of its services since it was attached.
    pub counters: Counters,
}

#[derive(Debug)]
struct Rule {
    chain: Arc<Chain>,
    /// The counts of connections that have ended.
    past: Counters,
    is_leaving: bool,
}

/// The chains that are attached to a card, and its connections that have one.
#[derive(Debug, Default)]
pub struct Attachments {
    rules: BTreeMap<Selector, Rule>,
    connections: HashMap<u32, (Selector, ServedQp)>,
}

impl Attachments {
    /// Whether nothing is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The services of a queue pair.
    #[must_use]
    pub fn connection(&mut self, qpn: u32) -> Option<&mut ServedQp> {
        self.connections.get_mut(&qpn).map(|(_, connection)| connection)
    }

    /// Attaches a chain to a queue pair, or to a peer some of whose queue pairs there are already: those are `there`,
    /// of each the number, and whether it is connected. Messages that have begun go on without it.
    ///
    /// # Errors
    /// Why not; nothing is attached then.
    pub fn attach(
        &mut self,
        selector: Selector,
        chain: Chain,
        there: &[(u32, bool)],
    ) -> Result<(), Error> {
        if self.rules.contains_key(&selector) {
            return Err(Error::Taken(selector));
        }
        let has = |qpn: &u32| self.connections.contains_key(qpn);
        if let Selector::Qp(qpn) = selector {
            if has(&qpn) {
                return Err(Error::Taken(selector));
            }
        }
        if self.rules.len() >= limit::ATTACHED {
            return Err(Error::Full);
        }
        let free = there.iter().filter(|(qpn, _)| !has(qpn)).copied().collect::<Vec<_>>();
        if let Some(about) = chain.transforming() {
            if let Some(&(qpn, _)) = free.iter().find(|(_, is_connected)| *is_connected) {
                return Err(Error::Connected { qpn, service: about.name });
            }
        }
        let chain = Arc::new(chain);
        for (qpn, _) in free {
            let connection = ServedQp::new(Arc::clone(&chain));
            self.connections.insert(qpn, (selector, connection));
        }
        self.rules.insert(selector, Rule { chain, past: Counters::default(), is_leaving: false });
        Ok(())
    }

    /// Detaches the services that are attached there. If `has_messages` says that a queue pair has messages of its own
    /// under way, or the peer's are, that is refused, unless it is to be `now`: then messages that have begun keep
    /// their services to their end. Answers how many queue pairs do. On one that has failed, of which it says `None`,
    /// no message has an end.
    ///
    /// # Errors
    /// Why not; nothing is detached then.
    pub fn detach(
        &mut self,
        selector: Selector,
        now: bool,
        has_messages: impl Fn(u32) -> Option<bool>,
    ) -> Result<usize, Error> {
        if !self.rules.contains_key(&selector) {
            return Err(Error::NotAttached(selector));
        }
        for (qpn, (of, connection)) in &mut self.connections {
            if *of == selector && has_messages(*qpn).is_none() {
                connection.give_up();
            }
        }
        let its = self.connections.iter().filter(|(_, (of, _))| *of == selector);
        let busy =
            its.filter(|(qpn, (_, it))| it.is_busy() || has_messages(**qpn).unwrap_or(false));
        // The same one is named in any order of the map.
        if let Some(qpn) = busy.map(|(qpn, _)| *qpn).min().filter(|_| !now) {
            return Err(Error::Busy { qpn });
        }
        if let Some(rule) = self.rules.get_mut(&selector) {
            rule.is_leaving = true;
        }
        let (mut ended, mut keeping) = (Vec::new(), 0usize);
        for (qpn, (of, connection)) in &mut self.connections {
            if *of != selector {
                continue;
            }
            connection.leave();
            match connection.has_left() {
                true => ended.push(*qpn),
                false => keeping = keeping.saturating_add(1),
            }
        }
        for qpn in ended {
            self.end(qpn);
        }
        self.drop_rule_without_connections(selector);
        Ok(keeping)
    }

    /// Takes note that a queue pair of a reliable connection has this peer from now on.
    pub fn connected(&mut self, qpn: u32, peer: [u8; 16]) {
        let selector = Selector::Peer(peer);
        let rule = self.rules.get(&selector).filter(|rule| !rule.is_leaving);
        if let Some(rule) = rule.filter(|_| !self.connections.contains_key(&qpn)) {
            let connection = ServedQp::new(Arc::clone(&rule.chain));
            self.connections.insert(qpn, (selector, connection));
        }
    }

    /// Takes note that a queue pair was reset: its services begin anew, those of a peer once it is connected.
    pub fn restarted(&mut self, qpn: u32) {
        let Some(selector) = self.end(qpn) else { return };
        match (selector, self.rules.get(&selector)) {
            (Selector::Qp(_), Some(rule)) if !rule.is_leaving => {
                let connection = ServedQp::new(Arc::clone(&rule.chain));
                self.connections.insert(qpn, (selector, connection));
            }
            _ => self.drop_rule_without_connections(selector),
        }
    }

    /// Drops the services that are attached to a destroyed queue pair alone.
    pub fn destroyed(&mut self, qpn: u32) {
        let ended = self.end(qpn);
        self.rules.remove(&Selector::Qp(qpn));
        if let Some(selector) = ended {
            self.drop_rule_without_connections(selector);
        }
    }

    /// Drops the services that are attached to queue pairs, all of which were destroyed.
    pub fn all_destroyed(&mut self) {
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|qpn| self.destroyed(qpn));
        self.rules.retain(|selector, _| matches!(selector, Selector::Peer(_)));
    }

    /// Ends the connection of a queue pair that was detached, if nothing is under way any more.
    pub fn tidy(&mut self, qpn: u32) {
        let has_left =
            self.connections.get(&qpn).is_some_and(|(_, connection)| connection.has_left());
        if has_left {
            if let Some(selector) = self.end(qpn) {
                self.drop_rule_without_connections(selector);
            }
        }
    }

    fn end(&mut self, qpn: u32) -> Option<Selector> {
        let (selector, connection) = self.connections.remove(&qpn)?;
        if let Some(rule) = self.rules.get_mut(&selector) {
            rule.past = rule.past.plus(connection.counters());
        }
        Some(selector)
    }

    fn drop_rule_without_connections(&mut self, selector: Selector) {
        let is_leaving = self.rules.get(&selector).is_some_and(|rule| rule.is_leaving);
        if is_leaving && !self.connections.values().any(|(of, _)| *of == selector) {
            self.rules.remove(&selector);
        }
    }

    /// The attached services, in a fixed order.
    #[must_use]
    pub fn list(&self) -> Vec<Attached> {
        let tell = |(selector, rule): (&Selector, &Rule)| {
            let its = self.connections.iter().filter(|(_, (of, _))| of == selector);
            let mut connections: Vec<_> =
                its.map(|(qpn, (_, connection))| (*qpn, connection.counters())).collect();
            connections.sort_unstable_by_key(|(qpn, _)| *qpn);
            let counters = connections.iter().fold(rule.past, |sum, (_, its)| sum.plus(*its));
            let (chain, is_leaving) = (rule.chain.names(), rule.is_leaving);
            Attached { selector: *selector, chain, is_leaving, connections, counters }
        };
        self.rules.iter().map(tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Part, Placing, Verdict};

    const PEER: Selector = Selector::Peer([7; 16]);

    fn chain() -> Chain {
        Chain::named(&["preprocess"], crate::Settings::default()).unwrap()
    }

    fn part(offset: u64, is_last: bool) -> Part {
        Part { operation: Operation::Write, offset, length: 4, is_last }
    }

    /// Takes a packet of a WRITE from its check to its placement; gives the placed bytes.
    fn take(attachments: &mut Attachments, qpn: u32, part: Part) -> [u8; 4] {
        let mut bytes = 0i32.to_le_bytes();
        bytes[0] = 1;
        let Some(connection) = attachments.connection(qpn) else { return bytes };
        assert_eq!(connection.check(Some((&part, &bytes))), Verdict::Accept);
        connection.accept();
        assert!(connection.act(&mut Placing { bytes: &mut bytes, address: None }));
        attachments.tidy(qpn);
        bytes
    }

    fn is_changed(bytes: [u8; 4]) -> bool {
        i32::from_le_bytes(bytes) != 1
    }

    #[test]
    fn a_peer_s_queue_pairs_have_its_services_from_their_connection_to_their_end() {
        let mut all = Attachments::default();
        all.attach(PEER, chain(), &[(5, true)]).unwrap();
        all.connected(6, [7; 16]);
        all.connected(8, [8; 16]);
        for (qpn, has) in [(5, true), (6, true), (8, false)] {
            assert_eq!(is_changed(take(&mut all, qpn, part(0, true))), has, "{qpn}");
        }
        all.destroyed(5);
        all.restarted(6);
        assert!(all.connection(5).is_none() && all.connection(6).is_none());
        let told = all.list();
        assert_eq!((told.len(), told[0].counters.acted_packets), (1, 2));
        assert_eq!(told[0].connections, []);
    }

    #[test]
    fn a_queue_pair_keeps_its_services_over_a_reset_and_they_end_with_it() {
        let mut all = Attachments::default();
        all.attach(Selector::Qp(5), chain(), &[(5, false)]).unwrap();
        assert_eq!(all.attach(Selector::Qp(5), chain(), &[]), Err(Error::Taken(Selector::Qp(5))));
        all.connected(5, [7; 16]);
        all.restarted(5);
        assert!(is_changed(take(&mut all, 5, part(0, true))));
        all.destroyed(5);
        assert!(all.is_empty());
    }

    #[test]
    fn what_is_attached_to_one_is_not_taken_over_by_its_peer() {
        let mut all = Attachments::default();
        all.attach(Selector::Qp(5), chain(), &[(5, true)]).unwrap();
        all.attach(PEER, chain(), &[(5, true), (6, true)]).unwrap();
        let told = all.list();
        let its: Vec<_> = told.iter().map(|it| it.connections[0].0).collect();
        assert_eq!(its, [5, 6]);
        assert_eq!(all.attach(Selector::Qp(6), chain(), &[]), Err(Error::Taken(Selector::Qp(6))));
    }

    #[test]
    fn nothing_is_detached_under_traffic_unless_it_is_to_be() {
        let mut all = Attachments::default();
        all.attach(PEER, chain(), &[(5, true), (6, true)]).unwrap();
        take(&mut all, 5, part(0, false));
        assert_eq!(all.detach(PEER, false, |_| Some(false)), Err(Error::Busy { qpn: 5 }));
        assert_eq!(all.detach(PEER, true, |_| Some(false)), Ok(1));
        assert!(all.list()[0].is_leaving && all.connection(6).is_none());
        all.connected(9, [7; 16]);
        assert!(all.connection(9).is_none(), "it has been detached");
        assert!(is_changed(take(&mut all, 5, part(4, false))));
        assert!(is_changed(take(&mut all, 5, part(8, true))), "the message goes on to its end");
        assert!(all.is_empty());
        assert_eq!(all.detach(PEER, true, |_| Some(false)), Err(Error::NotAttached(PEER)));
    }

    #[test]
    fn messages_of_its_own_are_traffic_too() {
        let mut all = Attachments::default();
        all.attach(PEER, chain(), &[(5, true)]).unwrap();
        assert_eq!(all.detach(PEER, false, |qpn| Some(qpn == 5)), Err(Error::Busy { qpn: 5 }));
        assert_eq!(all.detach(PEER, false, |_| Some(false)), Ok(0));
        assert!(all.is_empty());
    }

    #[test]
    fn a_message_that_had_begun_goes_on_without_services_attached_in_its_middle() {
        let mut all = Attachments::default();
        all.attach(PEER, chain(), &[(5, true)]).unwrap();
        assert!(!is_changed(take(&mut all, 5, part(4, false))));
        assert!(!is_changed(take(&mut all, 5, part(8, true))));
        assert!(is_changed(take(&mut all, 5, part(0, true))));
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut all = Attachments::default();
        for qpn in 0..limit::ATTACHED as u32 {
            all.attach(Selector::Qp(qpn), chain(), &[(qpn, false)]).unwrap();
        }
        assert_eq!(all.attach(PEER, chain(), &[]), Err(Error::Full));
        all.all_destroyed();
        all.attach(PEER, chain(), &[]).unwrap();
        all.all_destroyed();
        assert_eq!(all.list().len(), 1, "a peer comes again");
    }
}
