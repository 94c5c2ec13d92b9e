//! The services of a card's queue pairs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::chain::Chain;
use crate::connection::Counters;
use crate::error::Error;
use crate::limit;
use crate::selector::{Selector, Side, Subject};
use crate::succession::Succession;

/// A chain that is attached, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The queue pairs that it is attached to.
    pub selector: Selector,
    /// Its services.
    pub chain: Vec<String>,
    /// The ends of messages at which they stand.
    pub side: Side,
    /// It is detached, and stays only for messages that had begun.
    pub is_leaving: bool,
    /// The program of its queue pair asked for it.
    pub is_asked: bool,
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
    /// The program of the queue pair asked for it; otherwise the owner of the card attached it.
    is_asked: bool,
}

impl Rule {
    fn new(chain: &Arc<Chain>, is_asked: bool) -> Self {
        let chain = Arc::clone(chain);
        Self { chain, past: Counters::default(), is_leaving: false, is_asked }
    }
}

/// The chains that are attached to a card, and its connections that have one.
#[derive(Debug, Default)]
pub struct Attachments {
    rules: BTreeMap<Selector, Rule>,
    connections: HashMap<u32, (Selector, Succession)>,
}

impl Attachments {
    /// Whether nothing is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The services of a queue pair.
    #[must_use]
    pub fn connection(&mut self, qpn: u32) -> Option<&mut Succession> {
        self.connections.get_mut(&qpn).map(|(_, connection)| connection)
    }

    /// Attaches a chain to a queue pair, or to connections some of which there are already: the queue pairs that are
    /// `there`, of each the number, and whether it is connected. Messages that have begun go on without it.
    ///
    /// # Errors
    /// Why not; nothing is attached then. One of them is that the program of such a connection has asked for services
    /// of its own, or that messages of it keep some that were detached: the chain would not see it.
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
        if self.count(false) >= limit::ATTACHED {
            return Err(Error::Full);
        }
        for (qpn, _) in there {
            self.check_outlived(*qpn)?;
        }
        let free = there.iter().filter(|(qpn, _)| !has(qpn)).copied().collect::<Vec<_>>();
        if let Some(about) = chain.transforming() {
            if let Some(&(qpn, _)) = free.iter().find(|(_, is_connected)| *is_connected) {
                return Err(Error::Connected { qpn, service: about.name.to_string() });
            }
        }
        let chain = Arc::new(chain);
        for (qpn, _) in free {
            let connection = Succession::new(Arc::clone(&chain));
            self.connections.insert(qpn, (selector, connection));
        }
        self.rules.insert(selector, Rule::new(&chain, false));
        Ok(())
    }

    /// Has another chain follow the one that is attached there: messages that have begun keep that, and none that begins
    /// from now on passes without services.
    ///
    /// # Errors
    /// Why not; nothing is changed then. Services that change what leaves neither follow nor are followed, for a message
    /// may be repeated from its middle.
    pub fn replace(&mut self, selector: Selector, chain: Chain) -> Result<(), Error> {
        let rule = self.rules.get_mut(&selector).filter(|rule| !rule.is_leaving);
        let rule = rule.ok_or(Error::NotAttached(selector))?;
        if let (true, Selector::Qp(qpn)) = (rule.is_asked, selector) {
            return Err(Error::Asked(qpn));
        }
        let its = || self.connections.iter().filter(|(_, (of, _))| *of == selector);
        let transforming = rule.chain.transforming().or_else(|| chain.transforming());
        if let (Some(about), Some(qpn)) = (transforming, its().map(|(qpn, _)| *qpn).min()) {
            return Err(Error::Connected { qpn, service: about.name.to_string() });
        }
        let busy = its().filter(|(_, (_, connection))| !connection.can_be_followed());
        if let Some(qpn) = busy.map(|(qpn, _)| *qpn).min() {
            return Err(Error::Followed(qpn));
        }
        rule.chain = Arc::new(chain);
        for (of, connection) in self.connections.values_mut() {
            if *of == selector {
                connection.follow(Arc::clone(&rule.chain));
            }
        }
        Ok(())
    }

    /// Attaches the chain that the program of a new queue pair asks for.
    ///
    /// # Errors
    /// Why not; nothing is attached then.
    pub fn ask(&mut self, qpn: u32, chain: Chain) -> Result<(), Error> {
        let selector = Selector::Qp(qpn);
        if self.rules.contains_key(&selector) {
            return Err(Error::Taken(selector));
        }
        if self.count(true) >= limit::ASKED {
            return Err(Error::TooManyAsked);
        }
        let chain = Arc::new(chain);
        self.connections.insert(qpn, (selector, Succession::new(Arc::clone(&chain))));
        self.rules.insert(selector, Rule::new(&chain, true));
        Ok(())
    }

    /// The number of chains that programs asked for, or of the others.
    fn count(&self, is_asked: bool) -> usize {
        self.rules.values().filter(|rule| rule.is_asked == is_asked).count()
    }

    /// Checks that a chain for many queue pairs can see this one, if not now then because its owner attached another.
    fn check_outlived(&self, qpn: u32) -> Result<(), Error> {
        let has = self.connections.get(&qpn).and_then(|(selector, _)| self.rules.get(selector));
        match has {
            Some(Rule { is_leaving: true, .. }) => Err(Error::Leaving(qpn)),
            Some(Rule { is_asked: true, .. }) => Err(Error::Asked(qpn)),
            _ => Ok(()),
        }
    }

    /// Checks that a queue pair may become such a connection: one whose program asked for services may not where the
    /// owner of the card has attached some for it, which it would get past.
    ///
    /// # Errors
    /// [`Error::Owners`].
    pub fn check(&self, qpn: u32, subject: &Subject) -> Result<(), Error> {
        let is_asked = self.rules.get(&Selector::Qp(qpn)).is_some_and(|rule| rule.is_asked);
        match self.rule_of(subject).filter(|_| is_asked) {
            Some((selector, _)) => Err(Error::Owners { qpn, selector }),
            None => Ok(()),
        }
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

    /// Takes note that a queue pair is such a reliable connection from now on.
    pub fn connected(&mut self, qpn: u32, subject: &Subject) {
        if self.connections.contains_key(&qpn) {
            return;
        }
        if let Some((selector, rule)) = self.rule_of(subject) {
            let connection = Succession::new(Arc::clone(&rule.chain));
            self.connections.insert(qpn, (selector, connection));
        }
    }

    /// The chain of those that are attached to many queue pairs which a connection gets.
    fn rule_of(&self, subject: &Subject) -> Option<(Selector, &Rule)> {
        subject.selectors().find_map(|selector| {
            let rule = self.rules.get(&selector).filter(|rule| !rule.is_leaving)?;
            Some((selector, rule))
        })
    }

    /// Takes note that a queue pair was reset: its services begin anew, those of many queue pairs once it is connected.
    pub fn restarted(&mut self, qpn: u32) {
        let Some(selector) = self.end(qpn) else { return };
        match (selector, self.rules.get(&selector)) {
            (Selector::Qp(_), Some(rule)) if !rule.is_leaving => {
                let connection = Succession::new(Arc::clone(&rule.chain));
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
        self.rules.retain(|selector, _| !matches!(selector, Selector::Qp(_)));
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
            let Rule { is_leaving, is_asked, .. } = *rule;
            let (selector, chain, side) = (*selector, rule.chain.names(), rule.chain.side());
            Attached { selector, chain, side, is_leaving, is_asked, connections, counters }
        };
        self.rules.iter().map(tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Part, Placing, Verdict};

    const PEER: Selector = Selector::Peer([7; 16]);

    /// A connection of process 42 with a peer, of DSCP 26.
    fn subject(peer: u8) -> Subject {
        Subject { process: Some(42), peer: [peer; 16], traffic_class: 26 << 2 }
    }

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
        all.connected(6, &subject(7));
        all.connected(8, &subject(8));
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
        all.connected(5, &subject(7));
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
        all.connected(9, &subject(7));
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
    fn a_connection_has_the_services_of_its_process_then_its_peer_then_its_class() {
        let mut all = Attachments::default();
        let selectors = [Selector::Dscp(26), PEER, Selector::Process(42)];
        for (qpn, selector) in (1..).zip(selectors) {
            all.attach(selector, chain(), &[]).unwrap();
            all.connected(qpn, &subject(7));
        }
        let of = |selector| all.list().into_iter().find(|it| it.selector == selector).unwrap();
        for (qpn, selector) in (1..).zip(selectors) {
            assert_eq!(of(selector).connections, [(qpn, Counters::default())], "{selector}");
        }
        let other = Subject { process: None, peer: [8; 16], traffic_class: 0 };
        all.connected(9, &other);
        assert!(all.connection(9).is_none());
    }

    #[test]
    fn a_chain_at_one_side_leaves_the_messages_of_the_other_alone() {
        let mut all = Attachments::default();
        for (qpn, side) in [(5, Side::Responder), (6, Side::Requester)] {
            all.attach(Selector::Qp(qpn), chain().at(side).unwrap(), &[(qpn, true)]).unwrap();
        }
        let read = Part { operation: Operation::Read, ..part(0, true) };
        assert!(is_changed(take(&mut all, 5, part(0, true))));
        assert!(!is_changed(take(&mut all, 5, read)));
        assert!(!is_changed(take(&mut all, 6, part(0, true))));
        assert!(is_changed(take(&mut all, 6, read)));
    }

    /// A chain that counts a pattern that every message of these tests has.
    fn counting() -> Chain {
        let settings = [("patterns", &b"0x01000000"[..]), ("mode", b"count")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_vec()));
        Chain::named(&["inspect"], crate::Settings::new(settings.to_vec()).unwrap()).unwrap()
    }

    #[test]
    fn another_chain_follows_from_message_to_message_and_none_passes_without() {
        let mut all = Attachments::default();
        assert_eq!(all.replace(PEER, counting()), Err(Error::NotAttached(PEER)));
        all.attach(PEER, chain(), &[(5, true), (6, true)]).unwrap();
        assert!(is_changed(take(&mut all, 5, part(0, false))));
        all.replace(PEER, counting()).unwrap();
        // What had begun keeps the former one, and the answers know nothing of it.
        let read = Part { operation: Operation::Read, ..part(0, true) };
        assert!(!is_changed(take(&mut all, 5, read)));
        assert!(is_changed(take(&mut all, 5, part(4, false))));
        assert!(!is_changed(take(&mut all, 6, part(0, true))));
        // A third would have to wait for a message of the second.
        let begun = Part { is_last: false, ..read };
        take(&mut all, 5, begun);
        assert_eq!(all.replace(PEER, chain()), Err(Error::Followed(5)));
        take(&mut all, 5, Part { offset: 4, ..read });
        assert!(is_changed(take(&mut all, 5, part(8, true))));
        assert!(!is_changed(take(&mut all, 5, part(0, true))));
        let told = &all.list()[0];
        assert_eq!(told.chain, ["inspect"]);
        // Three parts of the first chain, and on both queue pairs what came behind it.
        assert_eq!((told.counters.acted_packets, told.counters.matches), (8, 5));
        all.replace(PEER, chain()).unwrap();
        assert!(is_changed(take(&mut all, 5, part(0, true))));
        assert_eq!(all.detach(PEER, false, |_| Some(false)), Ok(0));
    }

    #[test]
    fn packets_that_wait_meet_the_chain_that_checked_them() {
        let mut all = Attachments::default();
        all.attach(PEER, chain(), &[(5, true)]).unwrap();
        let checked = |all: &mut Attachments, part: Part| {
            let connection = all.connection(5).unwrap();
            assert_eq!(connection.check(Some((&part, &[1, 0, 0, 0]))), Verdict::Accept);
        };
        let accepted = |all: &mut Attachments| all.connection(5).unwrap().accept();
        checked(&mut all, part(0, true));
        accepted(&mut all);
        // One is checked and waits, while another chain is to follow.
        checked(&mut all, part(0, true));
        all.replace(PEER, counting()).unwrap();
        accepted(&mut all);
        checked(&mut all, part(0, true));
        accepted(&mut all);
        for is_made in [true, true, false] {
            let mut bytes = [1, 0, 0, 0];
            let mut placing = Placing { bytes: &mut bytes, address: None };
            assert!(all.connection(5).unwrap().act(&mut placing));
            assert_eq!(is_changed(bytes), is_made);
        }
    }

    #[test]
    fn a_program_s_own_services_get_past_none_of_the_card_s_owner() {
        let mut all = Attachments::default();
        all.ask(5, chain()).unwrap();
        assert!(all.list()[0].is_asked);
        assert_eq!(all.ask(5, chain()), Err(Error::Taken(Selector::Qp(5))));
        all.check(5, &subject(7)).unwrap();
        // Of one that is connected the owner hears, and takes its program's services away first.
        assert_eq!(all.attach(PEER, chain(), &[(5, true)]), Err(Error::Asked(5)));
        take(&mut all, 5, part(0, false));
        assert_eq!(all.detach(Selector::Qp(5), true, |_| Some(true)), Ok(1));
        assert_eq!(all.attach(PEER, chain(), &[(5, true)]), Err(Error::Leaving(5)));
        take(&mut all, 5, part(4, true));
        all.attach(PEER, chain(), &[(5, true)]).unwrap();
        assert_eq!(all.list()[0].connections.len(), 1);
        // One that is to be connected is not.
        all.ask(6, chain()).unwrap();
        let selector = PEER;
        assert_eq!(all.check(6, &subject(7)), Err(Error::Owners { qpn: 6, selector }));
        all.check(6, &Subject { process: None, ..subject(8) }).unwrap();
        all.check(9, &subject(7)).unwrap();
    }

    #[test]
    fn programs_have_so_many_and_the_owner_has_room_beside_them() {
        let mut all = Attachments::default();
        for qpn in 0..limit::ASKED as u32 {
            all.ask(qpn, chain()).unwrap();
        }
        assert_eq!(all.ask(0xffff, chain()), Err(Error::TooManyAsked));
        all.attach(PEER, chain(), &[]).unwrap();
        all.destroyed(0);
        all.ask(0xffff, chain()).unwrap();
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
